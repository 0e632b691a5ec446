//! Reads of loads and of the history, on threads and connections of their own: the thread that writes goes on.
//!
//! The thread that writes hands over each read with a copy of its index, which costs it nothing. From the file, a read
//! takes only the rows of its own keys, by revision.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use super::super::{
    ChangeSink, Error, KeyValue, Loaded, Prefix, Progress, RecordChange, RecordPage, Revision, StoreReply,
};
use super::index::{HistoryRow, RecordIndex, ValuePlace};
use super::journal::RowReader;
use super::store_command::StoreCommand;

/// Number of threads that read, and so of reads at a time.
const THREADS: usize = 2;

/// Maximum number of reads that wait; more are refused.
const MAX_WAITING: usize = 1_024;

/// Number of changes of a feed that are read before other reads have their turn.
const CHANGES_PER_STEP: usize = 256;

/// Bytes of values from the file after which a page or a step ends.
const BYTES_PER_STEP: usize = 4 << 20;

/// A read, with the state that it reads.
pub(super) enum ReadJob {
    Load {
        index: RecordIndex,
        prefix: Prefix,
        revision: Revision,
        oldest: Revision,
        reply: StoreReply<Loaded>,
    },
    Page {
        index: RecordIndex,
        prefix: Prefix,
        from: Option<String>,
        limit: usize,
        revision: Revision,
        reply: StoreReply<RecordPage>,
    },
    Replay(HistoryReplay),
}

/// The changes before a feed begins, which its sink gets first.
pub(super) struct HistoryReplay {
    pub(super) index: RecordIndex,
    pub(super) prefix: Prefix,
    pub(super) after: Revision,
    /// Number of the feed.
    pub(super) feed: u64,
    pub(super) sink: Box<dyn ChangeSink>,
    pub(super) reply: StoreReply<Progress>,
    /// Where the sink goes back to.
    pub(super) commands: Sender<StoreCommand>,
    /// What is still to be sent; none before the first step.
    rows: Option<std::vec::IntoIter<HistoryRow>>,
    /// Values that later changes replace, by revision.
    replaced: HashMap<Revision, Arc<KeyValue>>,
}

/// The threads that read.
pub(super) struct HistoryReaders {
    queue: Arc<ReadQueue>,
    threads: Vec<JoinHandle<()>>,
}

/// Reads that wait, the oldest first.
#[derive(Default)]
struct ReadQueue {
    state: Mutex<ReadQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReadQueueState {
    jobs: VecDeque<ReadJob>,
    is_closed: bool,
}

impl HistoryReaders {
    /// Starts the threads. Each opens `file` when it first needs a row.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(file: &Path) -> std::io::Result<HistoryReaders> {
        let mut readers = HistoryReaders { queue: Arc::default(), threads: Vec::new() };
        for _ in 0..THREADS {
            let (queue, file) = (readers.queue.clone(), file.to_owned());
            let thread = std::thread::Builder::new().name("store-reads".to_owned());
            readers.threads.push(thread.spawn(move || queue.run(file))?);
        }
        Ok(readers)
    }

    /// The threads, to tell them from others.
    pub(super) fn thread_ids(&self) -> Vec<std::thread::ThreadId> {
        self.threads.iter().map(|thread| thread.thread().id()).collect()
    }

    /// Queues a read. One that is too many is answered.
    pub(super) fn send(&self, job: ReadJob) {
        let mut state = self.queue.state.lock();
        if state.jobs.len() >= MAX_WAITING {
            drop(state);
            return job.refuse(&Error::Unavailable("too many reads of the store wait".into()));
        }
        state.jobs.push_back(job);
        self.queue.changed.notify_one();
    }
}

impl Drop for HistoryReaders {
    /// Ends the threads, so that their connections are closed before that of the thread that writes.
    fn drop(&mut self) {
        let waiting = {
            let mut state = self.queue.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.jobs)
        };
        self.queue.changed.notify_all();
        for mut job in waiting {
            if let ReadJob::Replay(replay) = &mut job {
                replay.sink.end(Error::Closed);
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl ReadQueue {
    fn run(&self, file: PathBuf) {
        let mut reader = RowReader::new(file);
        while let Some(job) = self.next() {
            if let Some(replay) = job.run(&mut reader) {
                // At the end: a long history does not hold up other reads.
                let mut state = self.state.lock();
                if state.is_closed {
                    drop(state);
                    continue;
                }
                state.jobs.push_back(ReadJob::Replay(replay));
            }
        }
    }

    fn next(&self) -> Option<ReadJob> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            self.changed.wait(&mut state);
        }
    }
}

impl ReadJob {
    /// Answers the read, or takes a step of it and returns what remains.
    fn run(self, reader: &mut RowReader) -> Option<HistoryReplay> {
        match self {
            ReadJob::Load { index, prefix, revision, oldest, reply } => {
                let records = index.records_below(&prefix).cloned().collect();
                reply.send(Ok(Loaded { revision, oldest, records }));
                None
            }
            ReadJob::Page { index, prefix, from, limit, revision, reply } => {
                reply.send(read_page(&index, reader, (&prefix, from.as_deref()), limit, revision));
                None
            }
            ReadJob::Replay(replay) => replay.step(reader),
        }
    }

