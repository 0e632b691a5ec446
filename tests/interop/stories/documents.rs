//! OpenAPI v2: merged as a real kube-apiserver merges it, and read by the libraries that clients are made of.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::Trial;
use crate::world::{Answer, Door, Gateway, Identity, Target, World, eventually, peer};

pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("OpenAPI v2 as kube-apiserver merges it", merged_as_upstream),
    ("OpenAPI v2 before a kube-apiserver", all_of_a_cluster),
    ("OpenAPI v2 in protobuf as gnostic reads it", protobuf_as_gnostic_reads_it),
];

const GROUP: &str = "wardle.example.com";
const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

fn merged_as_upstream(world: &World) {
    let admin = world.cluster.admin();
    register(&world.cluster.door, admin, world.extension.door.port, &world.cluster.authorities.backend.file);
    let upstream = eventually_complete("kube-apiserver", &world.cluster.door, admin);
    let ours = eventually_complete("narthex", world.door(Target::Through), admin);
    let (upstream_paths, our_paths) = (paths(&upstream), paths(&ours));
    assert!(our_paths.len() > 10, "{our_paths:?}");
    assert_eq!(upstream_paths, our_paths);
    let mut compared = 0;
    for path in &our_paths {
        assert_eq!(upstream["paths"][path], ours["paths"][path], "{path}");
    }
    for (name, definition) in ours["definitions"].as_object().unwrap() {
        let mut theirs = upstream["definitions"][name].clone();
        let mut definition = definition.clone();
        let kinds = |of: &mut Value| of.as_object_mut().and_then(|of| of.remove("x-kubernetes-group-version-kind"));
        let (our_kinds, their_kinds) = (kinds(&mut definition), kinds(&mut theirs));
        assert_eq!(theirs, definition, "{name}");
        let count = |kinds: &Option<Value>| kinds.as_ref().and_then(Value::as_array).map_or(0, Vec::len);
        // kube-apiserver has more groups, and so more kinds to one definition.
        assert!(count(&our_kinds) <= count(&their_kinds), "{name}: {our_kinds:?} {their_kinds:?}");
        if name.contains("wardle") {
            assert_eq!(our_kinds, their_kinds, "{name}");
        }
        compared += 1;
    }
    assert!(compared > 20, "{compared} definitions");
}

/// The same document, whoever merges the cluster's and the extension server's.
fn all_of_a_cluster(world: &World) {
    let admin = world.cluster.admin();
    register(&world.cluster.door, admin, world.extension.door.port, &world.cluster.authorities.backend.file);
    let directory = world.scratch("openapi2-cluster");
    let delegate = world.cluster.admin_kubeconfig.display().to_string();
    let flags = [("--delegate-kubeconfig", delegate.as_str())];
    let gateway = Gateway::start(&world.cluster, &world.extension, &directory, "openapi2-gateway", &flags);
    let mut upstream = eventually_complete("kube-apiserver", &world.cluster.door, admin);
    // Other tests may change what there is.
    eventually("both to be the same", || {
        let ours = eventually_complete("narthex", &gateway.door, admin);
        upstream = eventually_complete("kube-apiserver", &world.cluster.door, admin);
        for section in upstream.as_object().unwrap().keys() {
            if upstream[section] != ours[section] {
                let differs = |name: &&String| upstream[section][name.as_str()] != ours[section][name.as_str()];
                let names = upstream[section].as_object().into_iter().flat_map(|all| all.keys());
                return Err(format!("{section}: {:?}", names.filter(differs).take(5).collect::<Vec<_>>()));
            }
        }
        if upstream == ours { Ok(()) } else { Err("there is more".to_owned()) }
    });
    assert!(upstream["paths"].as_object().unwrap().len() > 300);
    read_by_gnostic(&directory, &gateway.door, admin);
}

fn protobuf_as_gnostic_reads_it(world: &World) {
    let door = world.door(Target::Through);
    eventually_complete("narthex", door, world.cluster.admin());
    read_by_gnostic(&world.scratch("openapi2"), door, world.cluster.admin());
}

fn read_by_gnostic(directory: &Path, door: &Door, who: &Identity) {
    let mut files = Vec::new();
    for (name, accept) in [("document.json", "application/json"), ("document.pb", PROTOBUF)] {
        let answer = door.send(Some(who), "GET", "/openapi/v2", &[("accept", accept)], b"").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        // kube-apiserver says more of its own answers.
        assert!(!answer.headers.contains_key("x-kubernetes-pf-flowschema-uid"), "{:?}", answer.headers);
        let file = directory.join(name);
        std::fs::write(&file, &answer.body).unwrap();
        files.push(file);
    }
    let output = Command::new(peer("gnostic")).args(&files).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The document once it describes the group.
fn eventually_complete(name: &str, door: &Door, who: &Identity) -> Value {
    let mut document = Value::Null;
    eventually(&format!("{name} describes {GROUP}"), || {
        let answer: Answer = door.get(Some(who), "/openapi/v2")?;
        document = answer.json();
        let all = paths(&document);
        match ["v1alpha1", "v1beta1"].iter().all(|version| all.iter().any(|path| path.contains(version))) {
            true => Ok(()),
            false => Err(format!("{} {all:?}", answer.status)),
        }
    });
    document
}

fn paths(document: &Value) -> BTreeSet<String> {
    let all = document["paths"].as_object().map(|paths| paths.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    all.into_iter().filter(|path| path.starts_with(&format!("/apis/{GROUP}/v"))).collect()
}

/// Puts the extension server behind kube-apiserver too, unless it is there.
fn register(door: &Door, who: &Identity, port: u16, authority: &Path) {
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
        let answer = door.send(Some(who), "POST", &path, &headers, document.to_string().as_bytes()).unwrap();
        assert!(answer.status.is_success() || answer.status == 409, "{path}: {}", answer.text());
    }
}
