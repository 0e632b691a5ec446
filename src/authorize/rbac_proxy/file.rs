//! Parser of kube-rbac-proxy's authorization file (`--config-file`), with `rules` as an extension.

use std::cell::RefCell;
use std::path::Path;

use http::{HeaderName, Method};
use serde_json::Value;

use super::attributes::{Asking, Resource, Templates};
use super::glob::Glob;
use super::static_rule::{StaticRule, What};
use super::value::{Sources, Template, may_be_source};
use super::{PathRule, Rules, odd};
use crate::process::{Fields, Followed, FollowedFile, Problem, Problems, documents, is_json, text_of};

/// The authorization file, reloaded when it changes.
pub type RulesFile = FollowedFile<Rules>;

/// The maximum size of the file.
const LARGEST: u64 = 1 << 20;

/// All field names. Go's JSON accepts a field name in any case.
const NAMES: [&str; 20] = [
    "authorization",
    "rules",
    "paths",
    "methods",
    "rewrites",
    "byQueryParameter",
    "byHttpHeader",
    "resourceAttributes",
    "static",
    "user",
    "groups",
    "resourceRequest",
    "name",
    "verb",
    "path",
    "namespace",
    "apiGroup",
    "apiVersion",
    "resource",
    "subresource",
];
/// The index in [`NAMES`] from which fields contain strings.
const TEXTS: usize = 12;

impl Rules {
    /// Reads the file, YAML or JSON.
    ///
    /// # Errors
    /// When it cannot be read; otherwise all errors in it.
    pub fn load(path: &Path) -> Result<Rules, Problems> {
        let text = text_of(path, LARGEST)?;
        Rules::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of the file; `place` is the file name in problems.
    ///
    /// # Errors
    /// All errors in it.
    pub fn parse(place: &str, text: &str, json: bool) -> Result<Rules, Problems> {
        let (mut found, mut problems) = documents(place, text, json);
        let [document] = &mut found[..] else {
            if problems.0.is_empty() {
                problems.0.push(Problem::new(place, "one mapping with the field authorization is required"));
            }
            return Err(problems);
        };
        as_go_reads(&mut document.value);
        let problems = RefCell::new(problems);
        let mut fields = Fields::new(place, &document.value, &problems);
        let mut rules = Rules::default();
        match fields.fields("authorization") {
            Some(authorization) => rules.take(authorization, place),
            None => fields.problem("authorization", "required"),
        }
        fields.end();
        problems.into_inner().or(rules)
    }

    fn take(&mut self, mut fields: Fields<'_>, place: &str) {
        let (attributes, rewrites) = (fields.path("resourceAttributes"), fields.path("rewrites"));
        if fields.has("rewrites") && !fields.has("resourceAttributes") {
            let message = format_args!("has no effect without {attributes}: requests are authorized by their path");
            self.warnings.push(Problem::field(place, rewrites, message));
        }
        self.asking = asking(&mut fields);
        self.by_path = fields.each("rules").into_iter().map(path_rule).collect();
        let statics = fields.each("static").into_iter().enumerate();
        self.statics = statics.map(|(number, rule)| static_rule(rule, number)).collect();
        fields.end();
        self.warnings.extend(odd::warnings(self, place));
    }
}

impl Followed for Rules {
    const UNUSABLE: &'static str = "authorization file changed and is invalid; the last good one stays in use";

    fn read(path: &Path) -> Result<Rules, Problems> {
        Rules::load(path)
    }

    fn tell_read_again(&self, _path: &Path) {
        self.tell();
    }
}

/// Parses `resourceAttributes` and `rewrites`.
fn asking(fields: &mut Fields<'_>) -> Asking {
    let sources = fields.fields("rewrites").map(sources);
    let Some(mut attributes) = fields.fields("resourceAttributes") else { return Asking::Path };
    let asking = match sources {
        None => Asking::Resource(Resource {
            namespace: attributes.text("namespace"),
            api_group: attributes.text("apiGroup"),
            api_version: attributes.text("apiVersion"),
            resource: attributes.text("resource"),
            subresource: attributes.text("subresource"),
            name: attributes.text("name"),
        }),
        Some(sources) => {
            let mut template = |name: &'static str| {
                let text = attributes.text(name);
                let known = Template::parse(&text);
                if known.is_none() {
                    let message = "is not a supported template; use {{ .Value }}";
                    attributes.problem(name, format_args!("{text:?} {message}"));
                }
                known.unwrap_or_default()
            };
            let templates = Templates {
                namespace: template("namespace"),
                api_group: template("apiGroup"),
                api_version: template("apiVersion"),
                resource: template("resource"),
                subresource: template("subresource"),
                name: template("name"),
            };
            Asking::Values { sources, templates: Box::new(templates) }
        }
    };
    attributes.end();
    asking
}

