//! OpenAPI v3: a merged index of all backends' documents, in which each backend may only list its own group and
//! version. The documents themselves are relayed to the backend that [`Index::owner`] names. OpenAPI v2: one merged
//! document.
//!
//! kubectl needs them for `explain`, `apply` and the validation of `create`. A backend without `/openapi/v3` is absent
//! from the index, and kubectl works without it.

mod aggregation;
mod index;
mod own;
mod relay;
mod serve;
mod version2;

pub use aggregation::OpenApi;
pub use index::Index;
pub use relay::{seal, split_hash};
pub use serve::answer;
pub use version2::{Aggregation2, Version2, merge_documents};
