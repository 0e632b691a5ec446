//! sample-apiserver: group `wardle.example.com`, v1alpha1 (flunders, fischers) and v1beta1 (flunders).

use std::path::{Path, PathBuf};

use super::certificates::Identity;
use super::cluster::{Cluster, is_ready};
use super::http::Door;
use super::process::Process;
use super::{Network, eventually, free_port, peer};

/// A running sample-apiserver and how to start it again.
pub(crate) struct Extension {
    pub(crate) door: Door,
    pub(crate) process: Process,
    name: String,
    arguments: Vec<String>,
    directory: PathBuf,
    audit_log: PathBuf,
    admin: Identity,
}

impl Extension {
    /// `name` tells servers apart: it is the Service's name, in a namespace called the same, and where
    /// in etcd the objects live.
    pub(crate) fn start(cluster: &Cluster, directory: &Path, name: &str) -> Extension {
        Extension::start_with(cluster, &cluster.admin_kubeconfig, directory, name, free_port(), &[])
    }

    /// As [`NamedExtension::start`], at `port`, with `more` flags than all have, or other values for them, and with
    /// `kubeconfig` for all that it asks of a cluster.
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
            door: Door::new(port, &cluster.authorities.backend.file),
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

    /// As [`NamedExtension::start`], in a network of its own, where it is ready some time later at `port` of that loopback.
    pub(crate) fn start_inside(
        network: &Network,
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        port: u16,
    ) -> Process {
        let outside = |url: &str| {
            let port = url.rsplit_once(':').and_then(|(_, port)| port.parse().ok()).expect("an URL with a port");
            format!("{}:{}", network.host, network.let_out_to(port))
        };
        let kubeconfig = std::fs::read_to_string(&cluster.admin_kubeconfig).unwrap();
        let mut kubeconfig: serde_json::Value = serde_json::from_str(&kubeconfig).unwrap();
        let reached = &mut kubeconfig["clusters"][0]["cluster"];
        reached["server"] = format!("https://{}", outside(&cluster.door.url())).into();
        reached["tls-server-name"] = "localhost".into();
        let file = directory.join(format!("{name}-inside.kubeconfig"));
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let etcd = format!("http://{}", outside(&cluster.etcd_url));
        let (arguments, _) = arguments(cluster, &etcd, &file, directory, name, port);
        network.start(name, &peer("sample-apiserver"), &arguments, directory)
    }

    /// The same server on the same port, after it was killed.
    pub(crate) fn start_again(&mut self) {
        self.process = Process::start(&self.name, &peer("sample-apiserver"), &self.arguments, &self.directory);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let Extension { process, door, admin, .. } = self;
        process.wait_until(|| is_ready(door, admin));
        // Ready does not mean that RBAC and admission have their caches: a request that passes both does.
        process.wait_until(|| {
            let answer = door.get(Some(admin), "/apis/wardle.example.com/v1alpha1/flunders")?;
            if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
        });
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a request whose path contains `path` was written down so far.
    pub(crate) fn has_audited(&self, path: &str) -> bool {
        std::fs::read_to_string(&self.audit_log).unwrap().contains(path)
    }

    /// The audit event, once written, of the request whose path contains `path`.
    pub(crate) fn audited(&self, path: &str) -> serde_json::Value {
        eventually(&format!("an audit event for {path}"), || {
            let log = std::fs::read_to_string(&self.audit_log).map_err(|error| error.to_string())?;
            log.lines()
                .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
                .rfind(|event| event["requestURI"].as_str().is_some_and(|uri| uri.contains(path)))
                .ok_or_else(|| "not in the log".to_owned())
        })
    }
}

/// What it is started with, and where it writes what people do.
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
