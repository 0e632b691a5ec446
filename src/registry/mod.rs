//! APIServices, Services and endpoints, read from manifests on disk and from a kube-apiserver.
//!
//! A directory of Kubernetes manifests, a kube-apiserver, or both are read into one immutable [`Registry`] snapshot.
//! [`Following`] watches them for changes. [`resolve`] finds the endpoints of an APIService; it does no I/O.

mod annotations;
mod api_service;
mod cluster;
mod cross_check;
mod delegate;
mod endpoints;
mod follow;
#[cfg(test)]
pub(crate) mod history;
mod last_good;
mod long_running;
mod manifest;
mod names;
mod resolve;
mod saved_manifests;
mod scan;
mod service;
pub(crate) mod snapshot;
mod source;
mod upstream;
mod upstreams;
mod url_backend;

pub use annotations::{BackendSettings, Retry, UpgradeProtocols};
pub use api_service::{ApiService, Backend, Called, ClientCertificate, ServiceReference};
pub use cluster::{Cluster, ClusterState, Statuses, Watching, Written};
pub use delegate::{DELEGATE, Delegate};
pub use endpoints::{EndpointPort, EndpointSlice, SliceEndpoint, Subset};
pub use follow::{Directory, Following};
pub use long_running::LongRunning;
pub use names::is_subdomain as is_object_name;
pub use resolve::{Resolved, Rules, Unavailable, Zone, resolve};
pub use service::{Origin, Service, ServicePort, ServiceType};
pub use snapshot::{Changes, Mark, Registry, Settings, load, read, sort_by_api_service};
pub use upstream::{UpstreamUrl, upstream};
pub use upstreams::{Upstream, UpstreamFiles, UpstreamSettings, Upstreams};
pub use url_backend::UrlBackend;
