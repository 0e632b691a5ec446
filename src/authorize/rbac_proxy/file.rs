//! The authorization file of kube-rbac-proxy (`--config-file`), with `rules` of our own.

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

/// The authorization file, followed.
pub type RulesFile = FollowedFile<Rules>;

/// A bigger file is a mistake.
const LARGEST: u64 = 1 << 20;

/// Every name that a field may have. Go's JSON takes a field in any case.
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
/// The first of them that is a text.
const TEXTS: usize = 12;

impl Rules {
    /// Reads the file, YAML or JSON. All mistakes at once.
    ///
    /// # Errors
    /// When it cannot be read, or holds a mistake.
    pub fn load(path: &Path) -> Result<Rules, Problems> {
        let text = text_of(path, LARGEST)?;
        Rules::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Reads the text of the file; `place` is what problems name.
    ///
    /// # Errors
    /// All mistakes in it.
    pub fn parse(place: &str, text: &str, json: bool) -> Result<Rules, Problems> {
        let (mut found, mut problems) = documents(place, text, json);
        let [document] = &mut found[..] else {
            if problems.0.is_empty() {
                problems.0.push(Problem::new(place, "one mapping with the field authorization is needed"));
            }
            return Err(problems);
        };
        as_go_reads(&mut document.value);
        let problems = RefCell::new(problems);
        let mut fields = Fields::new(place, &document.value, &problems);
        let mut rules = Rules::default();
        match fields.fields("authorization") {
            Some(authorization) => rules.take(authorization, place),
            None => fields.problem("authorization", "needed"),
        }
        fields.end();
        problems.into_inner().or(rules)
    }

    fn take(&mut self, mut fields: Fields<'_>, place: &str) {
        let (attributes, rewrites) = (fields.path("resourceAttributes"), fields.path("rewrites"));
        if fields.has("rewrites") && !fields.has("resourceAttributes") {
            let message = format_args!("says nothing without {attributes}: requests are asked about by their path");
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
    const UNUSABLE: &'static str = "the authorization file changed and is not usable; the last good one stays";

    fn read(path: &Path) -> Result<Rules, Problems> {
        Rules::load(path)
    }

    fn tell_read_again(&self, _path: &Path) {
        self.tell();
    }
}

/// `resourceAttributes` and `rewrites`.
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
                    let message = "is a template of which more is asked than is known here; use {{ .Value }}";
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
            _ => fields.problem("byHttpHeader.name", format_args!("{header:?} cannot be the name of a header to read")),
        }
    } else if sources.parameter.is_none() {
        fields.problem_here("byQueryParameter.name or byHttpHeader.name is needed: every request would be refused");
    }
    fields.end();
    sources
}

fn path_rule(mut fields: Fields<'_>) -> PathRule {
    let mut paths = Vec::new();
    for (number, pattern) in fields.texts("paths").into_iter().enumerate() {
        match Glob::parse(&pattern).filter(|_| pattern.starts_with('/')) {
            Some(glob) => paths.push(glob),
            None => fields.problem(&format!("paths[{number}]"), format_args!("{pattern:?} is no pattern of paths")),
        }
    }
    if fields.lacks("paths") {
        fields.problem("paths", "needed");
    }
    let mut methods = Vec::new();
    for (number, method) in fields.texts("methods").into_iter().enumerate() {
        match Method::from_bytes(method.as_bytes()) {
            Ok(known) if !method.bytes().any(|byte| byte.is_ascii_lowercase()) => methods.push(known),
            _ => fields.problem(&format!("methods[{number}]"), format_args!("{method:?} is no method; GET is one")),
        }
    }
    let verb = fields.text_if_given("verb").filter(|verb| !verb.is_empty());
    if fields.has("rewrites") && !fields.has("resourceAttributes") {
        fields.problem("rewrites", "says nothing without resourceAttributes");
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
        (false, true) => fields.problem("path", "needed, or resourceRequest: true"),
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

/// Makes of a file what Go's JSON behind `ghodss/yaml` makes of it: a field may be written in any case, and where a
/// text belongs a number, true or false is one.
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
                // Twice the same name in two cases: the other one stays, and nobody knows it.
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
