//! Two kube-apiservers of different clusters behind one gateway, by host name and by path prefix, with kubectl.

use std::path::Path;

use serde_json::json;

use super::TestFn;
use crate::environment::{
    Cluster, Gateway, Kubectl, RunningKubectl, TestEnvironment, eventually, kubeconfig, kubectl_run as run, peer,
};

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] =
    &[("control planes: two kube-apiservers by host and by path, with kubectl", two_clusters)];

fn two_clusters(environment: &TestEnvironment) {
    let scratch = environment.scratch("control-planes");
    let second = Cluster::start(&scratch.join("second"));
    let clusters = [("one", &environment.cluster), ("two", &second)];
    let authorities = &environment.cluster.authorities;
    let mut entries = String::new();
    for (name, cluster) in clusters {
        let serving = authorities.serving.server(&format!("{name}-host"), &[&format!("{name}.example.com")]);
        let own = &cluster.authorities;
        let more = format!(
            "delegateKubeconfig: {}, clientCAFile: {}, proxyClientCertFile: {}, proxyClientKeyFile: {}",
            cluster.admin_kubeconfig.display(),
            own.client.file.display(),
            own.front_proxy.certificate.display(),
            own.front_proxy.key.display(),
        );
        entries += &format!(
            "- {{name: {name}-host, hosts: [{name}.example.com], tlsCertFile: {}, tlsPrivateKeyFile: {}, {more}}}\n\
             - {{name: {name}-path, pathPrefix: /clusters/{name}, {more}}}\n",
            serving.certificate.display(),
            serving.key.display(),
        );
    }
    let file = scratch.join("control-planes.yaml");
    let text = format!("apiVersion: narthex.dev/v1alpha1\nkind: ControlPlanes\ncontrolPlanes:\n{entries}");
    std::fs::write(&file, text).unwrap();
    let flags = [("--control-planes-config", file.to_str().unwrap())];
    let gateway = Gateway::start_without_registry(&environment.cluster, &scratch, "many", &flags);

    let program = Kubectl::at(&peer("kubectl")).expect("kubectl runs");
    let address = gateway.endpoint.url();
    for (name, cluster) in clusters {
        let admin = &cluster.authorities.admin;
        let by_path = format!("{address}/clusters/{name}");
        let by_path =
            kubeconfig::write(&scratch, &format!("{name}-path"), &by_path, &authorities.serving.file, Some(admin));
        let kubectl = |kubeconfig: &Path, args: &[&str]| {
            let mut command = program.command(kubeconfig, &scratch.join(format!("home-{name}")));
            command.args(args);
            let output = run(command, "");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            (output.status.success(), text(&output.stdout), text(&output.stderr))
        };
        // Each has a namespace of its own name, which the other has not.
        cluster.create_namespace(&format!("only-{name}"));
        let other = if name == "one" { "two" } else { "one" };
        eventually("the namespace", || {
            let (_, out, errors) = kubectl(&by_path, &["get", "namespaces", "-o", "name"]);
            match out.contains(&format!("namespace/only-{name}\n")) && !out.contains(&format!("only-{other}\n")) {
                true => Ok(()),
                false => Err(format!("{out}{errors}")),
            }
        });
        let (ok, out, errors) =
            kubectl(&by_path, &["create", "configmap", "made-by", &format!("--from-literal=path={name}")]);
        assert!(ok, "{out}{errors}");
        let (ok, out, errors) = kubectl(&by_path, &["explain", "pod.spec.containers.image"]);
        assert!(ok && out.contains("Container image name"), "{out}{errors}");
        let (ok, out, errors) = kubectl(&by_path, &["api-resources", "--api-group", "apps"]);
        assert!(ok && out.contains("deployments"), "{out}{errors}");
        let (ok, out, errors) = kubectl(&by_path, &["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"]);
        assert!(ok && !out.is_empty(), "{out}{errors}");
        let mut watch = RunningKubectl::start({
            let mut command = program.command(&by_path, &scratch.join(format!("home-{name}")));
            command.args(["get", "configmaps", "-w", "-o", "name"]);
            command
        });
        watch.line_with("configmap/made-by");
        let later = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}});
        cluster.endpoint.create(admin, "/api/v1/namespaces/default/configmaps", &later);
        watch.line_with("configmap/later");
        // The credentials of the other cluster are not accepted.
        let stranger = format!("{address}/clusters/{other}");
        let stranger =
            kubeconfig::write(&scratch, &format!("{name}-stranger"), &stranger, &authorities.serving.file, Some(admin));
        let (ok, out, errors) = kubectl(&stranger, &["get", "namespaces"]);
        assert!(!ok && errors.contains("You must be logged in to the server"), "{out}{errors}");
        // By host name, with the server name that kubectl sends.
        let port = gateway.endpoint.port;
        let host = format!("{name}.example.com");
        let response = std::process::Command::new("curl")
            .args(["--silent", "--show-error", "--cacert", authorities.serving.file.to_str().unwrap()])
            .args(["--cert", admin.certificate.to_str().unwrap(), "--key", admin.key.to_str().unwrap()])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .arg(format!("https://{host}:{port}/api/v1/namespaces/only-{name}"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&response.stdout).into_owned();
        assert!(text.contains(&format!("only-{name}")), "{text}{}", String::from_utf8_lossy(&response.stderr));
    }
}
