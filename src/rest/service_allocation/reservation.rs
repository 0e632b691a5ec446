//! Addresses and ports that a request has reserved for a Service, until the Service is written or the request ends.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;

use kubeapi::Status;

use super::address_collections::{AddressCollections, AllocationError, address_ranges};
use super::stored_service::AllocatedFields;
use crate::rest::address_range::AddressRange;
use crate::rest::api_server::ApiServer;
use crate::rest::errors::unavailable;
use crate::rest::service_allocator::{AllocationKey, PortHolder, ServiceAllocator, ServiceName};

const PORT_TAKEN: AllocationError = AllocationError::Taken("provided port is already allocated");

/// Port after which those of a dry run come (`AllocateNext` in `portallocator/operation.go`).
const DRY_RUN_PORT: i64 = 32_768;

/// What is reserved for a Service. Dropped without [`commit`](ServiceReservation::commit), everything is free again.
pub(in crate::rest) struct ServiceReservation {
    api: ApiServer,
    allocator: ServiceAllocator,
    collections: AddressCollections,
    service: ServiceName,
    addresses: Vec<IpAddr>,
    /// Addresses of the Service that is replaced: they are compared when the request ends, however it does.
    old_addresses: Vec<IpAddr>,
    ports: Vec<i64>,
    /// Ports that a dry run would have reserved: any numbers.
    dry_run_ports: BTreeSet<i64>,
    is_dry_run: bool,
}

impl ServiceReservation {
    /// Nothing is reserved yet.
    ///
    /// # Errors
    /// 500 if the server has no Services.
    pub(super) fn new(api: &ApiServer, service: ServiceName, is_dry_run: bool) -> Result<ServiceReservation, Status> {
        Ok(ServiceReservation {
            api: api.clone(),
            allocator: api.service_allocator.clone(),
            collections: AddressCollections::new(api)?,
            service,
            addresses: Vec::new(),
            old_addresses: Vec::new(),
            ports: Vec::new(),
            dry_run_ports: BTreeSet::new(),
            is_dry_run,
        })
    }

    /// Has addresses compared when the request ends: the Service may lose them.
    pub(super) fn compare_later(&mut self, addresses: Vec<IpAddr>) {
        if !self.is_dry_run {
            self.old_addresses = addresses;
        }
    }

    /// Reserves an address that a client gave.
    ///
    /// # Errors
    /// It is taken, or in no range.
    pub(super) async fn take_address(&mut self, address: IpAddr) -> Result<(), AllocationError> {
        let ranges = self.ranges(address.is_ipv6()).await?;
        if !ranges.iter().any(|range| range.contains(address)) {
            return Err(AllocationError::OutOfRange(match (self.is_dry_run, ranges.first()) {
                (true, Some(range)) => format!(
                    "the provided IP ({address}) is not in the valid range. The range of valid IPs is {}",
                    range.net()
                ),
                (true, None) => "allocator not ready".to_owned(),
                (false, _) => "the provided network does not match the current range".to_owned(),
            }));
        }
        if self.is_dry_run {
            return Ok(());
        }
        if !self.begin_address(address) {
            return Err(AllocationError::Taken("provided IP is already allocated"));
        }
        self.collections.assign(address, &self.service).await
    }

