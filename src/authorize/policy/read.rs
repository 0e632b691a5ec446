//! Parser of RBAC objects, validated like `pkg/apis/rbac/validation` of Kubernetes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use super::rule::Rule;
use crate::kubeapi::{LabelOperator, LabelRequirement, LabelSelector, is_dns_subdomain, is_label_key, is_label_value};
use crate::process::{Document, Fields, Problem, Problems, documents};

const GROUP: &str = "rbac.authorization.k8s.io";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// All objects of a policy file.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) cluster_roles: Vec<ClusterRole>,
    pub(super) roles: Vec<Role>,
    pub(super) bindings: Vec<Binding>,
}

#[derive(Debug)]
pub(super) struct ClusterRole {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Selectors of the roles whose rules are aggregated.
    pub(super) aggregated: Option<Vec<LabelSelector>>,
    pub(super) rules: Vec<Rule>,
}

#[derive(Debug)]
pub(super) struct Role {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) rules: Vec<Rule>,
}

/// A ClusterRoleBinding, whose namespace is empty, or a RoleBinding.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) place: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) role: RoleReference,
    pub(super) subjects: Vec<Subject>,
}

#[derive(Debug)]
pub(super) enum RoleReference {
    ClusterRole(String),
    Role(String),
}

#[derive(Debug)]
pub(super) enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

impl Manifests {
    /// Parses all objects, and reports all errors at once.
    pub(super) fn read(place: &str, text: &str, json: bool) -> Result<Manifests, Problems> {
        let (found, problems) = documents(place, text, json);
        let nothing_at_all = found.is_empty() && problems.0.is_empty();
        let problems = RefCell::new(problems);
        let mut manifests = Manifests::default();
        let mut seen: HashMap<(String, String, String), String> = HashMap::new();
        for document in &found {
            manifests.take(document, &problems, &mut seen);
        }
        let mut problems = problems.into_inner();
        if nothing_at_all {
            // An empty policy would deny everything; the file was more likely truncated.
            problems.0.push(Problem::new(place, "contains no ClusterRole, Role or binding"));
        }
        problems.or(manifests)
    }

    fn take(
        &mut self,
        document: &Document,
        problems: &RefCell<Problems>,
        seen: &mut HashMap<(String, String, String), String>,
    ) {
        let mut fields = Fields::new(&document.place, &document.value, problems);
        fields.ignore("kind");
        if document.api_version != API_VERSION {
            let given = &document.api_version;
            fields.problem("apiVersion", format_args!("{given:?} is not supported; use {API_VERSION}"));
        }
        fields.ignore("apiVersion");
        let namespaced = match &*document.kind {
            "ClusterRole" | "ClusterRoleBinding" => false,
            "Role" | "RoleBinding" => true,
            other => {
                let known = "ClusterRole, Role, ClusterRoleBinding, RoleBinding or List";
                return fields.problem("kind", format_args!("{other:?} is not supported; use {known}"));
            }
        };
        let Some(metadata) = Metadata::read(&mut fields, namespaced) else { return };
        let key = (document.kind.clone(), metadata.namespace.clone(), metadata.name.clone());
        if let Some(first) = seen.insert(key, document.place.clone()) {
            fields.problem_here(format_args!("duplicate of {first}"));
        }
        match &*document.kind {
            "ClusterRole" => {
                let aggregated = fields.fields("aggregationRule").map(selectors);
                let rules = rules(&mut fields, false);
                let (name, labels) = (metadata.name, metadata.labels);
                self.cluster_roles.push(ClusterRole { name, labels, aggregated, rules });
            }
            "Role" => {
                let rules = rules(&mut fields, true);
                self.roles.push(Role { namespace: metadata.namespace, name: metadata.name, rules });
            }
            _ => {
                let subjects = subjects(&mut fields, &metadata.namespace);
                if let Some(role) = role_reference(&mut fields, namespaced) {
                    let (namespace, name) = (metadata.namespace, metadata.name);
                    self.bindings.push(Binding { place: document.place.clone(), namespace, name, role, subjects });
                }
            }
        }
        fields.end();
    }
}

struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

impl Metadata {
    fn read(fields: &mut Fields<'_>, namespaced: bool) -> Option<Metadata> {
        let Some(mut metadata) = fields.fields("metadata") else {
            fields.problem("metadata", "required, with a name");
            return None;
        };
        // Other fields are set by an API server, and are present in exported objects.
        let (name, namespace) = (metadata.text("name"), metadata.text("namespace"));
        let labels = metadata.map("labels");
        if name.is_empty() {
            metadata.problem("name", "required");
        } else {
            check_path_segment(&metadata, "name", &name);
        }
        match (namespaced, namespace.is_empty()) {
            (true, true) => metadata.problem("namespace", "required: this kind is namespaced"),
            (false, false) => metadata.problem("namespace", "not allowed: this kind is cluster-scoped"),
            _ => {}
        }
        Some(Metadata { name, namespace, labels })
    }
}

/// Checks that a name can be a path segment of a URL (`IsPathSegmentName`).
fn check_path_segment(fields: &Fields<'_>, name: &str, value: &str) {
    if matches!(value, "." | "..") || value.contains(['/', '%']) {
        fields.problem(name, format_args!("{value:?} is not a valid name: it may not be . or .., nor contain / or %"));
    }
}

fn rules(fields: &mut Fields<'_>, namespaced: bool) -> Vec<Rule> {
    fields.each("rules").into_iter().map(|rule| read_rule(rule, namespaced)).collect()
}

fn read_rule(mut fields: Fields<'_>, namespaced: bool) -> Rule {
    let rule = Rule {
        verbs: fields.texts("verbs"),
        api_groups: fields.texts("apiGroups"),
        resources: fields.texts("resources"),
        resource_names: fields.texts("resourceNames"),
        non_resource_urls: fields.texts("nonResourceURLs"),
    };
    if fields.lacks("verbs") {
        fields.problem("verbs", "at least one verb is required");
    }
    if !fields.lacks("nonResourceURLs") {
        if namespaced {
            fields.problem("nonResourceURLs", "namespaced rules cannot apply to non-resource URLs");
        }
        if !rule.api_groups.is_empty() || !rule.resources.is_empty() || !rule.resource_names.is_empty() {
            fields.problem("nonResourceURLs", "a rule cannot have both resources and nonResourceURLs");
        }
    } else {
        if fields.lacks("apiGroups") {
            fields.problem("apiGroups", "at least one API group is required; \"\" is the core group");
        }
        if fields.lacks("resources") {
            fields.problem("resources", "at least one resource is required");
        }
    }
    fields.end();
    rule
}

fn selectors(mut fields: Fields<'_>) -> Vec<LabelSelector> {
    let each = fields.each("clusterRoleSelectors");
    if fields.lacks("clusterRoleSelectors") {
        fields.problem("clusterRoleSelectors", "at least one selector is required");
    }
    let selectors = each.into_iter().map(selector).collect();
    fields.end();
    selectors
}

