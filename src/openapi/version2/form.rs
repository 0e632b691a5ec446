//! Schema of OpenAPI v2 documents as a table: fields, their types, and their numbers in gnostic's `OpenAPIv2.proto`. It
//! drives validation and protobuf encoding.
//!
//! Backends' documents are validated by it: with a field of the wrong type clients would discard the whole merged
//! document (gnostic's parser is strict). kube-aggregator passes such a field on.

use serde_json::{Map, Value};

/// An object with named fields.
pub(super) struct Message {
    pub(super) fields: &'static [Field],
    /// Field number of the extensions (`x-…`); 0 if there are none.
    pub(super) extensions: u8,
}

/// Field of a [`Message`].
pub(super) struct Field {
    pub(super) key: &'static str,
    pub(super) number: u8,
    pub(super) kind: Kind,
}

/// Type of a value.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Text,
    /// A reference to another part of the document: `#/definitions/…`.
    Reference,
    Flag,
    Whole,
    Number,
    Texts,
    /// A string or a list of strings, in a nested message.
    Words,
    /// Any JSON, encoded as YAML.
    Any,
    Anys,
    One(&'static Message),
    Many(&'static Message),
    /// An object with arbitrary names.
    Named(&'static Kind),
    /// A list of such objects.
    NamedMany(&'static Kind),
    /// One of several messages, chosen by its content; nested in messages of the given numbers.
    Choice(fn(&Map<String, Value>) -> Option<Chosen>),
    Choices(fn(&Map<String, Value>) -> Option<Chosen>),
    /// A boolean or a schema.
    SchemaOrFlag,
    /// A schema or a list of schemas.
    Schemas,
    /// Responses by status code, with extensions beside them.
    Responses,
    /// Paths, with extensions beside them.
    Paths,
}

/// Numbers of the surrounding messages, outermost first, and the message.
pub(super) type Chosen = (&'static [u8], &'static Message);

const fn field(key: &'static str, number: u8, kind: Kind) -> Field {
    Field { key, number, kind }
}

/// The top level of a document.
pub(super) static DOCUMENT: Message = Message {
    fields: &[
        field("swagger", 1, Kind::Text),
        field("info", 2, Kind::One(&INFO)),
        field("host", 3, Kind::Text),
        field("basePath", 4, Kind::Text),
        field("schemes", 5, Kind::Texts),
        field("consumes", 6, Kind::Texts),
        field("produces", 7, Kind::Texts),
        field("paths", 8, PATHS),
        field("definitions", 9, Kind::Named(&DEFINITION)),
        field("parameters", 10, Kind::Named(&PARAMETER)),
        field("responses", 11, Kind::Named(&Kind::One(&RESPONSE))),
        field("security", 12, Kind::NamedMany(&Kind::Words)),
        field("securityDefinitions", 13, Kind::Named(&Kind::Choice(security))),
        field("tags", 14, Kind::Many(&TAG)),
        field("externalDocs", 15, Kind::One(&EXTERNAL_DOCS)),
    ],
    extensions: 16,
};

const PATHS: Kind = Kind::Paths;
/// Entry of `paths`.
pub(super) static PATH: Kind = Kind::One(&PATH_ITEM);
/// Entry of `definitions`.
pub(super) static DEFINITION: Kind = Kind::One(&SCHEMA);
/// Entry of `parameters`.
pub(super) static PARAMETER: Kind = Kind::Choice(defined_parameter);

static INFO: Message = Message {
    fields: &[
        field("title", 1, Kind::Text),
        field("version", 2, Kind::Text),
        field("description", 3, Kind::Text),
        field("termsOfService", 4, Kind::Text),
        field("contact", 5, Kind::One(&CONTACT)),
        field("license", 6, Kind::One(&LICENSE)),
    ],
    extensions: 7,
};

static CONTACT: Message = Message {
    fields: &[field("name", 1, Kind::Text), field("url", 2, Kind::Text), field("email", 3, Kind::Text)],
    extensions: 4,
};

static LICENSE: Message =
    Message { fields: &[field("name", 1, Kind::Text), field("url", 2, Kind::Text)], extensions: 3 };

static EXTERNAL_DOCS: Message =
    Message { fields: &[field("description", 1, Kind::Text), field("url", 2, Kind::Text)], extensions: 3 };

static TAG: Message = Message {
    fields: &[
        field("name", 1, Kind::Text),
        field("description", 2, Kind::Text),
        field("externalDocs", 3, Kind::One(&EXTERNAL_DOCS)),
    ],
    extensions: 4,
};

static REFERENCE: Message =
    Message { fields: &[field("$ref", 1, Kind::Reference), field("description", 2, Kind::Text)], extensions: 0 };

static PATH_ITEM: Message = Message {
    fields: &[
        field("$ref", 1, Kind::Reference),
        field("get", 2, Kind::One(&OPERATION)),
        field("put", 3, Kind::One(&OPERATION)),
        field("post", 4, Kind::One(&OPERATION)),
        field("delete", 5, Kind::One(&OPERATION)),
        field("options", 6, Kind::One(&OPERATION)),
        field("head", 7, Kind::One(&OPERATION)),
        field("patch", 8, Kind::One(&OPERATION)),
        field("parameters", 9, Kind::Choices(parameter)),
    ],
    extensions: 10,
};

static OPERATION: Message = Message {
    fields: &[
        field("tags", 1, Kind::Texts),
        field("summary", 2, Kind::Text),
        field("description", 3, Kind::Text),
        field("externalDocs", 4, Kind::One(&EXTERNAL_DOCS)),
        field("operationId", 5, Kind::Text),
        field("produces", 6, Kind::Texts),
        field("consumes", 7, Kind::Texts),
        field("parameters", 8, Kind::Choices(parameter)),
        field("responses", 9, Kind::Responses),
        field("schemes", 10, Kind::Texts),
        field("deprecated", 11, Kind::Flag),
        field("security", 12, Kind::NamedMany(&Kind::Words)),
    ],
    extensions: 13,
};

/// Entry of `responses`.
pub(super) static ANSWER: Kind = Kind::Choice(answer);

static RESPONSE: Message = Message {
    fields: &[
        field("description", 1, Kind::Text),
        field("schema", 2, Kind::Choice(schema)),
        field("headers", 3, Kind::Named(&Kind::One(&HEADER))),
        field("examples", 4, Kind::Named(&Kind::Any)),
    ],
    extensions: 5,
};

pub(super) static SCHEMA: Message = Message {
    fields: &[
        field("$ref", 1, Kind::Reference),
        field("format", 2, Kind::Text),
        field("title", 3, Kind::Text),
        field("description", 4, Kind::Text),
        field("default", 5, Kind::Any),
        field("multipleOf", 6, Kind::Number),
        field("maximum", 7, Kind::Number),
        field("exclusiveMaximum", 8, Kind::Flag),
        field("minimum", 9, Kind::Number),
        field("exclusiveMinimum", 10, Kind::Flag),
        field("maxLength", 11, Kind::Whole),
        field("minLength", 12, Kind::Whole),
        field("pattern", 13, Kind::Text),
        field("maxItems", 14, Kind::Whole),
        field("minItems", 15, Kind::Whole),
        field("uniqueItems", 16, Kind::Flag),
        field("maxProperties", 17, Kind::Whole),
        field("minProperties", 18, Kind::Whole),
        field("required", 19, Kind::Texts),
        field("enum", 20, Kind::Anys),
        field("additionalProperties", 21, Kind::SchemaOrFlag),
        field("type", 22, Kind::Words),
        field("items", 23, Kind::Schemas),
        field("allOf", 24, Kind::Many(&SCHEMA)),
        field("properties", 25, Kind::Named(&Kind::One(&SCHEMA))),
        field("discriminator", 26, Kind::Text),
        field("readOnly", 27, Kind::Flag),
        field("xml", 28, Kind::One(&XML)),
        field("externalDocs", 29, Kind::One(&EXTERNAL_DOCS)),
        field("example", 30, Kind::Any),
    ],
    extensions: 31,
};

static XML: Message = Message {
    fields: &[
        field("name", 1, Kind::Text),
        field("namespace", 2, Kind::Text),
        field("prefix", 3, Kind::Text),
        field("attribute", 4, Kind::Flag),
        field("wrapped", 5, Kind::Flag),
    ],
    extensions: 6,
};

static FILE_SCHEMA: Message = Message {
    fields: &[
        field("format", 1, Kind::Text),
        field("title", 2, Kind::Text),
        field("description", 3, Kind::Text),
        field("default", 4, Kind::Any),
        field("required", 5, Kind::Texts),
        field("type", 6, Kind::Text),
        field("readOnly", 7, Kind::Flag),
        field("externalDocs", 8, Kind::One(&EXTERNAL_DOCS)),
        field("example", 9, Kind::Any),
    ],
    extensions: 10,
};

static BODY: Message = Message {
    fields: &[
        field("description", 1, Kind::Text),
        field("name", 2, Kind::Text),
        field("in", 3, Kind::Text),
        field("required", 4, Kind::Flag),
        field("schema", 5, Kind::One(&SCHEMA)),
    ],
    extensions: 6,
};

/// Fields of non-object values: items, headers and parameters have them under consecutive numbers.
macro_rules! simple {
    ($first:literal $(, $more:expr)*) => {
        &[
            $($more,)*
            field("type", $first, Kind::Text),
            field("format", $first + 1, Kind::Text),
            field("items", $first + 2, Kind::One(&ITEMS)),
            field("collectionFormat", $first + 3, Kind::Text),
            field("default", $first + 4, Kind::Any),
            field("maximum", $first + 5, Kind::Number),
            field("exclusiveMaximum", $first + 6, Kind::Flag),
            field("minimum", $first + 7, Kind::Number),
            field("exclusiveMinimum", $first + 8, Kind::Flag),
            field("maxLength", $first + 9, Kind::Whole),
            field("minLength", $first + 10, Kind::Whole),
            field("pattern", $first + 11, Kind::Text),
            field("maxItems", $first + 12, Kind::Whole),
            field("minItems", $first + 13, Kind::Whole),
            field("uniqueItems", $first + 14, Kind::Flag),
            field("enum", $first + 15, Kind::Anys),
            field("multipleOf", $first + 16, Kind::Number),
        ]
    };
}

static ITEMS: Message = Message { fields: simple!(1), extensions: 18 };
static HEADER: Message = Message { fields: simple!(1, field("description", 18, Kind::Text)), extensions: 19 };
/// Parameter in a header or in the path.
static PLACED: Message = Message {
    fields: simple!(
        5,
        field("required", 1, Kind::Flag),
        field("in", 2, Kind::Text),
        field("description", 3, Kind::Text),
        field("name", 4, Kind::Text)
    ),
    extensions: 22,
};
/// Parameter in the query or in a form.
static FREE: Message = Message {
    fields: simple!(
        6,
        field("required", 1, Kind::Flag),
        field("in", 2, Kind::Text),
        field("description", 3, Kind::Text),
        field("name", 4, Kind::Text),
        field("allowEmptyValue", 5, Kind::Flag)
    ),
    extensions: 23,
};

fn says<'o>(object: &'o Map<String, Value>, key: &str) -> &'o str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn parameter(object: &Map<String, Value>) -> Option<Chosen> {
    if object.contains_key("$ref") {
        return Some((&[2], &REFERENCE));
    }
    Some(match says(object, "in") {
        "body" => (&[1, 1], &BODY),
        "header" => (&[1, 2, 1], &PLACED),
        "formData" => (&[1, 2, 2], &FREE),
        "query" => (&[1, 2, 3], &FREE),
        "path" => (&[1, 2, 4], &PLACED),
        _ => return None,
    })
}

fn defined_parameter(object: &Map<String, Value>) -> Option<Chosen> {
    match parameter(object)? {
        ([1, rest @ ..], message) => Some((rest, message)),
        _ => None,
    }
}

fn answer(object: &Map<String, Value>) -> Option<Chosen> {
    Some(if object.contains_key("$ref") { (&[2], &REFERENCE) } else { (&[1], &RESPONSE) })
}

fn schema(object: &Map<String, Value>) -> Option<Chosen> {
    Some(if says(object, "type") == "file" { (&[2], &FILE_SCHEMA) } else { (&[1], &SCHEMA) })
}

fn security(object: &Map<String, Value>) -> Option<Chosen> {
    Some(match (says(object, "type"), says(object, "flow")) {
        ("basic", _) => (&[1], &BASIC),
        ("apiKey", _) => (&[2], &API_KEY),
        ("oauth2", "implicit") => (&[3], &IMPLICIT),
        ("oauth2", "password") => (&[4], &BY_TOKEN_URL),
        ("oauth2", "application") => (&[5], &BY_TOKEN_URL),
        ("oauth2", "accessCode") => (&[6], &ACCESS_CODE),
        _ => return None,
    })
}

static BASIC: Message =
    Message { fields: &[field("type", 1, Kind::Text), field("description", 2, Kind::Text)], extensions: 3 };

static API_KEY: Message = Message {
    fields: &[
        field("type", 1, Kind::Text),
        field("name", 2, Kind::Text),
        field("in", 3, Kind::Text),
        field("description", 4, Kind::Text),
    ],
    extensions: 5,
};

const TYPE: Field = field("type", 1, Kind::Text);
const FLOW: Field = field("flow", 2, Kind::Text);
const SCOPES: Field = field("scopes", 3, Kind::Named(&Kind::Text));

static IMPLICIT: Message = Message {
    fields: &[TYPE, FLOW, SCOPES, field("authorizationUrl", 4, Kind::Text), field("description", 5, Kind::Text)],
    extensions: 6,
};

static BY_TOKEN_URL: Message = Message {
    fields: &[TYPE, FLOW, SCOPES, field("tokenUrl", 4, Kind::Text), field("description", 5, Kind::Text)],
    extensions: 6,
};

static ACCESS_CODE: Message = Message {
    fields: &[
        TYPE,
        FLOW,
        SCOPES,
        field("authorizationUrl", 4, Kind::Text),
        field("tokenUrl", 5, Kind::Text),
        field("description", 6, Kind::Text),
    ],
    extensions: 7,
};
