//! Upgrades: a tunnel only after the backend's 101, byte for byte, with the caller's identity.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{connect, get};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_backend::{self, RawConnection};

pub(crate) const WEBSOCKET: &str = "connection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
                         sec-websocket-version: 13\r\nsec-websocket-protocol: v5.channel.k8s.io\r\n";
pub(crate) const SPDY: &str = "connection: Upgrade\r\nupgrade: SPDY/3.1\r\nx-stream-protocol-version: v4.channel.k8s.io\r\n\
                    content-length: 0\r\n";

/// A client that speaks to the gateway byte by byte.
pub(crate) struct RawUpgrade {
    stream: TlsStream<TcpStream>,
    buffered: Vec<u8>,
}

impl RawUpgrade {
    /// Sends the head of a request, and `more` in the same breath.
    async fn start(fixture: &GatewayFixture, headers: &str, more: &str) -> RawUpgrade {
        RawUpgrade::start_request(fixture, "GET", &format!("{THINGS}/one/exec?command=sh"), headers, more).await
    }

    async fn start_request(
        fixture: &GatewayFixture,
        method: &str,
        path: &str,
        headers: &str,
        more: &str,
    ) -> RawUpgrade {
        let stream = connect(&fixture.environment, fixture.gateway.address, Some(&fixture.jane), &["http/1.1"]).await;
        RawUpgrade::start_on(
            stream,
            &format!("{method} {path} HTTP/1.1\r\nhost: api.example.com\r\n{headers}\r\n{more}"),
        )
        .await
    }

    /// Sends `request` as it stands.
    pub(crate) async fn start_on(mut stream: TlsStream<TcpStream>, request: &str) -> RawUpgrade {
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        RawUpgrade { stream, buffered: Vec::new() }
    }

    async fn read_more(&mut self) -> usize {
        let reading = self.stream.read_buf(&mut self.buffered);
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("bytes in time").unwrap_or(0)
    }

    /// The head of the answer, in lower case.
    pub(crate) async fn read_head(&mut self) -> String {
        loop {
            if let Some(end) = self.buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                let head = String::from_utf8_lossy(&self.buffered[..end + 4]).to_lowercase();
                self.buffered.drain(..end + 4);
                return head;
            }
            assert!(self.read_more().await > 0, "no head: {:?}", String::from_utf8_lossy(&self.buffered));
        }
    }

    pub(crate) async fn expect_text(&mut self, text: &str) {
        while self.buffered.len() < text.len() && self.read_more().await > 0 {}
        assert_eq!(String::from_utf8_lossy(&self.buffered[..text.len().min(self.buffered.len())]), text);
        self.buffered.drain(..text.len());
    }

    pub(crate) async fn write(&mut self, text: &str) {
        self.stream.write_all(text.as_bytes()).await.unwrap();
        self.stream.flush().await.unwrap();
    }

    /// Everything up to the end of the connection.
    pub(crate) async fn read_to_end(mut self) -> String {
        while self.read_more().await > 0 {}
        String::from_utf8_lossy(&self.buffered).into_owned()
    }
}

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";

