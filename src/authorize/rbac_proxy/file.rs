//! Parser of kube-rbac-proxy's authorization file (`--config-file`), with `parse_rules` as an extension.

use std::cell::RefCell;
use std::path::Path;

use http::{HeaderName, Method};
use serde_json::Value;

use super::attributes::{AttributeTemplate, RbacProxyResource, ResourceTemplates};
use super::glob::Glob;
use super::static_rule::{RuleTarget, StaticRule};
use super::value::{Template, ValueSources, is_allowed_source};
use super::{PathRule, RbacProxyRules, lint};
use crate::process::{
    FieldReader, Problem, Problems, WatchedFile, WatchedFileContent, is_json, parse_documents, read_text_file,
};

/// The authorization file, reloaded when it changes.
pub type RulesFile = WatchedFile<RbacProxyRules>;

/// The maximum size of the file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// All field names. Go's JSON accepts a field name in any case.
const FIELD_NAMES: [&str; 20] = [
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
/// The index in [`FIELD_NAMES`] from which fields contain strings.
const FIRST_TEXT_FIELD: usize = 12;

impl RbacProxyRules {
    /// Reads the file, YAML or JSON.
    ///
    /// # Errors
    /// When it cannot be read; otherwise all errors in it.
    pub fn load(path: &Path) -> Result<RbacProxyRules, Problems> {
        let text = read_text_file(path, MAX_FILE_BYTES)?;
        RbacProxyRules::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of the file; `location` is the file name in problems.
    ///
    /// # Errors
    /// All errors in it.
    pub fn parse(location: &str, text: &str, json: bool) -> Result<RbacProxyRules, Problems> {
        let (mut found, mut problems) = parse_documents(location, text, json);
        let [document] = &mut found[..] else {
            if problems.0.is_empty() {
                problems.0.push(Problem::new(location, "one mapping with the field authorization is required"));
            }
            return Err(problems);
        };
        normalize_like_go(&mut document.value);
        let problems = RefCell::new(problems);
        let mut fields = FieldReader::new(location, &document.value, &problems);
        let mut rules = RbacProxyRules::default();
        match fields.object("authorization") {
            Some(authorization) => rules.apply(authorization, location),
            None => fields.add_problem("authorization", "required"),
        }
        fields.finish();
        problems.into_inner().into_result(rules)
    }

    fn apply(&mut self, mut fields: FieldReader<'_>, location: &str) {
        let (attributes, rewrites) = (fields.path("resourceAttributes"), fields.path("rewrites"));
        if fields.contains("rewrites") && !fields.contains("resourceAttributes") {
            let message = format_args!("has no effect without {attributes}: requests are authorized by their path");
            self.warnings.push(Problem::at_field(location, rewrites, message));
        }
        self.template = parse_template(&mut fields);
        self.by_path = fields.object_list("rules").into_iter().map(parse_path_rule).collect();
        let statics = fields.object_list("static").into_iter().enumerate();
        self.static_rules = statics.map(|(number, rule)| parse_static_rule(rule, number)).collect();
        fields.finish();
        self.warnings.extend(lint::warnings(self, location));
    }
}

impl WatchedFileContent for RbacProxyRules {
    const UNUSABLE: &'static str = "authorization file changed and is invalid; the last good one stays in use";

    fn read(path: &Path) -> Result<RbacProxyRules, Problems> {
        RbacProxyRules::load(path)
    }

    fn log_reload(&self, _path: &Path) {
        self.log();
    }
}

/// Parses `resourceAttributes` and `rewrites`.
fn parse_template(fields: &mut FieldReader<'_>) -> AttributeTemplate {
    let sources = fields.object("rewrites").map(parse_sources);
    let Some(mut attributes) = fields.object("resourceAttributes") else { return AttributeTemplate::Path };
    let attribute_template = match sources {
        None => AttributeTemplate::Resource(RbacProxyResource {
            namespace: attributes.string("namespace"),
            api_group: attributes.string("apiGroup"),
            api_version: attributes.string("apiVersion"),
            resource: attributes.string("resource"),
            subresource: attributes.string("subresource"),
            name: attributes.string("name"),
        }),
        Some(sources) => {
            let mut template = |name: &'static str| {
                let text = attributes.string(name);
                let parsed = Template::parse(&text);
                if parsed.is_none() {
                    let message = "is not a supported template; use {{ .Value }}";
                    attributes.add_problem(name, format_args!("{text:?} {message}"));
                }
                parsed.unwrap_or_default()
            };
            let templates = ResourceTemplates {
                namespace: template("namespace"),
                api_group: template("apiGroup"),
                api_version: template("apiVersion"),
                resource: template("resource"),
                subresource: template("subresource"),
                name: template("name"),
            };
            AttributeTemplate::Values { sources, templates: Box::new(templates) }
        }
    };
    attributes.finish();
    attribute_template
}

fn parse_sources(mut fields: FieldReader<'_>) -> ValueSources {
    let mut sources = ValueSources::default();
    let name = |mut source: FieldReader<'_>| {
        let name = source.string("name");
        source.finish();
        Some(name).filter(|name| !name.is_empty())
    };
    sources.parameter = fields.object("byQueryParameter").and_then(name);
    if let Some(header) = fields.object("byHttpHeader").and_then(name) {
        match HeaderName::from_bytes(header.as_bytes()) {
            Ok(name) if is_allowed_source(&name) => sources.header = Some(name),
            _ => fields.add_problem("byHttpHeader.name", format_args!("{header:?} is not an allowed header name")),
        }
    } else if sources.parameter.is_none() {
        fields
            .add_own_problem("byQueryParameter.name or byHttpHeader.name is required: every request would be rejected");
    }
    fields.finish();
    sources
}

