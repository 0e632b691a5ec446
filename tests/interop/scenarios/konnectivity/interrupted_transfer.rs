//! Transfers through narthex and an agent that are interrupted by the target, the agent or the server. The reference
//! implementation reports each as closed by the target; a client of narthex must never take a partial body for
//! complete.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::process::Signal;
use rustls::{ServerConnection, StreamOwned};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use super::pattern;
use super::upgrade::{BASE, DOCUMENT, serving, start_gateway_with_agent};
use crate::environment::{
    Gateway, HttpsEndpoint, Identity, Konnectivity, KonnectivityMode, TestEnvironment, eventually, runtime,
};

/// More than all buffers together.
const LARGE_BODY: usize = 1 << 30;
/// Body size of repeated transfers.
const SMALL_BODY: usize = 1 << 20;
/// The default dial timeout.
const DIAL_TIMEOUT: Duration = Duration::from_secs(8);
/// Attempts to begin a transfer.
const ATTEMPTS: usize = 5;
/// Time limit of transfers that end without a timeout of their own.
const END_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn transfer_fails(environment: &TestEnvironment, mode: KonnectivityMode) {
    let backend = Backend::start(environment);
    let name = format!("cut-{mode:?}").to_lowercase();
    let (gateway, mut konnectivity) = start_gateway_with_agent(environment, mode, &name, backend.port);
    let identity = environment.cluster.admin();
    let fixture = TransferFixture { gateway: &gateway, identity, backend: &backend };

    runtime().block_on(fixture.closed_by_target());

    println!("the agent is killed");
    runtime().block_on(download_fails(&gateway.endpoint, identity, &mut || kill_agent(&mut konnectivity)));
    konnectivity.start_agent("agent-b", None);
    fixture.wait_until_served();
    runtime().block_on(fixture.upload_fails(&mut || kill_agent(&mut konnectivity)));
    konnectivity.start_agent("agent-c", None);
    fixture.wait_until_served();

    println!("the server is killed");
    runtime().block_on(download_fails(&gateway.endpoint, identity, &mut || {
        konnectivity.server.signal(Signal::KILL);
        konnectivity.server.wait();
    }));
    konnectivity.restart();
    konnectivity.wait_for_agents(1);
    fixture.wait_until_served();

    konnectivity.agents[0].process.stop();
    let began = Instant::now();
    let response = gateway.endpoint.get(Some(identity), &format!("{BASE}/things")).unwrap();
    let (status, took) = (response.status.as_u16(), began.elapsed());
    println!("while the agent is stopped: {status} after {took:?}");
    assert!([503, 504].contains(&status), "{}", response.text());
    assert_eq!(response.json()["kind"], "Status");
    assert!(took < DIAL_TIMEOUT + Duration::from_secs(2), "{took:?}");
    konnectivity.agents[0].process.signal(Signal::CONT);
    fixture.wait_until_served();
}

