//! Who is let in: the real listener, with real certificates.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::net::TcpStream;

use super::DOORS;
use crate::process::{Drain, Phase};
use crate::roles::quickstart::example::{ExampleApi, serve};

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Authority { issuer: Issuer::new(params, key), certificate }
    }

    fn issue(&self, name: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        roots
    }

    fn serving(&self) -> ServerConfig {
        let (chain, key) = self.issue("localhost");
        let verifier = WebPkiClientVerifier::builder(Arc::new(self.roots())).build().unwrap();
        let mut config =
            ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        config
    }
}

/// One GET as `name`, over HTTP/2 or HTTP/1.1; the code and the body.
async fn get(address: SocketAddr, authority: &Authority, name: &str, http2: bool, user: Option<&str>) -> (u16, Value) {
    let (chain, key) = authority.issue(name);
    let config = ClientConfig::builder().with_root_certificates(authority.roots());
    let mut config = config.with_client_auth_cert(chain, key).unwrap();
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = TcpStream::connect(address).await.unwrap();
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let mut request = Request::get(format!("https://localhost{DOORS}")).header("host", "localhost");
    if let Some(user) = user {
        request = request.header("x-remote-user", user);
    }
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let answer = if http2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let code = answer.status().as_u16();
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn only_the_front_proxy_is_believed() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let authority = Authority::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (drainer, drain) = Drain::new();
    let names = vec!["front-proxy".to_owned()];
    let serving = tokio::spawn(serve(listener, Arc::new(authority.serving()), ExampleApi::new(), names, drain));
    for http2 in [true, false] {
        let (code, body) = get(address, &authority, "front-proxy", http2, Some("ann")).await;
        assert_eq!((code, &body["kind"]), (200, &json!("DoorList")));
        let (code, body) = get(address, &authority, "someone", http2, Some("ann")).await;
        assert_eq!((code, &body["reason"]), (401, &json!("Unauthorized")), "the right authority, another name");
        let (code, body) = get(address, &authority, "front-proxy", http2, None).await;
        assert_eq!((code, &body["message"]), (401, &json!("Unauthorized")), "the front proxy, but for nobody");
    }
    drainer.advance(Phase::Ending);
    serving.await.unwrap().unwrap();
}
