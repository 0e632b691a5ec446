//! Limits of a patch: operations, copied bytes, nesting.

use serde_json::Value;

use super::PatchError;
use crate::kubeapi::json::{MAX_JSON_DEPTH, write_json};

/// Maximum number of operations of a JSON patch (`maxJSONPatchOperations`).
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;
/// Maximum size of all that the copy operations of a JSON patch add, in bytes (`JSONPatchMaxCopyBytes`).
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Refuses a JSON patch with too many operations.
pub(super) fn check_operations(count: usize) -> Result<(), PatchError> {
    if count <= MAX_JSON_PATCH_OPERATIONS {
        return Ok(());
    }
    Err(PatchError::TooLarge(format!(
        "The allowed maximum operations in a JSON patch is {MAX_JSON_PATCH_OPERATIONS}, got {count}"
    )))
}

/// Number of bytes that copy operations added so far.
#[derive(Default)]
pub(super) struct CopiedBytes(usize);

impl CopiedBytes {
    /// Counts the size of a copied value.
    pub(super) fn add(&mut self, value: &Value) -> Result<(), PatchError> {
        self.0 = self.0.saturating_add(write_json(value).len());
        if self.0 <= MAX_COPIED_BYTES {
            return Ok(());
        }
        Err(PatchError::Rejected(format!(
            "Unable to complete the copy, the accumulated size increase of copy is {}, exceeding the limit \
             {MAX_COPIED_BYTES}",
            self.0
        )))
    }
}

/// Refuses a value that would nest the document deeper than one that is read. `depth` is that of the place where the
/// value goes.
pub(super) fn check_depth(value: &Value, depth: usize) -> Result<(), PatchError> {
    if fits_depth(value, MAX_JSON_DEPTH.saturating_sub(depth)) {
        return Ok(());
    }
    Err(PatchError::Rejected(format!("the patched document exceeds {MAX_JSON_DEPTH} levels")))
}

fn fits_depth(value: &Value, levels: usize) -> bool {
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(|item| fits_depth(item, levels - 1)),
        Value::Object(map) => levels > 0 && map.values().all(|value| fits_depth(value, levels - 1)),
        _ => true,
    }
}
