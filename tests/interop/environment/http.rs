//! An HTTPS client for the harness and for requests that kubectl cannot send.

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

/// An HTTPS server on loopback and the CA of its certificate.
#[derive(Clone)]
pub(crate) struct HttpsEndpoint {
    pub(crate) port: u16,
    pub(crate) authority: std::path::PathBuf,
}

/// Prefix of errors of the TCP or TLS handshake, before a request was sent.
pub(crate) const CONNECT_FAILED: &str = "connection failed: ";

/// A complete response.
#[derive(Debug)]
pub(crate) struct HttpResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl HttpResponse {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {} {:?}", self.status, self.text()))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

impl HttpsEndpoint {
    pub(crate) fn new(port: u16, authority: &Path) -> HttpsEndpoint {
        HttpsEndpoint { port, authority: authority.to_owned() }
    }

    pub(crate) fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// Sends one request on a new connection. Errors are strings, for [`super::eventually`]; they begin with
    /// [`CONNECT_FAILED`] when the request was never sent.
    pub(crate) fn send(
        &self,
        identity: Option<&Identity>,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<HttpResponse, String> {
        let mut request =
            Request::builder().method(method).uri(path).header("host", format!("127.0.0.1:{}", self.port));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body))).map_err(|error| error.to_string())?;
        let exchange = async {
            let stream =
                self.connect(identity, b"http/1.1").await.map_err(|error| format!("{CONNECT_FAILED}{error}"))?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(error_text)?;
            tokio::spawn(connection);
            let response = sender.send_request(request).await.map_err(error_text)?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.map_err(error_text)?.to_bytes();
            Ok(HttpResponse { status: parts.status, headers: parts.headers, body })
        };
        runtime().block_on(async {
            tokio::time::timeout(Duration::from_secs(30), exchange)
                .await
                .map_err(|_| "no response in 30 s".to_owned())?
        })
    }

    pub(crate) fn get(&self, identity: Option<&Identity>, path: &str) -> Result<HttpResponse, String> {
        self.send(identity, "GET", path, &[], b"")
    }

    /// Sends a JSON document by POST and asserts success.
    pub(crate) fn create(&self, identity: &Identity, path: &str, document: &serde_json::Value) {
        let headers = [("content-type", "application/json")];
        let response = self.send(Some(identity), "POST", path, &headers, document.to_string().as_bytes()).unwrap();
        assert!(response.status.is_success(), "POST {path}: {} {}", response.status, response.text());
    }

    /// Opens a TLS connection with ALPN `protocol` and the client certificate `identity`.
    pub(crate) async fn connect(
        &self,
        identity: Option<&Identity>,
        protocol: &[u8],
    ) -> Result<TlsStream<TcpStream>, String> {
        let address = SocketAddr::from(([127, 0, 0, 1], self.port));
        let stream = TcpStream::connect(address).await.map_err(error_text)?;
        stream.set_nodelay(true).map_err(error_text)?;
        tls(stream, &self.authority, identity, protocol).await
    }

    /// Opens an HTTP/2 connection for concurrent requests.
    pub(crate) async fn connect_http2(&self, identity: &Identity) -> Http2Connection {
        let stream = self.connect(Some(identity), b"h2").await.unwrap();
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Http2Connection { sender, authority: self.url() }
    }
}

/// An open HTTP/2 connection.
#[derive(Clone)]
pub(crate) struct Http2Connection {
    sender: http2::SendRequest<Full<Bytes>>,
    authority: String,
}

impl Http2Connection {
    /// Sends a GET request. Panics when the response headers do not arrive within 90 s, more than the request timeout
    /// of the gateways.
    pub(crate) async fn get(&mut self, path: &str) -> Result<Response<Incoming>, hyper::Error> {
        let request = Request::get(format!("{}{path}", self.authority)).body(Full::default()).unwrap();
        let exchange = async {
            self.sender.ready().await?;
            self.sender.send_request(request).await
        };
        tokio::time::timeout(Duration::from_secs(90), exchange)
            .await
            .unwrap_or_else(|_| panic!("GET {path}: no response headers in 90 s"))
    }
}

/// A single-threaded runtime.
pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// TLS handshake with 127.0.0.1 over `stream`, with ALPN `protocol` and the client certificate `identity`.
pub(super) async fn tls(
    stream: TcpStream,
    authority: &Path,
    identity: Option<&Identity>,
    protocol: &[u8],
) -> Result<TlsStream<TcpStream>, String> {
    let mut config = client_config(authority, identity)?;
    config.alpn_protocols = vec![protocol.to_vec()];
    let name = ServerName::from(IpAddr::from([127, 0, 0, 1]));
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(error_text)
}

/// Sends a plaintext GET to `port` on loopback and returns the body of a 200 response.
pub(crate) fn plain_get(port: u16, path: &str) -> Result<String, String> {
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).map_err(error_text)?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).map_err(error_text)?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").map_err(error_text)?;
    let mut response = String::new();
    stream.read_to_string(&mut response).map_err(error_text)?;
    match response.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 ") => Ok(body.to_owned()),
        _ => Err(response),
    }
}

fn client_config(authority: &Path, identity: Option<&Identity>) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(authority)? {
        roots.add(certificate).map_err(error_text)?;
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(error_text)?
        .with_root_certificates(roots);
    match identity {
        None => Ok(builder.with_no_client_auth()),
        Some(identity) => {
            let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(error_text)?;
            builder.with_client_auth_cert(certificates(&identity.certificate)?, key).map_err(error_text)
        }
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = File::open(file).map_err(error_text)?;
    CertificateDer::pem_reader_iter(BufReader::new(file)).collect::<Result<_, _>>().map_err(error_text)
}

fn error_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
