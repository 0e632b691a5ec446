//! Conventions of the Kubernetes API: versions, paths, queries, selectors, `Status`, encodings; structural schemas and
//! patches. No I/O.
#![doc = include_str!("../README.md")]

// Modules are declared in dependency order, as in the root package: the blank lines keep rustfmt from sorting them by name.

mod bounded_yaml;
mod go_quote;
/// Durations for people, as in the column Age.
pub mod human_duration;
/// Rules for names, labels and keys.
pub mod names;
mod percent;
mod retry_after;
mod user;
/// API versions and their order.
pub mod version;

/// Keys of `X-Remote-Extra-*`.
pub mod extra_key;
/// URLs as in Go.
pub mod go_url;
/// JSON of API objects, as Go reads and writes it.
pub mod json;
/// Amounts of resources.
pub mod quantity;
/// The query of a request.
pub mod query;
mod status;

/// `continue` of a list.
pub mod continue_token;
/// Durations as Go writes them, and the `timeout` of a request.
pub mod duration;
/// Validation errors of fields.
pub mod field_error;
mod go_value;
/// The JSONPath of printer columns.
pub mod json_path;
/// Canonical request paths.
pub mod path;
/// Protobuf: the wire format, and objects by tables of their message types.
pub mod protobuf;
/// YAML bodies, as API servers read them.
pub mod yaml;

/// `Status` as bytes: JSON, YAML, CBOR, protobuf.
pub mod encode;
/// IP addresses and CIDR ranges of fields.
pub mod ip_address;
/// `metadata` of an object.
pub mod object_meta;
mod selector;

/// `ListOptions` of a list or watch.
pub mod list_options;
mod request_info;

mod forbidden;

/// Structural schemas: pruning, defaults, validation.
pub mod schema;

/// Patches: JSON patch, merge patch, strategic merge patch.
pub mod patch;

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
pub use user::{CREDENTIAL_ID, User, token_credential_id};
pub use version::{GroupVersion, compare_by_priority, compare_kube_aware};
