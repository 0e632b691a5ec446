//! The registry in a real kube-apiserver: registered backends are served, with only the shipped permissions.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::TestFn;
use crate::environment::{
    Cluster, Extension, Gateway, HttpResponse, Identity, TestEnvironment, eventually, free_port, kubeconfig,
};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("cluster registry: changes followed, backends served without kube-apiserver", registry_follows_kube_apiserver)];

pub(super) const FLUNDERS: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/wardle/endpointslices";
const API_SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// A separate control plane with an extension server, for tests that change cluster-wide objects.
pub(super) struct ClusterFixture {
    pub(super) cluster: Cluster,
    pub(super) extension: Extension,
    /// Kubeconfig of a user with only the permissions in `deploy/cluster`.
    pub(super) kubeconfig: PathBuf,
    directory: PathBuf,
    /// An address of this machine that is valid in an EndpointSlice: loopback is not.
    address: String,
}

impl ClusterFixture {
    pub(super) fn set(directory: PathBuf) -> ClusterFixture {
        ClusterFixture::set_with(directory, &[])
    }

    /// Like [`ClusterFixture::set`], with more flags of kube-apiserver.
    pub(super) fn set_with(directory: PathBuf, flags: &[String]) -> ClusterFixture {
        let cluster = Cluster::start_with(&directory, flags);
        let kubeconfig = &cluster.admin_kubeconfig;
        let anywhere = ["--bind-address=0.0.0.0"];
        let extension = Extension::start_with(&cluster, kubeconfig, &directory, "wardle", free_port(), &anywhere);
        let kubeconfig = least_privileged_kubeconfig(&cluster, &directory);
        let fixture = ClusterFixture { cluster, extension, kubeconfig, directory, address: own_address() };
        fixture.cluster.create_namespace("wardle");
        fixture.create("/api/v1/namespaces/wardle/services", &fixture.service());
        fixture.create(SLICES, &fixture.slice());
        for version in ["v1alpha1", "v1beta1"] {
            fixture.create(API_SERVICES, &fixture.api_service(version));
        }
        fixture
    }

    pub(super) fn gateway(&self, name: &str, more: &[(&str, &str)]) -> Gateway {
        let flags = [&[("--kubeconfig", self.kubeconfig.to_str().unwrap())], more].concat();
        Gateway::start_without_registry(&self.cluster, &self.directory, name, &flags)
    }

    pub(super) fn admin(&self) -> &Identity {
        self.cluster.admin()
    }

    fn create(&self, path: &str, document: &Value) {
        self.cluster.endpoint.create(self.admin(), path, document);
    }

    fn delete(&self, path: &str) {
        let response = self.cluster.endpoint.send(Some(self.admin()), "DELETE", path, &[], b"").unwrap();
        assert!(response.status.is_success(), "{}", response.text());
    }

    fn service(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wardle", "namespace": "wardle"},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}})
    }

    fn slice(&self) -> Value {
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "wardle-1", "namespace": "wardle",
                "labels": {"kubernetes.io/service-name": "wardle"}},
            "ports": [{"name": "https", "port": self.extension.endpoint.port}],
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

/// Grants a user the permissions of the ServiceAccount in `deploy/cluster` and returns its kubeconfig.
fn least_privileged_kubeconfig(cluster: &Cluster, directory: &Path) -> PathBuf {
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
        cluster.endpoint.create(cluster.admin(), &path, &document);
    }
    let identity = cluster.authorities.client.client("narthex-gateway", "narthex-gateway", &[], None);
    kubeconfig::write(
        directory,
        "narthex-gateway",
        &cluster.endpoint.url(),
        &cluster.endpoint.authority,
        Some(&identity),
    )
}

/// The address of this machine on its default route; nothing is sent.
pub(super) fn own_address() -> String {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.connect("198.51.100.1:9").expect("an address other than loopback, which is not valid in an EndpointSlice");
    socket.local_addr().unwrap().ip().to_string()
}

/// Waits until the gateway responds with `status` and a body that contains `text`.
pub(super) fn wait_for_response(
    gateway: &Gateway,
    identity: &Identity,
    path: &str,
    status: u16,
    text: &str,
) -> HttpResponse {
    eventually(&format!("{status} {text:?} for {path}"), || {
        let response = gateway.endpoint.get(Some(identity), path)?;
        if response.status == status && response.text().contains(text) {
            Ok(response)
        } else {
            Err(format!("{} {}", response.status, response.text()))
        }
    })
}

fn registry_follows_kube_apiserver(environment: &TestEnvironment) {
    let mut fixture = ClusterFixture::set(environment.scratch("registry-is-followed"));
    let gateway = fixture.gateway("narthex-follows", &[]);
    let admin = fixture.admin().clone();
    wait_for_response(&gateway, &admin, FLUNDERS, 200, "FlunderList");
    wait_for_response(&gateway, &admin, "/apis/wardle.example.com/v1beta1", 200, "flunders");

    // Endpoints are removed and added.
    fixture.delete(&format!("{SLICES}/wardle-1"));
    wait_for_response(&gateway, &admin, FLUNDERS, 503, "EndpointsNotFound");
    fixture.create(SLICES, &fixture.slice());
    wait_for_response(&gateway, &admin, FLUNDERS, 200, "FlunderList");

    // kube-apiserver is killed: known backends are still served.
    fixture.cluster.kill_kube_apiserver();
    eventually("the log line", || {
        let log = gateway.process.log();
        if log.contains("the registry's kube-apiserver cannot be watched") { Ok(()) } else { Err(log) }
    });
    assert_eq!(gateway.endpoint.get(Some(&admin), FLUNDERS).unwrap().status, 200);
    assert_eq!(gateway.endpoint.get(None, "/readyz").unwrap().status, 200);

    // kube-apiserver is restarted and watched again.
    fixture.cluster.restart_kube_apiserver();
    fixture.delete(&format!("{API_SERVICES}/v1beta1.wardle.example.com"));
    wait_for_response(&gateway, &admin, "/apis/wardle.example.com/v1beta1", 404, "NotFound");
    assert_eq!(gateway.endpoint.get(Some(&admin), FLUNDERS).unwrap().status, 200);
}
