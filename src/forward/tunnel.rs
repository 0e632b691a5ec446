//! Two upgraded connections become one pipe: bytes both ways until both sides are done.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;

const BUFFER: usize = 16 << 10;

/// What went through a tunnel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Carried {
    /// Bytes from the client.
    pub(crate) from_client: u64,
    /// Bytes from the backend.
    pub(crate) from_backend: u64,
}

/// Carries bytes between `client` and `backend`. A side that closes its half is passed on as a closed
/// half, and the other direction goes on until it ends too or is silent for as long as `linger`; kube-aggregator
/// cuts both at once and loses the tail.
///
/// `counts` is kept up to date while the tunnel lives, also when this future is dropped.
///
/// # Errors
/// The first error of either side; both are closed then.
pub(crate) async fn carry<C, B>(client: C, backend: B, linger: Duration, counts: &Cell<Carried>) -> io::Result<()>
where
    C: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (client_read, client_write) = tokio::io::split(client);
    let (backend_read, backend_write) = tokio::io::split(backend);
    let last = Rc::new(Cell::new(Instant::now()));
    let up = pump(client_read, backend_write, &last, |n| {
        let mut carried = counts.get();
        carried.from_client += n;
        counts.set(carried);
    });
    let down = pump(backend_read, client_write, &last, |n| {
        let mut carried = counts.get();
        carried.from_backend += n;
        counts.set(carried);
    });
    let (mut up, mut down) = (std::pin::pin!(up), std::pin::pin!(down));
    let rest = tokio::select! {
        result = &mut up => { result?; Rest::Down }
        result = &mut down => { result?; Rest::Up }
    };
    loop {
        let silent_at = last.get() + linger;
        tokio::select! {
            result = &mut up, if matches!(rest, Rest::Up) => return result,
            result = &mut down, if matches!(rest, Rest::Down) => return result,
            () = tokio::time::sleep_until(silent_at) => {
                if last.get().elapsed() >= linger {
                    return Ok(());
                }
            }
        }
    }
}

enum Rest {
    Up,
    Down,
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    last: &Cell<Instant>,
    mut count: impl FnMut(u64),
) -> io::Result<()> {
    // On the heap: a tunnel's future holds two of these.
    let mut buffer = vec![0; BUFFER];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            // The peer may be gone already; then there is nobody to tell.
            let _ = to.shutdown().await;
            return Ok(());
        }
        to.write_all(&buffer[..n]).await?;
        to.flush().await?;
        last.set(Instant::now());
        count(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_closed_half_does_not_lose_the_other_halfs_tail() {
        let (client, ours) = tokio::io::duplex(32);
        let (theirs, backend) = tokio::io::duplex(32);
        let counts = Cell::new(Carried::default());
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
        let (carried, (question, answer)) = tokio::join!(carry(ours, theirs, LINGER, &counts), talk);
        carried.unwrap();
        assert_eq!((question.as_str(), answer.as_str()), ("question", "an answer that comes after"));
        assert_eq!(counts.get(), Carried { from_client: 8, from_backend: 26 });
    }

    #[tokio::test(start_paused = true)]
    async fn a_half_that_stays_silent_is_given_up() {
        let (client, ours) = tokio::io::duplex(8);
        let (theirs, _backend) = tokio::io::duplex(8);
        drop(client);
        carry(ours, theirs, LINGER, &Cell::default()).await.unwrap();
    }
}
