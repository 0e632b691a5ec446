//! An operator as kubebuilder lays it out (`tests/interop/peers/operators/website-operator`): leader election, finalizer,
//! status, an owned ConfigMap, Events, and a conversion webhook between two versions.

use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{
    OperatorFixture, assert_no_wrong_answers, compare_stories, condition, create_while_killed, without_run_values,
    write_webhook_certificate,
};
use crate::environment::{Gateway, HttpResponse, Process, TestEnvironment, eventually, free_port, peer};

const GROUP: &str = "web.example.com";

/// Once with the operator's version stored, and once with the other: then each read and event passes its own webhook.
pub(super) fn serves_websites(environment: &TestEnvironment) {
    run(environment, "v1");
    run(environment, "v1alpha1");
}

fn run(environment: &TestEnvironment, storage: &str) {
    let name = format!("operator-{storage}");
    // The same port in both stories, since messages have it.
    let webhook = Webhook { port: free_port(), directory: environment.scratch(&format!("{name}-webhook")) };
    let crd = crd(storage, webhook.port, &write_webhook_certificate(environment, &webhook.directory));
    compare_stories(environment, &name, &[], |fixture, gateway| {
        fixture.install(&crd);
        let result = follow_websites(fixture, storage, &webhook, gateway);
        let name = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/websites.{GROUP}");
        fixture.write("DELETE", &name, &json!({}));
        fixture.wait_until_gone(&name);
        result
    });
}

/// Where the operator serves its conversion webhook.
struct Webhook {
    port: u16,
    /// The directory of its certificate.
    directory: PathBuf,
}

fn crd(storage: &str, port: u16, authority: &str) -> Value {
    let text = json!({"type": "string"});
    let condition = json!({
        "type": "object", "required": ["type", "status", "reason", "message", "lastTransitionTime"],
        "properties": {
            "type": text, "reason": text, "message": text, "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        },
    });
    let status = json!({"type": "object", "properties": {
        "address": text, "observedGeneration": {"type": "integer", "format": "int64"},
        "conditions": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"], "items": condition},
    }});
    let version = |name: &str, required: &[&str], properties: Value| {
        let spec = json!({"type": "object", "required": required, "properties": properties});
        let properties =
            json!({"apiVersion": text, "kind": text, "metadata": {"type": "object"}, "spec": spec, "status": status});
        json!({
            "name": name, "served": true, "storage": name == storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "required": ["spec"], "properties": properties}},
        })
    };
    let port_schema = json!({"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535, "default": 80});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("websites.{GROUP}")},
        "spec": {
            "group": GROUP, "scope": "Namespaced",
            "names": {"plural": "websites", "singular": "website", "kind": "Website", "listKind": "WebsiteList"},
            "versions": [
                version("v1", &["host"], json!({"host": text, "port": port_schema})),
                version("v1alpha1", &["address"], json!({"address": text})),
            ],
            "conversion": {"strategy": "Webhook", "webhook": {
                "conversionReviewVersions": ["v1"],
                "clientConfig": {"url": format!("https://127.0.0.1:{port}/convert"), "caBundle": authority},
            }},
        },
    })
}

fn collection(fixture: &OperatorFixture<'_>, version: &str) -> String {
    fixture.collection(&format!("apis/{GROUP}/{version}"), "websites")
}

fn lease(fixture: &OperatorFixture<'_>) -> String {
    fixture.collection("apis/coordination.k8s.io/v1", "leases/website-operator.web.example.com")
}

fn website(version: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": format!("{GROUP}/{version}"), "kind": "Website", "metadata": {"name": name}, "spec": spec})
}

