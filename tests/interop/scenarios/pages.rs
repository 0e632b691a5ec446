//! Command blocks of the documents that need kubectl, curl, API servers or Konnectivity.

use std::path::Path;

use super::TestFn;
use crate::environment::{TestEnvironment, free_port, peer};
use crate::page_runner::PageEnvironment;

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("page README.md", |environment| run(environment, "README.md")),
    ("page docs/tutorials/quickstart.md", |environment| run(environment, "docs/tutorials/quickstart.md")),
    ("page docs/tutorials/extension-api-server.md", |environment| {
        run(environment, "docs/tutorials/extension-api-server.md")
    }),
    ("page docs/tutorials/standalone.md", |environment| run(environment, "docs/tutorials/standalone.md")),
    ("page docs/tutorials/api-server.md", |environment| run(environment, "docs/tutorials/api-server.md")),
    ("page docs/tutorials/custom-resources.md", |environment| run(environment, "docs/tutorials/custom-resources.md")),
    ("page docs/tutorials/cluster.md", |environment| run(environment, "docs/tutorials/cluster.md")),
    ("page docs/tutorials/two-schedulers.md", |environment| run(environment, "docs/tutorials/two-schedulers.md")),
    ("page docs/tutorials/egress.md", |environment| run(environment, "docs/tutorials/egress.md")),
    ("page docs/how-to/authentication.md", |environment| run(environment, "docs/how-to/authentication.md")),
    ("page docs/how-to/authorization.md", |environment| run(environment, "docs/how-to/authorization.md")),
    ("page docs/how-to/give-access.md", |environment| run(environment, "docs/how-to/give-access.md")),
    ("page docs/how-to/service-account-tokens.md", |environment| {
        run(environment, "docs/how-to/service-account-tokens.md")
    }),
    ("page docs/how-to/impersonation.md", |environment| run(environment, "docs/how-to/impersonation.md")),
    ("page docs/how-to/audit.md", |environment| run(environment, "docs/how-to/audit.md")),
    ("page docs/how-to/cors.md", |environment| run(environment, "docs/how-to/cors.md")),
    ("page docs/how-to/konnectivity.md", |environment| run(environment, "docs/how-to/konnectivity.md")),
    ("page docs/how-to/local-proxy.md", |environment| run(environment, "docs/how-to/local-proxy.md")),
    ("page docs/how-to/control-planes.md", |environment| run(environment, "docs/how-to/control-planes.md")),
    ("page docs/how-to/cluster-registry.md", |environment| run(environment, "docs/how-to/cluster-registry.md")),
    ("page docs/how-to/rate-limiting.md", |environment| run(environment, "docs/how-to/rate-limiting.md")),
    ("page docs/tutorials/kube-rbac-proxy.md", |environment| run(environment, "docs/tutorials/kube-rbac-proxy.md")),
    ("page docs/how-to/sidecar-rules.md", |environment| run(environment, "docs/how-to/sidecar-rules.md")),
];

/// Ports that pages name; each is replaced by a free port.
const PORTS: [u16; 13] = [1080, 6443, 6480, 8001, 8002, 8003, 8080, 8132, 8133, 8134, 8135, 8136, 8443];

fn run(environment: &TestEnvironment, path: &str) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(repository.join(path)).unwrap();
    // The last part alone: a socket below it must not have a long path.
    let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".md").to_owned();
    let ports = PORTS.map(|port| (port, free_port()));
    let port = |wanted: u16| ports.iter().find(|(port, _)| *port == wanted).map(|(_, free)| *free).unwrap();
    let mut replacements: Vec<(String, String)> =
        ports.iter().map(|(port, free)| (port.to_string(), free.to_string())).collect();
    // All pages share one etcd, each with its own prefix.
    replacements
        .push(("http://127.0.0.1:2379".to_owned(), format!("{} --etcd-prefix=/{name}", environment.cluster.etcd_url)));
    let front_proxy = &environment.cluster.authorities.front_proxy;
    for (file, source) in [
        ("front-proxy-client.crt", &front_proxy.certificate),
        ("front-proxy-client.key", &front_proxy.key),
        ("front-proxy-ca.crt", &environment.cluster.authorities.request_header.file),
    ] {
        replacements.push((format!("/etc/kubernetes/pki/{file}"), source.display().to_string()));
    }
    // No namespace controller runs here, and group `devs` has all verbs on flunders already.
    replacements.push(("kubectl delete -f".to_owned(), "kubectl delete --wait=false -f".to_owned()));
    if path.ends_with("/extension-api-server.md") {
        replacements.push(("--group devs".to_owned(), "--group visitors".to_owned()));
    }
    let narthex = format!(
        "program='{}'\n\
         case \"$1\" in\n\
         gateway|sidecar|quickstart|status) export NARTHEX_ADMIN_ADDRESS=127.0.0.1:{};;\n\
         esac\n\
         case \"$1\" in\n\
         gateway|quickstart) export NARTHEX_SECURE_PORT={};;\n\
         socks5) export NARTHEX_LISTEN=127.0.0.1:{};;\n\
         esac\n\
         if test \"$1 $2\" = 'pki init'; then\n\
         \"$program\" \"$@\" && sed -i 's/:6443/:{}/' pki/admin.kubeconfig\n\
         else\n\
         exec bash -c 'exec -a \"$0\" \"$@\"' \"$0\" \"$program\" \"$@\"\n\
         fi",
        env!("CARGO_BIN_EXE_narthex"),
        port(6480),
        port(6443),
        port(1080),
        port(6443),
    );
    let mut programs = vec![("narthex".to_owned(), narthex)];
    for name in [
        "kubectl",
        "sample-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "konnectivity-server",
        "konnectivity-agent",
    ] {
        programs.push((name.to_owned(), format!("exec '{}' \"$@\"", peer(name).display())));
    }
    // `cargo run --profile quick -- quickstart` in a first terminal; the second terminal starts once its instructions are printed.
    let quickstart = "while [ \"$1\" != -- ]; do shift; done; shift\n\
         narthex \"$@\" > quickstart.log 2>&1 &\n\
         for attempt in $(seq 100); do\n\
         grep --quiet '^Ctrl-C ends it' quickstart.log && exit\n\
         sleep 0.2\n\
         done\n\
         cat quickstart.log\n\
         exit 1";
    programs.push(("cargo".to_owned(), quickstart.to_owned()));
    // kubectl's default kubeconfig, and one for the sidecar.
    let directory = environment.scratch(&name);
    std::fs::create_dir_all(directory.join(".kube")).unwrap();
    for file in [".kube/config", "sidecar.kubeconfig"] {
        std::fs::copy(&environment.cluster.admin_kubeconfig, directory.join(file)).unwrap();
    }
    let page_environment = PageEnvironment { directory, programs, replacements, gateway_port: Some(port(6443)) };
    page_environment.run(path, &page);
}
