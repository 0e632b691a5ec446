//! Clients of both protocols that send requests without end and check every response.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use http::Method;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::echo_backend::{REQUEST_ID, echo_text};
use crate::outcome::{Outcome, OutcomeCounts, judge_response};
use crate::support::client::{Client, read_response, request};
use crate::support::fixtures::{CertKeyPair, eventually_within};
use crate::support::gateway_fixture::THINGS;

/// What each request asks for as its time limit.
const REQUEST_TIMEOUT: &str = "10s";

/// A response that comes later than this is no response in time. Generous: the machine may be busy.
const CLIENT_PATIENCE: Duration = Duration::from_secs(25);

const CONNECTIONS: usize = 8;

/// Requests at once on an HTTP/2 connection.
const STREAMS: usize = 3;

/// Numbers the requests of all loads, whose backends know them by it.
static NEXT_ID: AtomicUsize = AtomicUsize::new(0);

/// How a user proves who it is.
#[derive(Clone)]
pub(crate) enum Credentials {
    Certificate(CertKeyPair),
    /// The certificate of a front proxy, which names the user.
    FrontProxy(CertKeyPair),
    Token(String),
}

/// A user that sends requests.
#[derive(Clone)]
pub(crate) struct LoadUser {
    pub(crate) name: String,
    pub(crate) credentials: Credentials,
    /// Whether each request must be refused with 401 or 403.
    pub(crate) is_denied: bool,
}

/// Where requests go, from whom, and what became of them. All may change while it runs.
pub(crate) struct MeasuredLoad {
    address: SocketAddr,
    pub(crate) server_cas: Mutex<Vec<CertificateDer<'static>>>,
    pub(crate) users: Mutex<Vec<LoadUser>>,
    pub(crate) counts: Mutex<OutcomeCounts>,
    /// Connections that could not be made: no request was sent on them.
    pub(crate) failed_connections: AtomicUsize,
    is_finished: AtomicBool,
    /// Connections begun under an older epoch end after the requests that are under way.
    epoch: AtomicUsize,
    /// The epoch of each connection; `usize::MAX` for none.
    connection_epochs: Mutex<[usize; CONNECTIONS]>,
}

/// A load that runs.
pub(crate) struct RunningLoad {
    pub(crate) load: Arc<MeasuredLoad>,
    connections: JoinSet<()>,
}

impl RunningLoad {
    pub(crate) fn start(
        address: SocketAddr,
        server_cas: Vec<CertificateDer<'static>>,
        users: Vec<LoadUser>,
    ) -> RunningLoad {
        let load = Arc::new(MeasuredLoad {
            address,
            server_cas: Mutex::new(server_cas),
            users: Mutex::new(users),
            counts: Mutex::default(),
            failed_connections: AtomicUsize::default(),
            is_finished: AtomicBool::default(),
            epoch: AtomicUsize::default(),
            connection_epochs: Mutex::new([usize::MAX; CONNECTIONS]),
        });
        let mut connections = JoinSet::new();
        for number in 0..CONNECTIONS {
            connections.spawn(run_connections(load.clone(), number));
        }
        RunningLoad { load, connections }
    }

    /// Waits until so many more requests are over, well or not.
    pub(crate) async fn wait_for_more(&self, count: usize) {
        let sent = || self.load.counts.lock().unwrap().sent;
        let target = sent() + count;
        let limit = Duration::from_secs(120);
        eventually_within(limit, "more requests", async || (sent() >= target).then_some(())).await;
    }

    /// Waits until so many more requests are answered.
    pub(crate) async fn wait_for_answers(&self, count: usize) {
        let answered = || self.load.counts.lock().unwrap().answered;
        let target = answered() + count;
        let limit = Duration::from_secs(120);
        eventually_within(limit, "more answers", async || (answered() >= target).then_some(())).await;
    }

    /// Returns when each connection has been replaced by one with the credentials and authorities of now.
    pub(crate) async fn renew_connections(&self) {
        let epoch = self.load.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        eventually_within(CLIENT_PATIENCE, "new connections", async || {
            self.load.connection_epochs.lock().unwrap().iter().all(|one| *one >= epoch).then_some(())
        })
        .await;
    }

    /// Lets the load go on for so long in the long form, and in the short one for some requests.
    pub(crate) async fn go_on(&self, seconds: u64) {
        if crate::is_long() {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
        }
        self.wait_for_more(100).await;
    }

    /// Ends all connections.
    pub(crate) async fn finish(self) -> OutcomeCounts {
        self.load.is_finished.store(true, Ordering::SeqCst);
        self.connections.join_all().await;
        self.load.counts.lock().unwrap().clone()
    }
}