fn selector(mut fields: Fields<'_>) -> LabelSelector {
    let mut requirements = Vec::new();
    for (key, value) in fields.map("matchLabels") {
        check_key(&fields, "matchLabels", &key);
        check_value(&fields, "matchLabels", &value);
        requirements.push(LabelRequirement { key, operator: LabelOperator::In, values: vec![value] });
    }
    for mut expression in fields.each("matchExpressions") {
        let (key, operator) = (expression.text("key"), expression.text("operator"));
        let mut values = expression.texts("values");
        check_key(&expression, "key", &key);
        for (number, value) in values.iter().enumerate() {
            check_value(&expression, &format!("values[{number}]"), value);
        }
        let operator = match &*operator {
            "In" => LabelOperator::In,
            "NotIn" => LabelOperator::NotIn,
            "Exists" => LabelOperator::Exists,
            "DoesNotExist" => LabelOperator::DoesNotExist,
            other => {
                let message = format_args!("{other:?} is not supported; use In, NotIn, Exists or DoesNotExist");
                expression.problem("operator", message);
                continue;
            }
        };
        match operator {
            LabelOperator::In | LabelOperator::NotIn if values.is_empty() => {
                expression.problem("values", "required with the operators In and NotIn");
            }
            LabelOperator::Exists | LabelOperator::DoesNotExist if !values.is_empty() => {
                expression.problem("values", "not allowed with the operators Exists and DoesNotExist");
            }
            _ => {}
        }
        values.sort_unstable();
        values.dedup();
        requirements.push(LabelRequirement { key, operator, values });
        expression.end();
    }
    fields.end();
    LabelSelector { requirements }
}

fn check_key(fields: &Fields<'_>, name: &str, key: &str) {
    if !is_label_key(key) {
        fields.problem(name, format_args!("{key:?} is not a valid label key"));
    }
}

fn check_value(fields: &Fields<'_>, name: &str, value: &str) {
    if !is_label_value(value) {
        fields.problem(name, format_args!("{value:?} is not a valid label value"));
    }
}

fn role_reference(fields: &mut Fields<'_>, namespaced: bool) -> Option<RoleReference> {
    let Some(mut reference) = fields.fields("roleRef") else {
        fields.problem("roleRef", "required: the granted role");
        return None;
    };
    let group = reference.text("apiGroup");
    if !group.is_empty() && group != GROUP {
        reference.problem("apiGroup", format_args!("{group:?} is not supported; use {GROUP}"));
    }
    let name = reference.text("name");
    if name.is_empty() {
        reference.problem("name", "required");
    } else {
        check_path_segment(&reference, "name", &name);
    }
    let role = match &*reference.text("kind") {
        "ClusterRole" => Some(RoleReference::ClusterRole(name)),
        "Role" if namespaced => Some(RoleReference::Role(name)),
        other => {
            let fits = if namespaced { "Role or ClusterRole" } else { "ClusterRole" };
            reference.problem("kind", format_args!("{other:?} is not supported; use {fits}"));
            None
        }
    };
    reference.end();
    role
}

fn subjects(fields: &mut Fields<'_>, namespace: &str) -> Vec<Subject> {
    fields.each("subjects").into_iter().filter_map(|subject| read_subject(subject, namespace)).collect()
}

fn read_subject(mut fields: Fields<'_>, binding_namespace: &str) -> Option<Subject> {
    let name = fields.text("name");
    if name.is_empty() {
        fields.problem("name", "required");
    }
    let (group, namespace) = (fields.text("apiGroup"), fields.text("namespace"));
    let kind = fields.text("kind");
    let wanted = if kind == "ServiceAccount" { "" } else { GROUP };
    if !group.is_empty() && group != wanted {
        fields.problem("apiGroup", format_args!("{group:?} is not supported; use {wanted:?}"));
    }
    let subject = match &*kind {
        "User" => Some(Subject::User(name)),
        "Group" => Some(Subject::Group(name)),
        "ServiceAccount" => {
            if !name.is_empty() && !is_dns_subdomain(&name) {
                fields.problem("name", format_args!("{name:?} is not a valid ServiceAccount name"));
            }
            let namespace = if namespace.is_empty() { binding_namespace.to_owned() } else { namespace };
            if namespace.is_empty() {
                fields.problem("namespace", "required: the namespace of the ServiceAccount");
            }
            Some(Subject::ServiceAccount { namespace, name })
        }
        other => {
            fields.problem("kind", format_args!("{other:?} is not supported; use User, Group or ServiceAccount"));
            None
        }
    };
    fields.end();
    subject
}
