//! One HTTP/2 connection to a Konnectivity server, and dials through it.

use std::cell::Cell;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use h2::client::{Builder, Connection, SendRequest};
use http::header::{CONTENT_TYPE, TE, USER_AGENT};
use http::{Request, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep, timeout};

use super::LOG_TARGET;
use super::close::{StreamClose, close_stream};
use super::connection_state::{SWEEP_INTERVAL, TunnelConnectionState};
use super::counted_stream::CountedStream;
use super::failure::{TunnelError, TunnelFailure};
use super::packet::Packet;
use super::proxy_stream::ProxyStream;
use super::slow_reader::WINDOW;
use super::tunnel::KonnectivityTunnel;

/// Connection window: HTTP/2's maximum, so that one tunnel's unread bytes do not block the others.
const CONNECTION_WINDOW: u32 = (1 << 31) - 1;
/// Bytes of one tunnel that may wait for the socket.
const SEND_BUFFER: usize = 256 << 10;
/// Limit of a response's uncompressed header list, in bytes.
const MAX_HEADER_BYTES: u32 = 64 << 10;
/// Number of locally reset streams for which late frames are still tolerated.
const RESET_STREAMS: usize = 1000;
/// How long a slow reader may hold up other tunnels, for [`KonnectivityClient::connect`]. The reference's client has
/// the same limit: its server delivers nothing to other tunnels meanwhile.
const SLOW_READER_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a Konnectivity server. After the last handle is dropped, it is closed with its last tunnel.
#[derive(Clone)]
pub struct KonnectivityClient {
    sender: SendRequest<Bytes>,
    uri: Uri,
    shared: Arc<TunnelConnectionState>,
}

