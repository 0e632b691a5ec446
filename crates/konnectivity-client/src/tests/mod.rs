//! Tests of the client against a server controlled by the test.

mod close;
mod dial;
mod fake_server;
mod invalid_packets;
mod multiplexing;
mod pool;

use std::io;

use tokio::io::AsyncReadExt as _;

use super::{KonnectivityTunnel, TunnelError, TunnelFailure};

/// All data until the end, and how it ended.
async fn read_all(tunnel: &mut KonnectivityTunnel) -> (Vec<u8>, Result<(), TunnelFailure>) {
    let mut all = Vec::new();
    let end = tunnel.read_to_end(&mut all).await;
    (all, end.map(drop).map_err(|error| failure(&error)))
}

/// The tunnel failure inside an I/O error.
fn failure(error: &io::Error) -> TunnelFailure {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<TunnelError>());
    inner.unwrap_or_else(|| panic!("{error:?}")).failure
}

/// Test data in which misplaced bytes are noticed.
fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at % 251) as u8).collect()
}

#[test]
fn konnectivity_tunnel_is_send() {
    fn can_move<T: Send + 'static>() {}
    can_move::<KonnectivityTunnel>();
}
