//! An operator of kube-rs (`tests/interop/peers/kube-rs/src/bin/kube-rs-operator.rs`): the CRD that its derive
//! macro makes, the finalizer helper, owned ConfigMaps, status, scale and Events.

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    KILLS, OperatorFixture, assert_no_wrong_answers, compare_stories, create_while_killed, without_run_values,
};
use crate::environment::{Gateway, Process, TestEnvironment, eventually, peer};

const GROUP_VERSION: &str = "apis/fleet.example.com/v1";

pub(super) fn scales_fleets(environment: &TestEnvironment) {
    let output = std::process::Command::new(peer("kube-rs-operator")).arg("definition").output().unwrap();
    let crd: Value = serde_json::from_slice(&output.stdout).unwrap();
    compare_stories(environment, "operator-kube-rs", &[], |fixture, gateway| {
        fixture.install(&crd);
        follow_fleets(fixture, gateway)
    });
}

fn start_operator(fixture: &OperatorFixture<'_>) -> Process {
    let arguments = [
        format!("KUBECONFIG={}", fixture.kubeconfig().display()),
        format!("NAMESPACE={}", fixture.namespace),
        peer("kube-rs-operator").display().to_string(),
    ];
    Process::start("kube-rs-operator", std::path::Path::new("/usr/bin/env"), arguments, &fixture.directory)
}

fn fleets(fixture: &OperatorFixture<'_>) -> String {
    fixture.collection(GROUP_VERSION, "fleets")
}

fn fleet(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "fleet.example.com/v1", "kind": "Fleet", "metadata": {"name": name}, "spec": spec})
}

/// Waits until the operator has reported its latest state with a number of ships, and these are there.
fn wait_until_scaled(fixture: &OperatorFixture<'_>, name: &str, ships: usize) -> Value {
    let path = format!("{}/{name}", fleets(fixture));
    let scaled = fixture.wait_for(name, &path, |fleet| {
        fleet["status"]["replicas"] == ships && fleet["status"]["observedGeneration"] == fleet["metadata"]["generation"]
    });
    eventually(&format!("{ships} ships of {name}"), || {
        let found = ships_of(fixture, name);
        if found.len() == ships { Ok(()) } else { Err(format!("{found:?}")) }
    });
    scaled
}

fn ships_of(fixture: &OperatorFixture<'_>, name: &str) -> Vec<Value> {
    fixture.items(&fixture.collection("api/v1", &format!("configmaps?labelSelector=fleet={name}")))
}

/// Returns the objects on the way, without what differs with each run.
fn follow_fleets(fixture: &OperatorFixture<'_>, gateway: Option<&mut Gateway>) -> Vec<Value> {
    let path = fleets(fixture);
    let mut operator = start_operator(fixture);
    let mut seen = Vec::new();
    fixture.write("POST", &path, &fleet("red", &json!({"replicas": 3, "harbor": "Kiel"})));
    fixture.write("POST", &path, &fleet("blue", &json!({"harbor": null})));
    seen.push(wait_until_scaled(fixture, "red", 3));
    seen.push(wait_until_scaled(fixture, "blue", 1));
    let uid = seen[0]["metadata"]["uid"].clone();
    for mut ship in ships_of(fixture, "red") {
        // kube-apiserver's lists of built-in kinds have no type in their items.
        for field in ["apiVersion", "kind"] {
            ship.as_object_mut().unwrap().remove(field);
        }
        seen.push(ship);
    }
    assert_eq!(seen[2]["metadata"]["ownerReferences"][0]["uid"], uid);
    seen.extend(fixture.items(&format!("{path}?fieldSelector=spec.harbor=Kiel")));

    // By the scale subresource, and by a change of what is owned.
    seen.push(fixture.write("PATCH", &format!("{path}/red/scale"), &json!({"spec": {"replicas": 5}})));
    seen.push(wait_until_scaled(fixture, "red", 5));
    seen.push(fixture.wait_for("the scale", &format!("{path}/red/scale"), |_| true));
    fixture.write("DELETE", &fixture.collection("api/v1", "configmaps/red-4"), &json!({}));
    seen.push(fixture.wait_for("the ship made again", &fixture.collection("api/v1", "configmaps/red-4"), |_| true));
    let refused = fixture.send("PATCH", &format!("{path}/red"), &json!({"spec": {"replicas": 10}})).unwrap();
    seen.push(json!({"metadata": {}, "code": refused.status.as_u16(), "message": refused.json()["message"]}));
    seen.push(fixture.write("PATCH", &format!("{path}/red/scale"), &json!({"spec": {"replicas": 0}})));
    seen.push(wait_until_scaled(fixture, "red", 0));
    // kube-rs counts equal Events by a merge patch.
    let events = fixture.collection("apis/events.k8s.io/v1", "events?fieldSelector=reason=Scaled");
    let event_of_red = |list: &Value| {
        let events = list["items"].as_array().cloned().unwrap();
        events.into_iter().find(|event| event["regarding"]["name"] == "red").unwrap_or_default()
    };
    let list = fixture.wait_for("the counted Events", &events, |list| {
        event_of_red(list)["series"]["count"].as_u64().is_some_and(|count| count >= 3)
    });
    let event = event_of_red(&list);
    assert_eq!(event["regarding"]["uid"], uid);
    seen.push(json!({"metadata": {}, "note": event["note"], "controller": event["reportingController"]}));

    if let Some(gateway) = gateway {
        kill(fixture, gateway, &operator);
    }

    operator.signal(Signal::KILL);
    operator.wait();
    fixture.write("DELETE", &format!("{path}/blue"), &json!({}));
    seen.push(fixture.wait_for("the deleted fleet", &format!("{path}/blue"), |fleet| {
        fleet["metadata"]["deletionTimestamp"].is_string()
    }));
    let _operator = start_operator(fixture);
    fixture.wait_until_gone(&format!("{path}/blue"));
    assert_eq!(ships_of(fixture, "blue"), [Value::Null; 0]);
    // With the CRD all fleets go, each by its finalizer.
    let name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/fleets.fleet.example.com";
    fixture.write("DELETE", name, &json!({}));
    fixture.wait_until_gone(name);
    assert_eq!(fixture.items(&fixture.collection("api/v1", "configmaps?labelSelector=fleet")), [Value::Null; 0]);
    seen.iter().map(without_run_values).collect()
}

/// Kills the gateway while objects are created. The operator goes on.
fn kill(fixture: &OperatorFixture<'_>, gateway: &mut Gateway, operator: &Process) {
    let acknowledged = create_while_killed(gateway, |number| {
        let name = format!("many-{number}");
        let fleet = fleet(&name, &json!({"replicas": 1 + number % 3}));
        let response = fixture.send("POST", &fleets(fixture), &fleet).ok()?;
        (response.status == 201).then_some(name)
    });
    assert!(acknowledged.len() > KILLS, "{acknowledged:?}");
    fixture.write("POST", &fleets(fixture), &fleet("after", &json!({"replicas": 2})));
    wait_until_scaled(fixture, "after", 2);
    for name in &acknowledged {
        let number: usize = name.trim_start_matches("many-").parse().unwrap();
        wait_until_scaled(fixture, name, 1 + number % 3);
    }
    assert_no_wrong_answers(&operator.log());
    println!("kube-rs: {KILLS} kills, {} fleets acknowledged and scaled", acknowledged.len());
}
