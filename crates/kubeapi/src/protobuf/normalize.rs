//! Objects as a kube-apiserver has them after decoding: unknown fields found and removed, types checked, and fields
//! present or absent as Go writes them (`encoding/json` on the structs of `k8s.io/api`).

use std::fmt;

use base64::{DecodeError, Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::table::{GoType, MessageField, MessageId, MessageTable, Omission, SchemaForm};
use super::timestamp::{TimeFormat, ZERO_SECONDS, format_time, parse_time};
use crate::quantity::{Quantity, QuantityError};

/// Maximum number of values in one object. Two bytes of a body may become a struct with all its fields.
pub(super) const MAX_VALUES: usize = 200_000;
/// Maximum nesting of an object. Only the schemas of a CustomResourceDefinition nest without a bound of their own.
pub(super) const MAX_DEPTH: usize = 128;
/// Each integer below is a float.
pub(super) const MAX_EXACT: u64 = 1 << 53;
/// Messages of CustomResourceDefinitions, which are stored in JSON.
const APIEXTENSIONS: &str = "io.k8s.apiextensions-apiserver.";
/// Maximum number of unknown fields that are reported, as in `sigs.k8s.io/json`.
const MAX_UNKNOWN_FIELDS: usize = 100;

/// An object that its message type cannot hold. Displays as the error of Go's decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NormalizeError {
    /// A value of the wrong type.
    Type {
        /// The type of the value in JSON, and the number if it is one that does not fit.
        found: String,
        /// Go's name of the struct and the path of the field; empty for the object itself.
        field: String,
        /// Go's name of the type of the field.
        expected: String,
    },
    /// A text that is no time or no base64, with Go's message.
    Text(String),
    /// More values than [`normalize`] accepts.
    TooManyValues,
    /// Deeper than [`normalize`] accepts.
    TooDeep,
}

impl fmt::Display for NormalizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NormalizeError::Type { found, field, expected } if field.is_empty() => {
                write!(f, "json: cannot unmarshal {found} into Go value of type {expected}")
            }
            NormalizeError::Type { found, field, expected } => {
                write!(f, "json: cannot unmarshal {found} into Go struct field {field} of type {expected}")
            }
            NormalizeError::Text(text) => f.write_str(text),
            NormalizeError::TooManyValues => write!(f, "the object has more than {MAX_VALUES} values"),
            NormalizeError::TooDeep => write!(f, "the object is nested more than {MAX_DEPTH} levels deep"),
        }
    }
}

impl std::error::Error for NormalizeError {}

/// Makes an object what Go's decoder and encoder would make of it. Returns the paths of unknown fields, which are gone.
///
/// A path is what Kubernetes' strict decoding reports as `unknown field "spec.ports[0].foo"`; the order is that of the
/// maps of `value`, at most 100.
///
/// # Errors
/// [`NormalizeError`]; the value is then in an undefined state.
pub fn normalize(table: &MessageTable, message: MessageId, value: &mut Value) -> Result<Vec<String>, NormalizeError> {
    let mut walk = Normalizer {
        table,
        path: String::new(),
        go_path: Vec::new(),
        go_struct: "",
        scalar_name: "",
        unknown_fields: Vec::new(),
        is_muted: false,
        values: 0,
    };
    walk.value(&GoType::Message(message), value, 0)?;
    Ok(walk.unknown_fields)
}

struct Normalizer<'t> {
    table: &'t MessageTable,
    /// Path in the object, with indexes and keys.
    path: String,
    /// Names of fields, as Go's errors have them.
    go_path: Vec<&'static str>,
    go_struct: &'static str,
    /// Go's name of the scalar of the current field.
    scalar_name: &'static str,
    unknown_fields: Vec<String>,
    /// Inside of a type that decodes itself, Kubernetes does not look for unknown fields.
    is_muted: bool,
    values: usize,
}