async fn run_connections(load: Arc<MeasuredLoad>, number: usize) {
    while !load.is_finished.load(Ordering::SeqCst) {
        let epoch = load.epoch.load(Ordering::SeqCst);
        load.connection_epochs.lock().unwrap()[number] = epoch;
        let user = {
            let users = load.users.lock().unwrap();
            users[fastrand::usize(..users.len())].clone()
        };
        let is_http1 = number.is_multiple_of(2);
        let Some(client) = connect(&load, &user, is_http1).await else {
            load.failed_connections.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        let streams = if is_http1 { 1 } else { STREAMS };
        join_all((0..streams).map(|_| run_requests(&load, epoch, &user, &client))).await;
        load.connection_epochs.lock().unwrap()[number] = usize::MAX;
    }
}

impl MeasuredLoad {
    /// TLS as the clients of the load have it now.
    pub(crate) fn client_config(
        &self,
        user: &LoadUser,
        versions: &[&'static rustls::SupportedProtocolVersion],
        protocol: &[u8],
    ) -> rustls::ClientConfig {
        let mut roots = rustls::RootCertStore::empty();
        self.server_cas.lock().unwrap().iter().for_each(|root| roots.add(root.clone()).unwrap());
        let builder = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match &user.credentials {
            Credentials::Certificate(pair) | Credentials::FrontProxy(pair) => {
                builder.with_client_auth_cert(pair.0.0.clone(), pair.0.1.clone_key()).unwrap()
            }
            Credentials::Token(_) => builder.with_no_client_auth(),
        };
        config.alpn_protocols = vec![protocol.to_vec()];
        config
    }
}

async fn connect(load: &MeasuredLoad, user: &LoadUser, is_http1: bool) -> Option<Client> {
    let protocol: &[u8] = if is_http1 { b"http/1.1" } else { b"h2" };
    let config = load.client_config(user, rustls::DEFAULT_VERSIONS, protocol);
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let handshake = async {
        let socket = TcpStream::connect(load.address).await.ok()?;
        socket.set_nodelay(true).ok()?;
        connector.connect("localhost".try_into().unwrap(), socket).await.ok()
    };
    let stream = TokioIo::new(tokio::time::timeout(CLIENT_PATIENCE, handshake).await.ok()??);
    // The gateway may end here, too.
    Some(if is_http1 {
        let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.ok()?;
        tokio::spawn(connection);
        Client::Http1(Arc::new(tokio::sync::Mutex::new(sender)))
    } else {
        let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.ok()?;
        tokio::spawn(connection);
        Client::Http2(sender)
    })
}

/// Until the connection breaks, or has had its share of requests: new connections are part of the load.
async fn run_requests(load: &MeasuredLoad, epoch: usize, user: &LoadUser, client: &Client) {
    for _ in 0..fastrand::usize(20..80) {
        if load.is_finished.load(Ordering::SeqCst) || load.epoch.load(Ordering::SeqCst) > epoch {
            return;
        }
        let began = Instant::now();
        let (outcome, is_open) = run_request(user, client).await;
        load.counts.lock().unwrap().add(outcome, began.elapsed());
        if !is_open {
            return;
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(1..10))).await;
    }
}

/// What became of one request, and whether the connection can take another.
async fn run_request(user: &LoadUser, client: &Client) -> (Outcome, bool) {
    let id = format!("r{}", NEXT_ID.fetch_add(1, Ordering::Relaxed));
    let size = if fastrand::u8(..30) == 0 { 200_000 } else { fastrand::usize(..4_000) };
    let is_write = fastrand::u8(..3) == 0;
    let body = if is_write { id.repeat(fastrand::usize(1..300)) } else { String::new() };
    let path = format!("{THINGS}?timeout={REQUEST_TIMEOUT}&size={size}");
    let mut headers = vec![(REQUEST_ID, id.as_str())];
    let bearer;
    match &user.credentials {
        Credentials::Certificate(_) => {}
        Credentials::FrontProxy(_) => headers.push(("x-remote-user", &user.name)),
        Credentials::Token(token) => {
            bearer = format!("Bearer {token}");
            headers.push(("authorization", &bearer));
        }
    }
    let method = if is_write { Method::POST } else { Method::GET };
    let exchange = async {
        let response = client.send(request(method.clone(), &path, &headers, &body)).await?;
        let is_last = response.headers().get("connection").is_some_and(|value| value == "close");
        Ok::<_, hyper::Error>((read_response(response).await, is_last))
    };
    match tokio::time::timeout(CLIENT_PATIENCE, exchange).await {
        Err(_) => (Outcome::Wrong(format!("{method} {id}: no response within {CLIENT_PATIENCE:?}")), false),
        Ok(Err(_)) => (Outcome::Failed(format!("{method} connection lost")), false),
        Ok(Ok((response, is_last))) => {
            let outcome = match judge_response(&response, &echo_text(&id, &user.name, &body, size, 1)) {
                _ if user.is_denied && response.status.is_success() => {
                    Outcome::Wrong(format!("{method} {id} of {} was allowed", user.name))
                }
                Outcome::Failed(_) if user.is_denied && matches!(response.status.as_u16(), 401 | 403) => {
                    Outcome::Answered
                }
                Outcome::Failed(cause) => Outcome::Failed(format!("{method} {cause}")),
                outcome => outcome,
            };
            (outcome, response.is_complete && !is_last)
        }
    }
}
