//! Cells of a Table, as a kube-apiserver prints them (`k8s.io/kubernetes/pkg/printers/internalversion/printers.go`,
//! kube-aggregator's `registry/apiservice/etcd/etcd.go`).

use std::collections::BTreeSet;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::custom::cells::{custom_cells, scale_cells};
use super::{ResourceColumn, ServedKind};
use crate::kubeapi::human_duration::age_of;

/// Maximum number of addresses or ports in a cell.
const MAX_LISTED: usize = 3;

/// The cells of an object, one for each column of its resource. Ages are relative to `now`.
///
/// Kinds that Narthex has no printer for get their name, their age, and otherwise empty cells.
pub fn table_cells(kind: &ServedKind, object: &Value, now: SystemTime) -> Vec<Value> {
    let printer = CellPrinter { object, now };
    if let Some(version) = kind.version.custom() {
        return custom_cells(&version.column_paths, object, now);
    }
    match kind.resource.group_resource() {
        ("", "namespaces") => vec![printer.name(), text(object, "/status/phase").into(), printer.age()],
        ("", "configmaps") => {
            let count = length(object, "/data") + length(object, "/binaryData");
            vec![printer.name(), count.into(), printer.age()]
        }
        ("", "secrets") => {
            vec![printer.name(), text(object, "/type").into(), length(object, "/data").into(), printer.age()]
        }
        ("", "serviceaccounts") => vec![printer.name(), printer.age()],
        ("", "services") => printer.service(),
        ("", "endpoints") => vec![printer.name(), format_endpoints(object).into(), printer.age()],
        ("", "events") => printer.event(&CORE_EVENT),
        ("events.k8s.io", "events") => printer.event(&NEW_EVENT),
        ("coordination.k8s.io", "leases") => {
            vec![printer.name(), text(object, "/spec/holderIdentity").into(), printer.age()]
        }
        ("discovery.k8s.io", "endpointslices") => vec![
            printer.name(),
            text(object, "/addressType").into(),
            format_slice_ports(object).into(),
            format_slice_endpoints(object).into(),
            printer.age(),
        ],
        ("apiregistration.k8s.io", "apiservices") => {
            vec![printer.name(), backend(object).into(), availability(object).into(), printer.age()]
        }
        ("autoscaling", "scales") => scale_cells(object, now),
        _ => printer.other(&kind.version.columns),
    }
}

/// An object and the time at which it is printed.
#[derive(Clone, Copy)]
struct CellPrinter<'o> {
    object: &'o Value,
    now: SystemTime,
}

/// Pointers to the same data in the two versions of Event.
struct EventFields {
    involved: &'static str,
    source: &'static str,
    first: &'static str,
    last: &'static str,
    count: &'static str,
    message: &'static str,
    component: &'static str,
}

const CORE_EVENT: EventFields = EventFields {
    involved: "/involvedObject",
    source: "/source",
    first: "/firstTimestamp",
    last: "/lastTimestamp",
    count: "/count",
    message: "/message",
    component: "/reportingComponent",
};

const NEW_EVENT: EventFields = EventFields {
    involved: "/regarding",
    source: "/deprecatedSource",
    first: "/deprecatedFirstTimestamp",
    last: "/deprecatedLastTimestamp",
    count: "/deprecatedCount",
    message: "/note",
    component: "/reportingController",
};

