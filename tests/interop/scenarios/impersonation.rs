//! Impersonation: the gateway and the extension server, which delegate to the same kube-apiserver, must decide alike,
//! and report the same impersonated user as kube-apiserver.

use serde_json::Value;

use super::KubectlTestFn;
use super::delegated_auth::{DelegationFixture, normalized};
use crate::environment::{HttpResponse, HttpsEndpoint, Kubectl, TestEnvironment, eventually, kubeconfig, kubectl_run};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("impersonation: decisions equal the extension server's", decisions_match),
    ("impersonation: kubectl --as", kubectl_as),
];

const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";

type Headers = &'static [(&'static str, &'static str)];

/// Impersonation headers, in the order in which each user sends them: the last allowed mode is tried first next time.
const HEADER_SETS: &[Headers] = &[
    &[],
    &[("impersonate-user", "nobody")],
    &[("impersonate-user", "jane")],
    &[("impersonate-user", "nobody")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-group", "qa")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-group", "no")],
    &[("impersonate-user", "jane"), ("impersonate-group", "")],
    &[("impersonate-user", "jane"), ("impersonate-group", "system:masters")],
    &[("impersonate-user", "jane"), ("impersonate-group", "system:unauthenticated")],
    &[
        ("impersonate-user", "jane"),
        ("impersonate-group", "devs"),
        ("impersonate-group", "qa"),
        ("impersonate-group", "devs"),
        ("impersonate-group", "qa"),
        ("impersonate-group", "no"),
    ],
    &[("impersonate-user", "jane"), ("impersonate-uid", "7"), ("impersonate-group", "devs")],
    &[("impersonate-user", "jane"), ("impersonate-uid", "8"), ("impersonate-group", "no")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-scopes", "all")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-Scopes", "some")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-acme.io%2Fscopes", "all")],
    &[("impersonate-user", "jane"), ("impersonate-group", "devs"), ("impersonate-extra-acme.io%2fscopes", "")],
    &[("impersonate-user", "jane"), ("impersonate-extra-a_b%2fc%20d", "x")],
    &[("impersonate-user", "jane"), ("impersonate-extra-a%zz", "x")],
    &[("impersonate-user", "jane"), ("impersonate-extra-", "x")],
    &[("impersonate-user", "system:anonymous")],
    &[("impersonate-user", "system:anonymous"), ("impersonate-group", "devs")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:alice")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob"), ("impersonate-group", "devs")],
    &[("impersonate-user", "system:serviceaccount:NAMESPACE:bob:more")],
    &[("impersonate-user", "system:node:n1")],
    &[("impersonate-user", "system:node:n2")],
    &[("impersonate-user", "system:node:n1"), ("impersonate-uid", "7")],
    &[("impersonate-user", "system:node:N_1")],
    &[("impersonate-user", "")],
    &[("impersonate-uid", "")],
    &[("impersonate-group", "devs"), ("impersonate-group", "")],
    &[("impersonate-uid", "7")],
    &[("impersonate-extra-a", "1"), ("impersonate-extra-a", "2")],
    &[("impersonate-user", ""), ("impersonate-group", "a\"b")],
    &[("impersonate-user", "mallory")],
    &[("impersonate-user", "mallory"), ("impersonate-user", "jane"), ("impersonate-group", "devs")],
];