    /// Reserves a free address of a family.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn take_any_address(&mut self, is_ipv6: bool) -> Result<IpAddr, AllocationError> {
        let ranges = self.ranges(is_ipv6).await?;
        if self.is_dry_run {
            // Not one that is free, as upstream.
            return ranges.first().map(|range| range.net().network()).ok_or(AllocationError::Full);
        }
        self.collections.ip_addresses.ensure_loaded().await.map_err(|error| AllocationError::from(&error))?;
        for address in ranges.iter().flat_map(AddressRange::candidates) {
            let key = self.collections.ip_addresses.prefix().key("", &address.to_string());
            if key.is_ok_and(|key| self.collections.ip_addresses.get(&key).is_some()) || !self.begin_address(address) {
                continue;
            }
            match self.collections.assign(address, &self.service).await {
                Ok(()) => return Ok(address),
                // Another writer was faster.
                Err(AllocationError::Taken(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Err(AllocationError::Full)
    }

    /// Reserves a node port that a client gave.
    ///
    /// # Errors
    /// It is taken, or not in the range.
    pub(super) async fn take_port(&mut self, port: i64) -> Result<(), AllocationError> {
        self.load_ports().await?;
        let range = &self.api.settings.services.node_ports;
        let number = u16::try_from(port).ok().filter(|number| range.contains(number));
        if self.is_dry_run {
            let is_taken = self.dry_run_ports.contains(&port)
                || number.is_some_and(|number| self.with_ports(|ports| ports.contains_key(&number)));
            if is_taken {
                return Err(PORT_TAKEN);
            }
            self.dry_run_ports.insert(port);
            return Ok(());
        }
        let Some(number) = number else {
            let (first, last) = (range.start(), range.end());
            let why = "provided port is not in the valid range. The range of valid ports is";
            return Err(AllocationError::OutOfRange(format!("{why} {first}-{last}")));
        };
        match self.try_port(number).await? {
            true => Ok(()),
            false => Err(PORT_TAKEN),
        }
    }

    /// Reserves a free node port.
    ///
    /// # Errors
    /// There is none.
    pub(super) async fn take_any_port(&mut self) -> Result<i64, AllocationError> {
        if self.is_dry_run {
            let port = self.dry_run_ports.last().copied().unwrap_or(DRY_RUN_PORT).saturating_add(1);
            self.dry_run_ports.insert(port);
            return Ok(port);
        }
        self.load_ports().await?;
        let range = self.api.settings.services.node_ports.clone();
        let (first, last) = (*range.start(), *range.end());
        let dynamic = first.saturating_add(static_ports(range.len()));
        let order = || from_random(dynamic, last).chain(from_random(first, dynamic.saturating_sub(1)));
        let free = self.with_ports(|ports| order().find(|port| !ports.contains_key(port)));
        // Without a free one, those of Services that were deleted unseen.
        for port in free.into_iter().chain(order()) {
            if self.try_port(port).await? {
                return Ok(i64::from(port));
            }
        }
        Err(AllocationError::Full)
    }

    /// Notes that the Service was written: the ports are its own. Its addresses are compared once more.
    pub(in crate::rest) fn commit(mut self) {
        let ports = std::mem::take(&mut self.ports);
        if self.is_dry_run {
            return;
        }
        self.with_ports(|holders| {
            for port in ports.iter().filter_map(|port| u16::try_from(*port).ok()) {
                if let Some(holder) = holders.get_mut(&port) {
                    holder.is_pending = false;
                }
            }
        });
    }

    /// Ranges of a family.
    async fn ranges(&self, is_ipv6: bool) -> Result<Vec<AddressRange>, AllocationError> {
        let mut ranges = address_ranges(&self.api).await.map_err(AllocationError::Store)?;
        ranges.retain(|range| range.is_ipv6() == is_ipv6);
        Ok(ranges)
    }

    /// Whether no other request has the address. From then on, its end compares the address.
    fn begin_address(&mut self, address: IpAddr) -> bool {
        let is_free = self.allocator.state().pending_addresses.lock().insert(address);
        if is_free {
            self.addresses.push(address);
        }
        is_free
    }

    /// Reserves a port, also one whose Service does not have it any more.
    async fn try_port(&mut self, port: u16) -> Result<bool, AllocationError> {
        loop {
            let service = self.service.clone();
            let holder = self.with_ports(|ports| match ports.get(&port) {
                None => {
                    ports.insert(port, PortHolder { service, is_pending: true });
                    None
                }
                Some(holder) => Some((holder.service.clone(), holder.is_pending)),
            });
            let holder = match holder {
                None => {
                    self.ports.push(i64::from(port));
                    return Ok(true);
                }
                Some((_, true)) => return Ok(false),
                Some((holder, false)) => holder,
            };
            let found = self.collections.service(&holder).await.map_err(AllocationError::Store)?;
            if found.is_some_and(|found| AllocatedFields::of_stored(&found).node_ports.contains(&port)) {
                return Ok(false);
            }
            self.allocator.release_ports(&holder, &[port]);
        }
    }

    /// Reads the ports of the Services of the store: once, or each time if other servers write Services, too.
    async fn load_ports(&self) -> Result<(), AllocationError> {
        let shares_store = self.api.settings.shares_store;
        if !shares_store && self.allocator.state().node_ports.lock().is_some() {
            return Ok(());
        }
        let services = &self.collections.services;
        services.ensure_loaded().await.map_err(|error| AllocationError::Store(unavailable(&error)))?;
        if shares_store {
            // What others have acknowledged is in the snapshot then.
            self.collections.service(&self.service).await.map_err(AllocationError::Store)?;
        }
        // Locked, so that no port is reserved meanwhile.
        let mut held = self.allocator.state().node_ports.lock();
        let mut ports = self.stored_ports();
        // Those of requests that are not finished.
        ports.extend(held.take().into_iter().flatten().filter(|(_, holder)| holder.is_pending));
        *held = Some(ports);
        Ok(())
    }

    /// The ports of the Services of the store.
    fn stored_ports(&self) -> HashMap<u16, PortHolder> {
        let services = &self.collections.services;
        let snapshot = services.snapshot();
        let ports = snapshot.range(services.prefix(), None).flat_map(|stored| {
            let (namespace, name) = (stored.namespace().to_owned(), stored.name().to_owned());
            let service = ServiceName { namespace, name };
            let ports = AllocatedFields::of_stored(stored).node_ports.into_iter();
            ports.map(move |port| (port, PortHolder { service: service.clone(), is_pending: false }))
        });
        ports.collect()
    }

    fn with_ports<T>(&self, call: impl FnOnce(&mut HashMap<u16, PortHolder>) -> T) -> T {
        call(self.allocator.state().node_ports.lock().get_or_insert_default())
    }
}

impl Drop for ServiceReservation {
    fn drop(&mut self) {
        let state = self.allocator.state();
        for address in self.old_addresses.drain(..) {
            state.queue.add(AllocationKey::Address(address));
        }
        for address in self.addresses.drain(..) {
            state.pending_addresses.lock().remove(&address);
            state.queue.add(AllocationKey::Address(address));
        }
        if self.ports.is_empty() || self.is_dry_run {
            return;
        }
        if let Some(holders) = state.node_ports.lock().as_mut() {
            // The write may go on in the store. Whether the Service has the port is found out when another wants it.
            for port in self.ports.drain(..).filter_map(|port| u16::try_from(port).ok()) {
                if let Some(holder) = holders.get_mut(&port) {
                    holder.is_pending = false;
                }
            }
        }
    }
}

/// Ports at the beginning of a range of `size` that are for clients who choose theirs
/// (`calculateRangeOffset` in `portallocator/allocator.go`).
fn static_ports(size: usize) -> u16 {
    if size <= 16 { 0 } else { u16::try_from((size / 32).clamp(16, 128)).unwrap_or_default() }
}

/// The ports of a range from a random one on.
fn from_random(first: u16, last: u16) -> impl Iterator<Item = u16> {
    let start = if first <= last { fastrand::u16(first..=last) } else { first };
    (start..=last).chain(first..start)
}
