//! What the example API has: greetings and doors, their fields, their columns.
//!
//! Everything else (decoding, tables, discovery, OpenAPI) reads these tables, so that they cannot disagree.

use serde_json::Value;

/// The API group.
pub(super) const GROUP: &str = "example.narthex.dev";

/// One kind of object and how it is served.
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

/// One field of an object.
pub(super) struct Field {
    pub(super) name: &'static str,
    pub(super) shape: Shape,
    pub(super) description: &'static str,
}

/// What a field holds.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Text,
    /// RFC 3339.
    Time,
    Flag,
    Integer,
    Texts,
    /// Keys and values are text.
    Map,
    Object(&'static [Field]),
    /// A list of objects we do not look into.
    Records,
}

/// One column of the Table form, after the name and before the age, which every kind has.
pub(super) struct Column {
    pub(super) title: &'static str,
    /// `string` or `boolean`.
    pub(super) kind: &'static str,
    /// JSON pointer into the object.
    pub(super) pointer: &'static str,
    pub(super) description: &'static str,
    /// 0 is always shown, 1 with `-o wide`.
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
    /// The cell of `object`; `null` when the field is absent.
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

/// All kinds, in the order discovery shows them.
pub(super) static RESOURCES: [Resource; 2] = [
    Resource {
        version: "v1",
        kind: "Greeting",
        plural: "greetings",
        singular: "greeting",
        short_names: &["gr"],
        categories: &["all", "example"],
        namespaced: true,
        description: "Greeting is a few kind words for someone.",
        spec: &[
            Field { name: "message", shape: Shape::Text, description: "What is said, at most 1024 bytes." },
            Field { name: "language", shape: Shape::Text, description: "The language it is said in, for example en." },
            Field { name: "to", shape: Shape::Texts, description: "Who is greeted; everyone when empty." },
        ],
        status: &[CREATED_BY],
        columns: &[
            Column {
                title: "Message",
                kind: "string",
                pointer: "/spec/message",
                description: "What is said, at most 1024 bytes.",
                priority: 0,
            },
            Column {
                title: "Language",
                kind: "string",
                pointer: "/spec/language",
                description: "The language it is said in, for example en.",
                priority: 0,
            },
            Column {
                title: "To",
                kind: "string",
                pointer: "/spec/to",
                description: "Who is greeted; everyone when empty.",
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
            Field { name: "leadsTo", shape: Shape::Text, description: "Where one comes out, at most 1024 bytes." },
            Field { name: "open", shape: Shape::Flag, description: "Whether one can pass." },
        ],
        status: &[CREATED_BY],
        columns: &[
            Column {
                title: "Leads-To",
                kind: "string",
                pointer: "/spec/leadsTo",
                description: "Where one comes out, at most 1024 bytes.",
                priority: 0,
            },
            Column {
                title: "Open",
                kind: "boolean",
                pointer: "/spec/open",
                description: "Whether one can pass.",
                priority: 0,
            },
            BY,
        ],
    },
];

const CREATED_BY: Field = Field {
    name: "createdBy",
    shape: Shape::Text,
    description: "The user who made the object, as the front proxy told. Set by the server.",
};

const BY: Column = Column {
    title: "Created-By",
    kind: "string",
    pointer: "/status/createdBy",
    description: "The user who made the object, as the front proxy told.",
    priority: 1,
};

/// `metav1.ObjectMeta`.
pub(super) static METADATA: &[Field] = &[
    Field { name: "annotations", shape: Shape::Map, description: "Unstructured words of tools about the object." },
    Field {
        name: "creationTimestamp",
        shape: Shape::Time,
        description: "When the object was made. Set by the server.",
    },
    Field {
        name: "deletionGracePeriodSeconds",
        shape: Shape::Integer,
        description: "Seconds before the object may go; always 0 here. Set by the server.",
    },
    Field {
        name: "deletionTimestamp",
        shape: Shape::Time,
        description: "When deletion was asked for, while finalizers hold it up. Set by the server.",
    },
    Field {
        name: "finalizers",
        shape: Shape::Texts,
        description: "Who must agree before a deleted object goes; each removes its own entry.",
    },
    Field {
        name: "generateName",
        shape: Shape::Text,
        description: "Prefix of a name the server makes up when no name is given.",
    },
    Field { name: "generation", shape: Shape::Integer, description: "Counts changes of the spec. Set by the server." },
    Field { name: "labels", shape: Shape::Map, description: "Keys and values to select objects by." },
    Field {
        name: "managedFields",
        shape: Shape::Records,
        description: "Which manager set which fields, for server-side apply. Kept by the server.",
    },
    Field { name: "name", shape: Shape::Text, description: "The name, unique among its kind and namespace." },
    Field { name: "namespace", shape: Shape::Text, description: "The namespace of a namespaced object." },
    Field { name: "ownerReferences", shape: Shape::Records, description: "Objects this one depends on." },
    Field {
        name: "resourceVersion",
        shape: Shape::Text,
        description: "Opaque version of the object; sent back, a change fails if the object has changed since.",
    },
    Field { name: "selfLink", shape: Shape::Text, description: "Deprecated, always empty." },
    Field { name: "uid", shape: Shape::Text, description: "Unique in time and space. Set by the server." },
];
