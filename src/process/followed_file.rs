//! A file that is read again whenever it changes, and whose last good reading stays.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Drain, Follower, Phase, Problems, Publisher};

/// What such a file holds.
pub trait Followed: Sized {
    /// For the log, when the file changed and cannot be used.
    const UNUSABLE: &'static str;

    /// Reads the file.
    ///
    /// # Errors
    /// All mistakes in it.
    fn read(path: &Path) -> Result<Self, Problems>;

    /// Says in the log that it was read again.
    fn tell_read_again(&self, path: &Path);
}

/// Called with what is wrong, once for each new mistake, and with no problems when all is well again.
pub type OnFailure = Box<dyn Fn(&Problems) + Send>;

/// A file that was right when it was opened.
pub struct FollowedFile<T> {
    path: PathBuf,
    follower: Follower,
    holds: std::marker::PhantomData<fn() -> T>,
}

impl<T: Followed> FollowedFile<T> {
    /// Reads the file for the first time.
    ///
    /// # Errors
    /// All mistakes in it.
    pub fn open(path: &Path) -> Result<(FollowedFile<T>, T), Problems> {
        // Before the first reading, so that no change falls between.
        let follower = Follower::new([path]);
        let first = T::read(path)?;
        Ok((FollowedFile { path: path.to_owned(), follower, holds: std::marker::PhantomData }, first))
    }

    /// Follows the file until the process ends, and publishes what became of it. While it cannot be read, or
    /// holds a mistake, the last good reading stays.
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

/// What came of reading the same thing again and again: each new mistake is told once, and once that all is well again.
pub struct Readings {
    unusable: &'static str,
    on_failure: OnFailure,
    told: Option<Problems>,
}

impl Readings {
    /// `unusable` is said in the log, and `on_failure` called, when there is a new mistake.
    pub fn new(unusable: &'static str, on_failure: OnFailure) -> Readings {
        Readings { unusable, on_failure, told: None }
    }

    /// What was read, if it can be used.
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
