//! Relays requests to backends: header rewriting, identity headers, streaming, upgrades, retries, failures.

mod backend;
mod budget;
mod choice;
mod events;
mod exchange;
mod failure;
mod fetch;
mod history;
mod identity;
mod relay;
mod rewrite;
mod send;
mod signature;
mod streams;
mod tunnel;
mod unread;
mod upgrade;
mod upload;

pub use backend::{Backend, upstream, wire};
pub use fetch::fetch;
pub use history::History;
pub use identity::{Joined, Stamp, Unspeakable, Wording};
pub use relay::Places;
pub use send::{Outbound, send};
pub use signature::{Origin, Signature};
pub use streams::Streams;
pub(crate) use tunnel::{Broken, Carried, carry};
