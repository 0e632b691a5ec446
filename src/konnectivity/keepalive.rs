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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::task::{JoinHandle, LocalSet, spawn_local};
    use tokio::time::{Instant, sleep};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    /// Starts the keepalive of a connection to `serve`. Returns after how long it found that the peer has stopped.
    fn start<F: Future<Output = ()> + 'static>(
        interval: Duration,
        serve: impl FnOnce(tokio::io::DuplexStream) -> F,
    ) -> JoinHandle<Duration> {
        let (client, server) = tokio::io::duplex(64 << 10);
        spawn_local(serve(server));
        spawn_local(async move {
            let (call, mut connection) = h2::client::handshake(client).await.unwrap();
            let ping_pong = connection.ping_pong();
            spawn_local(async move {
                let _call = call;
                let _ = connection.await;
            });
            let began = Instant::now();
            keepalive(ping_pong, interval).await;
            began.elapsed()
        })
    }

    async fn answer_pings(stream: tokio::io::DuplexStream) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while connection.accept().await.is_some() {}
    }

    /// Answers pings for `time`, then reads no more and keeps the connection open.
    async fn stop_after(stream: tokio::io::DuplexStream, time: Duration) {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        let _ = timeout(time, async { while connection.accept().await.is_some() {} }).await;
        sleep(INTERVAL * 1000).await;
    }

    /// Runs with a clock that jumps to the next timer when all tasks wait.
    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn keepalive_finds_a_peer_that_has_stopped() {
        run(async {
            let never_answers = start(INTERVAL, async |mut stream| {
                // It reads, so that nothing but the missing answer tells.
                let mut all = Vec::new();
                let _ = stream.read_to_end(&mut all).await;
            });
            assert_eq!(never_answers.await.unwrap().as_secs(), (INTERVAL + PING_TIMEOUT).as_secs());
            let stops = start(INTERVAL, |stream| stop_after(stream, INTERVAL * 3 + INTERVAL / 2));
            assert_eq!(stops.await.unwrap().as_secs(), (INTERVAL * 4 + PING_TIMEOUT).as_secs());
        });
    }

    #[test]
    fn keepalive_ignores_peers_that_answer_or_have_ended() {
        run(async {
            let answers = start(INTERVAL, answer_pings);
            // The end of a connection is for its own task to see.
            let ends = start(INTERVAL, async |stream| {
                drop(h2::server::handshake(stream).await.unwrap());
            });
            let is_off = start(Duration::ZERO, async |_| sleep(INTERVAL * 1000).await);
            sleep(INTERVAL * 100).await;
            for keepalive in [answers, ends, is_off] {
                assert!(!keepalive.is_finished());
            }
        });
    }
}