impl KonnectivityClient {
    /// Starts HTTP/2 over `carrier` and waits for the server's SETTINGS; the caller limits the time. `authority` is
    /// `localhost` on a Unix socket, otherwise the server's host and port, with the prefix `https://` if `carrier` is
    /// TLS. Spawns a local task, so call it within a `LocalSet`.
    ///
    /// # Errors
    /// The peer does not speak HTTP/2, or closed the connection.
    pub async fn connect<T>(carrier: T, authority: &str) -> Result<KonnectivityClient, TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        KonnectivityClient::connect_with(carrier, authority, SLOW_READER_TIMEOUT).await
    }

    /// As [`KonnectivityClient::connect`]; a tunnel is closed if its reader leaves 4 MiB unread for `stall`.
    ///
    /// # Errors
    /// As [`KonnectivityClient::connect`].
    pub async fn connect_with<T>(
        carrier: T,
        authority: &str,
        stall: Duration,
    ) -> Result<KonnectivityClient, TunnelError>
    where
        T: AsyncRead + AsyncWrite + Unpin + 'static,
    {
        let broken = |why: &dyn std::fmt::Display| TunnelError::new(TunnelFailure::Protocol, why);
        let (scheme, authority) = authority.split_once("://").unwrap_or(("http", authority));
        let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query("/ProxyService/Proxy");
        let uri = uri.build().map_err(|error: http::Error| broken(&format_args!("{authority}: {error}")))?;
        let read_count = Rc::new(Cell::new(0));
        let carrier = CountedStream { stream: carrier, read_count: read_count.clone() };
        let (sender, connection) = Builder::new()
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_window_size(WINDOW as u32)
            // None before the server's SETTINGS: nothing is sent to a server that does not speak HTTP/2.
            .initial_max_send_streams(0)
            .max_send_buffer_size(SEND_BUFFER)
            .max_header_list_size(MAX_HEADER_BYTES)
            .max_concurrent_reset_streams(RESET_STREAMS)
            .max_local_error_reset_streams(None)
            .enable_push(false)
            .handshake(carrier)
            .await
            .map_err(|error| broken(&error))?;
        let mut connection = Box::pin(connection);
        poll_fn(|cx| match connection.as_mut().poll(cx) {
            Poll::Ready(Ok(())) => Poll::Ready(Err(broken(&"closed before SETTINGS"))),
            Poll::Ready(Err(error)) => Poll::Ready(Err(broken(&error))),
            Poll::Pending if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
            Poll::Pending => Poll::Pending,
        })
        .await?;
        let shared = Arc::new(TunnelConnectionState::new(connection.max_concurrent_send_streams(), stall));
        tokio::task::spawn_local(serve(connection, read_count, EndedOnDrop(shared.clone())));
        Ok(KonnectivityClient { sender, uri, shared })
    }

    /// Opens a tunnel to `address`, a host and port that the agent resolves. Dropping the future cancels the dial.
    ///
    /// # Errors
    /// The agent cannot connect, there is no agent, or no response arrived within `patience`.
    pub async fn dial(&self, address: &str, patience: Duration) -> Result<KonnectivityTunnel, TunnelError> {
        timeout(patience, self.attempt(address)).await.unwrap_or_else(|_| {
            let why = format_args!("dialing {address}: no response within {patience:?}").to_string();
            Err(TunnelError::new(TunnelFailure::NoAnswer, why))
        })
    }

    async fn attempt(&self, address: &str) -> Result<KonnectivityTunnel, TunnelError> {
        let not_begun = |error: h2::Error| self.not_started(&error);
        let request = Request::post(self.uri.clone())
            .header(CONTENT_TYPE, "application/grpc")
            .header(TE, "trailers")
            .header(USER_AGENT, concat!("narthex/", env!("CARGO_PKG_VERSION")))
            .body(())
            .map_err(|error| TunnelError::new(TunnelFailure::Protocol, error))?;
        let mut sender = self.sender.clone().ready().await.map_err(not_begun)?;
        let (answer, send) = sender.send_request(request, false).map_err(not_begun)?;
        let mut dial = PendingDial {
            call: Some(ProxyStream::new(answer, send, &self.shared.streams)),
            random: random_dial_id(),
            shared: &self.shared,
        };
        dial.send_request(address)?;
        let connection = poll_fn(|cx| dial.poll_response(cx, address)).await?;
        dial.into_tunnel(connection)
    }

    fn not_started(&self, error: &h2::Error) -> TunnelError {
        let ended = self.shared.ended.lock();
        let why = ended.as_ref().map_or_else(|| error.to_string(), Clone::clone);
        TunnelError::new(TunnelFailure::NotStarted, why)
    }

    /// Whether the connection is closed, with all its tunnels.
    pub fn is_closed(&self) -> bool {
        self.shared.ended.lock().is_some()
    }

    /// Whether the connection accepts dials: open, no GOAWAY received, and below the stream limit.
    pub fn is_accepting_dials(&self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        // `PendingRequest` means waiting for a free stream.
        !self.is_closed()
            && self.free_streams() > 0
            && !matches!(self.sender.clone().poll_ready(&mut cx), Poll::Ready(Err(_)))
    }

    /// Streams that could be opened now; most servers set no limit.
    pub fn free_streams(&self) -> usize {
        self.shared.limit.load(Relaxed).saturating_sub(self.streams())
    }

    /// Open streams: tunnels, dials, and streams that are being closed.
    pub fn streams(&self) -> usize {
        self.shared.streams.open()
    }

    /// Tunnels with a writer that has waited for more than two seconds. An agent of the reference that is blocked on
    /// one target that does not read accepts data for no other tunnel.
    pub fn stuck_tunnels(&self) -> usize {
        self.shared.stuck_tunnels.load(Relaxed)
    }

    /// Number of messages from the server. If unchanged after an unanswered dial, server or agent may be gone.
    pub fn message_count(&self) -> u64 {
        self.shared.streams.messages()
    }

    /// Number of reads from the server, HTTP/2's own frames included. If unchanged a moment after a dial, the
    /// connection may be dead: a server of the reference, which is grpc-go, answers the bytes of a dial with a PING
    /// (`internal/transport/bdp_estimator.go`), however long its agent takes.
    pub fn read_count(&self) -> u64 {
        self.shared.read_count.load(Relaxed)
    }

    /// Whether both handles are of the same connection.
    pub fn is_same_connection(&self, other: &KonnectivityClient) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

/// A dial without a response yet; dropping it cancels the dial.
struct PendingDial<'c> {
    call: Option<ProxyStream>,
    random: i64,
    shared: &'c Arc<TunnelConnectionState>,
}

