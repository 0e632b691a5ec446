//! Secrets (`ValidateSecret`, `pkg/apis/core/v1/conversion.go`).

use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::json::{json_kind, read_json};
use kubeapi::names::check_config_map_key;
use serde_json::{Value, json};

use super::cells::{CellPrinter, length_at, text_at};
use super::config_map::{DATA, MAX_DATA_BYTES, decoded_length, immutability_errors};
use super::selectable_fields::SelectableFields;
use super::validation::{ValidationInput, invalid_for};
use super::{KindRules, Object, WrittenObject, set_default};

pub(super) static RULES: KindRules = KindRules {
    selectable: SelectableFields::of(&["type"]),
    convert_body: convert_string_data,
    prepare_new: |_, object| set_default(object, "type", "Opaque"),
    prepare_replacement: |_, object| set_default(object, "type", "Opaque"),
    validate: validate_secret,
    warnings: secret_warnings,
    cells: print_secret,
    ..KindRules::of("", "secrets")
};

/// Moves the text in `stringData` to `data`.
fn convert_string_data(object: &mut Object) {
    let Some(Value::Object(texts)) = object.remove("stringData") else { return };
    if texts.is_empty() {
        return;
    }
    let data = object.entry("data").or_insert_with(|| json!({}));
    if !data.is_object() {
        *data = json!({});
    }
    for (key, text) in texts {
        data[key] = STANDARD.encode(text.as_str().unwrap_or_default()).into();
    }
}

