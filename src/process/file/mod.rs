//! Files: reading, atomic writing, watching, reloading.

pub(super) mod atomic_write;
pub(crate) mod csv;
pub(super) mod document;
pub(super) mod file_errors;
pub(super) mod file_watcher;
mod shared_notifier;
pub(super) mod watched_file;
