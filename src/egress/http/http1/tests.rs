//! Complete exchanges with a backend that sends given bytes.

use std::io;
use std::pin::Pin;
use std::task::Context;

use futures_util::stream;
use http::header::{CONTENT_TYPE, TRAILER};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::{LocalSet, yield_now};

use super::*;
use crate::egress::dial::read_ahead::ReadAhead;
use crate::egress::dial::transport::TransportStream;
use crate::message::BodyError;

fn line() -> (Http1Connection, UnixStream, Http1ConnectionSet) {
    let (near, far) = UnixStream::pair().unwrap();
    let open = Http1ConnectionSet::default();
    (Http1Connection::new(MaybeTlsStream::Plaintext(ReadAhead::new(TransportStream::Unix(near))), &open), far, open)
}

fn request(method: Method, body: Body) -> Request<Body> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = "/a?b".parse().unwrap();
    request
}

fn get() -> Request<Body> {
    request(Method::GET, Body::Empty)
}

/// Status, body and trailers, or what went wrong.
async fn send_and_read(
    line: &mut Http1Connection,
    request: Request<Body>,
) -> Result<(u16, String, Option<HeaderMap>), String> {
    let response = line.send(request).await.map_err(|fault| format!("head: {fault}"))?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.map_err(|fault| format!("body: {fault}"))?;
    let trailers = body.trailers().cloned();
    Ok((status, String::from_utf8(body.to_bytes().to_vec()).unwrap(), trailers))
}

/// Reads until `end` came.
async fn read_to(far: &mut UnixStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        match far.read_u8().await {
            Ok(byte) => text.push(char::from(byte)),
            Err(_) => return text + "<end>",
        }
    }
    text
}

fn frames(frames: Vec<Result<Frame<Bytes>, BodyError>>) -> Body {
    Body::stream(StreamBody::new(stream::iter(frames)))
}

fn data(text: &'static str) -> Result<Frame<Bytes>, BodyError> {
    Ok(Frame::data(Bytes::from_static(text.as_bytes())))
}

