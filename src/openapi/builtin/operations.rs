//! Paths and operations of a resource, as a kube-apiserver describes them in OpenAPI v2
//! (`k8s.io/apiserver/pkg/endpoints/installer.go`; `pkg/controller/openapi/builder` of apiextensions-apiserver for custom
//! resources).

use std::slice::from_ref;

use kubeapi::protobuf::table::MessageId;
use serde_json::{Map, Value, json};

use super::custom::{SCALE, custom_definition_name};
use super::definitions::{Definitions, V2_PREFIX};
use crate::resources::ServedSubresource;
use crate::resources::builtin::builtin_kinds;
use crate::resources::catalog::{CONNECT_SUBRESOURCES, CatalogEntry};

const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
/// Media types of objects in responses.
const PRODUCED: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
/// Media types of event streams.
const STREAMS: [&str; 2] = ["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
/// Media types of patches. Server-side apply is not among them: it is not implemented.
const PATCHES: [&str; 3] =
    ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"];
/// Resources whose `delete` returns the object (`ReturnDeletedObject`).
const RETURNED_WHEN_DELETED: [&str; 16] = [
    "csidrivers",
    "csinodes",
    "deviceclasses",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "podtemplates",
    "resourceclaims",
    "resourceclaimtemplates",
    "resourcequotas",
    "resourceslices",
    "serviceaccounts",
    "services",
    "storageclasses",
    "volumeattachments",
    "volumeattributesclasses",
];

/// A method with what a client does with it.
#[derive(Clone, Copy)]
struct Action {
    /// Verb of authorization, by which the catalog says what is served.
    verb: &'static str,
    method: &'static str,
    /// `x-kubernetes-action`.
    name: &'static str,
    /// Begin of the operation identifier.
    prefix: &'static str,
    /// Status codes besides 200.
    codes: &'static [(&'static str, &'static str)],
}

const fn action(
    verb: &'static str,
    method: &'static str,
    name: &'static str,
    prefix: &'static str,
    codes: &'static [(&'static str, &'static str)],
) -> Action {
    Action { verb, method, name, prefix, codes }
}

const CREATED: (&str, &str) = ("201", "Created");
const ACCEPTED: (&str, &str) = ("202", "Accepted");
/// Actions on the path of a collection.
const ON_COLLECTION: [Action; 3] = [
    action("list", "get", "list", "list", &[]),
    action("create", "post", "post", "create", &[CREATED, ACCEPTED]),
    action("deletecollection", "delete", "deletecollection", "delete", &[]),
];
/// Actions on the path of a subresource.
const ON_SUBRESOURCE: [Action; 4] = [ON_OBJECT[0], ON_OBJECT[1], ON_OBJECT[2], ON_COLLECTION[1]];
/// Actions on the path of an object.
const ON_OBJECT: [Action; 4] = [
    action("get", "get", "get", "read", &[]),
    action("update", "put", "put", "replace", &[CREATED]),
    action("patch", "patch", "patch", "patch", &[CREATED]),
    action("delete", "delete", "delete", "delete", &[ACCEPTED]),
];

/// The operations of one resource.
pub(super) struct ResourceOperations<'d> {
    entry: &'d CatalogEntry,
    definitions: &'d Definitions<'d>,
    /// Tag, such as `core_v1`.
    tag: String,
    /// Group and version in operation identifiers, such as `CoreV1`.
    group_version: String,
}

/// What a path names.
#[derive(Clone, Copy)]
enum PathTarget<'t> {
    Collection,
    AllNamespaces,
    Object,
    Subresource(&'t ServedSubresource),
}

impl<'d> ResourceOperations<'d> {
    pub(super) fn new(entry: &'d CatalogEntry, definitions: &'d Definitions<'d>) -> ResourceOperations<'d> {
        let group = match &*entry.kind.resource.group {
            "" => "core",
            group => group.strip_suffix(".k8s.io").unwrap_or(group),
        };
        let version = &entry.kind.version.version;
        ResourceOperations {
            entry,
            definitions,
            tag: format!("{}_{}", identifier(group, false), identifier(version, false)),
            group_version: format!("{}{}", identifier(group, true), identifier(version, true)),
        }
    }

    fn is_custom(&self) -> bool {
        self.entry.kind.resource.custom.is_some()
    }

    /// Names of the parameters of an action.
    fn parameter_names(&self, action: &Action) -> &'d [String] {
        let of = |action: &str| self.definitions.actions.get(action).map(Vec::as_slice).unwrap_or_default();
        match (action.name, self.is_custom()) {
            ("get", true) => of("list").iter().find(|name| name.starts_with("resourceVersion-")).map_or(&[], from_ref),
            ("deletecollection", true) => of("list"),
            (name, _) => of(name),
        }
    }