/// Creates the service accounts, the node and the RBAC objects; returns tokens of `old`, `new` and `pod` (on node
/// n1).
fn prepare(fixture: &DelegationFixture<'_>) -> [(&'static str, String); 3] {
    let node = format!("{}-n1", fixture.namespace);
    let directory = fixture.environment.scratch(&fixture.namespace);
    let text = include_str!("../fixtures/impersonation.yaml").replace("NAMESPACE", &fixture.namespace);
    let file = directory.join("impersonation.yaml");
    std::fs::write(&file, text.replace("n1", &node)).unwrap();
    for account in ["old", "new", "pod"] {
        fixture.kubectl(&["create", "serviceaccount", account]);
    }
    fixture.kubectl(&["apply", "-f", file.to_str().unwrap()]);
    let machine = directory.join("node.json");
    std::fs::write(&machine, format!(r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{node}"}}}}"#)).unwrap();
    fixture.kubectl(&["create", "-f", machine.to_str().unwrap()]);
    let bound = ["--bound-object-kind=Node", &*format!("--bound-object-name={node}")];
    let tokens =
        [("old", &[][..]), ("new", &[]), ("pod", &bound)].map(|(name, more)| (name, fixture.token(name, more)));
    // The last binding: once it is effective, all are.
    for endpoint in fixture.endpoints() {
        eventually("permission of the pod to impersonate its node", || {
            let lines = [("impersonate-user", format!("system:node:{node}"))];
            let response = ask(endpoint, &tokens[2].1, "GET", FLUNDERS, &lines);
            // The impersonation is allowed; the node itself may not list.
            let text = response.text();
            if text.contains("User \\\"system:node:") { Ok(()) } else { Err(text) }
        });
    }
    tokens
}

fn ask(endpoint: &HttpsEndpoint, token: &str, method: &str, path: &str, lines: &[(&str, String)]) -> HttpResponse {
    let authorization = format!("Bearer {token}");
    let mut headers = vec![("accept", "application/json"), ("authorization", &*authorization)];
    headers.extend(lines.iter().map(|(name, value)| (*name, &**value)));
    endpoint.send(None, method, path, &headers, b"").unwrap()
}

/// The headers with this test's namespace.
fn headers_with_names(fixture: &DelegationFixture<'_>, lines: Headers) -> Vec<(&'static str, String)> {
    let named = |value: &str| {
        value.replace("NAMESPACE", &fixture.namespace).replace("node:n1", &format!("node:{}-n1", fixture.namespace))
    };
    lines.iter().map(|(name, value)| (*name, named(value))).collect()
}

fn decisions_match(environment: &TestEnvironment, kubectl: &Kubectl) {
    let fixture = DelegationFixture::open(environment, kubectl, "impersonating");
    let tokens = prepare(&fixture);
    let mut differences = Vec::new();
    let (mut allowed, mut denied) = (0, 0);
    for (name, token) in &tokens {
        for lines in HEADER_SETS {
            let lines = headers_with_names(&fixture, lines);
            for (method, path) in [("GET", FLUNDERS), ("DELETE", FLUNDERS), ("GET", "/metrics/any")] {
                let [direct, through] = fixture.endpoints().map(|endpoint| {
                    let response = ask(endpoint, token, method, path, &lines);
                    (response.status.as_u16(), normalized(&response.text()))
                });
                match direct.0 {
                    200 => allowed += 1,
                    403 => denied += 1,
                    _ => {}
                }
                if direct != through {
                    differences.push(format!(
                        "{name} {lines:?} {method} {path}:\n  direct  {direct:?}\n  through {through:?}"
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));
    assert!(allowed > 10 && denied > 100, "{allowed} allowed, {denied} denied: nothing was compared");

    // The extension server sees the impersonated user only.
    let lines: Headers = &[
        ("impersonate-user", "jane"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "devs"),
        ("impersonate-extra-scopes", "all"),
        ("impersonate_user", "root"),
    ];
    let [direct, through] = fixture.endpoints().map(|endpoint| {
        let mark = format!("mark-{:08x}", fastrand::u32(..));
        let path = format!("{FLUNDERS}?fieldSelector=metadata.name%3D{mark}");
        assert_eq!(ask(endpoint, &tokens[0].1, "GET", &path, &headers_with_names(&fixture, lines)).status, 200);
        environment.extension.audit_event(&mark)
    });
    assert_eq!(direct["impersonatedUser"]["username"], "jane");
    assert_eq!(through["user"], direct["impersonatedUser"], "the user in the extension server's audit log");
    assert_eq!(through["impersonatedUser"], Value::Null);
}

/// kubectl --as: the same output at the extension server and the gateway; whoami and can-i as at kube-apiserver.
fn kubectl_as(environment: &TestEnvironment, kubectl: &Kubectl) {
    let fixture = DelegationFixture::open(environment, kubectl, "kubectl-as");
    let tokens = prepare(&fixture);
    let directory = environment.scratch(&fixture.namespace);
    let run = |endpoint: &HttpsEndpoint, token: &str, args: &str| {
        let name = format!("at-{}", endpoint.port);
        let file = kubeconfig::write(&directory, &name, &endpoint.url(), &endpoint.authority, None);
        // A separate home: discovery cached for another user must not be used.
        let home = directory.join(format!("home-{:08x}", fastrand::u32(..)));
        let mut command = kubectl.command(&file, &home);
        command.arg(format!("--token={token}")).args(args.split(' '));
        let output = kubectl_run(command, "");
        let text = |bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes).into_owned();
            // Lines of klog contain the time.
            let lines: Vec<&str> = text.lines().filter(|line| !line.contains("memcache.go")).collect();
            normalized(&lines.join("\n"))
        };
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let jane = "--as=jane --as-group=devs";
    // The creation time of the review differs.
    let time = regex::Regex::new(r#""creationTimestamp": "[^"]*""#).unwrap();
    for (requester, token) in &tokens[..2] {
        for args in [
            format!("get flunders {jane}"),
            format!("get flunders -o yaml {jane}"),
            format!("get flunders {jane} --as-uid=7"),
            format!("get flunders {jane} --as-user-extra=scopes=all"),
            format!("get flunders {jane} --as-user-extra=acme.io/scopes=all"),
            "get flunders --as=jane".to_owned(),
            "get flunders --as=mallory".to_owned(),
            "get flunders --as=nobody".to_owned(),
            "get flunders --as-group=devs".to_owned(),
            format!("get flunder missing {jane}"),
            format!("delete flunder missing {jane}"),
            format!("get flunders --as=system:serviceaccount:{}:bob", fixture.namespace),
        ] {
            let [direct, through] = fixture.endpoints().map(|endpoint| run(endpoint, token, &args));
            assert_eq!(direct, through, "{requester}: {args}\nleft: direct; right: through narthex");
        }
        for args in [
            format!("auth whoami -o json {jane}"),
            format!("auth whoami -o json {jane} --as-uid=7 --as-user-extra=scopes=all"),
            "auth whoami -o json --as=jane --as-user-extra=acme.io/scopes=all".to_owned(),
            "auth whoami -o json --as=system:anonymous".to_owned(),
            "auth whoami --as=nobody".to_owned(),
            format!("auth can-i get /version {jane}"),
            format!("auth can-i get /metrics {jane}"),
            "auth can-i get /metrics --as=nobody".to_owned(),
        ] {
            let [upstream, narthex] = [&environment.cluster.endpoint, &fixture.gateway.endpoint].map(|endpoint| {
                let (code, output, errors) = run(endpoint, token, &args);
                (code, time.replace_all(&output, "").into_owned(), errors)
            });
            assert_eq!(upstream, narthex, "{requester}: {args}\nleft: kube-apiserver; right: narthex");
        }
    }
}
