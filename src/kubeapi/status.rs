//! `metav1.Status`, the body of every refusal.

use serde::{Deserialize, Serialize};

/// A failure as Kubernetes clients read it (`k8s.io/apimachinery/pkg/apis/meta/v1.Status`).
///
/// Serialises with `kind`, `apiVersion`, `metadata` and `status: Failure` in upstream's field order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code, also the `code` field.
    pub code: u16,
    /// A `metav1.StatusReason`, for example `Forbidden`; empty when there is none.
    pub reason: &'static str,
    /// For a person; says what to do where something can be done.
    pub message: String,
    /// What the failure is about.
    pub details: Option<Box<Details>>,
}

/// `metav1.StatusDetails`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Details {
    /// Name of the resource, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Group of the resource, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Resource (upstream puts the plural here), or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// UID of the object, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry a cause.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds after which trying again makes sense; 0 when unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub retry_after_seconds: u32,
}

/// `metav1.StatusCause`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cause {
    /// A `metav1.CauseType`, or the reason of a condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// For a person.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The field the cause is about, or empty.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}
