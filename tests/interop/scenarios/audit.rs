//! Audit events of the same requests, from kube-apiserver and from narthex with the same audit policy, compared field
//! by field.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{Gateway, HttpsEndpoint, Identity, TestEnvironment, audit_policy, eventually};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[("audit: events equal kube-apiserver's", events_match)];

/// A request. Its path is below the test's namespace unless it begins with a slash.
#[derive(Clone, Copy)]
struct Request {
    requester: Requester,
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    /// Changes kube-apiserver's last event to what narthex writes instead, where that is known to differ.
    differs: Option<fn(&mut Value)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Requester {
    Jane,
    /// A user without permissions.
    Eve,
    /// An invalid bearer token.
    InvalidToken,
}

const JSON: (&str, &str) = ("content-type", "application/json");

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

const fn ask(requester: Requester, method: &'static str, path: &'static str) -> Request {
    Request { requester, method, path, headers: &[], body: "", differs: None }
}

const fn send(
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
) -> Request {
    Request { requester: Requester::Jane, method, path, headers, body, differs: None }
}

const fn differs(request: Request, how: fn(&mut Value)) -> Request {
    Request { differs: Some(how), ..request }
}

const REQUESTS: &[Request] = &[
    ask(Requester::Jane, "GET", "configmaps?limit=500"),
    send(
        "POST",
        "configmaps?fieldManager=stories",
        &[JSON],
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"},"data":{"k":"<v>"}}"#,
    ),
    send("POST", "configmaps", &[JSON], r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a"}}"#),
    send(
        "POST",
        "configmaps",
        &[("content-type", "application/yaml")],
        "kind: ConfigMap\napiVersion: v1\nmetadata: {name: b}\ndata: {k: v}\n",
    ),
    send("POST", "configmaps", &[JSON], r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"NOT A NAME"}}"#),
    // The body cannot be parsed; narthex records that in an annotation.
    differs(send("POST", "configmaps", &[JSON], r#"{"kind":"#), |event| {
        event["annotations"]["audit.narthex.dev/request-object"] = json!("omitted: cannot be parsed");
    }),
    ask(Requester::Jane, "GET", "configmaps/a"),
    // A response without a body gives the proxy no response object.
    differs(ask(Requester::Jane, "HEAD", "configmaps/a"), |event| {
        event.as_object_mut().unwrap().remove("responseObject");
        event["responseStatus"] = json!({"metadata": {}, "code": event["responseStatus"]["code"]});
    }),
    // Narthex does not convert protobuf to JSON.
    differs(send("GET", "configmaps/a", &[("accept", PROTOBUF)], ""), |event| {
        event.as_object_mut().unwrap().remove("responseObject");
        let left_out = format!("omitted: cannot convert {PROTOBUF} to JSON");
        event["annotations"]["audit.narthex.dev/response-object"] = json!(left_out);
    }),
    send("GET", "configmaps/a", &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], ""),
    ask(Requester::Jane, "GET", "configmaps?fieldSelector=metadata.name%3Da"),
    ask(Requester::Jane, "GET", "configmaps/missing"),
    ask(Requester::Jane, "GET", "configmaps/quiet"),
    send(
        "PUT",
        "configmaps/a",
        &[JSON],
        r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","labels":{"x":"y"}},"data":{"k":"w"}}"#,
    ),
    send("PATCH", "configmaps/a", &[("content-type", "application/merge-patch+json")], r#"{"data":{"k":"u"}}"#),
    send(
        "PATCH",
        "configmaps/a",
        &[("content-type", "application/json-patch+json")],
        r#"[{"op":"remove","path":"/data/k"}]"#,
    ),
    // Narthex records the version that was sent; kube-apiserver records its internal version.
    differs(
        send(
            "DELETE",
            "configmaps/b",
            &[JSON],
            r#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#,
        ),
        |event| {
            assert_eq!(event["requestObject"]["apiVersion"], "meta.k8s.io/__internal");
            event["requestObject"]["apiVersion"] = json!("v1");
        },
    ),
    ask(Requester::Jane, "DELETE", "configmaps/b"),
    ask(Requester::Jane, "DELETE", "configmaps?labelSelector=x%3Dy"),
    ask(Requester::Jane, "GET", "configmaps?watch=1&timeoutSeconds=1"),
    ask(Requester::Jane, "GET", "secrets"),
    ask(Requester::Eve, "GET", "configmaps/a"),
    ask(Requester::Eve, "GET", "configmaps?watch=1"),
    ask(Requester::Eve, "GET", "secrets/a"),
    ask(Requester::InvalidToken, "GET", "configmaps/a"),
    send("GET", "configmaps/a", &[("impersonate-user", "eve")], ""),
    send("GET", "configmaps/a", &[("impersonate-user", "bob"), ("impersonate-group", "devs")], ""),
    ask(Requester::Eve, "GET", "/stories/nowhere"),
    ask(Requester::Jane, "GET", "configmaps/a/nothing"),
];

/// Two endpoints of one kube-apiserver (direct and narthex) and their audit logs.
struct AuditFixture<'w> {
    environment: &'w TestEnvironment,
    gateway: Gateway,
    log: PathBuf,
    eve: Identity,
}

