//! Requests that the HTTP libraries refuse themselves: each gets an answer that says why, once, and a record.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{admin_request, connect, get};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};
use crate::support::raw_h2_client::{DATA, END_STREAM, RawH2Client, StreamOutcome, header_block, headers_frames};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

struct MalformedFixture {
    environment: TestEnvironment,
    backend: Backend,
    gateway: GatewayProcess,
    jane: CertKeyPair,
}

impl MalformedFixture {
    async fn new() -> MalformedFixture {
        let environment = TestEnvironment::new();
        let settings = BackendSettings::http2();
        let backend = Backend::start(&environment, settings, async |_| json_response(200, "{}")).await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&["--access-log=all", "--access-log-format=json"]);
        let jane = environment.issue_user("jane", &[]);
        MalformedFixture { environment, backend, gateway, jane }
    }

    /// Status code and body of the answer to these headers over HTTP/2.
    async fn http2(&self, lines: &[(&str, &str)]) -> (StreamOutcome, Value) {
        let mut frames = RawH2Client::open(&self.environment, &self.gateway, Some(&self.jane), &[]).await;
        assert!(frames.send(&headers_frames(1, END_STREAM, &header_block(lines))).await);
        let outcome = frames.stream_outcome(1).await;
        let StreamOutcome::Status(_) = outcome else { return (outcome, Value::Null) };
        let data = frames.next_matching(|frame| frame.kind == DATA).await.unwrap();
        (outcome, serde_json::from_slice(&data.payload).unwrap_or_default())
    }

    async fn http2_path(&self, path: &str) -> (StreamOutcome, Value) {
        self.http2(&[(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", path)]).await
    }

    /// Status code and body of the answer to this head over HTTP/1.1.
    async fn http1(&self, head: &str) -> (u16, Value) {
        let mut stream = connect(&self.environment, self.gateway.address, Some(&self.jane), &["http/1.1"]).await;
        let _ = stream.write_all(head.as_bytes()).await;
        let mut response = Vec::new();
        let reading = async {
            let _ = stream.read_to_end(&mut response).await;
        };
        tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an answer in time");
        let response = String::from_utf8_lossy(&response).into_owned();
        let (head, body) = response.split_once("\r\n\r\n").unwrap_or_default();
        assert!(head.to_ascii_lowercase().contains("connection: close"), "{head}");
        (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_default())
    }
}

/// Go's `url.ParseRequestURI` accepts these bytes; clients in Go send them as they are.
#[tokio::test(flavor = "multi_thread")]
async fn url_bytes_that_go_accepts_are_escaped() {
    let fixture = MalformedFixture::new().await;
    for (sent, arrives) in [
        (format!("{THINGS}?fieldSelector=a<b>\"c\""), format!("{THINGS}?fieldSelector=a%3Cb%3E%22c%22")),
        (format!("{THINGS}/a#b?x=a#b"), format!("{THINGS}/a%23b?x=a%23b")),
        (format!("{THINGS}/ü?labelSelector=ü"), format!("{THINGS}/%C3%BC?labelSelector=%C3%BC")),
    ] {
        assert_eq!(fixture.http2_path(&sent).await.0, StreamOutcome::Status(200), "{sent}");
        assert_eq!(fixture.backend.last_request().uri.path_and_query().unwrap().as_str(), arrives);
        let head = format!("GET {sent} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert_eq!(fixture.http1(&head).await.0, 200, "{sent}");
        assert_eq!(fixture.backend.last_request().uri.path_and_query().unwrap().as_str(), arrives);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_request_gets_status_record_and_metric() {
    let fixture = MalformedFixture::new().await;
    let long = format!("{THINGS}?labelSelector={}", "x".repeat(80_000));
    let control = format!("{THINGS}?x=\u{7}");
    for (path, code, part) in
        [(&long, 414, "the most are 65534"), (&control, 400, "byte 0x07 at position 56 is not allowed")]
    {
        let (outcome, status) = fixture.http2_path(path).await;
        let message = status["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (outcome, status["code"].as_u64()),
            (StreamOutcome::Status(code), Some(u64::from(code))),
            "{status}"
        );
        assert!(message.contains(part), "{message}");
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let (found, status) = fixture.http1(&head).await;
        assert_eq!((found, status["message"].as_str().unwrap_or_default()), (code, &*message));
        for protocol in ["\"h2\"", "\"http/1.1\""] {
            let line = fixture.gateway.wait_for_log(&[protocol, &format!("\"status\":{code}"), THINGS]).await;
            assert!(line.contains("malformed request"), "{line}");
        }
    }
    let counted = async || {
        let name = "apiserver_request_total";
        let text = admin_request(&fixture.gateway, get("/metrics", &[])).await.text();
        let is_counted = |code: &str| text.lines().any(|line| line.starts_with(name) && line.contains(code));
        (is_counted("code=\"414\"") && is_counted("code=\"400\"")).then_some(())
    };
    eventually("the refused requests to be counted", counted).await;
    assert!(fixture.backend.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_headers_get_status_over_both_protocols() {
    let fixture = MalformedFixture::new().await;
    let pseudo = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", THINGS)];
    for (line, part) in [
        (("connection", "close"), "not allowed over HTTP/2"),
        (("te", "gzip"), "TE may only be"),
        (("X-Upper", "1"), "invalid header name"),
        (("x-control", "a\u{1}"), "invalid value of the header \"x-control\": byte 0x01 at position 1"),
        (("content-length", "x"), "Content-Length"),
        (("content-length", "5"), "has no body"),
        ((":path", "/again"), "repeated"),
        ((":status", "200"), "no pseudo-header of a request"),
    ] {
        let lines: Vec<_> = pseudo.into_iter().chain([line]).collect();
        let (outcome, status) = fixture.http2(&lines).await;
        assert_eq!(outcome, StreamOutcome::Status(400), "{line:?}");
        assert!(status["message"].as_str().unwrap().contains(part), "{status}");
    }
    // h2 resets these without a word.
    let head = [(":method", "HEAD"), (":scheme", "https"), (":authority", "localhost"), (":path", THINGS)];
    let connect = [(":method", "CONNECT"), pseudo[1], pseudo[2], pseudo[3]];
    for lines in [head.into_iter().chain([("content-length", "5")]), connect.into_iter().chain([(":protocol", "x")])] {
        let lines: Vec<_> = lines.collect();
        let mut frames = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&fixture.jane), &[]).await;
        assert!(frames.send(&headers_frames(1, END_STREAM, &header_block(&lines))).await);
        assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(400), "{lines:?}");
    }
    for missing in 0..4 {
        let lines: Vec<_> = (0..4).filter(|number| *number != missing).map(|number| pseudo[number]).collect();
        let expected = if missing == 2 { 200 } else { 400 };
        assert_eq!(fixture.http2(&lines).await.0, StreamOutcome::Status(expected), "{lines:?}");
    }
    for (head, part) in [
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\na b: c\r\n\r\n"), "invalid header name"),
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nnothing\r\n\r\n"), "no colon"),
        (format!("GET {THINGS} x HTTP/1.1\r\nHost: localhost\r\n\r\n"), "malformed request line"),
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n"), "Content-Length"),
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n"), "Transfer-Encoding"),
        (format!("GET {THINGS} HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"), "HTTP/1.0"),
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\na: b\r\r\n\r\n"), "byte 0x0d at position 1"),
        (format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\na: \u{c}b\r\n\r\n"), "byte 0x0c at position 0"),
    ] {
        let (code, status) = fixture.http1(&head).await;
        assert!(code == 400 && status["message"].as_str().unwrap().contains(part), "{head}: {status}");
    }
}

/// The connection goes on, with h2's compression state out of step with the client's.
#[tokio::test(flavor = "multi_thread")]
async fn http2_connection_serves_on_after_a_malformed_request() {
    let fixture = MalformedFixture::new().await;
    let mut frames = RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&fixture.jane), &[]).await;
    // Literals with indexing: the later requests refer to the table.
    let indexed = |name: u8, text: &str| {
        let mut field = vec![0x40 | name, 0x7f, (text.len() - 127) as u8];
        assert!((127..255).contains(&text.len()));
        field.extend_from_slice(text.as_bytes());
        field
    };
    let path = format!("{THINGS}?limit={}", "5".repeat(80));
    let first = [&[0x82, 0x87][..], b"\x41\x09localhost", &indexed(4, &path)].concat();
    let bad = [&[0x82, 0x87, 0xbf][..], b"\x44\x02/\x01"].concat();
    let again = [0x82, 0x87, 0xc0, 0xbf];
    for (stream, block, code) in [(1, &first[..], 200), (3, &bad, 400), (5, &again, 200), (7, &again, 200)] {
        assert!(frames.send(&headers_frames(stream, END_STREAM, block)).await);
        assert_eq!(frames.stream_outcome(stream).await, StreamOutcome::Status(code), "{stream}");
    }
    assert_eq!(fixture.backend.received().len(), 3);
    assert_eq!(fixture.backend.last_request().uri.path_and_query().unwrap().as_str(), path);
}

/// A front proxy sends a line for each group.
#[tokio::test(flavor = "multi_thread")]
async fn four_thousand_header_lines_pass_both_ways() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, settings, async |_| {
            let mut response = json_response(200, "{}");
            for _ in 0..4000 {
                response.headers_mut().append("x-line", "1".parse().unwrap());
            }
            response
        })
        .await;
        environment.register_apiservice("things.example.com", "v1", &[&backend]);
        let gateway = environment.start_gateway(&[]);
        let proxy = environment.issue_front_proxy("outer-proxy");
        let groups: Vec<String> = (0..900).map(|number| format!("group-{number}")).collect();
        let mut lines = vec![("x-remote-user", "jane")];
        lines.extend(groups.iter().map(|group| ("x-remote-group", group.as_str())));
        let mut http1 = connect(&environment, gateway.address, Some(&proxy), &["http/1.1"]).await;
        let head: String = lines.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        // The test's own backend over HTTP/1.1 takes a thousand lines.
        let get_head = format!("GET {THINGS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{head}");
        http1.write_all(format!("{get_head}\r\n").as_bytes()).await.unwrap();
        let mut response = String::new();
        http1.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200"), "{}", &response[..response.len().min(300)]);
        assert_eq!(response.matches("x-line: 1\r\n").count(), 4000);
        assert_eq!(backend.last_request().header_values("x-remote-group").len(), 901);
    }
}
