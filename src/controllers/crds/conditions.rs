//! Conditions of a CustomResourceDefinition (`pkg/apihelpers/helpers.go` of apiextensions-apiserver).

use std::collections::HashSet;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::schema::PatternBudget;
use kubeapi::schema::props::JsonSchemaProps;
use kubeapi::schema::structural::{conversion_error, validate_structural};
use serde::Deserialize;

use crate::resources::custom::api_approval::{APPROVAL_ANNOTATION, ApprovalState, approval_state, is_protected_group};
use crate::resources::custom::crd::{Crd, CrdCondition};
use crate::rest::now;

/// Type of the condition about schemas that are not structural.
pub(super) const NON_STRUCTURAL: &str = "NonStructuralSchema";
const APPROVAL: &str = "KubernetesAPIApprovalPolicyConformant";

/// A condition as it should be, without a time.
pub(super) fn condition(condition_type: &str, is_true: bool, reason: &str, message: impl Into<String>) -> CrdCondition {
    CrdCondition {
        condition_type: condition_type.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        last_transition_time: None,
        reason: reason.to_owned(),
        message: message.into(),
        observed_generation: None,
    }
}

/// Sets a condition. Its time is now if the status is another one than before.
pub(super) fn set_condition(crd: &mut Crd, mut wanted: CrdCondition) {
    let conditions = crd.status.conditions.get_or_insert_default();
    match conditions.iter_mut().find(|one| one.condition_type == wanted.condition_type) {
        Some(found) => {
            wanted.last_transition_time = match found.status == wanted.status {
                true => found.last_transition_time.clone(),
                false => Some(now()),
            };
            *found = wanted;
        }
        None => {
            wanted.last_transition_time = Some(now());
            conditions.push(wanted);
        }
    }
}

/// Says in the conditions whether the API is approved, if its group is one of the Kubernetes community
/// (`pkg/controller/apiapproval`).
pub(super) fn set_approval_condition(crd: &mut Crd) {
    if !is_protected_group(&crd.spec.group) {
        return;
    }
    let annotations = crd.metadata.annotations.as_ref();
    let annotation = annotations.and_then(|annotations| annotations.get(APPROVAL_ANNOTATION));
    let (state, message) = approval_state(annotation.map(String::as_str).unwrap_or_default());
    let reason = match state {
        ApprovalState::Invalid => "InvalidAnnotation",
        ApprovalState::Approved => "ApprovedAnnotation",
        ApprovalState::Bypassed => "UnapprovedAnnotation",
        ApprovalState::Missing => "MissingAnnotation",
    };
    set_condition(crd, condition(APPROVAL, state == ApprovalState::Approved, reason, message));
}

/// Says in the conditions whether a schema is not structural, as those of CRDs may be that were stored in
/// v1beta1 (`pkg/controller/nonstructuralschema`). `stored` is the stored CRD.
pub(super) fn set_structural_condition(crd: &mut Crd, stored: &[u8]) {
    match structural_condition(crd, stored) {
        Some(wanted) => set_condition(crd, wanted),
        None => {
            if let Some(conditions) = &mut crd.status.conditions {
                conditions.retain(|one| one.condition_type != NON_STRUCTURAL);
            }
        }
    }
}

fn structural_condition(crd: &Crd, stored: &[u8]) -> Option<CrdCondition> {
    let (mut errors, mut patterns) = (FieldErrors::new(), PatternBudget::default());
    if crd.spec.preserve_unknown_fields {
        errors.push(FieldError::invalid("spec.preserveUnknownFields", true, "must be false"));
    }
    for (index, version) in stored_versions(stored).into_iter().enumerate() {
        let Some(schema) = version.schema.and_then(|schema| schema.schema) else { continue };
        if let Some(why) = conversion_error(&schema) {
            let why = format!("failed to check validation schema for version {}: {why}", version.name);
            let unknown = condition(NON_STRUCTURAL, false, "StructuralError", why);
            return Some(CrdCondition { status: "Unknown".to_owned(), ..unknown });
        }
        let path = FieldPath::root("spec.versions");
        let path = path.index(index);
        let path = path.child("schema");
        errors.append(validate_structural(&schema, &path.child("openAPIV3Schema"), &mut patterns));
    }
    let mut seen = HashSet::new();
    let texts = errors.iter().map(ToString::to_string);
    let texts: Vec<String> = texts.filter(|text| seen.insert(text.clone())).collect();
    match texts.as_slice() {
        [] => None,
        [text] => Some(condition(NON_STRUCTURAL, true, "Violations", text)),
        texts => Some(condition(NON_STRUCTURAL, true, "Violations", format!("[{}]", texts.join(", ")))),
    }
}

