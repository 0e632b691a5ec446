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

/// Cases of malformed requests, for which h2spec wants a stream or connection error. They get a response with status 400,
/// which RFC 9113, 8.1.1 allows before the stream is closed: Go clients send a request again that is reset.
const ANSWERED_CASES: [&str; 13] = [
    "Sends a HEADERS frame that contains a pseudo-header field that appears in a header block after a regular header field",
    "Sends a HEADERS frame that contains a unknown pseudo-header field",
    "Sends a HEADERS frame that contains the TE header field with any value other than \"trailers\"",
    "Sends a HEADERS frame that contains the connection-specific header field",
    "Sends a HEADERS frame that contains the header field name in uppercase letters",
    "Sends a HEADERS frame that contains the pseudo-header field defined for response",
    "Sends a HEADERS frame that omits \":method\" pseudo-header field",
    "Sends a HEADERS frame that omits \":path\" pseudo-header field",
    "Sends a HEADERS frame that omits \":scheme\" pseudo-header field",
    "Sends a HEADERS frame with duplicated \":method\" pseudo-header field",
    "Sends a HEADERS frame with duplicated \":path\" pseudo-header field",
    "Sends a HEADERS frame with duplicated \":scheme\" pseudo-header field",
    "Sends a HEADERS frame with empty \":path\" pseudo-header field",
];

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
                // Each of the answered cases waits that long for an error.
                "5",
                "--path",
                "/api/v1/namespaces",
                "--port",
                &port,
            ])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(text.contains(&format!("{CASES} tests, ")) && text.contains(" 0 skipped, "), "{text}");
        let failed: BTreeSet<String> = text.lines().filter_map(failed_case).collect();
        failed_each_time = Some(match failed_each_time {
            None => failed,
            Some(before) => before.intersection(&failed).cloned().collect(),
        });
        let is_answered = |case: &String| ANSWERED_CASES.contains(&case.as_str());
        if failed_each_time.as_ref().is_some_and(|failed| failed.iter().all(is_answered)) {
            return;
        }
    }
    panic!("failed {ROUNDS} times: {failed_each_time:?}");
}

/// The name of the case whose failure a line reports: `× 3: Sends a HEADERS frame …`.
fn failed_case(line: &str) -> Option<String> {
    let (_, case) = line.split_once('×')?;
    Some(case.split_once(": ").map_or(case, |(_, name)| name).to_owned())
}
