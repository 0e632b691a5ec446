//! The last refused and failed requests, for the status page.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::SystemTime;

use parking_lot::Mutex;

/// Maximum number of entries.
const MAX_REFUSALS: usize = 50;
/// Maximum length of a user name, verb, reason or audit ID, in bytes.
const MAX_NAME: usize = 128;
/// Maximum length of a path, in bytes.
const MAX_PATH: usize = 256;
/// Maximum length of a cause, in bytes.
const MAX_CAUSE: usize = 400;

/// A request that was refused or failed. The query is omitted because it may contain secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// When the request ended; of several equal ones, the last.
    pub time: SystemTime,
    /// Peer address of the connection.
    pub client: IpAddr,
    /// Name of the user; empty if the request was not authenticated.
    pub user: String,
    /// Name of the impersonated user; empty if there is none.
    pub impersonated: String,
    /// Verb as in metrics, for example `LIST`; the method if the request was not parsed.
    pub verb: String,
    /// The control plane; empty for the gateway's own requests.
    pub control_plane: String,
    /// Path without the query, and without the path prefix of the control plane.
    pub path: String,
    /// Status code sent to the client; 0 if none was sent.
    pub status: u16,
    /// Reason of the Status, or how the response ended.
    pub reason: String,
    /// Cause, for the operator.
    pub cause: String,
    /// Audit ID.
    pub audit_id: String,
    /// Number of requests that differ only in time and audit ID.
    pub count: u64,
}

impl RefusedRequest {
    /// Whether both differ only in time, audit ID and count.
    fn is_same_as(&self, other: &RefusedRequest) -> bool {
        (self.status, self.client) == (other.status, other.client)
            && (&self.control_plane, &self.path, &self.verb) == (&other.control_plane, &other.path, &other.verb)
            && (&self.user, &self.impersonated) == (&other.user, &other.impersonated)
            && (&self.reason, &self.cause) == (&other.reason, &other.cause)
    }

    /// Truncates every text to its maximum length.
    fn truncate_texts(&mut self) {
        for text in [&mut self.user, &mut self.impersonated, &mut self.verb, &mut self.reason, &mut self.audit_id] {
            truncate_text(text, MAX_NAME);
        }
        truncate_text(&mut self.path, MAX_PATH);
        truncate_text(&mut self.cause, MAX_CAUSE);
    }
}

/// Truncates a text to `limit` bytes at a character boundary, ending in three dots.
fn truncate_text(text: &mut String, limit: usize) {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit - 3));
        text.push_str("...");
        text.shrink_to_fit();
    }
}

/// The last refusals of all workers, oldest first. A refusal equal to a previous one replaces it, so that a client
/// that repeats a request does not displace other entries.
#[derive(Default)]
pub(super) struct RefusalLog(Mutex<VecDeque<RefusedRequest>>);

impl RefusalLog {
    pub(super) fn push(&self, mut refused: RefusedRequest) {
        refused.truncate_texts();
        let mut ring = self.0.lock();
        if let Some(at) = ring.iter().position(|before| before.is_same_as(&refused))
            && let Some(before) = ring.remove(at)
        {
            refused.count += before.count;
        } else if ring.len() >= MAX_REFUSALS {
            ring.pop_front();
        }
        ring.push_back(refused);
    }

    /// All entries, newest first.
    pub(super) fn snapshot(&self) -> Vec<RefusedRequest> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, audit_id: &str) -> RefusedRequest {
        RefusedRequest {
            control_plane: String::new(),
            time: SystemTime::UNIX_EPOCH,
            client: [192, 0, 2, 1].into(),
            user: "jane".to_owned(),
            impersonated: String::new(),
            verb: "LIST".to_owned(),
            path: path.to_owned(),
            status: 403,
            reason: "Forbidden".to_owned(),
            cause: "no".to_owned(),
            audit_id: audit_id.to_owned(),
            count: 1,
        }
    }

    #[test]
    fn refusal_log_merges_equal_refusals() {
        let log = RefusalLog::default();
        for number in 0..1000 {
            log.push(refused("/a", &number.to_string()));
            log.push(refused("/b", "b"));
        }
        let seen: Vec<_> = log.snapshot().into_iter().map(|one| (one.path, one.audit_id, one.count)).collect();
        assert_eq!(seen, [("/b".to_owned(), "b".to_owned(), 1000), ("/a".to_owned(), "999".to_owned(), 1000)]);
    }

    #[test]
    fn refusal_log_is_bounded_in_number_and_length() {
        let log = RefusalLog::default();
        for number in 0..200 {
            log.push(RefusedRequest { cause: "ü".repeat(10_000), ..refused(&format!("/{number}"), "") });
        }
        let seen = log.snapshot();
        assert_eq!(
            (seen.len(), seen[0].path.as_str(), seen[MAX_REFUSALS - 1].path.as_str()),
            (MAX_REFUSALS, "/199", "/150")
        );
        assert!(
            seen.iter().all(|one| one.cause.len() <= MAX_CAUSE && one.cause.ends_with("ü...")),
            "{}",
            seen[0].cause
        );
    }
}
