//! Reads `kinds.json` once into typed tables.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use kubeapi::protobuf::table::{FieldListType, GoType, MessageField, MessageId, MessageTable, MessageType, Omission};
use serde::Deserialize;
use serde_json::Value;

use crate::resources::{ObjectFormat, Resource, ResourceColumn, ResourceVersion, ServedKind, ServedSubresource};

/// Written by `tests/interop/kinds`.
const KINDS: &str = include_str!("kinds.json");

/// The built-in resources and the message types of their kinds.
#[derive(Debug, Default)]
pub struct BuiltinKinds {
    /// Message types of all kinds, of the options of requests, and of what these contain.
    pub messages: MessageTable,
    resources: Vec<Arc<Resource>>,
    by_name: HashMap<(&'static str, &'static str), usize>,
}

/// The tables of `kinds.json`, read on first use.
pub fn builtin_kinds() -> &'static BuiltinKinds {
    static TABLES: LazyLock<BuiltinKinds> = LazyLock::new(|| {
        // The file is part of the program, and a test reads it.
        BuiltinKinds::parse(KINDS).unwrap_or_default()
    });
    &TABLES
}

impl BuiltinKinds {
    /// All resources, ordered by group and plural name.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Finds a resource by its group and plural name.
    pub fn resource(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.by_name.get(&(group, plural)).map(|at| &self.resources[*at])
    }

    /// Finds a served version of a resource by group, version and plural name.
    pub fn find(&self, group: &str, version: &str, plural: &str) -> Option<ServedKind> {
        let resource = self.resource(group, plural)?;
        Some(ServedKind { version: resource.version(version)?.clone(), resource: resource.clone() })
    }

    /// Finds the resource of a kind.
    pub fn find_kind(&self, group: &str, version: &str, kind: &str) -> Option<ServedKind> {
        let named = |resource: &&Arc<Resource>| resource.group == group && resource.kind == kind;
        let found =
            self.resources.iter().filter(named).find_map(|resource| Some((resource, resource.version(version)?)));
        found.map(|(resource, version)| ServedKind { resource: resource.clone(), version: version.clone() })
    }

