//! Decodes protobuf to JSON values by the tables of message types.

use std::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Map, Number, Value};

use super::normalize::{MAX_DEPTH, MAX_EXACT, MAX_VALUES, NormalizeError, normalize};
use super::table::{GoType, MessageField, MessageId, MessageTable, Omission, SchemaForm};
use super::timestamp::{TimeFormat, ZERO_SECONDS, format_time};
use super::{MAGIC, MalformedProtobuf, ProtobufValue, read_fields};
use crate::quantity::Quantity;

/// Bytes that are no object in protobuf. Displays as Kubernetes' message where it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProtobufError {
    /// No bytes at all.
    Empty,
    /// The prefix `k8s\0` is missing.
    Prefix,
    /// The bytes end too early, or a field has the wrong wire type.
    Malformed,
    /// A string that is not UTF-8, or JSON in bytes that is none.
    Text(&'static str),
    /// A value that JSON cannot hold.
    Value(NormalizeError),
}

impl fmt::Display for ProtobufError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtobufError::Empty => f.write_str("empty data"),
            ProtobufError::Prefix => {
                f.write_str("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
            }
            ProtobufError::Malformed => f.write_str("unexpected EOF"),
            ProtobufError::Text(what) => f.write_str(what),
            ProtobufError::Value(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ProtobufError {}

impl From<MalformedProtobuf> for ProtobufError {
    fn from(_: MalformedProtobuf) -> ProtobufError {
        ProtobufError::Malformed
    }
}

/// `runtime.Unknown`, the envelope of every object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtobufEnvelope<'b> {
    /// `apiVersion` of the object; may be empty.
    pub api_version: &'b str,
    /// `kind` of the object; may be empty.
    pub kind: &'b str,
    /// The encoded message.
    pub raw: &'b [u8],
}

/// Reads the prefix and the envelope of an object.
///
/// # Errors
/// [`ProtobufError`].
pub fn read_envelope(body: &[u8]) -> Result<ProtobufEnvelope<'_>, ProtobufError> {
    if body.is_empty() {
        return Err(ProtobufError::Empty);
    }
    let mut envelope = ProtobufEnvelope::default();
    for field in read_fields(body.strip_prefix(MAGIC).ok_or(ProtobufError::Prefix)?) {
        match field? {
            (1, ProtobufValue::Bytes(type_meta)) => {
                for field in read_fields(type_meta) {
                    match field? {
                        (1, ProtobufValue::Bytes(text)) => envelope.api_version = decode_text(text)?,
                        (2, ProtobufValue::Bytes(text)) => envelope.kind = decode_text(text)?,
                        (1 | 2, _) => return Err(ProtobufError::Malformed),
                        _ => {}
                    }
                }
            }
            (2, ProtobufValue::Bytes(raw)) => envelope.raw = raw,
            (1..=4, ProtobufValue::Bytes(_)) => {}
            (1..=4, _) => return Err(ProtobufError::Malformed),
            _ => {}
        }
    }
    Ok(envelope)
}

/// Decodes a message to the JSON that Go writes for it, with `apiVersion` and `kind` when they are not empty.
///
/// Fields that the message type does not have are skipped, as Kubernetes does.
///
/// # Errors
/// [`ProtobufError`], also for more values or levels than an object may have.
pub fn decode_object(
    table: &MessageTable,
    message: MessageId,
    envelope: &ProtobufEnvelope<'_>,
) -> Result<Value, ProtobufError> {
    let mut decoder = Decoder { table, values: 0 };
    let mut map = Map::new();
    decoder.message(message, envelope.raw, &mut map, 0)?;
    for (name, value) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
        map.insert(name.to_owned(), value.into());
    }
    let mut value = Value::Object(map);
    normalize(table, message, &mut value).map_err(ProtobufError::Value)?;
    Ok(value)
}

struct Decoder<'t> {
    table: &'t MessageTable,
    values: usize,
}

