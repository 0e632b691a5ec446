//! A gateway that runs as its pod would: with the configuration, the Secrets and the rights that the chart installs into a
//! real kube-apiserver.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::TestFn;
use super::cluster_registry::{ClusterFixture, FLUNDERS};
use super::install::{Installer, NAMESPACE, project};
use crate::environment::{HttpsEndpoint, Process, TestEnvironment, eventually, free_port};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("install: gateway of the chart, with its configuration and rights", installed_gateway_serves),
    ("install: default values leave the condition Available to kube-apiserver", default_values_write_no_status),
];

/// Names of the objects of the release.
const NAME: &str = "gateway-narthex";
const SERVING: &str = "gateway-narthex-serving";
const FRONT_PROXY: &str = "gateway-narthex-front-proxy";

/// The release of the chart in [`NAMESPACE`], and the directory that stands for the file system of its pod.
struct Release<'a> {
    installer: &'a Installer<'a>,
    directory: PathBuf,
}

impl Release<'_> {
    fn helm(&self, command: &str, arguments: &[&str]) -> String {
        let chart = project("deploy/helm/narthex");
        let common = [command, "gateway", chart.to_str().unwrap(), "--namespace", NAMESPACE];
        self.installer.run_ok("helm", &[&common, arguments].concat(), "")
    }

    fn object(&self, resource: &str, name: &str) -> Value {
        self.installer.json(&["get", resource, name, "--namespace", NAMESPACE])
    }

    /// Writes the files of a Secret, as the kubelet does.
    fn mount_secret(&self, name: &str, mount: &str) {
        use base64::Engine as _;
        let directory = self.directory.join(mount);
        std::fs::create_dir_all(&directory).unwrap();
        for (file, data) in self.object("secret", name)["data"].as_object().unwrap() {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap()).unwrap();
            std::fs::write(directory.join(file), bytes).unwrap();
        }
    }

    /// Starts the gateway with the ConfigMap, the Secrets and the ServiceAccount of the release, at paths of this test.
    fn start_as_pod(&self, front_proxy: &str) -> PodGateway {
        let directory = &self.directory;
        let token = self.installer.kubectl(&["create", "token", NAME, "--namespace", NAMESPACE], "");
        let cluster = &self.installer.fixture.cluster;
        let kubeconfig = directory.join("in-cluster.kubeconfig");
        let document = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "pod",
            "clusters": [{"name": "pod", "cluster": {
                "server": cluster.endpoint.url(), "certificate-authority": cluster.endpoint.authority}}],
            "users": [{"name": "pod", "user": {"token": token.trim()}}],
            "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
        });
        std::fs::write(&kubeconfig, document.to_string()).unwrap();
        self.mount_secret(SERVING, "serving");
        self.mount_secret(front_proxy, "front-proxy");
        let map = self.object("configmap", NAME);
        let (port, admin_address) = (free_port(), format!("127.0.0.1:{}", free_port()));
        let config = map["data"]["gateway.yaml"].as_str().unwrap();
        let config = [
            ("in-cluster", kubeconfig.to_str().unwrap()),
            ("/etc/narthex", directory.to_str().unwrap()),
            ("/var/lib/narthex", directory.join("data").to_str().unwrap()),
            ("bindAddress: 0.0.0.0", "bindAddress: 127.0.0.1"),
            ("securePort: 6443", &format!("securePort: {port}")),
            ("adminAddress: :6480", &format!("adminAddress: {admin_address}")),
        ]
        .iter()
        .fold(config.to_owned(), |text, (from, to)| {
            assert!(text.contains(from), "{from} is missing in {config}");
            text.replace(from, to)
        });
        let file = directory.join("gateway.yaml");
        std::fs::write(&file, config).unwrap();
        let arguments = ["gateway".to_owned(), format!("--config={}", file.display())];
        let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
        let mut process = Process::start("installed-gateway", program, &arguments, directory);
        let endpoint = HttpsEndpoint::new(port, &directory.join("serving/ca.crt"));
        process.wait_until(|| {
            let response = endpoint.get(Some(cluster.admin()), "/readyz")?;
            if response.status == 200 { Ok(()) } else { Err(response.text()) }
        });
        PodGateway { process, endpoint, admin_address }
    }

    /// Waits until the gateway is the leader, which writes the condition `Available` if it may.
    fn wait_for_leader(&self) {
        let fixture = self.installer.fixture;
        eventually("the Lease of the leader", || {
            let response = fixture.cluster.endpoint.get(
                Some(fixture.admin()),
                &format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{NAME}"),
            )?;
            if response.json()["spec"]["holderIdentity"].is_string() { Ok(()) } else { Err(response.text()) }
        });
    }
}

