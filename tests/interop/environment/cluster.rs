//! etcd and kube-apiserver, which the extension API server uses for authentication and authorization.

use std::path::{Path, PathBuf};

use super::certificates::{Authorities, Identity};
use super::http::HttpsEndpoint;
use super::process::{Process, eventually};
use super::{free_port, kubeconfig, peer};

/// A control plane without nodes: etcd and kube-apiserver.
pub(crate) struct Cluster {
    pub(crate) endpoint: HttpsEndpoint,
    pub(crate) authorities: Authorities,
    pub(crate) etcd_url: String,
    /// Cluster admin's kubeconfig for kube-apiserver, used by the extension server.
    pub(crate) admin_kubeconfig: PathBuf,
    /// kube-apiserver's audit log.
    pub(crate) audit_log: PathBuf,
    kube_apiserver: Process,
    arguments: Vec<String>,
    directory: PathBuf,
    _etcd: Process,
}

impl Cluster {
    pub(crate) fn start(directory: &Path) -> Cluster {
        Cluster::start_with(directory, &[])
    }

    /// As [`Cluster::start`], with more flags of kube-apiserver.
    pub(crate) fn start_with(directory: &Path, more: &[String]) -> Cluster {
        let authorities = Authorities::make(directory);
        let (etcd, etcd_url) = start_etcd(directory);
        let audit_log = directory.join("logs").join("kube-apiserver-audit.log");
        let (kube_apiserver, arguments, endpoint) =
            start_kube_apiserver(directory, &authorities, &etcd_url, &audit_log, more);
        let files = directory.join("kubeconfigs");
        let admin_kubeconfig =
            kubeconfig::write(&files, "cluster-admin", &endpoint.url(), &endpoint.authority, Some(&authorities.admin));
        let cluster = Cluster {
            endpoint,
            authorities,
            etcd_url,
            admin_kubeconfig,
            audit_log,
            kube_apiserver,
            arguments,
            directory: directory.to_owned(),
            _etcd: etcd,
        };
        cluster.grant_rights();
        cluster
    }

    /// Kills kube-apiserver. etcd continues.
    pub(crate) fn kill_kube_apiserver(&mut self) {
        self.kube_apiserver.signal(rustix::process::Signal::KILL);
        self.kube_apiserver.wait();
    }

    /// Restarts kube-apiserver on the same port.
    pub(crate) fn restart_kube_apiserver(&mut self) {
        let program = peer("kube-apiserver");
        self.kube_apiserver = Process::start("kube-apiserver", &program, &self.arguments, &self.directory);
        let Cluster { kube_apiserver, endpoint, authorities, .. } = self;
        kube_apiserver.wait_until(|| is_ready(endpoint, &authorities.admin));
    }

    /// Creates RBAC objects: group `devs` has all verbs on flunders and reads fischers. No other user has
    /// permissions.
    fn grant_rights(&self) {
        let documents: Vec<serde_json::Value> = serde_json::from_str(include_str!("../fixtures/rights.json")).unwrap();
        for document in documents {
            let plural = match document["kind"].as_str() {
                Some("ClusterRole") => "clusterroles",
                Some("ClusterRoleBinding") => "clusterrolebindings",
                other => panic!("rights.json holds a {other:?}"),
            };
            self.endpoint.create(
                &self.authorities.admin,
                &format!("/apis/rbac.authorization.k8s.io/v1/{plural}"),
                &document,
            );
        }
    }

    /// Creates a namespace. Admission in the extension server requires that it exists.
    pub(crate) fn create_namespace(&self, name: &str) {
        let document = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.endpoint.create(&self.authorities.admin, "/api/v1/namespaces", &document);
    }

    pub(crate) fn admin(&self) -> &Identity {
        &self.authorities.admin
    }

    pub(crate) fn jane(&self) -> &Identity {
        &self.authorities.jane
    }
}

fn start_etcd(directory: &Path) -> (Process, String) {
    let client = format!("http://127.0.0.1:{}", free_port());
    let peers = format!("http://127.0.0.1:{}", free_port());
    let arguments = [
        format!("--data-dir={}", directory.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peers}"),
        format!("--initial-advertise-peer-urls={peers}"),
        format!("--initial-cluster=default={peers}"),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
    ];
    (Process::start("etcd", &peer("etcd"), arguments, directory), client)
}

/// Audit policy that records requests of users.
pub(crate) fn audit_policy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/fixtures/audit-people.yaml")
}

fn start_kube_apiserver(
    directory: &Path,
    authorities: &Authorities,
    etcd: &str,
    audit_log: &Path,
    more: &[String],
) -> (Process, Vec<String>, HttpsEndpoint) {
    let port = free_port();
    let serving =
        authorities.serving.server("kube-apiserver", &["127.0.0.1", "localhost", "kubernetes.kubernetes.svc"]);
    let (token_key, token_public) = &authorities.service_account;
    let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let mut arguments = vec![
        format!("--etcd-servers={etcd}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        "--advertise-address=127.0.0.1".to_owned(),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        file("tls-cert-file", &serving.certificate),
        file("tls-private-key-file", &serving.key),
        file("client-ca-file", &authorities.client.file),
        "--authorization-mode=RBAC".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        file("service-account-key-file", token_public),
        file("service-account-signing-key-file", token_key),
        file("requestheader-client-ca-file", &authorities.request_header.file),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        file("proxy-client-cert-file", &authorities.front_proxy.certificate),
        file("proxy-client-key-file", &authorities.front_proxy.key),
        file("cert-dir", &directory.join("kube-apiserver")),
        file("audit-policy-file", &audit_policy()),
        file("audit-log-path", audit_log),
    ];
    // Without kube-controller-manager there are no ServiceAccounts.
    if !more.iter().any(|flag| flag.starts_with("--disable-admission-plugins=")) {
        arguments.push("--disable-admission-plugins=ServiceAccount".to_owned());
    }
    arguments.extend_from_slice(more);
    let mut process = Process::start("kube-apiserver", &peer("kube-apiserver"), &arguments, directory);
    let endpoint = HttpsEndpoint::new(port, &authorities.serving.file);
    process.wait_until(|| is_ready(&endpoint, &authorities.admin));
    // The extension server reads its client and request-header CAs here. kube-apiserver writes the ConfigMap after it
    // is ready.
    eventually("the ConfigMap that names the front proxy's authority", || {
        let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
        let response = endpoint.get(Some(&authorities.admin), path)?;
        if response.json()["data"]["requestheader-client-ca-file"].is_string() { Ok(()) } else { Err(response.text()) }
    });
    (process, arguments, endpoint)
}

/// Checks that `/readyz` returns 200.
pub(super) fn is_ready(endpoint: &HttpsEndpoint, identity: &Identity) -> Result<(), String> {
    let response = endpoint.get(Some(identity), "/readyz")?;
    if response.status == 200 { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
}
