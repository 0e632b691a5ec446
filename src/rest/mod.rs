//! The embedded API server: objects of built-in kinds are created, read, watched, changed and deleted in the store.
//!
//! `dispatch` calls one function per verb. The order of the checks is Kubernetes' (`k8s.io/apiserver/pkg/endpoints/handlers`
//! and `pkg/registry/generic/registry/store.go`) and is what clients see.

mod address_range;
mod admission;
mod admission_plugins;
mod api_server;
mod binding;
mod collected_objects;
mod component_status;
#[cfg(test)]
mod cost_tests;
#[cfg(test)]
mod crd_tests;
mod create;
#[cfg(test)]
mod custom_resource_tests;
mod delete;
mod delete_options;
mod dispatch;
mod enforcement;
mod errors;
mod escalation;
mod event_recorder;
mod eviction;
mod kubelet_streams;
mod last_uses;
mod leftovers;
mod metadata;
mod namespace;
mod object_publisher;
mod object_removal;
mod object_type;
mod patch;
mod proxy;
mod read;
mod removal_queues;
mod representation;
mod request;
mod request_body;
mod scale;
mod service_allocation;
mod service_allocator;
mod service_settings;
mod subresource_kind;
mod target;
#[cfg(test)]
pub(crate) mod test_support;
mod token_request;
mod unenforced_kinds;
mod update;
mod warnings;
mod watch;
mod write;
mod write_options;

pub use self::admission_plugins::DisabledPlugins;
pub use self::api_server::{ApiServer, ApiServerSettings, DEFAULT_KEY_ROOT};
pub(crate) use self::delete_options::PropagationPolicy;
pub(crate) use self::errors::{finish_write, unavailable};
pub(crate) use self::event_recorder::EventReport;
pub(crate) use self::last_uses::LastUses;
pub(crate) use self::metadata::{is_removable, new_object, now};
pub(crate) use self::namespace::create_empty;
pub use self::object_publisher::ObjectPublisher;
pub(crate) use self::object_removal::remove_objects;
pub(crate) use self::removal_queues::CrdIdentity;
pub use self::request::{ApiRequest, FailedRequest};
pub(crate) use self::service_allocator::{AllocationKey, ServiceName};
pub use self::service_settings::{ServiceSettings, parse_port_range, parse_service_ranges};
pub use self::write_options::FieldValidation;
pub(crate) use self::write_options::check_create_options;
