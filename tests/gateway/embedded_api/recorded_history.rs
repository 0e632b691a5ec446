//! What clients sent and saw of a server that was killed again and again, and the check that one history explains all.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use serde_json::Value;

pub(crate) type Revision = u64;

/// The state of objects by name: version and token.
pub(crate) type ObjectStates = BTreeMap<String, (Revision, String)>;

/// How a write ended for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteOutcome {
    /// Confirmed, with the revision if the response was read to its end.
    Acknowledged(Option<Revision>),
    /// Answered with an error that means that nothing was changed.
    Refused,
    /// The connection broke first.
    Unknown,
}

/// A create, update or patch. Its token is in the object and in no other write.
#[derive(Debug)]
pub(crate) struct RecordedWrite {
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) outcome: WriteOutcome,
}

/// A get of one object.
#[derive(Debug)]
pub(crate) struct RecordedRead {
    pub(crate) name: String,
    /// Last revision of the object that was acknowledged before the request was sent; 0 if none was.
    pub(crate) acknowledged: Revision,
    pub(crate) found: Option<(Revision, String)>,
}

/// A list, of one response or of pages.
#[derive(Debug)]
pub(crate) struct RecordedList {
    pub(crate) revision: Revision,
    /// The oldest revision that the response may have.
    pub(crate) not_before: Revision,
    pub(crate) items: ObjectStates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEvent {
    pub(crate) event_type: EventType,
    pub(crate) revision: Revision,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) token: String,
}

/// Everything that clients sent and saw.
#[derive(Default)]
pub(crate) struct RecordedHistory {
    pub(crate) writes: Vec<RecordedWrite>,
    /// Uids whose deletion was acknowledged.
    pub(crate) deletions: Vec<String>,
    pub(crate) reads: Vec<RecordedRead>,
    pub(crate) lists: Vec<RecordedList>,
}

/// Version and token of an object.
pub(crate) fn state_of(object: &Value) -> (Revision, String) {
    let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
    (version.unwrap_or_else(|| panic!("no version: {object}")), object["data"]["token"].as_str().unwrap().to_owned())
}

pub(crate) fn name_of(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}

impl RecordedEvent {
    /// An event of a line of a watch; none for a bookmark.
    pub(crate) fn parse(line: &Value) -> Option<RecordedEvent> {
        let object = &line["object"];
        let event_type = match line["type"].as_str().unwrap() {
            "ADDED" => EventType::Added,
            "MODIFIED" => EventType::Modified,
            "DELETED" => EventType::Deleted,
            "BOOKMARK" => return None,
            _ => panic!("the watch ended: {line}"),
        };
        let (revision, token) = state_of(object);
        let uid = object["metadata"]["uid"].as_str().unwrap().to_owned();
        Some(RecordedEvent { event_type, revision, name: name_of(object), uid, token })
    }
}

impl RecordedHistory {
    pub(crate) fn extend(&mut self, more: RecordedHistory) {
        self.writes.extend(more.writes);
        self.deletions.extend(more.deletions);
        self.reads.extend(more.reads);
        self.lists.extend(more.lists);
    }

    /// Asserts that `events`, seen by a watch from the beginning, are the one history of all objects.
    pub(crate) fn assert_explained_by(&self, events: &[RecordedEvent]) {
        assert_without_gap(events);
        self.assert_writes(events);
        self.assert_reads(events);
        self.assert_lists(events);
    }

    fn assert_writes(&self, events: &[RecordedEvent]) {
        let mut by_token = HashMap::new();
        for event in events.iter().filter(|event| event.event_type != EventType::Deleted) {
            let before = by_token.insert(event.token.as_str(), event);
            assert!(before.is_none(), "one write, two events: {before:?} {event:?}");
        }
        let mut revisions = HashSet::new();
        for write in &self.writes {
            let event = by_token.remove(write.token.as_str());
            match write.outcome {
                WriteOutcome::Acknowledged(revision) => {
                    let event = event.unwrap_or_else(|| panic!("acknowledged and missing: {write:?}"));
                    assert_eq!(event.name, write.name);
                    assert!(revision.is_none_or(|revision| revision == event.revision), "{write:?} {event:?}");
                    assert!(revision.is_none_or(|revision| revisions.insert(revision)), "twice: {write:?}");
                }
                WriteOutcome::Refused => assert_eq!(event, None, "refused and stored: {write:?}"),
                WriteOutcome::Unknown => {}
            }
        }
        assert!(by_token.is_empty(), "events without a write: {by_token:?}");
        let deleted: Vec<_> = events.iter().filter(|event| event.event_type == EventType::Deleted).collect();
        let uids: HashSet<_> = deleted.iter().map(|event| event.uid.as_str()).collect();
        assert_eq!(uids.len(), deleted.len(), "an object is deleted once");
        for uid in &self.deletions {
            assert!(uids.contains(uid.as_str()), "deletion acknowledged and missing: {uid}");
        }
    }

    fn assert_reads(&self, events: &[RecordedEvent]) {
        let by_revision: HashMap<_, _> = events.iter().map(|event| (event.revision, event)).collect();
        for read in &self.reads {
            match &read.found {
                Some((revision, token)) => {
                    let event = by_revision.get(revision).unwrap_or_else(|| panic!("no such change: {read:?}"));
                    assert!(event.name == read.name && event.token == *token, "{read:?} {event:?}");
                    assert!(*revision >= read.acknowledged, "older than an acknowledged write: {read:?}");
                }
                None => {
                    let is_deletion = |event: &RecordedEvent| {
                        event.event_type == EventType::Deleted
                            && event.name == read.name
                            && event.revision > read.acknowledged
                    };
                    assert!(read.acknowledged == 0 || events.iter().any(is_deletion), "not found: {read:?}");
                }
            }
        }
    }

    fn assert_lists(&self, events: &[RecordedEvent]) {
        let mut lists: Vec<_> = self.lists.iter().collect();
        lists.sort_by_key(|list| list.revision);
        let mut events = events.iter().peekable();
        let mut state = ObjectStates::new();
        for list in lists {
            while let Some(event) = events.next_if(|event| event.revision <= list.revision) {
                match event.event_type {
                    EventType::Deleted => state.remove(&event.name),
                    _ => state.insert(event.name.clone(), (event.revision, event.token.clone())),
                };
            }
            assert_eq!(list.items, state, "a list at {} is the state then", list.revision);
            assert!(list.revision >= list.not_before, "older than an acknowledged write: {list:?}");
        }
    }
}

/// Asserts that revisions increase, and that each event follows from the state before it.
fn assert_without_gap(events: &[RecordedEvent]) {
    let mut last = 0;
    let mut state = BTreeMap::<&str, &RecordedEvent>::new();
    let mut uids = BTreeSet::new();
    for event in events {
        assert!(event.revision > last, "{event:?} after {last}");
        last = event.revision;
        let before = state.remove(event.name.as_str());
        match event.event_type {
            EventType::Added => assert!(before.is_none() && uids.insert(&event.uid), "{before:?} {event:?}"),
            EventType::Modified => assert!(before.is_some_and(|old| old.uid == event.uid), "{before:?} {event:?}"),
            EventType::Deleted => {
                let is_next = before.is_some_and(|old| (&old.uid, &old.token) == (&event.uid, &event.token));
                assert!(is_next, "{before:?} {event:?}");
                continue;
            }
        }
        state.insert(&event.name, event);
    }
}
