//! The task "Use a SOCKS5 Proxy to Access the Kubernetes API" of the Kubernetes documentation, with `narthex socks5`
//! where it has `ssh -D`: kubectl and curl reach a kube-apiserver by it, and so does a gateway of ours.

use std::path::{Path, PathBuf};

use super::{Trial, TrialWith};
use serde_json::json;

use crate::world::{
    Front, Gateway, Konnectivity, Kubectl, Process, Stream, World, curl, eventually, free_port, kubectl_run,
};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("socks5: a kubeconfig's proxy-url leads to the API server", by_proxy_url),
    ("socks5: who may come and where to", who_and_where_to),
    ("socks5: through Konnectivity, in each of its four ways", through_konnectivity),
];

pub(super) const THROUGH: &[(&str, Trial)] = &[
    ("socks5: curl by its environment", by_environment),
    ("socks5: a gateway whose kubeconfig has a proxy-url", gateway),
];

/// A running `narthex socks5`.
pub(super) struct Door {
    pub(super) process: Process,
    pub(super) port: u16,
}

impl Door {
    pub(super) fn open(scratch: &Path, more: &[&str]) -> Door {
        let port = free_port();
        let listen = format!("--listen=127.0.0.1:{port}");
        let arguments = ["socks5", &listen, "--access-log=all"].into_iter().chain(more.iter().copied());
        let mut process = Process::start("socks5", Path::new(env!("CARGO_BIN_EXE_narthex")), arguments, scratch);
        let log = process.reader();
        process.wait_until(|| if log().contains("serving") { Ok(()) } else { Err(log()) });
        Door { process, port }
    }

    /// Waits until a record says so.
    fn recorded(&self, words: &[&str]) {
        eventually(&format!("a record with {words:?}"), || {
            let log = self.process.log();
            let found = log.lines().any(|line| words.iter().all(|word| line.contains(word)));
            if found { Ok(()) } else { Err(log) }
        });
    }
}

/// The administrator's kubeconfig with the server's name instead of its address, and a proxy.
fn kubeconfig(world: &World, scratch: &Path, proxy_url: &str) -> PathBuf {
    let text = std::fs::read(&world.cluster.admin_kubeconfig).unwrap();
    let mut document: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let cluster = &mut document["clusters"][0]["cluster"];
    cluster["server"] = format!("https://localhost:{}", world.cluster.door.port).into();
    cluster["proxy-url"] = proxy_url.into();
    let path = scratch.join(format!("{:08x}.kubeconfig", fastrand::u32(..)));
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

/// What kubectl says, and whether it is content.
fn kubectl(kubectl: &Kubectl, kubeconfig: &Path, home: &Path, words: &[&str]) -> (bool, String) {
    let mut command = kubectl.command(kubeconfig, home);
    command.args(words);
    let output = kubectl_run(command, "");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout) + &text(&output.stderr))
}

fn by_proxy_url(world: &World, program: &Kubectl) {
    let scratch = world.scratch(&format!("socks5-{}", program.version));
    let target = format!("localhost:{}", world.cluster.door.port);
    let door = Door::open(&scratch, &[&format!("--allow-destinations={target}")]);
    let through = kubeconfig(world, &scratch, &format!("socks5://127.0.0.1:{}", door.port));
    let straight = &world.cluster.admin_kubeconfig;
    for words in [&["get", "--raw", "/version"][..], &["api-resources"], &["get", "clusterroles", "-o", "name"]] {
        let (well, said) = kubectl(program, &through, &scratch, words);
        assert!(well, "{words:?}: {said}");
        assert_eq!(said, kubectl(program, straight, &scratch, words).1, "{words:?}");
    }
    // The name is the proxy's to look up, and nothing went another way.
    door.recorded(&[&format!("destination=\"{target}\""), "reply=succeeded"]);

    // A watch, an object that is written meanwhile, and then deleted.
    let namespace = format!("socks5-{:08x}", fastrand::u32(..));
    let mut command = program.command(&through, &scratch);
    command.args(["get", "namespaces", "-w", "-o", "name"]);
    let mut watch = Stream::start(command);
    let (well, said) = kubectl(program, &through, &scratch, &["create", "namespace", &namespace]);
    assert!(well, "{said}");
    watch.line_with(&namespace);
    assert!(watch.is_running());
    let (well, said) = kubectl(program, &through, &scratch, &["delete", "namespace", &namespace, "--wait=false"]);
    assert!(well, "{said}");

    // Without the proxy there is no way around it.
    drop(door);
    let (well, said) = kubectl(program, &through, &scratch, &["get", "--raw", "/version"]);
    assert!(!well && said.contains(&format!("The connection to the server {target} was refused")), "{said}");
}

fn who_and_where_to(world: &World, program: &Kubectl) {
    let scratch = world.scratch(&format!("socks5-who-{}", program.version));
    let users = scratch.join("users");
    std::fs::write(&users, "al ice:p@ss:word\n").unwrap();
    let port = world.cluster.door.port;
    let credentials = format!("--credentials-file={}", users.display());
    let door = Door::open(&scratch, &[&credentials, &format!("--allow-destinations=localhost:{port}")]);
    let ask = |user_info: &str, change: &dyn Fn(&Path)| {
        let file = kubeconfig(world, &scratch, &format!("socks5://{user_info}127.0.0.1:{}", door.port));
        change(&file);
        kubectl(program, &file, &scratch, &["get", "--raw", "/version"])
    };
    let as_it_is = |_: &Path| {};
    let (well, said) = ask("al%20ice:p%40ss%3Aword@", &as_it_is);
    assert!(well && said.contains("gitVersion"), "{said}");
    door.recorded(&["user=\"al ice\"", "reply=succeeded"]);
    // The words are Go's.
    let (well, said) = ask("al%20ice:wrong@", &as_it_is);
    assert!(!well && said.contains("username/password authentication failed"), "{said}");
    let (well, said) = ask("", &as_it_is);
    assert!(!well && said.contains("no acceptable authentication methods"), "{said}");
    let elsewhere = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap().replace("//localhost:", "//127.0.0.1:");
        std::fs::write(file, text).unwrap();
    };
    let (well, said) = ask("al%20ice:p%40ss%3Aword@", &elsewhere);
    assert!(!well && said.contains("connection not allowed by ruleset"), "{said}");
    door.recorded(&[&format!("destination=\"127.0.0.1:{port}\""), "reply=not_allowed"]);
}

