//! JSON patch and merge patch, with limits so that a small patch cannot create a huge object.

use json_patch::{Patch, PatchOperation};
use serde_json::Value;

use super::api_errors;
use crate::kubeapi::Status;

/// kube-apiserver's limit (`maxJSONPatchOperations`).
const MAX_OPERATIONS: usize = 10_000;
/// Byte limit of all `copy` and `move` operations together: copying the object into itself doubles it every time.
const MAX_MOVED_BYTES: usize = 3 * 1024 * 1024;
/// Depth limit of a patch; deeper values overflow the stack of recursive code.
const MAX_DEPTH: usize = 100;

/// The format of a PATCH body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchKind {
    Json,
    Merge,
    Apply,
}

impl PatchKind {
    /// Parses the `Content-Type`, ignoring parameters. 415 for unsupported formats; as for custom resources, these
    /// include the strategic merge patch.
    pub(super) fn from_content_type(content_type: &str) -> Result<PatchKind, Status> {
        match content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase().as_str() {
            "application/json-patch+json" => Ok(PatchKind::Json),
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/apply-patch+yaml" => Ok(PatchKind::Apply),
            _ => Err(api_errors::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

/// Applies the JSON patch in `body` to `current` (RFC 6902).
pub(super) fn json_patch(current: &Value, body: &[u8]) -> Result<Value, Status> {
    let Patch(operations) =
        serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    if operations.len() > MAX_OPERATIONS {
        let count = operations.len();
        let message = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {count}");
        return Err(Status::new(413, "RequestEntityTooLarge", message));
    }
    let mut patched = current.clone();
    let mut budget = MAX_MOVED_BYTES;
    for operation in &operations {
        let mut depth = operation.path().count();
        let from = match operation {
            PatchOperation::Copy(copy) => Some(&copy.from),
            PatchOperation::Move(moved) => Some(&moved.from),
            _ => None,
        };
        if let Some(value) = from.and_then(|from| from.resolve(&patched).ok()) {
            depth += measure(value, &mut budget);
        }
        if budget == 0 || depth > 2 * MAX_DEPTH || operation.path().count() > MAX_DEPTH {
            return Err(Status::request_entity_too_large("the JSON patch moves or nests too much"));
        }
        // No rollback needed: `patched` is dropped when an operation fails.
        json_patch::patch_unsafe(&mut patched, std::slice::from_ref(operation))
            .map_err(|error| api_errors::patch_does_not_apply(error.kind.to_string()))?;
    }
    Ok(patched)
}

/// Applies the merge patch in `body` to `current` (RFC 7396).
pub(super) fn merge_patch(current: &Value, body: &[u8]) -> Result<Value, Status> {
    let patch: Value =
        serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("error decoding patch: {error}")))?;
    let mut patched = current.clone();
    json_patch::merge(&mut patched, &patch);
    Ok(patched)
}

/// Returns the depth of `value`; subtracts its approximate size from `budget` and stops when that is used up.
fn measure(value: &Value, budget: &mut usize) -> usize {
    *budget = budget.saturating_sub(8 + value.as_str().map_or(0, str::len));
    let mut deepest = 0;
    match value {
        Value::Array(values) => {
            for value in values {
                if *budget == 0 {
                    break;
                }
                deepest = deepest.max(measure(value, budget));
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields {
                if *budget == 0 {
                    break;
                }
                *budget = budget.saturating_sub(name.len());
                deepest = deepest.max(measure(value, budget));
            }
        }
        _ => {}
    }
    deepest + 1
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_merge_patch_apply() {
        let current = json!({"spec": {"message": "hi", "language": "en"}});
        let body = br#"[{"op": "test", "path": "/spec/message", "value": "hi"},
            {"op": "replace", "path": "/spec/message", "value": "hello"}, {"op": "remove", "path": "/spec/language"}]"#;
        assert_eq!(json_patch(&current, body).unwrap(), json!({"spec": {"message": "hello"}}));
        let body = br#"{"spec": {"message": null, "to": ["ann"]}}"#;
        assert_eq!(merge_patch(&current, body).unwrap(), json!({"spec": {"language": "en", "to": ["ann"]}}));
    }

    #[test]
    fn json_patch_errors_are_422_or_400() {
        let code = |body: &[u8]| json_patch(&json!({"a": 1}), body).unwrap_err().code;
        assert_eq!(code(br#"[{"op": "test", "path": "/a", "value": 2}]"#), 422);
        assert_eq!(code(br#"[{"op": "remove", "path": "/b"}]"#), 422);
        assert_eq!(code(br#"[{"op": "move", "from": "", "path": "/a/b"}]"#), 422);
        assert_eq!(code(br#"{"op": "remove"}"#), 400);
        assert_eq!(code(b"[{"), 400);
    }

    #[test]
    fn json_patch_bounded_in_size_and_depth() {
        let code = |operations: Vec<Value>| {
            json_patch(&json!({"x": "0123456789"}), Value::Array(operations).to_string().as_bytes()).unwrap_err().code
        };
        let doubling = (0..60).map(|n| json!({"op": "copy", "from": "", "path": format!("/y{n}")})).collect();
        assert_eq!(code(doubling), 413);
        let nesting = (0..3000)
            .flat_map(|_| {
                [
                    json!({"op": "add", "path": "/y", "value": {}}),
                    json!({"op": "move", "from": "/x", "path": "/y/x"}),
                    json!({"op": "move", "from": "/y", "path": "/x"}),
                ]
            })
            .collect();
        assert_eq!(code(nesting), 413);
        assert_eq!(code(vec![json!({"op": "remove", "path": "/x"}); 10_001]), 413);
    }
}
