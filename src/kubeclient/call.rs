//! What comes of a call, and when to try again: upstream's rule.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// The body.
    pub body: Bytes,
    /// Whether it asks to be asked again (`Retry-After`).
    pub(super) asks_for_another: bool,
}

/// Why there is no answer. The text is for the log: it names addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallError {
    /// No connection could be opened.
    Unreachable(String),
    /// The connection broke before the answer was there.
    Broken(String),
    /// No answer in time.
    TimedOut(Duration),
    /// What came is no answer, or more of it than we read.
    Nonsense(String),
}

/// How long and how often to try (`k8s.io/apiserver/pkg/server/options.DefaultAuthWebhookRetryBackoff`: half a
/// second, half as much again each time, a fifth of chance, five tries). The whole is bounded as well: upstream's
/// five tries of ten seconds outlive the request they are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// For one attempt.
    pub attempt: Duration,
    /// For all of them, with the pauses between.
    pub whole: Duration,
    /// How often in all.
    pub attempts: u32,
    /// Before the second attempt.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            attempt: Duration::from_secs(10),
            whole: Duration::from_secs(15),
            attempts: 5,
            pause: Duration::from_millis(500),
        }
    }
}

impl Patience {
    /// As usual, but never longer than the request is served that waits for it.
    pub fn within(limit: Duration) -> Patience {
        let usual = Patience::default();
        Patience { attempt: usual.attempt.min(limit), whole: usual.whole.min(limit), ..usual }
    }

    /// The pause before attempt `number` (the second is 1), as `wait.Backoff` has it.
    pub(super) fn pause_before(&self, number: u32) -> Duration {
        let grown = self.pause.mul_f64(1.5_f64.powi(i32::try_from(number.saturating_sub(1)).unwrap_or(i32::MAX)));
        grown.mul_f64(1.0 + 0.2 * fastrand::f64())
    }
}

/// What of a `metav1.Status` says whether to try again.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Said {
    kind: String,
    message: String,
    reason: String,
    details: Option<Details>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct Details {
    retry_after_seconds: i64,
}

impl Answer {
    /// Whether it is what was asked for.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// `DefaultShouldRetry` of `k8s.io/apiserver/pkg/util/webhook`: 429, 500, 504, and whatever asks for another
    /// try. Never 401, 403 or 404.
    pub(super) fn is_worth_another(&self) -> bool {
        if self.is_success() {
            return false;
        }
        let said = self.said();
        let delays = said.details.is_some_and(|details| details.retry_after_seconds > 0)
            && matches!(&*said.reason, "ServerTimeout" | "TooManyRequests" | "ServiceUnavailable" | "Timeout");
        matches!(self.status, 429 | 500 | 504)
            || self.asks_for_another
            || delays
            || matches!(&*said.reason, "InternalError" | "Timeout" | "TooManyRequests" | "ServerTimeout")
    }

    /// What it says of itself, for the log.
    pub fn describe(&self) -> String {
        self.describe_of("the API server")
    }

    /// The same of somebody who is no API server.
    pub fn describe_of(&self, who: &str) -> String {
        let said = self.said();
        let mut text = format!("{who} answered {}", self.status);
        if !said.message.is_empty() {
            text.push_str(": ");
            text.extend(said.message.chars().filter(|letter| !letter.is_control()).take(300));
        }
        text
    }

    fn said(&self) -> Said {
        let said: Said = serde_json::from_slice(&self.body).unwrap_or_default();
        if said.kind == "Status" { said } else { Said::default() }
    }
}

impl CallError {
    /// A connection that was lost may be well again; one that cannot be opened would be refused again, and what
    /// took too long has had its time.
    pub(super) fn is_worth_another(&self) -> bool {
        matches!(self, CallError::Broken(_))
    }
}

impl CallError {
    /// What is wrong with somebody who may be no API server, for the log.
    pub fn describe_of(&self, who: &str) -> String {
        match self {
            CallError::Unreachable(why) => format!("{who} cannot be reached: {why}"),
            CallError::Broken(why) => format!("the connection to {who} broke: {why}"),
            CallError::TimedOut(after) => format!("{who} did not answer within {after:?}"),
            CallError::Nonsense(why) => format!("the answer of {who} cannot be read: {why}"),
        }
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe_of("the API server"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: u16, body: &str, asks_for_another: bool) -> Answer {
        Answer { status, body: Bytes::from(body.to_owned()), asks_for_another }
    }

    #[test]
    fn what_is_tried_again() {
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
            assert_eq!(answer(code, &body, header).is_worth_another(), again, "{code} {body}");
        }
        assert_eq!(answer(403, &status("Forbidden", 0), false).describe(), "the API server answered 403: no");
        assert_eq!(answer(502, "<html>", false).describe(), "the API server answered 502");
    }

    #[test]
    fn pauses_grow_by_half_with_a_fifth_of_chance() {
        let patience = Patience::default();
        for (number, least) in [(1, 500.0), (2, 750.0), (3, 1125.0), (4, 1687.5)] {
            let pause = patience.pause_before(number).as_secs_f64() * 1000.0;
            assert!((least..=least * 1.2 + 0.001).contains(&pause), "{number}: {pause}");
        }
    }
}
