//! sample-apiserver: group `wardle.example.com`, v1alpha1 (flunders, fischers) and v1beta1 (flunders).

use std::path::{Path, PathBuf};

use super::certificates::Identity;
use super::cluster::{Cluster, is_ready};
use super::http::HttpsEndpoint;
use super::process::Process;
use super::{Network, eventually, free_port, peer};

/// A running sample-apiserver that can be restarted.
pub(crate) struct Extension {
    pub(crate) endpoint: HttpsEndpoint,
    pub(crate) process: Process,
    name: String,
    arguments: Vec<String>,
    directory: PathBuf,
    audit_log: PathBuf,
    admin: Identity,
}

impl Extension {
    /// Starts a server. `name` is the name of its Service and namespace, and part of its etcd prefix.
    pub(crate) fn start(cluster: &Cluster, directory: &Path, name: &str) -> Extension {
        Extension::start_with(cluster, &cluster.admin_kubeconfig, directory, name, free_port(), &[])
    }

    /// Like [`Extension::start`], at `port`, with additional or overriding flags `more`, and with `kubeconfig` for
    /// delegated authentication and authorization.
    pub(crate) fn start_with(
        cluster: &Cluster,
        kubeconfig: &Path,
        directory: &Path,
        name: &str,
        port: u16,
        more: &[&str],
    ) -> Extension {
        let (mut arguments, audit_log) = arguments(cluster, &cluster.etcd_url, kubeconfig, directory, name, port);
        arguments.retain(|given| !more.iter().any(|more| more.split('=').next() == given.split('=').next()));
        arguments.extend(more.iter().map(|more| (*more).to_owned()));
        let mut extension = Extension {
            endpoint: HttpsEndpoint::new(port, &cluster.authorities.backend.file),
            process: Process::start(name, &peer("sample-apiserver"), &arguments, directory),
            name: name.to_owned(),
            arguments,
            directory: directory.to_owned(),
            audit_log,
            admin: cluster.admin().clone(),
        };
        extension.wait_until_ready();
        extension
    }

    /// Like [`Extension::start`], in a network namespace, at `port` of its loopback. It may not be ready on return.
    pub(crate) fn start_in_network(
        network: &Network,
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        port: u16,
    ) -> Process {
        let forwarded = |url: &str| {
            let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("an URL with a port");
            format!("{}:{}", network.host, network.forward_to_host(port))
        };
        let kubeconfig = std::fs::read_to_string(&cluster.admin_kubeconfig).unwrap();
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        let cluster_entry = &mut kubeconfig["clusters"][0]["cluster"];
        cluster_entry["server"] = format!("https://{}", forwarded(&cluster.endpoint.url())).into();
        cluster_entry["tls-server-name"] = "localhost".into();
        let file = directory.join(format!("{name}-inside.kubeconfig"));
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let etcd = format!("http://{}", forwarded(&cluster.etcd_url));
        let (arguments, _) = arguments(cluster, &etcd, &file, directory, name, port);
        network.start(name, &peer("sample-apiserver"), &arguments, directory)
    }

    /// Starts the server again on the same port after it was killed.
    pub(crate) fn restart(&mut self) {
        self.process = Process::start(&self.name, &peer("sample-apiserver"), &self.arguments, &self.directory);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let Extension { process, endpoint, admin, .. } = self;
        process.wait_until(|| is_ready(endpoint, admin));
        // The server reports ready before the RBAC and admission caches are filled; a successful list needs both.
        process.wait_until(|| {
            let response = endpoint.get(Some(admin), "/apis/wardle.example.com/v1alpha1/flunders")?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the audit log has a request whose path contains `path`.
    pub(crate) fn has_audit_event(&self, path: &str) -> bool {
        std::fs::read_to_string(&self.audit_log).unwrap().contains(path)
    }

    /// Waits for the audit event of the request whose path contains `path`.
    pub(crate) fn audit_event(&self, path: &str) -> serde_json::Value {
        eventually(&format!("an audit event for {path}"), || {
            let log = std::fs::read_to_string(&self.audit_log).map_err(|error| error.to_string())?;
            log.lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
                .rfind(|event| event["requestURI"].as_str().is_some_and(|uri| uri.contains(path)))
                .ok_or_else(|| "not in the log".to_owned())
        })
    }
}

/// The server's flags and its audit log.
fn arguments(
    cluster: &Cluster,
    etcd: &str,
    kubeconfig: &Path,
    directory: &Path,
    name: &str,
    port: u16,
) -> (Vec<String>, PathBuf) {
    let service = format!("{name}.{name}.svc");
    let serving = cluster.authorities.backend.server(name, &[&service, "127.0.0.1", "localhost"]);
    let audit_log = directory.join("logs").join(format!("{name}-audit.log"));
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/fixtures/audit-policy.yaml");
    let kubeconfig = kubeconfig.display();
    let arguments = vec![
        format!("--etcd-servers={etcd}"),
        format!("--etcd-prefix=/registry/{name}"),
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        format!("--tls-cert-file={}", serving.certificate.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", audit_log.display()),
        "--audit-log-mode=blocking".to_owned(),
    ];
    (arguments, audit_log)
}