impl Decoder<'_> {
    /// Reads a message into a map that may have fields already: a field that occurs twice is merged.
    fn message(
        &mut self,
        id: MessageId,
        bytes: &[u8],
        map: &mut Map<String, Value>,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        if depth > MAX_DEPTH {
            return Err(ProtobufError::Value(NormalizeError::TooDeep));
        }
        let table = self.table;
        for read in read_fields(bytes) {
            let (number, value) = read?;
            let has_number = |field: &&MessageField| u64::from(field.number) == number && number > 0;
            let Some(field) = table.message(id).fields.iter().find(has_number) else { continue };
            if let Some(embedded) = field.embedded() {
                let ProtobufValue::Bytes(bytes) = value else { return Err(ProtobufError::Malformed) };
                self.message(embedded, bytes, map, depth + 1)?;
                continue;
            }
            if is_empty_scalar(field, value) {
                map.remove(field.name);
                continue;
            }
            let slot = match map.get_mut(field.name) {
                Some(slot) => slot,
                None => map.entry(field.name).or_insert(Value::Null),
            };
            self.value(&field.go_type, value, slot, depth + 1)?;
        }
        Ok(())
    }

    fn count(&mut self) -> Result<(), ProtobufError> {
        self.values += 1;
        if self.values > MAX_VALUES { Err(ProtobufError::Value(NormalizeError::TooManyValues)) } else { Ok(()) }
    }

    fn value(
        &mut self,
        go_type: &GoType,
        value: ProtobufValue<'_>,
        slot: &mut Value,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        self.count()?;
        match (go_type, value) {
            (GoType::Pointer(target), value) => return self.value(target, value, slot, depth),
            (GoType::Bool, ProtobufValue::Number(number)) => *slot = Value::Bool(number != 0),
            (GoType::Int32, ProtobufValue::Number(number)) => *slot = Value::from(number as i32),
            (GoType::Int64, ProtobufValue::Number(number)) => *slot = Value::from(number.cast_signed()),
            (GoType::Double, ProtobufValue::Fixed64(bits)) => *slot = decode_double(f64::from_bits(bits))?,
            (GoType::List(item), value) => {
                if let (GoType::Int32 | GoType::Int64 | GoType::Bool, ProtobufValue::Bytes(packed)) = (&**item, value) {
                    return self.packed(item, packed, slot);
                }
                let mut one = Value::Null;
                self.value(item, value, &mut one, depth)?;
                push(slot, one);
            }
            (_, ProtobufValue::Bytes(bytes)) => return self.bytes(go_type, bytes, slot, depth),
            _ => return Err(ProtobufError::Malformed),
        }
        Ok(())
    }

    /// Reads a value that is length-delimited.
    fn bytes(&mut self, go_type: &GoType, bytes: &[u8], slot: &mut Value, depth: usize) -> Result<(), ProtobufError> {
        match go_type {
            GoType::Text => *slot = decode_text(bytes)?.into(),
            GoType::Bytes => *slot = STANDARD.encode(bytes).into(),
            GoType::Time => *slot = decode_time(bytes, TimeFormat::Seconds)?,
            GoType::MicroTime => *slot = decode_time(bytes, TimeFormat::Microseconds)?,
            GoType::Quantity => {
                *slot = Value::from("0");
                if let Some(text) = last_bytes(bytes, 1)? {
                    let text = decode_text(text)?;
                    // Go refuses it, too, with another error.
                    let quantity = Quantity::parse(text).map_err(|error| NormalizeError::Text(error.to_string()));
                    *slot = quantity.map_err(ProtobufError::Value)?.to_string().into();
                }
            }
            GoType::IntOrString => *slot = decode_int_or_string(bytes)?,
            GoType::RawJson | GoType::FieldsV1 => {
                *slot = match last_bytes(bytes, 1)? {
                    Some(text) => {
                        serde_json::from_slice(text).map_err(|_| ProtobufError::Text("invalid JSON in bytes"))?
                    }
                    None => Value::Null,
                };
            }
            GoType::Schema(form, message) => self.schema(*form, *message, bytes, slot, depth)?,
            GoType::Message(message) => self.message(*message, bytes, object(slot), depth)?,
            GoType::WrappedList(item) => {
                *slot = Value::Array(Vec::new());
                for field in read_fields(bytes) {
                    if let (1, value) = field? {
                        let mut one = Value::Null;
                        self.value(item, value, &mut one, depth + 1)?;
                        push(slot, one);
                    }
                }
            }
            GoType::Map(item) => {
                let (mut key, mut entry) = (String::new(), Value::Null);
                // Go starts with an empty slice, not with nil.
                if **item == GoType::Bytes {
                    entry = Value::String(String::new());
                }
                for field in read_fields(bytes) {
                    match field? {
                        (1, ProtobufValue::Bytes(text)) => key = decode_text(text)?.to_owned(),
                        (2, value) => self.value(item, value, &mut entry, depth + 1)?,
                        (1, _) => return Err(ProtobufError::Malformed),
                        _ => {}
                    }
                }
                object(slot).insert(key, entry);
            }
            _ => return Err(ProtobufError::Malformed),
        }
        Ok(())
    }

    fn packed(&mut self, item: &GoType, packed: &[u8], slot: &mut Value) -> Result<(), ProtobufError> {
        let mut rest = packed;
        while !rest.is_empty() {
            let number = super::read_varint(&mut rest).ok_or(ProtobufError::Malformed)?;
            let mut one = Value::Null;
            self.value(item, ProtobufValue::Number(number), &mut one, 0)?;
            push(slot, one);
        }
        Ok(())
    }

    fn schema(
        &mut self,
        form: SchemaForm,
        message: MessageId,
        bytes: &[u8],
        slot: &mut Value,
        depth: usize,
    ) -> Result<(), ProtobufError> {
        let (mut schema, mut items, mut allows) = (None, Value::Null, false);
        for field in read_fields(bytes) {
            match (form, field?) {
                (SchemaForm::OrBool, (1, ProtobufValue::Number(number))) => allows = number != 0,
                (SchemaForm::OrBool, (2, ProtobufValue::Bytes(bytes)))
                | (SchemaForm::OrArray | SchemaForm::OrStringArray, (1, ProtobufValue::Bytes(bytes))) => {
                    self.message(message, bytes, schema.get_or_insert_with(Map::new), depth + 1)?;
                }
                (SchemaForm::OrArray, (2, ProtobufValue::Bytes(bytes))) => {
                    self.count()?;
                    let mut one = Map::new();
                    self.message(message, bytes, &mut one, depth + 1)?;
                    push(&mut items, Value::Object(one));
                }
                (SchemaForm::OrStringArray, (2, ProtobufValue::Bytes(text))) => {
                    self.count()?;
                    push(&mut items, decode_text(text)?.into());
                }
                (_, (1 | 2, _)) => return Err(ProtobufError::Malformed),
                _ => {}
            }
        }
        *slot = match (items, schema, form) {
            (items @ Value::Array(_), ..) => items,
            (_, Some(schema), _) => Value::Object(schema),
            (_, None, SchemaForm::OrBool) => Value::Bool(allows),
            (_, None, _) => Value::Null,
        };
        Ok(())
    }
}

