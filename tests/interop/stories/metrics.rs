//! metrics-server behind narthex: an extension API server of another make, which asks kube-apiserver whom to believe
//! and what they may.

use std::path::Path;

use super::TrialWith;
use crate::world::{
    Cluster, Extension, Gateway, Kubectl, Process, Step, World, eventually, free_port, kubeconfig, peer, register,
};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[("metrics-server", top)];

/// What it serves.
pub(super) const GROUP_VERSION: (&str, &str) = ("metrics.k8s.io", "v1beta1");
/// Its Service, and the namespace of that.
pub(super) const NAME: &str = "metrics-server";

/// A metrics-server of `cluster` at `port`, which may not be ready yet.
pub(super) fn start(cluster: &Cluster, directory: &Path, port: u16) -> Process {
    let serving =
        cluster.authorities.backend.server("metrics-server", &["metrics-server.metrics-server.svc", "127.0.0.1"]);
    let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let kubeconfig = &cluster.admin_kubeconfig;
    let arguments = [
        format!("--secure-port={port}"),
        "--bind-address=127.0.0.1".to_owned(),
        file("kubeconfig", kubeconfig),
        file("authentication-kubeconfig", kubeconfig),
        file("authorization-kubeconfig", kubeconfig),
        file("tls-cert-file", &serving.certificate),
        file("tls-private-key-file", &serving.key),
        "--metric-resolution=15s".to_owned(),
        "--kubelet-insecure-tls".to_owned(),
    ];
    Process::start("metrics-server", &peer("metrics-server"), arguments, directory)
}

fn top(world: &World, kubectl: &Kubectl) {
    let directory = world.scratch(&format!("metrics-{}", kubectl.version));
    let cluster = &world.cluster;
    let (port, admin) = (free_port(), cluster.admin());
    let _server = start(cluster, &directory, port);

    // Registered beside the other extension server, in the directory of a gateway of its own.
    let extension: &Extension = &world.extension;
    let cluster_itself = cluster.admin_kubeconfig.display().to_string();
    let name = format!("metrics-{}", kubectl.version.replace('.', "-"));
    let flags = [("--delegate-kubeconfig", cluster_itself.as_str())];
    let gateway = Gateway::start(cluster, extension, &directory, &name, &flags);
    let registry = directory.join(format!("{name}-registry"));
    register(&registry, GROUP_VERSION, (NAME, port), &cluster.authorities.backend.file);

    let door = &gateway.door;
    let config = kubeconfig::write(&directory, "admin", &door.url(), &door.authority, Some(admin));
    let run = |words: &str| {
        let mut command = kubectl.command(&config, &directory);
        command.args(words.split_whitespace());
        Step::run(words, command, "")
    };
    eventually("metrics-server through the gateway", || {
        let step = run("get --raw /apis/metrics.k8s.io/v1beta1/nodes");
        if step.success { Ok(()) } else { Err(step.errors) }
    });
    eventually("its resources in discovery", || {
        let listed = run("api-resources --api-group=metrics.k8s.io --no-headers --cached=false");
        if listed.output.lines().count() == 2 { Ok(()) } else { Err(listed.output + &listed.errors) }
    });
    // There is no machine that could be measured; kubectl says so in its own words.
    let step = run("top nodes");
    let said = format!("{}{}", step.output, step.errors);
    assert!(said.contains("metrics not available yet") || said.contains("No resources found"), "{said}");
    run("explain nodes --api-version=metrics.k8s.io/v1beta1").ok();
    run("get flunders --all-namespaces").ok();
    run("get deployments --all-namespaces").ok();
    // It believes who we say asks, and nobody may by default.
    let jane = kubeconfig::write(&directory, "jane", &door.url(), &door.authority, Some(cluster.jane()));
    let mut command = kubectl.command(&jane, &directory);
    command.args(["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"]);
    Step::run("get --raw as jane", command, "").refused("User \"jane\" cannot list");
}
