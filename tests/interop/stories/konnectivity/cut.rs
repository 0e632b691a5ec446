//! Transfers through narthex and an agent that are cut, by whatever is on the way. The reference says of each that the
//! target closed; nobody before narthex takes one for whole.

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
use super::upgrade::{BASE, DOCUMENT, before, serving};
use crate::world::{Door, Front, Gateway, Identity, Konnectivity, World, eventually, runtime};

/// Enough that nothing holds all of it.
const GIANT: usize = 1 << 30;
/// What is transferred many times.
const SOME: usize = 1 << 20;
/// How long a dial may take, as shipped.
const DIAL_TIMEOUT: Duration = Duration::from_secs(8);
/// For an end that comes at once.
const SOON: Duration = Duration::from_secs(20);

pub(super) fn is_noticed(world: &World, front: Front) {
    let backend = Backend::start(world);
    let name = format!("cut-{front:?}").to_lowercase();
    let (gateway, mut konnectivity) = before(world, front, &name, backend.port);
    let who = world.cluster.admin();
    let scene = Scene { gateway: &gateway, who, backend: &backend };

    runtime().block_on(scene.cut_by_the_target());

    println!("the agent is killed");
    runtime().block_on(download_is_cut(&gateway.door, who, &mut || kill_agent(&mut konnectivity)));
    konnectivity.start_agent("agent-b", None);
    scene.is_well();
    runtime().block_on(scene.upload_is_cut(&mut || kill_agent(&mut konnectivity)));
    konnectivity.start_agent("agent-c", None);
    scene.is_well();

    println!("the server is killed");
    runtime().block_on(download_is_cut(&gateway.door, who, &mut || {
        konnectivity.server.signal(Signal::KILL);
        konnectivity.server.wait();
    }));
    konnectivity.start_again();
    konnectivity.wait_for_agents(1);
    scene.is_well();

    konnectivity.agents[0].process.stop();
    let began = Instant::now();
    let answer = gateway.door.get(Some(who), &format!("{BASE}/things")).unwrap();
    let (status, took) = (answer.status.as_u16(), began.elapsed());
    println!("while the agent is stopped: {status} after {took:?}");
    assert!([503, 504].contains(&status), "{}", answer.text());
    assert_eq!(answer.json()["kind"], "Status");
    assert!(took < DIAL_TIMEOUT + Duration::from_secs(2), "{took:?}");
    konnectivity.agents[0].process.signal(Signal::CONT);
    scene.is_well();
}

