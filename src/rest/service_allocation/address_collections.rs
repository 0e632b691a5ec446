//! The objects that hold the addresses of Services: IPAddresses, and the ServiceCIDRs with the ranges.
//!
//! The IPAddress of an address exists while a Service has the address: its creation reserves the address, also for a process
//! that ends before the Service is written.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use kubeapi::Status;
use serde::Deserialize;
use serde_json::json;
use store::watch_cache::{Error, ResourceCollection, Stored};

use super::stored_service::{AllocatedFields, MANAGED_BY, owner_of};
use crate::rest::address_range::AddressRange;
use crate::rest::api_server::ApiServer;
use crate::rest::errors::unavailable;
use crate::rest::metadata::new_object;
use crate::rest::service_allocator::ServiceName;

/// Why an address or port is not reserved. The texts are those of upstream's allocators.
#[derive(Debug)]
pub(super) enum AllocationError {
    Taken(&'static str),
    OutOfRange(String),
    Full,
    /// The store cannot be read or written.
    Store(Status),
}

impl fmt::Display for AllocationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllocationError::Taken(why) => f.write_str(why),
            AllocationError::OutOfRange(why) => f.write_str(why),
            AllocationError::Full => f.write_str("range is full"),
            AllocationError::Store(status) => f.write_str(&status.message),
        }
    }
}

impl From<&Error> for AllocationError {
    fn from(error: &Error) -> AllocationError {
        AllocationError::Store(unavailable(error))
    }
}

/// The collections that addresses are in.
pub(super) struct AddressCollections {
    api: ApiServer,
    pub(super) services: ResourceCollection,
    pub(super) ip_addresses: ResourceCollection,
}

impl AddressCollections {
    /// # Errors
    /// 500 if the server does not have them.
    pub(super) fn new(api: &ApiServer) -> Result<AddressCollections, Status> {
        let collection = |group: &str, plural: &str| {
            let found = api.builtin_collection(group, plural);
            found.ok_or_else(|| Status::internal_error(format_args!("no {plural}")))
        };
        Ok(AddressCollections {
            api: api.clone(),
            services: collection("", "services")?,
            ip_addresses: collection("networking.k8s.io", "ipaddresses")?,
        })
    }

    /// A Service; none if it does not exist.
    pub(super) async fn service(&self, service: &ServiceName) -> Result<Option<Arc<Stored>>, Status> {
        let Ok(key) = self.services.prefix().key(&service.namespace, &service.name) else { return Ok(None) };
        self.services.get_latest(&key).await.map_err(|error| unavailable(&error))
    }

    /// The IPAddress of an address; none if it does not exist.
    pub(super) async fn ip_address(&self, address: IpAddr) -> Result<Option<Arc<Stored>>, Status> {
        let key = self.ip_addresses.prefix().key("", &address.to_string()).map_err(Status::internal_error)?;
        self.ip_addresses.get_latest(&key).await.map_err(|error| unavailable(&error))
    }

    /// Whether an IPAddress keeps its address: the Service that it names has it, or it is not one of ours.
    pub(super) async fn is_in_use(&self, ip_address: &Stored, address: IpAddr) -> Result<bool, Status> {
        let Some((namespace, name)) = owner_of(ip_address) else { return Ok(true) };
        let service = self.service(&ServiceName { namespace, name }).await?;
        Ok(service.is_some_and(|service| AllocatedFields::of_stored(&service).addresses.contains(&address)))
    }

    /// Creates the IPAddress of an address, or gives one to a Service whose former Service does not have it any more.
    ///
    /// # Errors
    /// The address is taken, or the store cannot be written.
    pub(super) async fn assign(&self, address: IpAddr, service: &ServiceName) -> Result<(), AllocationError> {
        let key = self.ip_addresses.prefix().key("", &address.to_string());
        let key = key.map_err(|error| AllocationError::Store(Status::internal_error(error)))?;
        loop {
            let value = ip_address_value(address, service).map_err(AllocationError::Store)?;
            let current = match self.ip_addresses.create(&key, value.clone(), None).await {
                Ok(_) => return Ok(()),
                Err(Error::Conflict { current }) => current,
                Err(error) => return Err((&error).into()),
            };
            // Else it was deleted meanwhile.
            let Some(current) = current else { continue };
            let is_own = owner_of(&current)
                .is_some_and(|(namespace, name)| (&namespace, &name) == (&service.namespace, &service.name));
            let is_reserved = !is_own && self.api.reservation_time_left(&current).is_some();
            if is_reserved || self.is_in_use(&current, address).await.map_err(AllocationError::Store)? {
                return Err(AllocationError::Taken("provided IP is already allocated"));
            }
            match self.ip_addresses.update(&key, current.revision(), value, None).await {
                Ok(_) => return Ok(()),
                Err(Error::Conflict { .. }) => {}
                Err(error) => return Err((&error).into()),
            }
        }
    }
}

/// A new IPAddress of a Service, as it is stored.
fn ip_address_value(address: IpAddr, service: &ServiceName) -> Result<bytes::Bytes, Status> {
    let family = if address.is_ipv6() { "IPv6" } else { "IPv4" };
    let (label, manager) = MANAGED_BY;
    let object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IPAddress",
        "metadata": {
            "name": address.to_string(),
            "labels": {"ipaddress.kubernetes.io/ip-family": family, label: manager},
        },
        "spec": {
            "parentRef": {"resource": "services", "namespace": service.namespace, "name": service.name},
        },
    });
    match object {
        serde_json::Value::Object(object) => new_object("networking.k8s.io", "v1", "ipaddresses", object),
        _ => Err(Status::internal_error("no IPAddress")),
    }
}

/// The ranges that addresses come from: those of the ServiceCIDRs that are ready and not being deleted. Before there are any
/// ServiceCIDRs, those of the flag.
///
/// # Errors
/// The store cannot be read.
pub(super) async fn address_ranges(api: &ApiServer) -> Result<Vec<AddressRange>, Status> {
    let cidrs = api.builtin_collection("networking.k8s.io", "servicecidrs");
    let cidrs = cidrs.ok_or_else(|| Status::internal_error("no servicecidrs"))?;
    cidrs.ensure_loaded().await.map_err(|error| unavailable(&error))?;
    let snapshot = cidrs.snapshot();
    if snapshot.is_empty() {
        return Ok(api.settings().services.cluster_ip_ranges().map(AddressRange::new).collect());
    }
    let ready = snapshot.range(cidrs.prefix(), None).filter(|cidr| cidr.metadata().deletion_timestamp.is_none());
    Ok(ready.flat_map(|cidr| ready_ranges(cidr)).collect())
}

fn ready_ranges(service_cidr: &Stored) -> Vec<AddressRange> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct ServiceCidr {
        spec: CidrSpec,
        status: CidrStatus,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CidrSpec {
        cidrs: Vec<String>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CidrStatus {
        conditions: Vec<CidrCondition>,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct CidrCondition {
        r#type: String,
        status: String,
    }
    let object: ServiceCidr = serde_json::from_slice(service_cidr.bytes()).unwrap_or_default();
    // Without the condition it is ready (`isReady`).
    let readiness = object.status.conditions.iter().find(|condition| condition.r#type == "Ready");
    if readiness.is_some_and(|condition| condition.status != "True") {
        return Vec::new();
    }
    let ranges = object.spec.cidrs.iter().filter_map(|cidr| cidr.parse::<ipnet::IpNet>().ok());
    // As upstream, an IPv6 network of more than 64 bits is not used.
    let ranges = ranges.filter(|range| range.addr().is_ipv4() || range.prefix_len() >= 64);
    ranges.map(AddressRange::new).collect()
}
