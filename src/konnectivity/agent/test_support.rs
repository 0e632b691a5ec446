//! Runs an agent over an in-memory connection.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::DuplexStream;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use super::connection::{AgentMetadata, ServerStream};
use super::state::AgentState;

/// Waits until `is_met`; panics with `what` after 20 seconds.
pub(in crate::konnectivity) async fn eventually(what: &str, is_met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_met() {
        assert!(Instant::now() < deadline, "{what}: not within 20 s");
        sleep(Duration::from_millis(1)).await;
    }
}

/// A connected agent; it ends when dropped.
pub(in crate::konnectivity) struct TestAgent {
    state: Arc<AgentState>,
    running: JoinHandle<Result<(), String>>,
    serving: JoinHandle<()>,
}

/// Connects an agent to a server at the other end of `stream`.
pub(in crate::konnectivity) async fn connect_agent(
    stream: DuplexStream,
    id: &str,
    identifiers: &str,
    serving: JoinHandle<()>,
) -> TestAgent {
    let metadata = AgentMetadata { agent_id: id.to_owned(), identifiers: identifiers.to_owned(), token: None };
    let state = AgentState::new(id, identifiers);
    let metrics = &state.metrics.streams;
    let opened = ServerStream::open(stream, "localhost:1", &metadata, Duration::from_secs(30), metrics).await;
    let stream = opened.unwrap();
    assert_eq!((stream.server_id.as_str(), stream.server_count), ("server", 1));
    let running = spawn_local(stream.serve(Arc::new([]), state.clone()));
    TestAgent { state, running, serving }
}

impl TestAgent {
    /// Ends the agent without a word.
    pub(in crate::konnectivity) fn kill(self) {
        self.running.abort();
    }

    /// Whether it has left the stream.
    pub(in crate::konnectivity) fn has_ended(&self) -> bool {
        self.running.is_finished()
    }

    pub(in crate::konnectivity) async fn wait_for_endpoints(&self, expected: u64) {
        eventually("endpoints", || self.state.metrics.endpoint_connections.load(Relaxed) == expected).await;
    }
}

impl Drop for TestAgent {
    fn drop(&mut self) {
        self.running.abort();
        self.serving.abort();
    }
}
