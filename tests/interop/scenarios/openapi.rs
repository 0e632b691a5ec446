//! OpenAPI v2, compared with the merge of a real kube-apiserver and read by the gnostic library.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{Gateway, HttpResponse, HttpsEndpoint, Identity, Target, TestEnvironment, eventually, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("OpenAPI v2: merge equals kube-apiserver's", merged_as_upstream),
    ("OpenAPI v2: merge in front of kube-apiserver", merged_with_cluster),
    ("OpenAPI v2: protobuf read by gnostic", protobuf_as_gnostic_reads_it),
];

const GROUP: &str = "wardle.example.com";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

fn merged_as_upstream(environment: &TestEnvironment) {
    let admin = environment.cluster.admin();
    register(
        &environment.cluster.endpoint,
        admin,
        environment.extension.endpoint.port,
        &environment.cluster.authorities.backend.file,
    );
    let upstream = eventually_complete("kube-apiserver", &environment.cluster.endpoint, admin);
    let narthex = eventually_complete("narthex", environment.endpoint(Target::Gateway), admin);
    let (upstream_paths, our_paths) = (paths(&upstream), paths(&narthex));
    assert!(our_paths.len() > 10, "{our_paths:?}");
    assert_eq!(upstream_paths, our_paths);
    let mut compared = 0;
    for path in &our_paths {
        assert_eq!(upstream["paths"][path], narthex["paths"][path], "{path}");
    }
    for (name, definition) in narthex["definitions"].as_object().unwrap() {
        let mut upstream_definition = upstream["definitions"][name].clone();
        let mut definition = definition.clone();
        let kinds = |of: &mut Value| of.as_object_mut().and_then(|of| of.remove("x-kubernetes-group-version-kind"));
        let (our_kinds, their_kinds) = (kinds(&mut definition), kinds(&mut upstream_definition));
        assert_eq!(upstream_definition, definition, "{name}");
        let count = |kinds: &Option<Value>| kinds.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
        // kube-apiserver has more groups, and so more kinds per definition.
        assert!(count(&our_kinds) <= count(&their_kinds), "{name}: {our_kinds:?} {their_kinds:?}");
        if name.contains("wardle") {
            assert_eq!(our_kinds, their_kinds, "{name}");
        }
        compared += 1;
    }
    assert!(compared > 20, "{compared} definitions");
}

/// Narthex and kube-apiserver merge the cluster's and the extension server's documents equally.
fn merged_with_cluster(environment: &TestEnvironment) {
    let admin = environment.cluster.admin();
    register(
        &environment.cluster.endpoint,
        admin,
        environment.extension.endpoint.port,
        &environment.cluster.authorities.backend.file,
    );
    let directory = environment.scratch("openapi2-cluster");
    let delegate = environment.cluster.admin_kubeconfig.display().to_string();
    let flags = [("--delegate-kubeconfig", delegate.as_str())];
    let gateway = Gateway::start(&environment.cluster, &environment.extension, &directory, "openapi2-gateway", &flags);
    let mut upstream = eventually_complete("kube-apiserver", &environment.cluster.endpoint, admin);
    // Other tests may change the set of resources.
    eventually("equal documents", || {
        let narthex = eventually_complete("narthex", &gateway.endpoint, admin);
        upstream = eventually_complete("kube-apiserver", &environment.cluster.endpoint, admin);
        for section in upstream.as_object().unwrap().keys() {
            if upstream[section] != narthex[section] {
                let differs = |name: &&String| upstream[section][name.as_str()] != narthex[section][name.as_str()];
                let names = upstream[section].as_object().into_iter().flat_map(|all| all.keys());
                return Err(format!("{section}: {:?}", names.filter(differs).take(5).collect::<Vec<_>>()));
            }
        }
        if upstream == narthex { Ok(()) } else { Err("other sections differ".to_owned()) }
    });
    assert!(upstream["paths"].as_object().unwrap().len() > 300);
    read_by_gnostic(&directory, &gateway.endpoint, admin);
}

fn protobuf_as_gnostic_reads_it(environment: &TestEnvironment) {
    let endpoint = environment.endpoint(Target::Gateway);
    eventually_complete("narthex", endpoint, environment.cluster.admin());
    read_by_gnostic(&environment.scratch("openapi2"), endpoint, environment.cluster.admin());
}

fn read_by_gnostic(directory: &Path, endpoint: &HttpsEndpoint, identity: &Identity) {
    let mut files = Vec::new();
    for (name, accept) in [("document.json", "application/json"), ("document.pb", PROTOBUF)] {
        let response = endpoint.send(Some(identity), "GET", "/openapi/v2", &[("accept", accept)], b"").unwrap();
        assert_eq!(response.status, 200, "{}", response.text());
        // kube-apiserver has more response descriptions of its own.
        assert!(!response.headers.contains_key("x-kubernetes-pf-flowschema-uid"), "{:?}", response.headers);
        let file = directory.join(name);
        std::fs::write(&file, &response.body).unwrap();
        files.push(file);
    }
    let output = Command::new(peer("gnostic")).args(&files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Waits until the document describes the group.
fn eventually_complete(name: &str, endpoint: &HttpsEndpoint, identity: &Identity) -> Value {
    let mut document = Value::Null;
    eventually(&format!("{name} describes {GROUP}"), || {
        let response: HttpResponse = endpoint.get(Some(identity), "/openapi/v2")?;
        document = response.json();
        let all = paths(&document);
        match ["v1alpha1", "v1beta1"].iter().all(|version| all.iter().any(|path| path.contains(version))) {
            true => Ok(()),
            false => Err(format!("{} {all:?}", response.status)),
        }
    });
    document
}

fn paths(document: &Value) -> BTreeSet<String> {
    let all = document["paths"].as_object().map(|paths| paths.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    all.into_iter().filter(|path| path.starts_with(&format!("/apis/{GROUP}/v"))).collect()
}

/// Registers the extension server with kube-apiserver unless it already is.
pub(super) fn register(endpoint: &HttpsEndpoint, identity: &Identity, port: u16, authority: &Path) {
    let authority = std::fs::read_to_string(authority).unwrap();
    let bundle = {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(authority)
    };
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wardle", "namespace": "wardle"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    let mut documents = vec![
        (
            "/api/v1/namespaces".to_owned(),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "wardle"}}),
        ),
        ("/api/v1/namespaces/wardle/services".to_owned(), service),
    ];
    for version in ["v1alpha1", "v1beta1"] {
        documents.push((
            "/apis/apiregistration.k8s.io/v1/apiservices".to_owned(),
            json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                "metadata": {"name": format!("{version}.{GROUP}")},
                "spec": {"group": GROUP, "version": version, "caBundle": bundle,
                    "service": {"namespace": "wardle", "name": "wardle", "port": port},
                    "groupPriorityMinimum": 1000, "versionPriority": 15}}),
        ));
    }
    let headers = [("content-type", "application/json")];
    for (path, document) in documents {
        let response = endpoint.send(Some(identity), "POST", &path, &headers, document.to_string().as_bytes()).unwrap();
        assert!(response.status.is_success() || response.status == 409, "{path}: {}", response.text());
    }
}
