//! `narthex gateway` in front of an extension API server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::certificates::Identity;
use super::cluster::{Cluster, is_ready};
use super::extension::Extension;
use super::http::HttpsEndpoint;
use super::process::{Process, TIMEOUT};
use super::{eventually, free_port};

/// Flags of an embedded API server beside a kube-apiserver without a kube-controller-manager ([`Cluster::start`]): no object
/// is made or collected by a controller that a kube-apiserver does not have.
pub(crate) const LIKE_KUBE_APISERVER: [(&str, &str); 2] = [
    ("--controllers", "namespace-controller,clusterrole-aggregation-controller"),
    ("--disable-admission-plugins", "ServiceAccount"),
];

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) endpoint: HttpsEndpoint,
    pub(crate) process: Process,
    admin: Identity,
    name: String,
    arguments: Vec<OsString>,
    directory: PathBuf,
}

impl Gateway {
    /// Starts a gateway with additional flags `more` and waits until its APIServices are available.
    pub(crate) fn start(
        cluster: &Cluster,
        extension: &Extension,
        directory: &Path,
        name: &str,
        more: &[(&str, &str)],
    ) -> Gateway {
        let gateway =
            Gateway::start_unready(cluster, (extension.name(), extension.endpoint.port), directory, name, more);
        gateway.wait_until_available("True");
        gateway
    }

    /// Like [`Gateway::start`], without waiting for the extension API server, given by name and port.
    pub(crate) fn start_unready(
        cluster: &Cluster,
        extension: (&str, u16),
        directory: &Path,
        name: &str,
        more: &[(&str, &str)],
    ) -> Gateway {
        let registry = directory.join(format!("{name}-registry"));
        let registry = write_registry(&registry, extension, &cluster.authorities.backend.file);
        let registry = registry.to_str().unwrap();
        Gateway::start_without_registry(cluster, directory, name, &[more, &[("--registry-dir", registry)]].concat())
    }

    /// Starts a gateway with no registry except by the flags `more`.
    pub(crate) fn start_without_registry(
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        more: &[(&str, &str)],
    ) -> Gateway {
        let authorities = &cluster.authorities;
        let port = free_port();
        let serving = authorities.serving.server(name, &["127.0.0.1", "localhost"]);
        let mut arguments: Vec<OsString> = vec!["gateway".into()];
        for (flag, file) in [
            ("--client-ca-file", authorities.client.file.as_path()),
            ("--requestheader-client-ca-file", authorities.request_header.file.as_path()),
            ("--proxy-client-cert-file", authorities.front_proxy.certificate.as_path()),
            ("--proxy-client-key-file", authorities.front_proxy.key.as_path()),
            ("--tls-cert-file", serving.certificate.as_path()),
            ("--tls-private-key-file", serving.key.as_path()),
            ("--data-dir", directory.join(format!("{name}-data")).as_path()),
        ] {
            arguments.extend([flag.into(), file.into()]);
        }
        let port_text = port.to_string();
        for (flag, value) in [
            ("--requestheader-allowed-names", "front-proxy-client"),
            ("--bind-address", "127.0.0.1"),
            ("--secure-port", port_text.as_str()),
            ("--admin-address", "127.0.0.1:0"),
            ("--access-log", "all"),
        ]
        .iter()
        .chain(more)
        {
            arguments.push(format!("{flag}={value}").into());
        }
        let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
        let mut gateway = Gateway {
            endpoint: HttpsEndpoint::new(port, &authorities.serving.file),
            process: Process::start(name, program, &arguments, directory),
            admin: authorities.admin.clone(),
            name: name.to_owned(),
            arguments,
            directory: directory.to_owned(),
        };
        let Gateway { process, endpoint, admin, .. } = &mut gateway;
        process.wait_until(|| is_ready(endpoint, admin));
        gateway
    }

    /// Starts the gateway again on the same port, after its process has ended or was killed.
    pub(crate) fn restart(&mut self) {
        self.process.wait();
        let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
        self.process = Process::start(&self.name, program, &self.arguments, &self.directory);
        let Gateway { process, endpoint, admin, .. } = self;
        process.wait_until(|| is_ready(endpoint, admin));
    }

    /// Starts the embedded API server with an empty store, or the one that an earlier gateway of that name left.
    pub(crate) fn start_embedded_api(
        cluster: &Cluster,
        directory: &Path,
        name: &str,
        more: &[(&str, &str)],
    ) -> Gateway {
        Gateway::start_without_registry(cluster, directory, name, &[&[("--embedded-api", "true")], more].concat())
    }

    /// Waits until both APIServices report `Available` as `status`.
    pub(crate) fn wait_until_available(&self, status: &str) {
        eventually(&format!("Available={status} within {TIMEOUT:?}"), || {
            let response = self.endpoint.get(Some(&self.admin), "/apis/apiregistration.k8s.io/v1/apiservices")?;
            if response.status != 200 {
                return Err(format!("{} {}", response.status, response.text()));
            }
            let document = response.json();
            let items = document["items"].as_array().cloned().unwrap_or_default();
            let agreed =
                items.iter().filter(|item| item["metadata"]["name"].as_str().is_some_and(is_wardle)).all(|item| {
                    let conditions = item["status"]["conditions"].as_array().cloned().unwrap_or_default();
                    conditions.iter().any(|condition| condition["type"] == "Available" && condition["status"] == status)
                });
            if agreed && items.len() >= 2 { Ok(()) } else { Err(document.to_string()) }
        });
    }
}

fn is_wardle(name: &str) -> bool {
    name.ends_with(".wardle.example.com")
}

/// Writes a registry directory: two APIServices, their Service, its EndpointSlice on loopback.
fn write_registry(directory: &Path, (name, port): (&str, u16), authority: &Path) -> PathBuf {
    std::fs::create_dir_all(directory).unwrap();
    let authority = std::fs::read_to_string(authority).unwrap();
    let manifests = include_str!("../fixtures/registry.yaml")
        .replace("SERVICE", name)
        .replace("PORT", &port.to_string())
        .replace("CA_BUNDLE", &base64(&authority));
    std::fs::write(directory.join("wardle.yaml"), manifests).unwrap();
    directory.to_owned()
}

/// Adds an APIService to the registry directory `registry`. Its Service `name`, in a namespace of the same name, has
/// one endpoint at `port` on loopback with a certificate of `authority`.
pub(crate) fn register(registry: &Path, (group, version): (&str, &str), (name, port): (&str, u16), authority: &Path) {
    let metadata = json!({"name": name, "namespace": name});
    let authority = std::fs::read_to_string(authority).unwrap();
    let documents = [
        json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": {"name": format!("{version}.{group}"), "annotations": {"narthex.dev/probe-interval": "1s"}},
            "spec": {"group": group, "version": version, "service": metadata, "caBundle": base64(&authority),
                "groupPriorityMinimum": 100, "versionPriority": 100}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "https", "port": 443}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": {"name": format!("{name}-1"), "namespace": name,
                "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4", "ports": [{"name": "https", "port": port}],
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}]}),
    ];
    let text: String = documents.iter().map(|document| format!("{document}\n---\n")).collect();
    std::fs::create_dir_all(registry).unwrap();
    std::fs::write(registry.join(format!("{version}.{group}.yaml")), text).unwrap();
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
