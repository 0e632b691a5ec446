//! `/openapi/v2`: the documents of all backends merged into one, with the rules of kube-openapi.
//!
//! Most of kubectl looks at version 3 first. But whatever it does not find there (a manifest of a kind that nobody
//! serves, for one) it looks up here, and if there is nothing at all it gives up with "error validating data: the
//! server could not find the requested resource" instead of naming the kind (`kubectl/pkg/validation`,
//! `cli-runtime/pkg/resource`). Argo CD, Terraform and older clients know nothing else.

mod aggregation;
mod form;
mod judge;
mod merge;
mod part;
mod protobuf;
mod serve;

pub use aggregation::{Aggregation2, MAX_DOCUMENT};
pub use serve::Version2;
