//! `matchConditions`: for which requests a webhook is called (`k8s.io/apiserver/pkg/authorization/cel`).

use serde_json::{Value, json};

use super::Attributes;
use super::access_review::SelectorRequirements;
use crate::expression::{EvaluatedValue, Expression, ExpressionInput, ExpressionType, ExpressionVariable};

/// A `SubjectAccessReviewSpec` of `authorization.k8s.io/v1`.
const REQUEST: ExpressionVariable = ExpressionVariable {
    name: "request",
    fields: Some(&[
        ("resourceAttributes", ExpressionType::Fields(RESOURCE)),
        (
            "nonResourceAttributes",
            ExpressionType::Fields(&[("path", ExpressionType::String), ("verb", ExpressionType::String)]),
        ),
        ("user", ExpressionType::String),
        ("groups", TEXTS),
        ("extra", ExpressionType::Map),
        ("uid", ExpressionType::String),
    ]),
};
const RESOURCE: &[(&str, ExpressionType)] = &[
    ("namespace", ExpressionType::String),
    ("verb", ExpressionType::String),
    ("group", ExpressionType::String),
    ("version", ExpressionType::String),
    ("resource", ExpressionType::String),
    ("subresource", ExpressionType::String),
    ("name", ExpressionType::String),
    ("fieldSelector", SELECTOR),
    ("labelSelector", SELECTOR),
];
const SELECTOR: ExpressionType = ExpressionType::Fields(&[
    ("rawSelector", ExpressionType::String),
    ("requirements", ExpressionType::ListOf(&REQUIREMENT)),
]);
const REQUIREMENT: ExpressionType =
    ExpressionType::Fields(&[("key", ExpressionType::String), ("operator", ExpressionType::String), ("values", TEXTS)]);
const TEXTS: ExpressionType = ExpressionType::ListOf(&ExpressionType::String);

/// Match conditions; all must be true.
#[derive(Clone, Debug, Default)]
pub(super) struct MatchConditions(Vec<std::sync::Arc<Expression>>);

/// Compares the sources.
impl PartialEq for MatchConditions {
    fn eq(&self, other: &MatchConditions) -> bool {
        let sources = |conditions: &MatchConditions| -> Vec<String> {
            conditions.0.iter().map(|expression| expression.source().to_owned()).collect()
        };
        sources(self) == sources(other)
    }
}

impl MatchConditions {
    /// Adds a condition.
    ///
    /// # Errors
    /// When it does not compile to a boolean expression.
    pub(super) fn add(&mut self, source: &str) -> Result<(), String> {
        let expression = Expression::compile(source, &REQUEST)?;
        if expression.result_type() != ExpressionType::Bool {
            return Err("must evaluate to bool".to_owned());
        }
        self.0.push(expression.into());
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether all conditions are true. A false one overrides evaluation errors of others.
    ///
    /// # Errors
    /// The evaluation errors.
    pub(super) fn matches(&self, attributes: Attributes<'_>) -> Result<bool, String> {
        let input = ExpressionInput::from_json(&review_spec(attributes));
        let mut errors = Vec::new();
        for expression in &self.0 {
            match expression.evaluate(&input) {
                Ok(EvaluatedValue::Bool(true)) => {}
                Ok(EvaluatedValue::Bool(false)) => return Ok(false),
                Ok(_) => errors.push(format!("expression '{}' must evaluate to bool", expression.source())),
                Err(why) => errors.push(why),
            }
        }
        if errors.is_empty() { Ok(true) } else { Err(errors.join("; ")) }
    }
}

/// Returns the input of the conditions: empty strings are present, and one of the two kinds of attributes.
fn review_spec(attributes: Attributes<'_>) -> Value {
    let Attributes { user, request } = attributes;
    let mut spec = json!({"user": user.name, "groups": user.groups, "uid": user.uid, "extra": user.extra});
    if !request.is_resource_request {
        spec["nonResourceAttributes"] = json!({"path": request.path, "verb": request.verb});
        return spec;
    }
    let mut resource = json!({
        "namespace": request.namespace,
        "verb": request.verb,
        "group": request.api_group,
        "version": request.api_version,
        "resource": request.resource,
        "subresource": request.subresource,
        "name": request.name,
    });
    for (name, requirements) in [
        ("fieldSelector", SelectorRequirements::from_field_selector(&request.field_selector)),
        ("labelSelector", SelectorRequirements::from_label_selector(&request.label_selector)),
    ] {
        if !requirements.is_empty() {
            resource[name] = json!(requirements);
        }
    }
    spec["resourceAttributes"] = resource;
    spec
}

#[cfg(test)]
mod tests {
    use http::Method;
    use kubeapi::{CanonicalPath, Query, RequestInfo, User};

