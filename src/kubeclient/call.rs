//! Results of calls, and when a call is retried (Kubernetes' rules).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

/// A complete response.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
    /// Whether the response has the header `Retry-After`.
    pub(super) has_retry_after: bool,
}

/// Error of a call without a response. The text is for the log: it contains addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No connection could be opened.
    Unreachable(String),
    /// The connection broke before the response was complete.
    Broken(String),
    /// No response within this time.
    TimedOut(Duration),
    /// The response is invalid or too large.
    InvalidResponse(String),
}

/// Timeouts and retries of a call.
///
/// The backoff is `k8s.io/apiserver/pkg/server/options.DefaultAuthWebhookRetryBackoff`: 500ms, factor 1.5, jitter 0.2,
/// five attempts. The total is limited as well: five attempts of ten seconds outlive the request they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallPolicy {
    /// Timeout of one attempt.
    pub attempt_timeout: Duration,
    /// Timeout of all attempts, including the pauses between them.
    pub total_timeout: Duration,
    /// Maximum number of attempts.
    pub max_attempts: u32,
    /// Pause before the second attempt.
    pub initial_backoff: Duration,
}

impl Default for CallPolicy {
    fn default() -> CallPolicy {
        CallPolicy {
            attempt_timeout: Duration::from_secs(10),
            total_timeout: Duration::from_secs(15),
            max_attempts: 5,
            initial_backoff: Duration::from_millis(500),
        }
    }
}

impl CallPolicy {
    /// The default policy, limited to the deadline of the request that waits for the call.
    pub fn within(limit: Duration) -> CallPolicy {
        let usual = CallPolicy::default();
        CallPolicy {
            attempt_timeout: usual.attempt_timeout.min(limit),
            total_timeout: usual.total_timeout.min(limit),
            ..usual
        }
    }

    /// The pause before attempt `number` (1 for the second), as in `wait.Backoff`.
    pub(super) fn backoff_before(&self, number: u32) -> Duration {
        let grown =
            self.initial_backoff.mul_f64(1.5_f64.powi(i32::try_from(number.saturating_sub(1)).unwrap_or(i32::MAX)));
        grown.mul_f64(1.0 + 0.2 * fastrand::f64())
    }
}

/// The fields of a `metav1.Status` that determine a retry.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RetryStatus {
    kind: String,
    message: String,
    reason: String,
    details: Option<RetryDetails>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct RetryDetails {
    retry_after_seconds: i64,
}

impl ApiResponse {
    /// Whether the status is 2xx.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether to retry (`DefaultShouldRetry` of `k8s.io/apiserver/pkg/util/webhook`): 429, 500, 504, and responses
    /// with a retry delay. Never 401, 403 or 404.
    pub(super) fn is_retryable(&self) -> bool {
        if self.is_success() {
            return false;
        }
        let status = self.parsed_status();
        let delays = status.details.is_some_and(|details| details.retry_after_seconds > 0)
            && matches!(&*status.reason, "ServerTimeout" | "TooManyRequests" | "ServiceUnavailable" | "Timeout");
        matches!(self.status, 429 | 500 | 504)
            || self.has_retry_after
            || delays
            || matches!(&*status.reason, "InternalError" | "Timeout" | "TooManyRequests" | "ServerTimeout")
    }

    /// Describes the response for the log.
    pub fn describe(&self) -> String {
        self.describe_as("the API server")
    }

    /// Describes the response of a server other than an API server, for the log.
    pub fn describe_as(&self, server: &str) -> String {
        let status = self.parsed_status();
        let mut text = format!("{server} answered {}", self.status);
        if !status.message.is_empty() {
            text.push_str(": ");
            text.extend(status.message.chars().filter(|letter| !letter.is_control()).take(300));
        }
        text
    }

    fn parsed_status(&self) -> RetryStatus {
        let status: RetryStatus = serde_json::from_slice(&self.body).unwrap_or_default();
        if status.kind == "Status" { status } else { RetryStatus::default() }
    }
}

impl CallError {
    /// Whether to retry. Only a lost connection: one that cannot be opened would fail again, and a timeout has used up
    /// its time.
    pub(super) fn is_retryable(&self) -> bool {
        matches!(self, CallError::Broken(_))
    }
}

impl CallError {
    /// Describes the error with the name of the server, for the log.
    pub fn describe_as(&self, server: &str) -> String {
        match self {
            CallError::Unreachable(why) => format!("{server} cannot be reached: {why}"),
            CallError::Broken(why) => format!("the connection to {server} broke: {why}"),
            CallError::TimedOut(after) => format!("{server} did not answer within {after:?}"),
            CallError::InvalidResponse(why) => format!("the response of {server} is invalid: {why}"),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe_as("the API server"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str, asks_for_another: bool) -> ApiResponse {
        ApiResponse { status, body: Bytes::from(body.to_owned()), has_retry_after: asks_for_another }
    }

    #[test]
    fn call_retried_by_status_and_reason() {
        let status = |reason: &str, seconds: u32| {
            format!(
                r#"{{"kind":"Status","message":"no","reason":"{reason}","details":{{"retryAfterSeconds":{seconds}}}}}"#
            )
        };
        for (code, body, header, again) in [
            (201, String::new(), false, false),
            (429, String::new(), false, true),
            (500, String::new(), false, true),
            (503, String::new(), false, false),
            (503, String::new(), true, true),
            (503, status("ServiceUnavailable", 1), false, true),
            (504, String::new(), false, true),
            (500, status("ServerTimeout", 0), false, true),
            (401, status("Unauthorized", 0), false, false),
            (403, status("Forbidden", 0), false, false),
            (404, "404 page not found".to_owned(), false, false),
            (422, status("Invalid", 0), false, false),
        ] {
            assert_eq!(answer(code, &body, header).is_retryable(), again, "{code} {body}");
        }
        assert_eq!(answer(403, &status("Forbidden", 0), false).describe(), "the API server answered 403: no");
        assert_eq!(answer(502, "<html>", false).describe(), "the API server answered 502");
    }

    #[test]
    fn call_backoff_grows_by_half_with_jitter() {
        let patience = CallPolicy::default();
        for (number, least) in [(1, 500.0), (2, 750.0), (3, 1125.0), (4, 1687.5)] {
            let pause = patience.backoff_before(number).as_secs_f64() * 1000.0;
            assert!((least..=least * 1.2 + 0.001).contains(&pause), "{number}: {pause}");
        }
    }
}
