//! The registry of a kube-apiserver or of the embedded API server: APIServices, the Services they reference, and their
//! EndpointSlices, by watches.
//!
//! Two watches for each namespace with a referenced Service. Memory and traffic do not grow with the rest of the
//! cluster, and no permission to read it is needed.

mod cluster_store;
mod collection;
mod filtered_collection;
mod follow;
mod namespace;
mod object_parser;
mod reference_index;
mod statuses;
mod stored_objects;
mod stored_services;
mod watched_resource;

#[cfg(test)]
pub(super) use cluster_store::ClusterStore;
pub(super) use follow::ClusterFollower;
pub use follow::{ClusterClient, ClusterSource, ClusterState};
pub use statuses::{ApiServiceStatuses, StoredStatus};
pub use stored_objects::StoredObjects;
pub use stored_services::StoredServices;
#[cfg(test)]
pub(super) use watched_resource::WatchedResource;
pub use watched_resource::api_server_of_location;
