//! APIServices, Services and endpoints, read from manifests on disk and from a kube-apiserver.
//!
//! A directory of Kubernetes manifests, a kube-apiserver, or both are read into one immutable [`Registry`] snapshot.
//! [`RegistryFollower`] watches them for changes. [`resolve`] finds the endpoints of an APIService; it does no I/O.

mod annotations;
mod api_service;
mod cluster;
mod cross_check;
mod delegate;
mod endpoints;
mod follow;
mod last_good;
mod layered_sources;
mod long_running;
mod manifest;
mod manifest_object;
mod name_validation;
#[cfg(test)]
pub(crate) mod proptest_model;
mod resolve;
mod saved_manifests;
mod scan;
mod service;
mod settings;
mod sidecar_upstreams;
pub(crate) mod snapshot;
mod static_backend;
mod url_backend;

pub use annotations::{BackendSettings, RetryMode, UpgradeProtocols};
pub use api_service::{ApiService, ApiServiceBackend, ClientCertificate, DisplayName, ServiceReference};
pub use cluster::{ApiServiceStatuses, ClusterClient, ClusterSource, ClusterState, StoredStatus};
pub use delegate::{DELEGATE, Delegate};
pub use endpoints::{EndpointPort, EndpointSlice, EndpointSubset, SliceEndpoint};
pub use follow::{RegistryDirectory, RegistryFollower};
pub use last_good::{load_directory, parse_manifests};
pub use long_running::LongRunning;
pub use name_validation::is_dns1123_subdomain as is_object_name;
pub use resolve::{ResolveError, ResolveRules, ResolvedBackend, Zone, resolve};
pub use service::{ObjectSource, Service, ServicePort, ServiceType};
pub use settings::Settings;
pub use sidecar_upstreams::{SidecarUpstream, SidecarUpstreams, UpstreamFiles, UpstreamSettings};
pub use snapshot::{Registry, RegistryChanges, Revision, sort_by_api_service};
pub use static_backend::{UpstreamUrl, sidecar_upstream};
pub use url_backend::UrlBackend;
