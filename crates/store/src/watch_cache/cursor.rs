//! A watch: a position in the history of a collection. It has no queue, so a slow client costs no memory.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use super::change_log::{Scan, StoredChange};
use super::collection::{ResourceCollection, WatchGuard};
use super::notify::{Interest, Notifier};
use super::select::{Selection, WatchEventKind};
use super::snapshot::Snapshot;
use super::stored::Stored;
use crate::{Prefix, Revision};

/// Number of changes that are examined before other tasks of the thread run.
const CHANGES_AT_ONCE: usize = 512;

/// Longest time between two bookmarks (`cacher/cacher.go`, `bookmarkFrequency`).
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Time over which the bookmarks of watches that began together are spread.
const BOOKMARK_SPREAD: Duration = Duration::from_secs(10);

/// Time before the end of a watch at which the last bookmark is sent.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);

/// A watch to begin.
#[derive(Clone, Debug)]
pub struct WatchQuery {
    /// Namespace to which the watch is restricted, if it is.
    pub namespace: Option<String>,
    /// Labels and fields.
    pub selection: Selection,
    /// Where the watch begins.
    pub start: WatchStart,
    /// Whether bookmarks are sent (`allowWatchBookmarks`).
    pub sends_bookmarks: bool,
    /// How long the watch lasts; none is for ever.
    pub timeout: Option<Duration>,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// Begins with the objects that exist, then their changes: `resourceVersion` unset (never older than an
    /// acknowledged write) or `sendInitialEvents`, which also wants a bookmark at the end of the initial events.
    Latest {
        /// Whether a bookmark ends the initial events.
        marks_end: bool,
    },
    /// The same, from what is at hand and not older than a revision: `resourceVersion` 0, or N with
    /// `sendInitialEvents`.
    NotOlderThan {
        /// The revision; 0 is any.
        revision: Revision,
        /// Whether a bookmark ends the initial events.
        marks_end: bool,
    },
    /// With the changes after a revision.
    After(Revision),
}

/// An event of a watch.
#[derive(Clone, Debug)]
pub struct WatchEvent {
    /// The type.
    pub kind: WatchEventKind,
    /// resourceVersion of the event: of a deletion it is the deletion's.
    pub revision: Revision,
    /// The object; of a deletion as it was before. None for a bookmark.
    pub object: Option<Arc<Stored>>,
    /// The change, with its shared encodings. None for an initial event and a bookmark.
    pub change: Option<Arc<StoredChange>>,
}

/// A running watch.
pub struct WatchCursor {
    collection: ResourceCollection,
    selection: Selection,
    scope: Prefix,
    interest: Interest,
    /// Everything up to this revision was sent or does not concern the watch.
    position: Revision,
    initial: Option<InitialEvents>,
    /// The ring was examined to its end since the last signal was taken.
    is_caught_up: bool,
    sends_bookmarks: bool,
    next_bookmark: Instant,
    ends: Option<Instant>,
    has_sent_last_bookmark: bool,
    /// A bookmark is due once everything at hand was sent.
    owes_bookmark: bool,
    _counted: WatchGuard,
}

/// The objects at the start that have not been sent.
struct InitialEvents {
    snapshot: Arc<Snapshot>,
    /// First key that was not examined.
    from: String,
    marks_end: bool,
}

impl ResourceCollection {
    /// Begins a watch. Its cursor belongs to the worker thread of `notifier`.
    ///
    /// # Errors
    /// [`Error::Expired`], [`Error::TooLargeResourceVersion`], [`Error::InvalidKey`], [`Error::Store`].
    pub async fn watch(&self, query: WatchQuery, notifier: &Notifier) -> Result<WatchCursor, Error> {
        WatchCursor::open(self, query, notifier).await
    }
}

