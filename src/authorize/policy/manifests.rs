//! Parser of RBAC objects, validated like `pkg/apis/rbac/validation` of Kubernetes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use kubeapi::{LabelOperator, LabelRequirement, LabelSelector, is_dns_subdomain, is_label_key, is_label_value};

use super::rule::PolicyRule;
use crate::process::{FieldReader, ManifestDocument, Problem, Problems, parse_documents};

const GROUP: &str = "rbac.authorization.k8s.io";
const API_VERSION: &str = "rbac.authorization.k8s.io/v1";

/// All objects of a policy file.
#[derive(Debug, Default)]
pub(super) struct Manifests {
    pub(super) cluster_roles: Vec<ClusterRole>,
    pub(super) roles: Vec<Role>,
    /// Each with its location.
    pub(super) bindings: Vec<(String, Binding)>,
}

#[derive(Debug)]
pub(super) struct ClusterRole {
    pub(super) name: String,
    pub(super) labels: BTreeMap<String, String>,
    /// Selectors of the roles to aggregate.
    pub(super) aggregated: Option<Vec<LabelSelector>>,
    pub(super) rules: Vec<PolicyRule>,
}

#[derive(Debug)]
pub(super) struct Role {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) rules: Vec<PolicyRule>,
}

/// A ClusterRoleBinding, with an empty namespace, or a RoleBinding.
#[derive(Clone, Debug)]
pub struct Binding {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) role: RoleReference,
    pub(super) subjects: Vec<Subject>,
}

#[derive(Clone, Debug)]
pub(super) enum RoleReference {
    ClusterRole(String),
    Role(String),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

impl Manifests {
    /// Parses all objects, and reports all errors at once.
    pub(super) fn parse(location: &str, text: &str, json: bool) -> Result<Manifests, Problems> {
        let (found, problems) = parse_documents(location, text, json);
        let nothing_at_all = found.is_empty() && problems.0.is_empty();
        let problems = RefCell::new(problems);
        let mut manifests = Manifests::default();
        let mut first_locations: HashMap<(String, String, String), String> = HashMap::new();
        for document in &found {
            manifests.add_document(document, &problems, &mut first_locations);
        }
        let mut problems = problems.into_inner();
        if nothing_at_all {
            // An empty policy would deny everything; the file was more likely truncated.
            problems.0.push(Problem::new(location, "contains no ClusterRole, Role or binding"));
        }
        problems.into_result(manifests)
    }

