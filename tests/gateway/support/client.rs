//! A client of the gateway: HTTP/1.1 or HTTP/2, with or without a certificate.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment};

pub(crate) type RequestBody = BoxBody<Bytes, std::io::Error>;

/// One connection to the gateway.
#[derive(Clone)]
pub(crate) enum Client {
    Http1(Arc<tokio::sync::Mutex<hyper::client::conn::http1::SendRequest<RequestBody>>>),
    Http2(hyper::client::conn::http2::SendRequest<RequestBody>),
}

/// An answer read to its end.
#[derive(Debug)]
pub(crate) struct ClientResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Whether the body ended as it should; if not, `body` is what came before it broke.
    pub(crate) is_complete: bool,
}

impl ClientResponse {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// Asserts that the answer is a `metav1.Status` of this code and reason, and gives it.
    #[track_caller]
    pub(crate) fn assert_failure(&self, code: u16, reason: &str) -> serde_json::Value {
        assert_eq!(self.status, code, "{}", self.text());
        let status = self.json();
        assert_eq!((status["kind"].as_str(), status["apiVersion"].as_str()), (Some("Status"), Some("v1")), "{status}");
        assert_eq!((status["code"].as_u64(), status["reason"].as_str()), (Some(code.into()), Some(reason)), "{status}");
        assert!(self.headers.contains_key("audit-id"), "{:?}", self.headers);
        status
    }
}

/// A TLS connection to the gateway that offers `protocols`.
pub(crate) async fn connect(
    environment: &TestEnvironment,
    address: SocketAddr,
    pair: Option<&CertKeyPair>,
    protocols: &[&str],
) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(address).await.unwrap();
    socket.set_nodelay(true).unwrap();
    tls_handshake(environment, socket, pair, protocols).await.unwrap()
}

/// The same over a connection that stands.
///
/// # Errors
/// The handshake's.
pub(crate) async fn tls_handshake(
    environment: &TestEnvironment,
    socket: TcpStream,
    pair: Option<&CertKeyPair>,
    protocols: &[&str],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(environment.serving_ca.certificate().clone()).unwrap();
    let builder = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match pair {
        Some(pair) => builder.with_client_auth_cert(pair.0.0.clone(), pair.0.1.clone_key()).unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), socket).await
}

impl Client {
    pub(crate) async fn http1(
        environment: &TestEnvironment,
        gateway: &GatewayProcess,
        pair: Option<&CertKeyPair>,
    ) -> Client {
        Client::from_stream(connect(environment, gateway.address, pair, &["http/1.1"]).await, true).await
    }

    pub(crate) async fn http2(
        environment: &TestEnvironment,
        gateway: &GatewayProcess,
        pair: Option<&CertKeyPair>,
    ) -> Client {
        Client::from_stream(connect(environment, gateway.address, pair, &["h2"]).await, false).await
    }

    /// A client over a connection whose TLS handshake is done.
    pub(crate) async fn from_stream(stream: TlsStream<TcpStream>, http1: bool) -> Client {
        if http1 {
            let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection.with_upgrades());
            Client::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
        } else {
            let (sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
            tokio::spawn(connection);
            Client::Http2(sender)
        }
    }

    /// Sends a request whose URI is a path; the head of the answer.
    pub(crate) async fn send(&self, mut request: Request<RequestBody>) -> Result<Response<Incoming>, hyper::Error> {
        let sent = async {
            match self {
                Client::Http1(sender) => {
                    if !request.headers().contains_key("host") {
                        request.headers_mut().insert("host", "localhost".parse().unwrap());
                    }
                    let mut sender = sender.lock().await;
                    sender.ready().await?;
                    sender.send_request(request).await
                }
                Client::Http2(sender) => {
                    let uri = format!("https://localhost{}", request.uri());
                    *request.uri_mut() = uri.parse().unwrap();
                    *request.version_mut() = http::Version::HTTP_2;
                    sender.clone().send_request(request).await
                }
            }
        };
        tokio::time::timeout(TEST_TIMEOUT, sent).await.expect("an answer in time")
    }

