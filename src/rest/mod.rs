//! The embedded API server: objects of built-in kinds are created, read, watched, changed and deleted in the store.
//!
//! `dispatch` calls one function per verb. The order of the checks is Kubernetes' (`k8s.io/apiserver/pkg/endpoints/handlers`
//! and `pkg/registry/generic/registry/store.go`) and is what clients see.

mod api_server;
mod bootstrap;
#[cfg(test)]
mod cost_tests;
mod crd_controller;
#[cfg(test)]
mod crd_tests;
mod create;
#[cfg(test)]
mod custom_resource_tests;
mod delete;
mod delete_options;
mod dispatch;
mod errors;
mod leftovers;
mod local_api_services;
mod metadata;
mod namespace;
mod namespace_conditions;
mod object_publisher;
mod object_removal;
mod object_type;
mod patch;
mod read;
mod removals;
mod representation;
mod request;
mod request_body;
mod scale;
mod target;
mod update;
mod warnings;
mod watch;
mod write_options;

pub use self::api_server::{ApiServer, ApiServerSettings};
pub use self::bootstrap::create_initial_objects;
pub use self::crd_controller::CrdController;
pub use self::object_publisher::ObjectPublisher;
pub use self::request::{ApiRequest, FailedRequest};
pub use self::write_options::FieldValidation;
