//! Schema of OpenAPI v2 documents as a table: fields, their types, and their numbers in gnostic's `OpenAPIv2.proto`. It
//! drives validation and protobuf encoding.
//!
//! Backends' documents are validated by it: with a field of the wrong type clients would discard the whole merged
//! document (gnostic's parser is strict). kube-aggregator passes such a field on.

use serde_json::{Map, Value};

/// An object with named fields.
pub(super) struct MessageSchema {
    pub(super) fields: &'static [FieldSchema],
    /// Field number of the extensions (`x-…`); 0 if there are none.
    pub(super) extensions: u8,
}

/// Field of a [`MessageSchema`].
pub(super) struct FieldSchema {
    pub(super) key: &'static str,
    pub(super) number: u8,
    pub(super) kind: ValueKind,
}

/// Type of a value.
#[derive(Clone, Copy)]
pub(super) enum ValueKind {
    Text,
    /// A reference to another part of the document: `#/definitions/…`.
    Reference,
    Flag,
    Integer,
    Number,
    Texts,
    /// A string or a list of strings, in a nested message.
    TextOrTexts,
    /// Any JSON, encoded as YAML.
    Any,
    Anys,
    One(&'static MessageSchema),
    Many(&'static MessageSchema),
    /// An object with arbitrary names.
    Named(&'static ValueKind),
    /// A list of such objects.
    NamedMany(&'static ValueKind),
    /// One of several messages, chosen by its content; nested in messages of the given numbers.
    Choice(fn(&Map<String, Value>) -> Option<MessageChoice>),
    Choices(fn(&Map<String, Value>) -> Option<MessageChoice>),
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
pub(super) type MessageChoice = (&'static [u8], &'static MessageSchema);

const fn field(key: &'static str, number: u8, kind: ValueKind) -> FieldSchema {
    FieldSchema { key, number, kind }
}

/// The top level of a document.
pub(super) static DOCUMENT: MessageSchema = MessageSchema {
    fields: &[
        field("swagger", 1, ValueKind::Text),
        field("info", 2, ValueKind::One(&INFO)),
        field("host", 3, ValueKind::Text),
        field("basePath", 4, ValueKind::Text),
        field("schemes", 5, ValueKind::Texts),
        field("consumes", 6, ValueKind::Texts),
        field("produces", 7, ValueKind::Texts),
        field("paths", 8, PATHS),
        field("definitions", 9, ValueKind::Named(&DEFINITION)),
        field("parameters", 10, ValueKind::Named(&PARAMETER)),
        field("responses", 11, ValueKind::Named(&ValueKind::One(&RESPONSE))),
        field("security", 12, ValueKind::NamedMany(&ValueKind::TextOrTexts)),
        field("securityDefinitions", 13, ValueKind::Named(&ValueKind::Choice(security))),
        field("tags", 14, ValueKind::Many(&TAG)),
        field("externalDocs", 15, ValueKind::One(&EXTERNAL_DOCS)),
    ],
    extensions: 16,
};

const PATHS: ValueKind = ValueKind::Paths;
/// Entry of `paths`.
pub(super) static PATH: ValueKind = ValueKind::One(&PATH_ITEM);
/// Entry of `definitions`.
pub(super) static DEFINITION: ValueKind = ValueKind::One(&SCHEMA);
/// Entry of `parameters`.
pub(super) static PARAMETER: ValueKind = ValueKind::Choice(defined_parameter);

static INFO: MessageSchema = MessageSchema {
    fields: &[
        field("title", 1, ValueKind::Text),
        field("version", 2, ValueKind::Text),
        field("description", 3, ValueKind::Text),
        field("termsOfService", 4, ValueKind::Text),
        field("contact", 5, ValueKind::One(&CONTACT)),
        field("license", 6, ValueKind::One(&LICENSE)),
    ],
    extensions: 7,
};

static CONTACT: MessageSchema = MessageSchema {
    fields: &[field("name", 1, ValueKind::Text), field("url", 2, ValueKind::Text), field("email", 3, ValueKind::Text)],
    extensions: 4,
};

static LICENSE: MessageSchema =
    MessageSchema { fields: &[field("name", 1, ValueKind::Text), field("url", 2, ValueKind::Text)], extensions: 3 };

static EXTERNAL_DOCS: MessageSchema = MessageSchema {
    fields: &[field("description", 1, ValueKind::Text), field("url", 2, ValueKind::Text)],
    extensions: 3,
};

static TAG: MessageSchema = MessageSchema {
    fields: &[
        field("name", 1, ValueKind::Text),
        field("description", 2, ValueKind::Text),
        field("externalDocs", 3, ValueKind::One(&EXTERNAL_DOCS)),
    ],
    extensions: 4,
};

static REFERENCE: MessageSchema = MessageSchema {
    fields: &[field("$ref", 1, ValueKind::Reference), field("description", 2, ValueKind::Text)],
    extensions: 0,
};

static PATH_ITEM: MessageSchema = MessageSchema {
    fields: &[
        field("$ref", 1, ValueKind::Reference),
        field("get", 2, ValueKind::One(&OPERATION)),
        field("put", 3, ValueKind::One(&OPERATION)),
        field("post", 4, ValueKind::One(&OPERATION)),
        field("delete", 5, ValueKind::One(&OPERATION)),
        field("options", 6, ValueKind::One(&OPERATION)),
        field("head", 7, ValueKind::One(&OPERATION)),
        field("patch", 8, ValueKind::One(&OPERATION)),
        field("parameters", 9, ValueKind::Choices(parameter)),
    ],
    extensions: 10,
};

static OPERATION: MessageSchema = MessageSchema {
    fields: &[
        field("tags", 1, ValueKind::Texts),
        field("summary", 2, ValueKind::Text),
        field("description", 3, ValueKind::Text),
        field("externalDocs", 4, ValueKind::One(&EXTERNAL_DOCS)),
        field("operationId", 5, ValueKind::Text),
        field("produces", 6, ValueKind::Texts),
        field("consumes", 7, ValueKind::Texts),
        field("parameters", 8, ValueKind::Choices(parameter)),
        field("responses", 9, ValueKind::Responses),
        field("schemes", 10, ValueKind::Texts),
        field("deprecated", 11, ValueKind::Flag),
        field("security", 12, ValueKind::NamedMany(&ValueKind::TextOrTexts)),
    ],
    extensions: 13,
};

/// Entry of `responses`.
pub(super) static RESPONSE_OR_REFERENCE: ValueKind = ValueKind::Choice(answer);

static RESPONSE: MessageSchema = MessageSchema {
    fields: &[
        field("description", 1, ValueKind::Text),
        field("schema", 2, ValueKind::Choice(schema)),
        field("headers", 3, ValueKind::Named(&ValueKind::One(&HEADER))),
        field("examples", 4, ValueKind::Named(&ValueKind::Any)),
    ],
    extensions: 5,
};

pub(super) static SCHEMA: MessageSchema = MessageSchema {
    fields: &[
        field("$ref", 1, ValueKind::Reference),
        field("format", 2, ValueKind::Text),
        field("title", 3, ValueKind::Text),
        field("description", 4, ValueKind::Text),
        field("default", 5, ValueKind::Any),
        field("multipleOf", 6, ValueKind::Number),
        field("maximum", 7, ValueKind::Number),
        field("exclusiveMaximum", 8, ValueKind::Flag),
        field("minimum", 9, ValueKind::Number),
        field("exclusiveMinimum", 10, ValueKind::Flag),
        field("maxLength", 11, ValueKind::Integer),
        field("minLength", 12, ValueKind::Integer),
        field("pattern", 13, ValueKind::Text),
        field("maxItems", 14, ValueKind::Integer),
        field("minItems", 15, ValueKind::Integer),
        field("uniqueItems", 16, ValueKind::Flag),
        field("maxProperties", 17, ValueKind::Integer),
        field("minProperties", 18, ValueKind::Integer),
        field("required", 19, ValueKind::Texts),
        field("enum", 20, ValueKind::Anys),
        field("additionalProperties", 21, ValueKind::SchemaOrFlag),
        field("type", 22, ValueKind::TextOrTexts),
        field("items", 23, ValueKind::Schemas),
        field("allOf", 24, ValueKind::Many(&SCHEMA)),
        field("properties", 25, ValueKind::Named(&ValueKind::One(&SCHEMA))),
        field("discriminator", 26, ValueKind::Text),
        field("readOnly", 27, ValueKind::Flag),
        field("xml", 28, ValueKind::One(&XML)),
        field("externalDocs", 29, ValueKind::One(&EXTERNAL_DOCS)),
        field("example", 30, ValueKind::Any),
    ],
    extensions: 31,
};

static XML: MessageSchema = MessageSchema {
    fields: &[
        field("name", 1, ValueKind::Text),
        field("namespace", 2, ValueKind::Text),
        field("prefix", 3, ValueKind::Text),
        field("attribute", 4, ValueKind::Flag),
        field("wrapped", 5, ValueKind::Flag),
    ],
    extensions: 6,
};

static FILE_SCHEMA: MessageSchema = MessageSchema {
    fields: &[
        field("format", 1, ValueKind::Text),
        field("title", 2, ValueKind::Text),
        field("description", 3, ValueKind::Text),
        field("default", 4, ValueKind::Any),
        field("required", 5, ValueKind::Texts),
        field("type", 6, ValueKind::Text),
        field("readOnly", 7, ValueKind::Flag),
        field("externalDocs", 8, ValueKind::One(&EXTERNAL_DOCS)),
        field("example", 9, ValueKind::Any),
    ],
    extensions: 10,
};

static BODY: MessageSchema = MessageSchema {
    fields: &[
        field("description", 1, ValueKind::Text),
        field("name", 2, ValueKind::Text),
        field("in", 3, ValueKind::Text),
        field("required", 4, ValueKind::Flag),
        field("schema", 5, ValueKind::One(&SCHEMA)),
    ],
    extensions: 6,
};

/// Fields of non-object values: items, headers and parameters have them under consecutive numbers.
macro_rules! simple {
    ($first:literal $(, $more:expr)*) => {
        &[
            $($more,)*
            field("type", $first, ValueKind::Text),
            field("format", $first + 1, ValueKind::Text),
            field("items", $first + 2, ValueKind::One(&ITEMS)),
            field("collectionFormat", $first + 3, ValueKind::Text),
            field("default", $first + 4, ValueKind::Any),
            field("maximum", $first + 5, ValueKind::Number),
            field("exclusiveMaximum", $first + 6, ValueKind::Flag),
            field("minimum", $first + 7, ValueKind::Number),
            field("exclusiveMinimum", $first + 8, ValueKind::Flag),
            field("maxLength", $first + 9, ValueKind::Integer),
            field("minLength", $first + 10, ValueKind::Integer),
            field("pattern", $first + 11, ValueKind::Text),
            field("maxItems", $first + 12, ValueKind::Integer),
            field("minItems", $first + 13, ValueKind::Integer),
            field("uniqueItems", $first + 14, ValueKind::Flag),
            field("enum", $first + 15, ValueKind::Anys),
            field("multipleOf", $first + 16, ValueKind::Number),
        ]
    };
}

static ITEMS: MessageSchema = MessageSchema { fields: simple!(1), extensions: 18 };
static HEADER: MessageSchema =
    MessageSchema { fields: simple!(1, field("description", 18, ValueKind::Text)), extensions: 19 };
/// Parameter in a header or in the path.
static HEADER_OR_PATH_PARAMETER: MessageSchema = MessageSchema {
    fields: simple!(
        5,
        field("required", 1, ValueKind::Flag),
        field("in", 2, ValueKind::Text),
        field("description", 3, ValueKind::Text),
        field("name", 4, ValueKind::Text)
    ),
    extensions: 22,
};
/// Parameter in the query or in a form.
static QUERY_OR_FORM_PARAMETER: MessageSchema = MessageSchema {
    fields: simple!(
        6,
        field("required", 1, ValueKind::Flag),
        field("in", 2, ValueKind::Text),
        field("description", 3, ValueKind::Text),
        field("name", 4, ValueKind::Text),
        field("allowEmptyValue", 5, ValueKind::Flag)
    ),
    extensions: 23,
};

fn text_field<'o>(object: &'o Map<String, Value>, key: &str) -> &'o str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn parameter(object: &Map<String, Value>) -> Option<MessageChoice> {
    if object.contains_key("$ref") {
        return Some((&[2], &REFERENCE));
    }
    Some(match text_field(object, "in") {
        "body" => (&[1, 1], &BODY),
        "header" => (&[1, 2, 1], &HEADER_OR_PATH_PARAMETER),
        "formData" => (&[1, 2, 2], &QUERY_OR_FORM_PARAMETER),
        "query" => (&[1, 2, 3], &QUERY_OR_FORM_PARAMETER),
        "path" => (&[1, 2, 4], &HEADER_OR_PATH_PARAMETER),
        _ => return None,
    })
}

fn defined_parameter(object: &Map<String, Value>) -> Option<MessageChoice> {
    match parameter(object)? {
        ([1, rest @ ..], message) => Some((rest, message)),
        _ => None,
    }
}

fn answer(object: &Map<String, Value>) -> Option<MessageChoice> {
    Some(if object.contains_key("$ref") { (&[2], &REFERENCE) } else { (&[1], &RESPONSE) })
}

fn schema(object: &Map<String, Value>) -> Option<MessageChoice> {
    Some(if text_field(object, "type") == "file" { (&[2], &FILE_SCHEMA) } else { (&[1], &SCHEMA) })
}

fn security(object: &Map<String, Value>) -> Option<MessageChoice> {
    Some(match (text_field(object, "type"), text_field(object, "flow")) {
        ("basic", _) => (&[1], &BASIC),
        ("apiKey", _) => (&[2], &API_KEY),
        ("oauth2", "implicit") => (&[3], &IMPLICIT),
        ("oauth2", "password") => (&[4], &BY_TOKEN_URL),
        ("oauth2", "application") => (&[5], &BY_TOKEN_URL),
        ("oauth2", "accessCode") => (&[6], &ACCESS_CODE),
        _ => return None,
    })
}

static BASIC: MessageSchema = MessageSchema {
    fields: &[field("type", 1, ValueKind::Text), field("description", 2, ValueKind::Text)],
    extensions: 3,
};

static API_KEY: MessageSchema = MessageSchema {
    fields: &[
        field("type", 1, ValueKind::Text),
        field("name", 2, ValueKind::Text),
        field("in", 3, ValueKind::Text),
        field("description", 4, ValueKind::Text),
    ],
    extensions: 5,
};

const TYPE: FieldSchema = field("type", 1, ValueKind::Text);
const FLOW: FieldSchema = field("flow", 2, ValueKind::Text);
const SCOPES: FieldSchema = field("scopes", 3, ValueKind::Named(&ValueKind::Text));

static IMPLICIT: MessageSchema = MessageSchema {
    fields: &[
        TYPE,
        FLOW,
        SCOPES,
        field("authorizationUrl", 4, ValueKind::Text),
        field("description", 5, ValueKind::Text),
    ],
    extensions: 6,
};

static BY_TOKEN_URL: MessageSchema = MessageSchema {
    fields: &[TYPE, FLOW, SCOPES, field("tokenUrl", 4, ValueKind::Text), field("description", 5, ValueKind::Text)],
    extensions: 6,
};

static ACCESS_CODE: MessageSchema = MessageSchema {
    fields: &[
        TYPE,
        FLOW,
        SCOPES,
        field("authorizationUrl", 4, ValueKind::Text),
        field("tokenUrl", 5, ValueKind::Text),
        field("description", 6, ValueKind::Text),
    ],
    extensions: 7,
};
