//! `/openapi/v2`: the documents of all backends merged into one, with the rules of kube-openapi.
//!
//! Most of kubectl looks at version 3 first. But whatever it does not find there (a manifest of a kind that nobody
//! serves, for one) it looks up here, and if there is nothing at all it gives up with "error validating data: the
//! server could not find the requested resource" instead of naming the kind (`kubectl/pkg/validation`,
//! `cli-runtime/pkg/resource`). Argo CD, Terraform and older clients know nothing else.

mod aggregation;
mod as_version3;
mod form;
mod judge;
mod merge;
mod part;
mod protobuf;
mod serve;

use crate::discovery::{Document, FetchError};

pub use aggregation::Aggregation2;
pub use serve::Version2;

/// The document of version 3 that says what `body`, one of version 2, says of the paths that begin with `prefix`;
/// none if it says nothing of them.
///
/// # Errors
/// When `body` has not the form it must have.
pub(super) fn as_version3(body: &[u8], prefix: &str) -> Result<Option<Document>, FetchError> {
    let part = part::Part::read(body, Some(prefix))?;
    Ok((!part.paths.is_empty()).then(|| Document::of(&as_version3::convert(&part))))
}

/// One document of several, as JSON and as protobuf, without any of the machinery around it. Each comes with what the
/// paths begin with that its source owns; none for a source that owns all.
///
/// # Errors
/// When a document has not the form it must have.
pub fn merge_documents(sources: &[(Option<&str>, &[u8])]) -> Result<(String, Vec<u8>), FetchError> {
    let mut merged = merge::Merged::default();
    for (prefix, document) in sources {
        merged.add(&part::Part::read(document, *prefix)?, |_| true);
    }
    let json = merged.write();
    let binary = protobuf::encode(json.as_bytes());
    Ok((json, binary.ok_or_else(|| FetchError::new("it cannot be written as protobuf"))?))
}
