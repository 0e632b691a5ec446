//! How strategic merge patch merges the fields of built-in kinds.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::builtin_kinds;
use crate::kubeapi::protobuf::table::{MessageId, ValueType};
use crate::patch::{FieldMerge, MergeSchema};
use crate::schema::MergeStrategy;

/// The merge schema of a message type.
struct MessageMergeSchema(MessageId);

/// The merge schema of a built-in message type.
pub fn merge_schema(message: MessageId) -> Option<&'static dyn MergeSchema> {
    static SCHEMAS: LazyLock<HashMap<MessageId, MessageMergeSchema>> =
        LazyLock::new(|| builtin_kinds().messages.ids().map(|id| (id, MessageMergeSchema(id))).collect());
    SCHEMAS.get(&message).map(|schema| schema as &dyn MergeSchema)
}

impl MergeSchema for MessageMergeSchema {
    fn merge_field(&self, name: &str) -> Option<FieldMerge<'_>> {
        let (field, _) = builtin_kinds().messages.field(self.0, name)?;
        let mut strategies = field.patch_strategy.split(',').filter(|strategy| *strategy != "retainKeys");
        let strategy = match strategies.next() {
            Some("merge") => MergeStrategy::Merge,
            Some("replace") => MergeStrategy::Replace,
            _ => MergeStrategy::Unspecified,
        };
        let merge_key = Some(field.patch_merge_key).filter(|key| !key.is_empty());
        Some(FieldMerge { strategy, merge_key, child: child_message(&field.value_type).and_then(merge_schema) })
    }
}

/// The message type of a struct, or of the items of a list.
fn child_message(value_type: &ValueType) -> Option<MessageId> {
    match value_type.target() {
        ValueType::Message(id) => Some(*id),
        ValueType::List(item) => match item.target() {
            ValueType::Message(id) => Some(*id),
            _ => None,
        },
        _ => None,
    }
}
