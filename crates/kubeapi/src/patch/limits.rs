//! Limits of a patch: operations, copied bytes, nesting.

use serde_json::Value;

use super::PatchError;
use crate::json::{MAX_JSON_DEPTH, is_costly_beyond, write_json};

/// Maximum number of operations of a JSON patch (`maxJSONPatchOperations`).
pub const MAX_JSON_PATCH_OPERATIONS: usize = 10_000;
/// Maximum size of all that the copy operations of a JSON patch add, in bytes (`JSONPatchMaxCopyBytes`).
pub const MAX_COPIED_BYTES: usize = 3 * 1024 * 1024;

/// Maximum number of steps that a JSON patch may take: values that are looked at, and 8 items of a list that are moved.
/// 10,000 operations at the beginning of a list of 25,000 items are within it.
const MAX_JSON_PATCH_STEPS: usize = 1 << 25;
/// Maximum number of items of lists that a strategic merge patch may compare. One that names each item once compares a
/// few times as many as the object and the patch have.
const MAX_COMPARED_ITEMS: usize = 1 << 21;

/// Size in bytes from which a patch of many small values is refused: that of the largest object a store takes.
const MAX_COSTLY_BYTES: usize = 3 << 19;

/// Counts what a patch takes that costs more than its size.
pub(super) struct PatchWork {
    left: usize,
    /// What is refused.
    what: &'static str,
}

impl PatchWork {
    /// The work of a JSON patch.
    pub(super) fn of_json_patch() -> PatchWork {
        PatchWork { left: MAX_JSON_PATCH_STEPS, what: "The JSON patch takes too many steps" }
    }

    /// The work of a strategic merge patch.
    pub(super) fn of_strategic_patch() -> PatchWork {
        PatchWork { left: MAX_COMPARED_ITEMS, what: "The strategic merge patch compares too many list items" }
    }

    /// Counts steps.
    pub(super) fn spend(&mut self, steps: usize) -> Result<(), PatchError> {
        self.left = self.left.checked_sub(steps).ok_or_else(|| {
            PatchError::TooLarge(format!("{}; split it, or send the whole object with an update", self.what))
        })?;
        Ok(())
    }

    /// Counts the items of a list that make or fill a gap.
    pub(super) fn spend_moved(&mut self, items: usize) -> Result<(), PatchError> {
        self.spend(1 + items / 8)
    }
}

/// Refuses a large patch of many small values: it takes a hundred times its size in memory, and again in the result.
pub(super) fn check_memory(patch: &Value) -> Result<(), PatchError> {
    match is_costly_beyond(patch, MAX_COSTLY_BYTES) {
        true => Err(PatchError::TooLarge(format!("limit is {MAX_COSTLY_BYTES}"))),
        false => Ok(()),
    }
}

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
pub(super) fn check_depth(value: &Value, depth: usize, work: &mut PatchWork) -> Result<(), PatchError> {
    if fits_depth(value, MAX_JSON_DEPTH.saturating_sub(depth), work)? {
        return Ok(());
    }
    Err(PatchError::Rejected(format!("the patched document exceeds {MAX_JSON_DEPTH} levels")))
}

fn fits_depth(value: &Value, levels: usize, work: &mut PatchWork) -> Result<bool, PatchError> {
    work.spend(1)?;
    let mut fits_all = |values: &mut dyn Iterator<Item = &Value>| {
        for value in values {
            if levels == 0 || !fits_depth(value, levels - 1, work)? {
                return Ok(false);
            }
        }
        Ok(levels > 0)
    };
    match value {
        Value::Array(items) => fits_all(&mut items.iter()),
        Value::Object(map) => fits_all(&mut map.values()),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{FieldMerge, JsonPatch, MergeSchema, MergeStrategy, StrategicPatch};
    use super::*;

    #[test]
    fn json_patch_that_moves_many_items_over_and_over_is_refused() {
        let patched = |items: usize, operations: usize| {
            let operation = json!({"op": "add", "path": "/a/0", "value": 1});
            let patch: Value = (0..operations).map(|_| operation.clone()).collect();
            let (patch, _) = JsonPatch::parse(patch.to_string().as_bytes(), true).unwrap();
            patch.apply(json!({"a": vec![0; items]})).map(|document| document["a"].as_array().unwrap().len())
        };
        assert_eq!(patched(10_000, 1000), Ok(11_000));
        let error = patched(300_000, 1000).unwrap_err();
        assert!(error.to_string().starts_with("The JSON patch takes too many steps; split it"), "{error}");
        assert_eq!(error.status().code, 413);
    }

    #[test]
    fn json_patch_that_moves_a_large_value_over_and_over_is_refused() {
        let operations = (0..5000).flat_map(|_| {
            [json!({"op": "move", "from": "/a", "path": "/b/c"}), json!({"op": "move", "from": "/b/c", "path": "/a"})]
        });
        let (patch, _) = JsonPatch::parse(operations.collect::<Value>().to_string().as_bytes(), true).unwrap();
        let applied = |items: usize| patch.apply(json!({"a": vec![0; items], "b": {}})).map(|_| ());
        assert_eq!(applied(1000), Ok(()));
        assert_eq!(applied(10_000).unwrap_err().status().code, 413);
    }

    /// Lists that are merged by their field `k`.
    struct KeyedSchema;

    impl MergeSchema for KeyedSchema {
        fn merge_field(&self, _: &str) -> Option<FieldMerge<'_>> {
            Some(FieldMerge { strategy: MergeStrategy::Merge, merge_key: Some("k"), child: Some(&KeyedSchema) })
        }
    }

    #[test]
    fn strategic_patch_that_merges_one_list_over_and_over_is_refused() {
        let merged = |patch: Value| {
            let (patch, _) = StrategicPatch::parse(json!({"a": patch}).to_string().as_bytes()).unwrap();
            patch.apply(Default::default(), &KeyedSchema)?;
            let before = json!({"a": [{"k": "same", "b": []}]});
            patch.apply(before.as_object().unwrap().clone(), &KeyedSchema).map(|_| ())
        };
        // Each item adds one to the same inner list.
        let same = |count: usize| -> Value { (0..count).map(|at| json!({"k": "same", "b": [{"k": at}]})).collect() };
        let different = |count: usize| -> Value { (0..count).map(|at| json!({"k": at, "b": [{"k": at}]})).collect() };
        assert_eq!((merged(same(500)), merged(different(20_000))), (Ok(()), Ok(())));
        let error = merged(same(5000)).unwrap_err();
        assert!(error.to_string().starts_with("The strategic merge patch compares too many list items"), "{error}");
    }
}
