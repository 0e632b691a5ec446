//! The charts, the kustomization and the Prometheus rules of `deploy/`, by Helm, kubeconform, promtool and a real
//! kube-apiserver; and a gateway with the configuration and the rights that the chart installs.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::TestFn;
use super::cluster_registry::{ClusterFixture, FLUNDERS};
use crate::environment::{HttpsEndpoint, Process, TestEnvironment, eventually, free_port, kubectl_run, peer};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("install: charts and kustomization accepted by kubeconform and kube-apiserver", manifests_are_accepted),
    ("install: gateway of the chart, with its configuration and rights", installed_gateway_serves),
    ("install: alerts fire as tested", alerts_are_tested),
];

const NAMESPACE: &str = "apis";

/// Values that the chart is rendered with: what for, and arguments of `--set`.
const VALUES: &[(&str, &[&str])] = &[
    ("defaults", &[]),
    ("one pod at a node port", &["replicaCount=1", "service.type=NodePort", "podDisruptionBudget.enabled=false"]),
    ("load", &["autoscaling.enabled=true", "networkPolicy.enabled=true", "priorityClassName=system-cluster-critical"]),
    ("cert-manager", &["servingCertificate.certManager.enabled=true", ISSUER]),
    (
        "certificates of the cluster",
        &["servingCertificate.existingSecret=a", "frontProxy.existingSecret=b", "delegate.enabled=true"],
    ),
    ("manifests alone", &["registry.cluster=false", "registry.manifests.wardle\\.yaml=kind: APIService"]),
    (
        "monitoring",
        &[
            "serviceMonitor.enabled=true",
            "prometheusRule.enabled=true",
            "prometheusRule.runbookURLPrefix=https://git.example.com/narthex/",
            "serviceMonitor.labels.release=p",
        ],
    ),
    ("rights of somebody else", &["serviceAccount.create=false", "serviceAccount.name=other", "rbac.create=false"]),
    ("no reviews", &["authentication.cluster=false", "authorization.cluster=false"]),
    (
        "all that can be on",
        &[
            "autoscaling.enabled=true",
            "networkPolicy.enabled=true",
            "serviceMonitor.enabled=true",
            "prometheusRule.enabled=true",
            "frontProxy.existingSecret=b",
            "delegate.enabled=true",
            "servingCertificate.certManager.enabled=true",
            ISSUER,
            "servingCertificate.extraDNSNames={gateway.example.com}",
            "podAnnotations.a=b",
            "podLabels.c=d",
            "config.requestTimeout=30s",
            "nodeSelector.kubernetes\\.io/os=linux",
        ],
    ),
];
const ISSUER: &str = "servingCertificate.certManager.issuerRef.name=ours";

/// Values that are refused, and a part of the message.
const REFUSED: &[(&str, &str)] = &[
    ("registry.cluster=false", "set registry.cluster, registry.manifests or delegate.enabled"),
    ("delegate.enabled=true", "delegate.enabled needs frontProxy.existingSecret"),
    ("servingCertificate.certManager.enabled=true", "needs servingCertificate.certManager.issuerRef.name"),
    ("replicaCont=3", "additional properties 'replicaCont' not allowed"),
    ("shutdownDelayDuration=10", "shutdownDelayDuration"),
    ("image.pullPolicy=Sometimes", "pullPolicy"),
    ("prometheusRule.runbookURLPrefix=https://git.example.com", "runbookURLPrefix"),
];

/// Custom resources that the chart may create.
const DEFINITIONS: [&str; 3] = [
    "cert-manager/cert-manager.io_certificates",
    "prometheus-operator/monitoring.coreos.com_servicemonitors",
    "prometheus-operator/monitoring.coreos.com_prometheusrules",
];

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Helm and kubectl as cluster admin of one cluster.
struct Installer<'a> {
    fixture: &'a ClusterFixture,
    home: PathBuf,
}

