//! A file that is reloaded when it changes; the last valid content stays in use.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Drain, Follower, Phase, Problems, Publisher};

/// Content of a [`FollowedFile`].
pub trait Followed: Sized {
    /// Log message for a changed file with invalid content.
    const UNUSABLE: &'static str;

    /// Reads and parses the file.
    ///
    /// # Errors
    /// All problems in the file.
    fn read(path: &Path) -> Result<Self, Problems>;

    /// Logs that the file was reloaded.
    fn tell_read_again(&self, path: &Path);
}

/// Called with the problems of a failed reload, once per new set, and with none after a successful one.
pub type OnFailure = Box<dyn Fn(&Problems) + Send>;

/// A file that was valid when it was opened and is reloaded when it changes.
pub struct FollowedFile<T> {
    path: PathBuf,
    follower: Follower,
    holds: std::marker::PhantomData<fn() -> T>,
}

impl<T: Followed> FollowedFile<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// All problems in the file.
    pub fn open(path: &Path) -> Result<(FollowedFile<T>, T), Problems> {
        // Watch before the first read, so that no change in between is missed.
        let follower = Follower::new([path]);
        let first = T::read(path)?;
        Ok((FollowedFile { path: path.to_owned(), follower, holds: std::marker::PhantomData }, first))
    }

    /// Watches the file until the process ends and publishes each valid content. While the file is unreadable or
    /// invalid, the last valid content stays published.
    pub async fn follow(mut self, publisher: Publisher<T>, on_failure: OnFailure, mut drain: Drain) {
        let mut readings = Readings::new(T::UNUSABLE, on_failure);
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            if let Some(read) = readings.usable(T::read(&self.path)) {
                read.tell_read_again(&self.path);
                publisher.publish(Arc::new(read));
            }
        }
    }
}

/// Reports reload results: each new set of problems once, and the recovery once.
pub struct Readings {
    unusable: &'static str,
    on_failure: OnFailure,
    told: Option<Problems>,
}

impl Readings {
    /// For new problems, logs `unusable` and calls `on_failure`.
    pub fn new(unusable: &'static str, on_failure: OnFailure) -> Readings {
        Readings { unusable, on_failure, told: None }
    }

    /// Reports the result of a reload and returns the content if it is valid.
    pub fn usable<T>(&mut self, read: Result<T, Problems>) -> Option<T> {
        match read {
            Ok(read) => {
                if self.told.take().is_some() {
                    (self.on_failure)(&Problems::default());
                }
                Some(read)
            }
            Err(problems) => {
                if self.told.as_ref() != Some(&problems) {
                    problems.log(self.unusable);
                    (self.on_failure)(&problems);
                    self.told = Some(problems);
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
    fn a_mistake_is_told_once_and_so_is_its_mending() {
        let heard = Arc::<Mutex<Vec<usize>>>::default();
        let telling = heard.clone();
        let mut readings =
            Readings::new("it is not usable", Box::new(move |problems| telling.lock().push(problems.0.len())));
        let wrong = |message: &str| Err(Problems(vec![Problem::new("file", message)]));
        let all = [Ok(1), wrong("this"), wrong("this"), wrong("that"), Ok(2), Ok(3)];
        let usable: Vec<i32> = all.into_iter().filter_map(|read| readings.usable(read)).collect();
        assert_eq!((usable, heard.lock().clone()), (vec![1, 2, 3], vec![1, 1, 0]));
    }
}
