//! kubectl prints for the embedded API server what it prints for kube-apiserver.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::json;

use crate::environment::{Gateway, HttpsEndpoint, Kubectl, Session, TestEnvironment};

/// One object of each kind, as `kubectl apply` gets it.
pub(super) const MANIFESTS: [(&str, &str); 6] = [
    (
        "configmap/applied",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"applied"},"data":{"k":"VALUE"}}"#,
    ),
    (
        "secret/applied",
        r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"applied"},"stringData":{"k":"VALUE"}}"#,
    ),
    (
        "serviceaccount/applied",
        r#"{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"applied","labels":{"k":"VALUE"}}}"#,
    ),
    (
        "lease/applied",
        r#"{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"applied"},"spec":{"holderIdentity":"VALUE"}}"#,
    ),
    (
        "service/applied",
        r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"applied"},"spec":{"type":"ExternalName","externalName":"VALUE.example"}}"#,
    ),
    (
        "endpointslice/applied",
        r#"{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"applied"},"addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"],"hostname":"VALUE"}]}"#,
    ),
];

pub(super) fn compare_commands(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("embedded-kubectl-{}", kubectl.version));
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let transcripts = [&environment.cluster.endpoint, &embedded.endpoint].map(|endpoint| {
        let mut session = open_session(environment, kubectl, endpoint);
        run_commands(&mut session);
        session.into_transcript()
    });
    super::super::compare(&transcripts[0], &transcripts[1]);
}

/// A session of the admin in a new namespace.
pub(super) fn open_session<'e>(
    environment: &'e TestEnvironment,
    kubectl: &Kubectl,
    endpoint: &HttpsEndpoint,
) -> Session<'e> {
    let admin = environment.cluster.admin();
    let session = Session::open_at(environment, kubectl, endpoint, admin);
    if endpoint.port != environment.cluster.endpoint.port {
        endpoint.create(admin, "/api/v1/namespaces", &json!({"metadata": {"name": session.namespace}}));
    }
    session
}

fn run_commands(session: &mut Session<'_>) {
    for command in [
        "create configmap made --from-literal=a=b",
        "create configmap made",
        "create secret generic made --from-literal=a=b",
        "create serviceaccount made",
        "label configmap made app=a",
        "label configmap made app=b",
        "label configmap made app=b --overwrite",
        "label configmap made app-",
        "annotate configmap made note=x",
        "patch configmap made --type=merge -p {\"data\":{\"m\":\"1\"}}",
        "patch configmap made --type=strategic -p {\"data\":{\"s\":\"1\"}}",
        "patch configmap made --type=json -p [{\"op\":\"add\",\"path\":\"/data/j\",\"value\":\"1\"}]",
        "patch configmap made --type=json -p [{\"op\":\"test\",\"path\":\"/data/j\",\"value\":\"2\"}]",
        "patch configmap absent --type=merge -p {}",
        "get configmap made -o jsonpath={.data}",
        "get configmap,secret,serviceaccount made -o name",
        "get configmap -l app=none",
        "get configmap --field-selector=metadata.name=made -o name",
        "get configmap --field-selector=spec.x=y",
        "get configmap -l a=b=c",
        "get configmap absent",
        "get flunders",
        "get events",
        "delete configmap absent",
        "delete configmap absent --ignore-not-found",
        "delete configmap made --dry-run=server",
        "delete secret made --wait=false",
        "wait --for=delete secret/made --timeout=20s",
    ] {
        session.kubectl(command);
    }
    for (_, manifest) in MANIFESTS {
        let apply = |value: &str| manifest.replace("VALUE", value);
        session.with_input("apply -f -", &apply("one"));
        session.with_input("apply -f -", &apply("one"));
        session.with_input("apply -f -", &apply("two"));
        session.with_input("replace -f -", &apply("three"));
        session.with_input("apply --dry-run=server -f -", &apply("four"));
    }
    session.with_input("create -f -", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"typo"},"dta":{}}"#);
    session.with_input(
        "create --validate=ignore -f -",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"typo"},"dta":{}}"#,
    );
    session.with_input(
        "create --validate=warn -f -",
        r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"warned"},"dta":{}}"#,
    );
    edit(session);
    for (name, _) in MANIFESTS {
        record_table(session, &format!("get {name}"));
        session.kubectl(&format!("get {name} -o jsonpath={{.metadata.labels}}{{.spec}}{{.data}}"));
    }
    for number in 0..7 {
        session.kubectl(&format!("create configmap page-{number}"));
    }
    session.kubectl("get configmap --chunk-size=2 -o name");
    session.kubectl("delete configmap --all");
    session.kubectl("get configmap");
}

/// `kubectl edit` with an editor that replaces text.
fn edit(session: &mut Session<'_>) {
    let mut command = session.command("edit configmap applied");
    command.env("KUBE_EDITOR", "sed -i s/three/edited/");
    session.record("edit configmap applied", command, "");
    session.kubectl("get configmap applied -o jsonpath={.data.k}");
}

/// Records a table without ages.
pub(super) fn record_table(session: &mut Session<'_>, args: &str) {
    static AGE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b\d+m?s\b").unwrap());
    let printed = session.run_unrecorded(args);
    let text = AGE.replace_all(printed.ok(), "AGE").into_owned();
    session.record_note(args, &text);
}

pub(super) fn watch_and_wait(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("embedded-watch-{}", kubectl.version));
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let mut session = open_session(environment, kubectl, &embedded.endpoint);
    let mut watch = session.stream("get configmap -w -o custom-columns=N:.metadata.name,V:.data.v --no-headers");
    session.kubectl("create configmap seen --from-literal=v=1").ok();
    watch.line_with("seen   1");
    session.kubectl("patch configmap seen --type=merge -p {\"data\":{\"v\":\"2\"}}").ok();
    watch.line_with("seen   2");
    let waiting = session.stream("wait --for=delete configmap/seen --timeout=60s");
    let waiting_for_value = session.stream("wait --for=jsonpath={.data.v}=3 configmap/seen --timeout=60s");
    session.kubectl("patch configmap seen --type=merge -p {\"data\":{\"v\":\"3\"}}").ok();
    let (success, lines) = waiting_for_value.finish();
    assert!(success, "{lines:?}");
    session.kubectl("delete configmap seen").ok();
    let (success, lines) = waiting.finish();
    assert!(success, "{lines:?}");
    // A namespace is emptied and removed.
    session.kubectl("create configmap left-behind").ok();
    let namespace = session.namespace.clone();
    session.kubectl(&format!("delete namespace {namespace} --timeout=60s")).ok();
    session.kubectl(&format!("get namespace {namespace}")).expect_error("not found");
    assert!(watch.is_running());
}