impl<'w> AuditFixture<'w> {
    fn open(environment: &'w TestEnvironment) -> AuditFixture<'w> {
        let directory = environment.scratch("auditing");
        let (log, policy) = (directory.join("audit.log"), audit_policy());
        let kubeconfig = environment.cluster.admin_kubeconfig.to_str().unwrap();
        let gateway = Gateway::start(
            &environment.cluster,
            &environment.extension,
            &directory,
            "auditing",
            &[
                ("--authentication-kubeconfig", kubeconfig),
                ("--authorization-kubeconfig", kubeconfig),
                ("--authorization-mode", "Webhook"),
                ("--audit-policy-file", policy.to_str().unwrap()),
                ("--audit-log-path", log.to_str().unwrap()),
            ],
        );
        fs::write(directory.join("auditing-registry/core.yaml"), core(&environment.cluster.endpoint)).unwrap();
        let eve = environment.cluster.authorities.client.client("auditing-eve", "eve", &["crowd"], None);
        AuditFixture { environment, gateway, log, eve }
    }

    fn requester(&self, requester: Requester) -> Option<&Identity> {
        match requester {
            Requester::Jane => Some(self.environment.cluster.jane()),
            Requester::Eve => Some(&self.eve),
            Requester::InvalidToken => None,
        }
    }

    /// Sends all requests to `endpoint`, each with its own audit id.
    fn send_all(&self, endpoint: &HttpsEndpoint, name: &str, namespace: &str) {
        for (number, request) in REQUESTS.iter().enumerate() {
            let id = format!("{name}-{number}");
            let mut headers = vec![
                ("audit-id", &*id),
                ("user-agent", "stories/1 <a&b>"),
                ("x-forwarded-for", "198.51.100.7, nonsense"),
                ("x-real-ip", "203.0.113.9"),
            ];
            if request.requester == Requester::InvalidToken {
                headers.push(("authorization", "Bearer unknown"));
            }
            headers.extend(request.headers);
            let path = path(request, namespace);
            endpoint
                .send(self.requester(request.requester), request.method, &path, &headers, request.body.as_bytes())
                .unwrap();
        }
    }
}

fn path(request: &Request, namespace: &str) -> String {
    if request.path.starts_with('/') {
        return request.path.to_owned();
    }
    format!("/api/v1/namespaces/{namespace}/{}", request.path)
}

/// Registry objects for the core API, with kube-apiserver as backend.
pub(super) fn core(endpoint: &HttpsEndpoint) -> String {
    use base64::Engine as _;
    let bundle = base64::engine::general_purpose::STANDARD.encode(fs::read(&endpoint.authority).unwrap());
    format!(
        "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: v1., annotations: \
         {{narthex.dev/probe-interval: 1s, narthex.dev/server-name: localhost}}}}\n\
         spec: {{version: v1, group: '', service: {{namespace: default, name: kubernetes}}, caBundle: {bundle}, \
         groupPriorityMinimum: 18000, versionPriority: 1}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{namespace: default, name: kubernetes}}\n\
         spec: {{clusterIP: 10.0.0.1, ports: [{{name: https, port: 443, targetPort: 6443}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{namespace: default, name: kubernetes, labels: \
         {{kubernetes.io/service-name: kubernetes}}}}\naddressType: IPv4\nports: [{{name: https, port: {}}}]\n\
         endpoints: [{{addresses: [127.0.0.1], conditions: {{ready: true}}}}]\n",
        endpoint.port
    )
}

/// Events of the request with this audit id.
fn events(log: &Path, id: &str) -> Vec<Value> {
    let text = fs::read_to_string(log).unwrap_or_default();
    let mut events: Vec<Value> = text
        .lines()
        .filter(|line| line.contains(id))
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &Value| event["auditID"] == id)
        .collect();
    events.iter_mut().for_each(clean);
    events
}