impl WatchCursor {
    pub(super) async fn open(
        collection: &ResourceCollection,
        query: WatchQuery,
        notifier: &Notifier,
    ) -> Result<WatchCursor, Error> {
        collection.ensure_loaded().await?;
        let scope = collection.scope(query.namespace.as_deref())?;
        match query.start {
            WatchStart::Latest { .. } => drop(collection.wait_for_acknowledged().await?),
            WatchStart::NotOlderThan { revision, .. } => collection.wait_for(revision).await?,
            WatchStart::After(_) => {}
        }
        // Before the collection is read: no change is missed.
        let interest = notifier.register(collection.id(), &query.selection, query.namespace.as_deref());
        let (position, initial) = match query.start {
            WatchStart::Latest { marks_end } | WatchStart::NotOlderThan { marks_end, .. } => {
                let (revision, snapshot) = collection.current();
                (revision, Some(InitialEvents { snapshot, from: scope.as_str().to_owned(), marks_end }))
            }
            WatchStart::After(revision) => {
                let oldest = collection.oldest();
                if revision < oldest {
                    return Err(Error::Expired { requested: revision, oldest });
                }
                (revision, None)
            }
        };
        let now = Instant::now();
        Ok(WatchCursor {
            collection: collection.clone(),
            selection: query.selection,
            scope,
            interest,
            position,
            initial,
            is_caught_up: false,
            sends_bookmarks: query.sends_bookmarks,
            next_bookmark: next_bookmark(now),
            ends: query.timeout.and_then(|timeout| now.checked_add(timeout)),
            // A watch that is shorter than that has no last bookmark.
            has_sent_last_bookmark: query.timeout.is_some_and(|timeout| timeout <= LAST_BOOKMARK),
            owes_bookmark: false,
            _counted: collection.watch_guard(),
        })
    }

    /// Revision up to which the watch is complete.
    pub fn position(&self) -> Revision {
        self.position
    }

    /// Waits for the next event. None is the end of the watch: its time is over, or the collection is loaded again and
    /// the client has to begin a new one.
    ///
    /// # Errors
    /// [`Error::Expired`] when the watch fell behind the history.
    pub async fn next(&mut self) -> Result<Option<WatchEvent>, Error> {
        loop {
            let now = Instant::now();
            if self.ends.is_some_and(|ends| ends <= now) {
                return Ok(None);
            }
            match self.try_next()? {
                Ready::Event(event) => return Ok(Some(event)),
                Ready::More => tokio::task::yield_now().await,
                Ready::Nothing if !self.collection.is_loaded() => return Ok(None),
                Ready::Nothing => {
                    let timer = self.timer();
                    if self.owes_bookmark {
                        self.owes_bookmark = false;
                        return Ok(Some(self.bookmark(WatchEventKind::Bookmark)));
                    }
                    if timer <= now {
                        self.on_timer(now);
                        continue;
                    }
                    let _ = tokio::time::timeout_at(timer, self.interest.signaled()).await;
                }
            }
        }
    }

    /// The next event that is at hand.
    ///
    /// # Errors
    /// [`Error::Expired`] when the watch fell behind the history.
    pub fn next_at_hand(&mut self) -> Result<Option<WatchEvent>, Error> {
        loop {
            match self.try_next()? {
                Ready::Event(event) => return Ok(Some(event)),
                Ready::More => {}
                Ready::Nothing => return Ok(None),
            }
        }
    }

    /// The next of the initial events, if it is found among the next objects.
    pub fn next_initial_at_hand(&mut self) -> Option<WatchEvent> {
        self.initial.as_ref()?;
        match self.next_initial() {
            Ready::Event(event) => Some(event),
            Ready::More | Ready::Nothing => None,
        }
    }

