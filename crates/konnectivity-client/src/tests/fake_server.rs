//! A Konnectivity server fully controlled by the test.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::{KonnectivityClient, KonnectivityTunnel, Packet, PacketDecoder};

/// Timeout of a dial.
pub(super) const DIAL_TIMEOUT: Duration = Duration::from_secs(30);

/// A client and the server it is connected to.
pub(super) struct FakeServer {
    pub(super) client: KonnectivityClient,
    calls: RefCell<mpsc::UnboundedReceiver<FakeStream>>,
    orders: Rc<Cell<Option<ServerCommand>>>,
    nudge: Rc<tokio::sync::Notify>,
    task: JoinHandle<()>,
}

/// Command to the whole server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerCommand {
    /// Send GOAWAY and continue with the open streams.
    GoAway,
    /// Close the connection.
    Exit,
    /// Stop responding without closing, as after a lost machine or network.
    Freeze,
}

/// Server side of a stream.
pub(super) struct FakeStream {
    pub(super) request: Request<()>,
    answer: SendResponse<Bytes>,
    send: Option<SendStream<Bytes>>,
    receive: RecvStream,
    frames: PacketDecoder,
    piece: Bytes,
}

/// Runs a test with a server that accepts at most `streams` concurrent streams.
pub(super) async fn with_limit<F: Future>(streams: Option<u32>, test: impl FnOnce(Rc<FakeServer>) -> F) -> F::Output {
    LocalSet::new().run_until(async { test(Rc::new(start(streams).await)).await }).await
}

/// Starts a server with a connected client, within a `LocalSet`.
pub(super) async fn start(streams: Option<u32>) -> FakeServer {
    let (ours, theirs) = tokio::io::duplex(256 << 10);
    let (sender, calls) = mpsc::unbounded_channel();
    let (orders, nudge) = (Rc::new(Cell::new(None)), Rc::new(tokio::sync::Notify::new()));
    let task = tokio::task::spawn_local(serve(theirs, streams, sender, orders.clone(), nudge.clone()));
    let client = KonnectivityClient::connect(ours, "localhost").await.unwrap();
    FakeServer { client, calls: RefCell::new(calls), orders, nudge, task }
}

/// Runs a test with a server.
pub(super) async fn with_server<F: Future>(test: impl FnOnce(Rc<FakeServer>) -> F) -> F::Output {
    with_limit(None, test).await
}

async fn serve(
    stream: DuplexStream,
    streams: Option<u32>,
    sender: mpsc::UnboundedSender<FakeStream>,
    orders: Rc<Cell<Option<ServerCommand>>>,
    nudge: Rc<tokio::sync::Notify>,
) {
    let mut builder = h2::server::Builder::new();
    // grpc-go returns connection capacity as bytes arrive, read or not.
    builder.initial_connection_window_size(64 << 20);
    if let Some(streams) = streams {
        builder.max_concurrent_streams(streams);
    }
    let mut connection = builder.handshake::<_, Bytes>(stream).await.unwrap();
    let mut pings = connection.ping_pong().unwrap();
    loop {
        tokio::select! {
            accepted = connection.accept() => {
                let Some(Ok((request, answer))) = accepted else { return };
                // As grpc-go, which measures the round trip; one PING at a time.
                let _ = pings.send_ping(h2::Ping::opaque());
                let (parts, receive) = request.into_parts();
                let request = Request::from_parts(parts, ());
                let call =
                    FakeStream { request, answer, send: None, receive, frames: PacketDecoder::default(), piece: Bytes::new() };
                let _ = sender.send(call);
            }
            _ = poll_fn(|cx| pings.poll_pong(cx)) => {}
            () = nudge.notified() => match orders.take() {
                Some(ServerCommand::GoAway) => connection.graceful_shutdown(),
                Some(ServerCommand::Exit) => return,
                Some(ServerCommand::Freeze) => std::future::pending().await,
                None => {}
            },
        }
    }
}

impl FakeServer {
    /// The next stream opened by the client.
    #[allow(clippy::await_holding_refcell_ref, reason = "only one test task waits at a time")]
    pub(super) async fn accept(&self) -> FakeStream {
        self.calls.borrow_mut().recv().await.unwrap()
    }

    /// Opens a tunnel as the connection with this number; returns both of its ends.
    pub(super) async fn open_tunnel(&self, connection: i64) -> (KonnectivityTunnel, FakeStream) {
        let (tunnel, call) = tokio::join!(self.client.dial("a:1", DIAL_TIMEOUT), async {
            let mut call = self.accept().await;
            call.open(connection).await;
            call
        });
        (tunnel.unwrap(), call)
    }

