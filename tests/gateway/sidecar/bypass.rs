//! Attempts to bypass the sidecar's authorization: by paths, messages, names and numbers.

use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::authn::identity::{CUSTOM_HEADER_FLAGS, FORGED_HEADERS};
use crate::sidecar::upstream_relay::SidecarFixture;
use crate::support::backend::{BackendResponse, ReceivedRequest, json_response as response};
use crate::support::client::{Client, RequestBody, connect, get, request};
use crate::support::fake_review_server::{access_review_reply, default_reply};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment};
use crate::support::plaintext_backend::{ListenAddress, PlaintextServer};
use crate::support::raw_h2_client::{END_STREAM, RawH2Client, StreamOutcome, header_block, headers_frames};

async fn ok_response(_: Request<Incoming>) -> BackendResponse {
    response(200, "{}")
}

/// Asks over HTTP/1.1 in exactly these words; the statuses of what is answered until the connection ends.
async fn send_http1(fixture: &SidecarFixture, text: &[u8]) -> Vec<u16> {
    let mut stream = connect(&fixture.environment, fixture.sidecar.address, Some(&fixture.jane), &["http/1.1"]).await;
    let mut output = Vec::new();
    let talk = async {
        let (mut read, mut write) = tokio::io::split(&mut stream);
        let sending = async {
            // It may be cut before all of it is sent.
            let _ = write.write_all(text).await;
            let _ = write.flush().await;
        };
        let _ = tokio::join!(sending, read.read_to_end(&mut output));
    };
    tokio::time::timeout(TEST_TIMEOUT, talk).await.unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(text)));
    let output = String::from_utf8_lossy(&output).into_owned();
    output.split("HTTP/1.1 ").skip(1).map(|response| response[..3].parse().unwrap()).collect()
}

/// A GET of this target over HTTP/1.1; 0 for no answer.
async fn get_http1(fixture: &SidecarFixture, target: &str, lines: &str) -> u16 {
    let text = format!("GET {target} HTTP/1.1\r\n{lines}Connection: close\r\n\r\n");
    send_http1(fixture, text.as_bytes()).await.first().copied().unwrap_or(0)
}