    /// The path items of the resource by their paths.
    pub(super) fn paths(&self) -> Vec<(String, Value)> {
        let resource = &self.entry.kind.resource;
        let root = match &*resource.group {
            "" => format!("/api/{}", self.entry.kind.version.version),
            group => format!("/apis/{group}/{}", self.entry.kind.version.version),
        };
        let namespace = if resource.is_namespaced { "/namespaces/{namespace}" } else { "" };
        let collection = format!("{root}{namespace}/{}", resource.plural);
        let object = format!("{collection}/{{name}}");
        let subresources = self.entry.kind.version.subresources.iter();
        let mut paths: Vec<(String, Value)> = subresources
            // A stream has no document: its body is no object.
            .filter(|one| {
                !self.entry.subresource_verbs(one.name).is_empty() && !CONNECT_SUBRESOURCES.contains(&one.name)
            })
            .map(|one| (format!("{object}/{}", one.name), self.item(PathTarget::Subresource(one))))
            .collect();
        if resource.is_namespaced {
            paths.push((format!("{root}/{}", resource.plural), self.item(PathTarget::AllNamespaces)));
        }
        paths.push((collection, self.item(PathTarget::Collection)));
        paths.push((object, self.item(PathTarget::Object)));
        // A Binding is only created.
        paths.retain(|(_, item)| ON_OBJECT.iter().chain(&ON_COLLECTION).any(|action| !item[action.method].is_null()));
        paths
    }

    /// One path with its operations. Parameters that all operations have are those of the path.
    fn item(&self, target: PathTarget<'_>) -> Value {
        let (actions, verbs): (&[Action], _) = match target {
            PathTarget::Collection => (&ON_COLLECTION, self.entry.verbs()),
            PathTarget::AllNamespaces => (&ON_COLLECTION[..1], self.entry.verbs()),
            PathTarget::Object => (&ON_OBJECT, self.entry.verbs()),
            PathTarget::Subresource(one) => (&ON_SUBRESOURCE, self.entry.subresource_verbs(one.name)),
        };
        let served: Vec<&Action> = actions.iter().filter(|action| verbs.contains(&action.verb)).collect();
        let names = |action: &Action| self.parameter_names(action);
        let is_common =
            |name: &String| !name.starts_with("body-") && served.iter().all(|action| names(action).contains(name));
        let mut common: Vec<Value> = Vec::new();
        if !matches!(target, PathTarget::Collection | PathTarget::AllNamespaces) {
            let description = format!("name of the {}", self.entry.kind.resource.kind);
            common.push(
                json!({"uniqueItems": true, "type": "string", "description": description, "name": "name", "in": "path", "required": true}),
            );
        }
        if self.entry.kind.resource.is_namespaced && !matches!(target, PathTarget::AllNamespaces) {
            common.push(reference("namespace-vgWSWtn3"));
        }
        common.push(reference("pretty-tJGM1-ng"));
        let shared = served.first().map(|action| names(action)).unwrap_or_default();
        common.extend(shared.iter().filter(|name| is_common(name)).map(|name| self.parameter(name)));
        common.sort_by_cached_key(parameter_name);
        let mut item = Map::new();
        for action in &served {
            let own = names(action).iter().filter(|name| !is_common(name)).map(|name| self.parameter(name));
            item.insert(action.method.to_owned(), self.operation(action, target, own.collect()));
        }
        item.insert("parameters".to_owned(), common.into());
        item.into()
    }

    /// A parameter: a reference to a shared one, or itself.
    fn parameter(&self, name: &str) -> Value {
        match self.definitions.parameters.get(name) {
            Some(parameter) if parameter["name"] == name => parameter.clone(),
            _ => reference(name),
        }
    }

