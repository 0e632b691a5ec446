//! Problems in configuration: where they are and how to fix them.

use std::fmt;

/// One problem in a configuration file, flag or environment variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file (with document number or line where known), flag or environment variable.
    pub location: String,
    /// Path of the field inside the file, for example `spec.service.port`; empty for a problem of the whole file.
    pub field: String,
    /// What is wrong and what is expected.
    pub message: String,
}

impl Problem {
    /// Creates a problem of the whole `place`.
    pub fn new(place: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { location: place.to_string(), field: String::new(), message: message.to_string() }
    }

    /// Creates a problem of one field of `place`.
    pub fn at_field(place: impl fmt::Display, field: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { location: place.to_string(), field: field.to_string(), message: message.to_string() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.location)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for Problem {}

/// All problems found at once; never empty when returned as an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// Returns the value of `result`, or adds its problem.
    pub fn collect<T>(&mut self, result: Result<T, Problem>) -> Option<T> {
        result.map_err(|problem| self.0.push(problem)).ok()
    }

    /// Logs each problem as an error with `consequence` as the message.
    pub fn log(&self, consequence: &str) {
        for problem in &self.0 {
            tracing::error!(%problem, "{consequence}");
        }
    }

    /// Returns `value` if there are no problems.
    pub fn into_result<T>(self, value: T) -> Result<T, Problems> {
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
