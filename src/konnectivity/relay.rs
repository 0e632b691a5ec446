//! Relays bytes between a socket and a tunnel.

use std::cell::{Cell, RefCell};
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout};

use super::multiplexer::{MAX_PACKET_DATA, MIN_SHARED_BYTES, MultiplexedTunnel, TunnelEvent};
use crate::tls::TlsStream;

/// How long a socket may accept nothing after its tunnel was closed.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a socket whose data waits is checked for its peer.
const PEER_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long nothing may move after the peer of a socket has closed one direction, while its data waits.
const STALLED_END_TIMEOUT: Duration = Duration::from_secs(60);

thread_local! {
    /// The buffer of all reads of a thread: an idle connection holds none.
    static READ_BUFFER: RefCell<BytesMut> = RefCell::default();
}

/// Both halves of a socket, on one thread.
pub(super) struct SharedSocket<S>(Rc<RefCell<S>>);

/// Which directions the peer of a socket has closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// None.
    Open,
    /// It sends no more.
    WriteClosed,
    /// Both: the connection was reset, or both ends are closed.
    Closed,
}

/// A socket that tells, without reading, what its peer has closed.
pub trait PeerState {
    /// What the peer has closed.
    fn peer_end(&self) -> PeerEnd;
}

impl PeerState for TcpStream {
    fn peer_end(&self) -> PeerEnd {
        ready_end(&self.ready(Interest::READABLE | Interest::WRITABLE).now_or_never())
    }
}

impl PeerState for UnixStream {
    fn peer_end(&self) -> PeerEnd {
        ready_end(&self.ready(Interest::READABLE | Interest::WRITABLE).now_or_never())
    }
}

impl<S: PeerState, C> PeerState for TlsStream<S, C> {
    fn peer_end(&self) -> PeerEnd {
        self.get_ref().peer_end()
    }
}

impl<S: PeerState> PeerState for Box<S> {
    fn peer_end(&self) -> PeerEnd {
        (**self).peer_end()
    }
}

impl<S: PeerState> PeerState for &mut S {
    fn peer_end(&self) -> PeerEnd {
        (**self).peer_end()
    }
}

#[cfg(test)]
impl PeerState for tokio::io::DuplexStream {
    fn peer_end(&self) -> PeerEnd {
        PeerEnd::Open
    }
}

fn ready_end(ready: &Option<io::Result<Ready>>) -> PeerEnd {
    match ready {
        Some(Ok(ready)) if ready.is_write_closed() => PeerEnd::Closed,
        Some(Ok(ready)) if ready.is_read_closed() => PeerEnd::WriteClosed,
        Some(Err(_)) => PeerEnd::Closed,
        _ => PeerEnd::Open,
    }
}

impl<S> SharedSocket<S> {
    pub(super) fn new(socket: S) -> SharedSocket<S> {
        SharedSocket(Rc::new(RefCell::new(socket)))
    }

    /// Runs `action` on the socket.
    pub(super) fn with<T>(&self, action: impl FnOnce(&mut S) -> T) -> T {
        action(&mut self.0.borrow_mut())
    }
}

impl<S> Clone for SharedSocket<S> {
    fn clone(&self) -> SharedSocket<S> {
        SharedSocket(self.0.clone())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for SharedSocket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_read(cx, out)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SharedSocket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0.borrow_mut()).poll_shutdown(cx)
    }
}

/// What follows when the socket has sent its last byte and the peer cannot be told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterEnd {
    /// The tunnel is closed.
    Close,
    /// The tunnel is closed when nothing has come from the peer for this long: a response may follow, and a peer of the
    /// reference drops what it has not written when it is asked to close.
    Linger(Duration),
}

/// How a relay ended.
#[derive(Debug)]
pub(super) enum RelayEnd {
    /// Both directions are complete, or the peer closed the connection.
    Finished,
    /// The socket failed.
    SocketFailed(io::Error),
    /// What the socket got may be incomplete: the stream between server and agent ended, the other side closed the tunnel
    /// with an error, or data waited too long for the socket. The caller resets the socket, so that its peer does not take
    /// the data for complete.
    Broken,
}

