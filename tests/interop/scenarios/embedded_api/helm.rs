//! Helm at the embedded API server: a release with a CRD, its custom objects, RBAC, a ServiceAccount, a ConfigMap, a Secret
//! and a hook is installed, upgraded, rolled back and uninstalled, with the same results as at kube-apiserver.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::environment::{Gateway, LIKE_KUBE_APISERVER, TestEnvironment, kubeconfig, kubectl_run, peer};

const RELEASE: &str = "embedded-helm";
/// The embedded API server has no server-side apply.
const CLIENT_SIDE: &str = "--server-side=false";
const CHART: &str = "tests/interop/fixtures/operator-chart";
/// The kinds of the chart in a namespace.
const RESOURCES: &str = "--resource=configmaps,secrets,serviceaccounts,roles.rbac.authorization.k8s.io,\
     rolebindings.rbac.authorization.k8s.io,websites.charts.example.com";
/// Kinds and suffixes of the names of the objects of a release.
const OBJECTS: [(&str, &str); 9] = [
    ("configmap", ""),
    ("configmap", "-extra"),
    ("configmap", "-hook"),
    ("secret", "-credentials"),
    ("serviceaccount", ""),
    ("role", ""),
    ("rolebinding", ""),
    ("clusterrole", ""),
    ("website.charts.example.com", ""),
];

pub(super) fn releases_live_and_end(environment: &TestEnvironment) {
    let cluster = &environment.cluster;
    let directory = environment.scratch("embedded-helm");
    let gateway = Gateway::start_embedded_api(cluster, &directory, "embedded-helm", &LIKE_KUBE_APISERVER);
    let endpoint = &gateway.endpoint;
    let admin = kubeconfig::write(&directory, "admin", &endpoint.url(), &endpoint.authority, Some(cluster.admin()));
    let live = |target: &str, kubeconfig: &Path| {
        let home = directory.join(target);
        std::fs::create_dir_all(&home).unwrap();
        User { kubeconfig: kubeconfig.into(), home }.live()
    };
    let expected = live("kube-apiserver", &cluster.admin_kubeconfig);
    for (expected, step) in expected.iter().zip(live("narthex", &admin)) {
        assert_eq!(*expected, step, "left: kube-apiserver; right: narthex");
    }
}

/// A user of Helm and kubectl with one release, in a namespace of its name.
struct User {
    kubeconfig: PathBuf,
    home: PathBuf,
}

impl User {
    /// Runs the life of the release. Returns what it is after each step.
    fn live(&self) -> Vec<Value> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join(CHART);
        let chart = chart.to_str().unwrap();
        let mut steps = vec![
            self.change("install", &[chart, "--create-namespace"], true),
            self.change("upgrade", &[chart, "--set=color=green,replicas=3,extra=true"], true),
            // An object of the release is removed.
            self.change("upgrade", &[chart, "--set=color=green,replicas=4"], true),
            // The schema of the CRD refuses it.
            self.change("upgrade", &[chart, "--set=color=red"], false),
        ];
        // A field that the chart does not set is not touched.
        let patch = r#"--patch={"spec":{"owner":"jane"}}"#;
        self.kubectl(&["patch", "website.charts.example.com", RELEASE, "--type=merge", patch]).unwrap();
        steps.push(self.change("rollback", &["1"], true));
        let allowed = format!("--as=system:serviceaccount:{RELEASE}:{RELEASE}");
        for verb in ["list", "update"] {
            let answer = self.kubectl(&["auth", "can-i", verb, "configmaps", &allowed]);
            assert_eq!(answer.is_ok(), verb == "list", "{answer:?}");
        }
        steps.push(self.change("uninstall", &[], true));

        // Permissions in one namespace do not suffice for a ClusterRole.
        let deployer = self.deployer();
        steps.push(deployer.change("install", &[chart, "--skip-crds"], false));
        steps.push(deployer.change("install", &[chart, "--skip-crds", "--set=clusterRole=false"], true));
        steps.push(deployer.change("uninstall", &[], true));
        // Helm leaves the CRD.
        self.kubectl(&["delete", "customresourcedefinition", "websites.charts.example.com"]).unwrap();
        steps
    }

    /// A ServiceAccount with all verbs on the kinds of the chart in the namespace of the release.
    fn deployer(&self) -> User {
        let account = format!("--serviceaccount={RELEASE}:deployer");
        self.kubectl(&["create", "serviceaccount", "deployer"]).unwrap();
        let role = ["create", "role", "deployer", "--verb=*", RESOURCES];
        self.kubectl(&role).unwrap();
        self.kubectl(&["create", "rolebinding", "deployer", "--role=deployer", &account]).unwrap();
        let token = self.kubectl(&["create", "token", "deployer"]).unwrap();
        let mut config: Value = serde_json::from_slice(&std::fs::read(&self.kubeconfig).unwrap()).unwrap();
        config["users"][0]["user"] = json!({"token": token.trim()});
        let kubeconfig = self.home.join("deployer.kubeconfig");
        std::fs::write(&kubeconfig, config.to_string()).unwrap();
        User { kubeconfig, home: self.home.clone() }
    }

    /// Runs a command of Helm that changes the release. Returns its history and its objects.
    fn change(&self, command: &str, arguments: &[&str], succeeds: bool) -> Value {
        let flags: &[&str] = if command == "uninstall" { &[] } else { &[CLIENT_SIDE] };
        let waits = ["--wait", "--timeout=80s", "--namespace", RELEASE];
        let result = self.run("helm", &[&[command, RELEASE][..], arguments, flags, &waits].concat());
        assert_eq!(result.is_ok(), succeeds, "{command} {arguments:?}: {result:?}");
        let history = self.run("helm", &["history", RELEASE, "--output=json", "--namespace", RELEASE]);
        let history: Value = history.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
        let revisions = history.as_array().into_iter().flatten();
        let revisions: Vec<_> = revisions.map(|it| json!([it["revision"], it["status"], it["description"]])).collect();
        let objects: Vec<Value> = OBJECTS.iter().map(|(kind, suffix)| self.object(kind, suffix)).collect();
        json!({"command": command, "arguments": arguments, "revisions": revisions, "objects": objects})
    }

    /// An object of the release without what each server chooses, or null.
    fn object(&self, kind: &str, suffix: &str) -> Value {
        let text = self.kubectl(&["get", kind, &format!("{RELEASE}{suffix}"), "--output=json"]);
        let mut object: Value = text.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|key, _| {
                !["uid", "resourceVersion", "creationTimestamp", "managedFields"].contains(&key.as_str())
            });
        }
        object
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.run("kubectl", &[arguments, &["--namespace", RELEASE]].concat())
    }

    /// Runs a program; returns its output, or its errors.
    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(peer(program));
        command.args(arguments).env("HOME", &self.home).env("KUBECONFIG", &self.kubeconfig);
        let output = kubectl_run(command, "");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}
