//! Polling of the sources of documents: one task for each backend.

pub(super) mod coalescing_queue;
pub(super) mod fetch;
pub(super) mod poll_tasks;
pub(super) mod poller;
