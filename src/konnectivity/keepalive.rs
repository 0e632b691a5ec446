//! Detects a peer that has stopped, by HTTP/2 pings.

use std::time::Duration;

use h2::{Ping, PingPong};
use tokio::time::timeout;

/// Time for a ping's response; then the connection is to be closed.
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns when a ping is not answered in time.
pub(super) async fn keepalive(ping_pong: Option<PingPong>, interval: Duration) {
    let Some(mut ping_pong) = ping_pong.filter(|_| !interval.is_zero()) else { return std::future::pending().await };
    loop {
        tokio::time::sleep(interval).await;
        match timeout(PING_TIMEOUT, ping_pong.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection has ended; its own task sees that.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}
