//! The steps of docs/how-to/konnectivity.md in a cluster, on this machine as the node: its commands, and the containers of its
//! manifests.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::DIALS;
use crate::environment::{Cluster, Extension, Process, TestEnvironment, eventually, free_port, peer, plain_get};
use crate::page_runner::PageEnvironment;
use crate::scenarios::openapi;

const PAGE: &str = "docs/how-to/konnectivity.md";

/// The directories and ports of the node. Each path and port of the documents is replaced.
struct Node {
    directory: tempfile::TempDir,
    agent_port: u16,
    server_admin: u16,
    server_health: u16,
    agent_admin: u16,
    agent_health: u16,
}

impl Node {
    fn new() -> Node {
        Node {
            // A short path: that of a Unix socket is limited to 108 bytes.
            directory: tempfile::tempdir().unwrap(),
            agent_port: free_port(),
            server_admin: free_port(),
            server_health: free_port(),
            agent_admin: free_port(),
            agent_health: free_port(),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What the documents call the place or the port on the left.
    fn replacements(&self) -> Vec<(String, String)> {
        let mut replacements: Vec<(String, String)> = [
            ("/etc/kubernetes", self.path("etc").display().to_string()),
            ("/var/run/secrets/konnectivity", self.path("secrets").display().to_string()),
            ("control-plane.example.com", "localhost".to_owned()),
            ("8132", self.agent_port.to_string()),
            ("8133", self.server_admin.to_string()),
            ("8134", self.server_health.to_string()),
            // This user may do what it needs.
            ("sudo ", String::new()),
            // No kubelet and no controller reports the pods of the DaemonSet.
            ("kubectl --namespace kube-system rollout status daemonset/konnectivity-agent\n", String::new()),
        ]
        .map(|(from, to)| (from.to_owned(), to))
        .into();
        // Longer names first.
        replacements.sort_by_key(|(from, _)| std::cmp::Reverse(from.len()));
        replacements
    }

    /// Starts the only container of a pod, as the kubelet does.
    fn start_container(&self, pod: &Value, logs: &Path) -> Process {
        let container = &pod["containers"][0];
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let command = text(&container["command"][0]);
        let name = command.trim_start_matches('/');
        // The image's link.
        let link = self.path(name);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narthex"), &link).unwrap();
        let arguments = container["args"].as_array().unwrap().iter().map(text);
        let arguments = arguments.map(|argument| argument.replace("$(NODE_NAME)", "node-a"));
        Process::start(name, &link, arguments, logs)
    }
}

/// The commands of the steps before kube-apiserver's own.
fn steps() -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap();
    let begin = page.find("### 1. Image and address").expect("the first step");
    let end = page.find("### 5. kube-apiserver").expect("the last step");
    let steps = page[begin..end].replace("<!-- not run: ", "<!-- run here: ");
    assert_eq!(steps.matches("<!-- run here: ").count(), 2, "the steps on nodes");
    steps
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(peer("kubectl"));
    command.arg("--kubeconfig").arg(&cluster.admin_kubeconfig).args(arguments);
    let output = command.output().unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub(super) fn follows_the_how_to(environment: &TestEnvironment) {
    let directory = environment.scratch("konnectivity-node");
    let node = Node::new();
    for folder in ["etc/pki", "etc/manifests", "etc/konnectivity-server", "secrets", "page"] {
        std::fs::create_dir_all(node.path(folder)).unwrap();
    }
    // The flag and the configuration of step 5. kube-apiserver reads it once, before the other steps here.
    let configuration = node.path("etc/konnectivity-server/egress-selector-configuration.yaml");
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/konnectivity/egress-selector-configuration.yaml");
    let sample = std::fs::read_to_string(sample).unwrap();
    std::fs::write(&configuration, sample.replace("/etc/kubernetes", &node.path("etc").display().to_string())).unwrap();
    let flag = format!("--egress-selector-config-file={}", configuration.display());
    let cluster = Cluster::start_with(&directory, &[flag]);

    // kubeadm's authority signs everything; here there is one for clients, and one for servers.
    let authorities = &cluster.authorities;
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let bundle = read(&authorities.client.file) + &read(&authorities.serving.file);
    std::fs::write(node.path("etc/pki/ca.crt"), bundle).unwrap();
    std::fs::write(node.path("etc/pki/ca.key"), authorities.client.key_pem()).unwrap();
    let serving = authorities.serving.server("node-apiserver", &["localhost"]);
    std::fs::copy(&serving.certificate, node.path("etc/pki/apiserver.crt")).unwrap();
    std::fs::copy(&serving.key, node.path("etc/pki/apiserver.key")).unwrap();

    let kubectl_script =
        format!("KUBECONFIG='{}' exec '{}' \"$@\"", cluster.admin_kubeconfig.display(), peer("kubectl").display());
    let page = PageEnvironment {
        directory: node.path("page"),
        programs: vec![("kubectl".to_owned(), kubectl_script)],
        replacements: node.replacements(),
        gateway_port: None,
    };
    let (_server, _agent) = std::thread::scope(|scope| {
        let commands = scope.spawn(|| page.run(PAGE, &steps()));
        // The kubelet: a static pod, and later a pod of the DaemonSet. The commands wait for both.
        let manifest = node.path("etc/manifests/konnectivity-server.yaml");
        let manifest = manifest.to_str().unwrap();
        let pod = eventually("the manifest of the static pod", || {
            if !Path::new(manifest).exists() {
                assert!(!commands.is_finished(), "the commands have ended");
                return Err("not there".to_owned());
            }
            kubectl(&cluster, &["create", "--dry-run=client", "-o=json", "-f", manifest])
        });
        let pod: Value = serde_json::from_str(&pod).unwrap();
        let server = node.start_container(&pod["spec"], &directory);
        let daemon_set = eventually("the DaemonSet", || {
            assert!(!commands.is_finished(), "the commands have ended");
            kubectl(&cluster, &["--namespace=kube-system", "get", "daemonset", "konnectivity-agent", "-o=json"])
        });
        let daemon_set: Value = serde_json::from_str(&daemon_set).unwrap();
        let mut pod = daemon_set["spec"]["template"]["spec"].clone();
        // A pod has an address of its own; here it shares that of the node.
        for argument in pod["containers"][0]["args"].as_array_mut().unwrap() {
            let text = argument.as_str().unwrap();
            *argument = text
                .replace(&node.server_admin.to_string(), &node.agent_admin.to_string())
                .replace(&node.server_health.to_string(), &node.agent_health.to_string())
                .into();
        }
        // The projected volume.
        let account = pod["serviceAccountName"].as_str().unwrap().to_owned();
        let source = &pod["volumes"][0]["projected"]["sources"][0]["serviceAccountToken"];
        let audience = format!("--audience={}", source["audience"].as_str().unwrap());
        let token = kubectl(&cluster, &["--namespace=kube-system", "create", "token", &account, &audience]).unwrap();
        std::fs::write(node.path("secrets/token"), token).unwrap();
        std::fs::copy(&authorities.serving.file, node.path("secrets/ca.crt")).unwrap();
        let agent = node.start_container(&pod, &directory);
        commands.join().unwrap();
        (server, agent)
    });

    // Step 5: kube-apiserver reaches its backends through the agent.
    let extension = Extension::start(&cluster, &directory, "wardle");
    openapi::register(&cluster.endpoint, cluster.admin(), extension.endpoint.port, &authorities.backend.file);
    eventually("flunders of the aggregated server", || {
        let response = cluster.endpoint.get(Some(cluster.admin()), "/apis/wardle.example.com/v1alpha1/flunders")?;
        if response.status == 200 { Ok(()) } else { Err(response.text()) }
    });
    let metrics = plain_get(node.server_health, "/metrics").unwrap();
    let dials = metrics.lines().find_map(|line| line.strip_prefix(DIALS)).expect(DIALS);
    assert!(dials.trim().parse::<f64>().unwrap() > 0.0, "kube-apiserver connects past the server: {dials}");
}
