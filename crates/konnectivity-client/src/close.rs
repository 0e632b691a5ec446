//! Closes streams that are no longer used: the last messages, and waiting for the server.

use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::packet::Packet;
use super::proxy_stream::ProxyStream;

/// Time limit for the remote end to close, and for the server to end a stream; as in the reference's client.
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a response may come that crossed the cancellation of its dial. The reference's server forgets a dial before
/// it sends the response, registers the connection afterwards, and looks for connections to close when the stream ends:
/// a stream that ends in between leaves the connection open at its agent.
const LATE_RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A stream to close, and its state.
pub(super) enum StreamClose {
    /// The dial with this id was not answered yet.
    UnansweredDial(ProxyStream, i64),
    /// The remote connection is open.
    Established {
        /// The stream.
        call: ProxyStream,
        /// The agent's connection id.
        connection: i64,
        /// When the agent has had time to forward what was sent.
        due: Instant,
    },
    /// A `CloseRequest` was sent.
    CloseRequested(ProxyStream, i64),
    /// The remote end has closed.
    Closed(ProxyStream),
}

/// Closes a stream in order. On timeout it is dropped, which resets it.
pub(super) async fn close_stream(leaving: StreamClose) {
    let mut call = match leaving {
        StreamClose::UnansweredDial(mut call, random) => {
            let canceled = call.handle.send(&Packet::CloseDial { random }, false);
            if canceled.is_ok()
                && let Ok(Some(connection)) = timeout(LATE_RESPONSE_TIMEOUT, late_connection(&mut call, random)).await
            {
                let sent = call.handle.send(&Packet::CloseRequest { connection }, false);
                if sent.is_err() || timeout(CLOSE_TIMEOUT, wait_until_closed(&mut call, connection)).await.is_err() {
                    return;
                }
            }
            call.handle.finish();
            call
        }
        StreamClose::Established { mut call, connection, due } => {
            if timeout_at(due, wait_until_closed(&mut call, connection)).await.is_err() {
                let sent = call.handle.send(&Packet::CloseRequest { connection }, false);
                if sent.is_err() || timeout(CLOSE_TIMEOUT, wait_until_closed(&mut call, connection)).await.is_err() {
                    return;
                }
            }
            call.handle.finish();
            call
        }
        StreamClose::CloseRequested(mut call, connection) => {
            if timeout(CLOSE_TIMEOUT, wait_until_closed(&mut call, connection)).await.is_err() {
                return;
            }
            call.handle.finish();
            call
        }
        StreamClose::Closed(call) => {
            call.handle.finish();
            call
        }
    };
    let _ = timeout(CLOSE_TIMEOUT, poll_fn(|cx| poll_discard(&mut call, None, cx))).await;
}

/// Waits for the response to a canceled dial; `None` if it opened no connection, or the stream is over.
async fn late_connection(call: &mut ProxyStream, canceled: i64) -> Option<i64> {
    poll_fn(|cx| {
        loop {
            match std::task::ready!(call.poll_packet(cx)) {
                Ok(Some((Packet::DialResponse { error, connection, random }, owed))) if random == canceled => {
                    call.handle.release(owed);
                    return Poll::Ready(Some(connection).filter(|_| error.is_empty() && connection != 0));
                }
                Ok(Some((_, owed))) => call.handle.release(owed),
                Ok(None) | Err(_) => return Poll::Ready(None),
            }
        }
    })
    .await
}

/// Waits until the remote end has closed the connection, or the stream is over.
async fn wait_until_closed(call: &mut ProxyStream, connection: i64) {
    poll_fn(|cx| poll_discard(call, Some(connection), cx)).await;
}

/// Reads and discards packets, because the server blocks for all tunnels until they are delivered, until connection
/// `awaited` is closed or the stream is over.
fn poll_discard(call: &mut ProxyStream, awaited: Option<i64>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        match call.poll_packet(cx) {
            Poll::Ready(Ok(Some((Packet::CloseResponse { connection, .. }, _)))) if Some(connection) == awaited => {
                return Poll::Ready(());
            }
            Poll::Ready(Ok(Some((_, owed)))) => call.handle.release(owed),
            Poll::Ready(Ok(None) | Err(_)) => return Poll::Ready(()),
            Poll::Pending => return Poll::Pending,
        }
    }
}
