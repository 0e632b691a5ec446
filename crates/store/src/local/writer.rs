//! The thread that commits: writes all waiting commands in one transaction, passes the changes to feeds, then answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use tokio::sync::watch;

use super::super::{
    ChangeSink, CommitOutcome, Error, Expect, Key, Mutation, Prefix, Progress, RecordChange, Revision, StoreReply,
    UnixMillis,
};
use super::LocalStoreSettings;
use super::commit_batch::CommitBatch;
use super::compact::MARK_INTERVAL;
use super::history_reads::{HistoryReaders, HistoryReplay, ReadJob};
use super::journal::{Journal, JournalError};
use super::monitor::MonitoredState;
use super::recover::StoreIndex;
use super::store_command::StoreCommand;
use crate::LOG_TARGET;

/// Maximum number of changes in one transaction.
const CHANGES_PER_COMMIT: usize = 512;

/// Bytes of values after which a transaction takes no more changes.
const BYTES_PER_COMMIT: usize = 4 << 20;

/// Maximum number of changes that wait for a feed whose history is being read.
const MAX_HELD_CHANGES: usize = 100_000;

struct FeedEntry {
    number: u64,
    after: Revision,
    state: FeedState,
}

enum FeedState {
    /// Gets every change.
    Live(Box<dyn ChangeSink>),
    /// The history is being read; the changes since then.
    Replaying(Vec<Arc<RecordChange>>),
    /// More changes came than are kept meanwhile.
    Overflowed,
}

/// The one thread that writes.
pub(super) struct Writer {
    journal: Journal,
    readers: HistoryReaders,
    state: StoreIndex,
    settings: LocalStoreSettings,
    commands: Receiver<StoreCommand>,
    published: watch::Sender<Revision>,
    monitored: Arc<MonitoredState>,
    feeds: HashMap<String, Vec<FeedEntry>>,
    /// Number of the last feed.
    last_feed: u64,
    last_mark: UnixMillis,
    /// The last step of maintenance left something to do.
    has_backlog: bool,
    /// The last transaction was refused: maintenance waits for its next mark.
    is_refused: bool,
    /// The disk did not confirm a commit, and the abort handler returned.
    has_failed: bool,
    /// Told when the file is closed.
    closing: Option<StoreReply<()>>,
}

impl Writer {
    pub(super) fn new(
        (journal, readers): (Journal, HistoryReaders),
        state: StoreIndex,
        settings: LocalStoreSettings,
        commands: Receiver<StoreCommand>,
        (published, monitored): (watch::Sender<Revision>, Arc<MonitoredState>),
    ) -> Writer {
        monitored.set_compacted(state.compaction.compacted());
        let last_mark = state.clock.now();
        Writer {
            journal,
            readers,
            state,
            settings,
            commands,
            published,
            monitored,
            feeds: HashMap::new(),
            last_feed: 0,
            last_mark,
            has_backlog: false,
            is_refused: false,
            has_failed: false,
            closing: None,
        }
    }

    /// Runs until the store is closed or every handle is dropped, or the disk fails.
    pub(super) fn run(mut self) {
        while !self.is_ending() {
            match self.commands.recv_timeout(self.time_to_maintenance()) {
                Ok(command) => self.run_batch(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.time_to_maintenance().is_zero() {
                self.maintain();
            }
            let checkpoint = self.journal.checkpoint_if_large();
            self.note_failure(checkpoint);
        }
        if !self.has_failed {
            self.note_time();
            let checkpoint = self.journal.checkpoint();
            self.note_failure(checkpoint);
        }
        let Writer { commands, published, feeds, journal, readers, closing, has_failed, .. } = self;
        // Their connections would keep the file from being closed in order.
        drop(readers);
        if has_failed {
            drop(journal)
        } else {
            journal.close()
        }
        // From here on `current` is refused, too.
        drop((published, commands));
        for feed in feeds.into_values().flatten() {
            if let FeedState::Live(mut sink) = feed.state {
                sink.end(Error::Closed);
            }
        }
        if let Some(reply) = closing {
            reply.send(Ok(()));
        }
    }

    fn is_ending(&self) -> bool {
        self.has_failed || self.closing.is_some()
    }

    fn run_batch(&mut self, first: StoreCommand) {
        let mut batch = CommitBatch::default();
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                StoreCommand::Commit { key, expect, mutation, conditions, reply } => {
                    match batch.failed_condition(&self.state.index, conditions) {
                        Some(failed) => batch.answers.push((reply, CommitOutcome::ConditionFailed(failed))),
                        None => self.stage(&mut batch, key, expect, mutation, reply),
                    }
                }
                // Sees all commits that were sent before it.
                other => {
                    self.write(std::mem::take(&mut batch));
                    self.answer(other);
                }
            }
            let is_full = batch.changes.len() >= CHANGES_PER_COMMIT || batch.bytes >= BYTES_PER_COMMIT;
            next = if is_full || self.is_ending() { None } else { self.commands.try_recv().ok() };
        }
        self.write(batch);
    }

