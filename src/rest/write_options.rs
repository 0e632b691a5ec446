//! Options of create, update and patch (`metav1.CreateOptions`, `UpdateOptions`, `PatchOptions`).

use kubeapi::field_error::{BadValue, FieldError, invalid_options_status};
use kubeapi::{Query, Status, is_print};

/// Longest name of a field manager in bytes (`FieldManagerMaxLength`).
const MAX_FIELD_MANAGER_BYTES: usize = 128;

/// Treatment of unknown and duplicate fields (`fieldValidation`, KEP-2885).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FieldValidation {
    /// Such fields are dropped.
    Ignore,
    /// Such fields are dropped with a warning; Kubernetes' default.
    #[default]
    Warn,
    /// The request is refused.
    Strict,
}

impl FieldValidation {
    /// The valid values, for errors.
    pub const SUPPORTED: [&str; 4] = ["", "Ignore", "Strict", "Warn"];

    /// Reads the parameter; an empty value is the default.
    pub fn parse(text: &str) -> Option<FieldValidation> {
        Some(match text {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            _ => return None,
        })
    }
}

/// Options of a write.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WriteOptions {
    pub(super) is_dry_run: bool,
    pub(super) validation: FieldValidation,
}

/// Checks the options of a create in a query.
///
/// # Errors
/// 422 for values that are not supported.
pub(crate) fn check_create_options(query: &Query<'_>) -> Result<(), Status> {
    WriteOptions::parse(query, "CreateOptions").map(drop)
}

impl WriteOptions {
    /// Reads the options of `kind` from a query.
    ///
    /// # Errors
    /// 422 for values that are not supported.
    pub(super) fn parse(query: &Query<'_>, kind: &str) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        if kind == "PatchOptions" && query.get("force").is_some() {
            errors.push(FieldError::forbidden("force", "may not be specified for non-apply patch"));
        }
        errors.extend(check_field_manager(&query.get("fieldManager").unwrap_or_default()));
        let values: Vec<_> = query.pairs().filter(|(key, _)| key == "dryRun").map(|(_, value)| value).collect();
        let is_dry_run = dry_run(values.iter().map(|value| &**value), &mut errors);
        let validation = query.get("fieldValidation").unwrap_or_default();
        let validation = FieldValidation::parse(&validation).unwrap_or_else(|| {
            errors.push(FieldError::not_supported("fieldValidation", &*validation, &FieldValidation::SUPPORTED));
            FieldValidation::Warn
        });
        if errors.is_empty() {
            return Ok(WriteOptions { is_dry_run, validation });
        }
        Err(invalid_options_status(kind, errors))
    }
}

/// Checks the name of a field manager (`ValidateFieldManager` in `k8s.io/apimachinery/pkg/apis/meta/v1/validation`).
fn check_field_manager(name: &str) -> Vec<FieldError> {
    const FIELD: &str = "fieldManager";
    let mut errors = Vec::new();
    if name.len() > MAX_FIELD_MANAGER_BYTES {
        errors.push(FieldError::too_long(FIELD, MAX_FIELD_MANAGER_BYTES));
    }
    let unprintable = name.char_indices().filter(|(_, character)| !is_print(*character));
    let value = BadValue::from(name);
    errors.extend(unprintable.map(|(at, character)| {
        let why = format!("invalid character U+{:04X} (at position {at})", u32::from(character));
        FieldError::invalid(FIELD, value.clone(), why)
    }));
    errors
}

/// Whether the request is a dry run, of which nothing is stored (`dryRun=All`).
pub(super) fn dry_run<'v>(values: impl Iterator<Item = &'v str> + Clone, errors: &mut Vec<FieldError>) -> bool {
    if values.clone().any(|value| value != "All") {
        let all: serde_json::Value = values.clone().collect();
        errors.push(FieldError::not_supported("dryRun", &all, &["All"]));
    }
    values.count() > 0
}
