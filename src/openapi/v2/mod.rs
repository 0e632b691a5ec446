//! `/openapi/v2`: the documents of all backends merged into one, by the rules of kube-openapi.
//!
//! Most of kubectl uses v3 first. But what it does not find there (a manifest of an unknown kind, for example) it looks
//! up here, and without any document it fails with "error validating data: the server could not find the requested
//! resource" instead of naming the kind (`kubectl/pkg/validation`, `cli-runtime/pkg/resource`). Argo CD, Terraform and
//! older clients use v2 only.

mod aggregation;
mod convert_v3;
mod local_parts;
mod merge;
mod merge_task;
mod poll_source;
mod protobuf;
mod schema_table;
mod serve;
mod source_document;
mod validate;

use crate::discovery::{EncodedDocument, FetchError};

pub use aggregation::OpenApiV2Aggregator;
pub(super) use convert_v3::path_to_v3;
pub use local_parts::{BuildLocalV2, LocalPart};
pub use serve::OpenApiV2;

/// Converts `body`, an OpenAPI v2 document, to v3, as far as its paths begin with `prefix`; `None` if none do.
///
/// # Errors
///
/// If `body` is not a valid document.
pub(super) fn convert_to_v3(body: &[u8], prefix: &str) -> Result<Option<EncodedDocument>, FetchError> {
    let part = source_document::SourceDocument::parse(body, Some(prefix))?;
    Ok((!part.paths.is_empty()).then(|| EncodedDocument::from_value(&convert_v3::convert(&part))))
}

/// Merges documents into one, as JSON and as protobuf, without fetching or caching. Each comes with the path prefix
/// that its source owns; `None` for a source that owns all paths.
///
/// # Errors
///
/// If a document is invalid.
pub fn merge_documents(sources: &[(Option<&str>, &[u8])]) -> Result<(String, Vec<u8>), FetchError> {
    let mut merged = merge::DocumentMerger::default();
    for (prefix, document) in sources {
        merged.add(&source_document::SourceDocument::parse(document, *prefix)?, |_| true);
    }
    let json = merged.to_json();
    let binary = protobuf::encode(json.as_bytes());
    Ok((json, binary.ok_or_else(|| FetchError::new("the merged document cannot be encoded as protobuf"))?))
}
