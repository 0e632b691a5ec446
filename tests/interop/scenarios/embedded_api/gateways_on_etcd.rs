//! Gateways whose objects are in a real etcd: several on one, and one beside a kube-apiserver.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::environment::{EtcdServer, Gateway, HttpsEndpoint, Identity, TestEnvironment, eventually, values_in_etcd};
use crate::scenarios::leader_election::wait_for_log;

const NAMESPACES: &str = "/api/v1/namespaces";
const CONFIG_MAPS: &str = "/api/v1/namespaces/shared/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CUSTOM: &str = "/apis/example.com/v1/namespaces/shared/foos";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/narthex";

/// Two gateways on one etcd with TLS: what one writes, the other serves; the controllers go on when their gateway is killed;
/// both go on when etcd is killed and comes back.
pub(super) fn two_gateways_share_an_etcd(environment: &TestEnvironment) {
    let directory = environment.scratch("gateways-on-etcd");
    let (cluster, admin) = (&environment.cluster, environment.cluster.admin());
    let authorities = &cluster.authorities;
    let serving = authorities.serving.server("shared-etcd", &["127.0.0.1"]);
    let (mut etcd, url) =
        EtcdServer::start_with_tls(&directory, "shared-etcd", &serving, (&authorities.client.file, admin));
    let flags = [
        ("--etcd-servers", url.as_str()),
        ("--etcd-prefix", "/of/gateways"),
        ("--etcd-cafile", authorities.serving.file.to_str().unwrap()),
        ("--etcd-certfile", admin.certificate.to_str().unwrap()),
        ("--etcd-keyfile", admin.key.to_str().unwrap()),
        ("--service-account-signing-key-file", authorities.service_account.0.to_str().unwrap()),
        ("--leader-elect-lease-duration", "6s"),
        ("--leader-elect-renew-deadline", "4s"),
        ("--leader-elect-retry-period", "1s"),
    ];
    let start = |name: &str| Gateway::start_embedded_api(cluster, &directory, name, &flags);
    let mut first = start("etcd-first");
    wait_for_log(&first, "acquired leadership");
    let second = start("etcd-second");
    wait_for_log(&second, "new leader elected");

    // A write is served by the other at once: its reads are as new as etcd.
    first.endpoint.create(admin, NAMESPACES, &named("v1", "Namespace", "shared"));
    first.endpoint.create(admin, CONFIG_MAPS, &named("v1", "ConfigMap", "a"));
    for name in ["b", "c"] {
        second.endpoint.create(admin, CONFIG_MAPS, &named("v1", "ConfigMap", name));
    }
    for gateway in [&first, &second] {
        assert_eq!(names(&gateway.endpoint, admin, CONFIG_MAPS), ["a", "b", "c"]);
    }
    let stored = values_in_etcd(etcd.address, "/of/gateways/configmaps/shared/");
    assert!(stored["/of/gateways/configmaps/shared/a"].contains("\"ConfigMap\""), "{stored:?}");
    // A custom resource that one established is served by the other.
    second.endpoint.create(admin, CRDS, &crd());
    for gateway in [&first, &second] {
        eventually("the custom resource to be served", || get(&gateway.endpoint, admin, CUSTOM).map(drop));
    }
    first.endpoint.create(admin, CUSTOM, &named("example.com/v1", "Foo", "one"));
    assert_eq!(names(&second.endpoint, admin, CUSTOM), ["one"]);
    // Rights of one count at the other.
    let jane = cluster.jane();
    assert_eq!(second.endpoint.get(Some(jane), CONFIG_MAPS).unwrap().status, 403);
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "jane"}, "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jane"}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}});
    first.endpoint.create(admin, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding);
    eventually("the right of jane", || get(&second.endpoint, jane, CONFIG_MAPS).map(drop));

    // Without a leader a namespace stays; the other gateway takes the Lease when it expires.
    let before = get(&second.endpoint, admin, LEASE).unwrap();
    first.process.signal(Signal::KILL);
    second.endpoint.send(Some(admin), "DELETE", &format!("{NAMESPACES}/shared"), &[], b"").unwrap();
    wait_for_log(&second, "acquired leadership");
    eventually("the namespace to be removed", || {
        match second.endpoint.get(Some(admin), CONFIG_MAPS)?.status.as_u16() {
            404 => Ok(()),
            _ if names(&second.endpoint, admin, CONFIG_MAPS).is_empty() => Ok(()),
            status => Err(status.to_string()),
        }
    });
    let after = get(&second.endpoint, admin, LEASE).unwrap();
    assert_ne!(before["spec"]["holderIdentity"], after["spec"]["holderIdentity"]);
    first.restart();
    wait_for_log(&first, "new leader elected");

    // Without etcd both say so, and go on when it is back.
    etcd.kill();
    for gateway in [&first, &second] {
        eventually("readiness to fail", || match gateway.endpoint.get(Some(admin), "/readyz")? {
            response if response.text().contains("[-]etcd failed") => Ok(()),
            response => Err(response.text()),
        });
        let refused = gateway.endpoint.get(Some(admin), NAMESPACES).unwrap();
        assert_eq!((refused.status.as_u16(), &refused.json()["reason"]), (503, &json!("ServiceUnavailable")));
    }
    etcd.restart();
    for gateway in [&first, &second] {
        eventually("readiness", || match gateway.endpoint.get(Some(admin), "/readyz")? {
            response if response.status == 200 => Ok(()),
            response => Err(response.text()),
        });
    }
    first.endpoint.create(admin, NAMESPACES, &named("v1", "Namespace", "later"));
    eventually("the controllers to go on", || {
        get(&second.endpoint, admin, "/api/v1/namespaces/later/serviceaccounts/default").map(drop)
    });
}

