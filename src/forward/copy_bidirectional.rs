//! Copies bytes between two upgraded connections until both directions have ended.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

/// How long to read from a side that accepts no more data: this long without a byte.
const REMAINING_READ_TIMEOUT: Duration = Duration::from_secs(5);
const BUFFER: usize = 16 << 10;

/// Bytes copied through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TunnelBytes {
    /// Bytes from the client.
    pub(crate) from_client: u64,
    /// Bytes from the backend.
    pub(crate) from_backend: u64,
}

/// Why copying failed.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Reading failed: what was read from that side is truncated.
    Read(io::Error),
    /// Writing failed, and the same side was read to its end.
    Write(io::Error),
}

/// Copies bytes between `client` and `backend`. A half-close is passed on, and the other direction continues until it
/// ends, too, or is idle for `linger`; kube-aggregator closes both at once and loses the rest.
///
/// `counts` is updated while the tunnel runs, also if this future is dropped.
///
/// A side that accepts no more data is still read to its end: a server may have responded and closed.
///
/// # Errors
/// The first error.
pub(crate) async fn copy_bidirectional<C, B>(
    client: C,
    backend: B,
    linger: Duration,
    counts: &Cell<TunnelBytes>,
) -> Result<(), CopyError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, client_write) = tokio::io::split(client);
    let (backend_read, backend_write) = tokio::io::split(backend);
    let last = Rc::new(Cell::new(Instant::now()));
    let up = copy_one_way(client_read, backend_write, &last, |n| {
        let mut copied = counts.get();
        copied.from_client += n;
        counts.set(copied);
    });
    let down = copy_one_way(backend_read, client_write, &last, |n| {
        let mut copied = counts.get();
        copied.from_backend += n;
        counts.set(copied);
    });
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let (first, rest) = tokio::select! {
        result = &mut up => (result, RemainingDirection::Down),
        result = &mut down => (result, RemainingDirection::Up),
    };
    if matches!(first, Err(CopyError::Read(_))) {
        return first;
    }
    let linger = if first.is_ok() { linger } else { linger.min(REMAINING_READ_TIMEOUT) };
    last.set(last.get().max(Instant::now()));
    loop {
        let silent_at = last.get() + linger;
        let second = tokio::select! {
            result = &mut up, if matches!(rest, RemainingDirection::Up) => result,
            result = &mut down, if matches!(rest, RemainingDirection::Down) => result,
            () = tokio::time::sleep_until(silent_at) => match last.get().elapsed() >= linger {
                true => Ok(()),
                false => continue,
            },
        };
        return match second {
            Err(CopyError::Read(error)) => Err(CopyError::Read(error)),
            second => first.and(second),
        };
    }
}

enum RemainingDirection {
    Up,
    Down,
}

async fn copy_one_way(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: &Cell<Instant>,
    mut count: impl FnMut(u64),
) -> Result<(), CopyError> {
    // On the heap: a tunnel's future holds two of these.
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await.map_err(CopyError::Read)?;
        if n == 0 {
            // Fails only if the peer is gone already.
            let _ = to.shutdown().await;
            return Ok(());
        }
        to.write_all(&buffer[..n]).await.map_err(CopyError::Write)?;
        to.flush().await.map_err(CopyError::Write)?;
        last.set(Instant::now());
        count(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn copy_bidirectional_half_close_keeps_other_direction() {
        let (client, ours) = tokio::io::duplex(32);
        let (theirs, backend) = tokio::io::duplex(32);
        let counts = Cell::new(TunnelBytes::default());
        let talk = async {
            let (mut client_read, mut client_write) = tokio::io::split(client);
            let (mut backend_read, mut backend_write) = tokio::io::split(backend);
            client_write.write_all(b"question").await.unwrap();
            client_write.shutdown().await.unwrap();
            let mut question = String::new();
            backend_read.read_to_string(&mut question).await.unwrap();
            backend_write.write_all(b"an answer that comes after").await.unwrap();
            backend_write.shutdown().await.unwrap();
            let mut answer = String::new();
            client_read.read_to_string(&mut answer).await.unwrap();
            (question, answer)
        };
        let (carried, (question, answer)) = tokio::join!(copy_bidirectional(ours, theirs, LINGER, &counts), talk);
        carried.unwrap();
        assert_eq!((question.as_str(), answer.as_str()), ("question", "an answer that comes after"));
        assert_eq!(counts.get(), TunnelBytes { from_client: 8, from_backend: 26 });
    }

    /// Sends `says`, then ends or fails; accepts no data.
    struct WriteRejectingStream {
        says: &'static [u8],
        breaks: bool,
    }

    impl AsyncRead for WriteRejectingStream {
        fn poll_read(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            out: &mut tokio::io::ReadBuf<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            if self.says.is_empty() && self.breaks {
                return std::task::Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            out.put_slice(std::mem::take(&mut self.says));
            std::task::Poll::Ready(Ok(()))
        }
    }

    impl AsyncWrite for WriteRejectingStream {
        fn poll_write(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
            _: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            std::task::Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn copy_bidirectional_reads_to_end_after_write_failure() {
        for breaks in [false, true] {
            let (mut client, ours) = tokio::io::duplex(64);
            client.write_all(b"more than it wants").await.unwrap();
            let counts = Cell::default();
            let backend = WriteRejectingStream { says: b"413, that is too much", breaks };
            let broken = copy_bidirectional(ours, backend, LINGER, &counts).await.unwrap_err();
            assert!(matches!((broken, breaks), (CopyError::Write(_), false) | (CopyError::Read(_), true)));
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "413, that is too much");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn copy_bidirectional_gives_up_idle_half() {
        let (client, ours) = tokio::io::duplex(8);
        let (theirs, _backend) = tokio::io::duplex(8);
        drop(client);
        copy_bidirectional(ours, theirs, LINGER, &Cell::default()).await.unwrap();
    }
}