    fn refuse(self, error: &Error) {
        match self {
            ReadJob::Load { reply, .. } => reply.send(Err(error.clone())),
            ReadJob::Page { reply, .. } => reply.send(Err(error.clone())),
            ReadJob::Replay(replay) => replay.finish(Err(error.clone())),
        }
    }
}

/// The first records of a range at a revision.
fn read_page(
    index: &RecordIndex,
    reader: &mut RowReader,
    (prefix, from): (&Prefix, Option<&str>),
    limit: usize,
    revision: Revision,
) -> Result<RecordPage, Error> {
    let mut places = index.values_at(prefix, from, revision);
    let (mut records, mut bytes) = (Vec::new(), 0);
    while records.len() < limit && bytes < BYTES_PER_STEP {
        let record = match places.next() {
            Some(ValuePlace::Current(record)) => record.clone(),
            Some(ValuePlace::Row(row)) => {
                let record = reader.record(row, revision)?;
                bytes += record.value.len();
                record
            }
            None => break,
        };
        records.push(record);
    }
    Ok(RecordPage { records, remaining: places.count() })
}

impl HistoryReplay {
    /// A replay that has not begun.
    pub(super) fn new(
        (index, prefix, after): (RecordIndex, Prefix, Revision),
        feed: u64,
        sink: Box<dyn ChangeSink>,
        reply: StoreReply<Progress>,
        commands: Sender<StoreCommand>,
    ) -> HistoryReplay {
        HistoryReplay { index, prefix, after, feed, sink, reply, commands, rows: None, replaced: HashMap::new() }
    }

    /// Sends the next changes; returns the replay unless it is finished.
    fn step(mut self, reader: &mut RowReader) -> Option<HistoryReplay> {
        if self.rows.is_none() {
            self.rows = Some(self.index.changes_after(&self.prefix, self.after).into_iter());
            // The rows hold what is needed of it.
            self.index = RecordIndex::new();
        }
        let (mut changes, mut bytes) = (Vec::new(), 0);
        while changes.len() < CHANGES_PER_STEP && bytes < BYTES_PER_STEP {
            let Some(row) = self.rows.as_mut().and_then(Iterator::next) else { break };
            match self.change(reader, row) {
                Ok(change) => {
                    bytes += change.new.as_ref().map_or(0, |new| new.value.len());
                    changes.push(Arc::new(change));
                }
                Err(error) => {
                    self.finish(Err(error));
                    return None;
                }
            }
        }
        let is_wanted = changes.is_empty() || self.sink.apply(&changes);
        let is_finished = self.rows.as_ref().is_none_or(|rows| rows.len() == 0);
        if is_wanted && !is_finished {
            return Some(self);
        }
        self.finish(Ok(is_wanted));
        None
    }

    fn change(&mut self, reader: &mut RowReader, row: HistoryRow) -> Result<RecordChange, Error> {
        let old = match row.previous {
            Some(previous) => Some(match self.replaced.remove(&previous) {
                Some(old) => old,
                None => reader.record(previous, self.after)?,
            }),
            None => None,
        };
        let new = match (row.current, row.is_deletion) {
            (Some(current), _) => Some(current),
            (None, true) => None,
            (None, false) => {
                let new = reader.record(row.revision, self.after)?;
                self.replaced.insert(row.revision, new.clone());
                Some(new)
            }
        };
        Ok(RecordChange { revision: row.revision, key: row.key, old, new })
    }

    /// Gives the sink back to the thread that writes, if it wants more changes.
    fn finish(self, outcome: Result<bool, Error>) {
        let HistoryReplay { prefix, feed, sink, reply, commands, .. } = self;
        let sink = outcome.map(|is_wanted| is_wanted.then_some(sink));
        // A store that is closed drops the reply, which answers with `Closed`.
        let _ = commands.send(StoreCommand::Attach { prefix, feed, sink, reply });
    }
}
