//! What requests have reserved for Services: addresses of requests that are not finished, and all node ports.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::observe::metrics::WorkQueueRegistry;
use crate::work_queue::{BackOff, WorkQueue};

/// Addresses and ports of Services. Cheap to clone.
#[derive(Clone)]
pub(super) struct ServiceAllocator(Arc<AllocatorState>);

pub(super) struct AllocatorState {
    /// Addresses of requests that are not finished: their Services may not exist yet.
    pub(super) pending_addresses: Mutex<HashSet<IpAddr>>,
    /// Node ports, from the first use on.
    pub(super) node_ports: Mutex<Option<HashMap<u16, PortHolder>>>,
    /// What is to be compared: addresses with their Services, and Services with their addresses.
    pub(super) queue: WorkQueue<AllocationKey>,
}

/// Who has a node port.
pub(super) struct PortHolder {
    pub(super) service: ServiceName,
    /// Whether the request that reserved it is not finished.
    pub(super) is_pending: bool,
}

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ServiceName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// What is to be compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum AllocationKey {
    /// An address: its IPAddress is deleted if no Service has it.
    Address(IpAddr),
    /// A Service: its addresses have IPAddresses.
    Service(ServiceName),
}

impl ServiceAllocator {
    /// Nothing is reserved. The queue has the name of upstream's controller in metrics.
    pub(super) fn new(metrics: &WorkQueueRegistry) -> ServiceAllocator {
        ServiceAllocator(Arc::new(AllocatorState {
            pending_addresses: Mutex::default(),
            node_ports: Mutex::default(),
            queue: WorkQueue::new(BackOff::default(), metrics.register("repair-ip-address-controller")),
        }))
    }

    pub(super) fn state(&self) -> &AllocatorState {
        &self.0
    }

    /// Frees ports of a Service.
    pub(super) fn release_ports(&self, service: &ServiceName, ports: &[u16]) {
        if let Some(holders) = self.state().node_ports.lock().as_mut() {
            for port in ports {
                if holders.get(port).is_some_and(|holder| holder.service == *service && !holder.is_pending) {
                    holders.remove(port);
                }
            }
        }
    }
}

impl fmt::Display for AllocationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocationKey::Address(address) => write!(f, "{address}"),
            AllocationKey::Service(ServiceName { namespace, name }) => write!(f, "{namespace}/{name}"),
        }
    }
}
