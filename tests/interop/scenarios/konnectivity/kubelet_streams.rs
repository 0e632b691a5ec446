//! Logs, commands and ports of a pod on a node of kwok, by kubectl: kube-apiserver reaches the node's kubelet through
//! narthex's Konnectivity server and agent.
//!
//! kwok serves the API of a kubelet with the handlers of Kubernetes (`k8s.io/kubelet/pkg/cri/streaming`). Behind them it has
//! no containers: logs are of a file, commands run as processes of kwok, and ports are those of this machine. Not proved: that
//! kube-apiserver and a kubelet authenticate each other, because kwok does not ask for a client certificate.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::DIALS;
use super::target_server::{TargetBehavior, TargetServer};
use crate::environment::{Cluster, Konnectivity, Process, eventually, free_port, kubectl_run, peer};

const POD: &str = "p";

/// A node of kwok with one pod.
pub(super) struct KwokNode<'c> {
    cluster: &'c Cluster,
    directory: &'c Path,
    /// The log of the pod's container.
    log: PathBuf,
    _kwok: Process,
}

impl<'c> KwokNode<'c> {
    /// Starts kwok, and waits for the pod on its node.
    pub(super) fn start(cluster: &'c Cluster, directory: &'c Path) -> KwokNode<'c> {
        let (log, echo, port) =
            (directory.join("container.log"), TargetServer::start(TargetBehavior::Echo), free_port());
        std::fs::write(&log, "").unwrap();
        let resource = |kind: &str, spec: serde_json::Value| json!({"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": kind, "metadata": {"name": "all"}, "spec": spec});
        let documents = [
            resource("ClusterLogs", json!({"logs": [{"logsFile": log}]})),
            resource("ClusterExec", json!({"execs": [{"local": {}}]})),
            resource(
                "ClusterPortForward",
                json!({"forwards": [{"target": {"port": echo.port, "address": "127.0.0.1"}}]}),
            ),
        ];
        let configuration = directory.join("kwok.yaml");
        std::fs::write(&configuration, documents.map(|document| document.to_string()).join("\n---\n")).unwrap();
        let identity = cluster.authorities.backend.server("kubelet", &["127.0.0.1"]);
        let flags = [
            format!("--kubeconfig={}", cluster.admin_kubeconfig.display()),
            format!("--config={}", configuration.display()),
            "--manage-all-nodes=true".to_owned(),
            "--cidr=10.9.0.1/24".to_owned(),
            "--node-ip=127.0.0.1".to_owned(),
            format!("--node-port={port}"),
            format!("--server-address=127.0.0.1:{port}"),
            format!("--tls-cert-file={}", identity.certificate.display()),
            format!("--tls-private-key-file={}", identity.key.display()),
        ];
        let kwok = Process::start("kwok", &peer("kwok"), flags, directory);
        let node = KwokNode { cluster, directory, log, _kwok: kwok };
        node.create_pod();
        node
    }

    /// Creates the node and the pod, and waits until the pod runs.
    fn create_pod(&self) {
        let create = |path: &str, document| self.cluster.endpoint.create(self.cluster.admin(), path, &document);
        let capacity = json!({"cpu": "8", "memory": "16Gi", "pods": "50"});
        create(
            "/api/v1/nodes",
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
                "status": {"capacity": capacity, "allocatable": capacity}}),
        );
        create(
            "/api/v1/namespaces/default/pods",
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "example.com/c:1"}]}}),
        );
        eventually("the pod to run", || {
            let pod = self.cluster.endpoint.get(Some(self.cluster.admin()), "/api/v1/namespaces/default/pods/p")?;
            let pod = pod.json();
            if pod["status"]["phase"] == "Running" { Ok(()) } else { Err(pod["status"].to_string()) }
        });
    }

    /// Appends a line to the log, in the format of the container runtime interface.
    fn write_log(&self, line: &str) {
        let mut log = std::fs::File::options().append(true).open(&self.log).unwrap();
        writeln!(log, "2026-11-26T00:00:00.000000000Z stdout F {line}").unwrap();
    }

    fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        let mut command = Command::new(peer("kubectl"));
        command.arg("--kubeconfig").arg(&self.cluster.admin_kubeconfig).args(arguments);
        let output = kubectl_run(command, input);
        let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}: {errors}{text}");
        text.into_owned()
    }

    /// Starts a kubectl that runs until it is dropped.
    fn start_kubectl(&self, arguments: &[&str]) -> Process {
        let kubeconfig = format!("--kubeconfig={}", self.cluster.admin_kubeconfig.display());
        let name = format!("kubectl-{}", arguments[0]);
        Process::start(&name, &peer("kubectl"), [&[&*kubeconfig], arguments].concat(), self.directory)
    }

    /// Each stream has a connection to the kubelet of its own.
    pub(super) fn check_streams(&self, konnectivity: &Konnectivity) {
        let check = |name: &str, use_stream: fn(&KwokNode<'c>)| {
            let before = konnectivity.count(DIALS);
            use_stream(self);
            assert!(konnectivity.count(DIALS) > before, "kubectl {name}: the kubelet is called past the server");
        };
        check("logs", KwokNode::read_log);
        check("exec", KwokNode::run_commands);
        check("port-forward", KwokNode::forward_port);
    }

    /// Lines arrive while the container writes them. Returns the process, which ends when the agent is lost.
    pub(super) fn follow_log(&self) -> Process {
        let following = self.start_kubectl(&["logs", "--follow", "--tail=1", POD]);
        let read = following.reader();
        let mut expected = "a line of the container\n".to_owned();
        for line in ["a second line", "a third line"] {
            wait_for_output(&read, &expected);
            self.write_log(line);
            expected = format!("{expected}{line}\n");
        }
        wait_for_output(&read, &expected);
        following
    }

    fn read_log(&self) {
        self.write_log("a line of the container");
        assert_eq!(self.kubectl(&["logs", POD], ""), "a line of the container\n");
    }

    /// Standard input, output and errors of a command, and its exit status.
    fn run_commands(&self) {
        // Not `cat`: kwok does not pass on the end of standard input (`pkg/utils/exec`).
        let echoed = self.kubectl(&["exec", "--stdin", POD, "--", "head", "-n", "1"], "a line of the client\n");
        assert_eq!(echoed, "a line of the client\n");
        let mut command = Command::new(peer("kubectl"));
        command.arg("--kubeconfig").arg(&self.cluster.admin_kubeconfig);
        command.args(["exec", POD, "--", "sh", "-c", "echo refused >&2; exit 7"]);
        let output = kubectl_run(command, "");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{errors}");
        // kwok has the exit status in a text only.
        assert!(errors.starts_with("refused\n") && errors.trim_end().ends_with("exit status 7"), "{errors}");
    }

    fn forward_port(&self) {
        let port = free_port();
        let forwarding = self.start_kubectl(&["port-forward", &format!("pod/{POD}"), &format!("{port}:80")]);
        let read = forwarding.reader();
        eventually("the forwarded port", || if read().contains("Forwarding from") { Ok(()) } else { Err(read()) });
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.write_all(b"ping").unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ping");
    }
}

fn wait_for_output(read: &impl Fn() -> String, expected: &str) {
    eventually(&format!("output {expected:?}"), || if read() == expected { Ok(()) } else { Err(read()) });
}
