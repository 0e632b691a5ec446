//! Raw backends: the test writes responses byte by byte or frame by frame.
//!
//! The gateway's own requests (probes, discovery) are answered properly, so that only the test's requests meet the
//! fault.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::server::TlsStream;

use crate::support::backend::{Backend, BackendSettings, api_resource_list};
use crate::support::fixtures::TestEnvironment;

/// User of the gateway's own requests.
const GATEWAY_USER: &str = "system:kube-aggregator";

/// An HTTP/1.1 connection after the head of a request was read.
pub(crate) struct RawConnection {
    pub(crate) stream: TlsStream<TcpStream>,
    /// The request's head, with its empty line.
    pub(crate) head: String,
    /// What came behind the head.
    pub(crate) buffered: Vec<u8>,
}

impl RawConnection {
    /// Reads heads until one is not of the gateway's own making.
    async fn accept(stream: TlsStream<TcpStream>) -> Option<RawConnection> {
        let mut talk = RawConnection { stream, head: String::new(), buffered: Vec::new() };
        loop {
            talk.next_head().await?;
            if !talk.head.contains(GATEWAY_USER) {
                return Some(talk);
            }
            let path = talk.head.split(' ').nth(1).unwrap_or_default();
            let text = api_resource_list(path).unwrap_or_else(|| "{}".to_owned());
            let head = format!("content-type: application/json\r\ncontent-length: {}", text.len());
            talk.write(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{text}")).await;
        }
    }

    /// The head of the next request; none when the gateway closed the connection.
    pub(crate) async fn next_head(&mut self) -> Option<()> {
        loop {
            if let Some(end) = self.buffered.windows(4).position(|four| four == b"\r\n\r\n") {
                self.head = String::from_utf8_lossy(&self.buffered[..end + 4]).into_owned();
                self.buffered.drain(..end + 4);
                return Some(());
            }
            self.read_more().await?;
        }
    }

    /// Reads what is there into `rest`; none at the end.
    pub(crate) async fn read_more(&mut self) -> Option<()> {
        match self.stream.read_buf(&mut self.buffered).await {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(()),
        }
    }

    /// Writes; whether the gateway still listens is its own affair.
    pub(crate) async fn write(&mut self, text: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(text.as_ref()).await;
        let _ = self.stream.flush().await;
    }

    /// Says goodbye as TLS wants it.
    pub(crate) async fn close(mut self) {
        let _ = self.stream.shutdown().await;
    }

    /// Cuts the connection without a word (RST).
    pub(crate) fn reset(self) {
        let (socket, _) = self.stream.into_inner();
        socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    }
}

/// A backend that speaks HTTP/1.1 in `reply`'s own words; the connection ends with it.
pub(crate) async fn http1<F>(
    environment: &TestEnvironment,
    settings: BackendSettings,
    reply: impl Fn(RawConnection) -> F + Send + Sync + 'static,
) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    let reply = Arc::new(reply);
    Backend::start_raw(environment, settings, move |stream| {
        let reply = reply.clone();
        async move {
            if let Some(talk) = RawConnection::accept(stream).await {
                reply(talk).await;
            }
        }
    })
    .await
}

/// What to do with an HTTP/2 connection as a whole.
pub(crate) enum ConnectionEnd {
    /// GOAWAY, and close when all is answered.
    Finish,
    /// GOAWAY with this reason, and close.
    Abort(h2::Reason),
    /// Close the socket (RST).
    Cut,
}

/// One HTTP/2 request at the level of frames.
pub(crate) struct H2Exchange {
    pub(crate) request: Request<h2::RecvStream>,
    pub(crate) respond: h2::server::SendResponse<Bytes>,
    pub(crate) connection: mpsc::UnboundedSender<ConnectionEnd>,
}

impl H2Exchange {
    /// The request's body, read to its end.
    pub(crate) async fn body(&mut self) -> Bytes {
        let body = self.request.body_mut();
        let mut bytes = Vec::new();
        while let Some(Ok(piece)) = body.data().await {
            let _ = body.flow_control().release_capacity(piece.len());
            bytes.extend_from_slice(&piece);
        }
        bytes.into()
    }

    /// Responds with `body`; errors are ignored.
    pub(crate) fn respond(&mut self, body: Bytes) {
        if let Ok(mut reply) = self.respond.send_response(Response::new(()), false) {
            let _ = reply.send_data(body, true);
        }
    }

    /// Sends the head of an answer and keeps the stream open.
    pub(crate) fn begin_response(&mut self, status: u16, headers: &[(&str, &str)]) -> h2::SendStream<Bytes> {
        let mut response = Response::builder().status(status);
        for (name, value) in headers {
            response = response.header(*name, *value);
        }
        self.respond.send_response(response.body(()).unwrap(), false).unwrap()
    }
}