impl Installer<'_> {
    fn new(fixture: &ClusterFixture, home: PathBuf) -> Installer<'_> {
        let installer = Installer { fixture, home };
        installer.fixture.cluster.create_namespace(NAMESPACE);
        // Its violations become warnings, which no command here may print.
        installer.kubectl(&["label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted"], "");
        installer
    }

    fn run(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(peer(program));
        command.args(arguments).env("HOME", &self.home).env("KUBECONFIG", &self.fixture.cluster.admin_kubeconfig);
        kubectl_run(command, input)
    }

    fn run_ok(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let output = self.run(program, arguments, input);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {errors}{}",
            String::from_utf8_lossy(&output.stdout)
        );
        assert!(!errors.contains("Warning"), "{program} {arguments:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.run_ok("kubectl", arguments, input)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.kubectl(&[arguments, &["--output=json"]].concat(), "")).unwrap()
    }

    fn template(&self, chart: &Path, values: &[&str]) -> Output {
        let chart = chart.to_str().unwrap();
        let mut arguments = vec!["template", "release", chart, "--namespace", NAMESPACE];
        for value in values {
            arguments.extend(["--set", value]);
        }
        self.run("helm", &arguments, "")
    }

    /// Kubeconform and kube-apiserver accept the manifests, and their pods are confined.
    fn check(&self, what: &str, manifests: &str, schemas: &Path) {
        let location =
            format!("{}/{{{{.Group}}}}_{{{{.ResourceAPIVersion}}}}_{{{{.ResourceKind}}}}.json", schemas.display());
        let summary =
            self.run_ok("kubeconform", &["-strict", "-summary", "-schema-location", &location, "-"], manifests);
        assert!(summary.contains("Invalid: 0, Errors: 0, Skipped: 0"), "{what}: {summary}");
        let accepted = self.kubectl(&["apply", "--dry-run=server", "--validate=strict", "--filename=-"], manifests);
        assert!(accepted.lines().all(|line| line.ends_with("(server dry run)")), "{what}: {accepted}");
        assert_eq!(
            accepted.lines().filter(|line| line.starts_with("deployment.apps/")).count(),
            1,
            "{what}: {accepted}"
        );
        for hardening in ["runAsNonRoot: true", "readOnlyRootFilesystem: true", "allowPrivilegeEscalation: false"] {
            assert!(manifests.contains(hardening), "{what}: {hardening} is missing in {manifests}");
        }
    }
}

