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
use crate::egress::carrier::Carrier;
use crate::egress::read_ahead::ReadAhead;
use crate::message::BodyError;

fn line() -> (Line, UnixStream, Open) {
    let (near, far) = UnixStream::pair().unwrap();
    let open = Open::default();
    (Line::new(Channel::Plain(ReadAhead::new(Carrier::Unix(near))), &open), far, open)
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
async fn whole(line: &mut Line, request: Request<Body>) -> Result<(u16, String, Option<HeaderMap>), String> {
    let response = line.ask(request).await.map_err(|fault| format!("head: {fault}"))?;
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
async fn answers_are_whole_however_they_are_cut_and_the_connection_goes_on() {
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
                    let (answer, ()) = tokio::join!(whole(&mut line, get()), backend);
                    assert_eq!(answer.as_ref(), Ok(&expected), "{text:?} cut at {cut}");
                    assert_eq!(line.wire.is_over(), goes_on, "{text:?} cut at {cut}");
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
async fn half_an_answer_never_passes_for_whole_unless_its_end_is_the_connections() {
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
                let answer = whole(&mut line, get()).await;
                assert_eq!(answer.is_ok(), least > 0 && cut >= least, "{text:?} cut at {cut}: {answer:?}");
                assert!(!line.wire.is_over());
            }
        }
        // Bytes after a response are not part of the next one.
        let (mut line, mut far, _open) = line();
        far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 200 OK\r\n").await.unwrap();
        assert_eq!(whole(&mut line, get()).await, Ok((200, "hi".to_owned(), None)));
        assert!(!line.wire.is_over());
    })
    .await;
}

#[tokio::test]
async fn an_idle_connection_that_was_closed_or_spoke_is_not_taken() {
    locally(async {
        let idle = Idle::default();
        let mut kept = Vec::new();
        for _ in 0..3 {
            let (mut line, mut far, open) = line();
            far.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").await.unwrap();
            whole(&mut line, get()).await.unwrap();
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
        idle.sweep(Instant::now() + IDLE);
        assert_eq!(idle.len(), 0);
        for (far, _) in &mut kept {
            read_to(far, "<nothing ends so>").await;
        }
    })
    .await;
}

#[tokio::test]
async fn bodies_are_written_as_their_heads_say() {
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
            whole(&mut line, request).await.unwrap();
            assert!(line.wire.is_over());
            drop(line);
            let mut written = String::new();
            far.read_to_string(&mut written).await.unwrap();
            assert_eq!(written, expected);
        }
    })
    .await;
}

#[tokio::test]
async fn a_large_body_waits_for_who_reads_it_and_comes_whole() {
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
                let response = line.ask(request).await.unwrap();
                assert_eq!(response.status(), 201);
            };
            let backend = async {
                read_to(&mut far, "\r\n\r\n").await;
                let mut got = Vec::new();
                let mut coding = Chunks::default();
                while got.len() < expected.len() {
                    let mut piece = vec![0; 7000];
                    let n = far.read(&mut piece).await.unwrap();
                    assert!(n > 0);
                    if !chunks {
                        got.extend_from_slice(&piece[..n]);
                        continue;
                    }
                    let mut piece = Bytes::copy_from_slice(&piece[..n]);
                    while let Step::Data(data) = coding.read(&mut piece).unwrap() {
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
async fn empty_lines_before_a_status_line_are_skipped_to_a_bound() {
    const ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    locally(async {
        for (before, fine) in [("\r\n".repeat(8), true), ("\n".repeat(16), true), ("\r\n".repeat(9), false)] {
            for step in [1, 7, 1000] {
                let (mut line, mut far, _open) = line();
                let asking = async { line.ask(request(Method::GET, Body::Empty)).await.map(|answer| answer.status()) };
                let backend = async {
                    for piece in format!("{before}{ANSWER}").as_bytes().chunks(step) {
                        // The client may close before everything is written.
                        let _ = far.write_all(piece).await;
                        yield_now().await;
                    }
                };
                let (answer, ()) = tokio::join!(asking, backend);
                assert_eq!(answer.is_ok(), fine, "{} bytes in steps of {step}: {answer:?}", before.len());
                assert!(fine || matches!(answer, Err(Fault::Nonsense(_))), "{answer:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_body_that_breaks_off_or_lies_about_its_length_ends_the_connection() {
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
            let answer = line.ask(request(Method::POST, body)).await.map(drop);
            assert!(matches!(answer, Err(Fault::Cut)), "{answer:?}");
            drop(line);
            let mut written = String::new();
            far.read_to_string(&mut written).await.unwrap();
            assert!(!written.ends_with("hello!") && !written.ends_with("0\r\n\r\n"), "{written}");
        }
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_comes_before_the_backend_stops_reading_is_not_lost() {
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
        let (answer, ()) = tokio::join!(whole(&mut line, request(Method::POST, endless)), backend);
        assert_eq!(answer, Ok((413, "no!".to_owned(), None)));
        assert!(!line.wire.is_over());
    })
    .await;
}

#[tokio::test]
async fn what_comes_with_a_switch_is_the_tunnels() {
    locally(async {
        const SWITCH: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\nfirst ";
        let (mut line_of_other, mut far_of_other, _open_of_other) = line();
        far_of_other.write_all(SWITCH).await.unwrap();
        assert!(matches!(line_of_other.ask(get()).await, Err(Fault::Nonsense(_))), "no upgrade was requested");
        let (mut line, mut far, _open) = line();
        far.write_all(SWITCH).await.unwrap();
        let mut asks = get();
        asks.headers_mut().insert("upgrade", HeaderValue::from_static("x"));
        let response = line.ask(asks).await.unwrap();
        assert_eq!(response.status(), StatusCode::SWITCHING_PROTOCOLS);
        assert!(!line.wire.is_over(), "no request may follow");
        drop(response);
        let mut tunnel = line.switch().unwrap();
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
async fn who_waits_on_a_connection_that_is_given_up_waits_no_more() {
    locally(async {
        let (mut line, far, open) = line();
        let asking = async {
            assert!(matches!(line.ask(get()).await.map(drop), Err(Fault::Unanswered)));
        };
        tokio::join!(asking, async {
            yield_now().await;
            open.cut();
        });
        assert!(open.has(0) && !open.has(1), "it is forgotten");
        drop(far);
        let failed = Fault::Io(io::ErrorKind::ConnectionReset.into());
        assert!(crate::egress::refusal::is_end(&failed) && crate::egress::refusal::is_end(&Fault::Ended));
        assert!(crate::egress::is_nonsense(&Fault::Nonsense("x")) && !crate::egress::is_nonsense(&Fault::Ended));
    })
    .await;
}
