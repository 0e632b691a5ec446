//! Formats of texts (`k8s.io/kube-openapi/pkg/validation/strfmt`). Dashes in the name of a format do not count; an unknown
//! format is ignored.

mod address;
mod email;
mod number;
mod time;
mod uri;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::{Pattern, ValidationResult, in_body};
use crate::GoQuoted;
use crate::field_error::FieldError;
use crate::schema::path::ValuePath;
use crate::schema::{Schema, ValueType};

/// Formats that are a regular expression.
static PATTERNS: LazyLock<HashMap<&'static str, Pattern>> = LazyLock::new(|| {
    let patterns = [
        ("bsonobjectid", r"(?i)^[0-9a-f]{24}$"),
        ("byte", r"^(?:[A-Za-z0-9+\/]{4})*(?:[A-Za-z0-9+\/]{2}==|[A-Za-z0-9+\/]{3}=|[A-Za-z0-9+\/]{4})$"),
        ("hexcolor", r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$"),
        ("k8sshortname", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"),
        ("k8slongname", r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"),
        (
            "rgbcolor",
            r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
        ),
        ("ssn", r"^\d{3}[- ]?\d{2}[- ]?\d{4}$"),
        ("uuid", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid3", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$"),
        ("uuid4", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
        ("uuid5", r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$"),
    ];
    patterns.into_iter().map(|(format, pattern)| (format, Pattern::new(pattern))).collect()
});

/// Formats of texts that a kube-apiserver knows, without dashes, besides [`PATTERNS`].
const OTHER_FORMATS: [&str; 15] = [
    "cidr",
    "creditcard",
    "date",
    "datetime",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "isbn",
    "isbn10",
    "isbn13",
    "mac",
    "password",
    "uri",
];

/// The format of a schema; empty if it has none that applies to its type
/// (`k8s.io/apiextensions-apiserver/pkg/apiserver/validation/formats.go`).
pub(in crate::schema) fn supported_format(schema: &Schema) -> &str {
    let format = schema.format.as_str();
    let is_supported = match schema.value_type.filter(|_| !schema.is_int_or_string) {
        _ if format.is_empty() => true,
        None | Some(ValueType::String) => is_text_format(format),
        Some(ValueType::Integer) => matches!(format, "int32" | "int64"),
        Some(ValueType::Number) => matches!(format, "float" | "double"),
        Some(ValueType::Object | ValueType::Array | ValueType::Boolean) => false,
    };
    if is_supported { format } else { "" }
}

/// Whether a format of texts is examined. Dashes do not count.
pub fn is_text_format(format: &str) -> bool {
    let name = format.replace('-', "");
    PATTERNS.contains_key(&*name) || OTHER_FORMATS.contains(&&*name)
}

/// Checks the format of a text.
pub(super) fn validate_format(
    schema: &Schema,
    text: &str,
    path: Option<&ValuePath<'_>>,
    result: &mut ValidationResult<'_>,
) {
    let format = supported_format(schema);
    if format.is_empty() || !is_text_format(format) {
        return;
    }
    result.matches += 1;
    if !has_format(format, text) {
        let why = in_body(path, format_args!("must be of type {format}: {}", GoQuoted(text)));
        result.add(FieldError::type_invalid(super::field_of(path), text, why));
    }
}

/// Whether a text has a format.
fn has_format(format: &str, text: &str) -> bool {
    let name = format.replace('-', "");
    let matches = || PATTERNS.get(&*name).is_none_or(|pattern| pattern.matches(text));
    match &*name {
        "cidr" => address::is_cidr(text),
        "creditcard" => number::is_credit_card(text),
        "date" => time::is_date(text),
        "datetime" => time::is_date_time(text),
        "duration" => time::is_duration(text),
        "email" => email::is_email(text),
        "hostname" => address::is_host_name(text),
        "ipv4" => address::is_ipv4(text),
        "ipv6" => address::is_ipv6(text),
        "isbn" => number::is_isbn10(text) || number::is_isbn13(text),
        "isbn10" => number::is_isbn10(text),
        "isbn13" => number::is_isbn13(text),
        "k8slongname" => matches() && text.len() <= 253,
        "k8sshortname" => matches() && text.len() <= 63,
        "mac" => address::is_mac(text),
        "ssn" => matches() && text.len() == 11,
        "uri" => uri::is_request_uri(text),
        _ => matches(),
    }
}

#[cfg(test)]
mod tests;
