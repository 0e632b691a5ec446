//! State machine of a reflector: which list or watch request comes next. No I/O, no clock.
//!
//! As client-go's reflector (`tools/cache/reflector.go`): list in pages, watch from the list's version, resume from the
//! version of the last event or bookmark, and list again only when that version has expired.

use std::time::Duration;

/// Objects per page of a list.
const PAGE: u32 = 500;
/// `timeoutSeconds` of a watch, chosen at random: the server adds no jitter, and watches must not all end at once.
const WATCH_SECONDS: std::ops::Range<u32> = 300..600;
/// Backoff after a failure, first and longest, without jitter.
const PAUSE: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// A watch that ends sooner counts as failed, even if it ended normally.
const TOO_SHORT: Duration = Duration::from_secs(1);

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
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
pub(super) struct Course {
    place: Place,
    /// Pause before the next request.
    pause: Option<Duration>,
    /// Backoff after the next failure.
    patience: Duration,
    /// Whether to list without pages, because a `continue` token had expired.
    whole: bool,
    /// Whether this list was caused by an expired version of a watch.
    expired: bool,
}

enum Place {
    List { next: String },
    Watch { version: String },
}

impl Course {
    /// The initial state.
    pub(super) fn new() -> Course {
        let place = Place::List { next: String::new() };
        Course { place, pause: None, patience: PAUSE.0, whole: false, expired: false }
    }

    /// The next step. A pause is returned once.
    pub(super) fn step(&mut self) -> Step {
        if let Some(pause) = self.pause.take() {
            return Step::Pause(pause);
        }
        match &self.place {
            Place::List { next } => Step::List { limit: (!self.whole).then_some(PAGE), next: next.clone() },
            Place::Watch { version } => Step::Watch { version: version.clone(), seconds: WATCH_SECONDS },
        }
    }

    /// Whether the next page is the first of a list.
    pub(super) fn begins_list(&self) -> bool {
        matches!(&self.place, Place::List { next } if next.is_empty())
    }

    /// A page of a list was received. True if it was the last one.
    pub(super) fn page(&mut self, version: String, next: String) -> bool {
        let last = next.is_empty();
        if last {
            self.place = Place::Watch { version };
            self.whole = false;
            // The backoff is not reset after an expired version: a server that expires the version of its own list
            // would be listed in a loop without a pause.
            if !self.expired {
                self.patience = PAUSE.0;
            }
        } else {
            self.place = Place::List { next };
        }
        last
    }

    /// The `continue` token has expired: list without pages.
    pub(super) fn page_expired(&mut self) {
        self.whole = true;
        self.place = Place::List { next: String::new() };
    }

    /// An event or bookmark with this version was received.
    pub(super) fn moved(&mut self, to: String) {
        self.patience = PAUSE.0;
        self.expired = false;
        if let Place::Watch { version } = &mut self.place {
            *version = to;
        }
    }

    /// A watch ended normally after `lasted`.
    pub(super) fn watch_ended(&mut self, lasted: Duration) {
        if lasted < TOO_SHORT {
            self.failed(None);
        } else {
            self.patience = PAUSE.0;
            self.expired = false;
        }
    }

    /// The version of the watch has expired: list again, at once the first time, else after a pause.
    pub(super) fn expired(&mut self) {
        if self.expired {
            self.failed(None);
        }
        self.expired = true;
        self.place = Place::List { next: String::new() };
    }

    /// A request failed. A list starts again; a watch resumes from its version.
    pub(super) fn failed(&mut self, retry_after: Option<Duration>) {
        if let Place::List { next } = &mut self.place {
            next.clear();
        }
        self.pause = Some(self.patience.max(retry_after.unwrap_or_default().min(PAUSE.1)));
        self.patience = (self.patience * 2).min(PAUSE.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first() -> Step {
        Step::List { limit: Some(500), next: String::new() }
    }

    fn watch(version: &str) -> Step {
        Step::Watch { version: version.to_owned(), seconds: WATCH_SECONDS }
    }

    fn page(course: &mut Course, version: &str, next: &str) -> bool {
        course.page(version.to_owned(), next.to_owned())
    }

    #[test]
    fn a_list_in_pages_and_a_watch_from_its_version() {
        let mut course = Course::new();
        assert_eq!((course.begins_list(), course.step()), (true, first()));
        assert!(!page(&mut course, "7", "more"));
        assert!(!course.begins_list());
        assert_eq!(course.step(), Step::List { limit: Some(500), next: "more".to_owned() });
        assert!(page(&mut course, "7", ""));
        assert_eq!(course.step(), watch("7"));
    }

    #[test]
    fn a_watch_goes_on_where_it_stood_however_it_ended() {
        let mut course = Course::new();
        page(&mut course, "7", "");
        course.moved("9".to_owned());
        course.watch_ended(Duration::from_secs(300));
        assert_eq!(course.step(), watch("9"));
        course.failed(None);
        assert_eq!(course.step(), Step::Pause(PAUSE.0));
        assert_eq!(course.step(), watch("9"));
        course.watch_ended(Duration::from_millis(1));
        assert_eq!(course.step(), Step::Pause(PAUSE.0 * 2), "an end at once is a failure");
        assert_eq!(course.step(), watch("9"));
    }

    #[test]
    fn pauses_grow_until_something_goes_well() {
        let mut course = Course::new();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            course.failed(None);
            match course.step() {
                Step::Pause(pause) => pauses.push(pause.as_millis()),
                other => panic!("{other:?}"),
            }
            assert_eq!(course.step(), first());
        }
        assert_eq!(pauses, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        page(&mut course, "1", "");
        course.failed(None);
        assert_eq!(course.step(), Step::Pause(PAUSE.0));
        // A longer delay of the server is used, up to the longest backoff.
        course.failed(Some(Duration::from_secs(5)));
        assert_eq!(course.step(), Step::Pause(Duration::from_secs(5)));
        course.failed(Some(Duration::from_secs(3600)));
        assert_eq!(course.step(), Step::Pause(PAUSE.1));
    }

    #[test]
    fn a_list_that_breaks_off_begins_anew() {
        let mut course = Course::new();
        page(&mut course, "7", "more");
        course.failed(None);
        assert!(matches!(course.step(), Step::Pause(_)));
        assert_eq!((course.begins_list(), course.step()), (true, first()));
    }

    #[test]
    fn a_page_that_is_not_to_be_had_any_more_makes_one_whole_list() {
        let mut course = Course::new();
        page(&mut course, "7", "more");
        course.page_expired();
        assert_eq!(course.step(), Step::List { limit: None, next: String::new() });
        page(&mut course, "8", "");
        assert_eq!(course.step(), watch("8"));
        course.expired();
        assert_eq!(course.step(), first(), "the next list is in pages again");
    }

    #[test]
    fn too_old_a_version_is_listed_anew_at_once_but_not_in_a_circle() {
        let mut course = Course::new();
        page(&mut course, "7", "");
        course.expired();
        assert_eq!(course.step(), first());
        page(&mut course, "8", "");
        assert_eq!(course.step(), watch("8"));
        course.expired();
        assert_eq!(course.step(), Step::Pause(PAUSE.0));
        assert_eq!(course.step(), first());
        page(&mut course, "9", "");
        course.moved("10".to_owned());
        course.expired();
        assert_eq!(course.step(), first(), "a watch in between went well");
    }
}
