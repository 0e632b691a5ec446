//! Which addresses and ports a Service gets (`pkg/registry/core/service/storage/alloc.go`). The families of its addresses
//! are complete.

use std::collections::{HashMap, HashSet};

use kubeapi::Status;
use kubeapi::field_error::{BadValue, FieldError, FieldPath, invalid_fields_status};
use serde_json::{Map, Value, json};

use super::address_collections::AllocationError;
use super::reservation::ServiceReservation;

const SPEC: FieldPath<'static> = FieldPath::root("spec");

/// The specification of a Service that is written, and of the one that it replaces.
pub(super) struct ServiceChange<'s> {
    pub(super) name: &'s str,
    pub(super) spec: &'s mut Value,
    pub(super) old: Option<&'s Value>,
}

impl ServiceChange<'_> {
    /// Gives the Service its addresses, node ports and the port of its health check.
    ///
    /// # Errors
    /// 422 for what is taken or out of range, 500 if nothing is left, with upstream's texts.
    pub(super) async fn allocate(mut self, reservation: &mut ServiceReservation) -> Result<(), Status> {
        self.allocate_addresses(reservation).await?;
        let has_node_ports = |spec: &Value| matches!(spec["type"].as_str(), Some("NodePort" | "LoadBalancer"));
        if has_node_ports(self.spec) {
            match self.old {
                None => self.allocate_node_ports(reservation).await?,
                Some(old) => self.update_node_ports(old, reservation).await?,
            }
        }
        let needs_check = |spec: &Value| spec["type"] == "LoadBalancer" && spec["externalTrafficPolicy"] == "Local";
        if needs_check(self.spec) && !self.old.is_some_and(needs_check) {
            self.allocate_health_check_port(reservation).await?;
        }
        Ok(())
    }

    async fn allocate_addresses(&mut self, reservation: &mut ServiceReservation) -> Result<(), Status> {
        let texts = |value: &Value, field: &str| -> Vec<String> {
            let list = value[field].as_array().into_iter().flatten();
            list.filter_map(|text| text.as_str().map(str::to_owned)).collect()
        };
        let (mut ips, families) = (texts(self.spec, "clusterIPs"), texts(self.spec, "ipFamilies"));
        let is_headless = |ips: &[String]| ips.first().is_some_and(|ip| ip == "None");
        if self.spec["type"] == "ExternalName" || is_headless(&ips) {
            return Ok(());
        }
        let was_external = self.old.is_none_or(|old| old["type"] == "ExternalName");
        let old_ips = self.old.map(|old| texts(old, "clusterIPs")).unwrap_or_default();
        if !was_external && is_headless(&old_ips) {
            return Ok(());
        }
        let old_families = self.old.map_or(0, |old| texts(old, "ipFamilies").len());
        let has_second = families.len() == 2 && old_families == 1;
        let mut allocated = Vec::new();
        for (index, family) in families.iter().enumerate() {
            // A Service of a store from before addresses were allocated has none.
            let is_new = was_external || index >= ips.len() || has_second && index == 1;
            if index >= ips.len() {
                ips.push(String::new());
            }
            if is_new {
                allocated.push((index, family == "IPv6"));
            }
        }
        if allocated.is_empty() {
            return Ok(());
        }
        let given = BadValue::from(&json!(ips));
        for (index, is_ipv6) in allocated {
            let Some(ip) = ips.get_mut(index) else { continue };
            if ip.is_empty() {
                let taken = reservation.take_any_address(is_ipv6).await;
                *ip = taken.map_err(|error| self.address_error(&given, "", error))?.to_string();
            } else {
                let address = ip.parse().map_err(|_| {
                    Status::internal_error(format_args!("failed to parse service IP {}", kubeapi::GoQuoted(ip)))
                })?;
                let taken = reservation.take_address(address).await;
                taken.map_err(|error| self.address_error(&given, ip, error))?;
            }
        }
        if let Some(first) = ips.first() {
            self.spec["clusterIP"] = json!(first);
        }
        self.spec["clusterIPs"] = json!(ips);
        Ok(())
    }

    fn address_error(&self, given: &BadValue, ip: &str, error: AllocationError) -> Status {
        match error {
            AllocationError::Store(status) => status,
            AllocationError::Full => {
                let name = kubeapi::GoQuoted(self.name);
                Status::internal_error(format_args!("failed to allocate a serviceIP for Service {name}: {error}"))
            }
            error => {
                let space = if ip.is_empty() { "" } else { " " };
                let why = format!("failed to allocate IP{space}{ip}: {error}");
                self.invalid(FieldError::invalid(SPEC.child("clusterIPs"), given.clone(), why))
            }
        }
    }

    /// Those of a new Service (`initNodePorts`). Ports of the same number share one.
    async fn allocate_node_ports(&mut self, reservation: &mut ServiceReservation) -> Result<(), Status> {
        let allocates = self.allocates_node_ports();
        let mut requested: HashMap<i64, i64> = HashMap::new();
        for port in self.ports() {
            if number(port, "nodePort") != 0 {
                requested.entry(number(port, "port")).or_insert(number(port, "nodePort"));
            }
        }
        let mut chosen: HashMap<i64, i64> = HashMap::new();
        for index in 0..self.ports().len() {
            let Some(port) = self.ports().get(index) else { continue };
            let (port, node_port) = (number(port, "port"), number(port, "nodePort"));
            if node_port == 0 && !allocates {
                continue;
            }
            let node_port = match (chosen.get(&port).copied(), requested.get(&port).copied()) {
                (None, Some(given)) => {
                    reservation.take_port(given).await.map_err(|error| self.port_error(index, given, error))?;
                    given
                }
                (None, None) => reservation.take_any_port().await.map_err(any_port_error)?,
                (Some(shared), _) if node_port == 0 => shared,
                (Some(shared), _) => {
                    if node_port != shared {
                        let taken = reservation.take_port(node_port).await;
                        taken.map_err(|error| self.port_error(index, node_port, error))?;
                    }
                    node_port
                }
            };
            chosen.entry(port).or_insert(node_port);
            self.set_node_port(index, node_port);
        }
        Ok(())
    }

    /// Those of a Service that replaces another one (`updateNodePorts`).
    async fn update_node_ports(&mut self, old: &Value, reservation: &mut ServiceReservation) -> Result<(), Status> {
        let allocates = self.allocates_node_ports();
        let old_ports = old["ports"].as_array().into_iter().flatten().map(|port| number(port, "nodePort"));
        let mut own: HashSet<i64> = old_ports.filter(|port| *port != 0).collect();
        let mut seen = HashSet::new();
        for index in 0..self.ports().len() {
            let Some(port) = self.ports().get(index) else { continue };
            let (node_port, protocol) = (number(port, "nodePort"), port["protocol"].as_str().unwrap_or_default());
            let protocol = protocol.to_owned();
            if node_port == 0 && !allocates {
                continue;
            }
            let node_port = if node_port == 0 {
                reservation.take_any_port().await.map_err(any_port_error)?
            } else {
                if own.insert(node_port) {
                    let taken = reservation.take_port(node_port).await;
                    taken.map_err(|error| self.port_error(index, node_port, error))?;
                }
                node_port
            };
            self.set_node_port(index, node_port);
            if !seen.insert((protocol.clone(), node_port)) {
                return Err(Status::new(500, "", format!("duplicate nodePort: {{{protocol} {node_port}}}")));
            }
        }
        Ok(())
    }

    async fn allocate_health_check_port(&mut self, reservation: &mut ServiceReservation) -> Result<(), Status> {
        let given = number(self.spec, "healthCheckNodePort");
        if given != 0 {
            return reservation.take_port(given).await.map_err(|error| match error {
                AllocationError::Store(status) => status,
                error => Status::internal_error(format_args!(
                    "failed to allocate requested HealthCheck NodePort {given}: {error}"
                )),
            });
        }
        let port = reservation.take_any_port().await.map_err(|error| match error {
            AllocationError::Store(status) => status,
            error => Status::internal_error(format_args!("failed to allocate a HealthCheck NodePort 0: {error}")),
        })?;
        self.spec["healthCheckNodePort"] = json!(port);
        Ok(())
    }

    fn allocates_node_ports(&self) -> bool {
        self.spec["type"] == "NodePort"
            || self.spec["type"] == "LoadBalancer" && self.spec["allocateLoadBalancerNodePorts"] != false
    }

    fn ports(&self) -> &[Value] {
        self.spec["ports"].as_array().map_or(&[], Vec::as_slice)
    }

    fn set_node_port(&mut self, index: usize, node_port: i64) {
        if let Some(port) = self.spec.get_mut("ports").and_then(|ports| ports.get_mut(index)?.as_object_mut()) {
            port.insert("nodePort".to_owned(), json!(node_port));
        }
    }

    fn port_error(&self, index: usize, port: i64, error: AllocationError) -> Status {
        match error {
            AllocationError::Store(status) => status,
            error => {
                let (ports, why) = (SPEC.child("ports"), error.to_string());
                let path = ports.index(index);
                self.invalid(FieldError::invalid(path.child("nodePort"), port, why))
            }
        }
    }

    fn invalid(&self, error: FieldError) -> Status {
        invalid_fields_status("", "Service", self.name, error)
    }
}

fn any_port_error(error: AllocationError) -> Status {
    match error {
        AllocationError::Store(status) => status,
        error => Status::internal_error(format_args!("failed to allocate a nodePort: {error}")),
    }
}

/// A field that is a number; 0 without.
fn number(object: &Value, field: &str) -> i64 {
    object[field].as_i64().unwrap_or_default()
}

/// The specification of a Service.
pub(super) fn spec_of(service: &Map<String, Value>) -> Option<&Value> {
    service.get("spec").filter(|spec| spec.is_object())
}
