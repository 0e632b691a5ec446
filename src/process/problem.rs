//! A mistake in something the operator wrote, said so that it can be mended.

use std::fmt;

/// One mistake: where it stands, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file (with document number or line where known), flag or environment variable.
    pub place: String,
    /// Path of the field inside the file, for example `spec.service.port`; empty when the whole is meant.
    pub field: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Problem {
    /// A problem of the whole `place`.
    pub fn new(place: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { place: place.to_string(), field: String::new(), message: message.to_string() }
    }

    /// A problem of one field of `place`.
    pub fn field(place: impl fmt::Display, field: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { place: place.to_string(), field: field.to_string(), message: message.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// All mistakes found in one go; never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Keeps the value of `result`, or remembers its problem.
    pub fn keep<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Writes an error line to the log for each, with what follows from it.
    pub fn log(&self, consequence: &str) {
        for problem in &self.0 {
            tracing::error!(%problem, "{consequence}");
        }
    }

    /// `value` if nothing went wrong, else all that did.
    pub fn or<T>(self, value: T) -> Result<T, Problems> {
        if self.0.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Problems {
        Problems(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
