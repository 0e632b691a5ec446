//! Parses and validates a policy file like `validation.ValidatePolicy` of `k8s.io/apiserver/pkg/apis/audit`, but more
//! strictly.

use std::cell::RefCell;

use kubeapi::is_dns_subdomain;

use super::super::AuditLevel;
use super::{AuditPolicy, AuditRule, AuditStage, AuditStages, GroupResources, RequestAuditConfig};
use crate::process::{FieldReader, Problem, Problems, parse_documents};

/// Maximum size of a policy file.
pub(super) const MAX_POLICY_SIZE: u64 = 4 << 20;

/// Parses the single document of a policy file.
///
/// # Errors
/// All problems. An unknown field is a problem: Kubernetes only warns, and the policy then differs from what its author
/// meant.
pub(super) fn parse_policy(location: &str, text: &str, json: bool) -> Result<AuditPolicy, Problems> {
    let (documents, problems) = parse_documents(location, text, json);
    let problems = RefCell::new(problems);
    let add = |problem| problems.borrow_mut().0.push(problem);
    let mut policy = AuditPolicy::default();
    match &*documents {
        [] if problems.borrow().0.is_empty() => add(Problem::new(location, "is empty; a Policy is needed")),
        [] => {}
        [document] => {
            let type_fields =
                [("apiVersion", &document.api_version, "audit.k8s.io/v1"), ("kind", &document.kind, "Policy")];
            for (field, found, needed) in type_fields {
                if found != needed {
                    add(Problem::at_field(location, field, format_args!("{found:?} does not fit; {needed} is needed")));
                }
            }
            parse_fields(FieldReader::new(location, &document.value, &problems), &mut policy);
        }
        [_, second, ..] => add(Problem::new(&second.location, "a file may contain only one Policy")),
    }
    problems.into_inner().into_result(policy)
}

fn parse_fields(mut fields: FieldReader<'_>, policy: &mut AuditPolicy) {
    for known in ["apiVersion", "kind", "metadata"] {
        fields.ignore(known);
    }
    let omit = parse_stages(&mut fields, AuditStages::default());
    let omit_managed_fields = fields.optional_bool("omitManagedFields").unwrap_or_default();
    if fields.is_missing_or_empty("rules") {
        fields.add_problem("rules", "at least one is needed; requests that match no rule are not audited");
    }
    for rule in fields.object_list("rules") {
        policy.rules.push(parse_rule(rule, omit, omit_managed_fields));
    }
    fields.finish();
}

fn parse_rule(mut fields: FieldReader<'_>, omit: AuditStages, omit_managed_fields: bool) -> AuditRule {
    let level = parse_level(&mut fields);
    let rule = AuditRule {
        config: RequestAuditConfig {
            level,
            omit: parse_stages(&mut fields, omit),
            omit_managed_fields: fields.optional_bool("omitManagedFields").unwrap_or(omit_managed_fields),
        },
        users: fields.string_list("users"),
        groups: fields.string_list("userGroups"),
        verbs: fields.string_list("verbs"),
        resources: fields.object_list("resources").into_iter().map(parse_group_resources).collect(),
        namespaces: fields.string_list("namespaces"),
        paths: fields.string_list("nonResourceURLs"),
    };
    for (number, path) in rule.paths.iter().enumerate().filter(|(_, path)| *path != "*") {
        let field = format!("nonResourceURLs[{number}]");
        if !path.starts_with('/') {
            fields.add_problem(&field, format_args!("{path:?} must begin with a slash"));
        }
        if path.strip_suffix('*').unwrap_or(path).contains('*') {
            fields.add_problem(&field, format_args!("{path:?}: a star is only allowed at the end"));
        }
    }
    if !(rule.paths.is_empty() || rule.resources.is_empty() && rule.namespaces.is_empty()) {
        let why = "a rule applies to paths or to resources and namespaces, never to both";
        fields.add_problem("nonResourceURLs", why);
    }
    fields.finish();
    rule
}

fn parse_level(fields: &mut FieldReader<'_>) -> AuditLevel {
    const NEEDED: &str = "None, Metadata, Request or RequestResponse is needed";
    let Some(text) = fields.optional_string("level") else {
        if !fields.contains("level") {
            fields.add_problem("level", format_args!("is missing; {NEEDED}"));
        }
        return AuditLevel::None;
    };
    AuditLevel::ALL.into_iter().find(|level| level.as_str() == text).unwrap_or_else(|| {
        fields.add_problem("level", format_args!("{text:?} is not a level; {NEEDED}"));
        AuditLevel::None
    })
}

fn parse_stages(fields: &mut FieldReader<'_>, mut stages: AuditStages) -> AuditStages {
    for (number, text) in fields.string_list("omitStages").iter().enumerate() {
        match AuditStage::ALL.into_iter().find(|stage| stage.as_str() == text) {
            Some(stage) => stages = stages.with(stage),
            None => fields.add_problem(
                &format!("omitStages[{number}]"),
                format_args!(
                    "{text:?} is not a stage; RequestReceived, ResponseStarted, ResponseComplete or Panic is needed"
                ),
            ),
        }
    }
    stages
}

fn parse_group_resources(mut fields: FieldReader<'_>) -> GroupResources {
    let read = GroupResources {
        group: fields.string("group"),
        resources: fields.string_list("resources"),
        names: fields.string_list("resourceNames"),
    };
    if !matches!(&*read.group, "" | "*") && !is_dns_subdomain(&read.group) {
        let why = "is not an API group; write it without a version, such as apps or rbac.authorization.k8s.io";
        fields.add_problem("group", format_args!("{:?} {why}", read.group));
    }
    if !read.names.is_empty() && read.resources.is_empty() {
        fields.add_problem("resourceNames", "requires at least one entry in resources");
    }
    fields.finish();
    read
}
