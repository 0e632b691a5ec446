//! Relaying a request: rewrite, identity headers, stream, upgrade, retry, failure.

mod backend;
mod deadline;
mod exchange;
mod failure;
mod flow;
mod identity;
mod relay;
mod rewrite;
mod send;
mod streams;
mod tunnel;
mod upgrade;
mod upload;
mod whole;

pub use backend::{Backend, backend_tls};
pub use flow::Places;
pub use identity::{Stamp, Unspeakable};
pub use rewrite::Origin;
pub use send::{Outbound, send};
pub use streams::Streams;
