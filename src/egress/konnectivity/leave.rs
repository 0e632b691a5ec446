//! The end of a stream whose user is gone: what is still to be said, and to be waited for.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::call::Call;
use super::packet::Packet;

/// How long the far end may take to close, and the server to end a stream; as in the reference's client.
pub(super) const CLOSING: Duration = Duration::from_secs(10);

/// A stream that was left, and how.
pub(super) enum Leaving {
    /// Before the dial, of this number, was answered.
    Dial(Call, i64),
    /// With a connection that is open at the far end.
    Open {
        /// The stream.
        call: Call,
        /// The agent's number.
        connection: i64,
        /// When the agent has had the time to pass on what was sent.
        due: Instant,
    },
    /// After the far end was asked to close.
    Asked(Call, i64),
    /// After the far end closed.
    Closed(Call),
}

/// Ends a stream in good order. When it takes too long, it is reset by being dropped.
pub(super) async fn leave(leaving: Leaving) {
    let mut call = match leaving {
        Leaving::Dial(call, random) => {
            // The server forgets the dial, and closes what may have come of it, when the stream ends.
            let _ = call.line.send(&Packet::CloseDial { random }, true);
            call
        }
        Leaving::Open { mut call, connection, due } => {
            if timeout_at(due, closed(&mut call, connection)).await.is_err() {
                let asked = call.line.send(&Packet::CloseRequest { connection }, false);
                if asked.is_err() || timeout(CLOSING, closed(&mut call, connection)).await.is_err() {
                    return;
                }
            }
            call.line.finish();
            call
        }
        Leaving::Asked(mut call, connection) => {
            if timeout(CLOSING, closed(&mut call, connection)).await.is_err() {
                return;
            }
            call.line.finish();
            call
        }
        Leaving::Closed(call) => {
            call.line.finish();
            call
        }
    };
    let _ = timeout(CLOSING, poll_fn(|cx| poll_discard(&mut call, None, cx))).await;
}

/// Waits until the far end closed the connection, or the stream is over.
async fn closed(call: &mut Call, connection: i64) {
    poll_fn(|cx| poll_discard(call, Some(connection), cx)).await;
}

/// Reads what comes, for the server waits for nobody else as long as it does not come through, until the connection
/// of this number is closed or the stream is over.
fn poll_discard(call: &mut Call, awaited: Option<i64>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        match call.poll_packet(cx) {
            Poll::Ready(Ok(Some((Packet::CloseResponse { connection, .. }, _)))) if Some(connection) == awaited => {
                return Poll::Ready(());
            }
            Poll::Ready(Ok(Some((_, owed)))) => call.line.take(owed),
            Poll::Ready(Ok(None) | Err(_)) => return Poll::Ready(()),
            Poll::Pending => return Poll::Pending,
        }
    }
}