    fn operation(&self, action: &Action, target: PathTarget<'_>, mut parameters: Vec<Value>) -> Value {
        let (resource, version) = (&self.entry.kind.resource, &self.entry.kind.version);
        let (mut group, mut version_name, mut kind) = (&resource.group, &version.version, &resource.kind);
        let own_type = |message: Option<MessageId>| match message {
            Some(message) => definition(message),
            None => definition_named(&custom_definition_name(&self.entry.kind, false)),
        };
        let mut body_type = own_type(version.message());
        if let PathTarget::Subresource(one) = target {
            kind = &one.kind;
            body_type = match one.name {
                "scale" if one.message.is_none() => definition_named(SCALE),
                _ => own_type(one.message),
            };
            if self.is_custom() {
                kind = &resource.kind;
            } else if !one.version.is_empty() {
                (group, version_name) = (&one.group, &one.version);
            }
        }
        if matches!(action.name, "post" | "put") {
            parameters.insert(0, json!({"name": "body", "in": "body", "required": true, "schema": body_type}));
        }
        let schema = match action.name {
            "list" if resource.custom.is_some() => definition_named(&custom_definition_name(&self.entry.kind, true)),
            "list" => version.list_message().map_or_else(|| body_type.clone(), definition),
            "delete" if resource.custom.is_none() && RETURNED_WHEN_DELETED.contains(&&*resource.plural) => body_type,
            "delete" | "deletecollection" => definition_named(STATUS),
            _ => body_type,
        };
        let mut responses = json!({
            "200": {"description": "OK", "schema": schema}, "401": {"description": "Unauthorized"},
        });
        let codes = if action.name == "patch" && self.is_custom() { &[] } else { action.codes };
        for (code, description) in codes {
            responses[*code] = json!({"description": description, "schema": schema});
        }
        let streams: &[&str] = if action.name == "list" { &STREAMS } else { &[] };
        let produced: Vec<&str> = match resource.custom {
            Some(_) => PRODUCED[..2].to_vec(),
            None => [&PRODUCED, streams].concat(),
        };
        let consumed: &[&str] = match (action.name, &resource.custom) {
            ("patch", Some(_)) => &PATCHES[..2],
            ("patch", None) => &PATCHES,
            (_, Some(_)) => &PRODUCED[..2],
            _ => &["*/*"],
        };
        let mut operation = json!({
            "description": self.description(action, target),
            "consumes": consumed,
            "produces": produced,
            "schemes": ["https"],
            "tags": [self.tag],
            "operationId": self.operation_id(action, target),
            "responses": responses,
            "x-kubernetes-action": action.name,
            "x-kubernetes-group-version-kind": {"group": group, "kind": kind, "version": version_name},
        });
        if !parameters.is_empty() {
            operation["parameters"] = parameters.into();
        }
        operation
    }

    fn description(&self, action: &Action, target: PathTarget<'_>) -> String {
        let kind = &self.entry.kind.resource.kind;
        let verb = match action.name {
            "list" if self.is_custom() => return format!("list objects of kind {kind}"),
            "list" => return format!("list or watch objects of kind {kind}"),
            "post" => {
                let what = match target {
                    PathTarget::Subresource(one) => format!(" {} of", one.name),
                    _ => String::new(),
                };
                return format!("create{what}{}{kind}", article(kind));
            }
            "delete" => return format!("delete{}{kind}", article(kind)),
            "deletecollection" => return format!("delete collection of {kind}"),
            "patch" => "partially update",
            _ => action.prefix,
        };
        match target {
            PathTarget::Subresource(one) => format!("{verb} {} of the specified {kind}", one.name),
            _ => format!("{verb} the specified {kind}"),
        }
    }

    fn operation_id(&self, action: &Action, target: PathTarget<'_>) -> String {
        let (group_version, kind) = (&self.group_version, &self.entry.kind.resource.kind);
        let is_namespaced = self.entry.kind.resource.is_namespaced && !matches!(target, PathTarget::AllNamespaces);
        let namespaced = if is_namespaced { "Namespaced" } else { "" };
        let collection = if action.name == "deletecollection" { "Collection" } else { "" };
        let suffix = match target {
            PathTarget::Subresource(one) => identifier(one.name, true),
            PathTarget::AllNamespaces => "ForAllNamespaces".to_owned(),
            _ => String::new(),
        };
        let name = identifier(&format!("{collection}{namespaced}{kind}{suffix}"), true);
        format!("{}{group_version}{name}", action.prefix)
    }
}

fn definition(message: MessageId) -> Value {
    definition_named(builtin_kinds().messages.message(message).name)
}

fn definition_named(name: &str) -> Value {
    json!({"$ref": format!("{V2_PREFIX}{name}")})
}

fn reference(parameter: &str) -> Value {
    json!({"$ref": format!("#/parameters/{parameter}")})
}

/// The name of a parameter, or of the shared one that it refers to.
fn parameter_name(parameter: &Value) -> String {
    let text = |key: &str| parameter.get(key).and_then(Value::as_str);
    text("name").or_else(|| text("$ref")?.strip_prefix("#/parameters/")).unwrap_or_default().to_owned()
}

/// A part of an operation identifier: other characters than letters, digits and `_` are left out, and the next one is in
/// upper case (`ToValidOperationID` in `k8s.io/apiserver/pkg/endpoints/openapi/openapi.go`).
fn identifier(text: &str, is_capitalized: bool) -> String {
    let mut part = String::with_capacity(text.len());
    let mut is_word_start = is_capitalized;
    for (at, letter) in text.char_indices() {
        if !(letter.is_alphabetic() || letter == '_' || at != 0 && letter.is_numeric()) {
            is_word_start = true;
        } else if std::mem::take(&mut is_word_start) {
            part.extend(letter.to_uppercase());
        } else {
            part.push(letter);
        }
    }
    part
}

/// The article of a kind between spaces; a plural has none.
fn article(kind: &str) -> &'static str {
    match kind.as_bytes() {
        [.., before, b's'] if *before != b's' => " ",
        [b'A' | b'E' | b'I' | b'O' | b'U', ..] => " an ",
        _ => " a ",
    }
}