impl PendingDial<'_> {
    fn send_request(&mut self, address: &str) -> Result<(), TunnelError> {
        let request =
            Packet::DialRequest { protocol: "tcp".to_owned(), address: address.to_owned(), random: self.random };
        let Some(call) = &self.call else { return Ok(()) };
        self.shared.track(&call.handle);
        call.handle.send(&request, false)
    }

    /// Ready with the agent's connection id. Reads no packet after the response: data that the target sends at once
    /// comes behind it and is left to the tunnel.
    fn poll_response(&mut self, cx: &mut Context<'_>, address: &str) -> Poll<Result<i64, TunnelError>> {
        let lost = |why: &str| TunnelError::new(TunnelFailure::Lost, format_args!("dialing {address}: {why}"));
        loop {
            let Some(call) = &mut self.call else { return Poll::Ready(Err(lost("the stream is gone"))) };
            let failure = match std::task::ready!(call.poll_packet(cx)) {
                Ok(Some((Packet::DialResponse { error, connection, random }, _))) if random == self.random => {
                    if error.is_empty() && connection != 0 {
                        return Poll::Ready(Ok(connection));
                    }
                    self.close_stream();
                    match error.is_empty() {
                        true => TunnelError::new(TunnelFailure::Protocol, "the connection id is 0"),
                        false => TunnelError::from_dial_response(address, &error),
                    }
                }
                Ok(Some((Packet::CloseDial { random }, _))) if random == self.random => {
                    self.close_stream();
                    lost("the agent canceled the dial")
                }
                Ok(Some((Packet::CloseResponse { error, .. }, _))) => {
                    self.close_stream();
                    lost(&format!("closed before it was open: {error}"))
                }
                Ok(Some((_, owed))) => {
                    call.handle.release(owed);
                    continue;
                }
                Ok(None) => lost("the server ended the stream"),
                Err(error) => error,
            };
            // After a failure of the stream itself no message can be sent.
            self.call = None;
            return Poll::Ready(Err(failure));
        }
    }

    /// Closes the stream; the dial was answered, so there is nothing to cancel.
    fn close_stream(&mut self) {
        if let Some(call) = self.call.take() {
            self.shared.close_later(StreamClose::Closed(call));
        }
    }

    fn into_tunnel(mut self, connection: i64) -> Result<KonnectivityTunnel, TunnelError> {
        let call = self.call.take();
        call.map(|call| KonnectivityTunnel::new(call, connection, self.shared.clone()))
            .ok_or_else(|| TunnelError::new(TunnelFailure::Lost, "the stream is gone"))
    }
}

impl Drop for PendingDial<'_> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.shared.close_later(StreamClose::UnansweredDial(call, self.random));
        }
    }
}

/// A random dial id. The reference's server keeps the dials of all its clients in one table, so ids must be unique and
/// unpredictable.
fn random_dial_id() -> i64 {
    // Six bits of a UUID are fixed (version and variant): they are XORed with random ones, or cut off.
    let (high, low) = uuid::Uuid::new_v4().as_u64_pair();
    ((high ^ (low << 8)) >> 1).cast_signed()
}

/// Marks the connection as ended when its task ends, for whatever reason.
struct EndedOnDrop(Arc<TunnelConnectionState>);

impl Drop for EndedOnDrop {
    fn drop(&mut self) {
        self.0.mark_ended("the connection to the Konnectivity server is closed".to_owned());
    }
}

/// Runs a connection until it ends: HTTP/2, streams that are being closed, and the periodic sweep.
async fn serve<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: std::pin::Pin<Box<Connection<T, Bytes>>>,
    read_count: Rc<Cell<u64>>,
    ending: EndedOnDrop,
) {
    let shared = &ending.0;
    let mut leaving = FuturesUnordered::new();
    let mut sweep = pin!(sleep(SWEEP_INTERVAL));
    let ended = poll_fn(|cx| {
        shared.set_waker(cx.waker());
        leaving.extend(shared.take_closing().into_iter().map(close_stream));
        while let Poll::Ready(Some(())) = leaving.poll_next_unpin(cx) {}
        while !shared.tracked_streams.lock().is_empty() && sweep.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            shared.sweep(now);
            sweep.as_mut().reset(now + SWEEP_INTERVAL);
        }
        let polled = connection.as_mut().poll(cx);
        shared.read_count.store(read_count.get(), Relaxed);
        shared.limit.store(connection.max_concurrent_send_streams(), Relaxed);
        polled
    });
    if let Err(error) = ended.await {
        tracing::debug!(target: LOG_TARGET, %error, "connection to a Konnectivity server ended");
        shared.mark_ended(format!("the connection to the Konnectivity server ended: {error}"));
    }
}