    use super::*;

    fn hold(sources: &[&str], method: &Method, uri: &str) -> Result<bool, String> {
        let mut conditions = MatchConditions::default();
        sources.iter().for_each(|source| conditions.add(source).unwrap());
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let (path, query) = (CanonicalPath::parse(path).unwrap(), Query::parse(query));
        let user = User {
            name: "jane".into(),
            groups: vec!["devs".into()],
            extra: [("scopes".to_owned(), vec!["a".to_owned()])].into(),
            ..User::default()
        };
        let request = RequestInfo::parse(method, &path, &query).unwrap();
        conditions.matches(Attributes { user: &user, request: &request })
    }

    #[test]
    fn match_conditions_evaluate_documented_examples() {
        let things = "/apis/g/v1/namespaces/kube-system/things/x";
        for (source, uri, expected) in [
            ("has(request.resourceAttributes)", things, true),
            ("has(request.resourceAttributes)", "/healthz", false),
            ("has(request.resourceAttributes) && request.resourceAttributes.namespace == 'kube-system'", things, true),
            ("!has(request.resourceAttributes) || request.resourceAttributes.verb == 'list'", things, false),
            ("request.nonResourceAttributes.path == '/healthz'", "/healthz", true),
            ("!('system:serviceaccounts:kube-system' in request.groups)", things, true),
            ("'devs' in request.groups", things, true),
            ("request.user == 'jane' && request.uid == ''", things, true),
            ("request.extra['scopes'][0] == 'a'", things, true),
            ("request.resourceAttributes.subresource == ''", things, true),
            ("request.resourceAttributes.verb in ['get', 'list'] || 'a' in request.groups", things, true),
            ("has(request.nonResourceAttributes) ? request.nonResourceAttributes.verb == 'get' : true", things, true),
            ("request.groups.map(g, g + 'x').size() > 0 && request.groups[0].matches('^d')", things, true),
            ("'scopes' in request.extra && request.extra['scopes'].exists(s, s == 'b')", things, false),
            ("has(request.resourceAttributes.fieldSelector)", things, false),
            ("request.?resourceAttributes.subresource.orValue('none') == 'none'", "/healthz", true),
        ] {
            assert_eq!(hold(&[source], &Method::GET, uri), Ok(expected), "{source} {uri}");
        }
        let selected = format!("{}?labelSelector=a%3Db", things.trim_end_matches("/x"));
        let source = "has(request.resourceAttributes.labelSelector) && \
                      request.resourceAttributes.labelSelector.requirements.exists(r, r.key == 'a' && 'b' in r.values)";
        assert_eq!(hold(&[source], &Method::GET, &selected), Ok(true));
        assert_eq!(hold(&[source], &Method::GET, things), Ok(false));
        let source = "request.?resourceAttributes.?labelSelector.requirements.orValue([])\
                      .exists(r, r.operator == 'In' && r.values.exists(v, v == 'b'))";
        assert_eq!(hold(&[source], &Method::GET, &selected), Ok(true));
        assert_eq!(hold(&[source], &Method::GET, things), Ok(false));
        assert_eq!(hold(&[source], &Method::GET, "/healthz"), Ok(false));
    }

    #[test]
    fn match_conditions_false_overrides_error_overrides_true() {
        let (no, broken) = ("request.user == 'bob'", "request.resourceAttributes.name == 'x'");
        let ask = |sources: &[&str]| hold(sources, &Method::GET, "/healthz");
        assert_eq!(ask(&[broken, no]), Ok(false));
        let why = ask(&["true", broken, "true"]).unwrap_err();
        assert!(why.starts_with("expression 'request.resourceAttributes.name == 'x'' resulted in error"), "{why}");
        assert_eq!(ask(&[]), Ok(true));
    }

    #[test]
    fn match_conditions_invalid_expression_is_rejected() {
        for (source, words) in [
            ("request.resourceAttributes.namspace == 'x'", "undefined field 'namspace'"),
            ("has(request.resourceattributes)", "undefined field 'resourceattributes'"),
            ("object.user == 'x'", "undeclared reference to 'object'"),
            ("request.user == 1", "found no matching overload for '_==_' applied to '(string, number)'"),
            ("request.resourceAttributes.labelSelector.requirements.all(r, r.kye == 'x')", "undefined field 'kye'"),
            ("request.groups.exists(g, g == 1)", "found no matching overload"),
            ("request.user", "must evaluate to bool"),
            ("request.user ==", "compilation failed"),
        ] {
            let why = MatchConditions::default().add(source).unwrap_err();
            assert!(why.contains(words), "{source}: {why}");
        }
    }
}
