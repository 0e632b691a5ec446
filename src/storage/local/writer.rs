//! The thread that commits: writes all waiting commands in one transaction, passes the changes to feeds, then answers.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use tokio::sync::watch;

use super::super::memory::{page_before, records_below};
use super::super::record::Row;
use super::super::{
    ChangeSink, CommitOutcome, Error, Expect, Key, KeyValue, Loaded, Mutation, Prefix, Progress, RecordChange,
    RecordPage, Revision, StoreReply, UnixMillis,
};
use super::LocalStoreSettings;
use super::compact::MARK_INTERVAL;
use super::journal::{Journal, JournalError};
use super::monitor::MonitoredState;
use super::recover::StoreIndex;

/// Maximum number of changes in one transaction.
const CHANGES_PER_COMMIT: usize = 512;

/// Bytes of values after which a transaction takes no more changes.
const BYTES_PER_COMMIT: usize = 4 << 20;

/// A command for the thread that writes.
pub(super) enum StoreCommand {
    Commit {
        key: Key,
        expect: Expect,
        mutation: Mutation,
        reply: StoreReply<CommitOutcome>,
    },
    Load {
        prefix: Prefix,
        reply: StoreReply<Loaded>,
    },
    Follow {
        prefix: Prefix,
        after: Revision,
        sink: Box<dyn ChangeSink>,
        reply: StoreReply<Progress>,
    },
    At {
        prefix: Prefix,
        from: Option<String>,
        limit: usize,
        revision: Revision,
        reply: StoreReply<RecordPage>,
    },
    Maintain(StoreReply<()>),
    /// Writes what was sent before, and closes the file.
    Close(StoreReply<()>),
    /// Compacts to a revision, whatever its age.
    #[cfg(test)]
    CompactTo(Revision, StoreReply<()>),
    /// Injects a failure into the next commit.
    #[cfg(test)]
    FailNextCommit(StoreReply<()>),
}

/// Changes that are about to be written, and the answers that wait for them.
#[derive(Default)]
struct Batch {
    changes: Vec<Arc<RecordChange>>,
    rows: Vec<Row>,
    /// State of the keys that the batch changes.
    overlay: HashMap<Key, Option<Arc<KeyValue>>>,
    answers: Vec<(StoreReply<CommitOutcome>, CommitOutcome)>,
    bytes: usize,
}

struct FeedEntry {
    after: Revision,
    sink: Box<dyn ChangeSink>,
}