    /// Sends a request and reads its answer to the end.
    pub(crate) async fn send_and_read(&self, request: Request<RequestBody>) -> ClientResponse {
        read_response(self.send(request).await.unwrap()).await
    }

    pub(crate) async fn get(&self, path: &str) -> ClientResponse {
        self.send_and_read(get(path, &[])).await
    }
}

/// Reads an answer to its end, good or bad.
pub(crate) async fn read_response(response: Response<Incoming>) -> ClientResponse {
    let (parts, mut body) = response.into_parts();
    let mut bytes = Vec::new();
    let mut whole = true;
    let reading = async {
        while let Some(frame) = body.frame().await {
            match frame {
                Ok(frame) => bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data)),
                Err(_) => {
                    whole = false;
                    break;
                }
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("the answer's end in time");
    ClientResponse { status: parts.status, headers: parts.headers, body: bytes.into(), is_complete: whole }
}

/// A GET with headers.
pub(crate) fn get(path: &str, headers: &[(&str, &str)]) -> Request<RequestBody> {
    request(Method::GET, path, headers, "")
}

/// A request with headers and a body.
pub(crate) fn request(method: Method, path: &str, headers: &[(&str, &str)], body: &str) -> Request<RequestBody> {
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    let body = if body.is_empty() {
        Empty::new().map_err(|never| match never {}).boxed()
    } else {
        Full::new(Bytes::from(body.to_owned())).map_err(|never| match never {}).boxed()
    };
    builder.body(body).unwrap()
}

/// A request whose body is what is sent through the channel; it ends when the sender is dropped.
pub(crate) fn streaming_request(
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
) -> (tokio::sync::mpsc::Sender<Bytes>, Request<RequestBody>) {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let frames = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let data: Bytes = receiver.recv().await?;
        Some((Ok(http_body::Frame::data(data)), receiver))
    });
    let mut streaming = request(method, path, headers, "");
    *streaming.body_mut() = BodyExt::boxed(http_body_util::StreamBody::new(frames));
    (sender, streaming)
}

/// The next frame of data of a streaming answer; `None` at its end, an error when it broke.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    loop {
        let frame = tokio::time::timeout(TEST_TIMEOUT, body.frame()).await.expect("a frame in time")?;
        match frame.map(|frame| frame.into_data().unwrap_or_default()) {
            // Trailers, or no more than the end of the stream.
            Ok(data) if data.is_empty() => {}
            frame => return Some(frame),
        }
    }
}

/// An error and what it comes from.
pub(crate) fn error_chain(error: &dyn std::error::Error) -> String {
    let more = error.source().map_or_else(String::new, |source| format!(": {}", error_chain(source)));
    format!("{error}{more}")
}

/// Asks the operator's door, over a connection of its own.
pub(crate) async fn admin_request(gateway: &GatewayProcess, request: Request<RequestBody>) -> ClientResponse {
    plaintext_request(gateway.admin, request).await
}

/// Sends a request to an admin listener, by default with its address as Host.
pub(crate) async fn plaintext_request(address: SocketAddr, mut request: Request<RequestBody>) -> ClientResponse {
    let socket = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(socket)).await.unwrap();
    tokio::spawn(connection);
    if !request.headers().contains_key("host") {
        request.headers_mut().insert("host", address.to_string().parse().unwrap());
    }
    let sent = tokio::time::timeout(TEST_TIMEOUT, sender.send_request(request)).await.expect("an answer in time");
    read_response(sent.unwrap()).await
}

/// The value of a sample of `/metrics`, by its name and labels as they stand there.
pub(crate) async fn metric_value(gateway: &GatewayProcess, name: &str) -> Option<f64> {
    let text = admin_request(gateway, get("/metrics", &[])).await.text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}
