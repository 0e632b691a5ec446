//! The same requests to a real kube-apiserver and, with the same audit policy, through narthex to that kube-apiserver:
//! the events of both, field by field.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Trial;
use crate::world::{Door, Gateway, Identity, World, audit_policy, eventually};

pub(super) const THROUGH: &[(&str, Trial)] = &[("audit: events as kube-apiserver writes them", alike)];

/// One request; its path is below the namespace of the trial unless it begins with a slash.
#[derive(Clone, Copy)]
struct Request {
    who: Who,
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
    /// Makes of kube-apiserver's last event what narthex is known to write instead, and why that is so.
    differs: Option<fn(&mut Value)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Who {
    Jane,
    /// May nothing.
    Eve,
    /// Shows a token that nobody knows.
    Nobody,
}

const JSON: (&str, &str) = ("content-type", "application/json");

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

const fn ask(who: Who, method: &'static str, path: &'static str) -> Request {
    Request { who, method, path, headers: &[], body: "", differs: None }
}

const fn send(
    method: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    body: &'static str,
) -> Request {
    Request { who: Who::Jane, method, path, headers, body, differs: None }
}

const fn differs(request: Request, how: fn(&mut Value)) -> Request {
    Request { differs: Some(how), ..request }
}

const REQUESTS: &[Request] = &[
    ask(Who::Jane, "GET", "configmaps?limit=500"),
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
    // There is no object, and narthex says so.
    differs(send("POST", "configmaps", &[JSON], r#"{"kind":"#), |event| {
        event["annotations"]["audit.narthex.dev/request-object"] = json!("omitted: cannot be parsed");
    }),
    ask(Who::Jane, "GET", "configmaps/a"),
    // An answer without a body says nothing to who relays it.
    differs(ask(Who::Jane, "HEAD", "configmaps/a"), |event| {
        event.as_object_mut().unwrap().remove("responseObject");
        event["responseStatus"] = json!({"metadata": {}, "code": event["responseStatus"]["code"]});
    }),
    // Protobuf is not made JSON.
    differs(send("GET", "configmaps/a", &[("accept", PROTOBUF)], ""), |event| {
        event.as_object_mut().unwrap().remove("responseObject");
        let left_out = format!("omitted: cannot convert {PROTOBUF} to JSON");
        event["annotations"]["audit.narthex.dev/response-object"] = json!(left_out);
    }),
    send("GET", "configmaps/a", &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")], ""),
    ask(Who::Jane, "GET", "configmaps?fieldSelector=metadata.name%3Da"),
    ask(Who::Jane, "GET", "configmaps/missing"),
    ask(Who::Jane, "GET", "configmaps/quiet"),
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
    // What was sent; kube-apiserver writes the version by which it calls them inside.
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
    ask(Who::Jane, "DELETE", "configmaps/b"),
    ask(Who::Jane, "DELETE", "configmaps?labelSelector=x%3Dy"),
    ask(Who::Jane, "GET", "configmaps?watch=1&timeoutSeconds=1"),
    ask(Who::Jane, "GET", "secrets"),
    ask(Who::Eve, "GET", "configmaps/a"),
    ask(Who::Eve, "GET", "configmaps?watch=1"),
    ask(Who::Eve, "GET", "secrets/a"),
    ask(Who::Nobody, "GET", "configmaps/a"),
    send("GET", "configmaps/a", &[("impersonate-user", "eve")], ""),
    send("GET", "configmaps/a", &[("impersonate-user", "bob"), ("impersonate-group", "devs")], ""),
    ask(Who::Eve, "GET", "/stories/nowhere"),
    ask(Who::Jane, "GET", "configmaps/a/nothing"),
];

/// Two doors to one kube-apiserver, and where each writes down who came.
struct Scene<'w> {
    world: &'w World,
    gateway: Gateway,
    log: PathBuf,
    eve: Identity,
}

impl<'w> Scene<'w> {
    fn open(world: &'w World) -> Scene<'w> {
        let directory = world.scratch("auditing");
        let (log, policy) = (directory.join("audit.log"), audit_policy());
        let kubeconfig = world.cluster.admin_kubeconfig.to_str().unwrap();
        let gateway = Gateway::start(
            &world.cluster,
            &world.extension,
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
        fs::write(directory.join("auditing-registry/core.yaml"), core(&world.cluster.door)).unwrap();
        let eve = world.cluster.authorities.client.client("auditing-eve", "eve", &["crowd"], None);
        Scene { world, gateway, log, eve }
    }

    fn who(&self, who: Who) -> Option<&Identity> {
        match who {
            Who::Jane => Some(self.world.cluster.jane()),
            Who::Eve => Some(&self.eve),
            Who::Nobody => None,
        }
    }

    /// Sends all requests to `door`, each under a name of its own.
    fn tell(&self, door: &Door, name: &str, namespace: &str) {
        for (number, request) in REQUESTS.iter().enumerate() {
            let id = format!("{name}-{number}");
            let mut headers = vec![
                ("audit-id", &*id),
                ("user-agent", "stories/1 <a&b>"),
                ("x-forwarded-for", "198.51.100.7, nonsense"),
                ("x-real-ip", "203.0.113.9"),
            ];
            if request.who == Who::Nobody {
                headers.push(("authorization", "Bearer unknown"));
            }
            headers.extend(request.headers);
            let path = path(request, namespace);
            door.send(self.who(request.who), request.method, &path, &headers, request.body.as_bytes()).unwrap();
        }
    }
}

fn path(request: &Request, namespace: &str) -> String {
    if request.path.starts_with('/') {
        return request.path.to_owned();
    }
    format!("/api/v1/namespaces/{namespace}/{}", request.path)
}

/// The core API, served by kube-apiserver as if it were an extension server.
fn core(door: &Door) -> String {
    use base64::Engine as _;
    let bundle = base64::engine::general_purpose::STANDARD.encode(fs::read(&door.authority).unwrap());
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
        door.port
    )
}

/// The events of a request, by its name.
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

/// Takes away what is another one's each time: times, ages, the event's own name.
fn clean(event: &mut Value) {
    fn within(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for field in ["uid", "resourceVersion", "creationTimestamp"] {
                    if let Some(value) = fields.get_mut(field) {
                        *value = json!("…");
                    }
                }
                // The age of what a Table's row shows.
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

fn alike(world: &World) {
    let scene = Scene::open(world);
    let namespace = format!("auditing-{:08x}", fastrand::u32(..));
    world.cluster.create_namespace(&namespace);
    let admin = world.cluster.admin();
    let rbac = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}");
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "keeper"},
        "rules": [{"apiGroups": [""], "resources": ["*"], "verbs": ["*"]}],
    });
    world.cluster.door.create(admin, &format!("{rbac}/roles"), &role);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "jane-keeps"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "keeper"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    world.cluster.door.create(admin, &format!("{rbac}/rolebindings"), &binding);
    // Jane may be eve, for whatever that is worth.
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": namespace},
        "rules": [{"apiGroups": [""], "resources": ["users"], "resourceNames": ["eve"], "verbs": ["impersonate"]}],
    });
    world.cluster.door.create(admin, &format!("{rbac}/clusterroles"), &role);
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}],
    });
    world.cluster.door.create(admin, &format!("{rbac}/clusterrolebindings"), &binding);
    let doors = [&world.cluster.door, &scene.gateway.door];
    for door in doors {
        eventually("jane to be let in", || {
            let answer = door.get(Some(world.cluster.jane()), &format!("/api/v1/namespaces/{namespace}/configmaps"))?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
    }
    scene.tell(doors[0], "direct", &namespace);
    scene.tell(doors[1], "through", &namespace);

    let (mut compared, mut differences) = (0, Vec::new());
    for (number, request) in REQUESTS.iter().enumerate() {
        let mut direct = events(&world.cluster.audit_log, &format!("direct-{number}"));
        let through = format!("through-{number}");
        // Ours are written a moment later.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(2);
        while events(&scene.log, &through).len() < direct.len() && std::time::Instant::now() < until {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let through = events(&scene.log, &through);
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
