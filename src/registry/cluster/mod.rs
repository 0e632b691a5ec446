//! The registry of a kube-apiserver: APIServices, the Services they reference, and their EndpointSlices, by watches.
//!
//! Two watches for each namespace with a referenced Service. Memory and traffic do not grow with the rest of the
//! cluster, and no permission to read it is needed.

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
