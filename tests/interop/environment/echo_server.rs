//! An echo server: it returns each request as JSON.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::http::runtime;
use super::{Authority, Identity};

/// Protocol of the server.
pub(crate) enum ServerProtocol<'i> {
    Http1,
    /// HTTP/2 without TLS.
    H2c,
    /// HTTP/1.1 and HTTP/2 over TLS, with client certificates of this authority required if there is one.
    Tls(&'i Identity, Option<&'i Authority>),
}

type Documents = Arc<BTreeMap<String, Value>>;

/// Starts the server on loopback, until the test process ends, and returns its port. `documents` are served unchanged
/// at their paths.
pub(crate) fn start_echo_server(
    protocol: &ServerProtocol<'_>,
    documents: impl FnOnce(u16) -> BTreeMap<String, Value>,
) -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let documents = Arc::new(documents(port));
    let tls = match protocol {
        ServerProtocol::Tls(identity, clients) => {
            Some(acceptor(identity, clients.map(|authority| authority.file.as_path())))
        }
        ServerProtocol::Http1 | ServerProtocol::H2c => None,
    };
    let use_http2 = matches!(protocol, ServerProtocol::H2c);
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, documents) = (tls.clone(), documents.clone());
                tokio::spawn(async move {
                    match tls {
                        None => serve(stream, use_http2, documents).await,
                        Some(tls) => {
                            let Ok(stream) = tls.accept(stream).await else { return };
                            let use_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                            serve(stream, use_http2, documents).await;
                        }
                    }
                });
            }
        });
    });
    port
}

fn acceptor(identity: &Identity, clients: Option<&Path>) -> TlsAcceptor {
    let pem = |file: &Path| CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect::<Vec<_>>();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            pem(authority).into_iter().for_each(|certificate| roots.add(certificate).unwrap());
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(pem(&identity.certificate), key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, use_http2: bool, documents: Documents) {
    let service = service_fn(move |request| handle_request(request, documents.clone()));
    let stream = TokioIo::new(stream);
    // The client may have disconnected; errors are ignored.
    if use_http2 {
        let _ = http2::Builder::new(TokioExecutor::new()).serve_connection(stream, service).await;
    } else {
        let _ = http1::Builder::new().serve_connection(stream, service).await;
    }
}

async fn handle_request(request: Request<Incoming>, documents: Documents) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    if let Some(document) = documents.get(head.uri.path()) {
        let response = Response::builder().header("content-type", "application/json");
        return Ok(response.body(document.to_string().into()).unwrap());
    }
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let mut headers: Vec<_> = head
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    headers.sort_by_key(Value::to_string);
    let received = json!({
        "method": head.method.as_str(),
        "target": head.uri.path_and_query().map(ToString::to_string),
        "authority": head.uri.authority().map(ToString::to_string),
        "version": format!("{:?}", head.version),
        "headers": headers,
        "body": String::from_utf8_lossy(&body),
    });
    // Headers that narthex filters from responses.
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("set-cookie", "a=b")
        .header("set-cookie", "c=d")
        .header("access-control-allow-origin", "*")
        .header("www-authenticate", "Basic")
        .header("strict-transport-security", "max-age=1");
    Ok(response.body(received.to_string().into()).unwrap())
}