/// Relays both directions until both are complete or one fails. The caller closes tunnel and socket. `on_write` gets the
/// time that the socket took to accept a packet.
pub(super) async fn relay<S>(
    socket: &SharedSocket<S>,
    tunnel: &MultiplexedTunnel,
    after: AfterEnd,
    on_write: impl Fn(Duration),
) -> RelayEnd
where
    S: AsyncRead + AsyncWrite + PeerState + Unpin,
{
    let (moved, is_writing) = (Cell::new(Instant::now()), Cell::new(false));
    let (mut reader, mut writer) = (socket.clone(), socket.clone());
    let mut outgoing = pin!(send_all(&mut reader, tunnel, &moved));
    let mut incoming = pin!(receive_all(&mut writer, tunnel, &moved, &is_writing, on_write));
    // The time at which a relay ends that has only the incoming direction left.
    let mut limit = None;
    let mut is_sent = false;
    // A write that waits for the socket has at least DRAIN_TIMEOUT.
    let deadline_of = |limit: Option<Duration>| {
        limit.map(|limit| moved.get() + if is_writing.get() { limit.max(DRAIN_TIMEOUT) } else { limit })
    };
    loop {
        // Checked now and then, as a write that begins or ends changes it.
        let deadline = deadline_of(limit).map(|deadline| deadline.min(Instant::now() + PEER_CHECK_INTERVAL));
        tokio::select! {
            received = &mut incoming => match received {
                Ok(TunnelEnd::WriteClosed) if is_sent => return RelayEnd::Finished,
                Ok(TunnelEnd::WriteClosed) => break,
                Ok(TunnelEnd::Closed) => return RelayEnd::Finished,
                Ok(TunnelEnd::Broken) => return RelayEnd::Broken,
                Err(error) => return RelayEnd::SocketFailed(error),
            },
            sent = &mut outgoing, if !is_sent => match sent {
                Ok(Sent::Everything) => {
                    is_sent = true;
                    if !tunnel.can_close_write() {
                        let AfterEnd::Linger(linger) = after else { return RelayEnd::Finished };
                        moved.set(Instant::now());
                        limit = Some(linger);
                    }
                }
                Ok(Sent::TunnelClosed) => {
                    is_sent = true;
                    moved.set(Instant::now());
                    limit = Some(DRAIN_TIMEOUT);
                }
                Err(error) => return RelayEnd::SocketFailed(error),
            },
            // A write that waits does not see that the tunnel is closed.
            () = tunnel.closed(), if is_sent && limit.is_none() => {
                moved.set(Instant::now());
                limit = Some(DRAIN_TIMEOUT);
            }
            () = wait_until(deadline) => {
                // Moved meanwhile?
                if deadline_of(limit).is_some_and(|deadline| deadline <= Instant::now()) {
                    return if is_writing.get() { RelayEnd::Broken } else { RelayEnd::Finished };
                }
            }
        }
    }
    // The peer has sent everything; the other direction goes on.
    match outgoing.await {
        Ok(_) => RelayEnd::Finished,
        Err(error) => RelayEnd::SocketFailed(error),
    }
}

enum Sent {
    Everything,
    TunnelClosed,
}

/// Sends what the socket has until its end.
async fn send_all<S>(
    socket: &mut SharedSocket<S>,
    tunnel: &MultiplexedTunnel,
    moved: &Cell<Instant>,
) -> io::Result<Sent>
where
    S: AsyncRead + PeerState + Unpin,
{
    let mut deferred_error = None;
    loop {
        // The end of a socket is behind data that is not read while the tunnel has no room.
        let capacity = loop {
            match timeout(PEER_CHECK_INTERVAL, tunnel.wait_for_capacity()).await {
                Ok(room) => break room,
                Err(_) => check_peer(socket.0.borrow().peer_end(), moved.get())?,
            }
        };
        if capacity.is_err() {
            return Ok(Sent::TunnelClosed);
        }
        let data = tokio::select! {
            biased;
            data = read(socket, &mut deferred_error) => data?,
            () = tunnel.closed() => return Ok(Sent::TunnelClosed),
        };
        if data.is_empty() {
            tunnel.flushed().await;
            if tunnel.can_close_write() {
                tunnel.close_write();
            }
            return Ok(Sent::Everything);
        }
        moved.set(Instant::now());
        tunnel.send(data);
    }
}