    /// Adds a change to the batch if its expectation is met by the records and the batch.
    fn stage(
        &self,
        batch: &mut CommitBatch,
        key: Key,
        expect: Expect,
        mutation: Mutation,
        reply: StoreReply<CommitOutcome>,
    ) {
        let old = batch.record(&self.state.index, &key).cloned();
        let value = match mutation {
            Mutation::Put { value, ttl } => Some((value, ttl.map(|ttl| self.state.clock.after(ttl)))),
            Mutation::Delete => None,
        };
        let is_void = value.is_none() && old.is_none();
        if is_void || !expect.is_met_by(old.as_ref().map(|old| old.revision)) {
            batch.answers.push((reply, CommitOutcome::Conflict(old)));
            return;
        }
        let revision = self.state.revision + batch.changes.len() as u64 + 1;
        batch.add(RecordChange::new(&key, revision, old, value), key);
        batch.answers.push((reply, CommitOutcome::Committed(revision)));
    }

    /// Writes the batch, feeds it, answers. Answers of a batch that failed are its error, conflicts included: they may
    /// rest on its changes.
    fn write(&mut self, batch: CommitBatch) {
        let note = self.state.clock.due_note();
        let result = if batch.rows.is_empty() { Ok(()) } else { self.journal.append(&batch.rows, note) };
        if let Err(error) = result {
            let answer = match &error {
                JournalError::Refused(error) => error.clone(),
                JournalError::Unknown(_) => Error::Closed,
            };
            // First, so that the process ends before a client is told anything.
            self.note_failure(Err(error));
            batch.answers.into_iter().for_each(|(reply, _)| reply.send(Err(answer.clone())));
            return;
        }
        if !batch.rows.is_empty() {
            self.set_refusal(None);
            note.into_iter().for_each(|time| self.state.clock.set_noted(time));
        }
        for (change, row) in batch.changes.iter().zip(&batch.rows) {
            self.state.index.apply(change);
            self.state.compaction.record(row);
            self.state.expiry.record(change);
        }
        if let Some(last) = batch.changes.last() {
            self.state.revision = last.revision;
            self.feed(&batch.changes);
            self.published.send_replace(last.revision);
        }
        batch.answers.into_iter().for_each(|(reply, outcome)| reply.send(Ok(outcome)));
    }

    /// Sends changes to the sinks of their prefixes, which are looked up by each part of the key that ends with `/`.
    fn feed(&mut self, changes: &[Arc<RecordChange>]) {
        let mut by_prefix = HashMap::<&str, Vec<Arc<RecordChange>>>::new();
        for change in changes {
            for (at, _) in change.key.as_str().match_indices('/') {
                let prefix = &change.key.as_str()[..=at];
                if self.feeds.contains_key(prefix) {
                    by_prefix.entry(prefix).or_default().push(change.clone());
                }
            }
        }
        for (prefix, changes) in by_prefix {
            let Some(feeds) = self.feeds.get_mut(prefix) else { continue };
            feeds.retain_mut(|feed| {
                let delivered = changes.partition_point(|change| change.revision <= feed.after);
                delivered == changes.len() || feed.apply(&changes[delivered..])
            });
            if feeds.is_empty() {
                self.feeds.remove(prefix);
            }
        }
    }