/// The one thread that uses the file.
pub(super) struct Writer {
    journal: Journal,
    state: StoreIndex,
    settings: LocalStoreSettings,
    commands: Receiver<StoreCommand>,
    published: watch::Sender<Revision>,
    monitored: Arc<MonitoredState>,
    feeds: HashMap<String, Vec<FeedEntry>>,
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
        journal: Journal,
        state: StoreIndex,
        settings: LocalStoreSettings,
        commands: Receiver<StoreCommand>,
        (published, monitored): (watch::Sender<Revision>, Arc<MonitoredState>),
    ) -> Writer {
        monitored.set_compacted(state.compaction.compacted());
        let last_mark = (settings.clock)();
        Writer {
            journal,
            state,
            settings,
            commands,
            published,
            monitored,
            feeds: HashMap::new(),
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
            let checkpoint = self.journal.checkpoint();
            self.note_failure(checkpoint);
        }
        let Writer { commands, published, feeds, journal, closing, .. } = self;
        drop(journal);
        // From here on `current` is refused, too.
        drop((published, commands));
        for mut feed in feeds.into_values().flatten() {
            feed.sink.end(Error::Closed);
        }
        if let Some(reply) = closing {
            reply.send(Ok(()));
        }
    }

    fn is_ending(&self) -> bool {
        self.has_failed || self.closing.is_some()
    }

    fn run_batch(&mut self, first: StoreCommand) {
        let mut batch = Batch::default();
        let mut next = Some(first);
        while let Some(command) = next {
            match command {
                StoreCommand::Commit { key, expect, mutation, reply } => {
                    self.stage(&mut batch, key, expect, mutation, reply)
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
    fn stage(&self, batch: &mut Batch, key: Key, expect: Expect, mutation: Mutation, reply: StoreReply<CommitOutcome>) {
        let old = match batch.overlay.get(&key) {
            Some(staged) => staged.clone(),
            None => self.state.records.get(&key).cloned(),
        };
        let value = match mutation {
            Mutation::Put { value, ttl } => Some((value, ttl.map(|ttl| self.expiry_after(ttl)))),
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

    fn expiry_after(&self, ttl: Duration) -> UnixMillis {
        // 0 means none in the file.
        (self.settings.clock)()
            .saturating_add(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX))
            .clamp(1, i64::MAX as u64)
    }

    /// Writes the batch, feeds it, answers. Answers of a batch that failed are its error, conflicts included: they may
    /// rest on its changes.
    fn write(&mut self, batch: Batch) {
        let written = if batch.rows.is_empty() { Ok(()) } else { self.journal.append(&batch.rows) };
        if let Err(error) = written {
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
        }
        for (change, row) in batch.changes.iter().zip(&batch.rows) {
            match &change.new {
                Some(new) => self.state.records.insert(change.key.clone(), new.clone()),
                None => self.state.records.remove(&change.key),
            };
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
                let wanted = changes.partition_point(|change| change.revision <= feed.after);
                wanted == changes.len() || feed.sink.apply(&changes[wanted..])
            });
            if feeds.is_empty() {
                self.feeds.remove(prefix);
            }
        }
    }

    fn answer(&mut self, command: StoreCommand) {
        match command {
            StoreCommand::Load { prefix, reply } => {
                let records = records_below(&self.state.records, &prefix).cloned().collect();
                let (revision, oldest) = (self.state.revision, self.state.compaction.compacted());
                reply.send(Ok(Loaded { revision, oldest, records }));
            }
            StoreCommand::Follow { prefix, after, sink, reply } => {
                let followed = self.follow(&prefix, after, sink);
                reply.send(followed);
            }
            StoreCommand::At { prefix, from, limit, revision, reply } => {
                reply.send(self.at(&prefix, from.as_deref(), limit, revision));
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
            // Commits are staged, not answered at once.
            StoreCommand::Commit { reply, .. } => reply.send(Err(Error::Closed)),
        }
    }

    fn follow(&mut self, prefix: &Prefix, after: Revision, mut sink: Box<dyn ChangeSink>) -> Result<Progress, Error> {
        let missed: Vec<_> = self.history(prefix, after)?.into_iter().map(Arc::new).collect();
        if missed.is_empty() || sink.apply(&missed) {
            self.feeds.entry(prefix.as_str().to_owned()).or_default().push(FeedEntry { after, sink });
        }
        Ok(self.published.subscribe())
    }

    fn at(&self, prefix: &Prefix, from: Option<&str>, limit: usize, revision: Revision) -> Result<RecordPage, Error> {
        if revision > self.state.revision {
            return Err(Error::FutureRevision { requested: revision, current: self.state.revision });
        }
        let newer = self.history(prefix, revision)?;
        Ok(page_before(&self.state.records, newer.iter().rev(), prefix, from, limit))
    }

    /// The changes of a prefix after a revision, from the file.
    fn history(&self, prefix: &Prefix, after: Revision) -> Result<Vec<RecordChange>, Error> {
        if after < self.state.compaction.compacted() {
            return Err(Error::Compacted(self.state.compaction.compacted()));
        }
        let unreadable = |error: rusqlite::Error| Error::Unavailable(error.to_string().into());
        let mut rows = HashMap::<Revision, Option<Arc<KeyValue>>>::new();
        let mut changes = Vec::new();
        self.journal
            .scan(after, |checked| {
                let row = checked.row.ok().filter(|_| checked.is_intact);
                let row = row.ok_or(rusqlite::Error::IntegralValueOutOfRange(6, 0))?;
                if !prefix.contains(&row.key) {
                    return Ok(());
                }
                let old = match (row.previous, rows.get(&row.previous)) {
                    (0, _) => None,
                    (_, Some(old)) => old.clone(),
                    (previous, None) => self.journal.row(previous)?.and_then(|old| old.record()),
                };
                let new = row.record();
                rows.insert(row.revision, new.clone());
                changes.push(RecordChange { revision: row.revision, key: row.key, old, new });
                Ok::<(), rusqlite::Error>(())
            })
            .map_err(unreadable)?;
        Ok(changes)
    }

    /// Zero when records have expired or a mark is due.
    fn time_to_maintenance(&self) -> Duration {
        if self.has_backlog {
            return Duration::ZERO;
        }
        let now = (self.settings.clock)();
        // A clock that was set back makes it due.
        let mark = if now < self.last_mark { now } else { self.last_mark + MARK_INTERVAL.as_millis() as u64 };
        let expires = self.state.expiry.next().filter(|_| !self.is_refused);
        let due = expires.map_or(mark, |expires| expires.min(mark));
        Duration::from_millis(due.saturating_sub(now))
    }

    /// One step of expiry and compaction, a transaction of bounded size: commits that wait come between two steps.
    fn maintain(&mut self) {
        let now = (self.settings.clock)();
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
        let mut batch = Batch::default();
        for key in self.state.expiry.due(now) {
            let old = self.state.records.get(&key).cloned();
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
                tracing::error!("store {file}: transaction refused, nothing changed: {error}");
                self.set_refusal(Some(error));
            }
            Err(JournalError::Unknown(reason)) => {
                self.has_failed = true;
                (self.settings.abort)(&format!("{}: {reason}", self.settings.file.display()));
            }
        }
    }
}

impl Batch {
    fn add(&mut self, change: RecordChange, key: Key) {
        let row = Row::from_change(&change);
        self.bytes += row.value.as_ref().map_or(0, |value| value.len());
        self.overlay.insert(key, change.new.clone());
        self.rows.push(row);
        self.changes.push(Arc::new(change));
    }
}
