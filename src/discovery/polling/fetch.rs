//! Interface to backends: one GET to the backend of one APIService.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::process::Reservation;

/// Timeout of one fetch (as in kube-aggregator's `discoverymanager`).
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum body of a response. The largest known one, of a custom-metrics adapter with thousands of metrics, stays
/// below 2 MiB.
pub const MAX_BODY: usize = 4 << 20;

/// Limits of one fetch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchLimits {
    pub(crate) time: Duration,
    /// Maximum bytes of the body.
    pub(crate) size: usize,
}

/// Response of a backend.
#[derive(Clone, Debug, Default)]
pub struct FetchedResponse {
    /// HTTP status code.
    pub status: u16,
    /// The header `Content-Type`; empty if absent.
    pub content_type: String,
    /// The header `ETag`.
    pub etag: Option<String>,
    /// The complete body.
    pub body: Bytes,
    /// Memory reserved for the body in the budget of all documents being read; released on drop.
    pub reservation: Option<Arc<Reservation>>,
}

/// Why a backend could not be fetched, or its response is invalid. For logs and the status page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchError {
    /// The problem.
    pub text: String,
    /// Whether the availability probe fails for the same reason, so that the condition of the APIService reports it.
    pub seen_by_probe: bool,
}

impl FetchError {
    /// An error of the response.
    pub fn new(text: impl Into<String>) -> FetchError {
        FetchError { text: text.into(), seen_by_probe: false }
    }

    /// An error that the availability probe has, too: no backend, no connection, or no good response at
    /// [`discovery_path`](crate::registry::ApiService::discovery_path).
    pub fn seen_by_probe(text: impl Into<String>) -> FetchError {
        FetchError { text: text.into(), seen_by_probe: true }
    }

    /// An invalid response. The parser quotes text of the backend, so it is made short and printable.
    pub(crate) fn unreadable(error: &serde_json::Error) -> FetchError {
        let quoted = error.to_string();
        let printable = quoted.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
        let location = format!("line {} column {}", error.line(), error.column());
        FetchError::new(format!("the answer cannot be read at {location}: {}", printable.take(160).collect::<String>()))
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for FetchError {}

/// One GET to the backend of one APIService, as user `system:kube-aggregator` of group `system:masters`.
///
/// An implementation does not wait until the backend is available, follows no redirect, decodes at most `max_bytes` and
/// gives up after [`TIMEOUT`]. Both limits are checked here again.
pub trait Fetch {
    /// Fetches `path` (which never comes from a client) from the backend of `apiservice`, at most `max_bytes`.
    fn fetch(
        &self,
        apiservice: &str,
        path: &str,
        accept: &str,
        if_none_match: Option<&str>,
        max_bytes: usize,
    ) -> impl Future<Output = Result<FetchedResponse, FetchError>>;
}

/// Calls `fetch.fetch(…)` and enforces the limits of time and size.
pub(crate) async fn fetch_bounded<F: Fetch>(
    fetch: &F,
    apiservice: &str,
    path: &str,
    accept: &str,
    if_none_match: Option<&str>,
) -> Result<FetchedResponse, FetchError> {
    fetch_within(FetchLimits { time: TIMEOUT, size: MAX_BODY }, fetch, apiservice, path, accept, if_none_match).await
}

/// As [`fetch_bounded`], with other limits: an OpenAPI document is larger, and takes longer.
pub(crate) async fn fetch_within<F: Fetch>(
    bounds: FetchLimits,
    fetch: &F,
    apiservice: &str,
    path: &str,
    accept: &str,
    if_none_match: Option<&str>,
) -> Result<FetchedResponse, FetchError> {
    let fetching = fetch.fetch(apiservice, path, accept, if_none_match, bounds.size);
    let fetched = tokio::time::timeout(bounds.time, fetching)
        .await
        .map_err(|_| FetchError::new(format!("no answer to GET {path} within {} s", bounds.time.as_secs())))??;
    if fetched.body.len() > bounds.size {
        return Err(FetchError::new(format!("the answer to GET {path} is larger than {} MiB", bounds.size >> 20)));
    }
    Ok(fetched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fetch_error_text_is_short_and_printable() {
        let body = format!("\"\\u001b[2J{}\"", "A".repeat(1 << 20));
        let error = FetchError::unreadable(&serde_json::from_str::<u8>(&body).unwrap_err());
        assert!(error.text.len() < 300 && !error.text.contains('\u{1b}'), "{error}");
        assert!(error.text.starts_with("the answer cannot be read at line 1 column "), "{error}");
    }
}
