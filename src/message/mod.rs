//! Bodies, refusals and headers: types shared by all stages of a request.

mod allowed_headers;
mod body;
/// Content encodings that a client accepts.
/// CORS and HSTS headers for browsers.
pub mod cors;
/// Hop-by-hop headers, upgrades, and headers that are stripped.
pub mod hop_by_hop;
mod incoming_body;
/// Negotiation of the encoding of a Status.
pub mod negotiate;
mod rbac_proxy;
mod refusal;
mod respond;
mod watch_stream;

pub use allowed_headers::AllowedHeaders;
pub use body::{Body, BodyError, StreamingBody, UnreadEnd};
pub use hop_by_hop::upgrade_protocol;
pub use incoming_body::IncomingBody;
pub use negotiate::Accept;
pub use refusal::{Blame, Refusal, ReviewedAttributes};
pub use respond::{ErrorFormat, respond, warning};
pub use watch_stream::{WatchEvents, WatchSource, WatchStream, bookmark_metadata};