/// A gateway with what a pod of the release has.
struct PodGateway {
    process: Process,
    endpoint: HttpsEndpoint,
    admin_address: String,
}

fn narthex(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_narthex")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The chart is installed, upgraded and removed; in between runs its gateway.
fn installed_gateway_serves(environment: &TestEnvironment) {
    let directory = environment.scratch("install-gateway");
    let fixture = ClusterFixture::set(directory.clone());
    let installer = Installer::new(&fixture, directory.clone());
    let front_proxy = &fixture.cluster.authorities.front_proxy;
    let (certificate, key) =
        (format!("--cert={}", front_proxy.certificate.display()), format!("--key={}", front_proxy.key.display()));
    installer.kubectl(&["create", "secret", "tls", "front-proxy", "--namespace", NAMESPACE, &certificate, &key], "");
    let release = Release { installer: &installer, directory };
    let helm = |command: &str, values: &str| {
        let values = format!("frontProxy.existingSecret=front-proxy,delegate.enabled=true,{values}");
        release.helm(command, &["--set", &values])
    };
    let notes = helm("install", "");
    assert!(notes.contains("https://gateway-narthex.apis.svc:443"), "{notes}");

    let gateway = release.start_as_pod("front-proxy");
    // Authenticated by the authority in the ConfigMap, authorized by SubjectAccessReview, routed by the cluster's APIService.
    for (path, user) in [(FLUNDERS, fixture.cluster.jane()), ("/api/v1/namespaces", fixture.admin())] {
        eventually(path, || {
            let response = gateway.endpoint.get(Some(user), path)?;
            if response.status == 200 { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
        });
    }
    let refused = gateway.endpoint.get(Some(fixture.cluster.jane()), "/api/v1/namespaces").unwrap();
    assert_eq!(refused.status, 403, "{}", refused.text());
    release.wait_for_leader();

    upgrades_keep_certificate_of_same_names(&release, &gateway, helm);
    let log = gateway.process.log();
    // The access log has jane's refused request.
    let mut lines = log.lines().filter(|line| !line.contains(" access "));
    assert!(lines.all(|line| !line.contains("forbidden")), "{log}");
    drop(gateway);

    let deployment = release.object("deployment", NAME);
    assert_eq!(deployment["spec"]["replicas"], 3);
    // The group of the pod reads the keys, and nobody else.
    let volumes = deployment["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
    let modes = volumes.iter().filter_map(|volume| volume["secret"]["defaultMode"].as_u64()).collect::<Vec<_>>();
    assert_eq!(modes, [0o440, 0o440]);
    installer.run_ok("helm", &["uninstall", "gateway", "--namespace", NAMESPACE], "");
    let kinds = "all,secrets,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets";
    let selector = "--selector=app.kubernetes.io/instance=gateway";
    let left = installer.json(&["get", kinds, "--all-namespaces", selector]);
    assert_eq!(left["items"], json!([]));
}

/// The generated serving certificate is issued anew when its names change, and only then. The running gateway serves it.
fn upgrades_keep_certificate_of_same_names(
    release: &Release<'_>,
    gateway: &PodGateway,
    helm: impl Fn(&str, &str) -> String,
) {
    let serving = || release.object("secret", SERVING)["data"].clone();
    let file = release.directory.join("serving/tls.crt");
    let names = || narthex(&["pki", "show", file.to_str().unwrap()]);
    let installed = serving();
    assert!(names().contains("gateway-narthex.apis.svc"), "{}", names());
    helm("upgrade", "replicaCount=3");
    assert_eq!(serving(), installed, "an upgrade keeps the generated certificate");

    helm("upgrade", "replicaCount=3,servingCertificate.extraDNSNames={gateway.example.com,apis.example.com}");
    let reissued = serving();
    for data in ["ca.crt", "tls.crt", "tls.key"] {
        assert_ne!(reissued[data], installed[data], "{data} of a certificate with more names");
    }
    assert!(!names().contains("gateway.example.com"), "{}", names());
    release.mount_secret(SERVING, "serving");
    for name in ["gateway-narthex.apis.svc", "gateway.example.com", "apis.example.com"] {
        assert!(names().contains(name), "{name}: {}", names());
    }
    // The client of the test trusts the new authority only.
    eventually("the new certificate to be served", || {
        let response = gateway.endpoint.get(None, "/readyz")?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });

    // The order of the names does not matter.
    helm("upgrade", "replicaCount=3,servingCertificate.extraDNSNames={apis.example.com,gateway.example.com}");
    assert_eq!(serving(), reissued, "an upgrade keeps the certificate of the same names");
    helm("upgrade", "replicaCount=3");
    assert_ne!(serving(), reissued, "a certificate with fewer names");
}

/// The chart without values, beside an extension API server that trusts only the cluster's own front-proxy authority:
/// the generated pair is refused, and kube-apiserver's condition `Available` stays.
fn default_values_write_no_status(environment: &TestEnvironment) {
    const API_SERVICE: &str = "v1alpha1.wardle.example.com";
    let directory = environment.scratch("install-default-values");
    // The aggregator of kube-apiserver connects to the endpoints of the Service: there is no kube-proxy.
    let fixture = ClusterFixture::set_with(directory.clone(), &["--enable-aggregator-routing=true".to_owned()]);
    let installer = Installer::new(&fixture, directory.clone());
    let api_service = || installer.json(&["get", "apiservice", API_SERVICE]);
    let is_available = |object: &Value| {
        let conditions = object["status"]["conditions"].as_array();
        conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Available" && one["status"] == "True"))
    };
    let (cluster, jane) = (&fixture.cluster, fixture.cluster.jane());
    let before = eventually("kube-apiserver to find the extension API server", || {
        let object = api_service();
        if is_available(&object) { Ok(object) } else { Err(object["status"].to_string()) }
    });
    assert_eq!(cluster.endpoint.get(Some(jane), FLUNDERS).unwrap().status, 200);

    let release = Release { installer: &installer, directory };
    let notes = release.helm("install", &[]);
    assert!(notes.contains("set frontProxy.existingSecret to the cluster's"), "{notes}");
    let front_proxy = release.object("secret", FRONT_PROXY)["data"].clone();
    let gateway = release.start_as_pod(FRONT_PROXY);

    // The gateway does not send requests to a server that refuses its certificate, and says why.
    let hint = "bad status 401: the backend does not accept our front-proxy certificate";
    let response = eventually("the refusal", || {
        let response = gateway.endpoint.get(Some(jane), FLUNDERS)?;
        if response.status == 503 && response.text().contains(hint) {
            Ok(response.json())
        } else {
            Err(format!("{} {}", response.status, response.text()))
        }
    });
    assert_eq!(response["details"]["causes"][0]["reason"], "FailedDiscoveryCheck", "{response}");
    let status = narthex(&["status", "--output=wide", "--admin-address", &gateway.admin_address]);
    assert!(status.contains(API_SERVICE) && status.contains(hint), "{status}");
    assert!(gateway.process.log().contains(hint), "{}", gateway.process.log());
    let metrics = gateway.endpoint.get(Some(fixture.admin()), "/metrics").unwrap().text();
    assert!(metrics.contains(&format!("aggregator_unavailable_apiservice{{name=\"{API_SERVICE}\"}} 1")), "{metrics}");

    // As the leader it would write its own finding. The chart does not grant that right with the generated pair.
    release.wait_for_leader();
    eventually("the write to be refused", || {
        let log = gateway.process.log();
        if log.contains("writing APIService status forbidden") { Ok(()) } else { Err(log) }
    });
    let after = api_service();
    assert_eq!((&after["status"], &after["metadata"]), (&before["status"], &before["metadata"]));
    assert!(is_available(&after), "{after}");
    assert_eq!(cluster.endpoint.get(Some(jane), FLUNDERS).unwrap().status, 200);

    release.helm("upgrade", &["--set", "replicaCount=3"]);
    assert_eq!(release.object("secret", FRONT_PROXY)["data"], front_proxy, "an upgrade keeps the front-proxy pair");
}