/// Fails if the peer of a socket has gone while its data waits.
fn check_peer(end: PeerEnd, moved: Instant) -> io::Result<()> {
    match end {
        PeerEnd::Open => Ok(()),
        PeerEnd::WriteClosed if moved.elapsed() < STALLED_END_TIMEOUT => Ok(()),
        PeerEnd::WriteClosed => Err(io::ErrorKind::TimedOut.into()),
        PeerEnd::Closed => Err(io::ErrorKind::ConnectionReset.into()),
    }
}

/// How the data of a tunnel ended.
enum TunnelEnd {
    /// The other side has no more data; this side may go on writing.
    WriteClosed,
    /// The other side closed the connection.
    Closed,
    /// The connection or its stream was lost.
    Broken,
}

/// Writes to the socket what the tunnel has until its end.
async fn receive_all<W: AsyncWrite + Unpin>(
    writer: &mut W,
    tunnel: &MultiplexedTunnel,
    moved: &Cell<Instant>,
    is_writing: &Cell<bool>,
    on_write: impl Fn(Duration),
) -> io::Result<TunnelEnd> {
    loop {
        match tunnel.event().await {
            TunnelEvent::Data(mut data) => {
                let began = Instant::now();
                is_writing.set(true);
                while !data.is_empty() {
                    let count = writer.write_buf(&mut data).await?;
                    if count == 0 {
                        return Err(io::ErrorKind::WriteZero.into());
                    }
                    moved.set(Instant::now());
                }
                writer.flush().await?;
                is_writing.set(false);
                on_write(began.elapsed());
            }
            TunnelEvent::WriteClosed => {
                writer.shutdown().await?;
                return Ok(TunnelEnd::WriteClosed);
            }
            TunnelEvent::Closed(error) if !error.is_empty() => return Ok(TunnelEnd::Broken),
            TunnelEvent::Closed(_) => {
                // The other side may have closed already.
                let _ = writer.shutdown().await;
                return Ok(TunnelEnd::Closed);
            }
            TunnelEvent::Lost => return Ok(TunnelEnd::Broken),
        }
    }
}

/// Reads a piece of at most one packet; empty at the end. An error that follows data is left in `deferred_error`, for the next
/// call.
async fn read<R: AsyncRead + Unpin>(reader: &mut R, deferred_error: &mut Option<io::Error>) -> io::Result<Bytes> {
    if let Some(error) = deferred_error.take() {
        return Err(error);
    }
    poll_fn(|cx| {
        READ_BUFFER.with_borrow_mut(|buffer| {
            if buffer.capacity() < MIN_SHARED_BYTES {
                buffer.reserve(MAX_PACKET_DATA);
            }
            let limit = buffer.capacity().min(MAX_PACKET_DATA);
            // A read returns what has arrived, which is often part of a packet. Little data is sent at once.
            let mut last = MIN_SHARED_BYTES;
            while last >= MIN_SHARED_BYTES && buffer.len() < limit {
                let free = limit - buffer.len();
                let mut limited = (&mut *buffer).limit(free);
                let polled = pin!(reader.read_buf(&mut limited)).poll(cx);
                match polled {
                    Poll::Ready(Ok(length)) => last = length,
                    Poll::Ready(Err(error)) if buffer.is_empty() => return Poll::Ready(Err(error)),
                    Poll::Ready(Err(error)) => {
                        *deferred_error = Some(error);
                        break;
                    }
                    Poll::Pending if buffer.is_empty() => return Poll::Pending,
                    Poll::Pending => break,
                }
            }
            if buffer.len() < MIN_SHARED_BYTES {
                let data = Bytes::copy_from_slice(buffer);
                buffer.clear();
                return Poll::Ready(Ok(data));
            }
            Poll::Ready(Ok(buffer.split().freeze()))
        })
    })
    .await
}

