//! What `kubectl describe`, `explain`, `diff`, `events`, `api-resources` and `replace --force` print for the embedded API
//! server is what they print for kube-apiserver.

use serde_json::json;

use super::kubectl_stories::{MANIFESTS, open_session, record_table};
use crate::environment::{Gateway, Kubectl, Session, TestEnvironment};

pub(super) fn compare_descriptions(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("embedded-describe-{}", kubectl.version));
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let transcripts = [&environment.cluster.endpoint, &embedded.endpoint].map(|endpoint| {
        let mut session = open_session(environment, kubectl, endpoint);
        describe(&mut session);
        diff_and_replace(&mut session);
        print_events(&mut session);
        explain(&mut session);
        session.into_transcript()
    });
    super::super::compare(&transcripts[0], &transcripts[1]);
}

fn describe(session: &mut Session<'_>) {
    for (name, manifest) in MANIFESTS {
        let first = manifest.replace("VALUE", "one");
        session.with_input("create -f -", &first).ok();
        session.kubectl(&format!("describe {name}"));
    }
    let namespace = session.namespace.clone();
    session.kubectl(&format!("describe namespace {namespace}"));
    session.kubectl("describe configmap absent");
    session.kubectl("describe configmap app");
    session.kubectl("get configmap,secret -o yaml");
    session.kubectl("get configmap,lease -o custom-columns=NAME:.metadata.name,KIND:.kind");
}

fn diff_and_replace(session: &mut Session<'_>) {
    let all = |value: &str| {
        let documents: Vec<String> = MANIFESTS.iter().map(|(_, manifest)| manifest.replace("VALUE", value)).collect();
        format!(r#"{{"apiVersion":"v1","kind":"List","items":[{}]}}"#, documents.join(","))
    };
    session.with_input("diff -f -", &all("one"));
    let changed = session.with_input("diff -f -", &all("two"));
    // The value of the Secret is masked.
    assert_eq!(changed.output.matches("two").count(), MANIFESTS.len() - 1, "{}", changed.output);
    session.with_input("replace -f -", &all("three")).ok();
    session.with_input("replace --force -f -", &all("four")).ok();
    let absent = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"absent"},"data":{"a":"b"}}"#;
    session.with_input("diff -f -", absent);
    session.with_input("replace -f -", absent);
    session.kubectl("wait --for=jsonpath={.data.k}=four configmap/applied --timeout=20s");
    session.kubectl("wait --for=create configmap/applied --timeout=20s");
    session.kubectl("wait --for=jsonpath={.data.k}=five configmap/applied --timeout=1s");
    session.kubectl("wait --for=delete configmap/absent --timeout=20s");
}

fn print_events(session: &mut Session<'_>) {
    session.kubectl("events");
    for (name, reason, kind) in [("one", "Started", "Normal"), ("two", "Failed", "Warning")] {
        let event = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "reason": reason, "type": kind,
            "message": format!("{reason} it"), "source": {"component": "test"}, "count": 2,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "name": "applied", "namespace": session.namespace},
        });
        session.with_input("create -f -", &event).ok();
    }
    for command in
        ["events", "events --types=Warning", "events --for=configmap/applied", "get events", "get events -o wide"]
    {
        record_table(session, command);
    }
    session.kubectl("get events --field-selector=reason=Failed -o name");
    session.kubectl("get events --field-selector=involvedObject.kind=ConfigMap,type=Normal -o name");
    session.kubectl("events --for=configmap/absent");
}

fn explain(session: &mut Session<'_>) {
    for path in [
        "configmap",
        "configmap.data",
        "service.spec",
        "service.spec.ports",
        "lease --recursive",
        "endpointslice.endpoints.conditions",
        "namespace.status",
        "event",
        "configmap.absent",
        "absent",
        "configmap --api-version=v2",
    ] {
        session.kubectl(&format!("explain {path}"));
    }
    for group in ["coordination.k8s.io", "discovery.k8s.io", "absent"] {
        session.kubectl(&format!("api-resources --api-group={group}"));
    }
}
