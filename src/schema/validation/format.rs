//! Formats of values (`k8s.io/kube-openapi/pkg/validation/strfmt`). Dashes in the name of a format do not count; an
//! unknown format is ignored.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::civil::Date;
use serde_json::Value;

use super::{Pattern, ValidationResult, error_of, in_body};
use crate::kubeapi::duration::parse_signed;
use crate::kubeapi::field_error::FieldErrorKind;
use crate::kubeapi::names::{check_dns1035_label, check_dns1123_label};
use crate::schema::{Schema, ValueType};

/// Checks the format of a value.
pub(super) fn validate_format(schema: &Schema, value: &Value, path: &str, result: &mut ValidationResult) {
    let is_valid = match (schema.value_type, value) {
        (Some(ValueType::String), Value::String(text)) => is_text_of_format(&schema.format, text),
        (Some(ValueType::Integer), Value::Number(number)) => match &*schema.format {
            "int32" => number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
            "int64" => number.as_i64().is_some() || number.as_f64().is_some_and(|number| number.abs() < 9.3e18),
            _ => true,
        },
        _ => true,
    };
    if !is_valid {
        let text = value.as_str().map_or_else(|| value.to_string(), |text| format!("{text:?}"));
        let why = in_body(path, format_args!("must be of type {}: {text}", schema.format));
        result.add(error_of(FieldErrorKind::Invalid, path, value, why));
    }
}

/// Whether a text has a format.
pub(in crate::schema) fn is_text_of_format(format: &str, text: &str) -> bool {
    match &*format.replace('-', "") {
        "datetime" => is_date_time(text),
        "date" => text.len() == 10 && text.parse::<Date>().is_ok(),
        "byte" => STANDARD.decode(text).is_ok(),
        "duration" => {
            parse_signed(text).is_ok() || matches(r"^\s*[0-9]+(\.[0-9]+)?\s*(ns|us|µs|ms|s|m|h|d|w|[a-z]+)\s*$", text)
        }
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok(),
        "cidr" => is_cidr(text),
        "mac" => matches(r"^([0-9A-Fa-f]{2}([:-]))([0-9A-Fa-f]{2}[:-]){4}[0-9A-Fa-f]{2}$", text),
        "uuid" => matches(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$", text),
        "uuid3" => matches(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?3[0-9a-f]{3}-?[0-9a-f]{4}-?[0-9a-f]{12}$", text),
        "uuid4" => matches(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?4[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$", text),
        "uuid5" => matches(r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?5[0-9a-f]{3}-?[89ab][0-9a-f]{3}-?[0-9a-f]{12}$", text),
        "bsonobjectid" => matches(r"(?i)^[0-9a-f]{24}$", text),
        "hexcolor" => matches(r"^#?([0-9a-fA-F]{3}|[0-9a-fA-F]{6})$", text),
        "hostname" => is_host_name(text),
        "email" => is_email(text),
        "uri" => text.starts_with('/') || matches(r"^[A-Za-z][A-Za-z0-9+.-]*:[^\s]+$", text),
        "k8sshortname" => check_dns1123_label(text).is_empty(),
        "k8slongname" => text.split('.').all(|label| check_dns1123_label(label).is_empty()) && text.len() <= 253,
        _ => true,
    }
}

fn matches(pattern: &str, text: &str) -> bool {
    Pattern::new(pattern).matches(text)
}

/// RFC 3339, with a space or `t` for `T`, too (`strfmt.ParseDateTime`).
fn is_date_time(text: &str) -> bool {
    let Some((date, time)) = text.split_once(['T', 't', ' ']) else { return false };
    matches(r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-][0-9]{2}:[0-9]{2})$", time)
        && date.len() == 10
        && date.parse::<Date>().is_ok()
}

fn is_cidr(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let limit = match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => 32,
        Ok(IpAddr::V6(_)) => 128,
        Err(_) => return false,
    };
    bits.parse::<u8>().is_ok_and(|bits| bits <= limit) && !bits.starts_with('+')
}

fn is_host_name(text: &str) -> bool {
    text.len() <= 255
        && text
            .split('.')
            .all(|label| !label.is_empty() && matches(r"(?i)^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$", label))
}

fn is_email(text: &str) -> bool {
    text.rsplit_once('@').is_some_and(|(user, host)| {
        !user.is_empty() && !host.is_empty() && !user.contains([' ', '@']) && check_host_of_email(host)
    })
}

fn check_host_of_email(host: &str) -> bool {
    host.split('.')
        .all(|label| !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-'))
        || check_dns1035_label(host).is_empty()
}