/// HTTP/2 to the backend: many requests on one connection, which breaks.
pub(super) fn http2_download_fails(environment: &TestEnvironment) {
    for mode in [KonnectivityMode::GrpcUnix, KonnectivityMode::ConnectUnix] {
        let name = format!("cut-http2-{mode:?}").to_lowercase();
        let (gateway, mut konnectivity) =
            start_gateway_with_agent(environment, mode, &name, http2_backend(environment));
        let identity = environment.cluster.admin();
        runtime().block_on(download_fails(&gateway.endpoint, identity, &mut || kill_agent(&mut konnectivity)));
        konnectivity.start_agent("agent-b", None);
        eventually("requests served", || {
            let response = gateway.endpoint.get(Some(identity), BASE)?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
    }
}

fn kill_agent(konnectivity: &mut Konnectivity) {
    let mut agent = konnectivity.agents.remove(0);
    agent.process.signal(Signal::KILL);
    agent.process.wait();
}

struct TransferFixture<'w> {
    gateway: &'w Gateway,
    identity: &'w Identity,
    backend: &'w Backend,
}

impl TransferFixture<'_> {
    /// Waits until requests are served.
    fn wait_until_served(&self) {
        let began = Instant::now();
        eventually("requests served", || {
            let response = self.gateway.endpoint.get(Some(self.identity), &format!("{BASE}/things"))?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
        println!("served {:?} after the restart", began.elapsed());
    }

    /// `interrupt` runs in the middle of an upload. It starts again when it does not reach the target: the reference
    /// implementation loses connections.
    async fn upload_fails(&self, interrupt: &mut dyn FnMut()) {
        for _ in 0..ATTEMPTS {
            self.backend.received.store(0, Relaxed);
            let is_interrupted = Cell::new(false);
            let status = timeout(
                END_TIMEOUT,
                self.upload(64 << 20, "", async || {
                    while self.backend.received.load(Relaxed) == 0 {
                        sleep(Duration::from_millis(5)).await;
                    }
                    is_interrupted.set(true);
                    interrupt();
                }),
            );
            let status = status.await;
            if !is_interrupted.get() {
                println!("the upload did not reach the target: {status:?}");
                continue;
            }
            let status = status.expect("an end within END_TIMEOUT");
            println!("the upload's status is {status:?}");
            assert!(status.is_none_or(|status| status >= 500), "{status:?}");
            return;
        }
        panic!("{ATTEMPTS} uploads did not reach the target");
    }

    /// The target closes the connection at various positions, with and without a TLS close_notify, between complete
    /// transfers.
    async fn closed_by_target(&self) {
        let (mut broken, mut refused, mut whole, mut lost) = (0, 0, 0, 0);
        for number in 0..ROUNDS {
            let at = fastrand::usize(..SMALL_BODY);
            let goodbye = number % 2;
            let protocol: &[u8] = if number % 4 < 2 { b"http/1.1" } else { b"h2" };
            let (endpoint, identity) = (&self.gateway.endpoint, self.identity);
            let path = format!("{BASE}/things?send={at}&of={SMALL_BODY}&goodbye={goodbye}");
            match timeout(END_TIMEOUT, download(endpoint, identity, protocol, &path, &AtomicUsize::new(0)))
                .await
                .expect("an end within END_TIMEOUT")
            {
                DownloadOutcome::Broken(_) => broken += 1,
                DownloadOutcome::Rejected(_) => refused += 1,
                DownloadOutcome::Complete(length) => {
                    panic!("{at} of {SMALL_BODY} bytes were sent, but {length} were taken for complete")
                }
            }
            let path = format!("{BASE}/things?send={SMALL_BODY}&of={SMALL_BODY}&goodbye={goodbye}");
            match timeout(END_TIMEOUT, download(endpoint, identity, protocol, &path, &AtomicUsize::new(0)))
                .await
                .expect("an end within END_TIMEOUT")
            {
                DownloadOutcome::Complete(length) => {
                    assert_eq!(length, SMALL_BODY);
                    whole += 1;
                }
                _ => lost += 1,
            }
            let status = timeout(END_TIMEOUT, self.upload(SMALL_BODY, &format!("?read={at}"), async || {})).await;
            let status = status.expect("an end within END_TIMEOUT");
            assert!(
                status.is_none_or(|status| status >= 500),
                "{at} of {SMALL_BODY} bytes were read, but the status is {status:?}"
            );
            self.backend.received.store(0, Relaxed);
            let status = timeout(END_TIMEOUT, self.upload(SMALL_BODY, "", async || {}))
                .await
                .expect("an end within END_TIMEOUT");
            match (status, self.backend.received.load(Relaxed)) {
                (Some(200), length) => assert_eq!(length, SMALL_BODY),
                (Some(status), _) => assert!(status >= 500, "{status}"),
                (None, _) => {}
            }
            lost += usize::from(status != Some(200));
            whole += usize::from(status == Some(200));
        }
        println!("{ROUNDS} interrupted: {broken} broken, {refused} rejected; others: {whole} complete, {lost} lost");
        assert!(broken > 0, "no interrupted transfer had started");
        assert!(whole > lost, "{whole} whole, {lost} not");
    }

    /// Sends half of a body, then the rest after `middle`; returns the response's status, if any.
    async fn upload(&self, length: usize, query: &str, middle: impl AsyncFnOnce()) -> Option<u16> {
        let stream = self.gateway.endpoint.connect(Some(self.identity), b"http/1.1").await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let head = format!(
            "POST {BASE}/things{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let body = pattern(length);
        let writing = async {
            // The upload may be rejected early; only the response counts.
            let _ = writer.write_all(head.as_bytes()).await;
            let _ = writer.write_all(&body[..length / 2]).await;
            // Without a flush the last records may stay in the TLS session.
            let _ = writer.flush().await;
            middle().await;
            let _ = writer.write_all(&body[length / 2..]).await;
            let _ = writer.flush().await;
        };
        let mut response = Vec::new();
        let (_, _) = tokio::join!(writing, reader.read_to_end(&mut response));
        let head = String::from_utf8_lossy(&response);
        head.strip_prefix("HTTP/1.1 ").map(|rest| rest[..3].parse().unwrap())
    }
}

/// `interrupt` runs during two downloads, one over each version of HTTP. Both start again when one ends before that: the
/// reference implementation loses connections.
async fn download_fails(endpoint: &HttpsEndpoint, identity: &Identity, interrupt: &mut dyn FnMut()) {
    let path = format!("{BASE}/things?send={LARGE_BODY}&of={LARGE_BODY}");
    for _ in 0..ATTEMPTS {
        let (seen, ended) = ([AtomicUsize::new(0), AtomicUsize::new(0)], AtomicUsize::new(0));
        let download_with_timeout = async |protocol: &[u8], seen: &AtomicUsize| {
            let outcome = timeout(END_TIMEOUT, download(endpoint, identity, protocol, &path, seen)).await;
            ended.fetch_add(1, Relaxed);
            outcome
        };
        let (over_http1, over_http2, is_interrupted) =
            tokio::join!(download_with_timeout(b"http/1.1", &seen[0]), download_with_timeout(b"h2", &seen[1]), async {
                while seen.iter().any(|seen| seen.load(Relaxed) < 1 << 20) {
                    if ended.load(Relaxed) > 0 {
                        return false;
                    }
                    sleep(Duration::from_millis(5)).await;
                }
                interrupt();
                true
            });
        if !is_interrupted {
            println!("a download ended before the interruption: {over_http1:?}, {over_http2:?}");
            continue;
        }
        for ended in [over_http1, over_http2] {
            let ended = ended.expect("an end within END_TIMEOUT");
            println!("a download of {LARGE_BODY} ends with {ended:?}");
            assert!(matches!(ended, DownloadOutcome::Broken(_)), "{ended:?}");
        }
        return;
    }
    panic!("{ATTEMPTS} times a download ended before the interruption");
}

/// Number of interrupted transfers.
const ROUNDS: usize = 20;

/// Outcome of a download.
#[derive(Debug)]
enum DownloadOutcome {
    /// Complete, with the number of bytes.
    Complete(usize),
    /// Interrupted after the response header.
    Broken(#[expect(dead_code, reason = "printed by Debug")] String),
    /// A status other than 200, or no response.
    Rejected(#[expect(dead_code, reason = "printed by Debug")] String),
}

async fn download(
    endpoint: &HttpsEndpoint,
    identity: &Identity,
    protocol: &[u8],
    path: &str,
    seen: &AtomicUsize,
) -> DownloadOutcome {
    let response = match open(endpoint, identity, protocol, path).await {
        Ok(response) if response.status() == 200 => response,
        Ok(response) => return DownloadOutcome::Rejected(response.status().to_string()),
        Err(error) => return DownloadOutcome::Rejected(error.to_string()),
    };
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => _ = seen.fetch_add(frame.data_ref().map_or(0, Bytes::len), Relaxed),
            Err(error) => return DownloadOutcome::Broken(error.to_string()),
        }
    }
    DownloadOutcome::Complete(seen.load(Relaxed))
}

async fn open(
    endpoint: &HttpsEndpoint,
    identity: &Identity,
    protocol: &[u8],
    path: &str,
) -> Result<Response<Incoming>, hyper::Error> {
    if protocol == b"h2" {
        return endpoint.connect_http2(identity).await.get(path).await;
    }
    let stream = endpoint.connect(Some(identity), protocol).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(Request::get(path).header("host", "localhost").body(Full::<Bytes>::default()).unwrap()).await
}

/// A backend that closes the connection after each response, so that each request is a new dial, and that stops where
/// the request says.
struct Backend {
    port: u16,
    /// Request body bytes received.
    received: Arc<AtomicUsize>,
}

impl Backend {
    fn start(environment: &TestEnvironment) -> Backend {
        let config = serving(environment, None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (config, count) = (config.clone(), count.clone());
                std::thread::spawn(move || {
                    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
                    // Connection errors are ignored: the client asserts the outcome.
                    if let Ok(true) = serve(&mut stream, &count) {
                        stream.conn.send_close_notify();
                        let _ = stream.flush();
                    }
                });
            }
        });
        Backend { port, received }
    }
}

/// Serves one request; returns whether to send a TLS close_notify.
fn serve(stream: &mut (impl Read + Write), received: &AtomicUsize) -> std::io::Result<bool> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
    let number = |name: &str, or: usize| {
        let after = head.split_once(name).map(|(_, after)| after.trim_start());
        let digits = after.map(|after| after.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or(""));
        digits.and_then(|digits| digits.parse().ok()).unwrap_or(or)
    };
    let say_head = |stream: &mut dyn Write, length: usize| {
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        )
    };
    let piece = pattern(251 * 256);
    if head.starts_with("post ") {
        let all = number("content-length:", 0);
        let wanted = number("read=", all);
        let (mut read, mut buffer) = (0, vec![0; 32 << 10]);
        while read < wanted {
            let next = buffer.len().min(wanted - read);
            let length = stream.read(&mut buffer[..next])?;
            if length == 0 {
                return Ok(false);
            }
            read += length;
            received.fetch_add(length, Relaxed);
        }
        if wanted == all {
            say_head(stream, 2)?;
            stream.write_all(b"{}")?;
        }
    } else if head.contains("send=") {
        say_head(stream, number("of=", 0))?;
        let mut left = number("send=", 0);
        while left > 0 {
            let next = left.min(piece.len());
            stream.write_all(&piece[..next])?;
            left -= next;
        }
    } else {
        say_head(stream, DOCUMENT.len())?;
        stream.write_all(DOCUMENT.as_bytes())?;
    }
    stream.flush()?;
    Ok(number("goodbye=", 1) == 1)
}

