//! How a strategic merge patch merges the fields of built-in kinds.

use std::sync::LazyLock;

use kubeapi::patch::{FieldMerge, MergeSchema, MergeStrategy};
use kubeapi::protobuf::table::{GoType, MessageId};

use super::builtin_kinds;

/// The merge strategies and merge keys of a message type.
#[derive(Debug)]
pub struct MessageMergeSchema {
    message: MessageId,
}

/// The merge schema of a message type of [`builtin_kinds`].
pub fn merge_schema(message: MessageId) -> Option<&'static MessageMergeSchema> {
    static SCHEMAS: LazyLock<Vec<MessageMergeSchema>> = LazyLock::new(|| {
        builtin_kinds().messages.identifiers().map(|message| MessageMergeSchema { message }).collect()
    });
    SCHEMAS.get(message.index())
}

impl MergeSchema for MessageMergeSchema {
    fn merge_field(&self, name: &str) -> Option<FieldMerge<'_>> {
        let (field, _) = builtin_kinds().messages.field(self.message, name)?;
        let mut strategy = MergeStrategy::Unspecified;
        for part in field.patch_strategy.split(',') {
            match part {
                "merge" => strategy = MergeStrategy::Merge,
                "replace" => strategy = MergeStrategy::Replace,
                _ => {}
            }
        }
        let merge_key = Some(field.patch_merge_key).filter(|key| !key.is_empty());
        let child = child_message(&field.go_type).and_then(merge_schema);
        Some(FieldMerge { strategy, merge_key, child: child.map(|child| child as &dyn MergeSchema) })
    }
}

/// Message type of an object, or of the items of a list.
fn child_message(go_type: &GoType) -> Option<MessageId> {
    match go_type {
        GoType::Message(message) => Some(*message),
        GoType::Pointer(inner) | GoType::List(inner) => child_message(inner),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field<'s>(schema: &'s dyn MergeSchema, name: &str) -> FieldMerge<'s> {
        schema.merge_field(name).unwrap()
    }

    #[test]
    fn merge_schema_finds_keys_of_nested_lists() {
        let services = builtin_kinds().find("", "v1", "services").unwrap();
        let service = merge_schema(services.version.message().unwrap()).unwrap();
        let ports = field(field(service, "spec").child.unwrap(), "ports");
        assert_eq!((ports.strategy, ports.merge_key), (MergeStrategy::Merge, Some("port")));
        assert!(ports.child.unwrap().merge_field("targetPort").unwrap().child.is_none());
        let metadata = field(service, "metadata").child.unwrap();
        assert_eq!(field(metadata, "finalizers").strategy, MergeStrategy::Merge);
        assert!(metadata.merge_field("foo").is_none());
        let pods = builtin_kinds().find("", "v1", "pods").unwrap();
        let volumes =
            field(field(merge_schema(pods.version.message().unwrap()).unwrap(), "spec").child.unwrap(), "volumes");
        assert_eq!((volumes.strategy, volumes.merge_key), (MergeStrategy::Merge, Some("name")));
        assert!(volumes.child.unwrap().merge_field("configMap").unwrap().child.is_some());
    }
}
