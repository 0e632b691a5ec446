//! Frees what Services do not have any more, and repairs what is left behind
//! (`pkg/registry/core/service/ipallocator/controller/repairip.go`).

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use jiff::Timestamp;
use kubeapi::Status;
use serde_json::{Map, Value};
use store::watch_cache::{Error, Stored, WatchEvent, WatchEventKind};

use super::address_collections::{AddressCollections, AllocationError};
use super::stored_service::{AllocatedFields, owner_of};
use crate::rest::api_server::ApiServer;
use crate::rest::errors::unavailable;
use crate::rest::service_allocator::{AllocationKey, ServiceName};
use crate::work_queue::WorkQueue;

/// How long the IPAddress of a Service that does not exist is kept where several servers share the store
/// (`repairip.go`, `gracePeriod`).
const RESERVATION_TIME: Duration = Duration::from_secs(60);

impl ApiServer {
    /// The addresses and Services to compare.
    pub(crate) fn allocation_queue(&self) -> &WorkQueue<AllocationKey> {
        &self.service_allocator.state().queue
    }

    /// Compares all addresses and Services, before the server serves requests.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(crate) async fn reconcile_all_allocations(&self) -> Result<(), Status> {
        let AddressCollections { services, ip_addresses, .. } = AddressCollections::new(self)?;
        for collection in [&services, &ip_addresses] {
            collection.ensure_loaded().await.map_err(|error| unavailable(&error))?;
        }
        let (all_services, all_addresses) = (services.snapshot(), ip_addresses.snapshot());
        for ip_address in all_addresses.range(ip_addresses.prefix(), None) {
            if let Ok(address) = ip_address.name().parse() {
                self.reconcile_allocation(&AllocationKey::Address(address)).await?;
            }
        }
        for service in all_services.range(services.prefix(), None) {
            self.reconcile_allocation(&AllocationKey::Service(service_name(service))).await?;
        }
        Ok(())
    }

    /// Adds what a change of a Service leads to.
    pub(crate) fn observe_service(&self, event: &WatchEvent) {
        let Some(object) = &event.object else { return };
        if event.kind != WatchEventKind::Deleted {
            return self.allocation_queue().add(AllocationKey::Service(service_name(object)));
        }
        let fields = AllocatedFields::of_stored(object);
        let keys = fields.addresses.into_iter().map(AllocationKey::Address);
        keys.for_each(|key| self.allocation_queue().add(key));
    }

    /// Adds what a change of an IPAddress leads to: the Service of one that was deleted gets it again.
    pub(crate) fn observe_ip_address(&self, event: &WatchEvent) {
        let Some(object) = &event.object else { return };
        if event.kind != WatchEventKind::Deleted {
            if let Ok(address) = object.name().parse() {
                self.allocation_queue().add(AllocationKey::Address(address));
            }
        } else if let Some((namespace, name)) = owner_of(object) {
            self.allocation_queue().add(AllocationKey::Service(ServiceName { namespace, name }));
        }
    }

    /// Brings the IPAddress of an address, or those of a Service, into the state that they should have.
    ///
    /// # Errors
    /// The store cannot be read or written.
    pub(crate) async fn reconcile_allocation(&self, key: &AllocationKey) -> Result<(), Status> {
        match key {
            AllocationKey::Address(address) => self.release_address(*address, None).await,
            AllocationKey::Service(service) => self.repair_service(service).await,
        }
    }

    /// Deletes the IPAddress of an address that no Service has, at once if it is that of `released`, a Service that is replaced
    /// or deleted.
    async fn release_address(&self, address: IpAddr, released: Option<&ServiceName>) -> Result<(), Status> {
        let collections = AddressCollections::new(self)?;
        let Some(current) = collections.ip_address(address).await? else { return Ok(()) };
        let owner = owner_of(&current).map(|(namespace, name)| ServiceName { namespace, name });
        if released.is_none_or(|released| owner.as_ref() != Some(released))
            && let Some(rest) = self.reservation_time_left(&current)
        {
            self.allocation_queue().add_after(AllocationKey::Address(address), rest);
            return Ok(());
        }
        // After the IPAddress was read: a request that reserved it is finished, or its Service is seen.
        if self.service_allocator.state().pending_addresses.lock().contains(&address)
            || collections.is_in_use(&current, address).await?
            // It goes with its last finalizer.
            || !current.metadata().finalizers.is_empty()
        {
            return Ok(());
        }
        match collections.ip_addresses.delete(current.key(), current.revision()).await {
            // Another request reserved it.
            Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// How long an IPAddress may still be that of a request to another server, whose Service is not written yet. None when that
    /// time is over, and if no other server has the store.
    pub(super) fn reservation_time_left(&self, ip_address: &Stored) -> Option<Duration> {
        let created = ip_address.metadata().creation_timestamp.as_deref().filter(|_| self.settings.shares_store)?;
        let age = Timestamp::now().duration_since(created.parse().ok()?);
        // A clock may be behind.
        let age = Duration::try_from(age).unwrap_or_default();
        RESERVATION_TIME.checked_sub(age).filter(|rest| !rest.is_zero())
    }

    /// Creates the IPAddresses of a Service that do not exist.
    async fn repair_service(&self, service: &ServiceName) -> Result<(), Status> {
        let collections = AddressCollections::new(self)?;
        let Some(current) = collections.service(service).await? else { return Ok(()) };
        for address in AllocatedFields::of_stored(&current).addresses {
            let found = collections.ip_address(address).await?;
            let owner = found.as_deref().and_then(owner_of);
            if owner
                .is_some_and(|(namespace, name)| (namespace, name) == (service.namespace.clone(), service.name.clone()))
            {
                continue;
            }
            match collections.assign(address, service).await {
                Ok(()) => {}
                Err(AllocationError::Store(status)) => return Err(status),
                Err(error) => {
                    let ServiceName { namespace, name } = service;
                    tracing::warn!(%address, "cluster IP of Service {namespace}/{name} is that of another object: {error}");
                }
            }
        }
        Ok(())
    }

    /// Frees what a Service had and does not have any more, now that it is replaced by `object`, or deleted. What fails is
    /// tried again by the controller.
    pub(in crate::rest) async fn release_of_service(&self, old: &Stored, object: Option<&Map<String, Value>>) {
        let (mut before, after) = (AllocatedFields::of_stored(old), object.map(AllocatedFields::of_object));
        let after = after.unwrap_or_default();
        let (addresses, ports): (HashSet<_>, HashSet<_>) =
            (after.addresses.into_iter().collect(), after.node_ports.into_iter().collect());
        before.addresses.retain(|address| !addresses.contains(address));
        before.node_ports.retain(|port| !ports.contains(port));
        self.service_allocator.release_ports(&service_name(old), &before.node_ports);
        for address in before.addresses {
            if self.release_address(address, Some(&service_name(old))).await.is_err() {
                self.allocation_queue().add(AllocationKey::Address(address));
            }
        }
    }

    /// Frees what a deleted Service had, and deletes its Endpoints (`afterDelete`).
    pub(in crate::rest) async fn release_deleted_service(&self, service: &Stored) {
        self.release_of_service(service, None).await;
        let Some(endpoints) = self.builtin_collection("", "endpoints") else { return };
        let Ok(key) = endpoints.prefix().key(service.namespace(), service.name()) else { return };
        if let Ok(Some(current)) = endpoints.get_latest(&key).await
            && current.metadata().finalizers.is_empty()
            && let Err(error) = endpoints.delete(&key, current.revision()).await
        {
            tracing::warn!(%key, "Endpoints of a deleted Service not deleted: {error}");
        }
    }
}

fn service_name(service: &Stored) -> ServiceName {
    ServiceName { namespace: service.namespace().to_owned(), name: service.name().to_owned() }
}
