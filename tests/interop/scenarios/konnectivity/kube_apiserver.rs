//! A real kube-apiserver whose EgressSelectorConfiguration names a Konnectivity server.

use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use serde_json::{Value, json};

use super::DIALS;
use super::kubelet_streams::KwokNode;
use crate::environment::{
    Cluster, Extension, Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, eventually, peer,
    start_conversion_webhook, write_egress_configuration,
};
use crate::scenarios::openapi;

/// An aggregated API server, a conversion webhook by Service, and the kubelet of a pod's node.
pub(super) fn reaches_its_backends(environment: &TestEnvironment, mode: KonnectivityMode, pair: KonnectivityPair) {
    // Flags of the peers split paths at commas.
    let sides = format!("{}-{}", pair.has_own_server, pair.has_own_agent);
    let directory = environment.scratch(&format!("konnectivity-kube-apiserver-{mode:?}-{sides}"));
    let mut konnectivity = Konnectivity::with_pair(&directory, mode, pair);
    let configuration = write_egress_configuration(&konnectivity, &directory);
    let flag = format!("--egress-selector-config-file={}", configuration.display());
    let cluster = Cluster::start_with(&directory, &[flag]);

    let extension = Extension::start(&cluster, &directory, "wardle");
    openapi::register(&cluster.endpoint, cluster.admin(), extension.endpoint.port, &cluster.authorities.backend.file);
    accepts_manifests(&cluster, &directory);
    let list = || {
        let response = cluster.endpoint.get(Some(cluster.admin()), "/apis/wardle.example.com/v1alpha1/flunders")?;
        if response.status == 200 { Ok(response.json()) } else { Err(response.text()) }
    };
    assert_eq!(eventually("flunders of the aggregated server", list)["kind"], "FlunderList");
    let by_aggregation = konnectivity.count(DIALS);
    assert!(by_aggregation > 0.0, "kube-apiserver connects past the server");

    converts(&cluster);
    let by_webhook = konnectivity.count(DIALS);
    assert!(by_webhook > by_aggregation, "the webhook is called past the server");

    let node = KwokNode::start(&cluster, &directory);
    node.check_streams(&konnectivity);
    let mut followed_log = node.follow_log();

    // Without an agent the error says so; with another one all goes on.
    drop(konnectivity.agents.remove(0));
    konnectivity.wait_for_agents(0);
    println!("kubectl logs --follow without an agent: {}", followed_log.wait());
    let error = eventually("an error without an agent", || list().err().ok_or("still served".to_owned()));
    println!("without an agent: {error}");
    konnectivity.start_agent("agent-b", None);
    eventually("flunders through another agent", list);
}

/// The manifests of `deploy/konnectivity` are valid, and their flags are known.
fn accepts_manifests(cluster: &Cluster, directory: &Path) {
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/konnectivity");
    for (file, program) in
        [("rbac.yaml", None), ("server.yaml", Some("proxy-server")), ("agent.yaml", Some("proxy-agent"))]
    {
        let path = manifests.join(file);
        let mut kubectl = Command::new(peer("kubectl"));
        kubectl.args(["create", "--dry-run=server", "--validate=strict", "-o=json", "-f"]).arg(&path);
        let output = kubectl.arg("--kubeconfig").arg(&cluster.admin_kubeconfig).output().unwrap();
        assert!(output.status.success(), "{file}: {}", String::from_utf8_lossy(&output.stderr));
        let Some(program) = program else { continue };
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        let spec = if object["kind"] == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        let container = &spec["containers"][0];
        assert_eq!(container["command"], json!([format!("/{program}")]));
        let link = directory.join(program);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narthex"), &link).unwrap();
        let flags = container["args"].as_array().unwrap().iter().map(|flag| flag.as_str().unwrap());
        let output = Command::new(&link).args(flags).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        // Flags are understood (else status 2); the files of the manifest are not here.
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains("No such file"), "{errors}");
    }
}

fn converts(cluster: &Cluster) {
    let authority = &cluster.authorities.backend;
    let identity = authority.server("converter", &["converter.default.svc"]);
    let port = start_conversion_webhook(&identity, |mut object, version| {
        object["apiVersion"] = version.into();
        object["spec"]["converted"] = true.into();
        Ok(object)
    });
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "converter"},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]}});
    let bundle = base64::engine::general_purpose::STANDARD.encode(std::fs::read(&authority.file).unwrap());
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str| json!({"name": name, "served": true, "storage": name == "v1", "schema": schema});
    let client = json!({"service": {"namespace": "default", "name": "converter", "port": port}, "caBundle": bundle});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "pots.egress.example.com"},
        "spec": {"group": "egress.example.com", "scope": "Namespaced",
            "names": {"plural": "pots", "singular": "pot", "kind": "Pot"},
            "versions": [version("v1"), version("v2")],
            "conversion": {"strategy": "Webhook",
                "webhook": {"conversionReviewVersions": ["v1"], "clientConfig": client}}},
    });
    let create = |path: &str, document: &Value| cluster.endpoint.create(cluster.admin(), path, document);
    create("/api/v1/namespaces/default/services", &service);
    create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", &definition);
    let pots = |version: &str| format!("/apis/egress.example.com/{version}/namespaces/default/pots");
    eventually("the new resource", || {
        let response = cluster.endpoint.get(Some(cluster.admin()), &pots("v1"))?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    let pot = json!({"apiVersion": "egress.example.com/v1", "kind": "Pot", "metadata": {"name": "a"}, "spec": {}});
    create(&pots("v1"), &pot);
    let converted = eventually("the object in the other version", || {
        let response = cluster.endpoint.get(Some(cluster.admin()), &format!("{}/a", pots("v2")))?;
        if response.status == 200 { Ok(response.json()) } else { Err(response.text()) }
    });
    assert_eq!(converted["spec"]["converted"], true);
}
