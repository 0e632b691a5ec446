//! The Konnectivity server: agents connect to it, and clients request tunnels through them.

mod agent_identifiers;
mod agent_listener;
mod agent_token;
mod authority_review;
mod backend;
mod backend_set;
mod connect_frontend;
mod grpc_frontend;
mod grpc_response;
mod service;

pub use crate::konnectivity::relay::{PeerEnd, PeerState};
pub use agent_identifiers::{AgentIdentifiers, InvalidIdentifiers};
pub use agent_listener::serve_agent_connection;
pub use agent_token::AgentTokens;
pub use backend_set::ProxyStrategy;
pub use connect_frontend::{ConnectEnd, serve_connect_frontend};
pub use grpc_frontend::serve_grpc_frontend;
pub use service::{KonnectivityServer, ServerSettings};
