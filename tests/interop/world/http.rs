//! Plain HTTPS for the harness itself and for tests that kubectl is too polite for.

use std::fs::File;
use std::io::{BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::HeaderMap;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::certificates::Identity;

/// One HTTPS server on loopback, and what its certificate is signed by.
#[derive(Clone)]
pub(crate) struct Door {
    pub(crate) port: u16,
    pub(crate) authority: std::path::PathBuf,
}

/// How an error begins when TCP or TLS failed, before anything was asked.
pub(crate) const NOT_LET_IN: &str = "not let in: ";

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {} {:?}", self.status, self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl Door {
    pub(crate) fn new(port: u16, authority: &Path) -> Door {
        Door { port, authority: authority.to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// One request on a connection of its own; errors are words, for [`super::eventually`]. They begin
    /// with [`NOT_LET_IN`] when the request was never sent.
    pub(crate) fn send(
        &self,
        who: Option<&Identity>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Answer, String> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", format!("127.0.0.1:{}", self.port));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).map_err(|error| error.to_string())?;
        let exchange = async {
            let stream = self.connect(who, b"http/1.1").await.map_err(|error| format!("{NOT_LET_IN}{error}"))?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(words)?;
            tokio::spawn(connection);
            let response = sender.send_request(request).await.map_err(words)?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(words)?.to_bytes();
            Ok(Answer { status: parts.status, headers: parts.headers, body })
        };
        runtime().block_on(async {
            tokio::time::timeout(Duration::from_secs(30), exchange).await.map_err(|_| "no answer in 30 s".to_owned())?
        })
    }

    pub(crate) fn get(&self, who: Option<&Identity>, path: &str) -> Result<Answer, String> {
        self.send(who, "GET", path, &[], b"")
    }

    /// POST of a JSON document that must be accepted.
    pub(crate) fn create(&self, who: &Identity, path: &str, document: &serde_json::Value) {
        let headers = [("content-type", "application/json")];
        let answer = self.send(Some(who), "POST", path, &headers, document.to_string().as_bytes()).unwrap();
        assert!(answer.status.is_success(), "POST {path}: {} {}", answer.status, answer.text());
    }

    /// A TLS connection that speaks `protocol` (ALPN) and shows `who`.
    pub(crate) async fn connect(
        &self,
        who: Option<&Identity>,
        protocol: &[u8],
    ) -> Result<TlsStream<TcpStream>, String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let stream = TcpStream::connect(address).await.map_err(words)?;
        stream.set_nodelay(true).map_err(words)?;
        tls(stream, &self.authority, who, protocol).await
    }

    /// An HTTP/2 connection for many requests at once.
    pub(crate) async fn multiplexed(&self, who: &Identity) -> Multiplexed {
        let stream = self.connect(Some(who), b"h2").await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Multiplexed { sender, authority: self.url() }
    }
}

/// An open HTTP/2 connection.
#[derive(Clone)]
pub(crate) struct Multiplexed {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
}

impl Multiplexed {
    pub(crate) async fn get(&mut self, path: &str) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::get(format!("{}{path}", self.authority)).body(Full::default()).unwrap();
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

/// A runtime for one test.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// TLS with 127.0.0.1 over `stream`, which speaks `protocol` (ALPN) and shows `who`.
pub(super) async fn tls(
    stream: TcpStream,
    authority: &Path,
    who: Option<&Identity>,
    protocol: &[u8],
) -> Result<TlsStream<TcpStream>, String> {
    let mut config = client_config(authority, who)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::from(IpAddr::from([127, 0, 0, 1]));
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(words)
}

/// The body of a plain `GET` at `port` of this machine that is answered 200.
pub(super) fn plain_get(port: u16, path: &str) -> Result<String, String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).map_err(words)?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(words)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(words)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(words)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(answer),
    }
}

fn client_config(authority: &Path, who: Option<&Identity>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(words)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(words)?
        .with_root_certificates(roots);
    match who {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(words)?;
            builder.with_client_auth_cert(certificates(&identity.certificate)?, key).map_err(words)
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = File::open(file).map_err(words)?;
    CertificateDer::pem_reader_iter(BufReader::new(file)).collect::<Result<_, _>>().map_err(words)
}

fn words(error: impl std::fmt::Display) -> String {
    error.to_string()
}
