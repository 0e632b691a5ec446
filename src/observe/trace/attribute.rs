//! Attributes of spans and of the resource.

use http::HeaderValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};

/// Maximum length of a text.
const MAX_TEXT: usize = 1024;

/// The value of a header.
pub(super) fn header(key: &str, value: &HeaderValue) -> KeyValue {
    text(key, &String::from_utf8_lossy(value.as_bytes()))
}

/// A text, shortened if it is long.
pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(truncated(value)))
}

/// A whole number.
pub(super) fn number(key: &str, value: u64) -> KeyValue {
    attribute(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// The beginning of a text that a client may have chosen.
pub(super) fn truncated(value: &str) -> String {
    value[..value.floor_char_boundary(MAX_TEXT)].to_owned()
}