/// A version of a stored CRD, with its schema.
#[derive(Deserialize)]
struct VersionWithSchema {
    name: String,
    schema: Option<StoredSchema>,
}

#[derive(Deserialize)]
struct StoredSchema {
    #[serde(rename = "openAPIV3Schema")]
    schema: Option<JsonSchemaProps>,
}

/// The versions of a stored CRD; none if they cannot be read.
fn stored_versions(stored: &[u8]) -> Vec<VersionWithSchema> {
    #[derive(Deserialize)]
    struct CrdWithSchemas {
        spec: SpecWithSchemas,
    }
    #[derive(Deserialize)]
    struct SpecWithSchemas {
        versions: Vec<VersionWithSchema>,
    }
    serde_json::from_slice::<CrdWithSchemas>(stored).map(|root| root.spec.versions).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(group: &str, annotations: &Value, schema: &Value) -> (Crd, Vec<u8>) {
        let json = json!({
            "metadata": {"name": format!("foos.{group}"), "annotations": annotations},
            "spec": {"group": group, "names": {"plural": "foos", "kind": "Foo"}, "versions": [
                {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}},
            ]},
        });
        (serde_json::from_value(json.clone()).unwrap(), json.to_string().into_bytes())
    }

    fn condition_of(crd: &Crd, name: &str) -> Option<(String, String, String)> {
        let condition = crd.condition(name)?;
        Some((condition.status.clone(), condition.reason.clone(), condition.message.clone()))
    }

    #[test]
    fn crd_with_non_structural_schema_has_condition_until_it_is_mended() {
        let schema = json!({"type": "object", "properties": {"a": {}, "b": {}}});
        let (mut crd, stored) = read("a.io", &json!({}), &schema);
        set_structural_condition(&mut crd, &stored);
        let path = "spec.versions[0].schema.openAPIV3Schema.properties";
        let why = "type: Required value: must not be empty for specified object fields";
        let message = format!("[{path}[a].{why}, {path}[b].{why}]");
        assert_eq!(condition_of(&crd, NON_STRUCTURAL), Some(("True".into(), "Violations".into(), message)));
        let (_, mended) = read("a.io", &json!({}), &json!({"type": "object"}));
        set_structural_condition(&mut crd, &mended);
        assert_eq!(condition_of(&crd, NON_STRUCTURAL), None);
        let (mut crd, stored) = read("a.io", &json!({}), &json!({"type": "object", "id": "x"}));
        set_structural_condition(&mut crd, &stored);
        let message = "failed to check validation schema for version v1: OpenAPIV3Schema 'id' is not supported";
        let expected = ("Unknown".into(), "StructuralError".into(), message.into());
        assert_eq!(condition_of(&crd, NON_STRUCTURAL), Some(expected));
    }

    #[test]
    fn crd_in_group_of_the_community_has_condition_about_approval() {
        let annotations = json!({APPROVAL_ANNOTATION: "unapproved, a test"});
        for (group, annotations, expected) in [
            ("a.io", &json!({}), None),
            ("a.k8s.io", &annotations, Some(("False", "UnapprovedAnnotation", "not approved: \"unapproved, a test\""))),
            (
                "a.k8s.io",
                &json!({APPROVAL_ANNOTATION: "https://b.io/1"}),
                Some(("True", "ApprovedAnnotation", "approved in https://b.io/1")),
            ),
        ] {
            let (mut crd, _) = read(group, annotations, &json!({}));
            set_approval_condition(&mut crd);
            let expected = expected.map(|(status, reason, why)| (status.into(), reason.into(), why.into()));
            assert_eq!(condition_of(&crd, APPROVAL), expected);
        }
    }
}