async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::konnectivity::multiplexer::{StreamSide, TunnelMultiplexer, TunnelWindows};

    /// Returns so many bytes at a time, and then an error or nothing.
    struct PieceReader {
        pieces: Vec<usize>,
        error: Option<io::Error>,
    }

    impl AsyncRead for PieceReader {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            if let Some(length) = self.pieces.pop() {
                assert!(length <= out.remaining());
                out.put_slice(&vec![7; length]);
                return Poll::Ready(Ok(()));
            }
            self.error.take().map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
        }
    }

    #[tokio::test]
    async fn relay_reads_pieces_into_one_packet() {
        const PIECE: usize = 16 << 10;
        let mut reader = PieceReader { pieces: vec![10, PIECE, 10, PIECE, PIECE, PIECE, PIECE], error: None };
        let mut deferred_error = None;
        for expected in [4 * PIECE, 10, PIECE + 10] {
            assert_eq!(read(&mut reader, &mut deferred_error).await.unwrap().len(), expected);
        }
        assert!(reader.pieces.is_empty());
    }

    #[tokio::test]
    async fn relay_reports_an_error_after_the_data_before_it() {
        let mut reader = PieceReader { pieces: vec![9 << 10], error: Some(io::ErrorKind::ConnectionReset.into()) };
        let mut deferred_error = None;
        assert_eq!(read(&mut reader, &mut deferred_error).await.unwrap().len(), 9 << 10);
        let error = read(&mut reader, &mut deferred_error).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test(start_paused = true)]
    async fn relay_is_broken_when_data_waits_too_long_for_the_socket() {
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, None, &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        let (near, _far) = tokio::io::duplex(1024);
        multiplexer.receive(1, vec![7; 4096].into());
        multiplexer.receive_close(1, String::new());
        let began = Instant::now();
        let end = relay(&SharedSocket::new(near), &tunnel, AfterEnd::Close, |_| {}).await;
        assert!(matches!(end, RelayEnd::Broken), "{end:?}");
        assert!(began.elapsed() >= DRAIN_TIMEOUT);
    }

    const LINGER: Duration = Duration::from_secs(1);

    /// A client half-closes its connection, and reads what the tunnel has after `pause`. How and after how long the relay
    /// ended.
    async fn relay_with_linger(pause: Duration) -> (RelayEnd, Duration) {
        let multiplexer = TunnelMultiplexer::new(StreamSide::Server, None, &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        let (near, mut far) = tokio::io::duplex(1024);
        far.shutdown().await.unwrap();
        multiplexer.receive(1, vec![7; 4096].into());
        let reading = async {
            tokio::time::sleep(pause).await;
            far.read_exact(&mut vec![0; 4096]).await.unwrap();
        };
        let (socket, began) = (SharedSocket::new(near), Instant::now());
        let (end, ()) = tokio::join!(relay(&socket, &tunnel, AfterEnd::Linger(LINGER), |_| {}), reading);
        (end, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn relay_waits_longer_for_a_socket_than_for_data() {
        let (end, _) = relay_with_linger(LINGER * 5).await;
        assert!(matches!(end, RelayEnd::Finished), "{end:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn relay_lingers_from_the_end_of_a_short_write() {
        let (end, took) = relay_with_linger(Duration::from_millis(10)).await;
        assert!(matches!(end, RelayEnd::Finished), "{end:?}");
        assert!(took < LINGER * 3, "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn relay_of_a_half_closed_socket_that_does_not_read_ends_with_its_tunnel() {
        let windows = TunnelWindows { send: 1 << 20, receive: 1 << 20 };
        let multiplexer = TunnelMultiplexer::new(StreamSide::Agent, Some(windows), &Arc::default());
        let tunnel = multiplexer.open(1, "a:1").unwrap();
        let (near, mut far) = tokio::io::duplex(1024);
        far.shutdown().await.unwrap();
        multiplexer.receive(1, vec![7; 4096].into());
        let closing = async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            multiplexer.receive_close(1, String::new());
        };
        let (socket, began) = (SharedSocket::new(near), Instant::now());
        let (end, ()) = tokio::join!(relay(&socket, &tunnel, AfterEnd::Close, |_| {}), closing);
        assert!(matches!(end, RelayEnd::Broken), "{end:?}");
        assert!(began.elapsed() >= Duration::from_secs(60) + DRAIN_TIMEOUT);
    }
}