fn parse_path_rule(mut fields: FieldReader<'_>) -> PathRule {
    let mut paths = Vec::new();
    for (number, pattern) in fields.string_list("paths").into_iter().enumerate() {
        match Glob::parse(&pattern).filter(|_| pattern.starts_with('/')) {
            Some(glob) => paths.push(glob),
            None => fields.add_problem(&format!("paths[{number}]"), format_args!("{pattern:?} is not a path pattern")),
        }
    }
    if fields.is_missing_or_empty("paths") {
        fields.add_problem("paths", "required");
    }
    let mut methods = Vec::new();
    for (number, method) in fields.string_list("methods").into_iter().enumerate() {
        match Method::from_bytes(method.as_bytes()) {
            Ok(known) if !method.bytes().any(|byte| byte.is_ascii_lowercase()) => methods.push(known),
            _ => fields.add_problem(&format!("methods[{number}]"), format_args!("{method:?} is not an HTTP method")),
        }
    }
    let verb = fields.optional_string("verb").filter(|verb| !verb.is_empty());
    if fields.contains("rewrites") && !fields.contains("resourceAttributes") {
        fields.add_problem("rewrites", "has no effect without resourceAttributes");
    }
    let template = parse_template(&mut fields);
    fields.finish();
    PathRule { paths, methods, verb, template }
}

fn parse_static_rule(mut fields: FieldReader<'_>, number: usize) -> StaticRule {
    let (mut user, mut groups) = (String::new(), Vec::new());
    if let Some(mut identity) = fields.object("user") {
        (user, groups) = (identity.string("name"), identity.string_list("groups"));
        identity.finish();
    }
    let (verb, path) = (fields.string("verb"), fields.string("path"));
    let (namespace, api_group) = (fields.string("namespace"), fields.string("apiGroup"));
    let (resource, subresource) = (fields.string("resource"), fields.string("subresource"));
    let name = fields.string("name");
    let of_resource = fields.optional_bool("resourceRequest").unwrap_or_default();
    match (of_resource, path.is_empty()) {
        (true, false) => fields.add_problem("path", "cannot be given with resourceRequest: a resource has no path"),
        (false, true) => fields.add_problem("path", "required, unless resourceRequest is true"),
        _ => {}
    }
    fields.finish();
    let what = if of_resource {
        RuleTarget::Resource { namespace, api_group, resource, subresource, name }
    } else {
        RuleTarget::Path(path)
    };
    StaticRule { user, groups, verb, target: what, reason: format!("allowed by authorization.static[{number}]").into() }
}

/// Normalizes a file like Go's JSON behind `ghodss/yaml`: field names are accepted in any case, and numbers and
/// booleans are accepted as strings.
fn normalize_like_go(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(normalize_like_go),
        Value::Object(fields) => {
            let names: Vec<String> = fields.keys().cloned().collect();
            for written in names {
                let Some(number) = FIELD_NAMES.iter().position(|name| name.eq_ignore_ascii_case(&written)) else {
                    continue;
                };
                let Some(mut value) = fields.remove(&written) else { continue };
                match &mut value {
                    Value::Array(list) if FIELD_NAMES[number] == "groups" => list.iter_mut().for_each(scalar_to_text),
                    value if number >= FIRST_TEXT_FIELD => scalar_to_text(value),
                    value => normalize_like_go(value),
                }
                // The same name in two cases: the second keeps its spelling, and is reported as unknown.
                let twice = fields.contains_key(FIELD_NAMES[number]);
                fields.insert(if twice { written } else { FIELD_NAMES[number].to_owned() }, value);
            }
        }
        _ => {}
    }
}

fn scalar_to_text(value: &mut Value) {
    if value.is_boolean() || value.is_i64() || value.is_u64() {
        *value = Value::String(value.to_string());
    }
}