/// Whether a field that JSON leaves out when empty is empty. Go writes all of them into protobuf.
fn is_empty_scalar(field: &MessageField, value: ProtobufValue<'_>) -> bool {
    field.omission == Omission::Empty
        && match (&field.go_type, value) {
            (GoType::Text, ProtobufValue::Bytes(bytes)) => bytes.is_empty(),
            (GoType::Bool | GoType::Int32 | GoType::Int64, ProtobufValue::Number(number)) => number == 0,
            _ => false,
        }
}

/// The value as an object, which it becomes if it is none.
fn object(slot: &mut Value) -> &mut Map<String, Value> {
    if !slot.is_object() {
        *slot = Value::Object(Map::new());
    }
    match slot {
        Value::Object(map) => map,
        _ => unreachable!("an object was just assigned"),
    }
}

fn push(slot: &mut Value, one: Value) {
    match slot {
        Value::Array(items) => items.push(one),
        other => *other = Value::Array(vec![one]),
    }
}

fn decode_text(bytes: &[u8]) -> Result<&str, ProtobufError> {
    std::str::from_utf8(bytes).map_err(|_| ProtobufError::Text("string is not valid UTF-8"))
}

/// The bytes of the last field of a number.
fn last_bytes(message: &[u8], number: u64) -> Result<Option<&[u8]>, ProtobufError> {
    let mut last = None;
    for field in read_fields(message) {
        match field? {
            (found, ProtobufValue::Bytes(bytes)) if found == number => last = Some(bytes),
            (found, _) if found == number => return Err(ProtobufError::Malformed),
            _ => {}
        }
    }
    Ok(last)
}

fn decode_time(message: &[u8], format: TimeFormat) -> Result<Value, ProtobufError> {
    if message.is_empty() {
        return Ok(Value::Null);
    }
    let (mut seconds, mut nanoseconds) = (0, 0);
    for field in read_fields(message) {
        match field? {
            (1, ProtobufValue::Number(number)) => seconds = number.cast_signed(),
            (2, ProtobufValue::Number(number)) => nanoseconds = number as i32,
            (1 | 2, _) => return Err(ProtobufError::Malformed),
            _ => {}
        }
    }
    if seconds == ZERO_SECONDS && nanoseconds / 1000 == 0 {
        return Ok(Value::Null);
    }
    let text = format_time(seconds, nanoseconds, format);
    text.map(Value::String).ok_or(ProtobufError::Text("time outside of the years 0 to 9999"))
}

fn decode_int_or_string(message: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut text) = (0, 0, "");
    for field in read_fields(message) {
        match field? {
            (1, ProtobufValue::Number(kind)) => is_text = kind,
            (2, ProtobufValue::Number(value)) => number = value as i32,
            (3, ProtobufValue::Bytes(value)) => text = decode_text(value)?,
            (1..=3, _) => return Err(ProtobufError::Malformed),
            _ => {}
        }
    }
    match is_text {
        0 => Ok(number.into()),
        1 => Ok(text.into()),
        _ => Err(ProtobufError::Text("impossible IntOrString.Type")),
    }
}

/// A float as Go writes it: integers without a fraction.
fn decode_double(value: f64) -> Result<Value, ProtobufError> {
    if value.fract() == 0.0 && value.abs() < MAX_EXACT as f64 {
        return Ok(Value::from(value as i64));
    }
    Number::from_f64(value).map(Value::Number).ok_or(ProtobufError::Text("number that JSON does not have"))
}
