//! A scriptable backend over the real protocols.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;

use crate::support::fixtures::{CertKeyPair, TestEnvironment};

pub(crate) type BackendResponse = Response<BoxBody<Bytes, std::io::Error>>;
type BackendHandler =
    Arc<dyn Fn(Request<Incoming>) -> futures_util::future::BoxFuture<'static, BackendResponse> + Send + Sync>;

/// A request as it reached the backend.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    /// Common name of the client certificate it came with.
    pub(crate) peer: String,
}

impl ReceivedRequest {
    /// All values of a header.
    pub(crate) fn header_values(&self, name: &str) -> Vec<String> {
        self.headers.get_all(name).iter().map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned()).collect()
    }
}

/// A listening backend; it stops when dropped.
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    connections: Arc<Mutex<usize>>,
    listening: tokio::task::JoinHandle<()>,
    /// Serves the connections.
    running: Arc<Mutex<tokio::task::JoinSet<()>>>,
}

/// How a backend listens.
#[derive(Clone)]
pub(crate) struct BackendSettings {
    pub(crate) protocols: Vec<&'static str>,
    /// HTTP/2 streams on one connection.
    pub(crate) streams: u32,
    /// Bytes of an HTTP/2 request's body that it takes before it is read.
    pub(crate) window: u32,
    pub(crate) names: Vec<&'static str>,
    /// Authorities of front proxies that it believes instead of the environment's; `None` for that one.
    pub(crate) front_proxies: Vec<CertificateDer<'static>>,
    /// A certificate of the test's own making instead of one for `names`.
    pub(crate) pair: Option<CertKeyPair>,
    pub(crate) address: SocketAddr,
    /// A socket that listens already, instead of one at `address`. The first backend of these settings takes it.
    pub(crate) listener: Arc<Mutex<Option<tokio::net::TcpListener>>>,
    /// Whether the test answers the gateway's own questions too: probes, discovery, OpenAPI.
    pub(crate) handles_probes: bool,
    /// Whether clients may come without a certificate.
    pub(crate) allows_anonymous: bool,
}

impl Default for BackendSettings {
    fn default() -> BackendSettings {
        BackendSettings {
            protocols: vec!["h2", "http/1.1"],
            streams: 250,
            window: 1 << 20,
            names: vec!["things-v1.things.svc"],
            front_proxies: Vec::new(),
            pair: None,
            address: "127.0.0.1:0".parse().unwrap(),
            listener: Arc::default(),
            handles_probes: false,
            allows_anonymous: false,
        }
    }
}

impl BackendSettings {
    pub(crate) fn http1() -> BackendSettings {
        BackendSettings { protocols: vec!["http/1.1"], ..BackendSettings::default() }
    }

    pub(crate) fn http2() -> BackendSettings {
        BackendSettings { protocols: vec!["h2"], ..BackendSettings::default() }
    }

    /// The same settings with a socket that listens already.
    #[allow(dead_code, reason = "the tests of faults listen in a network namespace")]
    pub(crate) fn with_listener(self, listener: tokio::net::TcpListener) -> BackendSettings {
        BackendSettings { listener: Arc::new(Mutex::new(Some(listener))), ..self }
    }
}

