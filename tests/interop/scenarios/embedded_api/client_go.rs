//! Programs of client-go at kube-apiserver and at the embedded API server.

use std::path::{Path, PathBuf};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{Gateway, HttpsEndpoint, Process, TestEnvironment, eventually, kubeconfig, peer};

/// Clients that `informers` runs.
const CLIENTS: [&str; 5] = ["json", "protobuf", "dynamic", "metadata", "retry"];

pub(super) fn informers_see_the_same_events(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-informers");
    let admin = environment.cluster.admin();
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let endpoints = [("kube-apiserver", &environment.cluster.endpoint), ("embedded", &embedded.endpoint)];
    let [expected, found] = endpoints.map(|(name, endpoint)| {
        let write = |method: &str, path: &str, kind: &str, document: &Value| {
            let headers = [("content-type", kind)];
            let response = endpoint.send(Some(admin), method, path, &headers, document.to_string().as_bytes()).unwrap();
            assert!(response.status.is_success(), "{method} {path}: {} {}", response.status, response.text());
        };
        let namespace = "informers";
        let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
        write("POST", "/api/v1/namespaces", "application/json", &json!({"metadata": {"name": namespace}}));
        let map = |name: &str, value: &str| json!({"metadata": {"name": name, "annotations": {"value": value}}, "data": {"value": value}});
        write("POST", &maps, "application/json", &map("before-a", "1"));
        write("POST", &maps, "application/json", &map("before-b", "1"));
        let program = start_informers(environment, &directory, name, endpoint, namespace);
        for round in 0..20 {
            let (one, next) = (format!("map-{round}"), format!("{maps}/map-{round}"));
            write("POST", &maps, "application/json", &map(&one, "1"));
            write("PUT", &next, "application/json", &map(&one, "2"));
            let change = json!({"metadata": {"annotations": {"value": "3"}}, "data": {"value": "3"}});
            write("PATCH", &next, "application/merge-patch+json", &change);
            if round % 2 == 0 {
                write("DELETE", &next, "application/json", &json!({}));
            }
        }
        write("DELETE", &format!("{maps}/before-a"), "application/json", &json!({}));
        write("POST", &maps, "application/json", &map("end", "1"));
        wait_for_end(program)
    });
    for client in CLIENTS {
        let [mut expected, mut found] = [&expected, &found].map(|log| events_of(log, client));
        let initial = if client == "retry" { 0 } else { 2 };
        assert_eq!(found.len(), initial + 20 * 3 + 10 + 2, "{client}: {found:#?}");
        // The reflector collects the initial events of a WatchList in a map, so their order is random.
        expected[..initial].sort();
        found[..initial].sort();
        assert_eq!(found, expected, "{client}: left: embedded; right: kube-apiserver");
    }
}

/// Starts `informers` and waits until all clients have the initial state.
pub(super) fn start_informers(
    environment: &TestEnvironment,
    directory: &Path,
    name: &str,
    endpoint: &HttpsEndpoint,
    namespace: &str,
) -> Process {
    let config = write_kubeconfig(environment, directory, name, endpoint);
    let arguments = [format!("--kubeconfig={}", config.display()), format!("--namespace={namespace}")];
    let process = Process::start(&format!("informers-{name}"), &peer("informers"), arguments, directory);
    eventually(&format!("informers at {name} to sync"), || {
        let log = process.log();
        if log.lines().any(|line| line == "synced") { Ok(()) } else { Err(log) }
    });
    process
}

fn write_kubeconfig(environment: &TestEnvironment, directory: &Path, name: &str, endpoint: &HttpsEndpoint) -> PathBuf {
    let admin = Some(environment.cluster.admin());
    kubeconfig::write(directory, name, &endpoint.url(), &endpoint.authority, admin)
}

/// Waits until all clients saw the last object; returns the output.
pub(super) fn wait_for_end(mut informers: Process) -> String {
    let status = informers.wait();
    let log = informers.log();
    assert!(status.success(), "informers: {status}\n{log}");
    log
}

/// The events that one client saw, in order.
pub(super) fn events_of(log: &str, client: &str) -> Vec<String> {
    let lines = log.lines().filter_map(|line| line.strip_prefix(client)?.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

pub(super) fn leader_election_takes_over(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-leader-election");
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let config = write_kubeconfig(environment, &directory, "candidate", &embedded.endpoint);
    let mut candidates = ["one", "two"].map(|id| {
        let arguments = [
            format!("-kubeconfig={}", config.display()),
            format!("-id={id}"),
            "-lease-lock-name=example".to_owned(),
            "-lease-lock-namespace=default".to_owned(),
        ];
        Some(Process::start(&format!("candidate-{id}"), &peer("leader-election"), arguments, &directory))
    });
    let lease = || {
        let path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/example";
        Ok::<_, String>(embedded.endpoint.get(Some(environment.cluster.admin()), path)?.json())
    };
    let leader = eventually("a leader", || {
        let holder = lease()?["spec"]["holderIdentity"].clone();
        holder.as_str().filter(|holder| !holder.is_empty()).map(str::to_owned).ok_or("no holder".to_owned())
    });
    let leading = if leader == "one" { 0 } else { 1 };
    let mut killed = candidates[leading].take().unwrap();
    // The example holds its Lease for a minute, and releases it when it is told to end.
    killed.signal(Signal::TERM);
    killed.wait();
    let other = ["two", "one"][leading];
    eventually("the other to take over", || {
        let lease = lease()?;
        if lease["spec"]["holderIdentity"] == other { Ok(()) } else { Err(lease.to_string()) }
    });
    assert_eq!(lease().unwrap()["spec"]["leaseTransitions"], 1);
}
