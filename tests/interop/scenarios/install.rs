//! The charts, the kustomization and the Prometheus rules of `deploy/`, by Helm, kubeconform, promtool and a real
//! kube-apiserver.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::TestFn;
use super::cluster_registry::ClusterFixture;
use crate::environment::{TestEnvironment, eventually, kubectl_run, peer};
use crate::hardening::{assert_hardened, documents};
use crate::install_root::InstallRoot;

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("install: charts and kustomization accepted by kubeconform and kube-apiserver", manifests_are_accepted),
    ("install: alerts fire as tested", alerts_are_tested),
];

pub(super) const NAMESPACE: &str = "apis";

/// Values that the chart is rendered with: what for, and arguments of `--set`, or of `--set-file` after `=@`.
const VALUES: &[(&str, &[&str])] = &[
    ("defaults", &[]),
    ("one pod at a node port", &["replicaCount=1", "service.type=NodePort", "podDisruptionBudget.enabled=false"]),
    ("load", &["autoscaling.enabled=true", "networkPolicy.enabled=true", "priorityClassName=system-cluster-critical"]),
    ("cert-manager", &["servingCertificate.certManager.enabled=true", ISSUER]),
    (
        "certificates of the cluster",
        &["servingCertificate.existingSecret=a", "frontProxy.existingSecret=b", "delegate.enabled=true"],
    ),
    ("manifests alone", &["registry.cluster=false", "registry.manifests.wardle\\.yaml=@deploy/registry/wardle.yaml"]),
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

/// Values of the library chart that are refused in the chart that uses it, and a part of the message.
const REFUSED_SIDECAR: &[(&str, &str)] = &[
    ("upstrem=unix:/run/library/library.sock", "additional properties 'upstrem' not allowed"),
    ("image.digest=sha256:0", "additional properties 'digest' not allowed"),
    ("upstream=127.0.0.1:8080", "/upstream"),
    ("port=https", "/port"),
    ("extraArgs=--v=2", "/extraArgs"),
];

/// Custom resources that the chart may create.
const DEFINITIONS: [&str; 3] = [
    "cert-manager/cert-manager.io_certificates",
    "prometheus-operator/monitoring.coreos.com_servicemonitors",
    "prometheus-operator/monitoring.coreos.com_prometheusrules",
];

pub(super) fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Helm and kubectl as cluster admin of one cluster.
pub(super) struct Installer<'a> {
    pub(super) fixture: &'a ClusterFixture,
    home: PathBuf,
}

impl Installer<'_> {
    pub(super) fn new(fixture: &ClusterFixture, home: PathBuf) -> Installer<'_> {
        let installer = Installer { fixture, home };
        installer.fixture.cluster.create_namespace(NAMESPACE);
        // Its violations become warnings, which no command here may print.
        installer.kubectl(&["label", "namespace", NAMESPACE, "pod-security.kubernetes.io/warn=restricted"], "");
        installer
    }

    pub(super) fn run(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let mut command = Command::new(peer(program));
        command.args(arguments).env("HOME", &self.home).env("KUBECONFIG", &self.fixture.cluster.admin_kubeconfig);
        kubectl_run(command, input)
    }

    pub(super) fn run_ok(&self, program: &str, arguments: &[&str], input: &str) -> String {
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

    pub(super) fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.run_ok("kubectl", arguments, input)
    }

    pub(super) fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.kubectl(&[arguments, &["--output=json"]].concat(), "")).unwrap()
    }

    fn template(&self, chart: &Path, values: &[&str]) -> Output {
        let chart = chart.to_str().unwrap();
        let mut arguments = vec!["template", "release", chart, "--namespace", NAMESPACE];
        let settings = values.iter().map(|value| match value.split_once("=@") {
            Some((name, file)) => ["--set-file".to_owned(), format!("{name}={}", project(file).display())],
            None => ["--set".to_owned(), (*value).to_owned()],
        });
        let settings: Vec<String> = settings.flatten().collect();
        arguments.extend(settings.iter().map(String::as_str));
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
        assert!(!assert_hardened(what, manifests, &[]).is_empty(), "{what}: no container in {manifests}");
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
        let root = directory.join(format!("root-{}", what.replace(' ', "-")));
        std::fs::create_dir(&root).unwrap();
        check_configuration(what, manifests, &InstallRoot::create(&root));
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
    for (value, expected) in REFUSED_SIDECAR {
        let output = installer.template(&library, &[&format!("narthex-sidecar.{value}")]);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(expected), "{value}: {errors}");
    }

    let kustomization = project("deploy/kustomize");
    let manifests = installer.kubectl(&["kustomize", kustomization.to_str().unwrap()], "");
    // Objects of a namespace that only the same dry run creates are refused.
    installer.kubectl(&["apply", "--filename", kustomization.join("namespace.yaml").to_str().unwrap()], "");
    // The fixture has roles of these names.
    installer.kubectl(&["delete", "clusterrole,clusterrolebinding", "narthex:registry"], "");
    installer.check("kustomization", &manifests, &schemas);
}

/// The gateway accepts the configuration and the registry in the ConfigMaps of the manifests.
fn check_configuration(what: &str, manifests: &str, root: &InstallRoot) {
    let mut maps = documents(manifests).into_iter().filter(|object| object["kind"] == "ConfigMap");
    let map = maps.find(|map| map["metadata"]["name"] == "release-narthex").unwrap();
    let registry = maps.next();
    for (file, text) in registry.iter().flat_map(|map| map["data"].as_object().unwrap()) {
        std::fs::write(root.path("registry").join(file), text.as_str().unwrap()).unwrap();
    }
    let configuration = map["data"]["gateway.yaml"].as_str().unwrap();
    assert_eq!(configuration.contains("registryDir:"), registry.is_some(), "{what}: {configuration}");
    root.check_gateway(what, configuration);
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
