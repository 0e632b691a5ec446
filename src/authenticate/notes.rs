//! What authenticators say of a request besides the user.

use crate::observe::audit::AuditAnnotation;

/// What authenticators say of a request besides the user.
#[derive(Clone, Debug, Default)]
pub struct AuthenticationNotes {
    /// The text of a `Warning: 299` header for the response.
    pub warning: Option<&'static str>,
    /// Annotations of the audit events.
    pub annotations: Vec<AuditAnnotation>,
}

impl AuthenticationNotes {
    /// Adds the annotation `authentication.k8s.io/<name>`.
    pub fn annotate(&mut self, name: &str, value: String) {
        self.annotations.push((format!("authentication.k8s.io/{name}").into(), value));
    }
}