fn through_konnectivity(world: &World, program: &Kubectl) {
    let target = format!("localhost:{}", world.cluster.door.port);
    for front in [Front::GrpcUnix, Front::GrpcTls, Front::ConnectUnix, Front::ConnectTls] {
        let scratch = world.scratch(&format!("socks5-{front:?}-{}", program.version));
        let mut konnectivity = Konnectivity::with_agent(&scratch, front);
        let file = scratch.join("egress.json");
        std::fs::write(&file, selector(&konnectivity).to_string()).unwrap();
        let egress = format!("--egress-selector-config-file={}", file.display());
        let door = Door::open(&scratch, &[&egress, &format!("--allow-destinations={target}")]);
        let through = kubeconfig(world, &scratch, &format!("socks5://127.0.0.1:{}", door.port));
        let straight = &world.cluster.admin_kubeconfig;
        for words in [&["get", "--raw", "/version"][..], &["get", "clusterroles", "-o", "yaml"]] {
            let (well, said) = kubectl(program, &through, &scratch, words);
            assert!(well, "{front:?} {words:?}: {said}");
            assert!(said == kubectl(program, straight, &scratch, words).1, "{front:?} {words:?}");
        }
        // While one is open, it is a tunnel of the server's.
        let mut command = program.command(&through, &scratch);
        command.args(["get", "namespaces", "-w", "-o", "name"]);
        let mut watch = Stream::start(command);
        watch.line_with("namespace/default");
        assert!(konnectivity.established() >= 1.0, "{front:?}");
        let namespace = format!("tunnel-{:08x}", fastrand::u32(..));
        world.cluster.create_namespace(&namespace);
        watch.line_with(&namespace);
        // Nothing goes around it.
        konnectivity.agents.clear();
        konnectivity.wait_for_agents(0);
        let (well, said) = kubectl(program, &through, &scratch, &["get", "--raw", "/version"]);
        assert!(!well, "{front:?}: {said}");
        door.recorded(&[&format!("destination=\"{target}\""), "reply=general_failure"]);
    }
}

/// kube-apiserver's own kind of file, but for what only ours can say.
pub(super) fn selector(konnectivity: &Konnectivity) -> serde_json::Value {
    let tls = json!({
        "url": format!("https://127.0.0.1:{}", konnectivity.port),
        "tlsConfig": {
            "caBundle": konnectivity.front_authority,
            "clientCert": konnectivity.client.certificate,
            "clientKey": konnectivity.client.key,
        },
    });
    let (version, kind) = match konnectivity.front {
        Front::GrpcTls => ("narthex.dev/v1alpha1", "EgressConfiguration"),
        _ => ("apiserver.k8s.io/v1beta1", "EgressSelectorConfiguration"),
    };
    let (protocol, transport) = match konnectivity.front {
        Front::GrpcUnix => ("GRPC", json!({"uds": {"udsName": konnectivity.socket}})),
        Front::ConnectUnix => ("HTTPConnect", json!({"uds": {"udsName": konnectivity.socket}})),
        Front::GrpcTls => ("GRPC", json!({"tcp": tls})),
        Front::ConnectTls => ("HTTPConnect", json!({"tcp": tls})),
    };
    json!({
        "apiVersion": version,
        "kind": kind,
        "egressSelections": [{"name": "cluster", "connection": {"proxyProtocol": protocol, "transport": transport}}],
    })
}

fn by_environment(world: &World) {
    let scratch = world.scratch("socks5-curl");
    let door = Door::open(&scratch, &[]);
    let proxy = format!("socks5h://127.0.0.1:{}", door.port);
    let who = Some(world.cluster.admin());
    let (status, straight) = curl(&world.cluster.door, who, "/api", &[]);
    // The flag is what HTTPS_PROXY sets, without saying so to every other curl here.
    let (through, text) = curl(&world.cluster.door, who, "/api", &["--proxy", &proxy]);
    assert_eq!((through, text), (status, straight));
    door.recorded(&["reply=succeeded"]);
    // Some megabytes.
    let (status, text) = curl(&world.cluster.door, who, "/openapi/v2", &["--proxy", &proxy]);
    assert_eq!(status, 200);
    assert_eq!(text, curl(&world.cluster.door, who, "/openapi/v2", &[]).1);
}

fn gateway(world: &World) {
    let scratch = world.scratch("socks5-gateway");
    let door = Door::open(&scratch, &[]);
    let file = kubeconfig(world, &scratch, &format!("socks5://127.0.0.1:{}", door.port));
    let file = file.to_str().unwrap();
    // Ready when it has read the registry, by the proxy.
    let gateway = Gateway::bare(
        &world.cluster,
        &scratch,
        "through-socks5",
        &[("--kubeconfig", file), ("--leader-elect", "true")],
    );
    let answer = gateway.door.get(Some(world.cluster.admin()), "/apis").unwrap();
    assert_eq!(answer.status, 200, "{}", answer.text());
    // Connections that stand have no record yet.
    drop(gateway);
    door.recorded(&[&format!("destination=\"localhost:{}\"", world.cluster.door.port), "reply=succeeded"]);
}