impl Backend {
    /// Serves `handler`; discovery and probes of `things.example.com/v1` are answered before it is asked.
    pub(crate) async fn start<F>(
        environment: &TestEnvironment,
        settings: BackendSettings,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = BackendResponse> + Send + 'static,
    {
        let pair = settings.pair.clone().unwrap_or_else(|| environment.issue_backend(&settings.names));
        Backend::start_as(environment.request_header_ca.certificate(), &pair, settings, handler).await
    }

    /// Like [`Backend::start`], without a test environment: `pair` is its certificate, `front_proxies` the CA of
    /// accepted front proxies.
    pub(crate) async fn start_as<F>(
        front_proxies: &CertificateDer<'static>,
        pair: &CertKeyPair,
        settings: BackendSettings,
        handler: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = BackendResponse> + Send + 'static,
    {
        let handler: BackendHandler = Arc::new(move |request| Box::pin(handler(request)));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = seen.clone();
        let (streams, window, all) = (settings.streams, settings.window, settings.handles_probes);
        Backend::listen(front_proxies, pair, settings, seen, move |stream| {
            let (handler, kept) = (handler.clone(), kept.clone());
            async move { serve(stream, handler, kept, streams, window, all).await }
        })
        .await
    }

    /// Hands every connection, its TLS handshake done, to `handler`.
    pub(crate) async fn start_raw<F>(
        environment: &TestEnvironment,
        settings: BackendSettings,
        handler: impl Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let pair = settings.pair.clone().unwrap_or_else(|| environment.issue_backend(&settings.names));
        Backend::listen(environment.request_header_ca.certificate(), &pair, settings, Arc::default(), handler).await
    }

    async fn listen<F>(
        front_proxies: &CertificateDer<'static>,
        pair: &CertKeyPair,
        settings: BackendSettings,
        seen: Arc<Mutex<Vec<ReceivedRequest>>>,
        handler: impl Fn(TlsStream<TcpStream>) -> F + Send + Sync + 'static,
    ) -> Backend
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let front_proxies = match &settings.front_proxies[..] {
            [] => std::slice::from_ref(front_proxies),
            others => others,
        };
        let tls = tokio_rustls::TlsAcceptor::from(Arc::new(server_config(front_proxies, pair, &settings)));
        let ready = settings.listener.lock().unwrap().take();
        let listener = match ready {
            Some(listener) => listener,
            None => tokio::net::TcpListener::bind(settings.address).await.unwrap(),
        };
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(Mutex::new(0));
        let counter = connections.clone();
        let handler = Arc::new(handler);
        let running = Arc::new(Mutex::new(tokio::task::JoinSet::new()));
        let kept = running.clone();
        let listening = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (tls, handler, counter) = (tls.clone(), handler.clone(), counter.clone());
                let mut running = kept.lock().unwrap();
                running.spawn(async move {
                    socket.set_nodelay(true).unwrap();
                    if let Ok(stream) = tls.accept(socket).await {
                        *counter.lock().unwrap() += 1;
                        handler(stream).await;
                    }
                });
                while running.try_join_next().is_some() {}
            }
        });
        Backend { address, received: seen, connections, listening, running }
    }

    /// The requests so far, probes and discovery left out.
    pub(crate) fn received(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    /// The latest request, probes and discovery left out.
    pub(crate) fn last_request(&self) -> ReceivedRequest {
        self.received().pop().expect("a request reached the backend")
    }

    /// Connections so far.
    pub(crate) fn connections(&self) -> usize {
        *self.connections.lock().unwrap()
    }

    /// Stops listening; open connections go on.
    pub(crate) async fn stop_listening(&mut self) {
        self.listening.abort();
        let _ = (&mut self.listening).await;
    }

    /// Stops listening and cuts every connection.
    pub(crate) async fn stop(mut self) -> SocketAddr {
        if !self.listening.is_finished() {
            self.stop_listening().await;
        }
        self.running.lock().unwrap().abort_all();
        self.address
    }
}

impl Drop for Backend {
    fn drop(&mut self) {
        self.listening.abort();
        self.running.lock().unwrap().abort_all();
    }
}

async fn serve(
    stream: TlsStream<TcpStream>,
    handler: BackendHandler,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
    streams: u32,
    window: u32,
    all: bool,
) {
    let session = stream.get_ref().1;
    let http2 = session.alpn_protocol() == Some(b"h2");
    let peer = session.peer_certificates().and_then(|chain| chain.first()).map_or_else(String::new, |leaf| {
        narthex::tls::PeerCertificate::parse(leaf).unwrap().common_name.unwrap_or_default()
    });
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (handler, seen, peer) = (handler.clone(), seen.clone(), peer.clone());
        async move {
            let system = request.headers().get("x-remote-user").is_some_and(|user| user == "system:kube-aggregator");
            if system
                && !all
                && let Some(response) = discovery_response(request.uri().path())
            {
                return Ok::<_, Infallible>(response);
            }
            seen.lock().unwrap().push(ReceivedRequest {
                method: request.method().clone(),
                uri: request.uri().clone(),
                headers: request.headers().clone(),
                peer,
            });
            let head = request.method() == Method::HEAD;
            let response = handler(request).await;
            // Over HTTP/2 hyper would send the body to HEAD, too.
            Ok(if head { drop_body(response).await } else { response })
        }
    });
    if http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.max_concurrent_streams(streams).max_header_list_size(16 << 20).initial_stream_window_size(window);
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    } else {
        let _ = http1::Builder::new()
            .max_headers(1000)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades()
            .await;
    }
}

