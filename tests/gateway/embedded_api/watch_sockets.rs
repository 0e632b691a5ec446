//! Watches over WebSocket, and upgrades that are not served.

use http::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::client::connect;
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::TEST_TIMEOUT;

const HANDSHAKE: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\norigin: https://example.com\r\n";

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=1&fieldSelector=metadata.name%3Da";

/// A client that speaks WebSocket byte by byte.
struct SocketClient {
    stream: TlsStream<TcpStream>,
    buffered: Vec<u8>,
}

impl SocketClient {
    async fn send(api: &EmbeddedApiFixture, path: &str, headers: &str) -> SocketClient {
        let user = api.environment.issue_user("admin", &["system:masters"]);
        let mut stream = connect(&api.environment, api.gateway.address, Some(&user), &["http/1.1"]).await;
        let head = format!("GET {path} HTTP/1.1\r\nhost: api.example.com\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        SocketClient { stream, buffered: Vec::new() }
    }

    async fn open(api: &EmbeddedApiFixture, path: &str, headers: &str) -> (SocketClient, String) {
        let mut client = SocketClient::send(api, path, &format!("{HANDSHAKE}{headers}")).await;
        let head = client.head().await;
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        assert!(head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="), "{head}");
        (client, head)
    }

    async fn read_to(&mut self, length: usize) -> bool {
        while self.buffered.len() < length {
            let read = tokio::time::timeout(TEST_TIMEOUT, self.stream.read_buf(&mut self.buffered)).await;
            if read.expect("bytes in time").unwrap_or(0) == 0 {
                return false;
            }
        }
        true
    }

    /// The head of the answer, in lower case.
    async fn head(&mut self) -> String {
        loop {
            if let Some(end) = self.buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                let head: Vec<u8> = self.buffered.drain(..end + 4).collect();
                return String::from_utf8_lossy(&head).to_lowercase();
            }
            assert!(self.read_to(self.buffered.len() + 1).await, "no head");
        }
    }

    /// The first byte and the payload of the next frame; none at the end of the connection.
    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        if !self.read_to(2).await {
            return None;
        }
        let (head, length) = match self.buffered[1] {
            126 => {
                self.read_to(4).await;
                (4, usize::from(u16::from_be_bytes([self.buffered[2], self.buffered[3]])))
            }
            length => (2, usize::from(length)),
        };
        assert!(self.read_to(head + length).await);
        let first = self.buffered[0];
        let payload = self.buffered.drain(..head + length).skip(head).collect();
        Some((first, payload))
    }

    /// The next message, which is an event in JSON.
    async fn event(&mut self) -> Value {
        let (first, payload) = self.frame().await.expect("an event");
        assert_eq!(first, 0x81, "not a text message: {payload:?}");
        assert_eq!(payload.last(), Some(&b'\n'));
        serde_json::from_slice(&payload).unwrap()
    }

