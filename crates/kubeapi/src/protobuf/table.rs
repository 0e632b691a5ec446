//! Message types of the Kubernetes API as tables: fields with their names in JSON, types and protobuf numbers.

use std::collections::HashMap;

use serde_json::Value;

/// Message types that refer to each other by [`MessageId`].
#[derive(Debug, Default)]
pub struct MessageTable {
    messages: Vec<MessageType>,
    by_name: HashMap<&'static str, MessageId>,
}

/// Position of a message type in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(u16);

impl MessageId {
    /// Position of the message type in the table.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A Go struct of the API.
#[derive(Debug)]
pub struct MessageType {
    /// OpenAPI name of the type, such as `io.k8s.api.core.v1.ConfigMap`.
    pub name: &'static str,
    /// Fields of the type, ordered by protobuf number.
    pub fields: Vec<MessageField>,
    /// Whether server-side apply treats a value of it as a whole (`x-kubernetes-map-type: atomic`).
    pub is_atomic: bool,
}

/// A field of a [`MessageType`].
#[derive(Debug)]
pub struct MessageField {
    /// Name in JSON. Empty for an embedded struct: its fields are those of the struct around it in JSON, and a message
    /// of its own in protobuf.
    pub name: &'static str,
    /// Number in protobuf; 0 for a field that protobuf does not have, such as `kind`.
    pub number: u8,
    /// Type of the value.
    pub go_type: GoType,
    /// When Go leaves the field out of JSON.
    pub omission: Omission,
    /// Whether OpenAPI lists the field as required.
    pub is_required: bool,
    /// `x-kubernetes-list-type`, for lists that have one.
    pub list_type: Option<FieldListType>,
    /// The extension `x-kubernetes-list-map-keys`.
    pub list_keys: Vec<&'static str>,
    /// `x-kubernetes-patch-strategy`: empty, `merge`, `replace`, `retainKeys`, or two of them with a comma.
    pub patch_strategy: &'static str,
    /// `x-kubernetes-patch-merge-key`; empty where there is none.
    pub patch_merge_key: &'static str,
    /// Whether server-side apply treats the map or struct as a whole (`x-kubernetes-map-type: atomic`).
    pub is_atomic: bool,
    /// Default in OpenAPI, unless it is what Go has anyway.
    pub default: Option<Value>,
    /// Go's name of the scalar type in errors, such as `types.UID`; empty for a type of Go's own.
    pub scalar_name: &'static str,
}

/// When Go leaves a field out of JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// Never.
    Never,
    /// `omitempty`: an empty string, list or map, 0, `false` or `null`. Structs are never left out.
    Empty,
    /// `omitzero`: the zero value, also of a struct.
    Zero,
}

/// A value of the extension `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldListType {
    /// Server-side apply replaces the list as a whole.
    Atomic,
    /// Each value occurs once.
    Set,
    /// Entries are found by the fields in `list_keys`.
    Map,
}

/// Type of a value: what it is in Go, in JSON and in protobuf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GoType {
    /// `string` or a type of it.
    Text,
    /// `bool`.
    Bool,
    /// `int32`.
    Int32,
    /// `int64`.
    Int64,
    /// `float64`.
    Double,
    /// `[]byte`: base64 in JSON.
    Bytes,
    /// `metav1.Time`: RFC 3339 with full seconds.
    Time,
    /// `metav1.MicroTime`: RFC 3339 with microseconds.
    MicroTime,
    /// `resource.Quantity`.
    Quantity,
    /// `intstr.IntOrString`.
    IntOrString,
    /// `runtime.RawExtension`, `apiextensions.JSON`: any JSON, which protobuf has as bytes.
    RawJson,
    /// `metav1.FieldsV1`: as [`GoType::RawJson`].
    FieldsV1,
    /// `JSONSchemaPropsOrArray`, `…OrBool`, `…OrStringArray` around `JSONSchemaProps`.
    Schema(SchemaForm, MessageId),
    /// A struct.
    Message(MessageId),
    /// A pointer, which is absent when nil.
    Pointer(Box<GoType>),
    /// A list.
    List(Box<GoType>),
    /// A list that protobuf has as a message with one repeated field (`ExtraValue`).
    WrappedList(Box<GoType>),
    /// A map from strings.
    Map(Box<GoType>),
}

/// What `JSONSchemaProps` may be replaced with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaForm {
    /// A list of schemas.
    OrArray,
    /// A bool.
    OrBool,
    /// A list of strings.
    OrStringArray,
}

/// The message around which [`SchemaForm`]s are.
const SCHEMA_MESSAGE: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

