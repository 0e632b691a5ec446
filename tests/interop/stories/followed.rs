//! The registry is a real kube-apiserver's: what is registered there is served, with no more rights than are shipped.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Trial;
use crate::world::{Answer, Cluster, Extension, Gateway, Identity, World, eventually, free_port, kubeconfig};

pub(super) const THROUGH: &[(&str, Trial)] =
    &[("a kube-apiserver's registry is followed, and outlived", registry_is_followed)];

pub(super) const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/wardle/endpointslices";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// A control plane of this story's own, whose objects no other story meets, with an extension server.
pub(super) struct Stage {
    pub(super) cluster: Cluster,
    pub(super) extension: Extension,
    /// Of a user with the rights in `deploy/cluster`, and no others.
    pub(super) kubeconfig: PathBuf,
    directory: PathBuf,
    /// An address of this machine that may stand in an EndpointSlice: loopback may not.
    address: String,
}

impl Stage {
    pub(super) fn set(directory: PathBuf) -> Stage {
        let cluster = Cluster::start(&directory);
        let kubeconfig = &cluster.admin_kubeconfig;
        let anywhere = ["--bind-address=0.0.0.0"];
        let extension = Extension::start_with(&cluster, kubeconfig, &directory, "wardle", free_port(), &anywhere);
        let kubeconfig = narrow(&cluster, &directory);
        let stage = Stage { cluster, extension, kubeconfig, directory, address: own_address() };
        stage.cluster.create_namespace("wardle");
        stage.create("/api/v1/namespaces/wardle/services", &stage.service());
        stage.create(SLICES, &stage.slice());
        for version in ["v1alpha1", "v1beta1"] {
            stage.create(API_SERVICES, &stage.api_service(version));
        }
        stage
    }

    pub(super) fn gateway(&self, name: &str, more: &[(&str, &str)]) -> Gateway {
        let flags = [&[("--kubeconfig", self.kubeconfig.to_str().unwrap())], more].concat();
        Gateway::bare(&self.cluster, &self.directory, name, &flags)
    }

    pub(super) fn admin(&self) -> &Identity {
        self.cluster.admin()
    }

    fn create(&self, path: &str, document: &Value) {
        self.cluster.door.create(self.admin(), path, document);
    }

    fn delete(&self, path: &str) {
        let answer = self.cluster.door.send(Some(self.admin()), "DELETE", path, &[], b"").unwrap();
        assert!(answer.status.is_success(), "{}", answer.text());
    }

    fn service(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wardle", "namespace": "wardle"},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}})
    }

    fn slice(&self) -> Value {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "wardle-1", "namespace": "wardle",
                "labels": {"kubernetes.io/service-name": "wardle"}},
            "ports": [{"name": "https", "port": self.extension.door.port}],
            "endpoints": [{"addresses": [self.address], "conditions": {"ready": true}}]})
    }

    fn api_service(&self, version: &str) -> Value {
        use base64::Engine as _;
        let authority = std::fs::read(&self.cluster.authorities.backend.file).unwrap();
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.wardle.example.com"),
                "annotations": {"narthex.dev/probe-interval": "1s"}},
            "spec": {"group": "wardle.example.com", "version": version,
                "groupPriorityMinimum": 1000, "versionPriority": 15,
                "caBundle": base64::engine::general_purpose::STANDARD.encode(authority),
                "service": {"namespace": "wardle", "name": "wardle"}}})
    }
}

/// Grants a user the rights in `deploy/cluster`, as if it were the ServiceAccount there; says where its kubeconfig is.
fn narrow(cluster: &Cluster, directory: &Path) -> PathBuf {
    let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/cluster/rbac.yaml");
    for document in std::fs::read_to_string(rights).unwrap().split("---\n") {
        let mut document: Value = serde_saphyr::from_str(document).unwrap();
        let plural = match document["kind"].as_str().unwrap() {
            "Namespace" | "ServiceAccount" => continue,
            kind => format!("{}s", kind.to_lowercase()),
        };
        if document["subjects"].is_array() {
            document["subjects"] =
                json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "narthex-gateway"}]);
        }
        let path = match document["metadata"]["namespace"].as_str() {
            Some(namespace) => format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{plural}"),
            None => format!("/apis/rbac.authorization.k8s.io/v1/{plural}"),
        };
        cluster.door.create(cluster.admin(), &path, &document);
    }
    let identity = cluster.authorities.client.client("narthex-gateway", "narthex-gateway", &[], None);
    kubeconfig::write(directory, "narthex-gateway", &cluster.door.url(), &cluster.door.authority, Some(&identity))
}

/// The address that this machine would be reached by; nothing is sent to find out.
fn own_address() -> String {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").expect("an address beside loopback, which no EndpointSlice may have");
    socket.local_addr().unwrap().ip().to_string()
}

/// What is asked of the gateway is answered so, at last.
pub(super) fn until(gateway: &Gateway, who: &Identity, path: &str, status: u16, words: &str) -> Answer {
    eventually(&format!("{status} {words:?} for {path}"), || {
        let answer = gateway.door.get(Some(who), path)?;
        if answer.status == status && answer.text().contains(words) {
            Ok(answer)
        } else {
            Err(format!("{} {}", answer.status, answer.text()))
        }
    })
}

fn registry_is_followed(world: &World) {
    let mut stage = Stage::set(world.scratch("registry-is-followed"));
    let gateway = stage.gateway("narthex-follows", &[]);
    let admin = stage.admin().clone();
    until(&gateway, &admin, FLUNDERS, 200, "FlunderList");
    until(&gateway, &admin, "/apis/wardle.example.com/v1beta1", 200, "flunders");

    // Endpoints come and go.
    stage.delete(&format!("{SLICES}/wardle-1"));
    until(&gateway, &admin, FLUNDERS, 503, "EndpointsNotFound");
    stage.create(SLICES, &stage.slice());
    until(&gateway, &admin, FLUNDERS, 200, "FlunderList");

    // The kube-apiserver goes: all that is known goes on.
    stage.cluster.kill_kube_apiserver();
    eventually("the log to say it", || {
        let log = gateway.process.log();
        if log.contains("the registry's kube-apiserver cannot be watched") { Ok(()) } else { Err(log) }
    });
    assert_eq!(gateway.door.get(Some(&admin), FLUNDERS).unwrap().status, 200);
    assert_eq!(gateway.door.get(None, "/readyz").unwrap().status, 200);

    // It comes back, and is followed again.
    stage.cluster.start_kube_apiserver_again();
    stage.delete(&format!("{API_SERVICES}/v1beta1.wardle.example.com"));
    until(&gateway, &admin, "/apis/wardle.example.com/v1beta1", 404, "NotFound");
    assert_eq!(gateway.door.get(Some(&admin), FLUNDERS).unwrap().status, 200);
}
