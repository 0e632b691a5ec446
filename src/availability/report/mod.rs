//! The APIServices as `kubectl get apiservices` reads them: the registry's objects with the condition we
//! computed, read-only, below `/apis/apiregistration.k8s.io/v1/apiservices`.
//!
//! One task keeps a [`View`] of all objects and their latest changes; requests and watches only read it.

mod object;
mod serve;
mod table;
mod view;
mod watch;

pub use serve::Reports;
pub use view::{View, follow};
