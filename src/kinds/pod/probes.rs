//! Probes, and what runs when a container starts and stops (`validateProbe`, `validateLifecycle`).

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::names::{check_port_name, check_port_number, pattern_error};
use serde_json::Value;

use super::paths::{check_not_negative, check_required, check_supported};
use crate::kinds::validation::{invalid_for, items, text};

const SCHEMES: [&str; 2] = ["HTTP", "HTTPS"];
/// Signals that stop a container of Windows.
const WINDOWS_SIGNALS: [&str; 2] = ["SIGKILL", "SIGTERM"];
const COUNTS: [&str; 5] =
    ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"];

/// Errors of the probes of a container.
pub(super) fn check_probes(container: &Value, grace: Option<i64>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = &container[field];
        if probe.is_null() {
            continue;
        }
        let path = path.child(field);
        let handlers = ["exec", "httpGet", "tcpSocket", "grpc"];
        check_handler(probe, &handlers, grace, &path, errors);
        COUNTS.iter().for_each(|count| check_not_negative(probe, count, &path, errors));
        let period = probe["terminationGracePeriodSeconds"].as_i64();
        let period_path = path.child("terminationGracePeriodSeconds");
        if let Some(seconds) = period.filter(|seconds| *seconds <= 0) {
            errors.push(FieldError::invalid(period_path, seconds, "must be greater than 0"));
        }
        if field == "readinessProbe" {
            if let Some(seconds) = period {
                errors.push(FieldError::invalid(period_path, seconds, "must not be set for readinessProbes"));
            }
        } else if probe["successThreshold"] != 1 {
            let count = probe["successThreshold"].as_i64().unwrap_or_default();
            errors.push(FieldError::invalid(path.child("successThreshold"), count, "must be 1"));
        }
    }
}

/// Errors of the handlers of a container's lifecycle, and of its stop signal.
pub(super) fn check_lifecycle(
    lifecycle: &Value,
    (grace, os): (Option<i64>, &Value),
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    for field in ["postStart", "preStop"] {
        if !lifecycle[field].is_null() {
            let handlers = ["exec", "httpGet", "tcpSocket", "sleep"];
            check_handler(&lifecycle[field], &handlers, grace, &path.child(field), errors);
        }
    }
    let Some(signal) = lifecycle["stopSignal"].as_str() else { return };
    let path = path.child("stopSignal");
    match os["name"].as_str() {
        _ if os.is_null() => {
            let why = "may not be set for containers with empty `spec.os.name`";
            errors.push(FieldError::forbidden(path, why));
        }
        Some("windows") => check_supported(signal, &WINDOWS_SIGNALS, &path, errors),
        Some("linux") => {
            let signals = linux_signals();
            let signals: Vec<&str> = signals.iter().map(String::as_str).collect();
            check_supported(signal, &signals, &path, errors);
        }
        _ => {}
    }
}

/// Signals that stop a container of Linux, sorted.
fn linux_signals() -> Vec<String> {
    const NAMED: &str = "ABRT ALRM BUS CHLD CLD CONT FPE HUP ILL INT IO IOT KILL PIPE POLL PROF PWR QUIT SEGV STKFLT STOP \
                         SYS TERM TRAP TSTP TTIN TTOU URG USR1 USR2 VTALRM WINCH XCPU XFSZ RTMIN RTMAX";
    let named = NAMED.split_whitespace().map(|name| format!("SIG{name}"));
    let first = (1..=15).map(|number| format!("SIGRTMIN+{number}"));
    let last = (1..=14).map(|number| format!("SIGRTMAX-{number}"));
    let mut all: Vec<String> = named.chain(first).chain(last).collect();
    all.sort();
    all
}

/// Errors of what a probe or a lifecycle event does: exactly one of some handlers.
fn check_handler(handler: &Value, fields: &[&str], grace: Option<i64>, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    let mut is_found = false;
    for field in fields.iter().filter(|field| !handler[**field].is_null()) {
        let (action, action_path) = (&handler[*field], path.child(field));
        if std::mem::replace(&mut is_found, true) {
            errors.push(FieldError::forbidden(action_path, "may not specify more than 1 handler type"));
            continue;
        }
        match *field {
            "exec" if items(action, "command").is_empty() => {
                errors.push(FieldError::required(action_path.child("command"), ""));
            }
            "httpGet" => check_http_get(action, &action_path, errors),
            "tcpSocket" | "grpc" => check_port(&action["port"], &action_path.child("port"), errors),
            "sleep" => {
                let seconds = action["seconds"].as_i64().unwrap_or_default();
                if let Some(grace) = grace.filter(|grace| seconds < 0 || seconds > *grace) {
                    let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(FieldError::invalid(action_path, seconds, why));
                }
            }
            _ => {}
        }
    }
    if !is_found {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
}

fn check_http_get(action: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    check_required(action, &["path"], path, errors);
    check_port(&action["port"], &path.child("port"), errors);
    check_supported(text(action, "scheme"), &SCHEMES, &path.child("scheme"), errors);
    for header in items(action, "httpHeaders") {
        let name = text(header, "name");
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            let rule = "a valid HTTP header must consist of alphanumeric characters or '-'";
            let why = pattern_error(rule, "[-A-Za-z0-9]+", &["X-Header-Name"]);
            errors.push(FieldError::invalid(path.child("httpHeaders"), name, why));
        }
    }
}

/// Errors of the number or name of a port (`ValidatePortNumOrName`).
fn check_port(port: &Value, path: &FieldPath<'_>, errors: &mut FieldErrors) {
    match port {
        Value::String(name) => errors.extend(invalid_for(*path, name, check_port_name(name))),
        port => {
            let number = port.as_i64().unwrap_or_default();
            errors.extend(check_port_number(number).map(|why| FieldError::invalid(path, number, why)));
        }
    }
}
