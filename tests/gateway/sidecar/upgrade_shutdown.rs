//! Upgrade tunnels through a sidecar, and its graceful shutdown while the upstream server drains.

use http::Request;
use hyper::body::Incoming;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::relay::upgrades::{RawUpgrade, SPDY, WEBSOCKET};
use crate::sidecar::upstream_relay::SidecarFixture;
use crate::support::backend::{BodyWriter, data_frame, json_response, streamed_response};
use crate::support::client::{Client, connect, get, next_chunk, read_response};
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::plaintext_backend::{ListenAddress, PlaintextConnection, PlaintextServer};

/// Opens a tunnel at once, and sends back what comes. The heads it saw.
async fn start_echo_server(
    environment: &TestEnvironment,
    socket: bool,
    protocol: &'static str,
) -> (PlaintextServer, mpsc::UnboundedReceiver<String>) {
    let place = if socket { ListenAddress::socket(environment) } else { ListenAddress::Port(0) };
    let (heads, seen) = mpsc::unbounded_channel();
    let server = PlaintextServer::start_raw(place, move |mut output: PlaintextConnection| {
        let heads = heads.clone();
        async move {
            let Some(head) = output.next_head().await else { return };
            // A test that is over reads no more.
            let _ = heads.send(head.to_lowercase());
            let switch =
                format!("HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: {protocol}\r\n\r\n");
            output.write(switch).await;
            loop {
                let bytes = std::mem::take(&mut output.buffered);
                output.write(&bytes).await;
                if output.read_more().await.is_none() {
                    return;
                }
            }
        }
    })
    .await;
    (server, seen)
}

async fn open_tunnel(fixture: &SidecarFixture, known: bool, method: &str, lines: &str) -> RawUpgrade {
    open_tunnel_at(fixture, known, &format!("{method} /attach?a=b"), lines).await
}