    fn add_document(
        &mut self,
        document: &ManifestDocument,
        problems: &RefCell<Problems>,
        first_locations: &mut HashMap<(String, String, String), String>,
    ) {
        let mut fields = FieldReader::new(&document.location, &document.value, problems);
        fields.ignore("kind");
        if document.api_version != API_VERSION {
            let given = &document.api_version;
            fields.add_problem("apiVersion", format_args!("{given:?} is not supported; use {API_VERSION}"));
        }
        fields.ignore("apiVersion");
        let namespaced = match &*document.kind {
            "ClusterRole" | "ClusterRoleBinding" => false,
            "Role" | "RoleBinding" => true,
            other => {
                let supported = "ClusterRole, Role, ClusterRoleBinding, RoleBinding or List";
                return fields.add_problem("kind", format_args!("{other:?} is not supported; use {supported}"));
            }
        };
        let Some(metadata) = Metadata::parse(&mut fields, namespaced) else { return };
        let key = (document.kind.clone(), metadata.namespace.clone(), metadata.name.clone());
        if let Some(first) = first_locations.insert(key, document.location.clone()) {
            fields.add_own_problem(format_args!("duplicate of {first}"));
        }
        match &*document.kind {
            "ClusterRole" => {
                let aggregated = fields.object("aggregationRule").map(parse_selectors);
                let rules = parse_rules(&mut fields, false);
                let (name, labels) = (metadata.name, metadata.labels);
                self.cluster_roles.push(ClusterRole { name, labels, aggregated, rules });
            }
            "Role" => {
                let rules = parse_rules(&mut fields, true);
                self.roles.push(Role { namespace: metadata.namespace, name: metadata.name, rules });
            }
            _ => {
                let subjects = parse_subjects(&mut fields, &metadata.namespace);
                if let Some(role) = parse_role_reference(&mut fields, namespaced) {
                    let (namespace, name) = (metadata.namespace, metadata.name);
                    self.bindings.push((document.location.clone(), Binding { namespace, name, role, subjects }));
                }
            }
        }
        fields.finish();
    }
}

struct Metadata {
    name: String,
    namespace: String,
    labels: BTreeMap<String, String>,
}

impl Metadata {
    fn parse(fields: &mut FieldReader<'_>, namespaced: bool) -> Option<Metadata> {
        let Some(mut metadata) = fields.object("metadata") else {
            fields.add_problem("metadata", "required, with a name");
            return None;
        };
        // Other fields are set by an API server, and are present in exported objects.
        let (name, namespace) = (metadata.string("name"), metadata.string("namespace"));
        let labels = metadata.string_map("labels");
        if name.is_empty() {
            metadata.add_problem("name", "required");
        } else {
            check_path_segment(&metadata, "name", &name);
        }
        match (namespaced, namespace.is_empty()) {
            (true, true) => metadata.add_problem("namespace", "required: this kind is namespaced"),
            (false, false) => metadata.add_problem("namespace", "not allowed: this kind is cluster-scoped"),
            _ => {}
        }
        Some(Metadata { name, namespace, labels })
    }
}

/// Checks that a name can be a path segment of a URL (`IsPathSegmentName`).
fn check_path_segment(fields: &FieldReader<'_>, name: &str, value: &str) {
    if matches!(value, "." | "..") || value.contains(['/', '%']) {
        fields.add_problem(
            name,
            format_args!("{value:?} is not a valid name: it may not be . or .., nor contain / or %"),
        );
    }
}

fn parse_rules(fields: &mut FieldReader<'_>, namespaced: bool) -> Vec<PolicyRule> {
    fields.object_list("rules").into_iter().map(|rule| parse_rule(rule, namespaced)).collect()
}

fn parse_rule(mut fields: FieldReader<'_>, namespaced: bool) -> PolicyRule {
    let rule = PolicyRule {
        verbs: fields.string_list("verbs"),
        api_groups: fields.string_list("apiGroups"),
        resources: fields.string_list("resources"),
        resource_names: fields.string_list("resourceNames"),
        non_resource_urls: fields.string_list("nonResourceURLs"),
    };
    if fields.is_missing_or_empty("verbs") {
        fields.add_problem("verbs", "at least one verb is required");
    }
    if !fields.is_missing_or_empty("nonResourceURLs") {
        if namespaced {
            fields.add_problem("nonResourceURLs", "namespaced rules cannot apply to non-resource URLs");
        }
        if !rule.api_groups.is_empty() || !rule.resources.is_empty() || !rule.resource_names.is_empty() {
            fields.add_problem("nonResourceURLs", "a rule cannot have both resources and nonResourceURLs");
        }
    } else {
        if fields.is_missing_or_empty("apiGroups") {
            fields.add_problem("apiGroups", "at least one API group is required; \"\" is the core group");
        }
        if fields.is_missing_or_empty("resources") {
            fields.add_problem("resources", "at least one resource is required");
        }
    }
    fields.finish();
    rule
}

fn parse_selectors(mut fields: FieldReader<'_>) -> Vec<LabelSelector> {
    let each = fields.object_list("clusterRoleSelectors");
    if fields.is_missing_or_empty("clusterRoleSelectors") {
        fields.add_problem("clusterRoleSelectors", "at least one selector is required");
    }
    let selectors = each.into_iter().map(parse_selector).collect();
    fields.finish();
    selectors
}

fn parse_selector(mut fields: FieldReader<'_>) -> LabelSelector {
    let mut requirements = Vec::new();
    for (key, value) in fields.string_map("matchLabels") {
        check_key(&fields, "matchLabels", &key);
        check_value(&fields, "matchLabels", &value);
        requirements.push(LabelRequirement { key, operator: LabelOperator::In, values: vec![value] });
    }
    for mut expression in fields.object_list("matchExpressions") {
        let (key, operator) = (expression.string("key"), expression.string("operator"));
        let mut values = expression.string_list("values");
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
                expression.add_problem("operator", message);
                continue;
            }
        };
        match operator {
            LabelOperator::In | LabelOperator::NotIn if values.is_empty() => {
                expression.add_problem("values", "required with the operators In and NotIn");
            }
            LabelOperator::Exists | LabelOperator::DoesNotExist if !values.is_empty() => {
                expression.add_problem("values", "not allowed with the operators Exists and DoesNotExist");
            }
            _ => {}
        }
        values.sort_unstable();
        values.dedup();
        requirements.push(LabelRequirement { key, operator, values });
        expression.finish();
    }
    fields.finish();
    LabelSelector { requirements }
}

