//! Lint of the authorization file: entries that match no request. kube-rbac-proxy accepts them; most likely each is a
//! mistake.

use http::Method;
use kubeapi::verb_of;

use super::attributes::{AttributeTemplate, RbacProxyResource};
use super::glob::Glob;
use super::static_rule::{RuleTarget, StaticRule};
use super::{PathRule, RbacProxyRules};
use crate::process::Problem;

/// The verbs of HTTP methods. Other methods have `*`, which has its own warning.
const VERBS: [&str; 5] = ["get", "create", "update", "patch", "delete"];

/// Returns the warnings about `rules`, with field paths; `location` is the file.
pub(super) fn warnings(rules: &RbacProxyRules, location: &str) -> Vec<Problem> {
    let mut odd = Linter { location, found: Vec::new() };
    odd.templates("authorization", &rules.template);
    for (number, rule) in rules.by_path.iter().enumerate() {
        let at = format!("authorization.rules[{number}]");
        odd.templates(&at, &rule.template);
        odd.path_rule(&at, rule, &rules.by_path[..number]);
    }
    for (number, rule) in rules.static_rules.iter().enumerate() {
        odd.static_rule(&format!("authorization.static[{number}]"), rule, rules);
    }
    odd.found
}

struct Linter<'p> {
    location: &'p str,
    found: Vec<Problem>,
}

impl Linter<'_> {
    fn warn(&mut self, at: &str, field: &str, message: impl std::fmt::Display) {
        let dot = if field.is_empty() { "" } else { "." };
        self.found.push(Problem::at_field(self.location, format_args!("{at}{dot}{field}"), message));
    }

    /// Warns about templates without rewrites.
    fn templates(&mut self, at: &str, template: &AttributeTemplate) {
        let AttributeTemplate::Resource(resource) = template else { return };
        let RbacProxyResource { namespace, api_group, api_version, resource, subresource, name } = resource;
        for (field, text) in [
            ("namespace", namespace),
            ("apiGroup", api_group),
            ("apiVersion", api_version),
            ("resource", resource),
            ("subresource", subresource),
            ("name", name),
        ] {
            if text.contains("{{") {
                let message = "is used literally: there are no rewrites to take a value from";
                self.warn(at, &format!("resourceAttributes.{field}"), format_args!("{text:?} {message}"));
            }
        }
    }

    fn path_rule(&mut self, at: &str, rule: &PathRule, before: &[PathRule]) {
        let taken = |path: &Glob, method: Option<&Method>| {
            let takes =
                |other: &PathRule| method.map_or(other.methods.is_empty(), |method| other.matches_method(method));
            before.iter().any(|other| takes(other) && other.paths.iter().any(|glob| glob.covers(path)))
        };
        let all_taken = |path: &Glob| match rule.methods.is_empty() {
            true => taken(path, None),
            false => rule.methods.iter().all(|method| taken(path, Some(method))),
        };
        if !rule.paths.is_empty() && rule.paths.iter().all(all_taken) {
            self.warn(
                at,
                "",
                "matches no request: earlier rules match all of its paths and methods (GET includes HEAD)",
            );
        }
        if let Some(verb) = rule.verb.as_deref().filter(|verb| verb.bytes().any(|byte| byte.is_ascii_uppercase())) {
            let message = "is used literally, but Kubernetes verbs are lower case; use";
            self.warn(at, "verb", format_args!("{verb:?} {message} {:?}", verb.to_ascii_lowercase()));
        }
    }

    fn static_rule(&mut self, at: &str, rule: &StaticRule, rules: &RbacProxyRules) {
        let mut templates = rules.templates();
        let (resources, paths) = match &rule.target {
            RuleTarget::Resource { .. } => {
                (templates.any(|template| !matches!(template, AttributeTemplate::Path)), true)
            }
            RuleTarget::Path(_) => (true, templates.any(|template| matches!(template, AttributeTemplate::Path))),
        };
        if !resources {
            self.warn(
                at,
                "resourceRequest",
                "allows nothing: without resourceAttributes, requests are authorized by path",
            );
        }
        if !paths {
            self.warn(at, "path", "allows nothing: with resourceAttributes, no request is authorized by path");
        }
        let verb = rule.verb.as_str();
        let is_known_verb =
            VERBS.contains(&verb) || rules.by_path.iter().any(|rule| rule.verb.as_deref() == Some(verb));
        if verb == "*" {
            let message = "matches only methods without a verb: use get, create, update, patch or delete, or omit it \
                           for all";
            self.warn(at, "verb", message);
        } else if !verb.is_empty() && !is_known_verb {
            let message = "matches no request";
            match suggested_verb(verb) {
                Some(meant) => self.warn(at, "verb", format_args!("{verb:?} {message}; use {meant:?}")),
                None => self.warn(at, "verb", format_args!("{verb:?} {message}; use one of {}", VERBS.join(", "))),
            }
        }
        let RuleTarget::Path(path) = &rule.target else { return };
        if !path.starts_with('/') {
            self.warn(at, "path", format_args!("{path:?} matches no request; use \"/{path}\""));
        } else if path.contains(['*', '?', '%']) {
            let message = "matches literally: patterns, queries and escapes are not supported";
            self.warn(at, "path", format_args!("{path:?} {message}"));
        }
    }
}

/// Returns the verb to suggest for an HTTP method, or for a Kubernetes verb that requests here never have.
fn suggested_verb(configured: &str) -> Option<&'static str> {
    let lower = configured.to_ascii_lowercase();
    if let Some(verb) = VERBS.into_iter().find(|verb| *verb == lower) {
        return Some(verb);
    }
    match lower.as_str() {
        "list" | "watch" => Some("get"),
        "deletecollection" => Some("delete"),
        _ => Method::from_bytes(configured.to_ascii_uppercase().as_bytes())
            .map(|method| verb_of(&method))
            .ok()
            .filter(|verb| !verb.is_empty()),
    }
}
