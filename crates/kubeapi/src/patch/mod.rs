//! Patches of objects: JSON patch, JSON merge patch and strategic merge patch, with a kube-apiserver's limits and
//! refusals (`k8s.io/apiserver/pkg/endpoints/handlers/patch.go`). Functions from values to values.

mod directives;
mod json;
mod limits;
mod merge;
mod strategic;

use std::fmt;

use crate::Status;

pub use crate::schema::MergeStrategy;
pub use json::JsonPatch;
pub use limits::{MAX_COPIED_BYTES, MAX_JSON_PATCH_OPERATIONS};
pub use merge::MergePatch;
pub use strategic::{FieldMerge, MergeSchema, StrategicPatch};

/// A patch that cannot be read or applied. Its text is Kubernetes'.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PatchError {
    /// 400: the body is no patch.
    Malformed(String),
    /// 413: the patch has too many operations.
    TooLarge(String),
    /// 422: the patch does not apply. Clients are not told why; the text is for the log.
    Rejected(String),
    /// 500 without a reason, as in Kubernetes: directives that do not fit the object.
    Unmergeable(String),
    /// 504: it took too long.
    Abandoned,
}

impl PatchError {
    /// The refusal for the client.
    pub fn status(&self) -> Status {
        match self {
            PatchError::Malformed(why) => Status::bad_request(why.as_str()),
            PatchError::TooLarge(why) => Status::request_entity_too_large(why),
            PatchError::Rejected(_) => Status::request_rejected(),
            PatchError::Unmergeable(why) => Status::new(500, "", why.as_str()),
            PatchError::Abandoned => Status::timeout("request did not complete within the allotted timeout"),
        }
    }
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PatchError::Malformed(why)
            | PatchError::TooLarge(why)
            | PatchError::Rejected(why)
            | PatchError::Unmergeable(why) => why,
            PatchError::Abandoned => "the patch was given up: it takes too long",
        })
    }
}

impl std::error::Error for PatchError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patch_error_statuses() {
        let status = PatchError::Rejected("testing value /a failed: test failed".into()).status();
        assert_eq!((status.code, status.reason), (422, "Invalid"));
        assert_eq!(status.message, "the server rejected our request due to an error in our request");
        assert_eq!(PatchError::Unmergeable("x".into()).status().reason, "");
    }
}
