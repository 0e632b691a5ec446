//! Bodies, refusals and headers: what every stage of a request speaks.

mod allowed_headers;
mod body;
/// What browsers are told.
pub mod browser;
/// How a body may be packed for a client.
pub mod coding;
/// Headers that end at the next hop, and upgrades.
pub mod hop_by_hop;
/// Which encoding a client accepts.
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
