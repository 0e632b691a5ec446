//! The resources of the example API: greetings and doors with their fields and columns.
//!
//! Decoding, tables, discovery and OpenAPI all use these definitions, so that they are consistent.

use serde_json::Value;

/// The API group.
pub(super) const GROUP: &str = "example.narthex.dev";

/// A resource and how it is served.
pub(super) struct Resource {
    pub(super) version: &'static str,
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
    pub(super) singular: &'static str,
    pub(super) short_names: &'static [&'static str],
    pub(super) categories: &'static [&'static str],
    pub(super) namespaced: bool,
    pub(super) description: &'static str,
    pub(super) spec: &'static [Field],
    pub(super) status: &'static [Field],
    pub(super) columns: &'static [Column],
}

/// A field of an object.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) description: &'static str,
}

/// The type of a field.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Text,
    /// RFC 3339.
    Time,
    Flag,
    Integer,
    Texts,
    /// A map with text values.
    Map,
    Object(&'static [Field]),
    /// A list of opaque objects.
    Records,
}

/// A column of the Table representation, between the name and the age, which every kind has.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// `string` or `boolean`.
    pub(super) kind: &'static str,
    /// JSON pointer into the object.
    pub(super) pointer: &'static str,
    pub(super) description: &'static str,
    /// 0: always shown; 1: shown with `-o wide`.
    pub(super) priority: u8,
}

impl Resource {
    /// `example.narthex.dev/v1`.
    pub(super) fn group_version(&self) -> String {
        format!("{GROUP}/{}", self.version)
    }

    /// `GreetingList`.
    pub(super) fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }
}

impl Column {
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
pub(super) static RESOURCES: [Resource; 2] = [
    Resource {
        version: "v1",
        kind: "Greeting",
        plural: "greetings",
        singular: "greeting",
        short_names: &["gr"],
        categories: &["all", "example"],
        namespaced: true,
        description: "Greeting is a short friendly message.",
        spec: &[
            Field { name: "message", shape: Shape::Text, description: "The text, at most 1024 bytes." },
            Field { name: "language", shape: Shape::Text, description: "The language of the text, for example en." },
            Field { name: "to", shape: Shape::Texts, description: "The people to greet; everyone if empty." },
        ],
        status: &[CREATED_BY],
        columns: &[
            Column {
                title: "Message",
                kind: "string",
                pointer: "/spec/message",
                description: "The text, at most 1024 bytes.",
                priority: 0,
            },
            Column {
                title: "Language",
                kind: "string",
                pointer: "/spec/language",
                description: "The language of the text, for example en.",
                priority: 0,
            },
            Column {
                title: "To",
                kind: "string",
                pointer: "/spec/to",
                description: "The people to greet; everyone if empty.",
                priority: 1,
            },
            BY,
        ],
    },
    Resource {
        version: "v1alpha1",
        kind: "Door",
        plural: "doors",
        singular: "door",
        short_names: &[],
        categories: &["example"],
        namespaced: false,
        description: "Door leads from the narthex to somewhere.",
        spec: &[
            Field { name: "leadsTo", shape: Shape::Text, description: "The place behind it, at most 1024 bytes." },
            Field { name: "open", shape: Shape::Flag, description: "Whether the door is open." },
        ],
        status: &[CREATED_BY],
        columns: &[
            Column {
                title: "Leads-To",
                kind: "string",
                pointer: "/spec/leadsTo",
                description: "The place behind it, at most 1024 bytes.",
                priority: 0,
            },
            Column {
                title: "Open",
                kind: "boolean",
                pointer: "/spec/open",
                description: "Whether the door is open.",
                priority: 0,
            },
            BY,
        ],
    },
];

const CREATED_BY: Field = Field {
    name: "createdBy",
    shape: Shape::Text,
    description: "The user that created the object, from the front proxy's headers. Set by the server.",
};

const BY: Column = Column {
    title: "Created-By",
    kind: "string",
    pointer: "/status/createdBy",
    description: "The user that created the object, from the front proxy's headers.",
    priority: 1,
};

/// `metav1.ObjectMeta`.
pub(super) static METADATA: &[Field] = &[
    Field { name: "annotations", shape: Shape::Map, description: "Unstructured data that tools attach to the object." },
    Field {
        name: "creationTimestamp",
        shape: Shape::Time,
        description: "When the object was created. Set by the server.",
    },
    Field {
        name: "deletionGracePeriodSeconds",
        shape: Shape::Integer,
        description: "Seconds before the object is removed; always 0 here. Set by the server.",
    },
    Field {
        name: "deletionTimestamp",
        shape: Shape::Time,
        description: "When deletion was requested, while finalizers delay it. Set by the server.",
    },
    Field {
        name: "finalizers",
        shape: Shape::Texts,
        description: "Finalizers that must be removed before a deleted object is removed.",
    },
    Field {
        name: "generateName",
        shape: Shape::Text,
        description: "Prefix of the generated name if no name is given.",
    },
    Field { name: "generation", shape: Shape::Integer, description: "Number of spec changes. Set by the server." },
    Field { name: "labels", shape: Shape::Map, description: "Keys and values to select objects by." },
    Field {
        name: "managedFields",
        shape: Shape::Records,
        description: "Field ownership for server-side apply. Maintained by the server.",
    },
    Field { name: "name", shape: Shape::Text, description: "The name, unique among its kind and namespace." },
    Field { name: "namespace", shape: Shape::Text, description: "The namespace of a namespaced object." },
    Field { name: "ownerReferences", shape: Shape::Records, description: "Objects that own this one." },
    Field {
        name: "resourceVersion",
        shape: Shape::Text,
        description: "Opaque version of the object; an update with an outdated one fails.",
    },
    Field { name: "selfLink", shape: Shape::Text, description: "Deprecated, always empty." },
    Field { name: "uid", shape: Shape::Text, description: "Unique in time and space. Set by the server." },
];
