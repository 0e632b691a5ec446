//! FlowSchemas and PriorityLevelConfigurations (`pkg/registry/flowcontrol`, `pkg/apis/flowcontrol/validation`).

use std::collections::HashSet;

use kubeapi::field_error::{BadValue, FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_dns1123_label, check_dns1123_subdomain};
use serde_json::{Value, json};

use super::cells::{CellPrinter, integer, text_at};
use super::field_rules::{internal_struct, required_text_errors, text_json, typed_text};
use super::internal_json::internal_value;
use super::validation::{METADATA, ValidationInput, invalid_for, items, text, texts};
use super::{GenerationRule, KindRules};

pub(super) static RULES: [KindRules; 2] = [
    KindRules {
        generation: GenerationRule::SPEC,
        validate: |input| match input.subresource {
            "status" => condition_type_errors(input.field("status")),
            _ => validate_schema(input),
        },
        cells: print_schema,
        ..KindRules::of(GROUP, "flowschemas")
    },
    KindRules {
        generation: GenerationRule::SPEC,
        validate: |input| match input.subresource {
            "status" => condition_type_errors(input.field("status")),
            _ => validate_level(input),
        },
        cells: print_level,
        ..KindRules::of(GROUP, "prioritylevelconfigurations")
    },
];

const GROUP: &str = "flowcontrol.apiserver.k8s.io";

const SPEC: FieldPath<'static> = FieldPath::root("spec");

const MAX_PRECEDENCE: i64 = 10_000;
const MAX_QUEUES: i64 = 10_000_000;
/// Bits of the hash that deals hands of queues.
const MAX_ENTROPY_BITS: i64 = 60;

/// Validates a FlowSchema. Its metadata are not compared with those before, but by the rules of every object.
fn validate_schema(input: &ValidationInput<'_>) -> FieldErrors {
    let spec = input.field("spec");
    let name = input.metadata().name();
    let mut errors = input.metadata_errors();
    let precedence = integer(spec, "matchingPrecedence");
    let mut invalid_precedence = |why: String| {
        errors.push(FieldError::invalid(SPEC.child("matchingPrecedence"), precedence, why));
    };
    if precedence <= 0 {
        invalid_precedence("must be a positive value".to_owned());
    }
    if precedence > MAX_PRECEDENCE {
        invalid_precedence(format!("must not be greater than {MAX_PRECEDENCE}"));
    }
    if precedence == 1 && name != "exempt" {
        invalid_precedence("only the schema named 'exempt' may have matchingPrecedence 1".to_owned());
    }
    let method = &spec["distinguisherMethod"];
    let methods = ["ByNamespace", "ByUser"];
    if !method.is_null() && !methods.contains(&text(method, "type")) {
        let path = SPEC.child("distinguisherMethod");
        let shown = internal_struct(&[("Type", text_json(method, "type"))]);
        errors.push(FieldError::not_supported(path.child("type"), shown, &methods));
    }
    let (level, path) = (text(&spec["priorityLevelConfiguration"], "name"), SPEC.child("priorityLevelConfiguration"));
    if level.is_empty() {
        errors.push(FieldError::required(path.child("name"), "must reference a priority level"));
    } else {
        errors.extend(invalid_for(path.child("name"), level, check_dns1123_subdomain(level)));
    }
    for (index, rule) in items(spec, "rules").iter().enumerate() {
        errors.append(rule_errors(rule, &SPEC.child("rules").index(index)));
    }
    if mandatory_schema(name).is_some_and(|mandatory| mandatory != *spec) {
        let why = format!("spec of '{name}' must equal the fixed value");
        errors.push(FieldError::invalid(SPEC, internal_value("flowcontrol.FlowSchemaSpec", spec), why));
    }
    errors.append(condition_type_errors(input.field("status")));
    errors
}

/// The specification that a schema of this name must have.
fn mandatory_schema(name: &str) -> Option<Value> {
    let group = |name: &str| json!({"kind": "Group", "group": {"name": name}});
    let (precedence, groups) = match name {
        "exempt" => (1, vec![group("system:masters")]),
        "catch-all" => (10_000, vec![group("system:unauthenticated"), group("system:authenticated")]),
        _ => return None,
    };
    let mut spec = json!({"priorityLevelConfiguration": {"name": name}, "matchingPrecedence": precedence});
    if name == "catch-all" {
        spec["distinguisherMethod"] = json!({"type": "ByUser"});
    }
    spec["rules"] = json!([{
        "subjects": groups,
        "resourceRules": [{
            "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": true, "namespaces": ["*"],
        }],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
    }]);
    Some(spec)
}