/// The same over HTTP/2; 0 for a stream or connection that was reset.
async fn get_http2(fixture: &SidecarFixture, target: &str) -> u16 {
    send_http2_headers(
        fixture,
        &[(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", target)],
    )
    .await
}

async fn send_http2_headers(fixture: &SidecarFixture, lines: &[(&str, &str)]) -> u16 {
    let mut frames = RawH2Client::open(&fixture.environment, &fixture.sidecar, Some(&fixture.jane), &[]).await;
    assert!(frames.send(&headers_frames(1, END_STREAM, &header_block(lines))).await);
    match frames.stream_outcome(1).await {
        StreamOutcome::Status(status) => status,
        _ => 0,
    }
}

/// To servers that cut off parameters, take backslashes for slashes, or decode once more.
fn is_escaping(path: &str) -> bool {
    let again = percent_encoding::percent_decode_str(path).decode_utf8_lossy().into_owned();
    let segments = again.split(['/', '\\']).chain(path.split(['/', '\\']));
    segments.filter_map(|segment| segment.split(';').next()).any(|segment| matches!(segment, "." | ".."))
}

fn decoded_path(seen: &ReceivedRequest) -> String {
    percent_encoding::percent_decode_str(seen.uri.path()).decode_utf8().unwrap().into_owned()
}

/// Spellings of paths that try to be authorized as `/open`, or to be misparsed.
const TARGETS: &[&str] = &[
    "/secret",
    "/open/../secret",
    "/open/..",
    "/open/./../secret",
    "/open/%2e%2e/secret",
    "/open/%2E./secret",
    "/open/.%2e/secret",
    "/open/..%2fsecret",
    "/open%2f..%2fsecret",
    "/open/%2e%2e%2fsecret",
    "/open/..%252fsecret",
    "/open/%252e%252e/secret",
    "/open/..;/secret",
    "/open;/../secret",
    "/open;/secret",
    "/secret;/open",
    "/secret/..;/open",
    "/open/..\\secret",
    "/api/v1/namespaces/a/services/b/proxy/../../../../../../secret",
    "/api/v1/nodes/a/proxy/%2e%2e/%2e%2e/%2e%2e/%2e%2e/%2e%2e/secret",
    "/open/..%5csecret",
    "/open\\..\\secret",
    "//secret",
    "/open//secret",
    "//open/../secret",
    "/./secret",
    "/OPEN",
    "/Open/secret",
    "/oPen/../secret",
    "/%6fpen",
    "/%6fpen/../secret",
    "/ope%6e/secret",
    "/open%00/secret",
    "/open/a%00",
    "/open%20",
    "/open%0d%0aX-Remote-User:%20root",
    "/open%3f/../secret",
    "/open%23/../secret",
    "/secret?/open",
    "/secret?x=/open/",
    "/secret#/open",
    "/open#/../secret",
    "/opensecret",
    "/open.secret",
    "/open*",
    "/open/%c0%ae%c0%ae/secret",
    "/open/%ff",
    "/open/\u{ff0e}\u{ff0e}/secret",
    "https://localhost/secret",
    "https://localhost/open/../secret",
    "http://127.0.0.1/open/../secret",
    "https://open/secret",
    "https://localhost/open/secret",
    "https:/open/secret",
    "secret",
    "*",
];

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_forwards_exactly_the_authorized_path() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let mut arrived = 0;
    for target in TARGETS {
        for http2 in [false, true] {
            let status = match http2 {
                false => get_http1(&fixture, target, "Host: localhost\r\n").await,
                true => get_http2(&fixture, target).await,
            };
            let seen = server.received();
            assert_eq!(status == 200, seen.len() > arrived, "{target}: {status}");
            assert!(matches!(status, 0 | 200 | 400 | 404 | 405), "{target}: {status}");
            arrived = seen.len();
        }
    }
    let judged = fixture.reviewer.reviews("SubjectAccessReview");
    let judged: Vec<_> =
        judged.iter().map(|recorded| recorded["spec"]["nonResourceAttributes"]["path"].clone()).collect();
    for seen in server.received() {
        let path = decoded_path(&seen);
        assert!(judged.contains(&json!(path)), "{path} was not judged: {judged:?}");
        assert!(path.starts_with('/') && !is_escaping(&path), "{path}");
        assert_eq!(seen.header_values("x-remote-user"), ["jane"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_always_allow_and_ignore_paths_do_not_open_others() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let more = ["--authorization-always-allow-paths=/open,/open/*", "--ignore-paths=/free,/free/*"];
    let fixture = SidecarFixture::new(environment, &server.url(), &more).await;
    fixture.reviewer.set_behavior(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => access_review_reply(json!({"allowed": false})),
        _ => default_reply(question),
    });
    for target in TARGETS {
        for status in [get_http1(&fixture, target, "Host: localhost\r\n").await, get_http2(&fixture, target).await] {
            assert!(matches!(status, 0 | 200 | 400 | 403 | 404 | 405), "{target}: {status}");
        }
        // Paths without authentication have no identity.
        let target = target.replace("open", "free").replace("OPEN", "FREE").replace("Open", "Free");
        let status = get_http1(&fixture, &target, "Host: localhost\r\nX-Remote-User: root\r\n").await;
        assert!(matches!(status, 0 | 200 | 400 | 403 | 404 | 405), "{target}: {status}");
    }
    assert_eq!(get_http1(&fixture, "/free/a", "Host: localhost\r\nX-Remote-User: root\r\n").await, 200);
    assert_eq!(server.last_request().header_values("x-remote-user"), [""; 0]);
    // Other ways to name a path, or a method, than the request's own.
    for lines in [
        "Host: localhost\r\nX-Original-URL: /secret\r\nX-Rewrite-URL: /secret\r\nX_Original_URL: /secret\r\n",
        "Host: localhost\r\nX-Forwarded-Uri: /secret\r\nX-Original-Uri: /secret\r\n",
        "Host: localhost\r\nX-HTTP-Method-Override: DELETE\r\nX-HTTP-Method: DELETE\r\nX-Method-Override: DELETE\r\n",
    ] {
        assert_eq!(get_http1(&fixture, "/open/a", lines).await, 200, "{lines}");
        let seen = server.last_request();
        for (name, value) in &seen.headers {
            let value = String::from_utf8_lossy(value.as_bytes());
            assert!(!value.contains("secret") && !value.contains("DELETE"), "{name}: {value}");
        }
    }
    for lines in ["Host: localhost/open\r\n", "Host: localhost\r\nHost: open\r\n", "Host: open/\r\n", ""] {
        assert_eq!(get_http1(&fixture, "/secret", lines).await, 400, "{lines}");
    }
    assert_eq!(get_http1(&fixture, "/secret", "Host: open\r\n").await, 403);
    assert!(!server.received().is_empty());
    for seen in server.received() {
        let path = decoded_path(&seen);
        let first = path.split('/').nth(1);
        assert!(matches!(first, Some("open" | "free")) && !is_escaping(&path), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_request_smuggling_refused() {
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), async |request: Request<Incoming>| {
        // Whatever follows the head is read, so that what is left would be taken for a request.
        let _ = request.into_body().collect().await;
        response(200, "{}")
    })
    .await;
    let fixture = SidecarFixture::new(environment, &server.url(), &[]).await;
    let hidden = "GET /evil HTTP/1.1\r\nHost: localhost\r\nX-Remote-User: root\r\n\r\n";
    for (what, lines, body) in [
        ("a length beside a coding", "Content-Length: 5\r\nTransfer-Encoding: chunked", "0\r\n\r\n"),
        ("a coding beside a length", "Transfer-Encoding: chunked\r\nContent-Length: 500", "0\r\n\r\n"),
        ("two lengths", "Content-Length: 0\r\nContent-Length: 64", ""),
        ("a list of lengths", "Content-Length: 0, 64", ""),
        ("a signed length", "Content-Length: +64", ""),
        ("a hexadecimal length", "Content-Length: 0x40", ""),
        ("a folded length", "X-A: b\r\n Content-Length: 64", ""),
        ("a folded coding", "Transfer-Encoding:\r\n chunked", "0\r\n\r\n"),
        ("a coding in disguise", "Transfer-Encoding: xchunked", "0\r\n\r\n"),
        ("a coding with a tab", "Transfer-Encoding:\tchunked\r\nContent-Length: 5", "0\r\n\r\n"),
        ("a coding and another", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"),
        ("a space before the colon", "Transfer-Encoding : chunked\r\nContent-Length: 64", "0\r\n\r\n"),
        ("a size of a chunk that overflows", "Transfer-Encoding: chunked", "10000000000000000\r\n"),
        ("a chunk longer than it says", "Transfer-Encoding: chunked", "1\r\nab\r\n0\r\n\r\n"),
        ("an extension with a line's end", "Transfer-Encoding: chunked", "0;a=\nb\r\n\r\n"),
        ("an identity named as the hop's", "Connection: X-Remote-User, X-Remote-Group\r\nX-Remote-User: root", ""),
        ("a name with a line's end", "X-A\r: b", ""),
        ("a value with a line's end", "X-A: b\rX-Remote-User: root", ""),
    ] {
        for connection in ["", "Connection: close\r\n"] {
            let text = format!("POST /books HTTP/1.1\r\nHost: localhost\r\n{connection}{lines}\r\n\r\n{body}{hidden}");
            // Where all is in order there are two requests, and the second says when to close.
            let text = text + "GET /end HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let statuses = send_http1(&fixture, text.as_bytes()).await;
            assert!(statuses.iter().all(|status| matches!(status, 200 | 400 | 501)), "{what}: {statuses:?}");
        }
    }
    for seen in server.received() {
        // A valid request after a well-framed message: it is jane's, whatever headers it has.
        assert_eq!(seen.header_values("x-remote-user"), ["jane"], "{seen:?}");
        assert!(seen.header_values("x-remote-group").contains(&"devs".to_owned()), "{seen:?}");
        assert!(["/books", "/evil", "/end"].contains(&seen.uri.path()), "{seen:?}");
    }
    let before = server.received().len();
    let ordinary = [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/evil")];
    let path = |path| [&ordinary[..3], &[(":path", path)]].concat();
    let with = |name, value| [&ordinary[..], &[(name, value)]].concat();
    for lines in [
        path("/evil HTTP/1.1"),
        path("/evil\r\nX-Remote-User: root"),
        path("/evil HTTP/1.1\r\nX-Remote-User: root\r\n\r\nGET /evil"),
        path("/evil\tb"),
        path("/evil\0"),
        with("transfer-encoding", "chunked"),
        with("te", "gzip"),
        with("connection", "x-remote-user"),
        with("upgrade", "websocket"),
        with("content-length", "64"),
        with("x-a", "b\r\nx-remote-user: root"),
        with("x-a\r\nx-remote-user", "root"),
        with("X-Remote-User", "root"),
        with("host", "evil"),
    ] {
        let status = send_http2_headers(&fixture, &lines).await;
        assert!(matches!(status, 0 | 400), "{lines:?}: {status}");
    }
    assert_eq!(server.received().len(), before);
}

/// Says which trailers came behind the body.
async fn trailer_names(request: Request<Incoming>) -> BackendResponse {
    let body = request.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    let mut names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
    names.sort_unstable();
    response(200, &names.join(","))
}

/// An ordinary server may believe any of these names; one behind CGI or WSGI reads `_` and `-` alike.
#[tokio::test(flavor = "multi_thread")]
async fn sidecar_forged_identity_headers_removed() {
    let forgeries: Vec<&str> = FORGED_HEADERS.iter().copied().filter(|name| *name != "Cookie").collect();
    for h2c in [false, true] {
        let environment = TestEnvironment::new();
        let server = match h2c {
            false => PlaintextServer::http1(ListenAddress::socket(&environment), trailer_names).await,
            true => PlaintextServer::http2(ListenAddress::socket(&environment), trailer_names).await,
        };
        let h2c: &[&str] = if h2c { &["--upstream-force-h2c"] } else { &[] };
        let fixture = SidecarFixture::new(environment, &server.url(), &[CUSTOM_HEADER_FLAGS, h2c].concat()).await;
        let only_jane = |what: &str| {
            let seen = server.last_request();
            assert_eq!(
                (seen.header_values("x-remote-user"), seen.header_values("x-remote-uid").len()),
                (vec!["jane".into()], 0),
                "{what}"
            );
            assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:authenticated"], "{what}");
            for (name, value) in &seen.headers {
                assert!(!String::from_utf8_lossy(value.as_bytes()).contains("evil"), "{what}: {name} arrived");
            }
        };
        for client in fixture.both_protocols().await {
            for name in &forgeries {
                let mut forged = get("/books", &[(name, "evil"), (name, "also evil")]);
                if matches!(client, Client::Http1(_)) {
                    let hop = format!("{name}, X-Remote-User, x-remote-group");
                    forged.headers_mut().insert("connection", HeaderValue::from_str(&hop).unwrap());
                }
                assert_eq!(client.send_and_read(forged).await.status, 200, "{name}");
                only_jane(name);
            }
            let mut behind = HeaderMap::new();
            for name in forgeries.iter().map(|name| name.to_ascii_lowercase()).chain(["x-checksum".to_owned()]) {
                behind.insert(http::HeaderName::try_from(name).unwrap(), HeaderValue::from_static("evil"));
            }
            let names = behind.keys().map(http::HeaderName::as_str).collect::<Vec<_>>().join(", ");
            let frames = [Ok(Frame::data("{}".into())), Ok(Frame::trailers(behind))];
            let body: RequestBody = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
            let sent = request(Method::POST, "/books", &[("trailer", &names), ("te", "trailers")], "").map(|_| body);
            assert_eq!(client.send_and_read(sent).await.text(), "x-checksum");
            assert_eq!(server.last_request().header_values("x-remote-user"), ["jane"]);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecar_thousand_unfinished_requests_do_not_block_others() {
    const ALL: usize = 1000;
    // In this process there are as many sockets as in the sidecar.
    let descriptors = narthex::listen::raise_descriptor_limit();
    assert!(descriptors.is_none_or(|most| most > 2 * ALL as u64), "{descriptors:?} descriptors are too few");
    let environment = TestEnvironment::new();
    let server = PlaintextServer::http1(ListenAddress::socket(&environment), ok_response).await;
    let fixture =
        SidecarFixture::new(environment, &server.url(), &["--read-header-timeout=10s", "--idle-timeout=1h"]).await;
    assert_eq!(fixture.http2().await.get("/books").await.status, 200);
    let before = fixture.sidecar.resident_kilobytes();
    let mut stuck = Vec::new();
    for number in 0..ALL {
        let protocol = if number % 2 == 0 { "http/1.1" } else { "h2" };
        let mut stream = connect(&fixture.environment, fixture.sidecar.address, None, &[protocol]).await;
        let started = match protocol {
            "h2" => {
                let mut started = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
                // A header that a continuation would have to end.
                started.extend(crate::support::raw_h2_client::encode_frame(
                    crate::support::raw_h2_client::HEADERS,
                    END_STREAM,
                    1,
                    &[0x82],
                ));
                started
            }
            _ => b"GET /evil HTTP/1.1\r\nHost: localhost\r\nX-A: ".to_vec(),
        };
        stream.write_all(&started).await.unwrap();
        stream.flush().await.unwrap();
        stuck.push(stream);
        if number % 100 == 0 {
            assert_eq!(fixture.http2().await.get("/books").await.status, 200);
        }
    }
    assert_eq!(fixture.http1().await.get("/books").await.status, 200);
    let each = fixture.sidecar.resident_kilobytes().saturating_sub(before) / ALL as u64;
    assert!(each < 100, "{each} kB for each of them");
    for mut stream in stuck {
        let end = tokio::time::timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new())).await;
        assert!(end.is_ok(), "it is left standing");
    }
    assert_eq!(fixture.http2().await.get("/books").await.status, 200);
    assert!(server.received().iter().all(|seen| seen.uri.path() == "/books"));
}