fn start_operator(fixture: &OperatorFixture<'_>, webhook: &Webhook) -> Process {
    let arguments = [
        format!("--kubeconfig={}", fixture.kubeconfig().display()),
        format!("--webhook-port={}", webhook.port),
        format!("--leader-election-namespace={}", fixture.namespace),
        format!("--webhook-cert-dir={}", webhook.directory.display()),
    ];
    let operator = Process::start("website-operator", &peer("website-operator"), arguments, &fixture.directory);
    fixture.wait_for("a leader", &lease(fixture), |lease| {
        lease["spec"]["holderIdentity"].as_str().is_some_and(|id| !id.is_empty())
    });
    eventually("the webhook", || {
        std::net::TcpStream::connect(("127.0.0.1", webhook.port)).map(drop).map_err(|e| e.to_string())
    });
    operator
}

/// Waits until the operator has reported its latest state at `address`.
fn wait_until_served(fixture: &OperatorFixture<'_>, name: &str, address: &str) -> Value {
    fixture.wait_for(name, &format!("{}/{name}", collection(fixture, "v1")), |website| is_served(website, address))
}

fn is_served(website: &Value, address: &str) -> bool {
    let generation = &website["metadata"]["generation"];
    let ready = condition(website, "Ready");
    website["status"]["address"] == address
        && website["status"]["observedGeneration"] == *generation
        && (&ready["status"], &ready["observedGeneration"]) == (&json!("True"), generation)
}

/// Returns the objects on the way, without what differs with each run.
fn follow_websites(
    fixture: &OperatorFixture<'_>,
    storage: &str,
    webhook: &Webhook,
    gateway: Option<&mut Gateway>,
) -> Vec<Value> {
    let (first, second) = (collection(fixture, "v1alpha1"), collection(fixture, "v1"));
    let maps = fixture.collection("api/v1", "configmaps");
    let mut operator = start_operator(fixture, webhook);
    let mut seen = Vec::new();

    fixture.write("POST", &second, &website("v1", "shop", &json!({"host": "shop.example.com"})));
    seen.push(wait_until_served(fixture, "shop", "shop.example.com:80"));
    fixture.write("POST", &first, &website("v1alpha1", "blog", &json!({"address": "blog.example.com:81"})));
    seen.push(wait_until_served(fixture, "blog", "blog.example.com:81"));
    let map =
        fixture.wait_for("the owned ConfigMap", &format!("{maps}/shop"), |map| map["data"]["address"].is_string());
    assert_eq!(map["metadata"]["ownerReferences"][0]["uid"], seen[0]["metadata"]["uid"]);
    seen.push(map);
    seen.extend(fixture.items(&first));

    // A change in the other version, and of what is owned.
    let path = format!("{first}/shop");
    seen.push(fixture.write("PATCH", &path, &json!({"spec": {"address": "shop.example.com:8080"}})));
    seen.push(wait_until_served(fixture, "shop", "shop.example.com:8080"));
    fixture.write("DELETE", &format!("{maps}/shop"), &json!({}));
    seen.push(fixture.wait_for("the ConfigMap made again", &format!("{maps}/shop"), |map| {
        map["data"]["address"] == "shop.example.com:8080"
    }));
    let events = fixture.collection("apis/events.k8s.io/v1", "events?fieldSelector=reason=Created");
    let regards = |event: &Value| event["regarding"]["kind"] == "Website" && event["regarding"]["name"] == "blog";
    let event = fixture.wait_for("an Event", &events, |list| list["items"].as_array().unwrap().iter().any(regards));
    let event = event["items"].as_array().unwrap().iter().find(|event| regards(event)).unwrap().clone();
    assert_eq!(event["regarding"]["uid"], seen[1]["metadata"]["uid"]);
    seen.push(json!({"metadata": {}, "note": event["note"], "controller": event["reportingController"]}));

    // The webhook refuses the one, the schema the other. Unconverted, the first would be stored, and no list possible.
    let refused = if storage == "v1" {
        fixture.send("POST", &first, &website("v1alpha1", "odd", &json!({"address": "nowhere"}))).unwrap()
    } else {
        fixture.send("POST", &second, &website("v1", "odd", &json!({"host": "odd.example.com", "port": 0}))).unwrap()
    };
    seen.push(refusal(&refused));

    if let Some(gateway) = gateway {
        kill(fixture, gateway, &operator);
    }

    // Without the operator its finalizer holds an object, and the other version cannot be read.
    operator.signal(Signal::TERM);
    assert!(operator.wait().success(), "{}", operator.log());
    assert_eq!(
        fixture.wait_for("the Lease", &lease(fixture), |_| true)["spec"]["holderIdentity"],
        "",
        "the Lease is released"
    );
    let (stored, other) = if storage == "v1" { (&second, &first) } else { (&first, &second) };
    let path = format!("{stored}/shop");
    seen.push(fixture.write("DELETE", &path, &json!({})));
    let deleted = fixture.wait_for("the deleted object", &path, |_| true);
    assert!(deleted["metadata"]["deletionTimestamp"].is_string(), "{deleted}");
    let unread = fixture.endpoint.get(Some(fixture.admin), &format!("{other}/shop")).unwrap();
    seen.push(refusal(&unread));
    let _operator = start_operator(fixture, webhook);
    fixture.wait_until_gone(&format!("{second}/shop"));
    fixture.wait_until_gone(&format!("{maps}/shop"));
    seen.push(wait_until_served(fixture, "blog", "blog.example.com:81"));
    for name in fixture.items(&second).iter().map(|website| website["metadata"]["name"].as_str().unwrap()) {
        fixture.write("DELETE", &format!("{second}/{name}"), &json!({}));
    }
    eventually("the end of all websites", || {
        let names = fixture.items(&second).len();
        if names == 0 { Ok(()) } else { Err(format!("{names} are left")) }
    });
    seen.iter().map(without_run_values).collect()
}