async fn drop_body(response: BackendResponse) -> BackendResponse {
    let (mut parts, body) = response.into_parts();
    let length = body.collect().await.unwrap().to_bytes().len();
    parts.headers.insert("content-length", length.into());
    Response::from_parts(parts, BodyExt::boxed(http_body_util::Empty::new().map_err(|never| match never {})))
}

/// What any extension API server says of itself; here of `things` in one version.
fn discovery_response(path: &str) -> Option<BackendResponse> {
    if let Some(text) = api_resource_list(path) {
        return Some(json_response(200, &text));
    }
    (path.starts_with("/apis") || path.starts_with("/openapi")).then(|| json_response(404, "{}"))
}

/// The resources of `/apis/GROUP/VERSION`.
pub(crate) fn api_resource_list(path: &str) -> Option<String> {
    let mut words = path.trim_matches('/').split('/');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some("apis"), Some(group), Some(version), None) => Some(format!(
            r#"{{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"{group}/{version}","resources":[{{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list","watch","create","update","patch","delete"]}}]}}"#
        )),
        _ => None,
    }
}

fn server_config(
    front_proxies: &[CertificateDer<'static>],
    pair: &CertKeyPair,
    settings: &BackendSettings,
) -> rustls::ServerConfig {
    let mut roots = rustls::RootCertStore::empty();
    front_proxies.iter().for_each(|authority| roots.add(authority.clone()).unwrap());
    let mut verifier =
        rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), narthex::tls::provider());
    if settings.allows_anonymous {
        verifier = verifier.allow_unauthenticated();
    }
    let verifier = verifier.build().unwrap();
    let (chain, key) = &*pair.0;
    let mut config = rustls::ServerConfig::builder_with_provider(narthex::tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .unwrap();
    config.alpn_protocols = settings.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    config
}

/// A JSON answer.
pub(crate) fn json_response(status: u16, text: &str) -> BackendResponse {
    let body = Full::new(Bytes::from(text.to_owned())).map_err(|never| match never {}).boxed();
    Response::builder().status(status).header("content-type", "application/json").body(body).unwrap()
}

/// A response whose body the test writes; an error aborts it.
pub(crate) fn streamed_response(status: u16) -> (BodyWriter, BackendResponse) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let stream = futures_util::stream::poll_fn(move |cx| receiver.poll_recv(cx));
    let body = BodyExt::boxed(StreamBody::new(stream));
    (sender, Response::builder().status(status).header("content-type", "application/json").body(body).unwrap())
}

/// What a test writes an answer with.
pub(crate) type BodyWriter = mpsc::UnboundedSender<Result<Frame<Bytes>, std::io::Error>>;

/// A backend with responses written by the test, in the order of requests.
pub(crate) async fn start_scripted_backend(
    environment: &TestEnvironment,
    settings: BackendSettings,
) -> (Backend, mpsc::UnboundedReceiver<BodyWriter>) {
    let (send, writers) = mpsc::unbounded_channel();
    let backend = Backend::start(environment, settings, move |_| {
        let (sender, response) = streamed_response(200);
        // A test that is over takes no more writers.
        let _ = send.send(sender);
        async { response }
    })
    .await;
    (backend, writers)
}

/// A backend whose watches begin with the line `first` and are then written by the test, in the order of requests;
/// all other responses are `{}`.
pub(crate) async fn start_watch_backend(
    environment: &TestEnvironment,
    settings: BackendSettings,
) -> (Backend, Arc<Mutex<Vec<BodyWriter>>>) {
    let writers = Arc::new(Mutex::new(Vec::new()));
    let kept = writers.clone();
    let backend = Backend::start(environment, settings, move |request| {
        let response = if request.uri().query() == Some("watch=1") {
            let (writer, response) = streamed_response(200);
            writer.send(data_frame("first\n")).unwrap();
            kept.lock().unwrap().push(writer);
            response
        } else {
            json_response(200, "{}")
        };
        async { response }
    })
    .await;
    (backend, writers)
}

/// A frame of data for [`streamed_response`].
pub(crate) fn data_frame(text: &str) -> Result<Frame<Bytes>, std::io::Error> {
    Ok(Frame::data(Bytes::from(text.to_owned())))
}
