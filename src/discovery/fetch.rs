//! What we need from outside: one GET to the backend of one APIService.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::process::Reservation;

/// How long one fetch may take in all (kube-aggregator `discoverymanager` has the same bound).
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// The largest body we take from a backend. The biggest real one, a custom-metrics adapter with thousands of
/// metrics, stays below 2 MiB.
pub const MAX_BODY: usize = 4 << 20;

/// What one fetch may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    pub(crate) time: Duration,
    /// Bytes of the body.
    pub(crate) size: usize,
}

/// An answer of a backend.
#[derive(Clone, Debug, Default)]
pub struct Fetched {
    /// HTTP status code.
    pub status: u16,
    /// The `Content-Type` header; empty when there was none.
    pub content_type: String,
    /// The `ETag` header.
    pub etag: Option<String>,
    /// The whole body.
    pub body: Bytes,
    /// What the body takes of the room for all documents that are being read, until it is dropped.
    pub reservation: Option<Arc<Reservation>>,
}

/// Why a backend could not be asked, or what it said could not be believed; for the log and the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchError {
    /// What is wrong.
    pub text: String,
    /// Whether the availability probe fails for the same reason, so that the condition of an APIService tells it.
    pub seen_by_probe: bool,
}

impl FetchError {
    /// The backend answered, but not as it should.
    pub fn new(text: impl Into<String>) -> FetchError {
        FetchError { text: text.into(), seen_by_probe: false }
    }

    /// The availability probe fails for the same reason: there is no backend to ask, no connection to it could be opened,
    /// or it has no good response at [`discovery_path`](crate::registry::ApiService::discovery_path).
    pub fn seen_by_probe(text: impl Into<String>) -> FetchError {
        FetchError { text: text.into(), seen_by_probe: true }
    }

    /// For an answer that is not what it should be. What the reader quotes of it is the backend's own choice, so it
    /// is kept short and printable.
    pub(crate) fn unreadable(error: &serde_json::Error) -> FetchError {
        let quoted = error.to_string();
        let printable = quoted.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c });
        let place = format!("line {} column {}", error.line(), error.column());
        FetchError::new(format!("the answer cannot be read at {place}: {}", printable.take(160).collect::<String>()))
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
/// Whoever implements it does not wait for the backend to be judged available, follows no redirect, decodes no
/// more than `max_bytes` and gives up after [`TIMEOUT`]; both bounds are checked here once more.
pub trait Fetch {
    /// Asks the backend of `apiservice` for `path` (which never comes from a client), for at most `max_bytes`.
    fn fetch(
        &self,
        apiservice: &str,
        path: &str,
        accept: &str,
        if_none_match: Option<&str>,
        max_bytes: usize,
    ) -> impl Future<Output = Result<Fetched, FetchError>>;
}

/// `fetch.fetch(…)` within the bounds of time and size, whatever the implementation does.
pub(crate) async fn bounded<F: Fetch>(
    fetch: &F,
    apiservice: &str,
    path: &str,
    accept: &str,
    if_none_match: Option<&str>,
) -> Result<Fetched, FetchError> {
    within(Bounds { time: TIMEOUT, size: MAX_BODY }, fetch, apiservice, path, accept, if_none_match).await
}

/// As [`bounded`], with bounds of its own: a whole OpenAPI document is larger, and takes longer.
pub(crate) async fn within<F: Fetch>(
    bounds: Bounds,
    fetch: &F,
    apiservice: &str,
    path: &str,
    accept: &str,
    if_none_match: Option<&str>,
) -> Result<Fetched, FetchError> {
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
    fn what_a_backend_sends_does_not_fill_the_log() {
        let body = format!("\"\\u001b[2J{}\"", "A".repeat(1 << 20));
        let error = FetchError::unreadable(&serde_json::from_str::<u8>(&body).unwrap_err());
        assert!(error.text.len() < 300 && !error.text.contains('\u{1b}'), "{error}");
        assert!(error.text.starts_with("the answer cannot be read at line 1 column "), "{error}");
    }
}
