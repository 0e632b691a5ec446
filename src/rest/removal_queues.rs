//! Queues of what is removed with all its objects. Their controllers empty them; requests that remove an object shorten
//! the pause of what it was in.

use std::fmt;

use crate::observe::metrics::WorkQueueRegistry;
use crate::work_queue::{BackOff, WorkQueue};

/// The queues of namespaces and CustomResourceDefinitions that are removed. Cheap to clone.
#[derive(Clone)]
pub(crate) struct RemovalQueues {
    /// Names of namespaces.
    pub(crate) namespaces: WorkQueue<String>,
    /// CustomResourceDefinitions.
    pub(crate) crds: WorkQueue<CrdIdentity>,
}

/// A CustomResourceDefinition: another one may have its name before its removal has ended.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CrdIdentity {
    pub(crate) name: String,
    pub(crate) uid: String,
}

impl fmt::Display for CrdIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl RemovalQueues {
    /// Empty queues. Their names in metrics are those of Kubernetes.
    pub(super) fn new(metrics: &WorkQueueRegistry) -> RemovalQueues {
        RemovalQueues {
            namespaces: WorkQueue::new(BackOff::default(), metrics.register("namespace")),
            crds: WorkQueue::new(BackOff::default(), metrics.register("crd_finalizer")),
        }
    }
}