impl CellPrinter<'_> {
    fn name(self) -> Value {
        text(self.object, "/metadata/name").into()
    }

    fn age(self) -> Value {
        self.since("/metadata/creationTimestamp").unwrap_or_else(unknown).into()
    }

    /// Time since a timestamp of the object, if it has it.
    fn since(self, pointer: &str) -> Option<String> {
        age_of(self.object.pointer(pointer)?.as_str()?, self.now)
    }

    fn service(self) -> Vec<Value> {
        let object = self.object;
        let ports: Vec<String> = items(object, "/spec/ports").iter().map(format_service_port).collect();
        vec![
            self.name(),
            text(object, "/spec/type").into(),
            object.pointer("/spec/clusterIPs/0").and_then(Value::as_str).unwrap_or("<none>").into(),
            external_ip(object).into(),
            if ports.is_empty() { "<none>".into() } else { ports.join(",").into() },
            self.age(),
            format_labels(object.pointer("/spec/selector")).into(),
        ]
    }

    fn event(self, fields: &EventFields) -> Vec<Value> {
        let object = self.object;
        let first = self.since(fields.first).or_else(|| self.since("/eventTime")).unwrap_or_else(unknown);
        let mut last = self.since(fields.last).unwrap_or_else(|| first.clone());
        let mut count = object.pointer(fields.count).and_then(Value::as_i64).filter(|count| *count != 0).unwrap_or(1);
        if let Some(series) = object.get("series").filter(|series| !series.is_null()) {
            last = self.since("/series/lastObservedTime").unwrap_or_else(unknown);
            count = series.get("count").and_then(Value::as_i64).unwrap_or_default();
        }
        let involved = object.pointer(fields.involved).unwrap_or(&Value::Null);
        let kind = text(involved, "/kind").to_lowercase();
        let target = match text(involved, "/name") {
            "" => kind,
            name => format!("{kind}/{name}"),
        };
        let source = object.pointer(fields.source).unwrap_or(&Value::Null);
        let component = first_non_empty(text(source, "/component"), text(object, fields.component));
        let instance = first_non_empty(text(source, "/host"), text(object, "/reportingInstance"));
        let source = if instance.is_empty() { component.to_owned() } else { format!("{component}, {instance}") };
        vec![
            last.into(),
            text(object, "/type").into(),
            text(object, "/reason").into(),
            target.into(),
            text(involved, "/fieldPath").into(),
            source.into(),
            text(object, fields.message).trim().into(),
            first.into(),
            count.into(),
            self.name(),
        ]
    }

    fn other(self, columns: &[ResourceColumn]) -> Vec<Value> {
        let cell = |name: &str| match name {
            "Name" => self.name(),
            "Age" => self.age(),
            "Created At" => text(self.object, "/metadata/creationTimestamp").into(),
            _ => json!(""),
        };
        columns.iter().map(|column| cell(&column.name)).collect()
    }
}

fn unknown() -> String {
    "<unknown>".to_owned()
}

