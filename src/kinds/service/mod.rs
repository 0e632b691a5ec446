//! Services (`pkg/registry/core/service`).

mod addresses;
mod fields;
mod update;
mod validation;
mod warnings;

use std::collections::BTreeSet;

use kubeapi::names::NameRule;
use kubeapi::object_meta::ObjectMetaView;
use serde_json::{Value, json};

use self::fields::{complete_new_service, complete_replacing_service, drop_type_dependent_fields};
use self::validation::{validate_service, validate_service_status};
use self::warnings::service_warnings;
use super::cells::{CellPrinter, first_non_empty, integer, items_at, text_at, unknown};
use super::selectable_fields::SelectableFields;
use super::{KindRules, Object, ObjectUpdate};

pub(super) static RULES: KindRules = KindRules {
    name_rule: NameRule::DnsLabel,
    creates_on_update: true,
    returns_deleted_object: true,
    selectable: SelectableFields::of(&["spec.clusterIP", "spec.type"]),
    begin_create: complete_new_service,
    begin_update: |update, object| match update.subresource {
        "" => complete_replacing_service(update.old, object),
        _ => Ok(()),
    },
    prepare_new: |_, object| drop(object.insert("status".to_owned(), json!({"loadBalancer": {}}))),
    prepare_replacement,
    validate: |input| match input.subresource {
        "status" => validate_service_status(input),
        _ => validate_service(input),
    },
    warnings: |written| match written.subresource {
        "" => service_warnings(ObjectMetaView::of_map(written.object), written.field("spec")),
        _ => Vec::new(),
    },
    cells: print_service,
    ..KindRules::of("", "services")
};

fn prepare_replacement(update: &ObjectUpdate<'_>, object: &mut Object) {
    update.keep_other_part(object);
    if update.subresource.is_empty() {
        drop_type_dependent_fields(update.old, object);
    }
}

fn print_service(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let ports: Vec<String> = items_at(object, "/spec/ports").iter().map(format_service_port).collect();
    vec![
        printer.name(),
        text_at(object, "/spec/type").into(),
        object.pointer("/spec/clusterIPs/0").and_then(Value::as_str).unwrap_or("<none>").into(),
        external_ip(object).into(),
        if ports.is_empty() { "<none>".into() } else { ports.join(",").into() },
        printer.age(),
        format_labels(object.pointer("/spec/selector")).into(),
    ]
}

/// Text of labels (`labels.FormatLabels` of apimachinery).
pub(super) fn format_labels(labels: Option<&Value>) -> String {
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let mut pairs: Vec<String> = labels.and_then(Value::as_object).into_iter().flatten().map(pair).collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

fn format_service_port(port: &Value) -> String {
    let (number, node, protocol) = (integer(port, "port"), integer(port, "nodePort"), text_at(port, "/protocol"));
    if node > 0 { format!("{number}:{node}/{protocol}") } else { format!("{number}/{protocol}") }
}

/// External addresses of a Service (`getServiceExternalIP`).
fn external_ip(service: &Value) -> String {
    let addresses = || items_at(service, "/spec/externalIPs").iter().filter_map(Value::as_str).map(str::to_owned);
    let joined = |addresses: Vec<String>, none: &str| match addresses.is_empty() {
        true => none.to_owned(),
        false => addresses.join(","),
    };
    match text_at(service, "/spec/type") {
        "ClusterIP" | "NodePort" => joined(addresses().collect(), "<none>"),
        "LoadBalancer" => {
            let of_balancer: BTreeSet<String> = items_at(service, "/status/loadBalancer/ingress")
                .iter()
                .map(|ingress| first_non_empty(text_at(ingress, "/ip"), text_at(ingress, "/hostname")).to_owned())
                .filter(|address| !address.is_empty())
                .collect();
            joined(of_balancer.into_iter().chain(addresses()).collect(), "<pending>")
        }
        "ExternalName" => text_at(service, "/spec/externalName").to_owned(),
        _ => unknown(),
    }
}
