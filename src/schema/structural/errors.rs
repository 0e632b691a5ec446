//! A list of errors whose size is bounded: a path of an error may be almost as long as the definition.

use crate::kubeapi::field_error::FieldError;

/// Maximum size of paths and texts in bytes.
const MAX_BYTES: usize = 1 << 20;

/// Errors of a definition, without those that do not fit.
#[derive(Debug, Default)]
pub struct BoundedErrors {
    errors: Vec<FieldError>,
    size: usize,
}

impl BoundedErrors {
    /// Adds an error.
    pub fn push(&mut self, error: FieldError) {
        if self.size < MAX_BYTES {
            self.size += error.field.len() + error.detail.len();
            self.errors.push(error);
        }
    }

    /// Adds errors.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        errors.into_iter().for_each(|error| self.push(error));
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Sorts the errors by their texts.
    pub fn sort(&mut self) {
        self.errors.sort_by_cached_key(ToString::to_string);
    }

    /// The errors.
    pub fn into_vec(self) -> Vec<FieldError> {
        self.errors
    }
}