    fn answer(&mut self, command: StoreCommand) {
        match command {
            StoreCommand::Load { prefix, reply } => {
                let (revision, oldest) = (self.state.revision, self.state.compaction.compacted());
                self.readers.send(ReadJob::Load { index: self.state.index.clone(), prefix, revision, oldest, reply });
            }
            StoreCommand::Follow { prefix, after, sink, reply, commands } => {
                self.follow(prefix, after, sink, reply, commands);
            }
            StoreCommand::Attach { prefix, feed, sink, reply } => reply.send(self.attach(&prefix, feed, sink)),
            StoreCommand::At { prefix, from, limit, revision, reply } => {
                if let Err(error) = self.check_readable(revision) {
                    return reply.send(Err(error));
                }
                let index = self.state.index.clone();
                self.readers.send(ReadJob::Page { index, prefix, from, limit, revision, reply });
            }
            StoreCommand::Maintain(reply) => {
                self.maintain();
                while self.has_backlog && !self.has_failed {
                    self.maintain();
                }
                reply.send(if self.has_failed { Err(Error::Closed) } else { Ok(()) });
            }
            StoreCommand::Close(reply) => self.closing = Some(reply),
            #[cfg(test)]
            StoreCommand::CompactTo(target, reply) => {
                while self.discard(target) {}
                reply.send(Ok(()));
            }
            #[cfg(test)]
            StoreCommand::FailNextCommit(reply) => {
                self.journal.fails_next_commit = true;
                reply.send(Ok(()));
            }
            #[cfg(test)]
            StoreCommand::Index(reply) => reply.send(Ok(self.state.index.clone())),
            #[cfg(test)]
            StoreCommand::RowsRead(reply) => {
                reply.send(Ok(super::journal::ROWS_READ.with(std::cell::Cell::get)));
            }
            // Commits are staged, not answered at once.
            StoreCommand::Commit { reply, .. } => reply.send(Err(Error::Closed)),
        }
    }

    /// Begins a feed: at once if it has no history, else when another thread has read it.
    fn follow(
        &mut self,
        prefix: Prefix,
        after: Revision,
        sink: Box<dyn ChangeSink>,
        reply: StoreReply<Progress>,
        commands: Sender<StoreCommand>,
    ) {
        if after < self.state.compaction.compacted() {
            return reply.send(Err(Error::Compacted(self.state.compaction.compacted())));
        }
        self.last_feed += 1;
        let number = self.last_feed;
        let feeds = self.feeds.entry(prefix.as_str().to_owned()).or_default();
        if after >= self.state.revision {
            feeds.push(FeedEntry { number, after, state: FeedState::Live(sink) });
            return reply.send(Ok(self.published.subscribe()));
        }
        feeds.push(FeedEntry { number, after: self.state.revision, state: FeedState::Replaying(Vec::new()) });
        let history = (self.state.index.clone(), prefix, after);
        self.readers.send(ReadJob::Replay(HistoryReplay::new(history, number, sink, reply, commands)));
    }

    /// Goes on with a feed whose history has been sent.
    fn attach(
        &mut self,
        prefix: &Prefix,
        number: u64,
        sink: Result<Option<Box<dyn ChangeSink>>, Error>,
    ) -> Result<Progress, Error> {
        let feeds = self.feeds.entry(prefix.as_str().to_owned()).or_default();
        let index = feeds.iter().position(|feed| feed.number == number);
        let entry = index.map(|index| feeds.swap_remove(index));
        if let (Some(mut sink), Some(entry)) = (sink?, entry) {
            match entry.state {
                FeedState::Overflowed => {
                    sink.end(Error::Unavailable("changes came faster than the history was read".into()))
                }
                FeedState::Replaying(held) if !held.is_empty() && !sink.apply(&held) => {}
                _ => feeds.push(FeedEntry { state: FeedState::Live(sink), ..entry }),
            }
        }
        if feeds.is_empty() {
            self.feeds.remove(prefix.as_str());
        }
        Ok(self.published.subscribe())
    }

    /// Whether the state at a revision can be read.
    fn check_readable(&self, revision: Revision) -> Result<(), Error> {
        let (current, compacted) = (self.state.revision, self.state.compaction.compacted());
        match revision {
            _ if revision > current => Err(Error::FutureRevision { requested: revision, current }),
            _ if revision < compacted => Err(Error::Compacted(compacted)),
            _ => Ok(()),
        }
    }