fn rule_errors(rule: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let subjects = items(rule, "subjects");
    if subjects.is_empty() {
        errors.push(FieldError::required(path.child("subjects"), "subjects must contain at least one value"));
    }
    for (index, subject) in subjects.iter().enumerate() {
        errors.append(subject_errors(subject, &path.child("subjects").index(index)));
    }
    let (resource_rules, other_rules) = (items(rule, "resourceRules"), items(rule, "nonResourceRules"));
    if resource_rules.is_empty() && other_rules.is_empty() {
        let why = "at least one of resourceRules and nonResourceRules has to be non-empty";
        errors.push(FieldError::required(path, why));
    }
    for (index, rule) in resource_rules.iter().enumerate() {
        errors.append(resource_rule_errors(rule, &path.child("resourceRules").index(index)));
    }
    for (index, rule) in other_rules.iter().enumerate() {
        errors.append(url_rule_errors(rule, &path.child("nonResourceRules").index(index)));
    }
    errors
}

fn subject_errors(subject: &Value, path: &FieldPath<'_>) -> FieldErrors {
    // Kinds with their fields, in the order in which Kubernetes looks for fields of other kinds.
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let mut errors = FieldErrors::new();
    let kind = text(subject, "kind");
    let Some((_, field)) = KINDS.into_iter().find(|(name, _)| *name == kind) else {
        let supported = ["Group", "ServiceAccount", "User"];
        return FieldError::not_supported(path.child("kind"), typed_text(kind), &supported).into();
    };
    let (value, value_path) = (&subject[field], path.child(field));
    if value.is_null() {
        let why = format!("{field} is required when subject kind is '{kind}'");
        errors.push(FieldError::required(value_path, why));
    } else {
        let name = text(value, "name");
        let check = |name: &str| match (kind, name) {
            ("ServiceAccount", "*") | ("User" | "Group", _) => Vec::new(),
            _ => check_dns1123_subdomain(name),
        };
        errors.extend(required_text_errors(value_path.child("name"), name, check));
        let namespace = text(value, "namespace");
        if kind == "ServiceAccount" && namespace.is_empty() {
            let why = "must specify namespace for service account";
            errors.push(FieldError::required(value_path.child("namespace"), why));
        } else if kind == "ServiceAccount" {
            errors.extend(invalid_for(value_path.child("namespace"), namespace, check_dns1123_label(namespace)));
        }
    }
    for (name, field) in KINDS.into_iter().filter(|(name, field)| *name != kind && !subject[*field].is_null()) {
        let why = format!("{field} is forbidden when subject kind is not '{name}'");
        errors.push(FieldError::forbidden(path.child(field), why));
    }
    errors
}

/// The error of values of which `*` must be the only one.
fn wildcard_error(rule: &Value, field: &str, what: &str, path: &FieldPath<'_>) -> Option<FieldError> {
    let values = texts(rule, field);
    let why = format!("if '*' is present, must not specify other {what}");
    let is_wrong = values.len() > 1 && values.contains(&"*");
    is_wrong.then(|| FieldError::invalid(path.child(field), BadValue::from(&rule[field]), why))
}

fn verb_error(rule: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    const VERBS: [&str; 9] =
        ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];
    let verbs = texts(rule, "verbs");
    if verbs.is_empty() {
        return Some(FieldError::required(path.child("verbs"), "verbs must contain at least one value"));
    }
    if verbs.contains(&"*") {
        return wildcard_error(rule, "verbs", "verbs", path);
    }
    let is_wrong = verbs.iter().any(|verb| !VERBS.contains(verb));
    is_wrong.then(|| FieldError::not_supported(path.child("verbs"), BadValue::from(&rule["verbs"]), &VERBS))
}

fn resource_rule_errors(rule: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(verb_error(rule, path));
    for (field, one, many) in [("apiGroups", "api group", "api groups"), ("resources", "resource", "resources")] {
        if texts(rule, field).is_empty() {
            let why = format!("resource rules must supply at least one {one}");
            errors.push(FieldError::required(path.child(field), why));
        }
        errors.extend(wildcard_error(rule, field, many, path));
    }
    let (namespaces, namespaces_path) = (texts(rule, "namespaces"), path.child("namespaces"));
    if namespaces.is_empty() && rule["clusterScope"] != true {
        let why = "resource rules that are not cluster scoped must supply at least one namespace";
        errors.push(FieldError::required(namespaces_path, why));
    } else if namespaces.contains(&"*") {
        errors.extend(wildcard_error(rule, "namespaces", "namespaces", path));
    } else {
        for (index, namespace) in namespaces.into_iter().enumerate() {
            let sentences = check_dns1123_label(namespace).into_iter();
            let sentences =
                sentences.map(|why| format!("each member of this list must be '*' or a DNS-1123 label; {why}"));
            errors.extend(invalid_for(namespaces_path.index(index), namespace, sentences.collect()));
        }
    }
    errors
}

