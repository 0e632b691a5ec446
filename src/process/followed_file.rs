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
        let mut told: Option<Problems> = None;
        loop {
            tokio::select! {
                () = self.follower.changed() => {}
                () = drain.reached(Phase::Ending) => return,
            }
            match T::read(&self.path) {
                Ok(read) => {
                    read.tell_read_again(&self.path);
                    publisher.publish(Arc::new(read));
                    if told.take().is_some() {
                        on_failure(&Problems::default());
                    }
                }
                Err(problems) if told.as_ref() != Some(&problems) => {
                    tracing::error!(%problems, "{}", T::UNUSABLE);
                    on_failure(&problems);
                    told = Some(problems);
                }
                Err(_) => {}
            }
        }
    }
}
