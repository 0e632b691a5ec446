//! A file that is reloaded when it changes; the last valid content stays in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process::{Drain, FileWatcher, Problems, Publisher};

/// Content of a [`WatchedFile`].
pub trait WatchedFileContent: Sized {
    /// Log message for a changed file with invalid content.
    const UNUSABLE: &'static str;

    /// Reads and parses the file.
    ///
    /// # Errors
    /// All problems in the file.
    fn read(path: &Path) -> Result<Self, Problems>;

    /// Logs that the file was reloaded.
    fn log_reload(&self, path: &Path);
}

/// Called with the problems of a failed reload, once per new set, and with none after a successful one.
pub type OnFailure = Box<dyn Fn(&Problems) + Send>;

/// A file that was valid when it was opened and is reloaded when it changes.
pub struct WatchedFile<T> {
    path: PathBuf,
    watcher: FileWatcher,
    content: std::marker::PhantomData<fn() -> T>,
}

impl<T: WatchedFileContent> WatchedFile<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// All problems in the file.
    pub fn open(path: &Path) -> Result<(WatchedFile<T>, T), Problems> {
        // Watch before the first read, so that no change in between is missed.
        let follower = FileWatcher::new([path]);
        let first = T::read(path)?;
        Ok((WatchedFile { path: path.to_owned(), watcher: follower, content: std::marker::PhantomData }, first))
    }

    /// Watches the file until the process ends and publishes each valid content. While the file is unreadable or
    /// invalid, the last valid content stays published.
    pub async fn publish_changes(mut self, publisher: Publisher<T>, on_failure: OnFailure, mut drain: Drain) {
        let mut readings = ReloadReporter::new(T::UNUSABLE, on_failure);
        while self.watcher.changed_before_end(&mut drain).await {
            if let Some(read) = readings.report(T::read(&self.path)) {
                let read = Arc::new(read);
                publisher.publish(read.clone());
                read.log_reload(&self.path);
            }
        }
    }
}

/// Reports reload results: each new set of problems once, and the recovery once.
pub struct ReloadReporter {
    unusable: &'static str,
    on_failure: OnFailure,
    reported: Option<Problems>,
}

impl ReloadReporter {
    /// For new problems, logs `unusable` and calls `on_failure`.
    pub fn new(unusable: &'static str, on_failure: OnFailure) -> ReloadReporter {
        ReloadReporter { unusable, on_failure, reported: None }
    }

    /// Whether the last reload failed.
    pub fn is_failing(&self) -> bool {
        self.reported.is_some()
    }

    /// Reports the result of a reload and returns the content if it is valid.
    pub fn report<T>(&mut self, read: Result<T, Problems>) -> Option<T> {
        match read {
            Ok(read) => {
                if self.reported.take().is_some() {
                    (self.on_failure)(&Problems::default());
                }
                Some(read)
            }
            Err(problems) => {
                if self.reported.as_ref() != Some(&problems) {
                    problems.log(self.unusable);
                    (self.on_failure)(&problems);
                    self.reported = Some(problems);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::process::Problem;

    #[test]
    fn reload_reports_each_new_problem_once_and_recovery_once() {
        let heard = Arc::<Mutex<Vec<usize>>>::default();
        let reported = heard.clone();
        let mut readings =
            ReloadReporter::new("it is invalid", Box::new(move |problems| reported.lock().push(problems.0.len())));
        let wrong = |message: &str| Err(Problems(vec![Problem::new("file", message)]));
        let all = [Ok(1), wrong("this"), wrong("this"), wrong("that"), Ok(2), Ok(3)];
        let usable: Vec<i32> = all.into_iter().filter_map(|read| readings.report(read)).collect();
        assert_eq!((usable, heard.lock().clone()), (vec![1, 2, 3], vec![1, 1, 0]));
    }
}