    /// Drops the client; the task ends with its connection.
    pub(super) fn into_task(self) -> JoinHandle<()> {
        self.task
    }

    pub(super) fn command(&self, order: ServerCommand) {
        self.orders.set(Some(order));
        self.nudge.notify_one();
    }
}

impl FakeStream {
    /// The next packet; `None` when the client ended the stream in order.
    pub(super) async fn packet(&mut self) -> Option<Packet> {
        self.try_packet().await.unwrap()
    }

    /// As [`FakeStream::packet`], with an error when the client reset the stream.
    pub(super) async fn try_packet(&mut self) -> Result<Option<Packet>, h2::Error> {
        loop {
            if let Some(read) = self.frames.decode(&mut self.piece).unwrap() {
                return Ok(Some(read.packet));
            }
            match self.receive.data().await {
                Some(piece) => {
                    self.piece = piece?;
                    self.receive.flow_control().release_capacity(self.piece.len()).unwrap();
                }
                None => {
                    assert!(self.frames.is_at_boundary());
                    return Ok(None);
                }
            }
        }
    }

    /// Expects a dial as the first packet; returns its address and id.
    pub(super) async fn expect_dial(&mut self) -> (String, i64) {
        match self.packet().await {
            Some(Packet::DialRequest { protocol, address, random }) => {
                assert_eq!(protocol, "tcp");
                assert!(random > 0);
                (address, random)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Accepts the dial with connection id `connection`.
    pub(super) async fn open(&mut self, connection: i64) {
        let (_, random) = self.expect_dial().await;
        self.send_packet(&Packet::DialResponse { error: String::new(), connection, random });
    }

    /// Data sent by the client on `connection` up to the next packet of another type, and that packet.
    pub(super) async fn data(&mut self, connection: i64) -> (Vec<u8>, Option<Packet>) {
        let mut all = Vec::new();
        loop {
            match self.packet().await {
                Some(Packet::Data { connection: theirs, data }) => {
                    assert_eq!(theirs, connection);
                    assert!(!data.is_empty() && data.len() <= 64 << 10);
                    all.extend_from_slice(&data);
                }
                other => return (all, other),
            }
        }
    }

    fn send(&mut self) -> &mut SendStream<Bytes> {
        self.send.get_or_insert_with(|| {
            let head = Response::builder().header("content-type", "application/grpc").body(()).unwrap();
            self.answer.send_response(head, false).unwrap()
        })
    }

    /// Sends a packet regardless of flow control.
    pub(super) fn send_packet(&mut self, packet: &Packet) {
        self.send_raw(packet.encode_frame());
    }

    pub(super) fn send_data_packet(&mut self, connection: i64, data: &[u8]) {
        self.send_packet(&Packet::Data { connection, data: Bytes::copy_from_slice(data) });
    }

    pub(super) fn send_raw(&mut self, bytes: impl Into<Bytes>) {
        self.send().send_data(bytes.into(), false).unwrap();
    }

    /// Sends a packet within flow control; false if the client reset the stream.
    pub(super) async fn send_with_flow_control(&mut self, packet: &Packet) -> bool {
        let mut bytes = packet.encode_frame();
        while !bytes.is_empty() {
            let send = self.send();
            send.reserve_capacity(bytes.len());
            let mut room = send.capacity();
            if room == 0 {
                room = match poll_fn(|cx| send.poll_capacity(cx)).await {
                    Some(Ok(room)) => room,
                    _ => return false,
                };
            }
            if send.send_data(bytes.split_to(room.min(bytes.len())), false).is_err() {
                return false;
            }
        }
        true
    }

    /// Ends the stream with a gRPC status.
    pub(super) fn end(&mut self, status: &'static str, message: &'static str) {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        trailers.insert("grpc-message", message.parse().unwrap());
        self.send().send_trailers(trailers).unwrap();
    }

    /// Ends the stream unless it has ended.
    pub(super) fn end_if_open(&mut self) {
        let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), "0".parse().unwrap())]);
        let _ = self.send().send_trailers(trailers);
    }

    /// Responds with a head only.
    pub(super) fn answer(&mut self, head: http::response::Builder) {
        self.answer.send_response(head.body(()).unwrap(), true).unwrap();
    }

    pub(super) fn reset(&mut self, reason: Reason) {
        self.answer.send_reset(reason);
    }
}