async fn open_tunnel_at(fixture: &SidecarFixture, known: bool, line: &str, lines: &str) -> RawUpgrade {
    let jane = known.then_some(&fixture.jane);
    let stream = connect(&fixture.environment, fixture.sidecar.address, jane, &["http/1.1"]).await;
    RawUpgrade::start_on(stream, &format!("{line} HTTP/1.1\r\nhost: app.example.com\r\n{lines}\r\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_upgrade_tunnels_to_port_and_unix_socket() {
    for (socket, method, protocol, lines) in [
        (true, "GET", "websocket", WEBSOCKET),
        (false, "GET", "websocket", WEBSOCKET),
        (true, "POST", "spdy/3.1", SPDY),
    ] {
        let environment = TestEnvironment::new();
        let (server, mut heads) = start_echo_server(&environment, socket, protocol).await;
        // Not for tunnels.
        let fixture = SidecarFixture::new(environment, &server.url(), &["--upstream-timeout=1s"]).await;
        let forged = format!("{lines}x-remote-user: root\r\nx_remote_user: root\r\n");
        let mut client = open_tunnel(&fixture, true, method, &forged).await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 101 ") && head.contains(&format!("\r\nupgrade: {protocol}\r\n")), "{head}");
        let head = heads.recv().await.unwrap();
        assert!(head.starts_with(&format!("{} /attach?a=b http/1.1\r\n", method.to_lowercase())), "{head}");
        assert!(head.contains("\r\nx-remote-user: jane\r\n") && !head.contains("root"), "{head}");
        for much in ["hello", &"0123456789abcdef".repeat(8 << 10)] {
            client.write(much).await;
            client.expect_text(much).await;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        client.write("after a while").await;
        client.expect_text("after a while").await;
    }
}

/// A page has no other place for its token.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_upgrade_websocket_protocol_token_authenticates_and_is_removed() {
    let environment = TestEnvironment::new();
    let (server, mut heads) = start_echo_server(&environment, true, "websocket").await;
    let fixture = SidecarFixture::new(environment, &server.url(), &["--ignore-paths=/pub,/pub/*"]).await;
    let upgrade = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-protocol: ";
    let token = "base64url.bearer.authorization.k8s.io.Z29vZA"; // "good"
    for protocols in [format!("{token}, chat"), format!("chat, {token}"), format!("chat,{token}")] {
        let mut client = open_tunnel(&fixture, false, "GET", &format!("{upgrade}{protocols}\r\n")).await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 101 "), "{protocols}: {head}");
        let head = heads.recv().await.unwrap();
        assert!(head.contains("\r\nx-remote-user: tina\r\n"), "{head}");
        assert!(head.contains("\r\nsec-websocket-protocol: chat\r\n") && !head.contains("bearer"), "{head}");
    }
    for wrong in ["base64url.bearer.authorization.k8s.io.YmFk, chat".to_owned(), token.to_owned(), "chat".to_owned()] {
        let mut client = open_tunnel(&fixture, false, "GET", &format!("{upgrade}{wrong}\r\n")).await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 401 "), "{wrong}: {head}");
    }
    assert!(heads.try_recv().is_err());
    let reviews = fixture.reviewer.reviews("TokenReview").len();
    // Without authentication the header is removed; so are other headers with the same meaning.
    let others =
        "authorization: Bearer good\r\nx-remote-user: root\r\nx_remote_user: root\r\nimpersonate-user: root\r\n";
    for known in [true, false] {
        for (line, upgrade) in [("GET /pub", upgrade), ("GET /pub/8", "sec-websocket-protocol: ")] {
            for (protocols, left) in
                [(format!("{token}, v4"), true), (format!("v4,{token}"), true), (token.to_owned(), false)]
            {
                let mut client =
                    open_tunnel_at(&fixture, known, line, &format!("{others}{upgrade}{protocols}\r\n")).await;
                // The upstream cannot tell a plain request apart and gives no response.
                let output = client.read_head().await;
                assert!(
                    output.starts_with(if upgrade.contains("Upgrade") { "http/1.1 101 " } else { "http/1.1 5" }),
                    "{output}"
                );
                let head = heads.recv().await.unwrap();
                assert!(head.starts_with(&format!("{} http/1.1\r\n", line.to_lowercase())), "{head}");
                assert_eq!(head.contains("\r\nsec-websocket-protocol: v4\r\n"), left, "{head}");
                assert!(!["bearer", "root", "jane", "tina"].iter().any(|word| head.contains(word)), "{head}");
            }
        }
    }
    assert_eq!(fixture.reviewer.reviews("TokenReview").len(), reviews, "no review");
}

/// An ordinary server may overlook an upgrade, or lead elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_upgrade_ignored_by_server_is_ordinary_response() {
    let environment = TestEnvironment::new();
    let server =
        PlaintextServer::start_raw(ListenAddress::socket(&environment), async |mut output: PlaintextConnection| {
            let Some(head) = output.next_head().await else { return };
            let status = if head.contains(" /attach") { "302 Found\r\nlocation: /login" } else { "200 OK" };
            output.write(format!("HTTP/1.1 {status}\r\ncontent-length: 4\r\n\r\nbodybehind it")).await;
        })
        .await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let mut client = open_tunnel(&fixture, true, "GET", WEBSOCKET).await;
    let head = client.read_head().await;
    assert!(head.starts_with("http/1.1 302 ") && head.contains("\r\nlocation: /login\r\n"), "{head}");
    assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
    assert_eq!(client.read_to_end().await, "body");
}

/// Downloads that the test writes, watches of one event, and `{}` for the rest.
async fn start_busy_server(place: ListenAddress) -> (PlaintextServer, mpsc::UnboundedReceiver<BodyWriter>) {
    let (send, writers) = mpsc::unbounded_channel();
    let server = PlaintextServer::http1(place, move |mut request: Request<Incoming>| {
        let send = send.clone();
        async move {
            let (writer, mut response) = streamed_response(200);
            match request.uri().path() {
                "/download" => {
                    writer.send(data_frame("half")).unwrap();
                    response.headers_mut().insert("content-length", 8.into());
                }
                "/attach" => {
                    tokio::spawn(async move {
                        if let Ok(tunnel) = hyper::upgrade::on(&mut request).await {
                            let (mut read, mut write) = tokio::io::split(hyper_util::rt::TokioIo::new(tunnel));
                            let _ = tokio::io::copy(&mut read, &mut write).await;
                        }
                    });
                    let mut response = json_response(101, "").map(|_| Default::default());
                    response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
                    response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
                    return response;
                }
                _ if request.uri().query() == Some("watch=1") => {
                    writer.send(data_frame("{\"type\":\"ADDED\"}\n")).unwrap()
                }
                _ => return json_response(200, "{}"),
            }
            // A test that is over takes no more writers.
            let _ = send.send(writer);
            response
        }
    })
    .await;
    (server, writers)
}

/// An answer that has begun with `first`.
async fn begin_response(
    client: &Client,
    path: &str,
    first: &str,
    writers: &mut mpsc::UnboundedReceiver<BodyWriter>,
) -> (http::Response<Incoming>, BodyWriter) {
    let mut response = client.send(get(path, &[])).await.unwrap();
    assert_eq!(next_chunk(response.body_mut()).await.unwrap().unwrap(), first);
    (response, writers.recv().await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_shutdown_delay_keeps_relaying() {
    let environment = TestEnvironment::new();
    let (server, mut writers) = start_busy_server(ListenAddress::socket(&environment)).await;
    let mut fixture = SidecarFixture::new(environment, &server.url(), &["--shutdown-delay-duration=10m"]).await;
    let client = fixture.http2().await;
    eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
    let (download, writer) = begin_response(&client, "/download", "half", &mut writers).await;
    let (mut watch, events) =
        begin_response(&client, "/apis/example.com/v1/books?watch=1", "{\"type\":\"ADDED\"}\n", &mut writers).await;
    let mut tunnel = open_tunnel(&fixture, true, "GET", WEBSOCKET).await;
    assert!(tunnel.read_head().await.starts_with("http/1.1 101 "));
    fixture.sidecar.signal("TERM");
    eventually("readiness to go off", async || (client.get("/readyz").await.status == 500).then_some(())).await;
    // Old clients and new ones; what runs and what begins.
    for client in [client, fixture.http1().await, fixture.http2().await] {
        assert_eq!(client.get("/livez").await.status, 200);
        assert_eq!(client.get("/books").await.status, 200);
    }
    tunnel.write("still there").await;
    tunnel.expect_text("still there").await;
    events.send(data_frame("{\"type\":\"MODIFIED\"}\n")).unwrap();
    assert_eq!(next_chunk(watch.body_mut()).await.unwrap().unwrap(), "{\"type\":\"MODIFIED\"}\n");
    writer.send(data_frame("half")).unwrap();
    drop(writer);
    let output = read_response(download).await;
    assert_eq!((output.text().as_str(), output.is_complete), ("half", true));
    // The server is done: no request waits for it, and the sidecar is as alive as before.
    let place = server.stop().await;
    let client = fixture.http1().await;
    client.get("/books").await.assert_failure(503, "ServiceUnavailable");
    assert_eq!(client.get("/livez").await.status, 200);
    drop(place);
    fixture.sidecar.signal("TERM");
    assert_eq!(fixture.sidecar.wait_for_exit().await.code(), Some(1));
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_shutdown_finishes_running_requests() {
    for socket in [true, false] {
        let environment = TestEnvironment::new();
        let (server, mut writers) =
            start_busy_server(if socket { ListenAddress::socket(&environment) } else { ListenAddress::Port(0) }).await;
        let mut fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
        let (one, two) = (fixture.http1().await, fixture.http2().await);
        let (first, first_writer) = begin_response(&one, "/download", "half", &mut writers).await;
        let (second, second_writer) = begin_response(&two, "/download", "half", &mut writers).await;
        let (mut watch, _events) =
            begin_response(&two, "/apis/example.com/v1/books?watch=1", "{\"type\":\"ADDED\"}\n", &mut writers).await;
        let mut tunnel = open_tunnel(&fixture, true, "GET", WEBSOCKET).await;
        assert!(tunnel.read_head().await.starts_with("http/1.1 101 "));
        tunnel.write("hello").await;
        tunnel.expect_text("hello").await;
        fixture.sidecar.signal("TERM");
        let address = fixture.sidecar.address;
        eventually("the port to close", async || TcpStream::connect(address).await.is_err().then_some(())).await;
        assert!(next_chunk(watch.body_mut()).await.is_none(), "a watch ends between two events");
        assert_eq!(tunnel.read_to_end().await, "");
        for (download, writer) in [(first, first_writer), (second, second_writer)] {
            writer.send(data_frame("half")).unwrap();
            drop(writer);
            let output = read_response(download).await;
            assert_eq!((output.text().as_str(), output.is_complete), ("half", true));
        }
        assert_eq!(fixture.sidecar.wait_for_exit().await.code(), Some(0));
    }
}