/// An HTTP/2 backend that sends an endless body on request.
fn http2_backend(environment: &TestEnvironment) -> u16 {
    let acceptor = TlsAcceptor::from(serving(environment, Some(b"h2")));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((socket, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut connection = h2::server::handshake(acceptor.accept(socket).await.ok()?).await.ok()?;
                    while let Some(Ok((request, mut response))) = connection.accept().await {
                        let endless = request.uri().query().is_some_and(|query| query.contains("send="));
                        let head = Response::builder().header("content-type", "application/json");
                        // Without Content-Length: only HTTP/2 framing shows the end.
                        let mut body = response.send_response(head.body(()).unwrap(), false).ok()?;
                        if endless {
                            tokio::spawn(send_without_end(body));
                        } else {
                            body.send_data(Bytes::from_static(DOCUMENT.as_bytes()), true).ok()?;
                        }
                    }
                    Some(())
                });
            }
        });
    });
    port
}

async fn send_without_end(mut body: h2::SendStream<Bytes>) {
    let piece = Bytes::from(pattern(64 << 10));
    loop {
        body.reserve_capacity(piece.len());
        let Some(Ok(length)) = std::future::poll_fn(|context| body.poll_capacity(context)).await else { return };
        if body.send_data(piece.slice(..length.min(piece.len())), false).is_err() {
            return;
        }
    }
}
