//! Relays requests to backends: header rewriting, identity headers, streaming, upgrades, retries, failures.

mod backend;
mod copy_bidirectional;
mod endpoint_watches;
mod error_response;
mod fetch;
mod forwarded_headers;
mod header_rewrite;
mod load_balance;
mod long_running_responses;
mod outbound_request;
mod request_body;
mod response_body;
mod retry;
mod retry_budget;
mod send;
mod unread_watch;
mod upgrade;
mod user_headers;
mod watch_framing;

pub use backend::{BackendRenewal, BackendSource, WorkerBackend, endpoint_key, transport_security};
pub(crate) use copy_bidirectional::{CopyError, TunnelBytes, copy_bidirectional};
pub use endpoint_watches::ApiServiceState;
pub use fetch::fetch;
pub use forwarded_headers::{ConnectionHeaders, ForwardedHeaders};
pub use long_running_responses::LongRunningResponses;
pub use outbound_request::{OutboundRequest, ResponseOptions};
pub use response_body::{ForwardedBody, InflightPermits};
pub use send::send;
pub use user_headers::{IdentityHeaderError, IdentityHeaderFormat, JoinedHeaders, RemoteHeaderNames, UserHeaders};
