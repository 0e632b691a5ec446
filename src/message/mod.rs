//! Bodies, refusals and headers: types shared by all stages of a request.

mod allowed_headers;
mod body;
/// CORS and HSTS headers for browsers.
pub mod browser;
/// Content encodings that a client accepts.
pub mod coding;
/// Hop-by-hop headers, upgrades, and headers that are stripped.
pub mod hop_by_hop;
/// Negotiation of the encoding of a Status.
pub mod negotiate;
mod rbac_proxy;
mod received;
mod refusal;
mod respond;

pub use allowed_headers::AllowedHeaders;
pub use body::{Body, BodyError, Streamed, UnreadEnd};
pub use hop_by_hop::upgrade_protocol;
pub use negotiate::Accept;
pub use received::Received;
pub use refusal::{Blame, Judged, Refusal};
pub use respond::{ErrorFormat, respond, warning};
