//! The Konnectivity agent: keeps a stream to each server, and connects to the targets that servers request.

mod alert_stream;
mod connect_error;
mod connection;
mod endpoint;
mod servers;
mod state;
#[cfg(test)]
pub(super) mod test_support;

pub use servers::{AgentSettings, KonnectivityAgent, ServerAddress, ServerCountSource, check_files};
pub use state::AgentState;
