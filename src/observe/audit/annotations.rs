//! Annotations of audit events (`AddAuditAnnotation` in `k8s.io/apiserver/pkg/audit/context.go`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// An annotation: key and value.
pub type AuditAnnotation = (Cow<'static, str>, String);

/// Annotations by their key.
pub(super) type AuditAnnotationMap = BTreeMap<Cow<'static, str>, String>;

/// Annotations of the audit events of one request; added while it is served. Dropped if the request is not audited.
#[derive(Clone, Default)]
pub struct AuditAnnotations(Option<Arc<Mutex<AuditAnnotationMap>>>);

impl AuditAnnotations {
    /// Annotations of an audited request that has `first`.
    pub(super) fn audited(first: &[AuditAnnotation]) -> AuditAnnotations {
        AuditAnnotations(Some(Arc::new(Mutex::new(first.iter().cloned().collect()))))
    }

    /// Adds an annotation; `value` is called only for an audited request. The first value of a key stays.
    pub fn add(&self, key: impl Into<Cow<'static, str>>, value: impl FnOnce() -> String) {
        if let Some(annotations) = &self.0 {
            annotations.lock().entry(key.into()).or_insert_with(value);
        }
    }

    /// The annotations so far.
    pub(super) fn get(&self) -> AuditAnnotationMap {
        self.0.as_ref().map(|annotations| annotations.lock().clone()).unwrap_or_default()
    }
}