/// As most backends are: many requests on one connection, which breaks.
pub(super) fn is_noticed_over_http2(world: &World) {
    for front in [Front::GrpcUnix, Front::ConnectUnix] {
        let name = format!("cut-http2-{front:?}").to_lowercase();
        let (gateway, mut konnectivity) = before(world, front, &name, http2_backend(world));
        let who = world.cluster.admin();
        runtime().block_on(download_is_cut(&gateway.door, who, &mut || kill_agent(&mut konnectivity)));
        konnectivity.start_agent("agent-b", None);
        eventually("requests being served", || {
            let answer = gateway.door.get(Some(who), BASE)?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
    }
}

fn kill_agent(konnectivity: &mut Konnectivity) {
    let mut agent = konnectivity.agents.remove(0);
    agent.process.signal(Signal::KILL);
    agent.process.wait();
}

struct Scene<'w> {
    gateway: &'w Gateway,
    who: &'w Identity,
    backend: &'w Backend,
}

impl Scene<'_> {
    /// Requests are served, within a while.
    fn is_well(&self) {
        let began = Instant::now();
        eventually("requests being served", || {
            let answer = self.gateway.door.get(Some(self.who), &format!("{BASE}/things"))?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
        println!("served {:?} after all were back", began.elapsed());
    }

    /// `cut` comes in the middle of an upload.
    async fn upload_is_cut(&self, cut: &mut dyn FnMut()) {
        self.backend.received.store(0, Relaxed);
        let status = timeout(
            SOON,
            self.upload(64 << 20, "", async || {
                while self.backend.received.load(Relaxed) == 0 {
                    sleep(Duration::from_millis(5)).await;
                }
                cut();
            }),
        );
        let status = status.await.expect("an end soon");
        println!("the upload is answered {status:?}");
        assert!(status.is_none_or(|status| status >= 500), "{status:?}");
    }

    /// The target itself goes at any place, with TLS's goodbye and without, between others that are whole.
    async fn cut_by_the_target(&self) {
        let (mut broken, mut refused, mut whole, mut lost) = (0, 0, 0, 0);
        for number in 0..ROUNDS {
            let at = fastrand::usize(..SOME);
            let goodbye = number % 2;
            let protocol: &[u8] = if number % 4 < 2 { b"http/1.1" } else { b"h2" };
            let (door, who) = (&self.gateway.door, self.who);
            let path = format!("{BASE}/things?send={at}&of={SOME}&goodbye={goodbye}");
            match timeout(SOON, download(door, who, protocol, &path, &AtomicUsize::new(0))).await.expect("an end soon")
            {
                End::Broken(_) => broken += 1,
                End::Refused(_) => refused += 1,
                End::Whole(length) => panic!("{at} of {SOME} bytes were sent, and {length} taken for all"),
            }
            let path = format!("{BASE}/things?send={SOME}&of={SOME}&goodbye={goodbye}");
            match timeout(SOON, download(door, who, protocol, &path, &AtomicUsize::new(0))).await.expect("an end soon")
            {
                End::Whole(length) => {
                    assert_eq!(length, SOME);
                    whole += 1;
                }
                _ => lost += 1,
            }
            let status = timeout(SOON, self.upload(SOME, &format!("?read={at}"), async || {})).await;
            let status = status.expect("an end soon");
            assert!(
                status.is_none_or(|status| status >= 500),
                "{at} of {SOME} bytes were read, and it says {status:?}"
            );
            self.backend.received.store(0, Relaxed);
            let status = timeout(SOON, self.upload(SOME, "", async || {})).await.expect("an end soon");
            match (status, self.backend.received.load(Relaxed)) {
                (Some(200), length) => assert_eq!(length, SOME),
                (Some(status), _) => assert!(status >= 500, "{status}"),
                (None, _) => {}
            }
            lost += usize::from(status != Some(200));
            whole += usize::from(status == Some(200));
        }
        println!(
            "of {ROUNDS} that were cut: {broken} broken, {refused} refused; of the others {whole} whole, {lost} not"
        );
        assert!(broken > 0, "none of the cut ones was begun");
        assert!(whole > lost, "{whole} whole, {lost} not");
    }

    /// Sends half of a body, then the rest after `middle`; gives the status of the answer, if there is one.
    async fn upload(&self, length: usize, query: &str, middle: impl AsyncFnOnce()) -> Option<u16> {
        let stream = self.gateway.door.connect(Some(self.who), b"http/1.1").await.unwrap();
        let (mut reader, mut writer) = tokio::io::split(stream);
        let head = format!(
            "POST {BASE}/things{query} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Connection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        let body = pattern(length);
        let writing = async {
            // It may be refused in the middle, and the answer is what counts.
            let _ = writer.write_all(head.as_bytes()).await;
            let _ = writer.write_all(&body[..length / 2]).await;
            middle().await;
            let _ = writer.write_all(&body[length / 2..]).await;
        };
        let mut answer = Vec::new();
        let (_, _) = tokio::join!(writing, reader.read_to_end(&mut answer));
        let head = String::from_utf8_lossy(&answer);
        head.strip_prefix("HTTP/1.1 ").map(|rest| rest[..3].parse().unwrap())
    }
}

/// `cut` comes between the bytes of two downloads, one over each version of HTTP.
async fn download_is_cut(door: &Door, who: &Identity, cut: &mut dyn FnMut()) {
    let seen = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let path = format!("{BASE}/things?send={GIANT}&of={GIANT}");
    let (over_http1, over_http2, ()) = tokio::join!(
        timeout(SOON, download(door, who, b"http/1.1", &path, &seen[0])),
        timeout(SOON, download(door, who, b"h2", &path, &seen[1])),
        async {
            while seen.iter().any(|seen| seen.load(Relaxed) < 1 << 20) {
                sleep(Duration::from_millis(5)).await;
            }
            cut();
        }
    );
    for ended in [over_http1, over_http2] {
        let ended = ended.expect("an end soon");
        println!("a download of {GIANT} ends with {ended:?}");
        assert!(matches!(ended, End::Broken(_)), "{ended:?}");
    }
}

/// How often the target goes.
const ROUNDS: usize = 20;

/// How a download ended.
#[derive(Debug)]
enum End {
    /// With as many bytes.
    Whole(usize),
    /// After its head had come.
    Broken(#[expect(dead_code, reason = "for who reads the output")] String),
    /// With another status than 200, or none.
    Refused(#[expect(dead_code, reason = "for who reads the output")] String),
}

async fn download(door: &Door, who: &Identity, protocol: &[u8], path: &str, seen: &AtomicUsize) -> End {
    let response = match open(door, who, protocol, path).await {
        Ok(response) if response.status() == 200 => response,
        Ok(response) => return End::Refused(response.status().to_string()),
        Err(error) => return End::Refused(error.to_string()),
    };
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => _ = seen.fetch_add(frame.data_ref().map_or(0, Bytes::len), Relaxed),
            Err(error) => return End::Broken(error.to_string()),
        }
    }
    End::Whole(seen.load(Relaxed))
}

async fn open(door: &Door, who: &Identity, protocol: &[u8], path: &str) -> Result<Response<Incoming>, hyper::Error> {
    if protocol == b"h2" {
        return door.multiplexed(who).await.get(path).await;
    }
    let stream = door.connect(Some(who), protocol).await.unwrap();
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    sender.send_request(Request::get(path).header("host", "localhost").body(Full::<Bytes>::default()).unwrap()).await
}

/// A backend that closes after each answer, so that each request is a dial, and that stops where it is told.
struct Backend {
    port: u16,
    /// Bytes of bodies that came.
    received: Arc<AtomicUsize>,
}

impl Backend {
    fn start(world: &World) -> Backend {
        let config = serving(world, None);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::new(AtomicUsize::new(0));
        let count = received.clone();
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (config, count) = (config.clone(), count.clone());
                std::thread::spawn(move || {
                    let mut stream = StreamOwned::new(ServerConnection::new(config).unwrap(), socket);
                    // What becomes of the connection is the client's to judge.
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

/// Answers one request; gives back whether to say goodbye.
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

/// A backend that speaks HTTP/2, and sends without end where it is asked for something to send.
fn http2_backend(world: &World) -> u16 {
    let acceptor = TlsAcceptor::from(serving(world, Some(b"h2")));
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
                    while let Some(Ok((request, mut answer))) = connection.accept().await {
                        let endless = request.uri().query().is_some_and(|query| query.contains("send="));
                        let head = Response::builder().header("content-type", "application/json");
                        // Without a length: HTTP/2 alone has to tell.
                        let mut body = answer.send_response(head.body(()).unwrap(), false).ok()?;
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
