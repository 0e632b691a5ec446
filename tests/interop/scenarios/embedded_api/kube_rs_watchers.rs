//! kube-rs watchers with both strategies of the initial list see the same events from kube-apiserver and from the
//! embedded API server, which is killed meanwhile.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{Gateway, HttpsEndpoint, Process, TestEnvironment, eventually, kubeconfig, peer};

const STRATEGIES: [&str; 2] = ["ListWatch", "StreamingList"];
const NAMESPACE: &str = "kube-rs-watchers";

pub(super) fn watchers_see_the_same_events(environment: &TestEnvironment) {
    let directory = environment.scratch("embedded-kube-rs");
    let mut embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &[]);
    let expected = watch(environment, "kube-apiserver", &environment.cluster.endpoint, || {});
    let endpoint = embedded.endpoint.clone();
    let found = watch(environment, "embedded", &endpoint, || {
        embedded.process.signal(Signal::KILL);
        embedded.restart();
    });
    for (expected, found) in expected.iter().zip(&found) {
        // Two objects in the initial list, four events in each of ten rounds, a deletion and the last creation.
        assert_eq!(expected.len(), 4 + 10 * 4 + 2, "{expected:#?}");
        assert_eq!(found, expected, "left: embedded; right: kube-apiserver");
    }
}

/// Runs the watchers while objects change, with `interrupt` half way; returns the events by strategy.
fn watch(
    environment: &TestEnvironment,
    name: &str,
    endpoint: &HttpsEndpoint,
    mut interrupt: impl FnMut(),
) -> [Vec<String>; 2] {
    let admin = environment.cluster.admin();
    let directory = environment.scratch(&format!("embedded-kube-rs-{name}"));
    let write = |method: &str, path: &str, kind: &str, document: &Value| {
        let headers = [("content-type", kind)];
        let response = endpoint.send(Some(admin), method, path, &headers, document.to_string().as_bytes()).unwrap();
        assert!(response.status.is_success(), "{method} {path}: {} {}", response.status, response.text());
    };
    let maps = format!("/api/v1/namespaces/{NAMESPACE}/configmaps");
    let map = |name: &str, value: &str| json!({"metadata": {"name": name}, "data": {"a": value}});
    endpoint.create(admin, "/api/v1/namespaces", &json!({"metadata": {"name": NAMESPACE}}));
    endpoint.create(admin, &maps, &map("before-a", "0"));
    endpoint.create(admin, &maps, &map("before-b", "0"));

    let config = kubeconfig::write(&directory, "watchers", &endpoint.url(), &endpoint.authority, Some(admin));
    let arguments = [
        format!("KUBECONFIG={}", config.display()),
        format!("NAMESPACE={NAMESPACE}"),
        peer("kube-rs-watchers").display().to_string(),
    ];
    let mut program =
        Process::start(&format!("watchers-{name}"), std::path::Path::new("/usr/bin/env"), arguments, &directory);
    eventually(&format!("watchers at {name} to have the initial list"), || {
        let log = program.log();
        let is_listed = STRATEGIES.iter().all(|strategy| log.contains(&format!("{strategy} InitDone")));
        if is_listed { Ok(()) } else { Err(log) }
    });
    for round in 0..10 {
        if round == 5 {
            interrupt();
        }
        let one = format!("{maps}/map-{round}");
        endpoint.create(admin, &maps, &map(&format!("map-{round}"), "1"));
        write("PUT", &one, "application/json", &map(&format!("map-{round}"), "2"));
        write("PATCH", &one, "application/merge-patch+json", &json!({"data": {"a": "3"}}));
        write("DELETE", &one, "application/json", &json!({}));
    }
    write("DELETE", &format!("{maps}/before-a"), "application/json", &json!({}));
    endpoint.create(admin, &maps, &map("end", "1"));
    let status = program.wait();
    let log = program.log();
    assert!(status.success(), "{status}\n{log}");
    STRATEGIES.map(|strategy| {
        let lines = log.lines().filter(|line| !line.contains(": "));
        lines.filter_map(|line| line.strip_prefix(strategy)).map(|line| line.trim_end().to_owned()).collect()
    })
}
