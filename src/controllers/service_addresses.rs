//! The controller that keeps IPAddresses in step with Services
//! (`pkg/registry/core/service/ipallocator/controller/repairip.go`).

use kubeapi::Status;
use store::watch_cache::ResourceCollection;

use super::builtin_collection;
use super::runner::{Controller, FeedEvent};
use crate::rest::{AllocationKey, ApiServer};
use crate::work_queue::WorkQueue;

/// The controller of the addresses of Services.
pub(super) struct ServiceAddressController {
    api: ApiServer,
    services: ResourceCollection,
    ip_addresses: ResourceCollection,
}

impl ServiceAddressController {
    /// Repairs what an earlier process left behind.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(super) async fn start(api: &ApiServer) -> Result<ServiceAddressController, Status> {
        // Where others have the store, the leader does so by its feeds.
        if !api.settings().shares_store {
            api.reconcile_all_allocations().await?;
        }
        Ok(ServiceAddressController {
            api: api.clone(),
            services: builtin_collection(api, "", "services")?,
            ip_addresses: builtin_collection(api, "networking.k8s.io", "ipaddresses")?,
        })
    }

    pub(super) fn services(&self) -> &ResourceCollection {
        &self.services
    }

    pub(super) fn ip_addresses(&self) -> &ResourceCollection {
        &self.ip_addresses
    }

    /// Adds what a change of a Service leads to.
    pub(super) fn observe_service(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(event) = event {
            self.api.observe_service(event);
        }
    }

    /// Adds what a change of an IPAddress leads to.
    pub(super) fn observe_ip_address(&self, event: &FeedEvent<'_>) {
        if let FeedEvent::Object(event) = event {
            self.api.observe_ip_address(event);
        }
    }
}

impl Controller for ServiceAddressController {
    type Key = AllocationKey;

    const CONCURRENCY: usize = 1;

    fn queue(&self) -> &WorkQueue<AllocationKey> {
        self.api.allocation_queue()
    }

    async fn reconcile(&self, key: &AllocationKey) -> Result<(), Status> {
        self.api.reconcile_allocation(key).await
    }
}
