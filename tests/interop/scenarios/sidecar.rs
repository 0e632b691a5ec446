//! `narthex sidecar` with a certificate signed by the cluster, and in front of a gRPC server.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use hyper::StatusCode;
use serde_json::json;

use super::{KubectlTestFn, TestFn};
use crate::environment::{
    CommandResult, Extension, HttpsEndpoint, Kubectl, Process, TestEnvironment, eventually, free_port, kubeconfig,
};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] =
    &[("sidecar: serving certificate by CertificateSigningRequest", certificate)];

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[("sidecar: gRPC with a real etcd as upstream", grpc_etcd)];

/// Names of the serving certificate.
const NAMES: [&str; 3] = ["library.library.svc", "localhost", "127.0.0.1"];

/// The administrator's setup with the files in `deploy/`.
struct Admin<'w> {
    environment: &'w TestEnvironment,
    kubectl: &'w Kubectl,
    directory: PathBuf,
}

impl Admin<'_> {
    fn run(&self, args: &str, input: &str) -> CommandResult {
        let mut command = self.kubectl.command(&self.environment.cluster.admin_kubeconfig, &self.directory);
        command.args(args.split_whitespace());
        CommandResult::run(args, command, input)
    }

    /// A kubeconfig with a service account token, as in a pod.
    fn service_account(&self) -> PathBuf {
        let token = self.run("create token library -n library", "").ok().trim().to_owned();
        let cluster = &self.environment.cluster;
        let file =
            kubeconfig::write(&self.directory, "pod", &cluster.endpoint.url(), &cluster.endpoint.authority, None);
        let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        document["users"][0]["user"]["token"] = token.into();
        std::fs::write(&file, document.to_string()).unwrap();
        file
    }
}

/// Starts a sidecar at `port` in front of `upstream`. It may not be ready on return.
fn begin(directory: &Path, upstream: &str, port: u16, asks: &Path, name: &str, flags: &[String]) -> Process {
    let mut arguments = vec![
        "sidecar".to_owned(),
        format!("--upstream={upstream}"),
        format!("--secure-listen-address=127.0.0.1:{port}"),
        format!("--kubeconfig={}", asks.display()),
        "--admin-address=127.0.0.1:0".to_owned(),
        format!("--data-dir={}", directory.join("data").display()),
    ];
    arguments.extend_from_slice(flags);
    let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
    Process::start(&format!("{name}-sidecar"), program, arguments, directory)
}

/// The sidecar's CertificateSigningRequest is approved and signed; until then it is not ready.
fn certificate(environment: &TestEnvironment, kubectl: &Kubectl) {
    let name = format!("requesting-{}", kubectl.version.replace('.', "-"));
    let admin = Admin { environment, kubectl, directory: environment.scratch(&name) };
    admin.run("apply -f -", include_str!("../../../deploy/sidecar/rbac.yaml")).ok();
    let asks = admin.service_account();
    let socket = admin.directory.join("upstream.sock");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let flags = [
        "--request-serving-certificate=example.com/serving".to_owned(),
        format!("--serving-certificate-names={}", NAMES.join(",")),
    ];
    let upstream = format!("unix:{}", socket.display());
    let start = |port| begin(&admin.directory, &upstream, port, &asks, &name, &flags);
    let sidecar = start(free_port());
    eventually("the error in the sidecar's log", || {
        let log = sidecar.log();
        let message = "cannot create resource \"certificatesigningrequests\"";
        if log.contains(message) { Ok(()) } else { Err(log) }
    });
    drop(sidecar);

    admin.run("apply -f -", include_str!("../../../deploy/sidecar/serving-certificate.yaml")).ok();
    let port = free_port();
    let sidecar = start(port);
    let wanted = eventually("the request", || {
        let log = sidecar.log();
        let named = log.split("kubectl certificate approve ").nth(1).and_then(|rest| rest.split_whitespace().next());
        named.map(str::to_owned).ok_or(log)
    });
    let own = HttpsEndpoint::new(port, &admin.directory.join("data/pki/serving-ca.crt"));
    let ready = own.get(None, "/readyz").unwrap();
    assert!(ready.status == 500 && ready.text().contains("[-]serving-certificate failed"), "{}", ready.text());

    admin.run(&format!("certificate approve {wanted}"), "").ok();
    let step = admin.run(&format!("get csr {wanted} -o json"), "");
    let document: serde_json::Value = serde_json::from_str(step.ok()).unwrap();
    assert_eq!(document["spec"]["username"], "system:serviceaccount:library:library");
    let request = base64::engine::general_purpose::STANDARD.decode(document["spec"]["request"].as_str().unwrap());
    let request =
        rcgen::CertificateSigningRequestParams::from_pem(&String::from_utf8(request.unwrap()).unwrap()).unwrap();
    let mut parameters = rcgen::CertificateParams::default();
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "example.com/serving");
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = parameters.self_signed(&key).unwrap();
    let file = admin.directory.join("signer.crt");
    std::fs::write(&file, authority.pem()).unwrap();
    let issued = request.signed_by(&rcgen::Issuer::new(parameters, key)).unwrap();
    let issued = base64::engine::general_purpose::STANDARD.encode(issued.pem());
    let patch = serde_json::json!({"status": {"certificate": issued}}).to_string();
    admin.run(&format!("patch csr {wanted} --subresource=status --type=merge -p {patch}"), "").ok();

    let endpoint = HttpsEndpoint::new(port, &file);
    eventually("the signed certificate", || {
        let ready = endpoint.get(None, "/readyz")?;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    });
    // The certificate is kept for the next start.
    drop(sidecar);
    let port = free_port();
    let _sidecar = start(port);
    let endpoint = HttpsEndpoint::new(port, &file);
    eventually("the same certificate after a restart", || {
        let ready = endpoint.get(None, "/readyz")?;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    });
    let listed = admin.run("get csr -o name", "");
    assert_eq!(listed.ok().lines().filter(|line| line.contains("narthex-serving-")).count(), 1, "{}", listed.output);
    admin.run(&format!("delete csr {wanted}"), "").ok();
    admin.run("delete clusterrolebinding library:serving-certificate", "").ok();
}

