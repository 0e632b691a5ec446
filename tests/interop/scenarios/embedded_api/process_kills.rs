//! The embedded API server is killed while kubectl and client-go write and watch: what was acknowledged is there, and
//! watches go on from their resourceVersion without a gap and without a new list.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::client_go::{events_of, start_informers, wait_for_end};
use crate::environment::{Gateway, HttpsEndpoint, Identity, Kubectl, TestEnvironment, kubeconfig, kubectl_run, peer};

/// Kills in one test.
const KILLS: usize = 3;
const NAMESPACE: &str = "kills";

pub(super) fn acknowledged_writes_survive(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-kills");
    let admin = environment.cluster.admin();
    let mut embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let endpoint = embedded.endpoint.clone();
    endpoint.create(admin, "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}}));
    let maps = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let informers = start_informers(environment, &directory, "kills", &endpoint, NAMESPACE);

    let config = kubeconfig::write(&directory, "writer", &endpoint.url(), &endpoint.authority, Some(admin));
    let kubectl = Kubectl::at(&peer("kubectl")).unwrap();
    let stops = AtomicBool::new(false);
    let (by_http, by_kubectl) = std::thread::scope(|scope| {
        let by_http =
            scope.spawn(|| write_until(&stops, |number| create(&endpoint, admin, &maps, &format!("http-{number}"))));
        let by_kubectl = scope.spawn(|| {
            write_until(&stops, |number| {
                let mut command = kubectl.command(&config, &directory);
                command.args(["-n", NAMESPACE, "create", "configmap", &format!("kubectl-{number}")]);
                kubectl_run(command, "").status.success().then(|| format!("kubectl-{number}"))
            })
        });
        for _ in 0..KILLS {
            std::thread::sleep(std::time::Duration::from_millis(fastrand::u64(400..1500)));
            embedded.process.signal(Signal::KILL);
            embedded.restart();
        }
        stops.store(true, Ordering::Relaxed);
        (by_http.join().unwrap(), by_kubectl.join().unwrap())
    });
    assert!(by_http.len() > KILLS && !by_kubectl.is_empty(), "{by_http:?} {by_kubectl:?}");
    let found: Vec<String> = names(&endpoint, admin, &maps);
    for name in by_http.iter().chain(&by_kubectl) {
        assert!(found.contains(name), "{name} was acknowledged and is gone; found {found:?}");
    }
    assert!(create(&endpoint, admin, &maps, "end").is_some());
    let log = wait_for_end(informers);
    let stored = created_in_order(&endpoint, admin, &maps);
    for client in ["json", "protobuf", "dynamic", "metadata", "retry"] {
        let seen: Vec<String> =
            events_of(&log, client).iter().map(|line| line.trim_end_matches(['/', ' ']).to_owned()).collect();
        let expected: Vec<String> = stored.iter().map(|name| format!("ADDED {name}")).collect();
        assert_eq!(seen, expected, "{client}");
    }
    println!("{KILLS} kills, {} writes by HTTP and {} by kubectl acknowledged", by_http.len(), by_kubectl.len());
}

/// Writes until told to stop; returns the names of acknowledged objects.
fn write_until(stops: &AtomicBool, mut write: impl FnMut(usize) -> Option<String>) -> Vec<String> {
    let numbers = (0..).take_while(|_| !stops.load(Ordering::Relaxed));
    numbers.filter_map(&mut write).collect()
}

fn create(endpoint: &HttpsEndpoint, admin: &Identity, maps: &str, name: &str) -> Option<String> {
    let document = json!({"metadata": {"name": name}}).to_string();
    let headers = [("content-type", "application/json")];
    let response = endpoint.send(Some(admin), "POST", maps, &headers, document.as_bytes()).ok()?;
    (response.status == 201).then(|| name.to_owned())
}

fn items(endpoint: &HttpsEndpoint, admin: &Identity, maps: &str) -> Vec<Value> {
    endpoint.get(Some(admin), maps).unwrap().json()["items"].as_array().cloned().unwrap()
}

fn names(endpoint: &HttpsEndpoint, admin: &Identity, maps: &str) -> Vec<String> {
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    items(endpoint, admin, maps).iter().map(name).collect()
}

/// Names of all objects by their resourceVersion; none was changed after its creation.
fn created_in_order(endpoint: &HttpsEndpoint, admin: &Identity, maps: &str) -> Vec<String> {
    let mut items = items(endpoint, admin, maps);
    items.sort_by_key(|item| item["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap());
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
