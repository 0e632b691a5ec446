//! APIServices as a read-only API, as `kubectl get apiservices` reads them, below
//! `/apis/apiregistration.k8s.io/v1/apiservices`: the registry's objects with the computed condition.
//!
//! One task maintains a [`ApiServiceView`] of all objects and their latest changes; requests and watches only read it.

mod object;
mod object_filter;
mod serve;
mod table;
mod view;
mod watch;

pub use serve::ApiServiceHandler;
pub use view::{ApiServiceView, publish_views};
