//! Addresses and ports that Services get, as those of a kube-apiserver (`pkg/registry/core/service`).
//!
//! A request that creates or replaces a Service reserves what the Service gets before it is validated and written, and frees
//! what it does not have any more afterwards. What a request leaves behind is compared by a controller
//! ([`ApiServer::reconcile_allocation`]): an IPAddress exists exactly while a Service has the address.

mod address_collections;
mod fields;
mod reconcile;
mod reservation;
mod stored_service;
#[cfg(test)]
mod tests;

pub(super) use self::reservation::ServiceReservation;

use std::net::IpAddr;

use kubeapi::Status;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::Value;

use self::address_collections::AllocationError;
use self::fields::{ServiceChange, spec_of};
use self::stored_service::AllocatedFields;
use super::api_server::ApiServer;
use super::service_allocator::ServiceName;
use super::target::ObjectTarget;
use super::write::ObjectWrite;

/// Completes a write, and reserves what its Service gets. Nothing is done for other kinds.
///
/// # Errors
/// As [`ObjectWrite::begin`]; 422 for addresses and ports that are taken, 500 if none are left.
pub(super) async fn begin_write(
    api: &ApiServer,
    target: &ObjectTarget<'_>,
    write: ObjectWrite,
    is_dry_run: bool,
) -> Result<(ObjectWrite, Option<ServiceReservation>), Status> {
    if !target.rules.allocates_addresses || !target.subresource.is_empty() {
        return Ok((write, None));
    }
    let mut write = write.begin(&api.settings).await?;
    let (object, old) = write.objects();
    let name = ObjectMetaView::of_map(object).name().to_owned();
    let service = ServiceName { namespace: target.namespace.to_owned(), name: name.clone() };
    let mut reservation = ServiceReservation::new(api, service, is_dry_run)?;
    if let Some(spec) = object.get_mut("spec").filter(|spec| spec.is_object()) {
        let old_spec = old.and_then(spec_of);
        let changes = |old: &Value| ["type", "clusterIPs"].iter().any(|field| old[*field] != spec[*field]);
        if let (Some(old), true) = (old, old_spec.is_some_and(changes)) {
            reservation.compare_later(AllocatedFields::of_object(old).addresses);
        }
        let change = ServiceChange { name: &name, spec, old: old_spec };
        change.allocate(&mut reservation).await?;
    }
    Ok((write, Some(reservation)))
}

impl ApiServer {
    /// Reserves addresses and a node port for a Service that the server makes.
    ///
    /// # Errors
    /// 409 if one is taken, or in no range.
    pub(crate) async fn reserve_for_service(
        &self,
        service: ServiceName,
        address: IpAddr,
        node_port: Option<u16>,
    ) -> Result<impl FnOnce() + use<>, Status> {
        let mut reservation = ServiceReservation::new(self, service, false)?;
        let refused = |what: &dyn std::fmt::Display, error: AllocationError| {
            Status::conflict("", "services", "kubernetes", format!("failed to allocate {what}: {error}"))
        };
        reservation.take_address(address).await.map_err(|error| refused(&address, error))?;
        if let Some(port) = node_port {
            reservation.take_port(i64::from(port)).await.map_err(|error| refused(&port, error))?;
        }
        Ok(move || reservation.commit())
    }
}
