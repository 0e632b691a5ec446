//! The registry of a kube-apiserver: its APIServices, and the Services that these name with their EndpointSlices,
//! followed by watches.
//!
//! One pair of watches for each such namespace: neither memory nor traffic grows with the rest of the cluster, and
//! who runs us need not be allowed to read it.

mod collection;
mod follow;
mod known;
mod named;
mod namespace;
mod object;
mod selected;
mod state;
mod statuses;

pub(super) use follow::Followed;
pub use follow::{Cluster, Watching};
#[cfg(test)]
pub(super) use known::{Kind, Known};
pub use state::ClusterState;
pub use statuses::{Statuses, Written};
