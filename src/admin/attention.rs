//! What needs the attention of an operator, with the object, the reason and since when.

use std::collections::HashSet;
use std::time::SystemTime;

use super::attention_report::AttentionReport;
use super::expiry::certificate_attention;
use super::status_report::{ApiServiceReport, EgressReport, EndpointReport, StatusReport};

/// Seconds for which an object of a controller may fail: a namespace with finalizers needs some time.
const MAX_FAILING_SECONDS: u64 = 300;

/// CustomResourceDefinitions that one entry names, at most.
const MAX_NAMED: usize = 5;

impl StatusReport {
    /// What needs attention at `now`, failures first.
    pub fn attention(&self, now: SystemTime) -> Vec<AttentionReport> {
        let mut found = Vec::new();
        if !matches!(&*self.phase, "" | "serving") {
            found.push(AttentionReport::failure("process", "process", format!("shutting down: {}", self.phase)));
        }
        found.extend(self.apiservices.iter().filter(|one| one.is_failing()).map(apiservice_failure));
        if let Some(storage) = self.storage.as_ref().filter(|storage| !storage.refusal.is_empty()) {
            let text = format!("writes are refused: {}", storage.refusal);
            found.push(AttentionReport::failure("stored", "store", text));
        }
        for call in self.remote_calls.iter().filter(|of| !of.failing_since.is_empty()) {
            let text = format!("calls to {} fail: {}", call.server, call.error);
            found.push(AttentionReport::failure("calls", call.title(), text).since(&call.failing_since));
        }
        if self.client_connections.are_at_limit() {
            let text = format!(
                "{} are open, which is the limit: further ones wait; raise --max-connections or the limit of open files",
                self.client_connections.open
            );
            found.push(AttentionReport::failure("process", "client connections", text));
        }
        for check in self.unready_checks() {
            found.push(AttentionReport::failure("process", "not ready", check));
        }
        for (subject, problems, text) in [
            ("registry", &self.registry_problems, "the last good state of the object is in use"),
            ("file", &self.file_problems, "the last good content is in use"),
        ] {
            let report = |problem: &String| AttentionReport::failure("process", subject, format!("{problem} ({text})"));
            found.extend(problems.iter().map(report));
        }
        for control_plane in self.control_planes.iter().filter(|of| of.is_failed()) {
            found.push(AttentionReport::failure("control-planes", &control_plane.name, control_plane.problem_line()));
        }
        for proxy in self.egress.iter().filter(|proxy| proxy.is_failing()) {
            let text = format!("proxy {} {}", proxy.proxy, proxy.state);
            found.push(AttentionReport::failure("egress", &proxy.selection, text));
        }
        self.add_certificates(&mut found, now);
        self.add_warnings(&mut found);
        // Stable: within a severity the order is that of the sections.
        found.sort_by_key(|one| !one.is_failure());
        found
    }

    fn add_certificates(&self, found: &mut Vec<AttentionReport>, now: SystemTime) {
        for refused in self.peer_certificates.iter().filter(|of| !of.refused.is_empty()) {
            let text = format!("certificate refused: {}", refused.refused);
            found.push(AttentionReport::failure("certificates", &refused.server, text));
        }
        found.extend(certificate_attention(self.expiring_certificates(now)));
    }

    fn add_warnings(&self, found: &mut Vec<AttentionReport>) {
        for (service, endpoint) in self.endpoints_in_order().filter(|(_, endpoint)| !endpoint.is_ready()) {
            let text = format!("endpoint of {service} is {}", endpoint.describe());
            found.push(AttentionReport::warning("endpoints", &endpoint.address, text));
        }
        if let Some(cluster) = self.cluster.as_ref().filter(|cluster| !cluster.failing_since.is_empty()) {
            let text = format!("watch of the registry fails: {}", cluster.failure);
            found.push(AttentionReport::warning("process", &cluster.server, text).since(&cluster.failing_since));
        }
        // That the documents of an unavailable backend cannot be fetched is told by its failure.
        let failing: HashSet<&str> =
            self.apiservices.iter().filter(|one| one.is_failing()).map(|one| one.name.as_str()).collect();
        let has_cause = |problem: &&String| problem.split(": ").next().is_some_and(|name| failing.contains(name));
        let documents = self.document_problems.iter().filter(|problem| !has_cause(problem));
        found.extend(documents.map(|problem| AttentionReport::warning("process", "document", problem)));
        let warnings = self.registry_warnings.iter();
        found.extend(warnings.map(|problem| AttentionReport::warning("process", "warning", problem)));
        if let Some(storage) = &self.storage {
            if !storage.unenforced_crds.is_empty() {
                let named = named(&storage.unenforced_crds);
                let text = format!("rules (x-kubernetes-validations) are not enforced: {named}");
                found.push(AttentionReport::warning("stored", "CustomResourceDefinitions", text));
            }
            if !storage.unenforced_kinds.is_empty() {
                let text = format!("stored and not enforced: {}", named(&storage.unenforced_kinds));
                found.push(AttentionReport::warning("stored", "kinds", text));
            }
        }
        let controllers = self.storage.iter().flat_map(|storage| &storage.controllers);
        for controller in controllers.filter(|of| of.failing_seconds >= MAX_FAILING_SECONDS) {
            let minutes = controller.failing_seconds / 60;
            let text = format!("{} failing, one for {minutes} minutes: {}", controller.failing, controller.error);
            found.push(AttentionReport::warning("controllers", format!("controller {}", controller.name), text));
        }
        for sink in self.audit.iter().filter(|sink| sink.dropped > 0) {
            let text = format!("{} events dropped, {} waiting", sink.dropped, sink.waiting);
            found.push(AttentionReport::warning("audit", format!("audit {}", sink.name), text));
        }
    }
}

