//! Options of create, update and patch (`metav1.CreateOptions`, `UpdateOptions`, `PatchOptions`).

use crate::kubeapi::field_error::{FieldError, invalid_options_status};
use crate::kubeapi::{Query, Status};

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
    pub const SUPPORTED: [&str; 3] = ["Ignore", "Strict", "Warn"];

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

impl WriteOptions {
    /// Reads the options of `kind` from a query.
    ///
    /// # Errors
    /// 422 for values that are not supported.
    pub(super) fn parse(query: &Query<'_>, kind: &str) -> Result<WriteOptions, Status> {
        let mut errors = Vec::new();
        let is_dry_run = dry_run(query, &mut errors);
        let validation = query.get("fieldValidation").unwrap_or_default();
        let validation = FieldValidation::parse(&validation).unwrap_or_else(|| {
            errors.push(FieldError::not_supported("fieldValidation", &*validation, &FieldValidation::SUPPORTED));
            FieldValidation::Warn
        });
        if errors.is_empty() {
            return Ok(WriteOptions { is_dry_run, validation });
        }
        Err(invalid_options_status(kind, &errors))
    }
}

/// Whether the request is a dry run, of which nothing is stored (`dryRun=All`).
pub(super) fn dry_run(query: &Query<'_>, errors: &mut Vec<FieldError>) -> bool {
    let mut is_dry_run = false;
    for (_, value) in query.pairs().filter(|(key, _)| key == "dryRun") {
        match &*value {
            "All" => is_dry_run = true,
            other => errors.push(FieldError::not_supported("dryRun", other, &["All"])),
        }
    }
    is_dry_run
}
