//! Cells of Pods (`printPod`).

use std::collections::HashMap;

use serde_json::Value;

use crate::kinds::cells::{CellPrinter, first_non_empty, integer, items_at, text_at, unknown};
use kubeapi::human_duration::age_of;

/// What the statuses of the containers of a Pod come to.
struct ContainerSummary<'o> {
    reason: String,
    ready: usize,
    restarts: i64,
    /// When a container ended last before it was started again; empty if none did.
    last_end: &'o str,
}

/// The condition of the row of a Pod that has ended.
pub(super) fn pod_row_conditions(pod: &Value) -> &'static str {
    match text_at(pod, "/status/phase") {
        "Succeeded" => {
            r#"[{"type":"Completed","status":"True","reason":"Succeeded","message":"The pod has completed successfully."}]"#
        }
        "Failed" => r#"[{"type":"Completed","status":"True","reason":"Failed","message":"The pod failed."}]"#,
        _ => "",
    }
}

pub(super) fn print_pod(printer: &CellPrinter<'_>) -> Vec<Value> {
    let object = printer.object;
    let is_sidecar = |container: &&Value| text_at(container, "/restartPolicy") == "Always";
    let sidecars = items_at(object, "/spec/initContainers").iter().filter(is_sidecar).count();
    let total = items_at(object, "/spec/containers").len() + sidecars;
    let summary = summarize(object);
    let age = age_of(summary.last_end, printer.now).filter(|_| summary.restarts != 0 && !summary.last_end.is_empty());
    let restarts = match age {
        Some(age) => format!("{} ({age} ago)", summary.restarts),
        None => summary.restarts.to_string(),
    };
    let or_none = |text: &str| Value::from(first_non_empty(text, "<none>"));
    vec![
        printer.name(),
        format!("{}/{total}", summary.ready).into(),
        final_reason(object, summary.reason).into(),
        restarts.into(),
        printer.since("/metadata/creationTimestamp").unwrap_or_else(unknown).into(),
        or_none(text_at(object, "/status/podIPs/0/ip")),
        or_none(text_at(object, "/spec/nodeName")),
        or_none(text_at(object, "/status/nominatedNodeName")),
        readiness_gates(object).into(),
    ]
}

fn summarize(object: &Value) -> ContainerSummary<'_> {
    let phase = text_at(object, "/status/phase");
    let conditions = items_at(object, "/status/conditions");
    let is_gated = conditions.iter().any(|condition| {
        text_at(condition, "/type") == "PodScheduled" && text_at(condition, "/reason") == "SchedulingGated"
    });
    let reason = if is_gated { "SchedulingGated" } else { first_non_empty(text_at(object, "/status/reason"), phase) };
    let mut all = ContainerSummary { reason: reason.to_owned(), ready: 0, restarts: 0, last_end: "" };
    let mut sidecars = ContainerSummary { reason: String::new(), ready: 0, restarts: 0, last_end: "" };
    let is_initializing = summarize_init(object, &mut all, &mut sidecars);
    let is_initialized = conditions
        .iter()
        .any(|condition| text_at(condition, "/type") == "Initialized" && text_at(condition, "/status") == "True");
    if !is_initializing || is_initialized {
        (all.restarts, all.last_end) = (sidecars.restarts, sidecars.last_end);
        summarize_running(object, &mut all);
    }
    all
}

/// Adds the restarts of a container.
fn add_restarts<'o>(summary: &mut ContainerSummary<'o>, status: &'o Value) {
    summary.restarts += integer(status, "restartCount");
    let end = text_at(status, "/lastState/terminated/finishedAt");
    if end > summary.last_end {
        summary.last_end = end;
    }
}

/// Returns whether an init container has not ended yet.
fn summarize_init<'o>(object: &'o Value, all: &mut ContainerSummary<'o>, sidecars: &mut ContainerSummary<'o>) -> bool {
    let specs = items_at(object, "/spec/initContainers");
    let policies: HashMap<&str, &str> =
        specs.iter().map(|container| (text_at(container, "/name"), text_at(container, "/restartPolicy"))).collect();
    for (index, status) in items_at(object, "/status/initContainerStatuses").iter().enumerate() {
        let is_sidecar = policies.get(text_at(status, "/name")) == Some(&"Always");
        add_restarts(all, status);
        if is_sidecar {
            add_restarts(sidecars, status);
        }
        let (ended, waiting) = (&status["state"]["terminated"], text_at(status, "/state/waiting/reason"));
        if !ended.is_null() && integer(ended, "exitCode") == 0 {
            continue;
        }
        if is_sidecar && status["started"] == true {
            all.ready += usize::from(status["ready"] == true);
            continue;
        }
        all.reason = if !ended.is_null() {
            format!("Init:{}", end_reason(ended))
        } else if !waiting.is_empty() && waiting != "PodInitializing" {
            format!("Init:{waiting}")
        } else {
            format!("Init:{index}/{}", specs.len())
        };
        return true;
    }
    false
}

fn end_reason(ended: &Value) -> String {
    match (text_at(ended, "/reason"), integer(ended, "signal")) {
        ("", 0) => format!("ExitCode:{}", integer(ended, "exitCode")),
        ("", signal) => format!("Signal:{signal}"),
        (reason, _) => reason.to_owned(),
    }
}

fn summarize_running<'o>(object: &'o Value, all: &mut ContainerSummary<'o>) {
    let (mut has_running, mut error_reason) = (false, String::new());
    for status in items_at(object, "/status/containerStatuses").iter().rev() {
        add_restarts(all, status);
        let (ended, waiting) = (&status["state"]["terminated"], text_at(status, "/state/waiting/reason"));
        if !waiting.is_empty() {
            waiting.clone_into(&mut all.reason);
        } else if !ended.is_null() {
            all.reason = end_reason(ended);
            if integer(ended, "exitCode") != 0 {
                error_reason.clone_from(&all.reason);
            }
        } else if status["ready"] == true && !status["state"]["running"].is_null() {
            has_running = true;
            all.ready += 1;
        }
    }
    if all.reason != "Completed" {
        return;
    }
    let is_ready = items_at(object, "/status/conditions")
        .iter()
        .any(|condition| text_at(condition, "/type") == "Ready" && text_at(condition, "/status") == "True");
    if has_running && is_ready {
        all.reason = "Running".to_owned();
    } else if !error_reason.is_empty() {
        all.reason = error_reason;
    } else if has_running {
        all.reason = "NotReady".to_owned();
    }
}

fn final_reason(object: &Value, reason: String) -> String {
    let is_final = matches!(text_at(object, "/status/phase"), "Failed" | "Succeeded");
    if text_at(object, "/metadata/deletionTimestamp").is_empty() {
        reason
    } else if text_at(object, "/status/reason") == "NodeLost" {
        "Unknown".to_owned()
    } else if !is_final {
        "Terminating".to_owned()
    } else {
        reason
    }
}

fn readiness_gates(object: &Value) -> String {
    let gates = items_at(object, "/spec/readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    // Of equal types, the first.
    let mut statuses: HashMap<&str, &str> = HashMap::new();
    for condition in items_at(object, "/status/conditions").iter().rev() {
        statuses.insert(text_at(condition, "/type"), text_at(condition, "/status"));
    }
    let met = gates.iter().filter(|gate| statuses.get(text_at(gate, "/conditionType")) == Some(&"True")).count();
    format!("{met}/{}", gates.len())
}