impl GoType {
    /// Parses the notation of `kinds.json`: `*` is a pointer, `[]` a list, `{}` a map, `()` a wrapped list.
    ///
    /// # Errors
    /// The part of the text that is neither a scalar nor a name in `by_name`.
    pub fn parse<'t>(text: &'t str, by_name: &HashMap<&'static str, MessageId>) -> Result<GoType, &'t str> {
        let inner = |rest| GoType::parse(rest, by_name).map(Box::new);
        for (prefix, wrap) in [
            ("*", GoType::Pointer as fn(Box<GoType>) -> GoType),
            ("[]", GoType::List),
            ("{}", GoType::Map),
            ("()", GoType::WrappedList),
        ] {
            if let Some(rest) = text.strip_prefix(prefix) {
                return inner(rest).map(wrap);
            }
        }
        let schema = |form| by_name.get(SCHEMA_MESSAGE).map(|id| GoType::Schema(form, *id)).ok_or(text);
        Ok(match text {
            "string" => GoType::Text,
            "bool" => GoType::Bool,
            "int32" => GoType::Int32,
            "int64" => GoType::Int64,
            "float64" => GoType::Double,
            "bytes" => GoType::Bytes,
            "Time" => GoType::Time,
            "MicroTime" => GoType::MicroTime,
            "Quantity" => GoType::Quantity,
            "IntOrString" => GoType::IntOrString,
            "RawExtension" | "RawJSON" => GoType::RawJson,
            "FieldsV1" => GoType::FieldsV1,
            "SchemaOrArray" => schema(SchemaForm::OrArray)?,
            "SchemaOrBool" => schema(SchemaForm::OrBool)?,
            "SchemaOrStringArray" => schema(SchemaForm::OrStringArray)?,
            name => GoType::Message(*by_name.get(name).ok_or(text)?),
        })
    }

    /// The type without its pointers.
    pub fn target(&self) -> &GoType {
        match self {
            GoType::Pointer(target) => target.target(),
            other => other,
        }
    }
}

impl MessageTable {
    /// Numbers message types in the order of their names, before their fields are known.
    ///
    /// # Errors
    /// The first name after the 65,536 that have a number.
    pub fn number<'n>(
        names: impl Iterator<Item = &'n &'static str>,
    ) -> Result<HashMap<&'static str, MessageId>, &'static str> {
        names
            .enumerate()
            .map(|(at, name)| u16::try_from(at).map(|at| (*name, MessageId(at))).map_err(|_| *name))
            .collect()
    }

    /// A table of message types in the order in which [`MessageTable::number`] numbered them.
    pub fn new(messages: Vec<MessageType>, by_name: HashMap<&'static str, MessageId>) -> MessageTable {
        MessageTable { messages, by_name }
    }

    /// Finds a message type by its OpenAPI name.
    pub fn find(&self, name: &str) -> Option<MessageId> {
        self.by_name.get(name).copied()
    }

    /// The message type of an identifier of this table.
    pub fn message(&self, id: MessageId) -> &MessageType {
        &self.messages[id.index()]
    }

    /// All message types.
    pub fn messages(&self) -> &[MessageType] {
        &self.messages
    }

    /// The identifiers of all message types, in order.
    pub fn identifiers(&self) -> impl Iterator<Item = MessageId> + '_ {
        (0_u16..).take(self.messages.len()).map(MessageId)
    }

    /// Finds a field by its JSON name, also in embedded structs, and the names of at most two embedded structs around it.
    pub fn field(&self, id: MessageId, name: &str) -> Option<(&MessageField, [Option<&'static str>; 2])> {
        let fields = &self.message(id).fields;
        if let Some(field) = fields.iter().find(|field| field.name == name && !field.name.is_empty()) {
            return Some((field, [None, None]));
        }
        fields.iter().filter_map(MessageField::embedded).find_map(|embedded| {
            let name_of = self.message(embedded).go_name();
            self.field(embedded, name).map(|(field, [inner, _])| (field, [Some(name_of), inner]))
        })
    }
}

impl MessageType {
    /// Go's name of the struct, without its package.
    pub fn go_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }

    /// Go's name of the struct with its package, such as `v1.ObjectMeta`.
    pub fn qualified_go_name(&self) -> &'static str {
        let package = self.name.len() - self.go_name().len();
        let at = self.name[..package.saturating_sub(1)].rfind('.').map_or(0, |at| at + 1);
        &self.name[at..]
    }
}

impl MessageField {
    /// The struct whose fields are in the one around it, if the field is that.
    pub fn embedded(&self) -> Option<MessageId> {
        match self.go_type {
            GoType::Message(id) if self.name.is_empty() => Some(id),
            _ => None,
        }
    }
}
