//! Closes streams that are no longer used: the last messages, and waiting for the server.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::call::Call;
use super::packet::Packet;

/// Time limit for the remote end to close, and for the server to end a stream; as in the reference's client.
pub(super) const CLOSING: Duration = Duration::from_secs(10);

/// A stream to close, and its state.
pub(super) enum Leaving {
    /// The dial with this id was not answered yet.
    Dial(Call, i64),
    /// The remote connection is open.
    Open {
        /// The stream.
        call: Call,
        /// The agent's connection id.
        connection: i64,
        /// When the agent has had time to forward what was sent.
        due: Instant,
    },
    /// A `CloseRequest` was sent.
    Asked(Call, i64),
    /// The remote end has closed.
    Closed(Call),
}

/// Closes a stream in order. On timeout it is dropped, which resets it.
pub(super) async fn leave(leaving: Leaving) {
    let mut call = match leaving {
        Leaving::Dial(call, random) => {
            // At the end of the stream the server forgets the dial and closes any connection made for it.
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

/// Waits until the remote end has closed the connection, or the stream is over.
async fn closed(call: &mut Call, connection: i64) {
    poll_fn(|cx| poll_discard(call, Some(connection), cx)).await;
}

/// Reads and discards packets, because the server blocks for all tunnels until they are delivered, until connection
/// `awaited` is closed or the stream is over.
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