fn refusal(response: &HttpResponse) -> Value {
    json!({"metadata": {}, "code": response.status.as_u16(), "message": response.json()["message"]})
}

/// Kills the gateway while objects of both versions are created. The operator goes on, with its Lease.
fn kill(fixture: &OperatorFixture<'_>, gateway: &mut Gateway, operator: &Process) {
    let before = fixture.wait_for("the Lease", &lease(fixture), |_| true);
    let acknowledged = create_while_killed(gateway, |number| {
        let (version, spec) = match number % 2 {
            0 => ("v1", json!({"host": "many.example.com", "port": 1000 + number})),
            _ => ("v1alpha1", json!({"address": format!("many.example.com:{}", 1000 + number)})),
        };
        let name = format!("many-{number}");
        let response = fixture.send("POST", &collection(fixture, version), &website(version, &name, &spec)).ok()?;
        (response.status == 201).then_some(name)
    });
    assert!(acknowledged.len() > super::KILLS, "{acknowledged:?}");
    fixture.write("POST", &collection(fixture, "v1"), &website("v1", "after", &json!({"host": "after.example.com"})));
    wait_until_served(fixture, "after", "after.example.com:80");
    let maps = fixture.collection("api/v1", "configmaps");
    let found = fixture.items(&collection(fixture, "v1"));
    for name in &acknowledged {
        let website = found.iter().find(|website| website["metadata"]["name"] == **name);
        let website = website.unwrap_or_else(|| panic!("{name} was acknowledged and is gone"));
        let address = format!("many.example.com:{}", website["spec"]["port"]);
        let served = wait_until_served(fixture, name, &address);
        let map = fixture.wait_for("the owned ConfigMap", &format!("{maps}/{name}"), |_| true);
        assert_eq!(map["data"]["address"], address);
        assert_eq!(map["metadata"]["ownerReferences"][0]["uid"], served["metadata"]["uid"], "{map}");
    }
    let now = fixture.wait_for("the Lease", &lease(fixture), |_| true);
    for field in ["holderIdentity", "leaseTransitions"] {
        assert_eq!(now["spec"][field], before["spec"][field], "{}", operator.log());
    }
    assert_no_wrong_answers(&operator.log());
    println!("controller-runtime: {} kills, {} websites acknowledged and served", super::KILLS, acknowledged.len());
}
