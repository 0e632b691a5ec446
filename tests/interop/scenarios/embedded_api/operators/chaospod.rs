//! The example `examples/crd` of controller-runtime: a ChaosPod has a Pod, which is deleted and made again at a time. Pods
//! are stored only; no scheduler or kubelet runs them.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{KILLS, OperatorFixture, assert_no_wrong_answers, compare_stories, create_while_killed};
use crate::environment::{Gateway, LIKE_KUBE_APISERVER, Process, TestEnvironment, peer};

const GROUP_VERSION: &str = "apis/chaosapps.metamagical.io/v1";

pub(super) fn replaces_pods(environment: &TestEnvironment) {
    compare_stories(environment, "operator-chaospod", &LIKE_KUBE_APISERVER, |fixture, gateway| {
        fixture.install(&crd());
        let seen = follow_chaospods(fixture, gateway);
        let name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/chaospods.chaosapps.metamagical.io";
        fixture.write("DELETE", name, &json!({}));
        fixture.wait_until_gone(name);
        seen
    });
}

/// The CRD of the types of the example; the module has none.
fn crd() -> Value {
    let time = json!({"type": "string", "format": "date-time"});
    let spec = json!({"type": "object", "required": ["template"], "properties": {
        "template": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}, "nextStop": time,
    }});
    let status = json!({"type": "object", "properties": {"lastRun": time}});
    let columns = json!([
        {"name": "next stop", "type": "string", "jsonPath": ".spec.nextStop", "format": "date"},
        {"name": "last run", "type": "string", "jsonPath": ".status.lastRun", "format": "date"},
    ]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "chaospods.chaosapps.metamagical.io"},
        "spec": {
            "group": "chaosapps.metamagical.io", "scope": "Namespaced",
            "names": {"kind": "ChaosPod", "listKind": "ChaosPodList", "plural": "chaospods", "singular": "chaospod"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "additionalPrinterColumns": columns,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}},
            }],
        },
    })
}

fn chaospods(fixture: &OperatorFixture<'_>) -> String {
    fixture.collection(GROUP_VERSION, "chaospods")
}

fn chaospod(name: &str) -> Value {
    let template = json!({
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "web", "image": "example.com/web:1"}]},
    });
    let spec = json!({"template": template});
    json!({"apiVersion": "chaosapps.metamagical.io/v1", "kind": "ChaosPod", "metadata": {"name": name}, "spec": spec})
}

/// Waits for a Pod of the ChaosPod with another uid than `before`, and for the time of its end; returns the Pod.
fn wait_until_run(fixture: &OperatorFixture<'_>, name: &str, before: &Value) -> Value {
    let path = fixture.collection("api/v1", &format!("pods/{name}"));
    let pod = fixture.wait_for("a Pod", &path, |pod| pod["metadata"]["uid"] != *before);
    let times = |chaospod: &Value| {
        let time = |value: &Value| value.as_str().map(str::to_owned);
        Some((time(&chaospod["spec"]["nextStop"])?, time(&chaospod["status"]["lastRun"])?))
    };
    let chaospod = fixture.wait_for("its ChaosPod", &format!("{}/{name}", chaospods(fixture)), |chaospod| {
        times(chaospod).is_some_and(|(next, last)| next > last)
    });
    assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], chaospod["metadata"]["uid"], "{pod}");
    pod
}

/// Returns what is equal in both: admission of kube-apiserver sets more fields of a Pod, and it a status.
fn follow_chaospods(fixture: &OperatorFixture<'_>, gateway: Option<&mut Gateway>) -> Vec<Value> {
    let environment =
        [format!("KUBECONFIG={}", fixture.kubeconfig().display()), peer("chaospod-controller").display().to_string()];
    let env = std::path::Path::new("/usr/bin/env");
    let mut operator = Process::start("chaospod-controller", env, environment, &fixture.directory);
    fixture.write("POST", &chaospods(fixture), &chaospod("first"));
    let mut seen = Vec::new();
    let mut uid = Value::Null;
    for _ in 0..2 {
        let pod = wait_until_run(fixture, "first", &uid);
        uid = pod["metadata"]["uid"].clone();
        let mut owner = pod["metadata"]["ownerReferences"].clone();
        owner[0]["uid"] = Value::Null;
        seen.push(json!({
            "labels": pod["metadata"]["labels"], "owner": owner, "containers": pod["spec"]["containers"],
            "restartPolicy": pod["spec"]["restartPolicy"], "generation": pod["metadata"]["generation"],
        }));
        let past = json!({"spec": {"nextStop": "2026-01-01T00:00:00Z"}});
        fixture.write("PATCH", &format!("{}/first", chaospods(fixture)), &past);
    }
    if let Some(gateway) = gateway {
        kill(fixture, gateway, &operator);
    }
    operator.signal(Signal::TERM);
    assert!(operator.wait().success(), "{}", operator.log());
    seen
}

/// Kills the gateway while objects are created. The controller goes on.
fn kill(fixture: &OperatorFixture<'_>, gateway: &mut Gateway, operator: &Process) {
    let acknowledged = create_while_killed(gateway, |number| {
        let name = format!("many-{number}");
        let response = fixture.send("POST", &chaospods(fixture), &chaospod(&name)).ok()?;
        (response.status == 201).then_some(name)
    });
    assert!(acknowledged.len() > KILLS, "{acknowledged:?}");
    fixture.write("POST", &chaospods(fixture), &chaospod("after"));
    wait_until_run(fixture, "after", &Value::Null);
    for name in &acknowledged {
        wait_until_run(fixture, name, &Value::Null);
    }
    assert_no_wrong_answers(&operator.log());
    println!("chaospod-controller: {KILLS} kills, {} ChaosPods acknowledged and run", acknowledged.len());
}
