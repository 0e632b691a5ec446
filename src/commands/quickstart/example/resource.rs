//! The resources of the example API: greetings and doors with their fields and columns.
//!
//! Decoding, tables, discovery and OpenAPI all use these definitions, so that they are consistent.

use serde_json::Value;

/// The API group.
pub(super) const GROUP: &str = "example.narthex.dev";

/// A resource and how it is served.
pub(super) struct ExampleResource {
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) short_names: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) namespaced: bool,
    pub(super) description: &'static str,
    pub(super) spec: &'static [SchemaField],
    pub(super) status: &'static [SchemaField],
    pub(super) columns: &'static [TableColumn],
}

/// A field of an object.
pub(super) struct SchemaField {
    pub(super) name: &'static str,
    pub(super) shape: FieldType,
    pub(super) description: &'static str,
}

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum FieldType {
    Text,
    /// A time as in RFC 3339.
    Time,
    Flag,
    Integer,
    Texts,
    /// A map with text values.
    Map,
    Object(&'static [SchemaField]),
    /// A list of opaque objects.
    Records,
}

/// A column of the Table representation, between the name and the age, which every kind has.
pub(super) struct TableColumn {
    pub(super) title: &'static str,
    /// `string` or `boolean`.
    pub(super) kind: &'static str,
    /// JSON pointer into the object.
    pub(super) pointer: &'static str,
    pub(super) description: &'static str,
    /// 0: always shown; 1: shown with `-o wide`.
    pub(super) priority: u8,
}

impl ExampleResource {
    /// Group and version, such as `example.narthex.dev/v1`.
    pub(super) fn group_version(&self) -> String {
        format!("{GROUP}/{}", self.version)
    }

    /// Kind of a list, such as `GreetingList`.
    pub(super) fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }
}

impl TableColumn {
    /// The cell of `object`; `null` if the field is absent.
    pub(super) fn cell(&self, object: &Value) -> Value {
        match object.pointer(self.pointer) {
            Some(Value::Array(texts)) => {
                Value::String(texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","))
            }
            Some(value) => value.clone(),
            None => Value::Null,
        }
    }
}

/// All resources, in the order of discovery.
pub(super) static RESOURCES: [ExampleResource; 2] = [
    ExampleResource {
        version: "v1",
        kind: "Greeting",
        plural: "greetings",
        singular: "greeting",
        short_names: &["gr"],
        categories: &["all", "example"],
        namespaced: true,
        description: "Greeting is a short friendly message.",
        spec: &[
            SchemaField { name: "message", shape: FieldType::Text, description: "The text, at most 1024 bytes." },
            SchemaField {
                name: "language",
                shape: FieldType::Text,
                description: "The language of the text, for example en.",
            },
            SchemaField { name: "to", shape: FieldType::Texts, description: "The people to greet; everyone if empty." },
        ],
        status: &[CREATED_BY_FIELD],
        columns: &[
            TableColumn {
                title: "Message",
                kind: "string",
                pointer: "/spec/message",
                description: "The text, at most 1024 bytes.",
                priority: 0,
            },
            TableColumn {
                title: "Language",
                kind: "string",
                pointer: "/spec/language",
                description: "The language of the text, for example en.",
                priority: 0,
            },
            TableColumn {
                title: "To",
                kind: "string",
                pointer: "/spec/to",
                description: "The people to greet; everyone if empty.",
                priority: 1,
            },
            CREATED_BY_COLUMN,
        ],
    },
    ExampleResource {
        version: "v1alpha1",
        kind: "Door",
        plural: "doors",
        singular: "door",
        short_names: &[],
        categories: &["example"],
        namespaced: false,
        description: "Door leads from the narthex to somewhere.",
        spec: &[
            SchemaField {
                name: "leadsTo",
                shape: FieldType::Text,
                description: "The place behind it, at most 1024 bytes.",
            },
            SchemaField { name: "open", shape: FieldType::Flag, description: "Whether the door is open." },
        ],
        status: &[CREATED_BY_FIELD],
        columns: &[
            TableColumn {
                title: "Leads-To",
                kind: "string",
                pointer: "/spec/leadsTo",
                description: "The place behind it, at most 1024 bytes.",
                priority: 0,
            },
            TableColumn {
                title: "Open",
                kind: "boolean",
                pointer: "/spec/open",
                description: "Whether the door is open.",
                priority: 0,
            },
            CREATED_BY_COLUMN,
        ],
    },
];

const CREATED_BY_FIELD: SchemaField = SchemaField {
    name: "createdBy",
    shape: FieldType::Text,
    description: "The user that created the object, from the front proxy's headers. Set by the server.",
};

const CREATED_BY_COLUMN: TableColumn = TableColumn {
    title: "Created-By",
    kind: "string",
    pointer: "/status/createdBy",
    description: "The user that created the object, from the front proxy's headers.",
    priority: 1,
};

/// Schema of `metav1.ObjectMeta`.
pub(super) static METADATA: &[SchemaField] = &[
    SchemaField {
        name: "annotations",
        shape: FieldType::Map,
        description: "Unstructured data that tools attach to the object.",
    },
    SchemaField {
        name: "creationTimestamp",
        shape: FieldType::Time,
        description: "When the object was created. Set by the server.",
    },
    SchemaField {
        name: "deletionGracePeriodSeconds",
        shape: FieldType::Integer,
        description: "Seconds before the object is removed; always 0 here. Set by the server.",
    },
    SchemaField {
        name: "deletionTimestamp",
        shape: FieldType::Time,
        description: "When deletion was requested, while finalizers delay it. Set by the server.",
    },
    SchemaField {
        name: "finalizers",
        shape: FieldType::Texts,
        description: "Finalizers that must be removed before a deleted object is removed.",
    },
    SchemaField {
        name: "generateName",
        shape: FieldType::Text,
        description: "Prefix of the generated name if no name is given.",
    },
    SchemaField {
        name: "generation",
        shape: FieldType::Integer,
        description: "Number of spec changes. Set by the server.",
    },
    SchemaField { name: "labels", shape: FieldType::Map, description: "Keys and values to select objects by." },
    SchemaField {
        name: "managedFields",
        shape: FieldType::Records,
        description: "Field ownership for server-side apply. Maintained by the server.",
    },
    SchemaField { name: "name", shape: FieldType::Text, description: "The name, unique among its kind and namespace." },
    SchemaField { name: "namespace", shape: FieldType::Text, description: "The namespace of a namespaced object." },
    SchemaField { name: "ownerReferences", shape: FieldType::Records, description: "Objects that own this one." },
    SchemaField {
        name: "resourceVersion",
        shape: FieldType::Text,
        description: "Opaque version of the object; an update with an outdated one fails.",
    },
    SchemaField { name: "selfLink", shape: FieldType::Text, description: "Deprecated, always empty." },
    SchemaField { name: "uid", shape: FieldType::Text, description: "Unique in time and space. Set by the server." },
];
