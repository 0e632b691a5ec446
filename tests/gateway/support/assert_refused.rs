//! Assertions that hold for every refusal.

use crate::support::backend::Backend;
use crate::support::client::ClientResponse;

/// A refusal must name the APIService and nothing of what is inside.
#[track_caller]
pub(crate) fn assert_no_internals(response: &ClientResponse, backend: &Backend) {
    let text = response.text();
    assert!(text.contains("v1.things.example.com"), "{text}");
    for secret in [&*backend.address.to_string(), "127.0.0.1", "hyper", "rustls", "h2 ", "os error", "tls handshake"] {
        assert!(!text.contains(secret), "{secret:?} in {text}");
    }
}

/// The reason of a refusal's first cause.
pub(crate) fn first_cause(status: &serde_json::Value) -> &str {
    status["details"]["causes"][0]["reason"].as_str().unwrap_or_default()
}

/// Asserts that a refusal says `reason`: from the attempt itself, or from a probe that was faster.
#[track_caller]
pub(crate) fn assert_cause(status: &serde_json::Value, reason: &str) {
    let probed = first_cause(status) == "FailedDiscoveryCheck"
        && status["message"].as_str().is_some_and(|message| message.contains(&format!(": {reason})")));
    assert!(first_cause(status) == reason || probed, "{reason}: {status}");
}

/// Seconds after which trying again makes sense, by the details of a Status. The header `Retry-After`, for which client-go
/// would repeat the request ten times before it shows the answer, must come with 429 alone.
#[track_caller]
pub(crate) fn retry_after_seconds(response: &ClientResponse) -> Option<u64> {
    let seconds = response.json()["details"]["retryAfterSeconds"].as_u64();
    let header = response.headers.get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap());
    assert_eq!(header, seconds.filter(|_| response.status == 429), "{} {}", response.status, response.text());
    seconds
}
