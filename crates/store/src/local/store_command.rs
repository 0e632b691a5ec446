//! What the thread that writes is told to do.

use std::sync::mpsc::Sender;

use super::super::{
    ChangeSink, CommitCondition, CommitOutcome, Error, Expect, Key, Loaded, Mutation, Prefix, Progress, RecordPage,
    Revision, StoreReply,
};

/// A command for the thread that writes.
pub(super) enum StoreCommand {
    Commit {
        key: Key,
        expect: Expect,
        mutation: Mutation,
        conditions: Vec<CommitCondition>,
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
        /// The channel of this command, for the thread that reads the history.
        commands: Sender<StoreCommand>,
    },
    /// The history of a feed has been sent: the feed goes on, if there is a sink.
    Attach {
        prefix: Prefix,
        feed: u64,
        sink: Result<Option<Box<dyn ChangeSink>>, Error>,
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
    /// How many rows this thread has read.
    #[cfg(test)]
    RowsRead(StoreReply<u64>),
    /// The index.
    #[cfg(test)]
    Index(StoreReply<super::index::RecordIndex>),
}
