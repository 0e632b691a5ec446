//! State machine of a reflector: which list or watch request comes next. No I/O, no clock.
//!
//! As client-go's reflector (`tools/cache/reflector.go`): list in pages, watch from the list's version, resume from the
//! version of the last event or bookmark, and list again only when that version has expired.

use std::time::Duration;

/// Objects per page of a list.
const PAGE_SIZE: u32 = 500;
/// `timeoutSeconds` of a watch, chosen at random: the server adds no jitter, and watches must not all end at once.
const WATCH_TIMEOUT_SECONDS: std::ops::Range<u32> = 300..600;
/// Backoff after a failure, first and longest, without jitter.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// A watch that ends sooner counts as failed, even if it ended normally.
const MIN_WATCH_DURATION: Duration = Duration::from_secs(1);

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReflectorStep {
    /// Wait for this long, without jitter.
    Pause(Duration),
    /// Request the first or next page of a list.
    List {
        /// Maximum number of objects; `None` for an unpaged list.
        limit: Option<u32>,
        /// `continue` token of the page before; empty for the first page.
        next: String,
    },
    /// Watch from a resource version.
    Watch {
        /// The resource version.
        version: String,
        /// `timeoutSeconds` of the watch.
        seconds: std::ops::Range<u32>,
    },
}

/// State of a reflector.
pub(super) struct ReflectorState {
    position: ReflectorPosition,
    /// Pause before the next request.
    pause: Option<Duration>,
    /// Backoff after the next failure.
    backoff: Duration,
    /// Whether to list without pages, because a `continue` token had expired.
    unpaged: bool,
    /// Whether this list was caused by an expired version of a watch.
    relist_after_expiry: bool,
}

enum ReflectorPosition {
    List { next: String },
    Watch { version: String },
}

impl ReflectorState {
    /// The initial state.
    pub(super) fn new() -> ReflectorState {
        let position = ReflectorPosition::List { next: String::new() };
        ReflectorState { position, pause: None, backoff: BACKOFF.0, unpaged: false, relist_after_expiry: false }
    }

    /// The next step. A pause is returned once.
    pub(super) fn next_step(&mut self) -> ReflectorStep {
        if let Some(pause) = self.pause.take() {
            return ReflectorStep::Pause(pause);
        }
        match &self.position {
            ReflectorPosition::List { next } => {
                ReflectorStep::List { limit: (!self.unpaged).then_some(PAGE_SIZE), next: next.clone() }
            }
            ReflectorPosition::Watch { version } => {
                ReflectorStep::Watch { version: version.clone(), seconds: WATCH_TIMEOUT_SECONDS }
            }
        }
    }

    /// Whether the next page is the first of a list.
    pub(super) fn is_list_start(&self) -> bool {
        matches!(&self.position, ReflectorPosition::List { next } if next.is_empty())
    }

    /// A page of a list was received. True if it was the last one.
    pub(super) fn on_page(&mut self, version: String, next: String) -> bool {
        let last = next.is_empty();
        if last {
            self.position = ReflectorPosition::Watch { version };
            self.unpaged = false;
            // The backoff is not reset after an expired version: a server that expires the version of its own list
            // would be listed in a loop without a pause.
            if !self.relist_after_expiry {
                self.backoff = BACKOFF.0;
            }
        } else {
            self.position = ReflectorPosition::List { next };
        }
        last
    }

    /// The `continue` token has expired: list without pages.
    pub(super) fn on_page_expired(&mut self) {
        self.unpaged = true;
        self.position = ReflectorPosition::List { next: String::new() };
    }

    /// An event or bookmark with this version was received.
    pub(super) fn on_version(&mut self, to: String) {
        self.backoff = BACKOFF.0;
        self.relist_after_expiry = false;
        if let ReflectorPosition::Watch { version } = &mut self.position {
            *version = to;
        }
    }

    /// A watch ended normally after `lasted`.
    pub(super) fn on_watch_end(&mut self, lasted: Duration) {
        if lasted < MIN_WATCH_DURATION {
            self.on_failure(None);
        } else {
            self.backoff = BACKOFF.0;
            self.relist_after_expiry = false;
        }
    }

    /// The version of the watch has expired: list again, at once the first time, else after a pause.
    pub(super) fn on_expired(&mut self) {
        if self.relist_after_expiry {
            self.on_failure(None);
        }
        self.relist_after_expiry = true;
        self.position = ReflectorPosition::List { next: String::new() };
    }

