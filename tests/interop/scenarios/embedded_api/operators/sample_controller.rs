//! client-go's sample-controller: a Foo has a Deployment. Deployments are stored only; no controller runs them.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    KILLS, OperatorFixture, assert_no_wrong_answers, compare_stories, create_while_killed, without_run_values,
};
use crate::environment::{Gateway, Process, TestEnvironment, peer};

const GROUP_VERSION: &str = "apis/samplecontroller.k8s.io/v1alpha1";

pub(super) fn deploys_foos(environment: &TestEnvironment) {
    compare_stories(environment, "operator-sample-controller", &[], |fixture, gateway| {
        fixture.install(&crd());
        let seen = follow_foos(fixture, gateway);
        let name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/foos.samplecontroller.k8s.io";
        fixture.write("DELETE", name, &json!({}));
        fixture.wait_until_gone(name);
        seen
    });
}

/// `artifacts/examples/crd-status-subresource.yaml` of the module.
fn crd() -> Value {
    let spec = json!({"type": "object", "properties": {
        "deploymentName": {"type": "string"}, "replicas": {"type": "integer", "minimum": 1, "maximum": 10},
    }});
    let status = json!({"type": "object", "properties": {"availableReplicas": {"type": "integer"}}});
    let schema = json!({"type": "object", "properties": {"spec": spec, "status": status}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "foos.samplecontroller.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, experimental-only; please get an approval from Kubernetes API reviewers if you're trying to develop a CRD in the *.k8s.io or *.kubernetes.io groups"},
        },
        "spec": {
            "group": "samplecontroller.k8s.io", "scope": "Namespaced", "names": {"kind": "Foo", "plural": "foos"},
            "versions": [{
                "name": "v1alpha1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}

fn foos(fixture: &OperatorFixture<'_>) -> String {
    fixture.collection(GROUP_VERSION, "foos")
}

fn deployment(fixture: &OperatorFixture<'_>, name: &str) -> String {
    fixture.collection("apis/apps/v1", &format!("deployments/{name}"))
}

fn foo_object(name: &str, replicas: usize) -> Value {
    let spec = json!({"deploymentName": format!("{name}-web"), "replicas": replicas});
    json!({"apiVersion": "samplecontroller.k8s.io/v1alpha1", "kind": "Foo", "metadata": {"name": name}, "spec": spec})
}

/// Waits for the Deployment of a Foo with its number of replicas.
fn wait_until_deployed(fixture: &OperatorFixture<'_>, name: &str, replicas: usize) -> Value {
    let found = fixture.wait_for("a Deployment", &deployment(fixture, &format!("{name}-web")), |deployment| {
        deployment["spec"]["replicas"] == replicas
    });
    let owner = fixture.wait_for("its Foo", &format!("{}/{name}", foos(fixture)), |owner| owner["status"].is_object());
    assert_eq!(found["metadata"]["ownerReferences"][0]["uid"], owner["metadata"]["uid"]);
    found
}

/// Returns the objects on the way, without what differs with each run.
fn follow_foos(fixture: &OperatorFixture<'_>, gateway: Option<&mut Gateway>) -> Vec<Value> {
    let path = foos(fixture);
    let arguments = [format!("--kubeconfig={}", fixture.kubeconfig().display())];
    let mut operator = Process::start("sample-controller", &peer("sample-controller"), arguments, &fixture.directory);
    let mut seen = Vec::new();
    fixture.write("POST", &path, &foo_object("example", 1));
    seen.push(wait_until_deployed(fixture, "example", 1));
    fixture.write("PATCH", &format!("{path}/example"), &json!({"spec": {"replicas": 3}}));
    seen.push(wait_until_deployed(fixture, "example", 3));
    // What a Deployment controller would write.
    let status = json!({"status": {"replicas": 3, "availableReplicas": 2, "readyReplicas": 2, "updatedReplicas": 3}});
    seen.push(fixture.write("PATCH", &format!("{}/status", deployment(fixture, "example-web")), &status));
    seen.push(
        fixture.wait_for("the status", &format!("{path}/example"), |owner| owner["status"]["availableReplicas"] == 2),
    );
    // The controller replaces the Deployment without its status, which stays.
    fixture.write("PATCH", &format!("{path}/example"), &json!({"spec": {"replicas": 4}}));
    seen.push(wait_until_deployed(fixture, "example", 4));
    fixture.write("DELETE", &deployment(fixture, "example-web"), &json!({}));
    seen.push(wait_until_deployed(fixture, "example", 4));

    // A Deployment of somebody else is refused with an Event.
    let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "x", "image": "x"}]}});
    let spec = json!({"selector": {"matchLabels": {"app": "x"}}, "template": template});
    let foreign =
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "other-web"}, "spec": spec});
    seen.push(fixture.write("POST", &fixture.collection("apis/apps/v1", "deployments"), &foreign));
    fixture.write("POST", &path, &foo_object("other", 1));
    let events = fixture.collection("api/v1", "events?fieldSelector=reason=ErrResourceExists");
    let list = fixture.wait_for("a warning", &events, |list| list["items"][0]["involvedObject"]["name"] == "other");
    let event = &list["items"][0];
    seen.push(json!({"metadata": {}, "type": event["type"], "message": event["message"], "source": event["source"]}));
    fixture.write("DELETE", &format!("{path}/other"), &json!({}));

    if let Some(gateway) = gateway {
        kill(fixture, gateway, &operator);
    }
    operator.signal(Signal::TERM);
    assert!(operator.wait().success(), "{}", operator.log());
    seen.iter().map(without_run_values).collect()
}

/// Kills the gateway while objects are created. The controller goes on.
fn kill(fixture: &OperatorFixture<'_>, gateway: &mut Gateway, operator: &Process) {
    let acknowledged = create_while_killed(gateway, |number| {
        let name = format!("many-{number}");
        let response = fixture.send("POST", &foos(fixture), &foo_object(&name, 1 + number % 9)).ok()?;
        (response.status == 201).then_some((name, 1 + number % 9))
    });
    assert!(acknowledged.len() > KILLS, "{acknowledged:?}");
    fixture.write("POST", &foos(fixture), &foo_object("after", 2));
    wait_until_deployed(fixture, "after", 2);
    for (name, replicas) in &acknowledged {
        wait_until_deployed(fixture, name, *replicas);
    }
    assert_no_wrong_answers(&operator.log());
    println!("sample-controller: {KILLS} kills, {} Foos acknowledged and deployed", acknowledged.len());
}
