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
    /// The section of the documents about it, if there is one.
    pub help: Option<HelpTopic>,
}

/// A section of the documents, for findings in files that are readable and consistent in
/// themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpTopic {
    /// A certificate has expired, or is not valid yet.
    CertificateValidity,
    /// An APIService, its Service and its endpoints do not belong together.
    ServiceNotResolved,
    /// The certificate of a backend is not verified, or any authority of the machine may issue it.
    BackendNotVerified,
    /// The registry directory has an APIService of the same name.
    ApiServiceOverridden,
    /// Clients or front proxies have the same authority as a backend.
    AuthorityShared,
    /// An APIService takes over a part of a group that the kube-apiserver serves.
    GroupSplit,
    /// The store is damaged, or incomplete.
    StoreDamaged,
}

impl HelpTopic {
    /// All help topics.
    pub const ALL: [HelpTopic; 7] = [
        HelpTopic::CertificateValidity,
        HelpTopic::ServiceNotResolved,
        HelpTopic::BackendNotVerified,
        HelpTopic::ApiServiceOverridden,
        HelpTopic::AuthorityShared,
        HelpTopic::GroupSplit,
        HelpTopic::StoreDamaged,
    ];

    /// The command that prints the section: the documents are part of the program.
    pub fn link(self) -> &'static str {
        match self {
            HelpTopic::CertificateValidity => "narthex help troubleshooting certificate-validity",
            HelpTopic::ServiceNotResolved => "narthex help troubleshooting service-not-resolved",
            HelpTopic::BackendNotVerified => "narthex help troubleshooting backend-not-verified",
            HelpTopic::ApiServiceOverridden => "narthex help troubleshooting apiservice-overridden",
            HelpTopic::AuthorityShared => "narthex help troubleshooting authority-shared",
            HelpTopic::GroupSplit => "narthex help troubleshooting group-split",
            HelpTopic::StoreDamaged => "narthex help store-backup after-damage",
        }
    }
}

impl Problem {
    /// Creates a problem of the whole `location`.
    pub fn new(location: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { location: location.to_string(), field: String::new(), message: message.to_string(), help: None }
    }

    /// Creates a problem of one field of `location`.
    pub fn at_field(location: impl fmt::Display, field: impl fmt::Display, message: impl fmt::Display) -> Problem {
        Problem { location: location.to_string(), field: field.to_string(), message: message.to_string(), help: None }
    }

    /// Adds the section of the documents about it.
    #[must_use]
    pub fn with_help(self, topic: HelpTopic) -> Problem {
        Problem { help: Some(topic), ..self }
    }

    /// [`HelpTopic::link`] of its section, for a log line.
    pub fn help_link(&self) -> Option<&'static str> {
        self.help.map(HelpTopic::link)
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
    /// Returns the value of `result`, or adds its problems.
    pub fn collect<T>(&mut self, result: Result<T, impl Into<Problems>>) -> Option<T> {
        result.map_err(|problems| self.0.extend(problems.into().0)).ok()
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