    /// A request failed. A list starts again; a watch resumes from its version.
    pub(super) fn on_failure(&mut self, retry_after: Option<Duration>) {
        if let ReflectorPosition::List { next } = &mut self.position {
            next.clear();
        }
        self.pause = Some(self.backoff.max(retry_after.unwrap_or_default().min(BACKOFF.1)));
        self.backoff = (self.backoff * 2).min(BACKOFF.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> ReflectorStep {
        ReflectorStep::List { limit: Some(500), next: String::new() }
    }

    fn watch(version: &str) -> ReflectorStep {
        ReflectorStep::Watch { version: version.to_owned(), seconds: WATCH_TIMEOUT_SECONDS }
    }

    fn page(course: &mut ReflectorState, version: &str, next: &str) -> bool {
        course.on_page(version.to_owned(), next.to_owned())
    }

    #[test]
    fn reflector_lists_pages_then_watches_from_list_version() {
        let mut course = ReflectorState::new();
        assert_eq!((course.is_list_start(), course.next_step()), (true, first()));
        assert!(!page(&mut course, "7", "more"));
        assert!(!course.is_list_start());
        assert_eq!(course.next_step(), ReflectorStep::List { limit: Some(500), next: "more".to_owned() });
        assert!(page(&mut course, "7", ""));
        assert_eq!(course.next_step(), watch("7"));
    }

    #[test]
    fn reflector_resumes_watch_from_last_version() {
        let mut course = ReflectorState::new();
        page(&mut course, "7", "");
        course.on_version("9".to_owned());
        course.on_watch_end(Duration::from_secs(300));
        assert_eq!(course.next_step(), watch("9"));
        course.on_failure(None);
        assert_eq!(course.next_step(), ReflectorStep::Pause(BACKOFF.0));
        assert_eq!(course.next_step(), watch("9"));
        course.on_watch_end(Duration::from_millis(1));
        assert_eq!(course.next_step(), ReflectorStep::Pause(BACKOFF.0 * 2), "an end at once is a failure");
        assert_eq!(course.next_step(), watch("9"));
    }

    #[test]
    fn reflector_backoff_grows_until_success() {
        let mut course = ReflectorState::new();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            course.on_failure(None);
            match course.next_step() {
                ReflectorStep::Pause(pause) => pauses.push(pause.as_millis()),
                other => panic!("{other:?}"),
            }
            assert_eq!(course.next_step(), first());
        }
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        page(&mut course, "1", "");
        course.on_failure(None);
        assert_eq!(course.next_step(), ReflectorStep::Pause(BACKOFF.0));
        // A longer delay of the server is used, up to the longest backoff.
        course.on_failure(Some(Duration::from_secs(5)));
        assert_eq!(course.next_step(), ReflectorStep::Pause(Duration::from_secs(5)));
        course.on_failure(Some(Duration::from_secs(3600)));
        assert_eq!(course.next_step(), ReflectorStep::Pause(BACKOFF.1));
    }

    #[test]
    fn reflector_restarts_failed_list() {
        let mut course = ReflectorState::new();
        page(&mut course, "7", "more");
        course.on_failure(None);
        assert!(matches!(course.next_step(), ReflectorStep::Pause(_)));
        assert_eq!((course.is_list_start(), course.next_step()), (true, first()));
    }

    #[test]
    fn reflector_expired_page_lists_without_limit() {
        let mut course = ReflectorState::new();
        page(&mut course, "7", "more");
        course.on_page_expired();
        assert_eq!(course.next_step(), ReflectorStep::List { limit: None, next: String::new() });
        page(&mut course, "8", "");
        assert_eq!(course.next_step(), watch("8"));
        course.on_expired();
        assert_eq!(course.next_step(), first(), "the next list is in pages again");
    }

    #[test]
    fn reflector_expired_version_relists_at_once_then_backs_off() {
        let mut course = ReflectorState::new();
        page(&mut course, "7", "");
        course.on_expired();
        assert_eq!(course.next_step(), first());
        page(&mut course, "8", "");
        assert_eq!(course.next_step(), watch("8"));
        course.on_expired();
        assert_eq!(course.next_step(), ReflectorStep::Pause(BACKOFF.0));
        assert_eq!(course.next_step(), first());
        page(&mut course, "9", "");
        course.on_version("10".to_owned());
        course.on_expired();
        assert_eq!(course.next_step(), first(), "a watch in between went well");
    }
}
