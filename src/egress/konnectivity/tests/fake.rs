//! A Konnectivity server fully controlled by the test.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Request, Response};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet};

use crate::egress::konnectivity::{Client, Frames, Packet};

/// A client and the server it is connected to.
pub(super) struct Fake {
    pub(super) client: Client,
    calls: RefCell<mpsc::UnboundedReceiver<Call>>,
    orders: Rc<Cell<Option<Order>>>,
    nudge: Rc<tokio::sync::Notify>,
    task: JoinHandle<()>,
}

/// Command to the whole server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Send GOAWAY and continue with the open streams.
    GoAway,
    /// Close the connection.
    Die,
    /// Stop responding without closing, as after a lost machine or network.
    Freeze,
}

/// Server side of a stream.
pub(super) struct Call {
    pub(super) request: Request<()>,
    answer: SendResponse<Bytes>,
    send: Option<SendStream<Bytes>>,
    receive: RecvStream,
    frames: Frames,
    piece: Bytes,
}

/// Runs a test with a server that accepts at most `streams` concurrent streams.
pub(super) async fn with_limit<F: Future>(streams: Option<u32>, test: impl FnOnce(Rc<Fake>) -> F) -> F::Output {
    LocalSet::new().run_until(async { test(Rc::new(start(streams).await)).await }).await
}

/// Starts a server with a connected client, within a `LocalSet`.
pub(super) async fn start(streams: Option<u32>) -> Fake {
    let (ours, theirs) = tokio::io::duplex(256 << 10);
    let (sender, calls) = mpsc::unbounded_channel();
    let (orders, nudge) = (Rc::new(Cell::new(None)), Rc::new(tokio::sync::Notify::new()));
    let task = tokio::task::spawn_local(serve(theirs, streams, sender, orders.clone(), nudge.clone()));
    let client = Client::connect(ours, "localhost").await.unwrap();
    Fake { client, calls: RefCell::new(calls), orders, nudge, task }
}

/// Runs a test with a server.
pub(super) async fn with_server<F: Future>(test: impl FnOnce(Rc<Fake>) -> F) -> F::Output {
    with_limit(None, test).await
}

async fn serve(
    stream: DuplexStream,
    streams: Option<u32>,
    sender: mpsc::UnboundedSender<Call>,
    orders: Rc<Cell<Option<Order>>>,
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
                    Call { request, answer, send: None, receive, frames: Frames::default(), piece: Bytes::new() };
                let _ = sender.send(call);
            }
            _ = poll_fn(|cx| pings.poll_pong(cx)) => {}
            () = nudge.notified() => match orders.take() {
                Some(Order::GoAway) => connection.graceful_shutdown(),
                Some(Order::Die) => return,
                Some(Order::Freeze) => std::future::pending().await,
                None => {}
            },
        }
    }
}

impl Fake {
    /// The next stream opened by the client.
    #[allow(clippy::await_holding_refcell_ref, reason = "only one test task waits at a time")]
    pub(super) async fn accept(&self) -> Call {
        self.calls.borrow_mut().recv().await.unwrap()
    }

    /// Drops the client; the task ends with its connection.
    pub(super) fn let_go(self) -> JoinHandle<()> {
        self.task
    }

    pub(super) fn order(&self, order: Order) {
        self.orders.set(Some(order));
        self.nudge.notify_one();
    }
}

impl Call {
    /// The next packet; `None` when the client ended the stream in order.
    pub(super) async fn packet(&mut self) -> Option<Packet> {
        self.try_packet().await.unwrap()
    }

    /// As [`Call::packet`], with an error when the client reset the stream.
    pub(super) async fn try_packet(&mut self) -> Result<Option<Packet>, h2::Error> {
        loop {
            if let Some(read) = self.frames.read(&mut self.piece).unwrap() {
                return Ok(Some(read.packet));
            }
            match self.receive.data().await {
                Some(piece) => {
                    self.piece = piece?;
                    self.receive.flow_control().release_capacity(self.piece.len()).unwrap();
                }
                None => {
                    assert!(self.frames.is_between());
                    return Ok(None);
                }
            }
        }
    }

    /// Expects a dial as the first packet; returns its address and id.
    pub(super) async fn dialled(&mut self) -> (String, i64) {
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
        let (_, random) = self.dialled().await;
        self.say(&Packet::DialResponse { error: String::new(), connection, random });
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
    pub(super) fn say(&mut self, packet: &Packet) {
        self.raw(packet.frame());
    }

    pub(super) fn say_data(&mut self, connection: i64, data: &[u8]) {
        self.say(&Packet::Data { connection, data: Bytes::copy_from_slice(data) });
    }

    pub(super) fn raw(&mut self, bytes: impl Into<Bytes>) {
        self.send().send_data(bytes.into(), false).unwrap();
    }

    /// Sends a packet within flow control; false if the client reset the stream.
    pub(super) async fn pour(&mut self, packet: &Packet) -> bool {
        let mut bytes = packet.frame();
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
