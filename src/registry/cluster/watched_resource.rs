//! The collections of a kube-apiserver or of the embedded API server that are watched.

/// Name of a kube-apiserver in messages and metrics.
pub(super) const KUBE_APISERVER: &str = "kube-apiserver";
/// Name of the embedded API server in messages and metrics.
pub(super) const EMBEDDED_API_SERVER: &str = "embedded API server";

/// The API server in the location of a problem; none for a file.
pub fn api_server_of_location(location: &str) -> Option<&'static str> {
    let is_source = |name: &&str| location.strip_prefix(*name).is_some_and(|rest| rest.starts_with(", "));
    [KUBE_APISERVER, EMBEDDED_API_SERVER].into_iter().find(is_source)
}

/// A watched collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::registry) enum WatchedResource {
    /// All APIServices.
    ApiServices,
    /// The Services of a namespace.
    Services(String),
    /// The EndpointSlices of a namespace.
    EndpointSlices(String),
}

impl WatchedResource {
    /// Location of the object `name` of the API server `source`, for problems.
    pub(super) fn location(&self, source: &str, name: &str) -> String {
        match self {
            WatchedResource::ApiServices => format!("{source}, APIService {name:?}"),
            WatchedResource::Services(namespace) => format!("{source}, Service \"{namespace}/{name}\""),
            WatchedResource::EndpointSlices(namespace) => format!("{source}, EndpointSlice \"{namespace}/{name}\""),
        }
    }
}
