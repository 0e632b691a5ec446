//! h2spec, the conformance tests of HTTP/2 and HPACK, against the secure port.

use std::collections::BTreeSet;
use std::process::Command;

use super::TestFn;
use crate::environment::{Gateway, TestEnvironment, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[("http2: h2spec passes", every_case_passes)];

/// Cases of h2spec 2.2.1 with `--strict`.
const CASES: usize = 146;

/// Some cases race with a response that is complete already: "HEADERS after RST_STREAM" fails where the response to the
/// first HEADERS is read first. A case may fail once, not each time.
const ROUNDS: usize = 3;

/// h2spec has no credentials.
const ANYONE_MAY_READ: &str = "kind: ClusterRole
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: h2spec}
rules:
- {verbs: ['*'], apiGroups: [''], resources: [namespaces]}
---
kind: ClusterRoleBinding
apiVersion: rbac.authorization.k8s.io/v1
metadata: {name: h2spec}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: h2spec}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: 'system:anonymous'}
";

fn every_case_passes(environment: &TestEnvironment) {
    let directory = environment.scratch("h2spec");
    let policy = directory.join("policy.yaml");
    std::fs::write(&policy, ANYONE_MAY_READ).unwrap();
    let flags = [
        ("--anonymous-auth", "true"),
        ("--authorization-mode", "RBAC"),
        ("--authorization-policy-file", policy.to_str().unwrap()),
    ];
    let gateway = Gateway::start_embedded_api(&environment.cluster, &directory, "h2spec", &flags);
    let port = gateway.endpoint.port.to_string();
    let mut failed_each_time: Option<BTreeSet<String>> = None;
    for _ in 0..ROUNDS {
        let output = Command::new(peer("h2spec"))
            // A response that is long enough for the cases of flow control.
            .args([
                "--tls",
                "--insecure",
                "--strict",
                "--timeout",
                "10",
                "--path",
                "/api/v1/namespaces",
                "--port",
                &port,
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("{CASES} tests, ")) && text.contains(" 0 skipped, "), "{text}");
        let failed: BTreeSet<String> =
            text.lines().filter_map(|line| Some(line.split_once('×')?.1.to_owned())).collect();
        failed_each_time = Some(match failed_each_time {
            None => failed,
            Some(before) => before.intersection(&failed).cloned().collect(),
        });
        if failed_each_time.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
    }
    panic!("failed {ROUNDS} times: {failed_each_time:?}");
}
