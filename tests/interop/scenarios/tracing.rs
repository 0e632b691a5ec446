//! Spans of the same requests, from kube-apiserver and from narthex with the same `TracingConfiguration`, as the
//! OpenTelemetry collector received them.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::TestFn;
use super::audit::core;
use crate::environment::{Cluster, Gateway, HttpsEndpoint, Process, TestEnvironment, eventually, free_port, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("tracing: server spans equal kube-apiserver's and form one trace", spans_match)];

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const TRACEPARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const CONFIGMAP: &str = r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"v"}}"#;

/// Method, path and body.
const REQUESTS: &[(&str, &str, &str)] = &[
    ("GET", "/api/v1/namespaces/default/configmaps?limit=500", ""),
    ("POST", CONFIGMAPS, CONFIGMAP),
    ("GET", "/api/v1/namespaces/default/configmaps/a", ""),
    ("HEAD", "/api/v1/namespaces/default/configmaps/a", ""),
    ("GET", "/api/v1/namespaces/default/configmaps/missing", ""),
    ("GET", "/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1", ""),
    ("GET", "/api/v1/nodes/none/status", ""),
    ("DELETE", "/api/v1/namespaces/default/configmaps/a", ""),
    ("GET", "/version", ""),
];

/// Attributes with the same value on both sides.
const EQUAL_VALUES: [&str; 9] = [
    "http.request.method",
    "http.response.status_code",
    "http.target",
    "client.address",
    "network.peer.address",
    "network.protocol.version",
    "url.path",
    "url.scheme",
    "user_agent.original",
];

/// A span that the collector received.
#[derive(Clone, Debug)]
struct CollectedSpan {
    service: String,
    name: String,
    kind: u64,
    trace: String,
    id: String,
    parent: String,
    links: Vec<(String, String)>,
    attributes: BTreeMap<String, String>,
}

const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// The collector and the file of its spans.
struct Collector {
    file: PathBuf,
    port: u16,
    _process: Process,
}