    /// Finds a message type of `metav1`, such as `DeleteOptions`.
    pub fn meta_message(&self, name: &str) -> Option<MessageId> {
        self.messages.find(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"))
    }

    fn parse(text: &'static str) -> Result<BuiltinKinds, String> {
        let file: KindsFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let numbers = MessageTable::number(file.messages.iter().map(|message| &message.name))
            .map_err(|name| format!("too many messages: {name}"))?;
        let messages: Result<_, String> =
            file.messages.into_iter().map(|message| message.into_type(&numbers)).collect();
        let by_name = file.resources.iter().enumerate().map(|(at, line)| ((line.group, line.plural), at)).collect();
        let resources =
            file.resources.into_iter().map(|entry| entry.into_resource(&numbers)).collect::<Result<_, _>>()?;
        Ok(BuiltinKinds { messages: MessageTable::new(messages?, numbers), resources, by_name })
    }
}

#[derive(Deserialize)]
struct KindsFile<'k> {
    #[serde(borrow)]
    resources: Vec<ResourceLine<'k>>,
    #[serde(borrow)]
    messages: Vec<MessageLine<'k>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceLine<'k> {
    group: &'k str,
    plural: &'k str,
    singular: &'k str,
    kind: &'k str,
    #[serde(borrow)]
    list_kind: Option<&'k str>,
    #[serde(borrow, default)]
    short_names: Vec<&'k str>,
    #[serde(borrow, default)]
    categories: Vec<&'k str>,
    namespaced: bool,
    #[serde(borrow)]
    storage: Option<StorageLine<'k>>,
    #[serde(default)]
    storage_path: &'k str,
    #[serde(borrow)]
    versions: Vec<VersionLine<'k>>,
    #[serde(borrow, default)]
    columns: Vec<ColumnLine<'k>>,
}

#[derive(Deserialize)]
struct StorageLine<'k> {
    group: &'k str,
    version: &'k str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct VersionLine<'k> {
    version: &'k str,
    message: &'k str,
    #[serde(borrow)]
    list_message: Option<&'k str>,
    #[serde(borrow)]
    verbs: Vec<&'k str>,
    #[serde(default)]
    storage_version_hash: &'k str,
    #[serde(borrow, default)]
    subresources: Vec<SubresourceLine<'k>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SubresourceLine<'k> {
    name: &'k str,
    #[serde(default)]
    group: &'k str,
    #[serde(default)]
    version: &'k str,
    kind: &'k str,
    message: &'k str,
    #[serde(borrow)]
    verbs: Vec<&'k str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnLine<'k> {
    name: &'k str,
    r#type: &'k str,
    #[serde(default)]
    format: &'k str,
    #[serde(default)]
    description: String,
    #[serde(default)]
    priority: i32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct MessageLine<'k> {
    name: &'k str,
    #[serde(borrow)]
    fields: Vec<FieldLine<'k>>,
    #[serde(default)]
    map_type: &'k str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FieldLine<'k> {
    #[serde(default, rename = "n")]
    name: &'k str,
    #[serde(default, rename = "p")]
    number: u8,
    #[serde(rename = "t")]
    go_type: &'k str,
    #[serde(default, rename = "g")]
    scalar_name: &'k str,
    #[serde(default, rename = "o")]
    omission: &'k str,
    #[serde(default, rename = "r")]
    required: bool,
    #[serde(default, rename = "l")]
    list_type: &'k str,
    #[serde(borrow, default, rename = "k")]
    list_keys: Vec<&'k str>,
    #[serde(default, rename = "s")]
    patch_strategy: &'k str,
    #[serde(default, rename = "m")]
    patch_merge_key: &'k str,
    #[serde(default, rename = "a")]
    map_type: &'k str,
    #[serde(rename = "d")]
    default: Option<Value>,
}

type Numbers = HashMap<&'static str, MessageId>;

fn number_of(name: &str, numbers: &Numbers) -> Result<MessageId, String> {
    numbers.get(name).copied().ok_or_else(|| format!("no message {name}"))
}

impl ResourceLine<'static> {
    fn into_resource(self, numbers: &Numbers) -> Result<Arc<Resource>, String> {
        let columns: Arc<[_]> = self.columns.into_iter().map(ColumnLine::into_column).collect();
        let versions = self.versions.into_iter().map(|version| version.into_version(numbers, &columns));
        Ok(Arc::new(Resource {
            group: self.group.into(),
            plural: self.plural.into(),
            singular: self.singular.into(),
            kind: self.kind.into(),
            list_kind: self.list_kind.map(Cow::Borrowed),
            short_names: self.short_names.into_iter().map(Cow::Borrowed).collect(),
            categories: self.categories.into_iter().map(Cow::Borrowed).collect(),
            is_namespaced: self.namespaced,
            storage: self.storage.map(|storage| (storage.group.into(), storage.version.into())),
            storage_path: self.storage_path.into(),
            versions: versions.collect::<Result<_, _>>()?,
            custom: None,
        }))
    }
}

impl ColumnLine<'static> {
    fn into_column(self) -> ResourceColumn {
        ResourceColumn {
            name: self.name.into(),
            column_type: self.r#type.into(),
            format: self.format.into(),
            description: self.description,
            priority: self.priority,
        }
    }
}

impl VersionLine<'static> {
    fn into_version(self, numbers: &Numbers, columns: &Arc<[ResourceColumn]>) -> Result<Arc<ResourceVersion>, String> {
        let subresources = self.subresources.into_iter().map(|entry| {
            Ok::<_, String>(ServedSubresource {
                name: entry.name,
                group: entry.group.into(),
                version: entry.version.into(),
                kind: entry.kind.into(),
                message: Some(number_of(entry.message, numbers)?),
                verbs: entry.verbs,
            })
        });
        let list_message = self.list_message.map(|name| number_of(name, numbers)).transpose()?;
        Ok(Arc::new(ResourceVersion {
            version: self.version.into(),
            format: ObjectFormat::Builtin(number_of(self.message, numbers)?, list_message),
            columns: columns.clone(),
            verbs: self.verbs,
            storage_version_hash: self.storage_version_hash.into(),
            subresources: subresources.collect::<Result<_, _>>()?,
        }))
    }
}

impl MessageLine<'static> {
    fn into_type(self, numbers: &Numbers) -> Result<MessageType, String> {
        let name = self.name;
        let fields = self.fields.into_iter().map(|field| field.into_field(name, numbers));
        Ok(MessageType { name, fields: fields.collect::<Result<_, _>>()?, is_atomic: self.map_type == "atomic" })
    }
}

impl FieldLine<'static> {
    fn into_field(self, message: &str, numbers: &Numbers) -> Result<MessageField, String> {
        let unknown = |text: &str| format!("{message}.{}: {text:?} is not known", self.name);
        let go_type = GoType::parse(self.go_type, numbers).map_err(unknown)?;
        let omission = match self.omission {
            "" => Omission::Never,
            "e" => Omission::Empty,
            "z" | "ez" => Omission::Zero,
            other => return Err(unknown(other)),
        };
        let list_type = match self.list_type {
            "" => None,
            "atomic" => Some(FieldListType::Atomic),
            "set" => Some(FieldListType::Set),
            "map" => Some(FieldListType::Map),
            other => return Err(unknown(other)),
        };
        Ok(MessageField {
            name: self.name,
            number: self.number,
            go_type,
            omission,
            is_required: self.required,
            list_type,
            list_keys: self.list_keys,
            patch_strategy: self.patch_strategy,
            patch_merge_key: self.patch_merge_key,
            is_atomic: self.map_type == "atomic",
            default: self.default,
            scalar_name: self.scalar_name,
        })
    }
}
