//! metrics-server behind narthex: another extension API server with delegated authentication and authorization.

use std::path::Path;

use super::KubectlTestFn;
use crate::environment::{
    Cluster, CommandResult, Extension, Gateway, Kubectl, Process, TestEnvironment, eventually, free_port, kubeconfig,
    peer, register,
};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[("metrics-server: kubectl top", kubectl_top)];

/// Group and version of metrics-server.
pub(super) const GROUP_VERSION: (&str, &str) = ("metrics.k8s.io", "v1beta1");
/// Name of its Service and namespace.
pub(super) const NAME: &str = "metrics-server";

/// Starts a metrics-server at `port` that uses `cluster`. It may not be ready on return.
pub(super) fn start(cluster: &Cluster, directory: &Path, port: u16) -> Process {
    let flags = ["--bind-address=127.0.0.1", "--metric-resolution=15s", "--kubelet-insecure-tls"];
    start_with(cluster, &cluster.admin_kubeconfig, directory, NAME, port, &flags)
}

/// Starts a metrics-server with a certificate of `cluster` for the Service in `namespace`, and more flags. It uses the
/// server of `kubeconfig`. It may not be ready on return.
pub(super) fn start_with(
    cluster: &Cluster,
    kubeconfig: &Path,
    directory: &Path,
    namespace: &str,
    port: u16,
    flags: &[&str],
) -> Process {
    let name = format!("{NAME}-of-{namespace}");
    let serving = cluster.authorities.backend.server(&name, &[&format!("{NAME}.{namespace}.svc"), "127.0.0.1"]);
    let file = |flag: &str, path: &Path| format!("--{flag}={}", path.display());
    let mut arguments = vec![
        format!("--secure-port={port}"),
        file("kubeconfig", kubeconfig),
        file("authentication-kubeconfig", kubeconfig),
        file("authorization-kubeconfig", kubeconfig),
        file("tls-cert-file", &serving.certificate),
        file("tls-private-key-file", &serving.key),
    ];
    arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
    Process::start(&name, &peer("metrics-server"), arguments, directory)
}

fn kubectl_top(environment: &TestEnvironment, kubectl: &Kubectl) {
    let directory = environment.scratch(&format!("metrics-{}", kubectl.version));
    let cluster = &environment.cluster;
    let (port, admin) = (free_port(), cluster.admin());
    let _server = start(cluster, &directory, port);

    // Registered beside the other extension server, in the registry of a separate gateway.
    let extension: &Extension = &environment.extension;
    let cluster_itself = cluster.admin_kubeconfig.display().to_string();
    let name = format!("metrics-{}", kubectl.version.replace('.', "-"));
    let flags = [("--delegate-kubeconfig", cluster_itself.as_str())];
    let gateway = Gateway::start(cluster, extension, &directory, &name, &flags);
    let registry = directory.join(format!("{name}-registry"));
    register(&registry, GROUP_VERSION, (NAME, port), &cluster.authorities.backend.file);

    let endpoint = &gateway.endpoint;
    let config = kubeconfig::write(&directory, "admin", &endpoint.url(), &endpoint.authority, Some(admin));
    let run = |args: &str| {
        let mut command = kubectl.command(&config, &directory);
        command.args(args.split_whitespace());
        CommandResult::run(args, command, "")
    };
    eventually("metrics-server served by the gateway", || {
        let step = run("get --raw /apis/metrics.k8s.io/v1beta1/nodes");
        if step.success { Ok(()) } else { Err(step.errors) }
    });
    eventually("its resources in discovery", || {
        let listed = run("api-resources --api-group=metrics.k8s.io --no-headers --cached=false");
        if listed.output.lines().count() == 2 { Ok(()) } else { Err(listed.output + &listed.errors) }
    });
    // There are no nodes to measure; kubectl reports that.
    let step = run("top nodes");
    let output = format!("{}{}", step.output, step.errors);
    assert!(output.contains("metrics not available yet") || output.contains("No resources found"), "{output}");
    run("explain nodes --api-version=metrics.k8s.io/v1beta1").ok();
    run("get flunders --all-namespaces").ok();
    run("get deployments --all-namespaces").ok();
    // It accepts the identity headers; by default no user is permitted.
    let jane = kubeconfig::write(&directory, "jane", &endpoint.url(), &endpoint.authority, Some(cluster.jane()));
    let mut command = kubectl.command(&jane, &directory);
    command.args(["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"]);
    CommandResult::run("get --raw as jane", command, "").expect_error("User \"jane\" cannot list");
}