fn check_key(fields: &FieldReader<'_>, name: &str, key: &str) {
    if !is_label_key(key) {
        fields.add_problem(name, format_args!("{key:?} is not a valid label key"));
    }
}

fn check_value(fields: &FieldReader<'_>, name: &str, value: &str) {
    if !is_label_value(value) {
        fields.add_problem(name, format_args!("{value:?} is not a valid label value"));
    }
}

fn parse_role_reference(fields: &mut FieldReader<'_>, namespaced: bool) -> Option<RoleReference> {
    let Some(mut reference) = fields.object("roleRef") else {
        fields.add_problem("roleRef", "required: the granted role");
        return None;
    };
    let group = reference.string("apiGroup");
    if !group.is_empty() && group != GROUP {
        reference.add_problem("apiGroup", format_args!("{group:?} is not supported; use {GROUP}"));
    }
    let name = reference.string("name");
    if name.is_empty() {
        reference.add_problem("name", "required");
    } else {
        check_path_segment(&reference, "name", &name);
    }
    let role = match &*reference.string("kind") {
        "ClusterRole" => Some(RoleReference::ClusterRole(name)),
        "Role" if namespaced => Some(RoleReference::Role(name)),
        other => {
            let fits = if namespaced { "Role or ClusterRole" } else { "ClusterRole" };
            reference.add_problem("kind", format_args!("{other:?} is not supported; use {fits}"));
            None
        }
    };
    reference.finish();
    role
}

fn parse_subjects(fields: &mut FieldReader<'_>, namespace: &str) -> Vec<Subject> {
    fields.object_list("subjects").into_iter().filter_map(|subject| parse_subject(subject, namespace)).collect()
}

fn parse_subject(mut fields: FieldReader<'_>, binding_namespace: &str) -> Option<Subject> {
    let name = fields.string("name");
    if name.is_empty() {
        fields.add_problem("name", "required");
    }
    let (group, namespace) = (fields.string("apiGroup"), fields.string("namespace"));
    let kind = fields.string("kind");
    let expected = if kind == "ServiceAccount" { "" } else { GROUP };
    if !group.is_empty() && group != expected {
        fields.add_problem("apiGroup", format_args!("{group:?} is not supported; use {expected:?}"));
    }
    let subject = match &*kind {
        "User" => Some(Subject::User(name)),
        "Group" => Some(Subject::Group(name)),
        "ServiceAccount" => {
            if !name.is_empty() && !is_dns_subdomain(&name) {
                fields.add_problem("name", format_args!("{name:?} is not a valid ServiceAccount name"));
            }
            let namespace = if namespace.is_empty() { binding_namespace.to_owned() } else { namespace };
            if namespace.is_empty() {
                fields.add_problem("namespace", "required: the namespace of the ServiceAccount");
            }
            Some(Subject::ServiceAccount { namespace, name })
        }
        other => {
            fields.add_problem("kind", format_args!("{other:?} is not supported; use User, Group or ServiceAccount"));
            None
        }
    };
    fields.finish();
    subject
}
