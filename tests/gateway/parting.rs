//! Upgrade tunnels through a sidecar, and its graceful shutdown while the upstream server drains.

use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::backend::{Writer, data, json, streamed};
use crate::client::{Client, connect, get, next, read};
use crate::guarded::Guard;
use crate::plain::{Place, Plain, Said};
use crate::upgrades::{Raw, SPDY, WEBSOCKET};
use crate::world::{World, eventually};

/// Opens a tunnel at once, and sends back what comes. The heads it saw.
async fn echo(world: &World, socket: bool, protocol: &'static str) -> (Plain, mpsc::UnboundedReceiver<String>) {
    let place = if socket { Place::socket(world) } else { Place::Port(0) };
    let (heads, seen) = mpsc::unbounded_channel();
    let server = Plain::raw(place, move |mut said: Said| {
        let heads = heads.clone();
        async move {
            let Some(head) = said.head().await else { return };
            // A test that is over reads no more.
            let _ = heads.send(head.to_lowercase());
            let switch =
                format!("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\n\r\n");
            said.say(switch).await;
            loop {
                let bytes = std::mem::take(&mut said.rest);
                said.say(&bytes).await;
                if said.more().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    (server, seen)
}

async fn ask(guard: &Guard, known: bool, method: &str, lines: &str) -> Raw {
    ask_at(guard, known, &format!("{method} /attach?a=b"), lines).await
}

async fn ask_at(guard: &Guard, known: bool, line: &str, lines: &str) -> Raw {
    let jane = known.then_some(&guard.jane);
    let stream = connect(&guard.world, guard.sidecar.address, jane, &["http/1.1"]).await;
    Raw::over(stream, &format!("{line} HTTP/1.1\r\nhost: app.example.com\r\n{lines}\r\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn tunnels_lead_to_a_port_or_a_socket() {
    for (socket, method, protocol, lines) in [
        (true, "GET", "websocket", WEBSOCKET),
        (false, "GET", "websocket", WEBSOCKET),
        (true, "POST", "spdy/3.1", SPDY),
    ] {
        let world = World::new();
        let (server, mut heads) = echo(&world, socket, protocol).await;
        // Not for tunnels.
        let guard = Guard::before(world, &server.url(), &["--upstream-timeout=1s"]).await;
        let forged = format!("{lines}x-remote-user: root\r\nx_remote_user: root\r\n");
        let mut client = ask(&guard, true, method, &forged).await;
        let head = client.head().await;
        assert!(head.starts_with("http/1.1 101 ") && head.contains(&format!("\r\nupgrade: {protocol}\r\n")), "{head}");
        let head = heads.recv().await.unwrap();
        assert!(head.starts_with(&format!("{} /attach?a=b http/1.1\r\n", method.to_lowercase())), "{head}");
        assert!(head.contains("\r\nx-remote-user: jane\r\n") && !head.contains("root"), "{head}");
        for much in ["hello", &"0123456789abcdef".repeat(8 << 10)] {
            client.say(much).await;
            client.expect(much).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        client.say("after a while").await;
        client.expect("after a while").await;
    }
}

/// A page has no other place for its token.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_s_token_says_who_asks_and_stays_here() {
    let world = World::new();
    let (server, mut heads) = echo(&world, true, "websocket").await;
    let guard = Guard::before(world, &server.url(), &["--ignore-paths=/pub,/pub/*"]).await;
    let upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: ";
    let token = "base64url.bearer.authorization.k8s.io.Z29vZA"; // "good"
    for protocols in [format!("{token}, chat"), format!("chat, {token}"), format!("chat,{token}")] {
        let mut client = ask(&guard, false, "GET", &format!("{upgrade}{protocols}\r\n")).await;
        let head = client.head().await;
        assert!(head.starts_with("http/1.1 101 "), "{protocols}: {head}");
        let head = heads.recv().await.unwrap();
        assert!(head.contains("\r\nx-remote-user: tina\r\n"), "{head}");
        assert!(head.contains("\r\nsec-websocket-protocol: chat\r\n") && !head.contains("bearer"), "{head}");
    }
    for wrong in ["base64url.bearer.authorization.k8s.io.YmFk, chat".to_owned(), token.to_owned(), "chat".to_owned()] {
        let mut client = ask(&guard, false, "GET", &format!("{upgrade}{wrong}\r\n")).await;
        let head = client.head().await;
        assert!(head.starts_with("http/1.1 401 "), "{wrong}: {head}");
    }
    assert!(heads.try_recv().is_err());
    let reviews = guard.reviewer.asked("TokenReview").len();
    // Where nobody is asked who they are, it has no business either; nor has anything else that says so.
    let others =
        "authorization: Bearer good\r\nx-remote-user: root\r\nx_remote_user: root\r\nimpersonate-user: root\r\n";
    for known in [true, false] {
        for (line, upgrade) in [("GET /pub", upgrade), ("GET /pub/8", "sec-websocket-protocol: ")] {
            for (protocols, left) in
                [(format!("{token}, v4"), true), (format!("v4,{token}"), true), (token.to_owned(), false)]
            {
                let mut client = ask_at(&guard, known, line, &format!("{others}{upgrade}{protocols}\r\n")).await;
                // A plain request is not told apart by the server behind, whose answer to it is none.
                let said = client.head().await;
                assert!(
                    said.starts_with(if upgrade.contains("Upgrade") { "http/1.1 101 " } else { "http/1.1 5" }),
                    "{said}"
                );
                let head = heads.recv().await.unwrap();
                assert!(head.starts_with(&format!("{} http/1.1\r\n", line.to_lowercase())), "{head}");
                assert_eq!(head.contains("\r\nsec-websocket-protocol: v4\r\n"), left, "{head}");
                assert!(!["bearer", "root", "jane", "tina"].iter().any(|word| head.contains(word)), "{head}");
            }
        }
    }
    assert_eq!(guard.reviewer.asked("TokenReview").len(), reviews, "nobody is asked");
}

/// An ordinary server may overlook an upgrade, or lead elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn an_upgrade_that_is_overlooked_is_an_ordinary_request() {
    let world = World::new();
    let server = Plain::raw(Place::socket(&world), async |mut said: Said| {
        let Some(head) = said.head().await else { return };
        let status = if head.contains(" /attach") { "302 Found\r\nlocation: /login" } else { "200 OK" };
        said.say(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbodybehind it")).await;
    })
    .await;
    let guard = Guard::before(world, &server.url(), &[]).await;
    let mut client = ask(&guard, true, "GET", WEBSOCKET).await;
    let head = client.head().await;
    assert!(head.starts_with("http/1.1 302 ") && head.contains("\r\nlocation: /login\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
    assert_eq!(client.rest_of_it().await, "body");
}

/// Downloads that the test writes, watches of one event, and `{}` for the rest.
async fn busy(place: Place) -> (Plain, mpsc::UnboundedReceiver<Writer>) {
    let (send, writers) = mpsc::unbounded_channel();
    let server = Plain::http1(place, move |mut request: Request<Incoming>| {
        let send = send.clone();
        async move {
            let (writer, mut answer) = streamed(200);
            match request.uri().path() {
                "/download" => {
                    writer.send(data("half")).unwrap();
                    answer.headers_mut().insert("content-length", 8.into());
                }
                "/attach" => {
                    tokio::spawn(async move {
                        if let Ok(tunnel) = hyper::upgrade::on(&mut request).await {
                            let (mut read, mut write) = tokio::io::split(hyper_util::rt::TokioIo::new(tunnel));
                            let _ = tokio::io::copy(&mut read, &mut write).await;
                        }
                    });
                    let mut answer = json(101, "").map(|_| Default::default());
                    answer.headers_mut().insert("connection", "Upgrade".parse().unwrap());
                    answer.headers_mut().insert("upgrade", "websocket".parse().unwrap());
                    return answer;
                }
                _ if request.uri().query() == Some("watch=1") => writer.send(data("{\"type\":\"ADDED\"}\n")).unwrap(),
                _ => return json(200, "{}"),
            }
            // A test that is over takes no more writers.
            let _ = send.send(writer);
            answer
        }
    })
    .await;
    (server, writers)
}

/// An answer that has begun with `first`.
async fn begun(
    client: &Client,
    path: &str,
    first: &str,
    writers: &mut mpsc::UnboundedReceiver<Writer>,
) -> (http::Response<Incoming>, Writer) {
    let mut answer = client.send(get(path, &[])).await.unwrap();
    assert_eq!(next(answer.body_mut()).await.unwrap().unwrap(), first);
    (answer, writers.recv().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn it_relays_on_while_the_server_drains() {
    let world = World::new();
    let (server, mut writers) = busy(Place::socket(&world)).await;
    let mut guard = Guard::before(world, &server.url(), &["--shutdown-delay-duration=10m"]).await;
    let client = guard.http2().await;
    eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
    let (download, writer) = begun(&client, "/download", "half", &mut writers).await;
    let (mut watch, events) =
        begun(&client, "/apis/example.com/v1/books?watch=1", "{\"type\":\"ADDED\"}\n", &mut writers).await;
    let mut tunnel = ask(&guard, true, "GET", WEBSOCKET).await;
    assert!(tunnel.head().await.starts_with("http/1.1 101 "));
    guard.sidecar.signal("TERM");
    eventually("readiness to go off", async || (client.get("/readyz").await.status == 500).then_some(())).await;
    // Old clients and new ones; what runs and what begins.
    for client in [client, guard.http1().await, guard.http2().await] {
        assert_eq!(client.get("/livez").await.status, 200);
        assert_eq!(client.get("/books").await.status, 200);
    }
    tunnel.say("still there").await;
    tunnel.expect("still there").await;
    events.send(data("{\"type\":\"MODIFIED\"}\n")).unwrap();
    assert_eq!(next(watch.body_mut()).await.unwrap().unwrap(), "{\"type\":\"MODIFIED\"}\n");
    writer.send(data("half")).unwrap();
    drop(writer);
    let said = read(download).await;
    assert_eq!((said.text().as_str(), said.whole), ("half", true));
    // The server is done: no request waits for it, and the sidecar is as alive as before.
    let place = server.stop().await;
    let client = guard.http1().await;
    client.get("/books").await.refused(503, "ServiceUnavailable");
    assert_eq!(client.get("/livez").await.status, 200);
    drop(place);
    guard.sidecar.signal("TERM");
    assert_eq!(guard.sidecar.ended().await.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_is_finished_before_it_ends() {
    for socket in [true, false] {
        let world = World::new();
        let (server, mut writers) = busy(if socket { Place::socket(&world) } else { Place::Port(0) }).await;
        let mut guard = Guard::before(world, &server.url(), &[]).await;
        let (one, two) = (guard.http1().await, guard.http2().await);
        let (first, first_writer) = begun(&one, "/download", "half", &mut writers).await;
        let (second, second_writer) = begun(&two, "/download", "half", &mut writers).await;
        let (mut watch, _events) =
            begun(&two, "/apis/example.com/v1/books?watch=1", "{\"type\":\"ADDED\"}\n", &mut writers).await;
        let mut tunnel = ask(&guard, true, "GET", WEBSOCKET).await;
        assert!(tunnel.head().await.starts_with("http/1.1 101 "));
        tunnel.say("hello").await;
        tunnel.expect("hello").await;
        guard.sidecar.signal("TERM");
        let address = guard.sidecar.address;
        eventually("the port to close", async || TcpStream::connect(address).await.is_err().then_some(())).await;
        assert!(next(watch.body_mut()).await.is_none(), "a watch ends between two events");
        assert_eq!(tunnel.rest_of_it().await, "");
        for (download, writer) in [(first, first_writer), (second, second_writer)] {
            writer.send(data("half")).unwrap();
            drop(writer);
            let said = read(download).await;
            assert_eq!((said.text().as_str(), said.whole), ("half", true));
        }
        assert_eq!(guard.sidecar.ended().await.code(), Some(0));
    }
}