impl Normalizer<'_> {
    fn value(&mut self, go_type: &GoType, value: &mut Value, depth: usize) -> Result<(), NormalizeError> {
        self.count(depth)?;
        if value.is_null() {
            *value = self.zero(go_type, depth)?;
            return Ok(());
        }
        match (go_type, &mut *value) {
            (GoType::Text, Value::String(_)) | (GoType::Bool, Value::Bool(_)) => Ok(()),
            (GoType::Int32, Value::Number(number)) => {
                let fits = number.as_i64().is_some_and(|number| i32::try_from(number).is_ok());
                if fits { Ok(()) } else { Err(self.mismatch(go_type, value)) }
            }
            (GoType::Int64, Value::Number(number)) => {
                if number.is_i64() {
                    Ok(())
                } else {
                    Err(self.mismatch(go_type, value))
                }
            }
            (GoType::Double, Value::Number(number)) => {
                // An integer that is not read from protobuf as one. Smaller ones stay, also where Go prints an exponent.
                let is_kept =
                    number.is_f64() || number.as_i64().is_some_and(|integer| integer.unsigned_abs() < MAX_EXACT);
                if let Some(float) = number.as_f64().filter(|_| !is_kept) {
                    *value = float.into();
                }
                Ok(())
            }
            (GoType::IntOrString, Value::String(_)) => Ok(()),
            (GoType::Quantity, Value::String(text)) => normalize_quantity(text.trim()).map(|text| *value = text),
            (GoType::IntOrString, Value::Number(_)) => self.value(&GoType::Int32, value, depth),
            (GoType::Quantity, Value::Number(number)) => {
                normalize_quantity(&number.to_string()).map(|text| *value = text)
            }
            (GoType::Bytes, Value::String(text)) => normalize_base64(text),
            (GoType::Bytes, Value::Array(items)) => self.bytes(items).map(|text| *value = text),
            (GoType::Quantity, _) => Err(NormalizeError::Text(QuantityError::Format.to_string())),
            (GoType::Time, Value::String(text)) => normalize_time(text, TimeFormat::Seconds).map(|time| *value = time),
            (GoType::MicroTime, Value::String(text)) => {
                normalize_time(text, TimeFormat::Microseconds).map(|time| *value = time)
            }
            (GoType::RawJson | GoType::FieldsV1, _) => Ok(()),
            (GoType::Pointer(target), _) => self.value(target, value, depth),
            (GoType::List(item) | GoType::WrappedList(item), Value::Array(items)) => self.items(item, items, depth),
            (GoType::Map(item), Value::Object(map)) => self.entries(item, map, depth),
            (GoType::Message(message), Value::Object(map)) => self.message(*message, map, depth),
            (GoType::Schema(form, message), _) => self.schema(*form, *message, value, depth),
            _ => Err(self.mismatch(go_type, value)),
        }
    }

    /// Bytes that are listed as numbers, as Go reads them too.
    fn bytes(&self, items: &[Value]) -> Result<Value, NormalizeError> {
        let byte = |item: &Value| match item.as_u64().and_then(|number| u8::try_from(number).ok()) {
            Some(byte) => Ok(byte),
            None if item.is_null() => Ok(0),
            None => Err(self.mismatch_with("uint8", item, true)),
        };
        items.iter().map(byte).collect::<Result<Vec<u8>, _>>().map(|bytes| STANDARD.encode(bytes).into())
    }

    fn count(&mut self, depth: usize) -> Result<(), NormalizeError> {
        self.values += 1;
        match () {
            () if depth > MAX_DEPTH => Err(NormalizeError::TooDeep),
            () if self.values > MAX_VALUES => Err(NormalizeError::TooManyValues),
            () => Ok(()),
        }
    }

    fn items(&mut self, item: &GoType, items: &mut [Value], depth: usize) -> Result<(), NormalizeError> {
        let length = self.path.len();
        for (index, value) in items.iter_mut().enumerate() {
            if !self.is_muted {
                self.path.push('[');
                self.path.push_str(&index.to_string());
                self.path.push(']');
            }
            self.value(item, value, depth + 1)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn entries(&mut self, item: &GoType, map: &mut Map<String, Value>, depth: usize) -> Result<(), NormalizeError> {
        let length = self.path.len();
        for (key, value) in map {
            if *item == GoType::Bytes && value.is_null() {
                // Go writes an absent list of bytes in a map as empty text.
                *value = Value::String(String::new());
            }
            self.push_key(key);
            self.value(item, value, depth + 1)?;
            self.path.truncate(length);
        }
        Ok(())
    }

    fn push_key(&mut self, key: &str) {
        if self.is_muted {
            return;
        }
        if !self.path.is_empty() {
            self.path.push('.');
        }
        self.path.push_str(key);
    }

    fn message(&mut self, id: MessageId, map: &mut Map<String, Value>, depth: usize) -> Result<(), NormalizeError> {
        let outer = (self.path.len(), self.go_path.len(), self.go_struct, self.scalar_name);
        let table = self.table;
        // What is stored in protobuf has no empty lists: Go writes null for those that it does not leave out.
        let is_stored_binary = !table.message(id).name.starts_with(APIEXTENSIONS);
        let mut result = Ok(());
        map.retain(|key, value| {
            if result.is_err() {
                return true;
            }
            let Some((field, embedded)) = table.field(id, key) else {
                self.report_unknown(key);
                return false;
            };
            if value.is_null() {
                return false;
            }
            self.push_key(key);
            self.go_path.extend(embedded.into_iter().flatten());
            self.go_path.push(field.name);
            self.go_struct = table.message(id).go_name();
            self.scalar_name = field.scalar_name;
            result = self.value(&field.go_type, value, depth + 1);
            // A value that becomes null is a zero time.
            let is_left_out = is_omitted(field, value) || value.is_null();
            let is_kept = !(is_left_out || is_stored_binary && is_empty_list(field, value));
            self.path.truncate(outer.0);
            self.go_path.truncate(outer.1);
            is_kept
        });
        (self.go_struct, self.scalar_name) = (outer.2, outer.3);
        result?;
        self.fill(id, map, depth)
    }

    fn report_unknown(&mut self, key: &str) {
        if self.is_muted || self.unknown_fields.len() >= MAX_UNKNOWN_FIELDS {
            return;
        }
        let length = self.path.len();
        self.push_key(key);
        self.unknown_fields.push(self.path.clone());
        self.path.truncate(length);
    }

    /// Adds the fields that Go writes also when they have not been set.
    fn fill(&mut self, id: MessageId, map: &mut Map<String, Value>, depth: usize) -> Result<(), NormalizeError> {
        self.count(depth)?;
        for field in &self.table.message(id).fields {
            if let Some(embedded) = field.embedded() {
                self.fill(embedded, map, depth + 1)?;
                continue;
            }
            if map.contains_key(field.name) || !is_zero_written(field) {
                continue;
            }
            let zero = self.zero(&field.go_type, depth + 1)?;
            map.insert(field.name.to_owned(), zero);
        }
        Ok(())
    }

    /// What Go writes for a value that has not been set.
    fn zero(&mut self, go_type: &GoType, depth: usize) -> Result<Value, NormalizeError> {
        self.count(depth)?;
        Ok(match go_type {
            GoType::Text => Value::String(String::new()),
            GoType::Bool | GoType::Schema(SchemaForm::OrBool, _) => Value::Bool(false),
            GoType::Int32 | GoType::Int64 | GoType::Double | GoType::IntOrString => Value::from(0),
            GoType::Quantity => Value::from("0"),
            GoType::Message(message) => {
                let mut map = Map::new();
                self.fill(*message, &mut map, depth)?;
                Value::Object(map)
            }
            _ => Value::Null,
        })
    }

    fn schema(
        &mut self,
        form: SchemaForm,
        message: MessageId,
        value: &mut Value,
        depth: usize,
    ) -> Result<(), NormalizeError> {
        let was_muted = std::mem::replace(&mut self.is_muted, true);
        let result = match (form, &mut *value) {
            (_, Value::Object(map)) => self.message(message, map, depth),
            (SchemaForm::OrArray, Value::Array(items)) => self.items(&GoType::Message(message), items, depth),
            (SchemaForm::OrStringArray, Value::Array(items)) => self.items(&GoType::Text, items, depth),
            (SchemaForm::OrBool, Value::Bool(_)) => Ok(()),
            (SchemaForm::OrBool, _) => Err(NormalizeError::Text("boolean or JSON schema expected".to_owned())),
            _ => {
                *value = Value::Null;
                Ok(())
            }
        };
        self.is_muted = was_muted;
        result
    }

    fn mismatch(&self, go_type: &GoType, value: &Value) -> NormalizeError {
        let is_integer = matches!(go_type.target(), GoType::Int32 | GoType::Int64);
        self.mismatch_with(&self.go_type_name(go_type), value, is_integer)
    }

    fn mismatch_with(&self, expected: &str, value: &Value, is_integer: bool) -> NormalizeError {
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if is_integer => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let field = match self.go_struct {
            "" => String::new(),
            go_struct => format!("{go_struct}.{}", self.go_path.join(".")),
        };
        NormalizeError::Type { found, field, expected: expected.to_owned() }
    }

    fn go_type_name(&self, go_type: &GoType) -> String {
        let scalar = |own: &str| if self.scalar_name.is_empty() { own } else { self.scalar_name }.to_owned();
        match go_type {
            GoType::Text => scalar("string"),
            GoType::Bool => scalar("bool"),
            GoType::Int32 => scalar("int32"),
            GoType::Int64 => scalar("int64"),
            GoType::Double => scalar("float64"),
            GoType::Bytes => "[]uint8".to_owned(),
            // These decode a string, or a number, by themselves.
            GoType::Time | GoType::MicroTime | GoType::Quantity => "string".to_owned(),
            GoType::IntOrString => "int32".to_owned(),
            GoType::RawJson => "runtime.RawExtension".to_owned(),
            GoType::FieldsV1 => "v1.FieldsV1".to_owned(),
            GoType::Message(id) | GoType::Schema(_, id) => self.table.message(*id).qualified_go_name().to_owned(),
            GoType::Pointer(target) => self.go_type_name(target),
            GoType::List(item) | GoType::WrappedList(item) => format!("[]{}", self.go_type_name(item)),
            GoType::Map(item) if **item == GoType::Quantity => "v1.ResourceList".to_owned(),
            GoType::Map(item) => format!("map[string]{}", self.go_type_name(item)),
        }
    }
}

/// A quantity as Go writes it.
fn normalize_quantity(text: &str) -> Result<Value, NormalizeError> {
    match Quantity::parse(text) {
        Ok(quantity) => Ok(quantity.to_string().into()),
        Err(error) => Err(NormalizeError::Text(error.to_string())),
    }
}

/// Whether Go leaves out a field with this value.
fn is_omitted(field: &MessageField, value: &Value) -> bool {
    if field.omission == Omission::Never {
        return false;
    }
    match (&field.go_type, value) {
        (GoType::IntOrString | GoType::Quantity | GoType::Message(_), _) => false,
        (GoType::Pointer(_) | GoType::RawJson | GoType::Schema(..), _) => false,
        (_, Value::String(text)) => text.is_empty(),
        (_, Value::Array(items)) => items.is_empty(),
        (_, Value::Object(map)) => map.is_empty(),
        (_, Value::Bool(flag)) => !flag,
        (_, Value::Number(number)) => number.as_f64() == Some(0.0),
        (_, Value::Null) => false,
    }
}

/// Whether a field is an empty list or map.
fn is_empty_list(field: &MessageField, value: &Value) -> bool {
    match (&field.go_type, value) {
        (GoType::List(_) | GoType::WrappedList(_), Value::Array(items)) => items.is_empty(),
        (GoType::Map(_), Value::Object(map)) => map.is_empty(),
        _ => false,
    }
}

/// Whether Go writes a field that has not been set.
fn is_zero_written(field: &MessageField) -> bool {
    match field.omission {
        Omission::Never => true,
        Omission::Zero => false,
        // Structs are written in spite of `omitempty`.
        Omission::Empty => matches!(
            field.go_type,
            GoType::Message(_)
                | GoType::Time
                | GoType::MicroTime
                | GoType::Quantity
                | GoType::IntOrString
                | GoType::RawJson
                | GoType::Schema(..)
        ),
    }
}

fn normalize_time(text: &str, format: TimeFormat) -> Result<Value, NormalizeError> {
    let (seconds, nanoseconds) = parse_time(text, format).map_err(NormalizeError::Text)?;
    if seconds == ZERO_SECONDS && (nanoseconds == 0 || format == TimeFormat::Seconds) {
        return Ok(Value::Null);
    }
    format_time(seconds, nanoseconds, format)
        .map(Value::String)
        .ok_or_else(|| NormalizeError::Text("Time.MarshalJSON: year outside of range [0,9999]".to_owned()))
}

fn normalize_base64(text: &mut String) -> Result<(), NormalizeError> {
    // Go's decoder skips line breaks.
    if text.contains(['\r', '\n']) {
        text.retain(|c| c != '\r' && c != '\n');
    }
    let invalid = |at: usize| NormalizeError::Text(format!("illegal base64 data at input byte {at}"));
    match STANDARD.decode(text.as_bytes()) {
        Ok(_) => Ok(()),
        Err(DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _)) => Err(invalid(at)),
        Err(DecodeError::InvalidLength(_) | DecodeError::InvalidPadding) => Err(invalid(text.len() / 4 * 4)),
    }
}
