//! Objects of cert-manager, Flux, prometheus-operator and Gateway API, right and wrong.

use serde_json::{Value, json};

use super::record_table;
use crate::environment::Session;

/// Samples of the four projects: right ones, and ones that are wrong in one or more ways.
pub(super) fn create_samples(session: &mut Session<'_>) {
    let object = |version: &str, kind: &str, name: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
    let (certificates, source) = ("cert-manager.io/v1", "source.toolkit.fluxcd.io/v1");
    let (monitoring, gateway) = ("monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1");
    let certificate =
        json!({"secretName": "tls", "dnsNames": ["example.com"], "duration": "2160h", "issuerRef": {"name": "ca"}});
    let release = json!({"interval": "5m", "chart": {"spec": {"chart": "podinfo", "version": "6.x",
        "sourceRef": {"kind": "HelmRepository", "name": "podinfo"}}}, "values": {"replicas": 2, "any": [1, {"b": null}]}});
    let endpoints =
        json!([{"port": "web", "interval": "30s", "relabelings": [{"action": "drop", "sourceLabels": ["a"]}]}]);
    let route = json!({"parentRefs": [{"name": "gw"}], "hostnames": ["example.com"],
        "rules": [{"backendRefs": [{"name": "svc", "port": 80}]}]});
    let samples = [
        object(certificates, "Certificate", "right", certificate),
        object(
            certificates,
            "Certificate",
            "wrong",
            json!({"secretName": 7, "issuerRef": {}, "usages": ["fly"],
            "privateKey": {"algorithm": "DSA", "size": "big"}, "revisionHistoryLimit": 0}),
        ),
        object(
            certificates,
            "Certificate",
            "unknown",
            json!({"secretName": "a", "issuerRef": {"name": "a", "nmae": "b"}, "x": 1}),
        ),
        object(certificates, "ClusterIssuer", "right", json!({"selfSigned": {}})),
        object(certificates, "ClusterIssuer", "wrong", json!({"acme": {"solvers": {}}, "ca": {}})),
        object("acme.cert-manager.io/v1", "Order", "wrong", json!({"request": "%", "issuerRef": null})),
        object(source, "GitRepository", "right", json!({"interval": "1m", "url": "https://example.com/a"})),
        object(
            source,
            "GitRepository",
            "wrong",
            json!({"interval": "often", "url": "ftp://example.com",
            "ref": {"branch": 1}, "verify": {}}),
        ),
        object("helm.toolkit.fluxcd.io/v2", "HelmRelease", "right", release),
        object(
            "helm.toolkit.fluxcd.io/v2",
            "HelmRelease",
            "wrong",
            json!({"releaseName": "", "values": [], "maxHistory": "1"}),
        ),
        object(
            "kustomize.toolkit.fluxcd.io/v1",
            "Kustomization",
            "wrong",
            json!({"interval": "1m", "prune": "yes",
            "sourceRef": {"kind": "Secret", "name": "a"}}),
        ),
        object("notification.toolkit.fluxcd.io/v1", "Receiver", "wrong", json!({"type": "email", "resources": [{}]})),
        object(
            "image.toolkit.fluxcd.io/v1beta2",
            "ImagePolicy",
            "old",
            json!({"imageRepositoryRef": {"name": "a"},
            "policy": {"semver": {"range": "1.x"}}}),
        ),
        object(
            monitoring,
            "ServiceMonitor",
            "right",
            json!({"selector": {"matchLabels": {"a": "b"}}, "endpoints": endpoints}),
        ),
        object(
            monitoring,
            "ServiceMonitor",
            "wrong",
            json!({"endpoints": [{"scheme": "ftp", "interval": "1 hour",
            "relabelings": [{"action": "fly"}]}], "sampleLimit": -1}),
        ),
        object(
            monitoring,
            "PrometheusRule",
            "right",
            json!({"groups": [{"name": "a", "rules": [{"alert": "Up",
            "expr": 1, "for": "5m"}]}]}),
        ),
        object(monitoring, "PrometheusRule", "wrong", json!({"groups": [{"name": "a"}, {"name": "a", "rules": [{}]}]})),
        object(
            monitoring,
            "Prometheus",
            "right",
            json!({"replicas": 2, "resources": {"requests": {"memory": "400Mi"}}}),
        ),
        object(
            monitoring,
            "Prometheus",
            "wrong",
            json!({"replicas": "2", "resources": {"requests": {"memory": "lots"}},
            "containers": [{"name": "a"}, {"name": "a"}]}),
        ),
        object(gateway, "GatewayClass", "right", json!({"controllerName": "example.com/controller"})),
        object(
            gateway,
            "GatewayClass",
            "wrong",
            json!({"controllerName": "controller", "description": "d".repeat(65)}),
        ),
        object(
            gateway,
            "Gateway",
            "right",
            json!({"gatewayClassName": "right",
            "listeners": [{"name": "http", "port": 80, "protocol": "HTTP"}]}),
        ),
        object(
            gateway,
            "Gateway",
            "wrong",
            json!({"listeners": [{"name": "A", "port": 0, "protocol": "//"},
            {"name": "A", "port": 70000, "protocol": "HTTP"}]}),
        ),
        object(gateway, "HTTPRoute", "right", route),
        object(
            gateway,
            "HTTPRoute",
            "wrong",
            json!({"hostnames": ["*.*"], "rules": [{"matches": [{"method": "FLY",
            "path": {"type": "Guess"}}], "filters": [{"type": "Fly"}]}], "parentRefs": {}}),
        ),
    ];
    for sample in &samples {
        session.with_input("create -o yaml -f -", sample);
        session.with_input("create --validate=ignore --dry-run=server -o json -f -", sample);
    }
    for resource in
        ["certificate", "clusterissuer", "helmrelease", "gitrepository", "gateway", "gatewayclass", "httproute"]
    {
        record_table(session, &format!("get {resource}"));
    }
}
