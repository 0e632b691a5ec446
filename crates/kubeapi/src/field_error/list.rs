//! Lists of validation errors whose number is bounded.

use super::FieldError;

/// Maximum number of errors that are kept of one object, and of causes of a Status.
pub const MAX_FIELD_ERRORS: usize = 256;

/// The first errors of an object, and how many more there are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldErrors {
    errors: Vec<FieldError>,
    omitted: usize,
}

impl FieldErrors {
    /// No errors.
    pub const fn new() -> FieldErrors {
        FieldErrors { errors: Vec::new(), omitted: 0 }
    }

    /// Adds an error, or counts it if there are many.
    pub fn push(&mut self, error: FieldError) {
        match self.is_full() {
            false => self.errors.push(error),
            true => self.omitted += 1,
        }
    }

    /// Adds errors.
    pub fn extend(&mut self, errors: impl IntoIterator<Item = FieldError>) {
        errors.into_iter().for_each(|error| self.push(error));
    }

    /// Adds the errors of another list, and those that it left out.
    pub fn append(&mut self, other: FieldErrors) {
        self.extend(other.errors);
        self.omitted += other.omitted;
    }

    /// Counts errors that were not examined further.
    pub fn omit(&mut self, count: usize) {
        self.omitted += count;
    }

    /// Whether further errors are only counted.
    pub fn is_full(&self) -> bool {
        self.errors.len() >= MAX_FIELD_ERRORS
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// The errors that are kept, in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.errors.iter()
    }

    /// The errors that are kept, in order.
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, FieldError> {
        self.errors.iter_mut()
    }

    /// How many errors were left out, at least.
    pub fn omitted(&self) -> usize {
        self.omitted
    }

    /// Sorts the errors that are kept by their texts.
    pub fn sort(&mut self) {
        self.errors.sort_by_cached_key(ToString::to_string);
    }

    /// Changes the errors that are kept.
    #[must_use]
    pub fn map(self, change: impl FnMut(FieldError) -> FieldError) -> FieldErrors {
        FieldErrors { errors: self.errors.into_iter().map(change).collect(), omitted: self.omitted }
    }

    /// Divides the errors that are kept into those for which `is_first` holds and the others, with those that were left
    /// out.
    pub fn partition(self, is_first: impl FnMut(&FieldError) -> bool) -> (FieldErrors, FieldErrors) {
        let (first, others) = self.errors.into_iter().partition(is_first);
        (FieldErrors { errors: first, omitted: 0 }, FieldErrors { errors: others, omitted: self.omitted })
    }
}

impl From<Vec<FieldError>> for FieldErrors {
    fn from(errors: Vec<FieldError>) -> FieldErrors {
        errors.into_iter().collect()
    }
}

impl From<FieldError> for FieldErrors {
    fn from(error: FieldError) -> FieldErrors {
        FieldErrors { errors: vec![error], omitted: 0 }
    }
}

impl FromIterator<FieldError> for FieldErrors {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> FieldErrors {
        let mut list = FieldErrors::new();
        list.extend(errors);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_errors_keep_the_first_and_count_the_others() {
        let error = |index: usize| FieldError::required(format!("a[{index}]"), "");
        let mut list: FieldErrors = (0..MAX_FIELD_ERRORS + 3).map(error).collect();
        assert_eq!((list.iter().count(), list.omitted(), list.is_full()), (MAX_FIELD_ERRORS, 3, true));
        assert_eq!(list.iter().last(), Some(&error(MAX_FIELD_ERRORS - 1)));
        list.append((0..MAX_FIELD_ERRORS + 1).map(error).collect());
        assert_eq!((list.iter().count(), list.omitted()), (MAX_FIELD_ERRORS, 3 + MAX_FIELD_ERRORS + 1));
    }
}