fn url_rule_errors(rule: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(verb_error(rule, path));
    let (urls, urls_path) = (texts(rule, "nonResourceURLs"), path.child("nonResourceURLs"));
    if urls.is_empty() {
        let why = "nonResourceURLs must contain at least one value";
        errors.push(FieldError::required(urls_path, why));
    } else if urls.contains(&"*") {
        errors.extend(wildcard_error(rule, "nonResourceURLs", "non-resource URLs", path));
    } else {
        for (index, url) in urls.into_iter().enumerate() {
            errors.extend(url_text(url).map(|why| FieldError::invalid(urls_path.index(index), url, why)));
        }
    }
    errors
}

/// What is wrong with a path that a rule matches (`ValidateNonResourceURLPath`).
fn url_text(url: &str) -> Option<&'static str> {
    let wildcards = url.matches('*').count();
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if wildcards > 1 || wildcards == 1 && !url.ends_with("/*") => Some("wildcard can only do suffix matching"),
        _ => None,
    }
}

/// Errors of the types of conditions.
fn condition_type_errors(status: &Value) -> FieldErrors {
    const STATUS: FieldPath<'static> = FieldPath::root("status");
    let path = STATUS.child("conditions");
    let mut errors = FieldErrors::new();
    let mut seen = HashSet::new();
    for (index, condition) in items(status, "conditions").iter().enumerate() {
        let path = path.index(index);
        let condition_type = text(condition, "type");
        if !seen.insert(condition_type) {
            errors.push(FieldError::duplicate(path.child("type"), typed_text(condition_type)));
        }
        if condition_type.is_empty() {
            errors.push(FieldError::required(path.child("type"), ""));
        }
    }
    errors
}

/// Validates a PriorityLevelConfiguration.
fn validate_level(input: &ValidationInput<'_>) -> FieldErrors {
    const ANNOTATION: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";
    let spec = input.field("spec");
    let name = input.metadata().name();
    let mut errors = input.metadata_errors();
    if input.metadata().annotation(ANNOTATION).is_some() {
        let why = format!("annotation '{ANNOTATION}' is forbidden");
        errors.push(FieldError::forbidden(METADATA.child("annotations"), why));
    }
    let level_type = text(spec, "type");
    if (name == "exempt") != (level_type == "Exempt") {
        let why = "must be 'Exempt' if and only if `name` is 'exempt'";
        errors.push(FieldError::invalid(SPEC.child("type"), typed_text(level_type), why));
    }
    let (exempt, limited) = (&spec["exempt"], &spec["limited"]);
    match level_type {
        "Exempt" => {
            if !limited.is_null() {
                errors.push(FieldError::forbidden(SPEC.child("limited"), "must be nil if the type is not Limited"));
            }
            let path = SPEC.child("exempt");
            errors.extend(share_error(exempt, &path));
            errors.extend(percent_error(exempt, &path));
        }
        "Limited" => {
            if !exempt.is_null() {
                errors.push(FieldError::forbidden(SPEC.child("exempt"), "must be nil if the type is Limited"));
            }
            let path = SPEC.child("limited");
            if limited.is_null() {
                errors.push(FieldError::required(path, "must not be empty when type is Limited"));
            } else {
                errors.append(limited_errors(limited, &path));
            }
        }
        "" => errors.push(FieldError::required(SPEC.child("type"), "")),
        other => {
            let supported = ["Exempt", "Limited"];
            errors.push(FieldError::not_supported(SPEC.child("type"), typed_text(other), &supported));
        }
    }
    errors.extend(mandatory_level_error(name, spec));
    errors.append(condition_type_errors(input.field("status")));
    errors
}

/// The error of a level that differs from what one of its name must be.
fn mandatory_level_error(name: &str, spec: &Value) -> Option<FieldError> {
    let (is_right, what) = match name {
        "exempt" => (
            spec["type"] == "Exempt" && spec["limited"].is_null(),
            "except the 'spec.exempt' field must equal the fixed value",
        ),
        "catch-all" => {
            let limited = json!({
                "nominalConcurrencyShares": 5, "limitResponse": {"type": "Reject"}, "lendablePercent": 0,
            });
            let fixed = json!({"type": "Limited", "limited": limited});
            (*spec == fixed, "must equal the fixed value")
        }
        _ => return None,
    };
    let shown = || internal_value("flowcontrol.PriorityLevelConfigurationSpec", spec);
    let error = || FieldError::invalid(SPEC, shown(), format!("spec of '{name}' {what}"));
    (!is_right).then(error)
}

