//! One tunnel of a stream.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use konnectivity_client::Packet;

use super::{StreamSide, TunnelMultiplexer};

/// A connection of the agent. Dropped, it is closed at once, and data that waits for the stream is lost; wait for
/// [`MultiplexedTunnel::flushed`] before. The close has an error text for the peer if data is lost, or if there is a
/// [`MultiplexedTunnel::set_close_error`]. An agent of the reference gets the close request alone.
pub(in crate::konnectivity) struct MultiplexedTunnel {
    multiplexer: Arc<TunnelMultiplexer>,
    connection: i64,
}

/// What the peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::konnectivity) enum TunnelEvent {
    /// Data, never empty.
    Data(Bytes),
    /// The peer has no more data; it still accepts some.
    WriteClosed,
    /// The peer closed the connection, with its error text.
    Closed(String),
    /// The stream between server and agent ended.
    Lost,
}

/// The tunnel accepts no more data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::konnectivity) struct TunnelClosed;

impl MultiplexedTunnel {
    pub(super) fn new(multiplexer: Arc<TunnelMultiplexer>, connection: i64) -> MultiplexedTunnel {
        MultiplexedTunnel { multiplexer, connection }
    }

    /// The agent's connection id.
    pub(in crate::konnectivity) fn connection(&self) -> i64 {
        self.connection
    }

    /// Whether the peer understands [`Packet::WriteClosed`].
    pub(in crate::konnectivity) fn can_close_write(&self) -> bool {
        self.multiplexer.windows.is_some()
    }

    /// Waits for what the peer sends. It repeats the last event.
    pub(in crate::konnectivity) async fn event(&self) -> TunnelEvent {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    pub(in crate::konnectivity) fn poll_event(&self, cx: &mut Context<'_>) -> Poll<TunnelEvent> {
        let window = self.multiplexer.windows.map(|windows| windows.receive);
        let mut state = self.multiplexer.state.lock();
        let is_lost = state.is_closed;
        let Some(tunnel) = state.tunnels.get_mut(&self.connection) else {
            return Poll::Ready(TunnelEvent::Lost);
        };
        if let Some((data, increment)) = tunnel.take_incoming(window) {
            if let Some(increment) = increment {
                let update = Packet::WindowUpdate { connection: self.connection, increment };
                state.push_control(&update);
            }
            return Poll::Ready(TunnelEvent::Data(data));
        }
        if std::mem::take(&mut tunnel.is_write_closed) {
            return Poll::Ready(TunnelEvent::WriteClosed);
        }
        if let Some(error) = &tunnel.closed {
            if is_lost && !tunnel.was_closed_by_peer {
                return Poll::Ready(TunnelEvent::Lost);
            }
            return Poll::Ready(TunnelEvent::Closed(error.clone()));
        }
        tunnel.set_reader(cx.waker());
        Poll::Pending
    }

    /// Waits until [`MultiplexedTunnel::send`] may be called.
    pub(in crate::konnectivity) async fn wait_for_capacity(&self) -> Result<(), TunnelClosed> {
        poll_fn(|cx| {
            let mut state = self.multiplexer.state.lock();
            match state.tunnels.get_mut(&self.connection) {
                Some(tunnel) if tunnel.closed.is_none() => {
                    if !tunnel.is_outgoing_full {
                        return Poll::Ready(Ok(()));
                    }
                    tunnel.set_writer(cx.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(Err(TunnelClosed)),
            }
        })
        .await
    }

    /// Waits until the peer has closed the connection or the stream has ended. Data may still wait for the reader.
    pub(in crate::konnectivity) async fn closed(&self) {
        poll_fn(|cx| {
            let mut state = self.multiplexer.state.lock();
            match state.tunnels.get_mut(&self.connection) {
                Some(tunnel) if tunnel.closed.is_none() => {
                    tunnel.set_writer(cx.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Queues data for the peer, any length. Data for a closed tunnel is dropped.
    pub(in crate::konnectivity) fn send(&self, data: Bytes) {
        if !data.is_empty() {
            self.multiplexer.state.lock().push_outgoing(self.connection, data);
        }
    }

    /// Waits until all data is on its way, or the tunnel is closed.
    pub(in crate::konnectivity) async fn flushed(&self) {
        poll_fn(|cx| {
            let mut state = self.multiplexer.state.lock();
            match state.tunnels.get_mut(&self.connection) {
                Some(tunnel) if tunnel.closed.is_none() && !tunnel.is_flushed() => {
                    tunnel.set_writer(cx.waker());
                    Poll::Pending
                }
                _ => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Tells the peer that no more data follows. Call it after [`MultiplexedTunnel::flushed`], and only if
    /// [`MultiplexedTunnel::can_close_write`].
    pub(in crate::konnectivity) fn close_write(&self) {
        self.multiplexer.send(&Packet::WriteClosed { connection: self.connection });
    }

    /// Sets the error text with which the tunnel is closed when it is dropped: the peer may lack data. Empty for none.
    pub(in crate::konnectivity) fn set_close_error(&self, error: &str) {
        if let Some(tunnel) = self.multiplexer.state.lock().tunnels.get_mut(&self.connection) {
            tunnel.close_error = Some(error).filter(|error| !error.is_empty()).map(Box::from);
        }
    }
}

impl Drop for MultiplexedTunnel {
    fn drop(&mut self) {
        let mut state = self.multiplexer.state.lock();
        let Some(mut tunnel) = state.tunnels.remove(&self.connection) else { return };
        // Above all the stream, which may wait for room in its queue.
        tunnel.wake_all();
        let is_open = tunnel.closed.is_none();
        if tunnel.is_close_sent || self.multiplexer.side == StreamSide::Server && !is_open {
            return;
        }
        let error = match tunnel.close_error.as_deref() {
            None if is_open && !tunnel.is_flushed() => "closed before all data was sent",
            error => error.unwrap_or_default(),
        };
        if self.multiplexer.side == StreamSide::Server && !state.is_closed {
            state.start_closing(self.connection);
        }
        let packet = self.multiplexer.close_packet(self.connection, error);
        state.push_control(&packet);
    }
}
