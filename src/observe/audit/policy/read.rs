//! Parses and validates a policy file like `validation.ValidatePolicy` of `k8s.io/apiserver/pkg/apis/audit`, but more
//! strictly.

use std::cell::RefCell;

use super::{GroupResources, Level, Policy, Rule, Stage, Stages, Verdict};
use crate::kubeapi::is_dns_subdomain;
use crate::process::{Fields, Problem, Problems, documents};

/// Maximum size of a policy file.
pub(super) const LARGEST: u64 = 4 << 20;

/// Parses the single document of a policy file.
///
/// # Errors
/// All problems. An unknown field is a problem: upstream only warns, and the policy then differs from what its author
/// meant.
pub(super) fn policy(place: &str, text: &str, json: bool) -> Result<Policy, Problems> {
    let (documents, problems) = documents(place, text, json);
    let problems = RefCell::new(problems);
    let add = |problem| problems.borrow_mut().0.push(problem);
    let mut policy = Policy::default();
    match &*documents {
        [] if problems.borrow().0.is_empty() => add(Problem::new(place, "is empty; a Policy is needed")),
        [] => {}
        [document] => {
            let wanted = [("apiVersion", &document.api_version, "audit.k8s.io/v1"), ("kind", &document.kind, "Policy")];
            for (field, found, needed) in wanted {
                if found != needed {
                    add(Problem::field(place, field, format_args!("{found:?} does not fit; {needed} is needed")));
                }
            }
            read(Fields::new(place, &document.value, &problems), &mut policy);
        }
        [_, second, ..] => add(Problem::new(&second.place, "a file may contain only one Policy")),
    }
    problems.into_inner().or(policy)
}

fn read(mut fields: Fields<'_>, policy: &mut Policy) {
    for known in ["apiVersion", "kind", "metadata"] {
        fields.ignore(known);
    }
    let omit = stages(&mut fields, Stages::default());
    let omit_managed_fields = fields.switch("omitManagedFields").unwrap_or_default();
    if fields.lacks("rules") {
        fields.problem("rules", "at least one is needed; requests that match no rule are not audited");
    }
    for rule in fields.each("rules") {
        policy.rules.push(read_rule(rule, omit, omit_managed_fields));
    }
    fields.end();
}

fn read_rule(mut fields: Fields<'_>, omit: Stages, omit_managed_fields: bool) -> Rule {
    let level = level(&mut fields);
    let rule = Rule {
        verdict: Verdict {
            level,
            omit: stages(&mut fields, omit),
            omit_managed_fields: fields.switch("omitManagedFields").unwrap_or(omit_managed_fields),
        },
        users: fields.texts("users"),
        groups: fields.texts("userGroups"),
        verbs: fields.texts("verbs"),
        resources: fields.each("resources").into_iter().map(group_resources).collect(),
        namespaces: fields.texts("namespaces"),
        paths: fields.texts("nonResourceURLs"),
    };
    for (number, path) in rule.paths.iter().enumerate().filter(|(_, path)| *path != "*") {
        let field = format!("nonResourceURLs[{number}]");
        if !path.starts_with('/') {
            fields.problem(&field, format_args!("{path:?} must begin with a slash"));
        }
        if path.strip_suffix('*').unwrap_or(path).contains('*') {
            fields.problem(&field, format_args!("{path:?}: a star is only allowed at the end"));
        }
    }
    if !(rule.paths.is_empty() || rule.resources.is_empty() && rule.namespaces.is_empty()) {
        let why = "a rule applies to paths or to resources and namespaces, never to both";
        fields.problem("nonResourceURLs", why);
    }
    fields.end();
    rule
}

fn level(fields: &mut Fields<'_>) -> Level {
    const NEEDED: &str = "None, Metadata, Request or RequestResponse is needed";
    let Some(text) = fields.text_if_given("level") else {
        if !fields.has("level") {
            fields.problem("level", format_args!("is missing; {NEEDED}"));
        }
        return Level::None;
    };
    Level::ALL.into_iter().find(|level| level.as_str() == text).unwrap_or_else(|| {
        fields.problem("level", format_args!("{text:?} is not a level; {NEEDED}"));
        Level::None
    })
}

fn stages(fields: &mut Fields<'_>, mut stages: Stages) -> Stages {
    for (number, text) in fields.texts("omitStages").iter().enumerate() {
        match Stage::ALL.into_iter().find(|stage| stage.as_str() == text) {
            Some(stage) => stages = stages.and(stage),
            None => fields.problem(
                &format!("omitStages[{number}]"),
                format_args!(
                    "{text:?} is not a stage; RequestReceived, ResponseStarted, ResponseComplete or Panic is needed"
                ),
            ),
        }
    }
    stages
}

fn group_resources(mut fields: Fields<'_>) -> GroupResources {
    let read = GroupResources {
        group: fields.text("group"),
        resources: fields.texts("resources"),
        names: fields.texts("resourceNames"),
    };
    if !matches!(&*read.group, "" | "*") && !is_dns_subdomain(&read.group) {
        let why = "is not an API group; write it without a version, such as apps or rbac.authorization.k8s.io";
        fields.problem("group", format_args!("{:?} {why}", read.group));
    }
    if !read.names.is_empty() && read.resources.is_empty() {
        fields.problem("resourceNames", "requires at least one entry in resources");
    }
    fields.end();
    read
}