async fn locally(test: impl Future<Output = ()>) {
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn http1_response_complete_at_any_split_and_connection_reused() {
    let sum = HeaderMap::from_iter([("x-sum".parse().unwrap(), HeaderValue::from_static("1"))]);
    let answers = [
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", (200, "hello".to_owned(), None), true),
        ("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", (404, String::new(), None), true),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            (204, String::new(), None),
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n",
            (200, "hello".to_owned(), None),
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
            (200, "hello".to_owned(), Some(sum)),
            true,
        ),
        ("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi", (200, "hi".to_owned(), None), false),
    ];
    locally(async {
        for (text, expected, goes_on) in answers {
            for cut in 0..text.len() {
                let (mut line, mut far, _open) = line();
                for _ in 0..2 {
                    let backend = async {
                        assert_eq!(read_to(&mut far, "\r\n\r\n").await, "GET /a?b HTTP/1.1\r\n\r\n");
                        far.write_all(&text.as_bytes()[..cut]).await.unwrap();
                        for _ in 0..3 {
                            yield_now().await;
                        }
                        far.write_all(&text.as_bytes()[cut..]).await.unwrap();
                    };
                    let (answer, ()) = tokio::join!(send_and_read(&mut line, get()), backend);
                    assert_eq!(answer.as_ref(), Ok(&expected), "{text:?} cut at {cut}");
                    assert_eq!(line.stream.is_reusable(), goes_on, "{text:?} cut at {cut}");
                    if !goes_on {
                        break;
                    }
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn http1_response_truncated_is_an_error() {
    locally(async {
        for (text, least) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 0),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 0),
            ("HTTP/1.1 200 OK\r\nx: y\r\n\r\nhello", "HTTP/1.1 200 OK\r\nx: y\r\n\r\n".len()),
        ] {
            for cut in 0..text.len() {
                let (mut line, mut far, _open) = line();
                far.write_all(&text.as_bytes()[..cut]).await.unwrap();
                far.shutdown().await.unwrap();
                let answer = send_and_read(&mut line, get()).await;
                assert_eq!(answer.is_ok(), least > 0 && cut >= least, "{text:?} cut at {cut}: {answer:?}");
                assert!(!line.stream.is_reusable());
            }
        }
        // Bytes after a response are not part of the next one.
        let (mut line, mut far, _open) = line();
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n").await.unwrap();
        assert_eq!(send_and_read(&mut line, get()).await, Ok((200, "hi".to_owned(), None)));
        assert!(!line.stream.is_reusable());
    })
    .await;
}

#[tokio::test]
async fn http1_idle_connection_closed_or_readable_is_not_reused() {
    locally(async {
        let idle = IdleConnections::default();
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (mut line, mut far, open) = line();
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
            send_and_read(&mut line, get()).await.unwrap();
            idle.put(line);
            kept.push((far, open));
        }
        assert_eq!(idle.len(), 3);
        kept[2].0.shutdown().await.unwrap();
        kept[1].0.write_all(b"HTTP/1.1 408 Request Timeout\r\n\r\n").await.unwrap();
        // Let the reactor see both events.
        tokio::time::sleep(Duration::from_millis(20)).await;
        let taken = idle.take().expect("one of them is silent");
        assert_eq!(idle.len(), 0, "the others are gone");
        idle.put(taken);
        idle.sweep(Instant::now());
        assert_eq!(idle.len(), 1);
        idle.sweep(Instant::now() + IDLE_TIMEOUT);
        assert_eq!(idle.len(), 0);
        for (far, _) in &mut kept {
            read_to(far, "<nothing ends so>").await;
        }
    })
    .await;
}

#[tokio::test]
async fn http1_request_body_matches_its_framing() {
    let trailers = || {
        let line = |name: &'static str, value| (name.parse().unwrap(), HeaderValue::from_static(value));
        Ok(Frame::trailers(HeaderMap::from_iter([line("x-sum", "1"), line("x-unsaid", "2")])))
    };
    locally(async {
        let put = |body: Body| request(Method::PUT, body);
        let head = "PUT /a?b HTTP/1.1\r\n";
        let mut announced = put(frames(vec![data("one"), data(""), data("three"), trailers()]));
        announced.headers_mut().insert(TRAILER, HeaderValue::from_static("Other, X-Sum"));
        for (request, expected) in [
            (put(Body::Empty), format!("{head}content-length: 0\r\n\r\n")),
            (request(Method::DELETE, Body::Empty), "DELETE /a?b HTTP/1.1\r\n\r\n".to_owned()),
            (put(Body::Full(Bytes::from_static(b"hello"))), format!("{head}content-length: 5\r\n\r\nhello")),
            (
                put(frames(vec![data("one"), data("three")])),
                format!("{head}transfer-encoding: chunked\r\n\r\n3\r\none\r\n5\r\nthree\r\n0\r\n\r\n"),
            ),
            (
                announced,
                format!(
                    "{head}trailer: Other, X-Sum\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n5\r\nthree\r\n\
                     0\r\nx-sum: 1\r\n\r\n"
                ),
            ),
        ] {
            let (mut line, mut far, _open) = line();
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            send_and_read(&mut line, request).await.unwrap();
            assert!(line.stream.is_reusable());
            drop(line);
            let mut written = String::new();
            far.read_to_string(&mut written).await.unwrap();
            assert_eq!(written, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn http1_request_body_large_is_sent_with_backpressure() {
    locally(async {
        let piece = |at: usize| Bytes::from((0..50_000).map(|i| ((at + i) % 251) as u8).collect::<Vec<_>>());
        let pieces: Vec<Bytes> = (0..40).map(piece).collect();
        let expected = pieces.concat();
        let exact = |body: Vec<Bytes>| Body::Full(body.concat().into());
        let chunked = |body: Vec<Bytes>| frames(body.into_iter().map(|piece| Ok(Frame::data(piece))).collect());
        for (body, chunks) in [(exact(pieces.clone()), false), (chunked(pieces.clone()), true)] {
            let (mut line, mut far, _open) = line();
            let mut request = request(Method::POST, body);
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("x"));
            let asking = async {
                let response = line.send(request).await.unwrap();
                assert_eq!(response.status(), 201);
            };
            let backend = async {
                read_to(&mut far, "\r\n\r\n").await;
                let mut got = Vec::new();
                let mut coding = ChunkedDecoder::default();
                while got.len() < expected.len() {
                    let mut piece = vec![0; 7000];
                    let n = far.read(&mut piece).await.unwrap();
                    assert!(n > 0);
                    if !chunks {
                        got.extend_from_slice(&piece[..n]);
                        continue;
                    }
                    let mut piece = Bytes::copy_from_slice(&piece[..n]);
                    while let ChunkedStep::Data(data) = coding.decode(&mut piece).unwrap() {
                        got.extend_from_slice(&data);
                    }
                }
                assert!(got == expected);
                far.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            };
            tokio::join!(asking, backend);
        }
    })
    .await;
}

#[tokio::test]
async fn http1_response_empty_lines_before_status_are_bounded() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    locally(async {
        for (before, fine) in [("\r\n".repeat(8), true), ("\n".repeat(16), true), ("\r\n".repeat(9), false)] {
            for step in [1, 7, 1000] {
                let (mut line, mut far, _open) = line();
                let asking = async { line.send(request(Method::GET, Body::Empty)).await.map(|answer| answer.status()) };
                let backend = async {
                    for piece in format!("{before}{ANSWER}").as_bytes().chunks(step) {
                        // The client may close before everything is written.
                        let _ = far.write_all(piece).await;
                        yield_now().await;
                    }
                };
                let (answer, ()) = tokio::join!(asking, backend);
                assert_eq!(answer.is_ok(), fine, "{} bytes in steps of {step}: {answer:?}", before.len());
                assert!(fine || matches!(answer, Err(Http1Error::InvalidResponse(_))), "{answer:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn http1_request_body_broken_closes_connection() {
    struct Lies(Option<Bytes>);
    impl http_body::Body for Lies {
        type Data = Bytes;
        type Error = BodyError;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            std::task::Poll::Ready(self.0.take().map(|data| Ok(Frame::data(data))))
        }
        fn size_hint(&self) -> http_body::SizeHint {
            http_body::SizeHint::with_exact(5)
        }
    }
    locally(async {
        for body in [
            frames(vec![data("half"), Err("the client left".into())]),
            Body::stream(Lies(Some(Bytes::from_static(b"hell")))),
            Body::stream(Lies(Some(Bytes::from_static(b"hello!")))),
        ] {
            let (mut line, mut far, _open) = line();
            let answer = line.send(request(Method::POST, body)).await.map(drop);
            assert!(matches!(answer, Err(Http1Error::RequestBodyBroken)), "{answer:?}");
            drop(line);
            let mut written = String::new();
            far.read_to_string(&mut written).await.unwrap();
            assert!(!written.ends_with("hello!") && !written.ends_with("0\r\n\r\n"), "{written}");
        }
    })
    .await;
}

#[tokio::test]
async fn http1_response_before_request_body_end_is_returned() {
    locally(async {
        let (mut line, mut far, _open) = line();
        let endless = Body::stream(StreamBody::new(stream::repeat_with(|| {
            Ok::<_, BodyError>(Frame::data(Bytes::from_static(&[b'x'; 4096])))
        })));
        let backend = async {
            read_to(&mut far, "\r\n\r\n").await;
            far.write_all(b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 3\r\n\r\nno!").await.unwrap();
            drop(far);
        };
        let (answer, ()) = tokio::join!(send_and_read(&mut line, request(Method::POST, endless)), backend);
        assert_eq!(answer, Ok((413, "no!".to_owned(), None)));
        assert!(!line.stream.is_reusable());
    })
    .await;
}

#[tokio::test]
async fn http1_upgrade_passes_early_bytes_to_tunnel() {
    locally(async {
        const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nfirst ";
        let (mut line_of_other, mut far_of_other, _open_of_other) = line();
        far_of_other.write_all(SWITCH).await.unwrap();
        assert!(
            matches!(line_of_other.send(get()).await, Err(Http1Error::InvalidResponse(_))),
            "no upgrade was requested"
        );
        let (mut line, mut far, _open) = line();
        far.write_all(SWITCH).await.unwrap();
        let mut asks = get();
        asks.headers_mut().insert("upgrade", HeaderValue::from_static("x"));
        let response = line.send(asks).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert!(!line.stream.is_reusable(), "no request may follow");
        drop(response);
        let mut tunnel = line.into_upgraded().unwrap();
        far.write_all(b"second").await.unwrap();
        far.shutdown().await.unwrap();
        let mut heard = String::new();
        tunnel.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "first second");
        tunnel.write_all(b"back").await.unwrap();
        drop(tunnel);
        assert_eq!(read_to(&mut far, "back").await, "GET /a?b HTTP/1.1\r\nupgrade: x\r\n\r\nback");
    })
    .await;
}

#[tokio::test]
async fn http1_wait_ends_when_connections_are_aborted() {
    locally(async {
        let (mut line, far, open) = line();
        let asking = async {
            assert!(matches!(line.send(get()).await.map(drop), Err(Http1Error::EndpointUnresponsive)));
        };
        tokio::join!(asking, async {
            yield_now().await;
            open.abort_all();
        });
        assert!(open.has_at_least(0) && !open.has_at_least(1), "it is forgotten");
        drop(far);
        let failed = Http1Error::Io(io::ErrorKind::ConnectionReset.into());
        assert!(
            crate::egress::http::error_classification::is_connection_closed(&failed)
                && crate::egress::http::error_classification::is_connection_closed(&Http1Error::ConnectionClosed)
        );
        assert!(
            crate::egress::is_invalid_http(&Http1Error::InvalidResponse("x"))
                && !crate::egress::is_invalid_http(&Http1Error::ConnectionClosed)
        );
    })
    .await;
}
