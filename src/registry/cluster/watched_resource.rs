//! The collections of a kube-apiserver that are watched.

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
    /// Location of the object `name`, for problems.
    pub(super) fn location(&self, name: &str) -> String {
        match self {
            WatchedResource::ApiServices => format!("kube-apiserver, APIService {name:?}"),
            WatchedResource::Services(namespace) => format!("kube-apiserver, Service \"{namespace}/{name}\""),
            WatchedResource::EndpointSlices(namespace) => {
                format!("kube-apiserver, EndpointSlice \"{namespace}/{name}\"")
            }
        }
    }
}