    /// Notes the time at an orderly end, so that records live no longer than they have to.
    fn note_time(&mut self) {
        if self.state.expiry.next().is_some() {
            let noted = self.journal.append(&[], Some(self.state.clock.now()));
            self.note_failure(noted);
        }
    }

    /// Zero when records have expired or a mark is due.
    fn time_to_maintenance(&self) -> Duration {
        if self.has_backlog {
            return Duration::ZERO;
        }
        let now = self.state.clock.now();
        let mark = self.last_mark.saturating_add(MARK_INTERVAL.as_millis() as u64);
        let expires = self.state.expiry.next().filter(|_| !self.is_refused);
        let due = expires.map_or(mark, |expires| expires.min(mark));
        Duration::from_millis(due.saturating_sub(now))
    }

    /// One step of expiry and compaction, a transaction of bounded size: commits that wait come between two steps.
    fn maintain(&mut self) {
        let now = self.state.clock.now();
        let before = self.state.revision;
        self.expire(now);
        // After a full disk, only the next mark tries again.
        self.has_backlog = self.state.revision > before && self.state.expiry.next().is_some_and(|next| next <= now);
        if self.has_failed || self.has_backlog {
            return;
        }
        self.last_mark = now;
        self.has_backlog = self.compact(now);
    }

    /// Deletes records that have expired.
    fn expire(&mut self, now: UnixMillis) {
        let mut batch = CommitBatch::default();
        for key in self.state.expiry.due(now) {
            let old = self.state.index.get(&key).cloned();
            let revision = self.state.revision + batch.changes.len() as u64 + 1;
            batch.add(RecordChange::new(&key, revision, old, None), key);
        }
        self.write(batch);
    }

    /// Discards history. Returns whether there may be more to discard.
    fn compact(&mut self, now: UnixMillis) -> bool {
        let LocalStoreSettings { retention, retained_changes, .. } = self.settings;
        let current = self.state.revision;
        let Some(target) = self.state.compaction.observe(now, current, retention, retained_changes) else {
            return false;
        };
        self.discard(target)
    }

    /// Discards a part of the history up to `target`. Returns whether there may be more.
    fn discard(&mut self, target: Revision) -> bool {
        let rows = self.state.compaction.next_rows(target);
        let discarded = self.journal.discard(target, &rows);
        let is_discarded = discarded.is_ok();
        if is_discarded {
            self.set_refusal(None);
            self.state.index.discard(&rows);
        }
        self.note_failure(discarded);
        let has_more = is_discarded && self.state.compaction.commit(target, rows.len());
        self.monitored.set_compacted(self.state.compaction.compacted());
        has_more
    }

    fn set_refusal(&mut self, refusal: Option<Error>) {
        // Only a change is published: the lock is off the path of writes.
        if self.is_refused || refusal.is_some() {
            self.is_refused = refusal.is_some();
            self.monitored.set_refusal(refusal);
        }
    }

    /// Logs a refused transaction; ends the process when it is unknown what the disk holds.
    fn note_failure(&mut self, outcome: Result<(), JournalError>) {
        match outcome {
            Ok(()) => {}
            Err(JournalError::Refused(error)) => {
                let file = self.settings.file.display();
                tracing::error!(target: LOG_TARGET, "store {file}: transaction refused, nothing changed: {error}");
                self.set_refusal(Some(error));
            }
            Err(JournalError::Unknown(reason)) => {
                self.has_failed = true;
                (self.settings.abort)(&format!("{}: {reason}", self.settings.file.display()));
            }
        }
    }
}

impl FeedEntry {
    /// Takes changes. Returns false when the feed is no longer wanted.
    fn apply(&mut self, changes: &[Arc<RecordChange>]) -> bool {
        match &mut self.state {
            FeedState::Live(sink) => return sink.apply(changes),
            FeedState::Replaying(held) if held.len() + changes.len() <= MAX_HELD_CHANGES => {
                held.extend_from_slice(changes);
            }
            state => *state = FeedState::Overflowed,
        }
        true
    }
}