fn share_error(level: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    let shares = level["nominalConcurrencyShares"].as_i64().filter(|shares| *shares < 0)?;
    let path = path.child("nominalConcurrencyShares");
    Some(FieldError::invalid(path, shares, "must be a non-negative integer"))
}

fn percent_error(level: &Value, path: &FieldPath<'_>) -> Option<FieldError> {
    let percent = level["lendablePercent"].as_i64().filter(|percent| !(0..=100).contains(percent))?;
    Some(FieldError::invalid(path.child("lendablePercent"), percent, "must be between 0 and 100, inclusive"))
}

fn limited_errors(limited: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    errors.extend(share_error(limited, path));
    let (response, response_path) = (&limited["limitResponse"], path.child("limitResponse"));
    let (queuing, queuing_path) = (&response["queuing"], response_path.child("queuing"));
    match text(response, "type") {
        "Reject" if queuing.is_null() => {}
        "Reject" => {
            let why = "must be nil if limited.limitResponse.type is not Limited";
            errors.push(FieldError::forbidden(queuing_path, why));
        }
        "Queue" if queuing.is_null() => {
            let why = "must not be empty if limited.limitResponse.type is Limited";
            errors.push(FieldError::required(queuing_path, why));
        }
        "Queue" => errors.append(queuing_errors(queuing, &queuing_path)),
        "" => errors.push(FieldError::required(response_path.child("type"), "")),
        other => {
            let supported = ["Queue", "Reject"];
            errors.push(FieldError::not_supported(response_path.child("type"), typed_text(other), &supported));
        }
    }
    errors.extend(percent_error(limited, path));
    if let Some(percent) = limited["borrowingLimitPercent"].as_i64().filter(|percent| *percent < 0) {
        let why = "if specified, must be a non-negative integer";
        errors.push(FieldError::invalid(path.child("borrowingLimitPercent"), percent, why));
    }
    errors
}

fn queuing_errors(queuing: &Value, path: &FieldPath<'_>) -> FieldErrors {
    let number = |field: &str| integer(queuing, field);
    let invalid = |field: &str, why: String| FieldError::invalid(path.child(field), number(field), why);
    let (length, queues, hand) = (number("queueLengthLimit"), number("queues"), number("handSize"));
    let positive = || "must be positive".to_owned();
    let mut errors = FieldErrors::new();
    if length <= 0 {
        errors.push(invalid("queueLengthLimit", positive()));
    }
    if queues <= 0 {
        errors.push(invalid("queues", positive()));
    } else if queues > MAX_QUEUES {
        errors.push(invalid("queues", format!("must not be greater than {MAX_QUEUES}")));
    }
    if hand <= 0 {
        errors.push(invalid("handSize", positive()));
    } else if hand > queues {
        errors.push(invalid("handSize", format!("should not be greater than queues ({queues})")));
    } else if ((queues as f64).log2() * hand as f64).ceil() > MAX_ENTROPY_BITS as f64 {
        let why = format!(
            "required entropy bits of deckSize {queues} and handSize {hand} should not be greater than \
             {MAX_ENTROPY_BITS}"
        );
        errors.push(invalid("handSize", why));
    }
    errors
}

fn print_schema(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let (spec, status) = (object.get("spec").unwrap_or(&Value::Null), object.get("status").unwrap_or(&Value::Null));
    let dangling = items(status, "conditions").iter().find(|condition| condition["type"] == "Dangling");
    let method = match &spec["distinguisherMethod"] {
        Value::Null => "<none>",
        method => text(method, "type"),
    };
    vec![
        printer.name(),
        text_at(spec, "/priorityLevelConfiguration/name").into(),
        integer(spec, "matchingPrecedence").into(),
        method.into(),
        printer.age(),
        dangling.map_or("?", |condition| text(condition, "status")).into(),
    ]
}

fn print_level(printer: &CellPrinter<'_>) -> Vec<Value> {
    let spec = printer.object.get("spec").unwrap_or(&Value::Null);
    let limited = &spec["limited"];
    let number = |of: &Value, field: &str| if of.is_null() { json!("<none>") } else { integer(of, field).into() };
    let queuing = &limited["limitResponse"]["queuing"];
    vec![
        printer.name(),
        text(spec, "type").into(),
        number(limited, "nominalConcurrencyShares"),
        number(queuing, "queues"),
        number(queuing, "handSize"),
        number(queuing, "queueLengthLimit"),
        printer.age(),
    ]
}
