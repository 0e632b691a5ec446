//! A snapshot at an older revision: the current one with the changes in the ring undone.

use std::sync::Arc;

use parking_lot::RwLock;

use super::change_log::ChangeRing;
use super::snapshot::Snapshot;
use crate::Revision;

/// Number of changes that are undone before other tasks of the thread run.
const CHANGES_AT_ONCE: usize = 256;

/// The snapshot as of `revision`; none if the ring does not reach back to it.
pub(super) async fn roll_back(
    snapshot: Arc<Snapshot>,
    ring: &RwLock<ChangeRing>,
    revision: Revision,
) -> Option<Arc<Snapshot>> {
    if revision >= snapshot.revision() {
        return Some(snapshot);
    }
    let mut older = Snapshot::clone(&snapshot);
    loop {
        // The ring has every change of the snapshot: it is written first.
        let newest = ring.read().newest(revision, older.revision(), CHANGES_AT_ONCE)?;
        if newest.is_empty() {
            return Some(Arc::new(older));
        }
        newest.iter().for_each(|change| older.undo(change));
        tokio::task::yield_now().await;
    }
}
