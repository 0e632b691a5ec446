//! How new a read is: the revision of a collection, and waiting for one.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Error;
use super::collection::ResourceCollection;
use super::snapshot::Snapshot;
use crate::Revision;

/// How long a read waits for a revision (`cacher/watch_cache.go`, `blockTimeout`).
const REVISION_TIMEOUT: Duration = Duration::from_secs(3);

impl ResourceCollection {
    /// The snapshot and the revision of the store up to which it is complete.
    pub fn current(&self) -> (Revision, Arc<Snapshot>) {
        // In this order: a snapshot has all changes up to a progress that was read before it.
        let progress = self.progress();
        let snapshot = self.snapshot();
        (progress.max(snapshot.revision()), snapshot)
    }

    /// Waits until the collection has every change that was acknowledged before this call.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::TooLargeResourceVersion`].
    pub async fn wait_for_acknowledged(&self) -> Result<Revision, Error> {
        self.ensure_loaded().await?;
        let revision = self.store().current().await?;
        self.wait_for(revision).await?;
        Ok(revision)
    }

    /// Waits at most three seconds until the collection is complete up to `revision`.
    ///
    /// # Errors
    /// [`Error::TooLargeResourceVersion`], [`Error::Store`].
    pub async fn wait_for(&self, revision: Revision) -> Result<(), Error> {
        let deadline = Instant::now() + REVISION_TIMEOUT;
        loop {
            self.ensure_loaded().await?;
            let current = self.current().0;
            if current >= revision {
                return Ok(());
            }
            let too_large = Error::TooLargeResourceVersion { requested: revision, current };
            let Some((_, mut progress)) = self.progress_receiver() else { return Err(too_large) };
            let reached = progress.wait_for(|reached| *reached >= revision);
            match tokio::time::timeout_at(deadline, reached).await {
                // Reached, or the feed has ended: see above.
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err(Error::Store(crate::Error::Closed)),
                Err(_) => return Err(too_large),
            }
        }
    }
}
