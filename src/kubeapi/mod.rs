//! Conventions of the Kubernetes API: versions, paths, queries, selectors, `Status`, encodings. No I/O.

mod bounded_yaml;
/// `continue` of a list.
pub mod continue_token;
/// Durations as Go writes them, and the `timeout` of a request.
pub mod duration;
/// `Status` as bytes: JSON, YAML, CBOR, protobuf.
pub mod encode;
/// Keys of `X-Remote-Extra-*`.
pub mod extra_key;
/// Validation errors of fields.
pub mod field_error;
mod forbidden;
mod go_quote;
/// URLs as in Go.
pub mod go_url;
mod go_value;
/// Durations for people, as in the column Age.
pub mod human_duration;
/// IP addresses and CIDR ranges of fields.
pub mod ip_address;
/// JSON of API objects, as Go reads and writes it.
pub mod json;
/// The JSONPath of printer columns.
pub mod json_path;
/// `ListOptions` of a list or watch.
pub mod list_options;
/// Rules for names, labels and keys.
pub mod names;
/// `metadata` of an object.
pub mod object_meta;
/// Canonical request paths.
pub mod path;
mod percent;
/// Protobuf: the wire format, and objects by tables of their message types.
pub mod protobuf;
/// The query of a request.
pub mod query;
mod request_info;
mod retry_after;
mod selector;
mod status;
mod user;
/// API versions and their order.
pub mod version;
/// YAML bodies, as API servers read them.
pub mod yaml;

pub use bounded_yaml::{YamlError, read_bounded_yaml};
pub use encode::{StatusEncoding, encode};
pub use go_quote::{GoQuoted, is_print};
pub use go_value::{format_go_value, go_type};
pub use names::{is_dns_subdomain, is_label_key, is_label_value};
pub use path::CanonicalPath;
pub use query::Query;
pub use request_info::{RequestInfo, verb_of};
pub use retry_after::RetryAfter;
pub use selector::field_selector::{FieldSelector, FieldTerm, SelectorError};
pub use selector::label_selector::{LabelOperator, LabelRequirement, LabelSelector};
pub use status::{Status, StatusCause, StatusDetails};
pub use user::User;
pub use version::{GroupVersion, compare_by_priority, compare_kube_aware};
