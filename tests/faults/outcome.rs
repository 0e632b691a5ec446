//! What became of one request, and the counts of many.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::client::ClientResponse;

/// What became of one request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Exactly the response that the backend gives to this request of this user.
    Answered,
    /// No such response, and the client knows it; the cause is what a fault excuses.
    Failed(String),
    /// A response that the client would take for the right one, or that tells it no reason.
    Wrong(String),
}

/// The expected response, or a `Status` with a reason, or what breaks the contract.
pub(crate) fn judge_response(response: &ClientResponse, expected: &str) -> Outcome {
    let code = response.status.as_u16();
    if response.status.is_success() {
        return match (response.is_complete, response.text()) {
            (false, text) if expected.starts_with(&text) => Outcome::Failed("response broken off".to_owned()),
            (true, text) if text == expected => Outcome::Answered,
            (complete, text) => {
                let excerpt = |text: &str| text.chars().take(200).collect::<String>();
                Outcome::Wrong(format!("{code}, complete {complete}: {} for {}", excerpt(&text), excerpt(expected)))
            }
        };
    }
    if !response.is_complete {
        return Outcome::Failed("refusal broken off".to_owned());
    }
    let status: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
    let is_status = status["kind"] == "Status" && status["code"] == code && status["reason"].is_string();
    if !is_status || !response.headers.contains_key("audit-id") {
        return Outcome::Wrong(format!("{code} without a Status: {}", response.text()));
    }
    let cause = status["details"]["causes"][0]["reason"].as_str().or(status["reason"].as_str()).unwrap_or_default();
    Outcome::Failed(format!("{code} {cause}"))
}

/// Counts of outcomes.
#[derive(Clone, Default)]
pub(crate) struct OutcomeCounts {
    pub(crate) sent: usize,
    pub(crate) answered: usize,
    /// By cause.
    pub(crate) failed: BTreeMap<String, usize>,
    pub(crate) wrong: Vec<String>,
    pub(crate) longest: Duration,
}

impl OutcomeCounts {
    pub(crate) fn add(&mut self, outcome: Outcome, elapsed: Duration) {
        self.sent += 1;
        self.longest = self.longest.max(elapsed);
        match outcome {
            Outcome::Answered => self.answered += 1,
            Outcome::Failed(cause) => *self.failed.entry(cause).or_default() += 1,
            Outcome::Wrong(what) => self.wrong.push(what),
        }
    }

    pub(crate) fn failed_total(&self) -> usize {
        self.failed.values().sum()
    }
}