/// sample-apiserver uses an etcd behind a sidecar: unary calls with trailers and watches as bidirectional streams.
fn grpc_etcd(environment: &TestEnvironment) {
    let directory = environment.scratch("grpc");
    let cluster = &environment.cluster;
    let serving = cluster.authorities.serving.server("etcd-sidecar", &["127.0.0.1", "localhost"]);
    let port = free_port();
    let flags = [
        "--upstream-force-h2c".to_owned(),
        format!("--tls-cert-file={}", serving.certificate.display()),
        format!("--tls-private-key-file={}", serving.key.display()),
        format!("--client-ca-file={}", cluster.authorities.client.file.display()),
        "--access-log=all".to_owned(),
    ];
    let endpoint = HttpsEndpoint::new(port, &cluster.authorities.serving.file);
    let start = || {
        let mut sidecar = begin(&directory, &cluster.etcd_url, port, &cluster.admin_kubeconfig, "etcd", &flags);
        sidecar
            .wait_until(|| if endpoint.get(None, "/readyz")?.status == 200 { Ok(()) } else { Err("not ready".into()) });
        sidecar
    };
    let running = start();

    // Clients without permission do not reach etcd.
    let refused = endpoint.get(Some(cluster.jane()), "/etcdserverpb.KV/Range").unwrap();
    assert_eq!((refused.status, &refused.json()["reason"]), (StatusCode::FORBIDDEN, &json!("Forbidden")));

    let admin = cluster.admin();
    let more = [
        format!("--etcd-servers=https://127.0.0.1:{port}"),
        format!("--etcd-cafile={}", endpoint.authority.display()),
        format!("--etcd-certfile={}", admin.certificate.display()),
        format!("--etcd-keyfile={}", admin.key.display()),
    ];
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let extension =
        Extension::start_with(cluster, &cluster.admin_kubeconfig, &directory, "behind-grpc", free_port(), &more);

    let path = "/apis/wardle.example.com/v1alpha1/namespaces/default/flunders";
    let flunder = |name: &str| json!({"apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder", "metadata": {"name": name}});
    let listed = || -> Result<Vec<String>, String> {
        let response = extension.endpoint.get(Some(admin), path)?;
        let items = response.json()["items"].as_array().cloned().ok_or_else(|| response.text())?;
        Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect())
    };
    extension.endpoint.create(admin, path, &flunder("one"));
    // The list is served from a cache that a watch fills.
    let filled = |wanted: &[&str]| {
        eventually("the written object in the watch", || {
            let listed = listed()?;
            if listed == wanted { Ok(()) } else { Err(format!("{listed:?}")) }
        });
    };
    filled(&["one"]);

    // The sidecar is killed and restarted: calls and watches continue.
    drop(running);
    let running = start();
    eventually("a write after the restart", || {
        let headers = [("content-type", "application/json")];
        let two = flunder("two").to_string();
        let response = extension.endpoint.send(Some(admin), "POST", path, &headers, two.as_bytes())?;
        if response.status == 201 || response.status == 409 { Ok(()) } else { Err(response.text()) }
    });
    filled(&["one", "two"]);

    // A watch is logged when it ends.
    drop(extension);
    eventually("access log lines of all calls", || {
        let log = running.log();
        let calls = ["/etcdserverpb.KV/Txn", "/etcdserverpb.KV/Range", "/etcdserverpb.Watch/Watch"];
        if calls.iter().all(|call| log.contains(call)) { Ok(()) } else { Err(log) }
    });
}