/// Warns of a certificate and key that cannot be read (`tls.X509KeyPair` in Go). Whether they fit is not compared.
fn secret_warnings(written: &WrittenObject<'_>) -> Vec<String> {
    if written.field("type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let data = written.field("data");
    let types = |key: &str| pem_types(&STANDARD.decode(data[key].as_str().unwrap_or_default()).unwrap_or_default());
    let (certificate, key) = (types("tls.crt"), types("tls.key"));
    let is_key = |name: &String| name.ends_with("PRIVATE KEY");
    let skipped = |types: &[String]| format!("after skipping PEM blocks of the following types: [{}]", types.join(" "));
    let warning = match (&certificate[..], &key[..]) {
        ([], _) => "tls: failed to find any PEM data in certificate input".to_owned(),
        ([only], _) if is_key(only) => "tls: failed to find certificate PEM data in certificate input, but did find a \
                                        private key; PEM inputs may have been switched"
            .to_owned(),
        (types, _) if types.iter().all(|name| name != "CERTIFICATE") => {
            format!("tls: failed to find \"CERTIFICATE\" PEM block in certificate input {}", skipped(types))
        }
        (_, []) => "tls: failed to find any PEM data in key input".to_owned(),
        (_, [only]) if only == "CERTIFICATE" => {
            "tls: found a certificate rather than a key in the PEM for the private key".to_owned()
        }
        (_, types) if !types.iter().any(is_key) => {
            format!("tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input {}", skipped(types))
        }
        _ => return Vec::new(),
    };
    vec![warning]
}

/// Types of the PEM blocks of a file, in order.
fn pem_types(file: &[u8]) -> Vec<String> {
    let file = String::from_utf8_lossy(file);
    let names =
        |prefix| file.lines().filter_map(move |line| line.trim_end().strip_prefix(prefix)?.strip_suffix("-----"));
    let ended: HashSet<&str> = names("-----END ").collect();
    names("-----BEGIN ").filter(|name| ended.contains(name)).map(str::to_owned).collect()
}

/// Validates a Secret.
fn validate_secret(input: &ValidationInput<'_>) -> FieldErrors {
    let mut errors = input.metadata_update_errors();
    let secret_type = input.field("type").as_str().unwrap_or_default();
    if input.old.is_some() && input.old_field("type") != input.field("type") {
        errors.push(FieldError::invalid("type", secret_type, "field is immutable"));
    }
    errors.extend(immutability_errors(input, &["data"]));
    errors.append(input.metadata_errors());
    let data = input.field("data");
    let mut bytes = 0;
    for (key, value) in data.as_object().into_iter().flatten() {
        errors.extend(invalid_for(DATA.key(key), key, check_config_map_key(key)));
        bytes += decoded_length(value);
    }
    if bytes > MAX_DATA_BYTES {
        errors.push(FieldError::too_long(DATA, MAX_DATA_BYTES));
    }
    errors.extend(secret_type_errors(input, secret_type, data));
    errors
}

/// Data and annotations that the type of a Secret requires.
fn secret_type_errors(input: &ValidationInput<'_>, secret_type: &str, data: &Value) -> Vec<FieldError> {
    let required = |key: &str| FieldError::required(DATA.key(key), "");
    let absent = |keys: &[&str]| -> Vec<FieldError> {
        keys.iter().filter(|key| data.get(key).is_none()).map(|key| required(key)).collect()
    };
    match secret_type {
        "kubernetes.io/service-account-token" => {
            const ANNOTATION: &str = "kubernetes.io/service-account.name";
            let is_missing = input.metadata().annotation(ANNOTATION).unwrap_or_default().is_empty();
            let path = FieldPath::root("metadata");
            let error = || FieldError::required(path.child("annotations").key(ANNOTATION), "");
            is_missing.then(error).into_iter().collect()
        }
        "kubernetes.io/dockercfg" => json_map_error(data, ".dockercfg"),
        "kubernetes.io/dockerconfigjson" => json_map_error(data, ".dockerconfigjson"),
        "kubernetes.io/basic-auth" => match absent(&["username", "password"]) {
            missing if missing.len() == 2 => missing,
            _ => Vec::new(),
        },
        "kubernetes.io/ssh-auth" => {
            let is_missing = data["ssh-privatekey"].as_str().unwrap_or_default().is_empty();
            is_missing.then(|| required("ssh-privatekey")).into_iter().collect()
        }
        "kubernetes.io/tls" => absent(&["tls.crt", "tls.key"]),
        _ => Vec::new(),
    }
}

/// The error of a value that must be a JSON object.
fn json_map_error(data: &Value, key: &str) -> Vec<FieldError> {
    let Some(encoded) = data[key].as_str() else { return vec![FieldError::required(DATA.key(key), "")] };
    let why = match read_json(&STANDARD.decode(encoded).unwrap_or_default()) {
        Ok((Value::Object(_) | Value::Null, _)) => return Vec::new(),
        Ok((other, _)) => {
            format!("json: cannot unmarshal {} into Go value of type map[string]interface {{}}", json_kind(&other))
        }
        Err(error) => error.to_string(),
    };
    vec![FieldError::invalid(DATA.key(key), "<secret contents redacted>", why)]
}

fn print_secret(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    vec![printer.name(), text_at(object, "/type").into(), length_at(object, "/data").into(), printer.age()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_and_key_that_cannot_be_read_are_warned_of() {
        let block = |name: &str| format!("-----BEGIN {name}-----\nAAEC\n-----END {name}-----\n");
        let (certificate, key, other) = (block("CERTIFICATE"), block("EC PRIVATE KEY"), block("OTHER"));
        for (first, second, expected) in [
            (&*certificate, &*key, None),
            ("", &*key, Some("tls: failed to find any PEM data in certificate input")),
            (&*certificate, "", Some("tls: failed to find any PEM data in key input")),
            (
                &*certificate,
                &*certificate,
                Some("tls: found a certificate rather than a key in the PEM for the private key"),
            ),
            (
                &*other,
                &*key,
                Some(
                    "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the \
                     following types: [OTHER]",
                ),
            ),
        ] {
            let data = json!({"tls.crt": STANDARD.encode(first), "tls.key": STANDARD.encode(second)});
            let Value::Object(object) = json!({"type": "kubernetes.io/tls", "data": data}) else { continue };
            let warnings = secret_warnings(&WrittenObject { subresource: "", old: None, object: &object });
            assert_eq!(warnings.first().map(String::as_str), expected);
        }
    }
}
