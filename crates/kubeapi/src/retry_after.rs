//! When a client may retry: every `retryAfterSeconds` of this process, and which of them the header `Retry-After`
//! repeats.

use std::time::Duration;

/// Why a client should retry later.
///
/// With the header, client-go retries a 429 or 5xx up to ten times before its caller sees the response
/// (`k8s.io/client-go/rest/with_retry.go`). It does not wait because of the details. So the header is sent only where a
/// kube-apiserver sends it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    /// A limit on requests is reached.
    Overloaded,
    /// The process is shutting down; another replica can serve the request.
    ShuttingDown,
    /// Not all registered APIServices are known yet (`k8s.io/apiserver/pkg/util/notfoundhandler`).
    PathsNotInstalled,
    /// The storage has not reached the requested resource version yet (`NewTooLargeResourceVersionError`).
    ResourceVersionTooLarge,
    /// A document is being merged.
    Merging,
    /// The backend failed in a way that may pass at any moment.
    TransientFault,
    /// The controller of a PodDisruptionBudget has not looked at its last change (`createTooManyRequestsError`).
    DisruptionBudget,
    /// The APIService is unavailable.
    Unavailable,
    /// The circuit of the APIService is open for this time.
    CircuitOpen(Duration),
    /// The circuit of the APIService is half open.
    CircuitRecovering,
}

impl RetryAfter {
    /// The delay before a retry.
    pub fn seconds(self) -> u32 {
        match self {
            RetryAfter::Overloaded
            | RetryAfter::ResourceVersionTooLarge
            | RetryAfter::Merging
            | RetryAfter::TransientFault
            | RetryAfter::CircuitRecovering => 1,
            RetryAfter::ShuttingDown | RetryAfter::PathsNotInstalled | RetryAfter::Unavailable => 5,
            RetryAfter::DisruptionBudget => 10,
            RetryAfter::CircuitOpen(rest) => u32::try_from(rest.as_secs()).unwrap_or(u32::MAX).saturating_add(1),
        }
    }

    /// Whether the header `Retry-After` repeats it.
    pub fn is_in_header(self) -> bool {
        matches!(
            self,
            RetryAfter::Overloaded
                | RetryAfter::ShuttingDown
                | RetryAfter::PathsNotInstalled
                | RetryAfter::ResourceVersionTooLarge
                | RetryAfter::DisruptionBudget
        )
    }
}
