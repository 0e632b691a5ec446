//! The last requests that were refused or failed, for the operator to look at.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::SystemTime;

use parking_lot::Mutex;

/// Requests that are kept.
const MOST: usize = 50;
/// Bytes of a name that are kept, of a path, and of a cause.
const NAME: usize = 128;
const PATH: usize = 256;
const CAUSE: usize = 400;

/// A request that was refused or failed. Its query is left out: it may hold secrets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequest {
    /// When it ended; of several that are alike, the last.
    pub time: SystemTime,
    /// Whose connection it came by.
    pub client: IpAddr,
    /// Name of the user; empty if nobody was authenticated.
    pub user: String,
    /// Name of the impersonated user; empty if there is none.
    pub impersonated: String,
    /// The verb of the metrics, for example `LIST`; the method if none is known.
    pub verb: String,
    /// The path, without the query.
    pub path: String,
    /// Status code that the client got; 0 if it got none.
    pub status: u16,
    /// The reason of the Status, or how the response ended.
    pub reason: String,
    /// Why, in words for the operator.
    pub cause: String,
    /// Its audit ID.
    pub audit_id: String,
    /// How many there were that differ in nothing but time and audit ID.
    pub count: u64,
}

impl RefusedRequest {
    /// Whether they differ in nothing that matters.
    fn is_like(&self, other: &RefusedRequest) -> bool {
        (self.status, self.client) == (other.status, other.client)
            && (&self.path, &self.verb) == (&other.path, &other.verb)
            && (&self.user, &self.impersonated) == (&other.user, &other.impersonated)
            && (&self.reason, &self.cause) == (&other.reason, &other.cause)
    }

    /// Bounds every text.
    fn bound(&mut self) {
        for text in [&mut self.user, &mut self.impersonated, &mut self.verb, &mut self.reason, &mut self.audit_id] {
            cut(text, NAME);
        }
        cut(&mut self.path, PATH);
        cut(&mut self.cause, CAUSE);
    }
}

/// Cuts a text to so many bytes, at the end of a character; three dots take the place of the rest.
fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most - 3));
        text.push_str("...");
        text.shrink_to_fit();
    }
}

/// The last refusals of all workers, the oldest first. One that is like another takes its place, so that a client that
/// repeats itself pushes nothing else out.
#[derive(Default)]
pub(super) struct RefusalLog(Mutex<VecDeque<RefusedRequest>>);

impl RefusalLog {
    pub(super) fn push(&self, mut refused: RefusedRequest) {
        refused.bound();
        let mut ring = self.0.lock();
        if let Some(at) = ring.iter().position(|before| before.is_like(&refused))
            && let Some(before) = ring.remove(at)
        {
            refused.count += before.count;
        } else if ring.len() >= MOST {
            ring.pop_front();
        }
        ring.push_back(refused);
    }

    /// The newest first.
    pub(super) fn snapshot(&self) -> Vec<RefusedRequest> {
        self.0.lock().iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, audit_id: &str) -> RefusedRequest {
        RefusedRequest {
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
    fn refusals_that_are_alike_take_one_place() {
        let log = RefusalLog::default();
        for number in 0..1000 {
            log.push(refused("/a", &number.to_string()));
            log.push(refused("/b", "b"));
        }
        let seen: Vec<_> = log.snapshot().into_iter().map(|one| (one.path, one.audit_id, one.count)).collect();
        assert_eq!(seen, [("/b".to_owned(), "b".to_owned(), 1000), ("/a".to_owned(), "999".to_owned(), 1000)]);
    }

    #[test]
    fn refusals_are_bounded_in_number_and_length() {
        let log = RefusalLog::default();
        for number in 0..200 {
            log.push(RefusedRequest { cause: "ü".repeat(10_000), ..refused(&format!("/{number}"), "") });
        }
        let seen = log.snapshot();
        assert_eq!((seen.len(), seen[0].path.as_str(), seen[MOST - 1].path.as_str()), (MOST, "/199", "/150"));
        assert!(seen.iter().all(|one| one.cause.len() <= CAUSE && one.cause.ends_with("ü...")), "{}", seen[0].cause);
    }
}