fn manifests_are_accepted(environment: &TestEnvironment) {
    let directory = environment.scratch("install-manifests");
    let fixture = ClusterFixture::set(directory.clone());
    let installer = Installer::new(&fixture, directory.clone());
    for name in DEFINITIONS {
        let file = project(&format!("tests/interop/fixtures/crds/{name}.yaml.gz"));
        let text = Command::new("gzip").args(["--decompress", "--stdout"]).arg(file).output().unwrap();
        installer.kubectl(&["create", "--filename=-"], std::str::from_utf8(&text.stdout).unwrap());
    }
    installer.kubectl(&["wait", "--for=condition=Established", "crd", "--all"], "");
    let schemas = directory.join("schemas");
    eventually("the OpenAPI document with the custom resources", || {
        write_schemas(&fixture, &schemas);
        let last = schemas.join("monitoring.coreos.com_v1_servicemonitor.json");
        if last.exists() { Ok(()) } else { Err("not yet".to_owned()) }
    });

    let chart = project("deploy/helm/narthex");
    let lint = installer.run_ok("helm", &["lint", "--strict", chart.to_str().unwrap()], "");
    assert!(lint.contains("1 chart(s) linted, 0 chart(s) failed"), "{lint}");
    for (what, values) in VALUES {
        let output = installer.template(&chart, values);
        assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        let manifests = std::str::from_utf8(&output.stdout).unwrap();
        installer.check(what, manifests, &schemas);
        // A gateway whose certificate backends may refuse does not say that they are unavailable.
        let has_own_pair = values.iter().any(|value| value.starts_with("frontProxy.existingSecret="));
        assert_eq!(manifests.contains("apiservices/status"), has_own_pair, "{what}");
    }
    for (value, expected) in REFUSED {
        let output = installer.template(&chart, &[value]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{value}: {errors}");
    }

    // The library chart, in a chart that uses it.
    let library = directory.join("library");
    copy(&project("tests/interop/fixtures/sidecar-chart"), &library);
    copy(&project("deploy/helm/narthex-sidecar"), &library.join("charts/narthex-sidecar"));
    let output = installer.template(&library, &[]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    installer.check("sidecar", std::str::from_utf8(&output.stdout).unwrap(), &schemas);

    let kustomization = project("deploy/kustomize");
    let manifests = installer.kubectl(&["kustomize", kustomization.to_str().unwrap()], "");
    // Objects of a namespace that only the same dry run creates are refused.
    installer.kubectl(&["apply", "--filename", kustomization.join("namespace.yaml").to_str().unwrap()], "");
    // The fixture has roles of these names.
    installer.kubectl(&["delete", "clusterrole,clusterrolebinding", "narthex:registry"], "");
    installer.check("kustomization", &manifests, &schemas);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().unwrap()).unwrap();
    assert!(Command::new("cp").arg("-r").args([from, to]).status().unwrap().success());
}

/// Writes a JSON schema for each kind that the kube-apiserver describes in OpenAPI v2, with names by which kubeconform is
/// told to find them. Fields that are not described are refused.
fn write_schemas(fixture: &ClusterFixture, directory: &Path) {
    std::fs::create_dir_all(directory).unwrap();
    let document = fixture.cluster.endpoint.get(Some(fixture.admin()), "/openapi/v2").unwrap().json();
    let mut definitions = document["definitions"].clone();
    for definition in definitions.as_object_mut().unwrap().values_mut() {
        make_strict(definition);
    }
    for (name, definition) in document["definitions"].as_object().unwrap() {
        for kind in definition["x-kubernetes-group-version-kind"].as_array().into_iter().flatten() {
            let text = |field: &str| kind[field].as_str().unwrap().to_lowercase();
            // For the core group kubeconform has the version in place of the group.
            let group = if text("group").is_empty() { text("version") } else { text("group") };
            let file = format!("{group}_{}_{}.json", text("version"), text("kind"));
            let schema = json!({"$ref": format!("definitions.json#/definitions/{name}")});
            std::fs::write(directory.join(file), schema.to_string()).unwrap();
        }
    }
    std::fs::write(directory.join("definitions.json"), json!({"definitions": definitions}).to_string()).unwrap();
}

fn make_strict(schema: &mut Value) {
    if schema["format"] == "int-or-string" {
        *schema = json!({"type": ["string", "integer"]});
    }
    if schema["properties"].is_object() && schema["x-kubernetes-preserve-unknown-fields"] != true {
        schema["additionalProperties"] = Value::Bool(false);
    }
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(|properties| properties.values_mut()).for_each(make_strict);
    for part in ["items", "additionalProperties"] {
        schema.get_mut(part).filter(|schema| schema.is_object()).into_iter().for_each(make_strict);
    }
}

/// The chart is installed, upgraded and removed; in between runs a gateway as its pod would, with the same configuration
/// and the token of its ServiceAccount.
fn installed_gateway_serves(environment: &TestEnvironment) {
    let directory = environment.scratch("install-gateway");
    let fixture = ClusterFixture::set(directory.clone());
    let installer = Installer::new(&fixture, directory.clone());
    let chart = project("deploy/helm/narthex");
    let authorities = &fixture.cluster.authorities;
    let pair = |name: &str| {
        let (certificate, key) = (&authorities.front_proxy.certificate, &authorities.front_proxy.key);
        let (certificate, key) = (format!("--cert={}", certificate.display()), format!("--key={}", key.display()));
        installer.kubectl(&["create", "secret", "tls", name, "--namespace", NAMESPACE, &certificate, &key], "");
    };
    pair("front-proxy");
    let install = |command: &str, more: &[&str]| {
        let settings = ["--set", "frontProxy.existingSecret=front-proxy,delegate.enabled=true"];
        let arguments = [&[command, "gateway", chart.to_str().unwrap(), "--namespace", NAMESPACE], &settings[..], more];
        installer.run_ok("helm", &arguments.concat(), "")
    };
    let notes = install("install", &[]);
    assert!(notes.contains("https://gateway-narthex.apis.svc:443"), "{notes}");
    let secret = || installer.json(&["get", "secret", "gateway-narthex-serving", "--namespace", NAMESPACE]);
    let serving = secret();

    let (mut process, endpoint) = start_as_pod(&installer, &directory, &serving);
    process.wait_until(|| {
        let response = endpoint.get(Some(fixture.admin()), "/readyz")?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    // Authenticated by the authority in the ConfigMap, authorized by SubjectAccessReview, routed by the cluster's APIService.
    for (path, user) in [(FLUNDERS, fixture.cluster.jane()), ("/api/v1/namespaces", fixture.admin())] {
        eventually(path, || {
            let response = endpoint.get(Some(user), path)?;
            if response.status == 200 { Ok(()) } else { Err(format!("{} {}", response.status, response.text())) }
        });
    }
    let refused = endpoint.get(Some(fixture.cluster.jane()), "/api/v1/namespaces").unwrap();
    assert_eq!(refused.status, 403, "{}", refused.text());
    eventually("the Lease of the leader", || {
        let response = fixture.cluster.endpoint.get(
            Some(fixture.admin()),
            &format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/gateway-narthex"),
        )?;
        if response.json()["spec"]["holderIdentity"].is_string() { Ok(()) } else { Err(response.text()) }
    });
    assert!(!process.log().contains("forbidden"), "{}", process.log());
    drop(process);

    install("upgrade", &["--set", "replicaCount=3"]);
    assert_eq!(secret()["data"], serving["data"], "an upgrade keeps the generated certificate");
    let deployment = installer.json(&["get", "deployment", "gateway-narthex", "--namespace", NAMESPACE]);
    assert_eq!(deployment["spec"]["replicas"], 3);
    installer.run_ok("helm", &["uninstall", "gateway", "--namespace", NAMESPACE], "");
    let kinds = "all,secrets,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets";
    let selector = "--selector=app.kubernetes.io/instance=gateway";
    let left = installer.json(&["get", kinds, "--all-namespaces", selector]);
    assert_eq!(left["items"], json!([]));
}

/// Starts the gateway with the ConfigMap, the Secrets and the ServiceAccount of the release, at paths of this test.
fn start_as_pod(installer: &Installer<'_>, directory: &Path, serving: &Value) -> (Process, HttpsEndpoint) {
    use base64::Engine as _;
    let token = installer.kubectl(&["create", "token", "gateway-narthex", "--namespace", NAMESPACE], "");
    let cluster = &installer.fixture.cluster;
    let kubeconfig = directory.join("in-cluster.kubeconfig");
    let document = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "pod",
        "clusters": [{"name": "pod", "cluster": {
            "server": cluster.endpoint.url(), "certificate-authority": cluster.endpoint.authority}}],
        "users": [{"name": "pod", "user": {"token": token.trim()}}],
        "contexts": [{"name": "pod", "context": {"cluster": "pod", "user": "pod"}}],
    });
    std::fs::write(&kubeconfig, document.to_string()).unwrap();
    for (name, secret) in [
        ("serving", serving.clone()),
        ("front-proxy", installer.json(&["get", "secret", "front-proxy", "--namespace", NAMESPACE])),
    ] {
        std::fs::create_dir_all(directory.join(name)).unwrap();
        for (file, data) in secret["data"].as_object().unwrap() {
            let bytes = base64::engine::general_purpose::STANDARD.decode(data.as_str().unwrap()).unwrap();
            std::fs::write(directory.join(name).join(file), bytes).unwrap();
        }
    }
    let map = installer.json(&["get", "configmap", "gateway-narthex", "--namespace", NAMESPACE]);
    let port = free_port();
    let config = map["data"]["gateway.yaml"].as_str().unwrap();
    let config = [
        ("in-cluster", kubeconfig.to_str().unwrap()),
        ("/etc/narthex", directory.to_str().unwrap()),
        ("/var/lib/narthex", directory.join("data").to_str().unwrap()),
        ("bindAddress: 0.0.0.0", "bindAddress: 127.0.0.1"),
        ("securePort: 6443", &format!("securePort: {port}")),
        ("adminAddress: :6480", "adminAddress: 127.0.0.1:0"),
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
    let process = Process::start("installed-gateway", program, &arguments, directory);
    (process, HttpsEndpoint::new(port, &directory.join("serving/ca.crt")))
}

fn alerts_are_tested(environment: &TestEnvironment) {
    let home = environment.scratch("install-alerts");
    for (command, file) in [("check", "narthex.rules.yaml"), ("test", "narthex.rules.test.yaml")] {
        let mut process = Command::new(peer("promtool"));
        process.args([command, "rules"]).arg(project("deploy/prometheus").join(file)).env("HOME", &home);
        let output = kubectl_run(process, "");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("SUCCESS"),
            "{text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
