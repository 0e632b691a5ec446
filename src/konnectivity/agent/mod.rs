//! The Konnectivity agent: keeps a stream to each server, and connects to the targets that servers request.

mod alert_stream;
mod connect_error;
mod connection;
mod endpoint;
mod files;
mod servers;
mod settings;
mod state;
#[cfg(test)]
pub(super) mod test_support;

pub use files::AgentFiles;
pub use servers::KonnectivityAgent;
pub use settings::{AgentSettings, ServerAddress, ServerCountSource};
pub use state::AgentState;