/// The first names of a list.
fn named(names: &[String]) -> String {
    let first = names.iter().take(MAX_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MAX_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn apiservice_failure(service: &ApiServiceReport) -> AttentionReport {
    let text = match service.available {
        Some(false) if service.message.is_empty() => format!("unavailable: {}", service.reason),
        Some(false) => format!("unavailable: {}: {}", service.reason, service.message),
        _ => "circuit open: no request is forwarded".to_owned(),
    };
    AttentionReport::failure("backends", &service.name, text).since(&service.since)
}

impl EgressReport {
    /// Whether the proxy fails.
    pub fn is_failing(&self) -> bool {
        !matches!(self.state.as_str(), "" | "untried" | "serves")
    }
}

impl EndpointReport {
    /// Whether requests are sent to the endpoint.
    pub fn is_ready(&self) -> bool {
        self.state == "ready"
    }
}

#[cfg(test)]
mod tests {
    use super::super::status_report::{AuditSinkReport, RemoteCallReport};
    use super::super::storage_report::{ControllerReport, StorageReport};
    use super::*;

    #[test]
    fn attention_lists_failures_before_warnings_with_reason() {
        let report = StatusReport {
            phase: "serving".into(),
            apiservices: vec![
                ApiServiceReport { name: "v1.good".into(), available: Some(true), ..ApiServiceReport::default() },
                ApiServiceReport {
                    name: "v1.bad".into(),
                    available: Some(false),
                    reason: "FailedDiscoveryCheck".into(),
                    message: "connection refused".into(),
                    since: "2026-11-19T23:00:00Z".into(),
                    endpoints: vec![EndpointReport {
                        address: "10.0.0.1:443".into(),
                        state: "unreachable".into(),
                        reason: "ConnectionRefused".into(),
                        ..EndpointReport::default()
                    }],
                    ..ApiServiceReport::default()
                },
            ],
            remote_calls: vec![RemoteCallReport {
                call: "TokenReview".into(),
                server: "10.0.0.9:443".into(),
                failing_since: "2026-11-19T23:30:00Z".into(),
                error: "timeout".into(),
                ..RemoteCallReport::default()
            }],
            registry_problems: vec!["a.yaml: bad".into()],
            audit: vec![AuditSinkReport { name: "log".into(), dropped: 2, ..AuditSinkReport::default() }],
            storage: Some(StorageReport {
                unenforced_crds: (0..7).map(|number| format!("c{number}")).collect(),
                controllers: [299, 360]
                    .map(|failing_seconds| ControllerReport {
                        name: "namespace".into(),
                        failing: 2,
                        failing_seconds,
                        error: "a: held".into(),
                        ..ControllerReport::default()
                    })
                    .into(),
                ..StorageReport::default()
            }),
            ..StatusReport::default()
        };
        let lines: Vec<_> = report
            .attention(SystemTime::UNIX_EPOCH)
            .into_iter()
            .map(|one| format!("{} {}: {}", one.severity, one.subject, one.text))
            .collect();
        assert_eq!(
            lines,
            [
                "failure v1.bad: unavailable: FailedDiscoveryCheck: connection refused",
                "failure TokenReview: calls to 10.0.0.9:443 fail: timeout",
                "failure registry: a.yaml: bad (the last good state of the object is in use)",
                "warning 10.0.0.1:443: endpoint of v1.bad is unreachable (ConnectionRefused)",
                "warning CustomResourceDefinitions: rules (x-kubernetes-validations) are not enforced: c0, c1, c2, c3, c4 \
                 and 2 more",
                "warning controller namespace: 2 failing, one for 6 minutes: a: held",
                "warning audit log: 2 events dropped, 0 waiting",
            ]
        );
        assert!(
            StatusReport { phase: "serving".into(), ..StatusReport::default() }.attention(SystemTime::now()).is_empty()
        );
    }
}
