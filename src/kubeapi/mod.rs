//! Conventions of the Kubernetes API: versions, paths, queries, selectors, `Status`, encodings. No I/O.

mod bounded_yaml;
/// Durations as Go writes them, and the `timeout` of a request.
pub mod duration;
/// `Status` as bytes: JSON, YAML, CBOR, protobuf.
pub mod encode;
/// Keys of `X-Remote-Extra-*`.
pub mod extra_key;
mod go_quote;
/// Canonical request paths.
pub mod path;
mod percent;
pub(crate) mod protobuf;
/// The query of a request.
pub mod query;
mod request_info;
mod retry_after;
mod selector;
mod status;
mod user;
/// API versions and their order.
pub mod version;
mod watch_options;

pub use bounded_yaml::{YamlError, read_bounded_yaml};
pub use encode::{StatusEncoding, encode};
pub use go_quote::GoQuoted;
pub use path::CanonicalPath;
pub use query::Query;
pub use request_info::{RequestInfo, verb_of};
pub use retry_after::RetryAfter;
pub use selector::field_selector::{FieldSelector, FieldTerm, SelectorError};
pub use selector::label_selector::{
    LabelOperator, LabelRequirement, LabelSelector, is_dns_subdomain, is_label_key, is_label_value,
};
pub use status::{Status, StatusCause, StatusDetails};
pub use user::User;
pub use version::{GroupVersion, compare_by_priority, compare_kube_aware};
pub use watch_options::{WatchOptions, resource_version};