    async fn write(&mut self, first: u8, payload: &[u8]) {
        let mask = [7, 1, 3, 9];
        let mut frame = vec![first, 0x80 | payload.len() as u8];
        frame.extend_from_slice(&mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        self.stream.write_all(&frame).await.unwrap();
    }
}

async fn put(api: &EmbeddedApiFixture, method: Method, value: &str) {
    let path = if method == Method::POST { CONFIG_MAPS.to_owned() } else { format!("{CONFIG_MAPS}/a") };
    let object = json!({"metadata": {"name": "a"}, "data": {"value": value}});
    let answer = send_json(&api.http2().await, method, &path, &object).await;
    assert!(answer.status.is_success(), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_over_websocket_sends_an_event_in_each_message() {
    let api = EmbeddedApiFixture::start(&[]);
    put(&api, Method::POST, "1").await;
    let (mut client, head) = SocketClient::open(&api, WATCH, "sec-websocket-protocol: binary.k8s.io\r\n").await;
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
    assert!(head.contains("sec-websocket-protocol: binary.k8s.io\r\n"), "{head}");
    assert!(!head.contains("transfer-encoding") && !head.contains("content-length"), "{head}");
    let event = client.event().await;
    assert_eq!((&event["type"], &event["object"]["data"]["value"]), (&json!("ADDED"), &json!("1")));
    put(&api, Method::PUT, "2").await;
    let event = client.event().await;
    assert_eq!((&event["type"], &event["object"]["data"]["value"]), (&json!("MODIFIED"), &json!("2")));
    // A ping is answered, a message of the client is dropped.
    client.write(0x82, b"ignored").await;
    client.write(0x89, b"are you there").await;
    assert_eq!(client.frame().await, Some((0x8a, b"are you there".to_vec())));
    client.write(0x88, &1000_u16.to_be_bytes()).await;
    assert_eq!(client.frame().await, Some((0x88, 1000_u16.to_be_bytes().to_vec())));
    assert_eq!(client.frame().await, None);
    // A large object in a frame of its own, and several initial events in one each.
    put(&api, Method::PUT, &"x".repeat(10_000)).await;
    let (mut client, _) = SocketClient::open(&api, "/api/v1/namespaces?watch=1&timeoutSeconds=1", "").await;
    let mut names = Vec::new();
    for _ in 0..4 {
        names.push(client.event().await["object"]["metadata"]["name"].as_str().unwrap().to_owned());
    }
    assert_eq!(names, ["default", "kube-node-lease", "kube-public", "kube-system"]);
    // The watch ends with a close frame.
    assert_eq!(client.frame().await, Some((0x88, 1000_u16.to_be_bytes().to_vec())));
    let (mut client, _) = SocketClient::open(&api, WATCH, "").await;
    assert_eq!(client.event().await["object"]["data"]["value"].as_str().unwrap().len(), 10_000);
    // A frame that is not masked breaks the protocol.
    client.stream.write_all(&[0x81, 1, b'a']).await.unwrap();
    assert_eq!(client.frame().await, Some((0x88, 1002_u16.to_be_bytes().to_vec())));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_over_websocket_sends_protobuf_in_binary_messages() {
    let api = EmbeddedApiFixture::start(&[]);
    put(&api, Method::POST, "1").await;
    let accept = "accept: application/vnd.kubernetes.protobuf\r\n";
    let (mut client, _) = SocketClient::open(&api, WATCH, accept).await;
    let (first, payload) = client.frame().await.unwrap();
    // A WatchEvent without the length before it, which the frame has.
    assert_eq!((first, &payload[..7]), (0x82, &b"\n\x05ADDED"[..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_over_websocket_closed_in_order_when_the_gateway_drains() {
    let mut api = EmbeddedApiFixture::start(&[]);
    put(&api, Method::POST, "1").await;
    let (mut client, _) = SocketClient::open(&api, WATCH, "").await;
    client.event().await;
    api.gateway.signal("TERM");
    assert_eq!(client.frame().await, Some((0x88, 1000_u16.to_be_bytes().to_vec())));
    drop(client);
    assert!(api.gateway.wait_for_exit().await.success());
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_that_is_not_served_is_refused_with_a_text() {
    let api = EmbeddedApiFixture::start(&[]);
    let spdy = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\n";
    let no_origin = HANDSHAKE.replace("origin: https://example.com\r\n", "");
    let no_key = HANDSHAKE.replace("sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n", "");
    let two_protocols = format!("{HANDSHAKE}sec-websocket-protocol: a, b\r\n");
    let list = "/api/v1/namespaces/default/configmaps";
    for (path, headers, code, text) in [
        (WATCH, spdy, 400, "no upgrade to \"SPDY/3.1\" here"),
        (list, HANDSHAKE, 400, "no upgrade to \"websocket\" here"),
        ("/version", HANDSHAKE, 400, "no upgrade to \"websocket\" here"),
        ("/apis", HANDSHAKE, 400, "no upgrade to \"websocket\" here"),
        (WATCH, &*no_origin, 403, "Origin"),
        (WATCH, &*no_key, 400, "Sec-WebSocket-Key"),
        (WATCH, &*two_protocols, 400, "one subprotocol"),
        // Errors of the watch are those of any request.
        ("/api/v1/configmaps?watch=1&fieldSelector=x%3Dy", HANDSHAKE, 400, "is not a known field selector"),
        ("/api/v1/namespaces/default/pods/p/exec?command=sh", HANDSHAKE, 404, "pods \"p\" not found"),
    ] {
        let mut client = SocketClient::send(&api, path, headers).await;
        let head = client.head().await;
        assert!(head.starts_with(&format!("http/1.1 {code} ")), "{path}: {head}");
        let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap().parse().unwrap();
        assert!(client.read_to(length).await);
        let status: Value = serde_json::from_slice(&client.buffered).unwrap();
        assert!(status["message"].as_str().unwrap().contains(text), "{path}: {status}");
    }
    // Clients offer h2c unasked: it is ignored, as HTTP allows.
    let h2c = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    let head = SocketClient::send(&api, "/version", h2c).await.head().await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
}
