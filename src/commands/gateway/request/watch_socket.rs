//! Watches over WebSocket: one event in each message (`HandleWS` in `k8s.io/apiserver/pkg/endpoints/handlers/watch.go`).

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{
    CONNECTION, CONTENT_TYPE, HeaderName, ORIGIN, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use kubeapi::{GoQuoted, RequestInfo, Status};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::response::ResponseBody;
use super::target::client_error;
use crate::listen::{ConnectionHandle, UpgradedConnection};
use crate::message::websocket::{
    CLOSE_NORMAL, CLOSE_PROTOCOL_ERROR, ClientControl, ClientFrames, WebSocketFrame, accept_websocket_key,
};
use crate::message::{Body, IncomingBody, Refusal, split_watch_events, upgrade_protocol};
use crate::observe::access::{AccessRecord, EndReason};

/// The version of the protocol that is spoken.
const WEBSOCKET_VERSION: &str = "13";

/// Bytes of the client that are read at once. What it sends is dropped.
const READ_BYTES: usize = 2 << 10;

/// How long the client has to take the close frame and to close its side.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The accepted handshake of a watch over WebSocket.
pub(super) struct WatchSocket {
    upgrade: OnUpgrade,
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl WatchSocket {
    /// The handshake of a request for objects, if it asks for a WebSocket; none if it asks for no upgrade, or for one of a
    /// stream that is not served, whose answer is 404.
    ///
    /// # Errors
    /// 400 for an upgrade that is not served, and for a handshake that is not complete; 403 without a valid `Origin`, as
    /// upstream (`checkOrigin` in `golang.org/x/net/websocket`).
    pub(super) fn accept(
        method: &Method,
        info: &RequestInfo<'_>,
        request: &mut Request<IncomingBody>,
    ) -> Result<Option<WatchSocket>, Refusal> {
        let Some(protocol) = upgrade_protocol(request.headers()) else { return Ok(None) };
        if info.verb != "watch" && info.is_long_running() {
            return Ok(None);
        }
        if info.verb != "watch" || !protocol.eq_ignore_ascii_case("websocket") {
            return Err(upgrade_refusal(protocol));
        }
        let accepted = accept_handshake(method, request.version(), request.headers());
        let (accept, protocol) = accepted.map_err(client_error)?;
        Ok(Some(WatchSocket { upgrade: hyper::upgrade::on(request), accept, protocol }))
    }

    /// Answers with the events of `watch`, one in each message: text of JSON, else bytes. A refused watch is an ordinary
    /// response.
    pub(super) fn respond(self, watch: Response<Body>, connection: &ConnectionHandle) -> Response<ResponseBody> {
        let (head, events) = watch.into_parts();
        if head.status != StatusCode::OK || !matches!(events, Body::Stream(_)) {
            return Response::from_parts(head, ResponseBody::Local(events));
        }
        let content_type = head.headers.get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
        let is_protobuf = content_type.starts_with(b"application/vnd.kubernetes.protobuf");
        let WatchSocket { upgrade, accept, protocol } = self;
        let connection = connection.upgrade();
        let start = move |record| {
            tokio::task::spawn_local(async move {
                if let Ok(client) = upgrade.await {
                    let stream = EventStream { events, is_protobuf, record };
                    serve_socket(TokioIo::new(client), stream, connection).await;
                }
            });
        };
        let mut response = Response::new(ResponseBody::Tunnel(Box::new(start)));
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        let headers = response.headers_mut();
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(SEC_WEBSOCKET_ACCEPT, accept);
        if let Some(protocol) = protocol {
            headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// Checks that a request that is answered locally, and not for objects, asks for no upgrade.
///
/// # Errors
/// 400 if it does.
pub(super) fn refuse_upgrade(headers: &HeaderMap) -> Result<(), Refusal> {
    upgrade_protocol(headers).map_or(Ok(()), |protocol| Err(upgrade_refusal(protocol)))
}

fn upgrade_refusal(protocol: &str) -> Refusal {
    let protocol = GoQuoted(protocol);
    let text = format!("no upgrade to {protocol} here: only a watch can be upgraded, and only to websocket");
    client_error(Status::bad_request(text))
}

/// Checks a handshake as `golang.org/x/net/websocket` does; returns the accepted key, and the protocol of a client that asks
/// for one.
fn accept_handshake(
    method: &Method,
    version: Version,
    headers: &HeaderMap,
) -> Result<(HeaderValue, Option<HeaderValue>), Status> {
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if *method != Method::GET || version != Version::HTTP_11 {
        return Err(Status::bad_request("a WebSocket handshake is a GET over HTTP/1.1"));
    }
    let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
    if key.is_empty() {
        return Err(Status::bad_request("the WebSocket handshake has no Sec-WebSocket-Key"));
    }
    if text(&SEC_WEBSOCKET_VERSION) != WEBSOCKET_VERSION {
        return Err(Status::bad_request("the WebSocket handshake must have Sec-WebSocket-Version: 13"));
    }
    if !is_request_uri(text(&ORIGIN)) {
        let why = "a watch over WebSocket needs a header Origin with a URL, as browsers send it";
        return Err(Status::forbidden(why));
    }
    let protocols =
        headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let mut protocols = protocols.map(<[u8]>::trim_ascii).filter(|protocol| !protocol.is_empty());
    let protocol = protocols.next().and_then(|protocol| HeaderValue::from_bytes(protocol).ok());
    if protocols.next().is_some() {
        return Err(Status::bad_request("a watch over WebSocket has one subprotocol or none"));
    }
    let accept = HeaderValue::try_from(accept_websocket_key(key));
    let accept = accept.map_err(|_| Status::bad_request("the WebSocket handshake has an invalid key"))?;
    Ok((accept, protocol))
}

/// Whether Go's `url.ParseRequestURI` takes the text: an absolute URL or path.
fn is_request_uri(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    let has_scheme = scheme.starts_with(|letter: char| letter.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter));
    text.starts_with('/') || has_scheme
}

/// The events of a watch, and the record of its request.
struct EventStream {
    events: Body,
    is_protobuf: bool,
    record: AccessRecord,
}

impl EventStream {
    /// The frames of the next events; none at the end. Cancellation loses nothing.
    async fn next_frames(&mut self) -> Option<BytesMut> {
        let Some(Ok(frame)) = self.events.frame().await else { return None };
        let events = frame.into_data().unwrap_or_else(|_| Bytes::new());
        let (frame_type, head) = if self.is_protobuf { (WebSocketFrame::Binary, 4) } else { (WebSocketFrame::Text, 0) };
        let mut frames = BytesMut::with_capacity(events.len() + 16);
        for event in split_watch_events(&events, self.is_protobuf) {
            frame_type.write(event.get(head..).unwrap_or_default(), &mut frames);
            self.record.record_watch_event(event);
        }
        Some(frames)
    }
}

/// Sends events until the watch ends, the client closes the connection or it must be closed. The next events are taken
/// when the client has taken the last ones, so that a slow one costs no memory.
async fn serve_socket(
    client: impl AsyncRead + AsyncWrite + Unpin,
    mut stream: EventStream,
    connection: UpgradedConnection,
) {
    let (mut reader, writer) = tokio::io::split(client);
    let mut sender = FrameSender { writer, outgoing: BytesMut::new(), is_flushed: true };
    let (mut frames, mut incoming) = (ClientFrames::default(), BytesMut::with_capacity(READ_BYTES));
    let mut pong: Option<Vec<u8>> = None;
    let (end, code) = loop {
        if let Some(payload) = pong.take_if(|_| sender.is_idle()) {
            WebSocketFrame::Pong.write(&payload, &mut sender.outgoing);
        }
        let is_idle = sender.is_idle();
        tokio::select! {
            biased;
            () = connection.close_requested() => {
                stream.record.set_end(EndReason::Cut);
                return;
            }
            sent = sender.send_some(), if !is_idle => {
                if sent.is_err() {
                    return;
                }
            }
            read = reader.read_buf(&mut incoming) => {
                if !matches!(read, Ok(1..)) {
                    return;
                }
                match frames.read(&incoming) {
                    Ok(Some(ClientControl::Ping(payload))) => pong = Some(payload),
                    Ok(Some(ClientControl::Close)) => break (EndReason::ClientGone, CLOSE_NORMAL),
                    Ok(None) => {}
                    Err(_) => break (EndReason::ClientGone, CLOSE_PROTOCOL_ERROR),
                }
                incoming.clear();
            }
            frames = stream.next_frames(), if is_idle => match frames {
                Some(frames) => sender.outgoing = frames,
                None => break (EndReason::Complete, CLOSE_NORMAL),
            },
        }
    };
    stream.record.set_end(end);
    WebSocketFrame::Close.write(&code.to_be_bytes(), &mut sender.outgoing);
    let closing = async {
        while !sender.is_idle() {
            sender.send_some().await?;
        }
        sender.writer.shutdown().await?;
        // Until the client closes its side: the close frame would be lost if bytes of the client were not read.
        while reader.read(&mut [0; READ_BYTES]).await? > 0 {}
        Ok::<_, std::io::Error>(())
    };
    tokio::select! {
        () = connection.close_requested() => {}
        _ = tokio::time::timeout(CLOSE_TIMEOUT, closing) => {}
    }
}

/// The sending side: the frames that the client has not taken.
struct FrameSender<W> {
    writer: W,
    outgoing: BytesMut,
    is_flushed: bool,
}

impl<W: AsyncWrite + Unpin> FrameSender<W> {
    fn is_idle(&self) -> bool {
        self.outgoing.is_empty() && self.is_flushed
    }

    /// Writes what the client takes. Cancellation loses nothing.
    async fn send_some(&mut self) -> std::io::Result<()> {
        if !self.outgoing.is_empty() {
            self.is_flushed = false;
            self.writer.write_buf(&mut self.outgoing).await?;
        }
        if self.outgoing.is_empty() {
            self.writer.flush().await?;
            self.is_flushed = true;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::test_headers;

    fn handshake(lines: &[(&str, &str)]) -> Result<Option<String>, (u16, String)> {
        let accepted = accept_handshake(&Method::GET, Version::HTTP_11, &test_headers(lines));
        let accepted = accepted.map_err(|status| (status.code, status.message))?;
        assert_eq!(accepted.0, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
        Ok(accepted.1.map(|protocol| protocol.to_str().unwrap().to_owned()))
    }

    #[test]
    fn watch_socket_handshake_accepted_as_upstream() {
        let key = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let version = ("sec-websocket-version", "13");
        let origin = ("origin", "https://example.com");
        let protocol = |value| ("sec-websocket-protocol", value);
        assert_eq!(handshake(&[key, version, origin]), Ok(None));
        assert_eq!(handshake(&[key, version, origin, protocol("binary.k8s.io")]), Ok(Some("binary.k8s.io".to_owned())));
        let refused = |lines: &[(&str, &str)]| handshake(lines).unwrap_err().0;
        assert_eq!(refused(&[version, origin]), 400);
        assert_eq!(refused(&[key, origin]), 400);
        assert_eq!(refused(&[key, ("sec-websocket-version", "8"), origin]), 400);
        assert_eq!(refused(&[key, version, origin, protocol("a, b")]), 400);
        assert_eq!(refused(&[key, version]), 403);
        assert_eq!(refused(&[key, version, ("origin", "null")]), 403);
        for (method, http) in [(Method::POST, Version::HTTP_11), (Method::GET, Version::HTTP_10)] {
            let headers = test_headers(&[key, version, origin]);
            assert_eq!(accept_handshake(&method, http, &headers).unwrap_err().code, 400);
        }
    }

    #[test]
    fn origin_is_an_absolute_url_or_path() {
        for text in ["https://example.com", "http://[::1]:80", "file:///", "/x", "chrome-extension://id", "https:"] {
            assert!(is_request_uri(text), "{text}");
        }
        for text in ["", "null", "example.com", "://x", "1http://x"] {
            assert!(!is_request_uri(text), "{text}");
        }
    }
}