/// The etcd of a kube-apiserver: refused for writing, and read whole without a write.
pub(super) fn reads_the_etcd_of_a_kube_apiserver(environment: &TestEnvironment) {
    let directory = environment.scratch("etcd-of-kube-apiserver");
    let (cluster, admin) = (&environment.cluster, environment.cluster.admin());
    let data = directory.join("refused-data");
    let refused = std::process::Command::new(env!("CARGO_BIN_EXE_narthex"))
        .args(["gateway", "--bind-address=127.0.0.1", "--secure-port=0", "--admin-address=127.0.0.1:0"])
        .arg(format!("--etcd-servers={}", cluster.etcd_url))
        .arg(format!("--data-dir={}", data.display()))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && text.contains("--etcd-access=read-only"), "{text}");

    let flags = [
        ("--etcd-servers", cluster.etcd_url.as_str()),
        ("--etcd-access", "read-only"),
        ("--leader-elect-resource-name", "beside"),
    ];
    let gateway = Gateway::start_embedded_api(cluster, &directory, "beside-kube-apiserver", &flags);
    for path in [
        "/api/v1/namespaces/kube-system",
        "/api/v1/namespaces/default/services/kubernetes",
        "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin",
        "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/probes",
        "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical",
        "/apis/networking.k8s.io/v1/servicecidrs/kubernetes",
    ] {
        let theirs = get(&cluster.endpoint, admin, path).unwrap();
        let ours = get(&gateway.endpoint, admin, path).unwrap();
        assert_eq!(ours, theirs, "{path}");
        assert!(ours["metadata"]["managedFields"].is_array() || path.ends_with("authentication"), "{ours}");
    }
    // What it writes is watched, and what this gateway would write is refused.
    let path = "/api/v1/namespaces/default/configmaps";
    cluster.endpoint.create(admin, path, &named("v1", "ConfigMap", "beside"));
    let one = format!("{path}/beside");
    let theirs = get(&cluster.endpoint, admin, &one).unwrap();
    assert_eq!(get(&gateway.endpoint, admin, &one).unwrap(), theirs);
    for (method, path) in [("POST", path), ("DELETE", &*one), ("PUT", &*one)] {
        let (body, json) = (named("v1", "ConfigMap", "beside").to_string(), [("content-type", "application/json")]);
        let refused = gateway.endpoint.send(Some(admin), method, path, &json, body.as_bytes()).unwrap();
        assert_eq!(refused.status, 403, "{}", refused.text());
        assert!(refused.text().contains("read-only"), "{}", refused.text());
    }
    assert_eq!(get(&cluster.endpoint, admin, &one).unwrap(), theirs);
    let lease = LEASE.replace("narthex", "beside");
    assert_eq!(cluster.endpoint.get(Some(admin), &lease).unwrap().status, 404, "no Lease is written");
    cluster.endpoint.send(Some(admin), "DELETE", &one, &[], b"").unwrap();
}

fn named(api_version: &str, kind: &str, name: &str) -> Value {
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}})
}

fn crd() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "foos.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "foos", "kind": "Foo"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    })
}

fn get(endpoint: &HttpsEndpoint, identity: &Identity, path: &str) -> Result<Value, String> {
    let response = endpoint.get(Some(identity), path)?;
    match response.status.as_u16() {
        200 => Ok(response.json()),
        status => Err(format!("{path}: {status} {}", response.text())),
    }
}

fn names(endpoint: &HttpsEndpoint, identity: &Identity, path: &str) -> Vec<String> {
    let list = get(endpoint, identity, path).unwrap();
    let names =
        list["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned());
    names.collect()
}
