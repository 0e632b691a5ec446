//! Encodes JSON values as protobuf by the tables of message types, byte for byte as Go's generated code.

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Value};

use super::table::{GoType, MessageField, MessageId, MessageTable, SchemaForm};
use super::timestamp::{TimeFormat, ZERO_SECONDS, parse_time};
use super::{varint_length, wrap_unknown, write_bytes, write_double, write_number, write_tag, write_varint};

/// A value that its message type cannot hold, by the name of its field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProtobufEncodeError {
    /// JSON name of the innermost field.
    pub field: &'static str,
}

impl std::fmt::Display for ProtobufEncodeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "field {:?} has a value that protobuf cannot hold", self.field)
    }
}

impl std::error::Error for ProtobufEncodeError {}

/// Encodes an object with the prefix `k8s\0` and the envelope that names its `apiVersion` and `kind`.
///
/// The value is one that [`super::normalize::normalize`] has accepted; fields that are absent are encoded as Go encodes
/// what has not been set.
///
/// # Errors
/// [`ProtobufEncodeError`] for a value of another type than its field.
pub fn encode_object(table: &MessageTable, message: MessageId, value: &Value) -> Result<Vec<u8>, ProtobufEncodeError> {
    let raw = encode_message(table, message, value)?;
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    Ok(wrap_unknown(text("apiVersion"), text("kind"), &raw))
}

/// Encodes an object without an envelope, as an item of a list or the content of a watch event.
///
/// # Errors
/// [`ProtobufEncodeError`] for a value of another type than its field.
pub fn encode_message(table: &MessageTable, message: MessageId, value: &Value) -> Result<Vec<u8>, ProtobufEncodeError> {
    let mut out = Vec::with_capacity(512);
    let map = value.as_object().ok_or(ProtobufEncodeError { field: "" })?;
    Encoder { table }.message(message, map, &mut out)?;
    Ok(out)
}

struct Encoder<'t> {
    table: &'t MessageTable,
}

/// The type of a value is not that of its field; the caller knows the field.
struct WrongType;