    fn try_next(&mut self) -> Result<Ready, Error> {
        if self.initial.is_some() {
            return Ok(self.next_initial());
        }
        if let Some(first) = self.interest.take() {
            if self.is_caught_up {
                // What lies between concerned others only.
                self.position = self.position.max(first.saturating_sub(1));
            }
            self.is_caught_up = false;
        }
        if self.is_caught_up {
            return Ok(Ready::Nothing);
        }
        // Before the ring: it has all changes up to a progress that was read before it.
        let progress = self.collection.progress();
        let (selection, scope) = (&self.selection, &self.scope);
        let scan = self.collection.ring().read().scan(self.position, CHANGES_AT_ONCE, |change| {
            let kind = if scope.contains(change.key()) { selection.classify(change) } else { None };
            kind.map(|kind| (kind, change.clone()))
        });
        match scan {
            Scan::Found((kind, change)) => {
                self.position = change.revision();
                Ok(Ready::Event(WatchEvent::of_change(kind, change)))
            }
            Scan::Partial(revision) => {
                self.position = revision;
                Ok(Ready::More)
            }
            Scan::Exhausted => {
                self.is_caught_up = true;
                self.position = self.position.max(progress);
                Ok(Ready::Nothing)
            }
            Scan::Behind(oldest) => Err(Error::Expired { requested: self.position, oldest }),
        }
    }

    fn next_initial(&mut self) -> Ready {
        let Some(initial) = &mut self.initial else { return Ready::More };
        let mut last = None;
        let mut selected = None;
        for object in initial.snapshot.range(&self.scope, Some(&initial.from)).take(CHANGES_AT_ONCE) {
            last = Some(object.clone());
            if self.selection.matches(object) {
                selected = last.clone();
                break;
            }
        }
        if let Some(last) = last {
            initial.from = format!("{}\0", last.key());
            let Some(object) = selected else { return Ready::More };
            let (kind, revision) = (WatchEventKind::Added, object.revision());
            return Ready::Event(WatchEvent { kind, revision, object: Some(object), change: None });
        }
        let marks_end = initial.marks_end;
        self.initial = None;
        if marks_end { Ready::Event(self.bookmark(WatchEventKind::InitialEventsEnd)) } else { Ready::More }
    }

    fn bookmark(&self, kind: WatchEventKind) -> WatchEvent {
        WatchEvent { kind, revision: self.position, object: None, change: None }
    }

    /// When the watch has to do something without a change.
    fn timer(&self) -> Instant {
        match self.ends {
            Some(ends) if self.has_sent_last_bookmark => ends.min(self.next_bookmark),
            Some(ends) => self.next_bookmark.min(ends.checked_sub(LAST_BOOKMARK).unwrap_or(ends)),
            None => self.next_bookmark,
        }
    }

    /// Prepares a bookmark: what is at hand is looked at once more, so that the position moves on although nothing
    /// concerned the watch.
    fn on_timer(&mut self, now: Instant) {
        self.has_sent_last_bookmark |=
            self.ends.is_some_and(|ends| ends.checked_sub(LAST_BOOKMARK).is_none_or(|last| last <= now));
        self.next_bookmark = next_bookmark(now);
        self.owes_bookmark = self.sends_bookmarks;
        // The ring may have dropped changes that concerned others.
        if let Some(quiet) = self.interest.quiet_until() {
            self.position = self.position.max(quiet);
        }
        if self.collection.oldest() <= self.position {
            self.is_caught_up = false;
        }
    }
}

/// Result of looking at what is at hand.
enum Ready {
    Event(WatchEvent),
    /// No event yet, but not everything was examined.
    More,
    Nothing,
}

impl WatchEvent {
    fn of_change(kind: WatchEventKind, change: Arc<StoredChange>) -> WatchEvent {
        let object = if kind == WatchEventKind::Deleted { change.old() } else { change.new_object() };
        WatchEvent { kind, revision: change.revision(), object: object.cloned(), change: Some(change) }
    }
}

fn next_bookmark(now: Instant) -> Instant {
    now + BOOKMARK_INTERVAL - BOOKMARK_SPREAD.mul_f64(fastrand::f64())
}