fn text<'v>(value: &'v Value, pointer: &str) -> &'v str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn items<'v>(value: &'v Value, pointer: &str) -> &'v [Value] {
    value.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn length(value: &Value, pointer: &str) -> usize {
    value.pointer(pointer).and_then(Value::as_object).map_or(0, serde_json::Map::len)
}

fn integer(value: &Value, name: &str) -> i64 {
    value.get(name).and_then(Value::as_i64).unwrap_or_default()
}

fn first_non_empty<'t>(first: &'t str, second: &'t str) -> &'t str {
    if first.is_empty() { second } else { first }
}

/// Text of labels (`labels.FormatLabels` of apimachinery).
fn format_labels(labels: Option<&Value>) -> String {
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let mut pairs: Vec<String> = labels.and_then(Value::as_object).into_iter().flatten().map(pair).collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

fn format_service_port(port: &Value) -> String {
    let (number, node, protocol) = (integer(port, "port"), integer(port, "nodePort"), text(port, "/protocol"));
    if node > 0 { format!("{number}:{node}/{protocol}") } else { format!("{number}/{protocol}") }
}

/// External addresses of a Service (`getServiceExternalIP`).
fn external_ip(service: &Value) -> String {
    let addresses = || items(service, "/spec/externalIPs").iter().filter_map(Value::as_str).map(str::to_owned);
    let joined = |addresses: Vec<String>, none: &str| match addresses.is_empty() {
        true => none.to_owned(),
        false => addresses.join(","),
    };
    match text(service, "/spec/type") {
        "ClusterIP" | "NodePort" => joined(addresses().collect(), "<none>"),
        "LoadBalancer" => {
            let of_balancer: BTreeSet<String> = items(service, "/status/loadBalancer/ingress")
                .iter()
                .map(|ingress| first_non_empty(text(ingress, "/ip"), text(ingress, "/hostname")).to_owned())
                .filter(|address| !address.is_empty())
                .collect();
            joined(of_balancer.into_iter().chain(addresses()).collect(), "<pending>")
        }
        "ExternalName" => text(service, "/spec/externalName").to_owned(),
        _ => unknown(),
    }
}

/// The first three addresses, and how many there are beyond them (`formatEndpoints`).
fn format_endpoints(endpoints: &Value) -> String {
    let subsets = items(endpoints, "/subsets");
    if subsets.is_empty() {
        return "<none>".to_owned();
    }
    let mut listed = Vec::new();
    let mut count = 0;
    for subset in subsets {
        let addresses = items(subset, "/addresses");
        let ips = || addresses.iter().map(|address| text(address, "/ip"));
        let ports = items(subset, "/ports");
        if ports.is_empty() {
            count += addresses.len();
            listed.extend(ips().take(MAX_LISTED - listed.len()).map(str::to_owned));
        }
        for port in ports {
            count += addresses.len();
            let port = integer(port, "port");
            listed.extend(ips().take(MAX_LISTED - listed.len()).map(|ip| join_host_port(ip, port)));
        }
    }
    with_more(&listed, count)
}

fn join_host_port(ip: &str, port: i64) -> String {
    if ip.contains([':', '%']) { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

fn with_more(listed: &[String], count: usize) -> String {
    let joined = listed.join(",");
    match count.saturating_sub(MAX_LISTED) {
        0 => joined,
        more => format!("{joined} + {more} more..."),
    }
}

/// List with the number of items that are left out (`listWithMoreString`).
fn list_or_unset(listed: &[String], count: usize) -> String {
    match with_more(listed, count) {
        none if none.is_empty() => "<unset>".to_owned(),
        some => some,
    }
}

/// Ports of an EndpointSlice (`formatDiscoveryPorts`).
fn format_slice_ports(slice: &Value) -> String {
    let ports = items(slice, "/ports");
    let format = |port: &Value| match (port.get("port").and_then(Value::as_i64), port.get("name")) {
        (Some(number), _) => number.to_string(),
        (None, Some(Value::String(name))) => name.clone(),
        (None, _) => "*".to_owned(),
    };
    list_or_unset(&ports.iter().take(MAX_LISTED).map(format).collect::<Vec<_>>(), ports.len())
}

/// Addresses of an EndpointSlice (`formatDiscoveryEndpoints`).
fn format_slice_endpoints(slice: &Value) -> String {
    let addresses = || {
        let endpoints = items(slice, "/endpoints").iter();
        endpoints.flat_map(|endpoint| items(endpoint, "/addresses")).filter_map(Value::as_str)
    };
    let listed: Vec<String> = addresses().take(MAX_LISTED).map(str::to_owned).collect();
    list_or_unset(&listed, addresses().count())
}

fn backend(api_service: &Value) -> String {
    match api_service.pointer("/spec/service").filter(|service| !service.is_null()) {
        Some(service) => format!("{}/{}", text(service, "/namespace"), text(service, "/name")),
        None => "Local".to_owned(),
    }
}

fn availability(api_service: &Value) -> String {
    let conditions = items(api_service, "/status/conditions");
    match conditions.iter().find(|condition| text(condition, "/type") == "Available") {
        None => "Unknown".to_owned(),
        Some(condition) => match (text(condition, "/status"), text(condition, "/reason")) {
            ("True", _) => "True".to_owned(),
            (status, "") => status.to_owned(),
            (status, reason) => format!("{status} ({reason})"),
        },
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::resources::builtin::builtin_kinds;

    #[test]
    fn table_cells_are_those_of_kube_apiserver() {
        let mut rows = 0;
        for line in include_str!("testdata/tables.jsonl").lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let object = &case["object"];
            let (group, version) = text(object, "/apiVersion").rsplit_once('/').unwrap_or(("", "v1"));
            let kind = builtin_kinds().find_kind(group, version, text(object, "/kind")).unwrap();
            let now: Timestamp = text(&case, "/now").parse().unwrap();
            let cells = table_cells(&kind, object, now.into());
            assert_eq!(Value::Array(cells), case["cells"], "{object}");
            assert_eq!(items(&case, "/cells").len(), kind.version.columns.len());
            rows += 1;
        }
        assert_eq!(rows, 28);
    }

    #[test]
    fn table_cells_of_objects_without_fields_match_the_columns() {
        for resource in builtin_kinds().resources().iter().filter(|resource| resource.list_kind.is_some()) {
            let kind = ServedKind { resource: resource.clone(), version: resource.versions[0].clone() };
            let cells = table_cells(&kind, &json!({}), SystemTime::UNIX_EPOCH);
            assert_eq!(cells.len(), kind.version.columns.len(), "{}", resource.plural);
        }
    }
}
