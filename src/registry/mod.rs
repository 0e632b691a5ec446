//! APIServices, Services and endpoints, read from manifests on disk and from a kube-apiserver.
//!
//! A directory of Kubernetes manifests, a kube-apiserver, or both are read into one immutable [`Registry`] snapshot.
//! [`RegistryFollower`] watches them for changes. [`resolve`] finds the endpoints of an APIService; it does no I/O.

mod cluster;
mod delegate;
mod directory;
mod follow;
mod layered_sources;
mod objects;
#[cfg(test)]
pub(crate) mod proptest_model;
mod resolve;
mod settings;
mod sidecar_upstreams;
pub(crate) mod snapshot;
mod static_backend;

pub use cluster::{
    ApiServiceStatuses, ClusterClient, ClusterSource, ClusterState, StoredObjects, StoredServices, StoredStatus,
    api_server_of_location,
};
pub use delegate::{DELEGATE, Delegate};
pub use directory::last_good::{load_directory, parse_manifests};
pub use follow::{RegistryDirectory, RegistryFollower};
pub use objects::annotations::{
    BackendSettings, InvalidAnnotation, RetryMode, URL as URL_ANNOTATION, UpgradeProtocols, validate_annotations,
};
pub use objects::api_service::{ApiService, ApiServiceBackend, ClientCertificate, DisplayName, ServiceReference};
pub use objects::endpoints::{EndpointPort, EndpointSlice, EndpointSubset, SliceEndpoint};
pub use objects::long_running::LongRunning;
pub use objects::service::{ObjectSource, Service, ServicePort, ServiceType};
pub use objects::url_backend::UrlBackend;
pub use resolve::{ResolveError, ResolveRules, ResolvedBackend, Zone, resolve};
pub use settings::Settings;
pub use sidecar_upstreams::{SidecarUpstream, SidecarUpstreams, UpstreamFiles, UpstreamSettings};
pub use snapshot::{Registry, RegistryChanges, Revision, sort_by_api_service};
pub use static_backend::{UpstreamUrl, sidecar_upstream};