impl Encoder<'_> {
    fn message(&self, id: MessageId, map: &Map<String, Value>, out: &mut Vec<u8>) -> Result<(), ProtobufEncodeError> {
        for field in self.table.message(id).fields.iter().filter(|field| field.number > 0) {
            if let Some(embedded) = field.embedded() {
                write_nested(out, field.number, |out| self.message(embedded, map, out))?;
                continue;
            }
            let value = map.get(field.name).unwrap_or(&Value::Null);
            self.value(field, &field.go_type, value, out)?;
        }
        Ok(())
    }

    fn value(
        &self,
        field: &MessageField,
        go_type: &GoType,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufEncodeError> {
        let wrong = ProtobufEncodeError { field: field.name };
        match (go_type, value) {
            (GoType::Pointer(_) | GoType::List(_) | GoType::Map(_) | GoType::Bytes, Value::Null) => Ok(()),
            (GoType::WrappedList(_), Value::Null) => Ok(()),
            (GoType::Pointer(target), _) => self.single(field, field.number, target, value, out),
            (GoType::List(item), Value::Array(items)) => {
                items.iter().try_for_each(|one| self.single(field, field.number, item, one, out))
            }
            (GoType::Map(item), Value::Object(map)) => self.entries(field, item, map, out),
            (GoType::List(_) | GoType::Map(_), _) => Err(wrong),
            _ => self.single(field, field.number, go_type, value, out),
        }
    }

    /// Writes the entries of a map in the order of their keys.
    fn entries(
        &self,
        field: &MessageField,
        item: &GoType,
        map: &Map<String, Value>,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufEncodeError> {
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by_key(|(key, _)| *key);
        for (key, value) in entries {
            write_nested(out, field.number, |out| {
                write_bytes(out, 1, key.as_bytes());
                match (item, value) {
                    (GoType::Bytes, Value::Null) => Ok(()),
                    _ => self.single(field, 2, item, value, out),
                }
            })?;
        }
        Ok(())
    }

    /// Writes one value; `null` is what has not been set.
    fn single(
        &self,
        field: &MessageField,
        number: u8,
        go_type: &GoType,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufEncodeError> {
        match go_type {
            GoType::Message(message) => {
                let empty = Map::new();
                let map = match value {
                    Value::Null => &empty,
                    Value::Object(map) => map,
                    _ => return Err(ProtobufEncodeError { field: field.name }),
                };
                write_nested(out, number, |out| self.message(*message, map, out))
            }
            GoType::Schema(form, message) => write_nested(out, number, |out| self.schema(*form, *message, value, out)),
            GoType::Pointer(target) => self.single(field, number, target, value, out),
            GoType::WrappedList(item) => write_nested(out, number, |out| {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                items.iter().try_for_each(|one| self.single(field, 1, item, one, out))
            }),
            scalar => {
                write_scalar(out, number, scalar, value).map_err(|WrongType| ProtobufEncodeError { field: field.name })
            }
        }
    }

    fn schema(
        &self,
        form: SchemaForm,
        message: MessageId,
        value: &Value,
        out: &mut Vec<u8>,
    ) -> Result<(), ProtobufEncodeError> {
        let number = if form == SchemaForm::OrBool { 2 } else { 1 };
        if form == SchemaForm::OrBool {
            write_number(out, 1, u64::from(value.is_object() || value.as_bool() == Some(true)));
        }
        if let Some(map) = value.as_object() {
            write_nested(out, number, |out| self.message(message, map, out))?;
        }
        for one in value.as_array().map(Vec::as_slice).unwrap_or_default() {
            match one {
                Value::Object(map) => write_nested(out, 2, |out| self.message(message, map, out))?,
                other => write_bytes(out, 2, other.as_str().unwrap_or_default().as_bytes()),
            }
        }
        Ok(())
    }
}

fn write_scalar(out: &mut Vec<u8>, number: u8, go_type: &GoType, value: &Value) -> Result<(), WrongType> {
    match (go_type, value) {
        (GoType::Text, Value::String(text)) => write_bytes(out, number, text.as_bytes()),
        (GoType::Text, Value::Null) => write_bytes(out, number, &[]),
        (GoType::Bool, Value::Bool(flag)) => write_number(out, number, u64::from(*flag)),
        (GoType::Bool | GoType::Int32 | GoType::Int64, Value::Null) => write_number(out, number, 0),
        (GoType::Int32 | GoType::Int64, Value::Number(integer)) => {
            write_number(out, number, integer.as_i64().ok_or(WrongType)?.cast_unsigned());
        }
        (GoType::Double, Value::Null) => write_double(out, number, 0.0),
        (GoType::Double, Value::Number(double)) => write_double(out, number, double.as_f64().ok_or(WrongType)?),
        (GoType::Bytes, Value::String(text)) => {
            write_bytes(out, number, &STANDARD.decode(text).map_err(|_| WrongType)?);
        }
        (GoType::Bytes, Value::Null) => write_bytes(out, number, &[]),
        (GoType::Time | GoType::MicroTime, Value::Null) => write_bytes(out, number, &[]),
        (GoType::Time, Value::String(text)) => write_time(out, number, text, TimeFormat::Seconds)?,
        (GoType::MicroTime, Value::String(text)) => write_time(out, number, text, TimeFormat::Microseconds)?,
        (GoType::Quantity, Value::Null | Value::String(_)) => {
            let text = value.as_str().unwrap_or("0");
            write_nested(out, number, |out| {
                write_bytes(out, 1, text.as_bytes());
                Ok(())
            })?;
        }
        (GoType::IntOrString, Value::String(text)) => write_int_or_string(out, number, 1, 0, text)?,
        (GoType::IntOrString, Value::Null) => write_int_or_string(out, number, 0, 0, "")?,
        (GoType::IntOrString, Value::Number(integer)) => {
            write_int_or_string(out, number, 0, integer.as_i64().ok_or(WrongType)?, "")?;
        }
        (GoType::RawJson | GoType::FieldsV1, Value::Null) => write_bytes(out, number, &[]),
        (GoType::RawJson | GoType::FieldsV1, value) => {
            let text = serde_json::to_vec(value).map_err(|_| WrongType)?;
            write_nested(out, number, |out| {
                write_bytes(out, 1, &text);
                Ok(())
            })?;
        }
        _ => return Err(WrongType),
    }
    Ok(())
}

fn write_time(out: &mut Vec<u8>, number: u8, text: &str, format: TimeFormat) -> Result<(), WrongType> {
    let (seconds, nanoseconds) = parse_time(text, format).map_err(|_| WrongType)?;
    let nanoseconds = if format == TimeFormat::Seconds { 0 } else { nanoseconds / 1000 * 1000 };
    write_nested(out, number, |out| {
        if seconds != ZERO_SECONDS || nanoseconds != 0 {
            write_number(out, 1, seconds.cast_unsigned());
            write_number(out, 2, i64::from(nanoseconds).cast_unsigned());
        }
        Ok(())
    })
}

fn write_int_or_string(out: &mut Vec<u8>, number: u8, kind: u64, integer: i64, text: &str) -> Result<(), WrongType> {
    write_nested(out, number, |out| {
        write_number(out, 1, kind);
        write_number(out, 2, integer.cast_unsigned());
        write_bytes(out, 3, text.as_bytes());
        Ok(())
    })
}

/// Writes a field of a message of a length that is known only once it is written.
fn write_nested<E>(out: &mut Vec<u8>, number: u8, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
    write_tag(out, number, 2);
    let start = out.len();
    write(out)?;
    let length = out.len() - start;
    let mut prefix = Vec::with_capacity(varint_length(length as u64));
    write_varint(&mut prefix, length as u64);
    out.splice(start..start, prefix);
    Ok(())
}
