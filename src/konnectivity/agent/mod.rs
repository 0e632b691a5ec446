//! The Konnectivity agent: keeps a stream to each server, and connects to the targets that servers request.

mod connection;
mod endpoint;
mod servers;
#[cfg(test)]
pub(super) mod test_support;

pub use servers::{AgentSettings, KonnectivityAgent, ServerAddress, ServerCountSource, check_files};