/// A backend that speaks HTTP/2 stream by stream.
pub(crate) async fn http2<F>(
    environment: &TestEnvironment,
    reply: impl Fn(H2Exchange) -> F + Send + Sync + 'static,
) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    http2_with(environment, 250, reply).await
}

/// As [`http2`], with so many streams on a connection.
pub(crate) async fn http2_with<F>(
    environment: &TestEnvironment,
    streams: u32,
    reply: impl Fn(H2Exchange) -> F + Send + Sync + 'static,
) -> Backend
where
    F: Future<Output = ()> + Send + 'static,
{
    let reply = Arc::new(reply);
    Backend::start_raw(environment, BackendSettings::http2(), move |stream| serve(stream, streams, reply.clone())).await
}

async fn serve<F>(stream: TlsStream<TcpStream>, streams: u32, reply: Arc<impl Fn(H2Exchange) -> F>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let socket = std::os::fd::AsFd::as_fd(stream.get_ref().0).try_clone_to_owned().unwrap();
    let Ok(mut connection) = h2::server::Builder::new().max_concurrent_streams(streams).handshake(stream).await else {
        return;
    };
    let (sender, mut whole) = mpsc::unbounded_channel();
    // They end with the connection.
    let mut running = tokio::task::JoinSet::new();
    loop {
        let arrived = tokio::select! {
            arrived = connection.accept() => arrived,
            Some(whole) = whole.recv() => {
                match whole {
                    ConnectionEnd::Finish => connection.graceful_shutdown(),
                    ConnectionEnd::Abort(reason) => connection.abrupt_shutdown(reason),
                    ConnectionEnd::Cut => {
                        socket2::SockRef::from(&socket).set_linger(Some(std::time::Duration::ZERO)).unwrap();
                        return;
                    }
                }
                continue;
            }
        };
        let Some(Ok((request, mut respond))) = arrived else { return };
        if request.headers().get("x-remote-user").is_some_and(|user| user == GATEWAY_USER) {
            let _ = respond.send_response(Response::new(()), true);
            continue;
        }
        running.spawn(reply(H2Exchange { request, respond, connection: sender.clone() }));
    }
}

/// A frame of HTTP/2, as it is on the wire.
#[derive(Debug)]
pub(crate) struct RawFrame {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

impl RawFrame {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
    pub(crate) const END_STREAM: u8 = 1;
    pub(crate) const END_HEADERS: u8 = 4;

    pub(crate) fn new(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> RawFrame {
        RawFrame { kind, flags, stream, payload: payload.to_vec() }
    }

    pub(crate) fn ends_stream(&self) -> bool {
        matches!(self.kind, RawFrame::DATA | RawFrame::HEADERS) && self.flags & RawFrame::END_STREAM != 0
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = (self.payload.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

/// An HTTP/2 connection in frames; its preface is done, and an empty SETTINGS is sent.
pub(crate) struct RawH2Connection(pub(crate) TlsStream<TcpStream>);

impl RawH2Connection {
    pub(crate) async fn accept(mut stream: TlsStream<TcpStream>) -> Option<RawH2Connection> {
        let mut preface = [0; 24];
        stream.read_exact(&mut preface).await.ok()?;
        let mut frames = RawH2Connection(stream);
        frames.send(RawFrame::new(RawFrame::SETTINGS, 0, 0, &[])).await;
        Some(frames)
    }

    /// The next frame; SETTINGS and PING are answered here.
    pub(crate) async fn next_frame(&mut self) -> Option<RawFrame> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let mut payload = vec![0; length];
            self.0.read_exact(&mut payload).await.ok()?;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
            let frame = RawFrame { kind: head[3], flags: head[4], stream, payload };
            match frame.kind {
                RawFrame::SETTINGS | RawFrame::PING if frame.flags & 1 == 0 => {
                    let payload = if frame.kind == RawFrame::PING { frame.payload } else { Vec::new() };
                    self.send(RawFrame { kind: frame.kind, flags: 1, stream: 0, payload }).await;
                }
                RawFrame::SETTINGS | RawFrame::PING | RawFrame::WINDOW_UPDATE => {}
                _ => return Some(frame),
            }
        }
    }

    pub(crate) async fn send(&mut self, frame: RawFrame) {
        self.write(&frame.encode()).await;
    }

    pub(crate) async fn write(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes).await;
        let _ = self.0.flush().await;
    }

    /// `:status: 200` and nothing else.
    pub(crate) async fn respond_ok(&mut self, stream: u32) {
        self.send(RawFrame::new(RawFrame::HEADERS, RawFrame::END_HEADERS | RawFrame::END_STREAM, stream, &[0x88]))
            .await;
    }
}
