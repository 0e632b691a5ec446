//! The kinds that the log names as not enforced.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// Kinds that are stored and not enforced, and of which objects were created. Each is logged once.
#[derive(Debug, Default)]
pub(super) struct UnenforcedKinds {
    /// Names as in `networkpolicies.networking.k8s.io`.
    unenforced: Mutex<BTreeSet<String>>,
    /// Whether the log says that workloads need controllers.
    has_workloads: Mutex<bool>,
}

impl UnenforcedKinds {
    pub(super) fn names(&self) -> Vec<String> {
        self.unenforced.lock().iter().cloned().collect()
    }

    /// Notes a kind. Returns whether it was not known.
    pub(super) fn note(&self, name: &str) -> bool {
        self.unenforced.lock().insert(name.to_owned())
    }

    /// Notes that there are workloads. Returns whether that was not known.
    pub(super) fn note_workload(&self) -> bool {
        !std::mem::replace(&mut *self.has_workloads.lock(), true)
    }
}
