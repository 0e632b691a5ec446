//! Label and field selectors of lists and watches.

use serde_json::Value;

use super::object;
use crate::kubeapi::{FieldSelector, LabelSelector, Status};

/// A label selector and a field selector; an object must match both.
pub(super) struct ObjectSelector {
    labels: LabelSelector,
    fields: FieldSelector,
}

impl ObjectSelector {
    /// Parses both; rejects with 400 invalid selectors and fields other than `metadata.name` and `metadata.namespace`,
    /// as for custom resources without selectable fields.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<ObjectSelector, Status> {
        let labels = LabelSelector::parse(labels).map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(fields).map_err(|error| Status::bad_request(error.to_string()))?;
        let known = |field: &str| matches!(field, "metadata.name" | "metadata.namespace");
        match fields.terms.iter().find(|term| !known(&term.field)) {
            Some(term) => Err(Status::bad_request(format!("field label not supported: {}", term.field))),
            None => Ok(ObjectSelector { labels, fields }),
        }
    }

    /// Whether every object matches.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.requirements.is_empty() && self.fields.terms.is_empty()
    }

    /// Whether `object` matches.
    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.labels.matches(|key| labels.and_then(|labels| labels.get(key)).and_then(Value::as_str))
            && self.fields.matches(|field| match field {
                "metadata.name" => object::name(object),
                _ => object::namespace(object),
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selector_matches_labels_name_and_namespace() {
        let object = json!({"metadata": {"name": "hello", "namespace": "default", "labels": {"tone": "warm"}}});
        let matches = |labels, fields| ObjectSelector::parse(labels, fields).unwrap().matches(&object);
        assert!(matches("", ""));
        assert!(matches("tone=warm,tone notin (cold),!other", "metadata.name=hello,metadata.namespace!=other"));
        assert!(!matches("tone!=warm", ""));
        assert!(!matches("tone", "metadata.namespace==other"));
    }

    #[test]
    fn selector_rejects_unsupported_terms() {
        let refusal =
            |labels, fields| ObjectSelector::parse(labels, fields).err().map(|status| (status.code, status.message));
        assert!(refusal("tone in warm", "").is_some_and(|(code, _)| code == 400));
        assert!(refusal("", "metadata.name").is_some_and(|(code, _)| code == 400));
        assert_eq!(refusal("", "spec.x=y"), Some((400, "field label not supported: spec.x".into())));
    }
}