impl Collector {
    fn start(directory: &Path) -> Collector {
        let (port, file, configuration) = (free_port(), directory.join("spans.json"), directory.join("collector.yaml"));
        let text = format!(
            "receivers: {{otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:{port}'}}}}}}}}\n\
             exporters: {{file: {{path: '{}'}}}}\n\
             service: {{telemetry: {{metrics: {{level: none}}}}, pipelines: {{traces: {{receivers: [otlp], exporters: \
             [file]}}}}}}\n",
            file.display()
        );
        fs::write(&configuration, text).unwrap();
        let mut process = Process::start("otel-collector", &peer("otel-collector"), [&configuration], directory);
        process.wait_until(|| TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string()));
        Collector { file, port, _process: process }
    }

    fn spans(&self) -> Vec<CollectedSpan> {
        let text = fs::read_to_string(&self.file).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().flat_map(|line| spans_of_batch(&serde_json::from_str(line).unwrap())).collect()
    }

    /// The server span of `service` for the request with this audit ID.
    fn server_span(&self, service: &str, audit_id: &str) -> CollectedSpan {
        eventually(&format!("span of {service} for {audit_id}"), || {
            let is_it = |span: &CollectedSpan| {
                span.service == service
                    && span.kind == SERVER
                    && span.attributes.get("audit-id").is_some_and(|id| id == audit_id)
            };
            self.spans().into_iter().find(is_it).ok_or_else(|| "none".to_owned())
        })
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn attributes(value: &Value) -> BTreeMap<String, String> {
    let each = |attribute: &Value| {
        let value = &attribute["value"];
        (
            text(&attribute["key"]),
            text(if value["intValue"].is_null() { &value["stringValue"] } else { &value["intValue"] }),
        )
    };
    list(value).iter().map(each).collect()
}

fn spans_of_batch(batch: &Value) -> Vec<CollectedSpan> {
    let mut found = Vec::new();
    for part in list(&batch["resourceSpans"]) {
        let service = attributes(&part["resource"]["attributes"])["service.name"].clone();
        for span in list(&part["scopeSpans"]).iter().flat_map(|scope| list(&scope["spans"])) {
            found.push(CollectedSpan {
                service: service.clone(),
                name: text(&span["name"]),
                kind: span["kind"].as_u64().unwrap_or_default(),
                trace: text(&span["traceId"]),
                id: text(&span["spanId"]),
                parent: text(&span["parentSpanId"]),
                links: list(&span["links"])
                    .iter()
                    .map(|link| (text(&link["traceId"]), text(&link["spanId"])))
                    .collect(),
                attributes: attributes(&span["attributes"]),
            });
        }
    }
    found
}

fn spans_match(environment: &TestEnvironment) {
    let directory = environment.scratch("tracing");
    let collector = Collector::start(&directory);
    let configuration = directory.join("tracing.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: 127.0.0.1:{}\n\
         samplingRatePerMillion: 1000000\n",
        collector.port
    );
    fs::write(&configuration, text).unwrap();
    let flag = format!("--tracing-config-file={}", configuration.display());
    let cluster = Cluster::start_with(&directory, &[flag]);
    let registry = directory.join("registry");
    fs::create_dir_all(&registry).unwrap();
    fs::write(registry.join("core.yaml"), core(&cluster.endpoint)).unwrap();
    let gateway = Gateway::start_without_registry(
        &cluster,
        &directory,
        "traced",
        &[
            ("--authentication-kubeconfig", cluster.admin_kubeconfig.to_str().unwrap()),
            ("--authorization-kubeconfig", cluster.admin_kubeconfig.to_str().unwrap()),
            ("--authorization-mode", "Webhook"),
            ("--registry-dir", registry.to_str().unwrap()),
            ("--tracing-config-file", configuration.to_str().unwrap()),
        ],
    );
    eventually("the APIService is served", || {
        let response = gateway.endpoint.get(Some(cluster.admin()), CONFIGMAPS)?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    for (name, identity) in [("admin", cluster.admin()), ("jane", cluster.jane())] {
        let send = |endpoint: &HttpsEndpoint, side: &str| {
            for (number, (method, path, body)) in REQUESTS.iter().enumerate() {
                let id = format!("{name}-{side}-{number}");
                let headers = [
                    ("audit-id", id.as_str()),
                    ("traceparent", TRACEPARENT),
                    ("user-agent", "traces/1"),
                    ("x-forwarded-for", "198.51.100.7, 10.0.0.1"),
                    ("content-type", "application/json"),
                ];
                endpoint.send(Some(identity), method, path, &headers, body.as_bytes()).unwrap();
            }
        };
        send(&cluster.endpoint, "direct");
        send(&gateway.endpoint, "through");
        for (number, (method, path, _)) in REQUESTS.iter().enumerate() {
            let mut direct = collector.server_span("apiserver", &format!("{name}-direct-{number}"));
            if *method == "HEAD" {
                // kube-apiserver counts what it would have sent.
                direct.attributes.remove("http.response.body.size");
            }
            let id = format!("{name}-through-{number}");
            let through = collector.server_span("narthex", &id);
            compare(&direct, &through, &format!("{name}: {method} {path}"));
            if *path != "/version" && name == "admin" {
                let behind = collector.server_span("apiserver", &id);
                assert_is_relayed(&collector, &through, &behind);
            }
        }
    }
}

fn compare(direct: &CollectedSpan, through: &CollectedSpan, request: &str) {
    assert_eq!(direct.name, through.name, "{request}");
    let keys = |span: &CollectedSpan| span.attributes.keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(direct), keys(through), "{request}\n{direct:#?}\n{through:#?}");
    for key in EQUAL_VALUES {
        assert_eq!(direct.attributes.get(key), through.attributes.get(key), "{request}: {key}");
    }
    let caller = (TRACE.to_owned(), PARENT.to_owned());
    for span in [direct, through] {
        if request.starts_with("admin") {
            assert_eq!((&*span.trace, &*span.parent, span.links.len()), (TRACE, PARENT, 0), "{request}");
        } else {
            assert_ne!(span.trace, TRACE, "{request}");
            assert_eq!((&*span.parent, &span.links), ("", &vec![caller.clone()]), "{request}");
        }
    }
}

/// The span of kube-apiserver is a child of narthex' client span, which is one of its server span.
fn assert_is_relayed(collector: &Collector, server: &CollectedSpan, behind: &CollectedSpan) {
    let spans = collector.spans();
    let client = spans.iter().find(|span| span.service == "narthex" && span.kind == CLIENT && span.id == behind.parent);
    let client = client.unwrap_or_else(|| panic!("{behind:#?} has no parent"));
    assert_eq!((&client.parent, &client.trace, &behind.trace), (&server.id, &server.trace, &server.trace));
    assert_eq!(client.attributes["narthex.apiservice"], "v1.");
}
