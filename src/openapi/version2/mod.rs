//! `/openapi/v2`: the documents of all backends merged into one, by the rules of kube-openapi.
//!
//! Most of kubectl uses v3 first. But what it does not find there (a manifest of an unknown kind, for example) it looks
//! up here, and without any document it fails with "error validating data: the server could not find the requested
//! resource" instead of naming the kind (`kubectl/pkg/validation`, `cli-runtime/pkg/resource`). Argo CD, Terraform and
//! older clients use v2 only.

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

/// Converts `body`, an OpenAPI v2 document, to v3, as far as its paths begin with `prefix`; `None` if none do.
///
/// # Errors
///
/// If `body` is not a valid document.
pub(super) fn as_version3(body: &[u8], prefix: &str) -> Result<Option<Document>, FetchError> {
    let part = part::Part::read(body, Some(prefix))?;
    Ok((!part.paths.is_empty()).then(|| Document::of(&as_version3::convert(&part))))
}

/// Merges documents into one, as JSON and as protobuf, without fetching or caching. Each comes with the path prefix
/// that its source owns; `None` for a source that owns all paths.
///
/// # Errors
///
/// If a document is invalid.
pub fn merge_documents(sources: &[(Option<&str>, &[u8])]) -> Result<(String, Vec<u8>), FetchError> {
    let mut merged = merge::Merged::default();
    for (prefix, document) in sources {
        merged.add(&part::Part::read(document, *prefix)?, |_| true);
    }
    let json = merged.write();
    let binary = protobuf::encode(json.as_bytes());
    Ok((json, binary.ok_or_else(|| FetchError::new("the merged document cannot be encoded as protobuf"))?))
}