/// A backend that opens a tunnel and echoes; the heads it saw.
async fn start_echo_backend(
    environment: &TestEnvironment,
    settings: BackendSettings,
    first: &'static str,
) -> (Backend, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = heads.clone();
    let backend = raw_backend::http1(environment, settings, move |mut talk: RawConnection| {
        kept.lock().push(talk.head.clone());
        async move {
            talk.write(format!("{SWITCH}{first}")).await;
            loop {
                let bytes = std::mem::take(&mut talk.buffered);
                talk.write(&bytes).await;
                if talk.read_more().await.is_none() {
                    break;
                }
            }
            talk.write(" and the tail").await;
            talk.close().await;
        }
    })
    .await;
    (backend, heads)
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_tunnel_copies_all_bytes_both_ways() {
    let environment = TestEnvironment::new();
    let (backend, heads) = start_echo_backend(&environment, BackendSettings::http1(), "with the 101;").await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for (method, headers) in [("GET", WEBSOCKET), ("POST", SPDY)] {
        let path = format!("{THINGS}/one/exec?command=sh");
        // What the client sends before it has seen the 101 belongs to the tunnel.
        let mut client = RawUpgrade::start_request(&fixture, method, &path, headers, "before the 101;").await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 101 "), "{head}");
        assert!(head.contains("\r\nconnection: upgrade\r\n") && head.contains("\r\nupgrade: websocket\r\n"), "{head}");
        assert_eq!(head.matches("audit-id").count(), 1, "{head}");
        client.expect_text("with the 101;before the 101;").await;
        client.write("hello").await;
        client.expect_text("hello").await;
        let much = "0123456789abcdef".repeat(8 << 10);
        client.write(&much).await;
        client.expect_text(&much).await;
        // Our half is closed; what the backend has still to say is not lost.
        client.stream.shutdown().await.unwrap();
        assert_eq!(client.read_to_end().await, " and the tail");
    }
    let head = heads.lock()[0].to_lowercase();
    assert!(head.starts_with(&format!("get {THINGS}/one/exec?command=sh http/1.1\r\n")), "{head}");
    assert!(head.contains("\r\nupgrade: websocket\r\n") && head.contains("\r\nconnection: upgrade\r\n"), "{head}");
    assert!(head.contains("sec-websocket-protocol: v5.channel.k8s.io\r\n"), "{head}");
    assert!(heads.lock()[1].to_lowercase().contains("x-stream-protocol-version: v4.channel.k8s.io\r\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_tunnel_half_closed_by_backend_delivers_client_data() {
    let environment = TestEnvironment::new();
    let received = Arc::new(Mutex::new(None));
    let kept = received.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let kept = kept.clone();
        async move {
            talk.write(format!("{SWITCH}all I have")).await;
            talk.stream.shutdown().await.unwrap();
            while talk.read_more().await.is_some() {}
            *kept.lock() = Some(String::from_utf8(talk.buffered).unwrap());
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let mut client = RawUpgrade::start(&fixture, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    client.expect_text("all I have").await;
    assert_eq!(client.read_more().await, 0, "its half is closed");
    client.write("but I have more").await;
    client.stream.shutdown().await.unwrap();
    let all = eventually("the backend to have heard it", async || received.lock().clone()).await;
    assert_eq!(all, "but I have more");
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_has_identity_headers_and_forged_ones_removed() {
    let environment = TestEnvironment::new();
    let (backend, heads) = start_echo_backend(&environment, BackendSettings::http1(), "").await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let forged = format!(
        "connection: X-Remote-Group, keep-alive\r\n{WEBSOCKET}x-remote-user: root\r\nX-Remote-Group: system:masters\r\n\
         x-remote-extra-scopes: all\r\nx_remote_user: root\r\nauthorization: Bearer secret\r\ncookie: a=b\r\n\
         x-remote-uid: 0\r\nx-forwarded-for: 10.9.9.9\r\n"
    );
    let mut client = RawUpgrade::start(&fixture, &forged, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    let head = heads.lock()[0].to_lowercase();
    assert!(head.contains("\r\nx-remote-user: jane\r\n"), "{head}");
    assert!(head.contains("\r\nx-remote-group: devs\r\nx-remote-group: system:authenticated\r\n"), "{head}");
    for forgery in ["root", "masters", "secret", "scopes", "cookie", "x-remote-uid", "x_remote", "authorization"] {
        assert!(!head.contains(forgery), "{forgery}: {head}");
    }
    assert_eq!(head.matches("\r\nconnection: ").count(), 1, "{head}");
    assert!(head.contains("\r\nconnection: upgrade\r\n"), "a further proxy must find nothing else named: {head}");
    assert!(head.contains("\r\nx-forwarded-for: 10.9.9.9, 127.0.0.1\r\n"), "{head}");
    assert!(head.contains("\r\nx-forwarded-host: api.example.com\r\n"), "{head}");
}

/// CVE-2018-1002105: an answer that is no 101 never leaves a way through to the backend.
#[tokio::test(flavor = "multi_thread")]
async fn upgrade_response_other_than_101_opens_no_tunnel() {
    let environment = TestEnvironment::new();
    let smuggled = Arc::new(AtomicUsize::new(0));
    let counter = smuggled.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let counter = counter.clone();
        async move {
            let status = talk.head.split("what=").nth(1).unwrap()[..3].to_owned();
            let location = if status == "302" { "location: https://127.0.0.1:1/\r\n" } else { "" };
            talk.write(format!("HTTP/1.1 {status} Whatever\r\n{location}content-length: 7\r\n\r\nits say")).await;
            while talk.read_more().await.is_some() {}
            if !talk.buffered.is_empty() {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    const SMUGGLED: &str = "GET /apis/things.example.com/v1/secrets HTTP/1.1\r\nhost: x\r\nx-remote-user: root\r\n\r\n";
    for status in [200, 201, 204, 300, 302, 304, 400, 401, 403, 404, 500, 503] {
        for (method, headers) in [("GET", WEBSOCKET), ("POST", SPDY)] {
            let path = format!("{THINGS}/one/exec?what={status}");
            let mut client = RawUpgrade::start_request(&fixture, method, &path, headers, SMUGGLED).await;
            let head = client.read_head().await;
            if status < 400 {
                assert!(head.starts_with("http/1.1 502 "), "{status}: {head}");
                assert!(!head.contains("location"), "{head}");
            } else {
                assert!(head.starts_with(&format!("http/1.1 {status} ")), "{status}: {head}");
                // The connection does not go on: what the client sent next was meant for a tunnel.
                assert!(head.contains("\r\nconnection: close\r\n"), "{head}");
                client.stream.write_all(SMUGGLED.as_bytes()).await.unwrap();
                assert_eq!(client.read_to_end().await, "its say", "{status}");
            }
        }
    }
    assert_eq!(smuggled.load(Ordering::SeqCst), 0, "not a byte behind the head reached the backend");
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_protocols_annotation_enforced() {
    for (allowed, pass, refused) in [
        (None, vec!["websocket", "WebSocket", "SPDY/3.1"], vec!["h3", "tcp", "SPDY/3.1, tcp"]),
        (Some("*"), vec!["anything", "websocket"], vec![]),
        (Some(""), vec![], vec!["websocket", "SPDY/3.1"]),
        (Some("tcp"), vec!["tcp"], vec!["websocket"]),
    ] {
        let environment = TestEnvironment::new();
        let (backend, heads) = start_echo_backend(&environment, BackendSettings::http1(), "").await;
        let annotations: Vec<_> = allowed.map(|allowed| ("upgrade-protocols", allowed)).into_iter().collect();
        let fixture = GatewayFixture::new(environment, &[&backend], &annotations);
        for protocol in pass {
            let mut client =
                RawUpgrade::start(&fixture, &format!("connection: upgrade\r\nupgrade: {protocol}\r\n"), "").await;
            let head = client.read_head().await;
            assert!(head.starts_with("http/1.1 101 "), "{allowed:?} {protocol}: {head}");
        }
        let before = heads.lock().len();
        for protocol in refused {
            let headers = format!("connection: upgrade\r\nupgrade: {protocol}\r\n");
            let mut client = RawUpgrade::start(&fixture, &headers, "").await;
            let head = client.read_head().await;
            assert!(head.starts_with("http/1.1 403 "), "{allowed:?} {protocol}: {head}");
            while !String::from_utf8_lossy(&client.buffered).contains("\"code\":403") {
                assert!(client.read_more().await > 0);
            }
            let status: serde_json::Value = serde_json::from_slice(&client.buffered).unwrap();
            assert_eq!(status["reason"], "Forbidden");
            assert!(status["message"].as_str().unwrap().contains("v1.things.example.com"), "{status}");
        }
        assert_eq!(heads.lock().len(), before, "nothing of it reached the backend");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_incomplete_is_ordinary_request() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| json_response(200, "plain")).await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for headers in
        ["upgrade: websocket\r\n", "connection: keep-alive\r\nupgrade: websocket\r\n", "connection: upgrade\r\n"]
    {
        let mut client = RawUpgrade::start(&fixture, headers, "").await;
        let head = client.read_head().await;
        assert!(head.starts_with("http/1.1 200 "), "{headers:?}: {head}");
        client.expect_text("plain").await;
        let seen = backend.last_request();
        assert!(!seen.headers.contains_key("upgrade") && !seen.headers.contains_key("connection"), "{seen:?}");
    }
    // HTTP/2 carries neither; what it carries all the same is no upgrade.
    let response = fixture.http2().await.send_and_read(get(THINGS, &[("upgrade", "websocket")])).await;
    assert!(matches!(response.status.as_u16(), 200 | 400), "{}", response.text());
    // h2c is never spoken on.
    let h2c = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n";
    let mut client = RawUpgrade::start(&fixture, h2c, "").await;
    let head = client.read_head().await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    let seen = backend.last_request();
    assert!(!seen.headers.contains_key("upgrade") && !seen.headers.contains_key("http2-settings"), "{seen:?}");
}

/// A backend that would rather speak HTTP/2 is asked for HTTP/1.1, which alone can upgrade.
#[tokio::test(flavor = "multi_thread")]
async fn upgrade_dialed_over_http1_beside_http2_requests() {
    let environment = TestEnvironment::new();
    let versions = Arc::new(Mutex::new(Vec::new()));
    let kept = versions.clone();
    let backend = Backend::start(&environment, BackendSettings::default(), move |mut request| {
        kept.lock().push(request.version());
        async move {
            if !request.headers().contains_key("upgrade") {
                return json_response(200, "{}");
            }
            let upgraded = hyper::upgrade::on(&mut request);
            tokio::spawn(async move {
                let mut stream = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
                let mut some = [0; 5];
                stream.read_exact(&mut some).await.unwrap();
                stream.write_all(&some).await.unwrap();
                stream.shutdown().await.unwrap();
            });
            let mut response = json_response(101, "");
            response.headers_mut().insert("connection", "Upgrade".parse().unwrap());
            response.headers_mut().insert("upgrade", "websocket".parse().unwrap());
            response
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    let mut client = RawUpgrade::start(&fixture, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    client.write("hello").await;
    client.expect_text("hello").await;
    assert_eq!(fixture.http2().await.get(THINGS).await.status, 200);
    assert_eq!(*versions.lock(), [http::Version::HTTP_2, http::Version::HTTP_11, http::Version::HTTP_2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_timeout_applies_until_101_only() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), |mut talk: RawConnection| async move {
        if talk.head.contains("what=silence") {
            while talk.read_more().await.is_some() {}
            return;
        }
        talk.write(SWITCH).await;
        // Longer than a request may take.
        tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
        talk.write("still here").await;
        talk.close().await;
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[("request-timeout", "600ms")]);
    let path = format!("{THINGS}/one/exec?what=silence");
    let mut client = RawUpgrade::start_request(&fixture, "GET", &path, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 504 "));
    let mut client = RawUpgrade::start(&fixture, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    client.expect_text("still here").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_tunnel_closed_when_either_side_disconnects() {
    let environment = TestEnvironment::new();
    let gone = Arc::new(AtomicUsize::new(0));
    let counter = gone.clone();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk: RawConnection| {
        let counter = counter.clone();
        async move {
            talk.write(SWITCH).await;
            if talk.head.contains("what=reset") {
                talk.reset();
                return;
            }
            while talk.read_more().await.is_some() {}
            counter.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    let mut client = RawUpgrade::start(&fixture, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    drop(client);
    eventually("the backend to notice", async || (gone.load(Ordering::SeqCst) == 1).then_some(())).await;
    let path = format!("{THINGS}/one/exec?what=reset");
    let mut client = RawUpgrade::start_request(&fixture, "GET", &path, WEBSOCKET, "").await;
    assert!(client.read_head().await.starts_with("http/1.1 101 "));
    assert_eq!(client.read_to_end().await, "");
}