/// Removes values that differ from event to event: times, ages, ids.
fn clean(event: &mut Value) {
    fn within(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for field in ["uid", "resourceVersion", "creationTimestamp"] {
                    if let Some(value) = fields.get_mut(field) {
                        *value = json!("…");
                    }
                }
                // The age column of a Table row.
                for cell in fields.get_mut("cells").and_then(Value::as_array_mut).into_iter().flatten() {
                    if cell.as_str().and_then(|cell| cell.strip_suffix('s')?.parse::<u32>().ok()).is_some() {
                        *cell = json!("…");
                    }
                }
                fields.values_mut().for_each(within);
            }
            Value::Array(items) => items.iter_mut().for_each(within),
            _ => {}
        }
    }
    let fields = event.as_object_mut().unwrap();
    for time in ["requestReceivedTimestamp", "stageTimestamp"] {
        assert!(fields.remove(time).unwrap().as_str().unwrap().ends_with('Z'));
    }
    fields.remove("auditID");
    within(event);
}

fn events_match(environment: &TestEnvironment) {
    let fixture = AuditFixture::open(environment);
    let namespace = format!("auditing-{:08x}", fastrand::u32(..));
    environment.cluster.create_namespace(&namespace);
    let admin = environment.cluster.admin();
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "keeper"},
        "rules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}],
    });
    environment.cluster.endpoint.create(admin, &format!("{rbac}/roles"), &role);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "jane-keeps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "keeper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    environment.cluster.endpoint.create(admin, &format!("{rbac}/rolebindings"), &binding);
    // Jane may impersonate eve.
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": namespace},
        "rules": [{"apiGroups": [""], "resources": ["users"], "resourceNames": ["eve"], "verbs": ["impersonate"]}],
    });
    environment.cluster.endpoint.create(admin, &format!("{rbac}/clusterroles"), &role);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    environment.cluster.endpoint.create(admin, &format!("{rbac}/clusterrolebindings"), &binding);
    let endpoints = [&environment.cluster.endpoint, &fixture.gateway.endpoint];
    for endpoint in endpoints {
        eventually("jane authorized", || {
            let response = endpoint
                .get(Some(environment.cluster.jane()), &format!("/api/v1/namespaces/{namespace}/configmaps"))?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
    }
    fixture.send_all(endpoints[0], "direct", &namespace);
    fixture.send_all(endpoints[1], "through", &namespace);

    let (mut compared, mut differences) = (0, Vec::new());
    for (number, request) in REQUESTS.iter().enumerate() {
        let mut direct = events(&environment.cluster.audit_log, &format!("direct-{number}"));
        let through = format!("through-{number}");
        // Narthex writes events asynchronously.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while events(&fixture.log, &through).len() < direct.len() && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let through = events(&fixture.log, &through);
        compared += direct.len();
        if let (Some(differs), Some(last)) = (request.differs, direct.last_mut()) {
            differs(last);
        }
        if direct != through {
            let name = format!("== {} {}", request.method, request.path);
            let lines = |events: &[Value]| events.iter().map(|event| format!("{event}\n")).collect::<String>();
            differences.push(format!("{name}\nkube-apiserver:\n{}narthex:\n{}", lines(&direct), lines(&through)));
        }
    }
    assert!(differences.is_empty(), "{} differ\n{}", differences.len(), differences.join("\n\n"));
    assert!(compared > REQUESTS.len(), "{compared} events");
}
