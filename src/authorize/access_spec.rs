//! Parser of the spec of access reviews that clients send.

use kubeapi::{RequestInfo, Status, StatusCause, is_label_key, is_label_value};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::authorizer::ReviewStatus;

/// The attributes of a `SubjectAccessReviewSpec` or `SelfSubjectAccessReviewSpec`.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AccessSpec {
    resource_attributes: Option<ResourceSpec>,
    non_resource_attributes: Option<NonResourceSpec>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ResourceSpec {
    namespace: String,
    verb: String,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    name: String,
    field_selector: Option<SelectorSpec>,
    label_selector: Option<SelectorSpec>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SelectorSpec {
    raw_selector: String,
    requirements: Option<Vec<RequirementSpec>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct RequirementSpec {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct NonResourceSpec {
    path: String,
    verb: String,
}

/// Reads the spec of an object of `kind` in version `v1` of `group`.
///
/// # Errors
/// 400 if the body is not a valid object of that kind.
pub fn read_review_spec<S: DeserializeOwned + Default>(group: &str, kind: &str, body: &[u8]) -> Result<S, Status> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ReviewObject<S> {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
        #[serde(default)]
        spec: S,
    }
    let review: ReviewObject<S> =
        serde_json::from_slice(body).map_err(|error| Status::bad_request(format!("invalid {kind}: {error}")))?;
    let expected = format!("{group}/v1");
    if !review.api_version.is_empty() && review.api_version != expected {
        return Err(Status::bad_request(format!(
            "the API version in the data ({}) does not match the expected API version ({expected})",
            review.api_version
        )));
    }
    if !review.kind.is_empty() && review.kind != kind {
        return Err(Status::bad_request(format!("the kind in the data ({}) is not {kind}", review.kind)));
    }
    Ok(review.spec)
}

/// Returns the cause for an invalid field.
pub(super) fn invalid(field: &str, message: &str) -> StatusCause {
    let message = format!("Invalid value: {message}");
    StatusCause { reason: "FieldValueInvalid".into(), message, field: field.into() }
}

impl AccessSpec {
    /// The namespace of the resource, if the review is about one.
    pub(super) fn namespace(&self) -> Option<&str> {
        Some(&self.resource_attributes.as_ref()?.namespace)
    }

    /// Whether the review is about a path of no resource.
    pub(super) fn is_of_path(&self) -> bool {
        self.non_resource_attributes.is_some()
    }

    /// Returns the request to review.
    ///
    /// # Errors
    /// Unless exactly one kind of attributes is given.
    pub(super) fn request(&self) -> Result<RequestInfo<'_>, Vec<StatusCause>> {
        let combined = "cannot be specified in combination with resourceAttributes";
        let neither = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
        let resource = match (&self.resource_attributes, &self.non_resource_attributes) {
            (Some(resource), None) => resource,
            (None, Some(path)) => {
                return Ok(RequestInfo { path: &path.path, verb: path.verb.as_str().into(), ..RequestInfo::default() });
            }
            (Some(_), Some(_)) => return Err(vec![invalid("spec.nonResourceAttributes", combined)]),
            (None, None) => return Err(vec![invalid("spec.resourceAttributes", neither)]),
        };
        let mut causes = Vec::new();
        for (name, selector) in
            [("fieldSelector", &resource.field_selector), ("labelSelector", &resource.label_selector)]
        {
            let Some(selector) = selector else { continue };
            if !selector.raw_selector.is_empty() && selector.requirements.as_ref().is_some_and(|it| !it.is_empty()) {
                let field = format!("spec.resourceAttributes.{name}.rawSelector");
                causes.push(invalid(&field, "may not specified at the same time as requirements"));
            }
        }
        if !causes.is_empty() {
            return Err(causes);
        }
        let text = |selector: &Option<SelectorSpec>, term: fn(&RequirementSpec) -> Option<String>| {
            selector.as_ref().map(|selector| selector.to_text(term)).unwrap_or_default()
        };
        Ok(RequestInfo {
            is_resource_request: true,
            verb: resource.verb.as_str().into(),
            api_prefix: if resource.group.is_empty() { "api" } else { "apis" },
            api_group: &resource.group,
            api_version: if resource.version.is_empty() { "*" } else { &resource.version },
            namespace: &resource.namespace,
            resource: &resource.resource,
            subresource: &resource.subresource,
            name: resource.name.as_str().into(),
            field_selector: text(&resource.field_selector, RequirementSpec::to_field_term).into(),
            label_selector: text(&resource.label_selector, RequirementSpec::to_label_term).into(),
            ..RequestInfo::default()
        })
    }
}

impl SelectorSpec {
    /// Returns the selector in text form. Requirements that cannot be expressed are omitted, which reviews the broader
    /// request, as in Kubernetes (`pkg/registry/authorization/util`).
    fn to_text(&self, term: fn(&RequirementSpec) -> Option<String>) -> String {
        let terms: Vec<String> = self.requirements.iter().flatten().filter_map(term).collect();
        if terms.is_empty() { self.raw_selector.clone() } else { terms.join(",") }
    }
}

impl RequirementSpec {
    fn values(&self) -> &[String] {
        self.values.as_deref().unwrap_or_default()
    }

    fn to_field_term(&self) -> Option<String> {
        let operator = match &*self.operator {
            "In" => "=",
            "NotIn" => "!=",
            _ => return None,
        };
        let [value] = self.values() else { return None };
        let plain = !self.key.is_empty() && !self.key.contains([',', '=', '!', '\\']);
        let value = value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
        plain.then(|| format!("{}{operator}{value}", self.key))
    }

    fn to_label_term(&self) -> Option<String> {
        let (key, values) = (&self.key, self.values());
        if !is_label_key(key) || !values.iter().all(|value| is_label_value(value)) {
            return None;
        }
        match (&*self.operator, values) {
            ("In", [_, ..]) => Some(format!("{key} in ({})", values.join(","))),
            ("NotIn", [_, ..]) => Some(format!("{key} notin ({})", values.join(","))),
            ("Exists", []) => Some(key.clone()),
            ("DoesNotExist", []) => Some(format!("!{key}")),
            _ => None,
        }
    }
}

impl ReviewStatus {
    /// Returns a `SubjectAccessReviewStatus`.
    pub(super) fn into_json(self) -> Value {
        let mut status = json!({"allowed": self.allowed});
        if self.denied {
            status["denied"] = true.into();
        }
        for (field, text) in [("reason", self.reason), ("evaluationError", self.error)] {
            if !text.is_empty() {
                status[field] = text.into();
            }
        }
        status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selectors(fields: &Value, labels: &Value) -> (String, String) {
        let spec = json!({"resourceAttributes": {"verb": "list", "fieldSelector": fields, "labelSelector": labels}});
        let spec: AccessSpec = serde_json::from_value(spec).unwrap();
        let request = spec.request().unwrap();
        (request.field_selector.into_owned(), request.label_selector.into_owned())
    }

    #[test]
    fn access_spec_requirements_become_selectors() {
        let requirement =
            |key: &str, operator: &str, values: Value| json!({"key": key, "operator": operator, "values": values});
        let fields = json!({"requirements": [
            requirement("metadata.name", "In", json!(["a,b=c\\"])),
            requirement("spec.x", "NotIn", json!(["y"])),
            requirement("two", "In", json!(["y", "z"])),
            requirement("exists", "Exists", json!(null)),
            requirement("a=b", "In", json!(["x"])),
        ]});
        let labels = json!({"requirements": [
            requirement("app", "In", json!(["a", "b"])),
            requirement("tier", "NotIn", json!(["c"])),
            requirement("new", "Exists", json!([])),
            requirement("old", "DoesNotExist", json!(null)),
            requirement("n", "Gt", json!(["3"])),
            requirement("x in (y),z", "Exists", json!([])),
            requirement("k", "In", json!(["v),!w"])),
        ]});
        let (fields, labels) = selectors(&fields, &labels);
        assert_eq!(fields, "metadata.name=a\\,b\\=c\\\\,spec.x!=y");
        assert_eq!(labels, "app in (a,b),tier notin (c),new,!old");
        assert_eq!(selectors(&json!({"rawSelector": "a=b"}), &Value::Null), ("a=b".to_owned(), String::new()));
    }
}
