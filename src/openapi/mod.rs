//! OpenAPI v3: a merged index of all backends' documents, in which each backend may only list its own group and
//! version. The documents themselves are relayed to the backend that [`Index::find`] names; those of resources that the
//! gateway serves itself are built from the catalog. OpenAPI v2: one merged document.
//!
//! kubectl needs them for `explain`, `apply` and the validation of `create`. A backend without `/openapi/v3` is absent
//! from the index, and kubectl works without it.

mod aggregation;
mod builtin;
mod document_hash;
mod index;
mod serve;
mod v2;

pub use aggregation::OpenApiAggregator;
pub use builtin::build_v2;
pub use document_hash::{mark_immutable, split_hash};
pub use index::Index;
pub use serve::{OpenApiDocument, OpenApiPath};
pub use v2::{BuildLocalV2, LocalPart, OpenApiV2, OpenApiV2Aggregator, merge_documents};

#[cfg(test)]
pub(crate) use index::tests::relayed_documents;