fn sources(mut fields: Fields<'_>) -> Sources {
    let mut sources = Sources::default();
    let name = |mut source: Fields<'_>| {
        let name = source.text("name");
        source.end();
        Some(name).filter(|name| !name.is_empty())
    };
    sources.parameter = fields.fields("byQueryParameter").and_then(name);
    if let Some(header) = fields.fields("byHttpHeader").and_then(name) {
        match HeaderName::from_bytes(header.as_bytes()) {
            Ok(name) if may_be_source(&name) => sources.header = Some(name),
            _ => fields.problem("byHttpHeader.name", format_args!("{header:?} is not an allowed header name")),
        }
    } else if sources.parameter.is_none() {
        fields.problem_here("byQueryParameter.name or byHttpHeader.name is required: every request would be rejected");
    }
    fields.end();
    sources
}

fn path_rule(mut fields: Fields<'_>) -> PathRule {
    let mut paths = Vec::new();
    for (number, pattern) in fields.texts("paths").into_iter().enumerate() {
        match Glob::parse(&pattern).filter(|_| pattern.starts_with('/')) {
            Some(glob) => paths.push(glob),
            None => fields.problem(&format!("paths[{number}]"), format_args!("{pattern:?} is not a path pattern")),
        }
    }
    if fields.lacks("paths") {
        fields.problem("paths", "required");
    }
    let mut methods = Vec::new();
    for (number, method) in fields.texts("methods").into_iter().enumerate() {
        match Method::from_bytes(method.as_bytes()) {
            Ok(known) if !method.bytes().any(|byte| byte.is_ascii_lowercase()) => methods.push(known),
            _ => fields.problem(&format!("methods[{number}]"), format_args!("{method:?} is not an HTTP method")),
        }
    }
    let verb = fields.text_if_given("verb").filter(|verb| !verb.is_empty());
    if fields.has("rewrites") && !fields.has("resourceAttributes") {
        fields.problem("rewrites", "has no effect without resourceAttributes");
    }
    let asking = asking(&mut fields);
    fields.end();
    PathRule { paths, methods, verb, asking }
}

fn static_rule(mut fields: Fields<'_>, number: usize) -> StaticRule {
    let (mut user, mut groups) = (String::new(), Vec::new());
    if let Some(mut who) = fields.fields("user") {
        (user, groups) = (who.text("name"), who.texts("groups"));
        who.end();
    }
    let (verb, path) = (fields.text("verb"), fields.text("path"));
    let (namespace, api_group) = (fields.text("namespace"), fields.text("apiGroup"));
    let (resource, subresource) = (fields.text("resource"), fields.text("subresource"));
    let name = fields.text("name");
    let of_resource = fields.switch("resourceRequest").unwrap_or_default();
    match (of_resource, path.is_empty()) {
        (true, false) => fields.problem("path", "cannot be given with resourceRequest: a resource has no path"),
        (false, true) => fields.problem("path", "required, unless resourceRequest is true"),
        _ => {}
    }
    fields.end();
    let what = if of_resource {
        What::Resource { namespace, api_group, resource, subresource, name }
    } else {
        What::Path(path)
    };
    StaticRule { user, groups, verb, what, why: format!("allowed by authorization.static[{number}]").into() }
}

/// Normalizes a file like Go's JSON behind `ghodss/yaml`: field names are accepted in any case, and numbers and
/// booleans are accepted as strings.
fn as_go_reads(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(as_go_reads),
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for written in names {
                let Some(number) = NAMES.iter().position(|name| name.eq_ignore_ascii_case(&written)) else { continue };
                let Some(mut value) = fields.remove(&written) else { continue };
                match &mut value {
                    Value::Array(list) if NAMES[number] == "groups" => list.iter_mut().for_each(as_text),
                    value if number >= TEXTS => as_text(value),
                    value => as_go_reads(value),
                }
                // The same name in two cases: the second keeps its spelling, and is reported as unknown.
                let twice = fields.contains_key(NAMES[number]);
                fields.insert(if twice { written } else { NAMES[number].to_owned() }, value);
            }
        }
        _ => {}
    }
}

fn as_text(value: &mut Value) {
    if value.is_boolean() || value.is_i64() || value.is_u64() {
        *value = Value::String(value.to_string());
    }
}
