//! Runs the commands of `docs/tutorials/sidecar.md`: a Python API server without TLS, authentication and RBAC, with
//! `narthex sidecar` in front of it, in a real cluster.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::KubectlTestFn;
use crate::environment::{
    Gateway, HttpsEndpoint, Identity, Kubectl, Process, Session, TestEnvironment, eventually, free_port, kubeconfig,
    kubectl_run,
};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[("sidecar: tutorial", tutorial)];

/// Serialized: a cluster has one APIService of this name, and each kubectl has its own sidecar.
static REGISTERED: Mutex<()> = Mutex::new(());

/// A shell of the cluster admin that runs the printed commands unchanged except for the port.
struct TutorialShell {
    directory: PathBuf,
    /// Environment variables for `env`.
    setting: Vec<String>,
    port: u16,
    printed: std::vec::IntoIter<String>,
}

impl TutorialShell {
    /// Creates a folder with the repository's files and a kubeconfig for `namespace`.
    fn new(environment: &TestEnvironment, kubectl: &Kubectl, namespace: &str) -> TutorialShell {
        let directory = environment.scratch(&format!("tutorial-{}", kubectl.version));
        let (repository, port) = (Path::new(env!("CARGO_MANIFEST_DIR")), free_port());
        symlink(repository.join("examples"), directory.join("examples")).unwrap();
        let (deploy, tools) = (directory.join("deploy/sidecar"), directory.join("tools"));
        std::fs::create_dir_all(&deploy).unwrap();
        for entry in std::fs::read_dir(repository.join("deploy/sidecar")).unwrap() {
            let entry = entry.unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            std::fs::write(deploy.join(entry.file_name()), at_port(&text, port)).unwrap();
        }
        std::fs::create_dir_all(&tools).unwrap();
        symlink(&kubectl.program, tools.join("kubectl")).unwrap();
        symlink(env!("CARGO_BIN_EXE_narthex"), tools.join("narthex")).unwrap();

        let cluster = &environment.cluster;
        let (url, authority) = (cluster.endpoint.url(), &cluster.endpoint.authority);
        let file = kubeconfig::write(&directory, "admin", &url, authority, Some(cluster.admin()));
        let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        document["contexts"][0]["context"]["namespace"] = namespace.into();
        std::fs::write(&file, document.to_string()).unwrap();

        let path = std::env::var("PATH").unwrap();
        let setting = vec![
            format!("--chdir={}", directory.display()),
            format!("PATH={}:{path}", tools.display()),
            format!("HOME={}", directory.display()),
            format!("KUBECONFIG={}", file.display()),
            "NARTHEX_ADMIN_ADDRESS=127.0.0.1:0".to_owned(),
            // Authorization results are not cached.
            "NARTHEX_AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL=0s".to_owned(),
            "NARTHEX_AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL=0s".to_owned(),
        ];
        let printed = blocks(include_str!("../../../docs/tutorials/sidecar.md"), "## On this machine");
        let printed: Vec<String> = printed.iter().map(|block| at_port(block, port)).collect();
        TutorialShell { directory, setting, port, printed: printed.into_iter() }
    }

    /// Returns the next block of the document and asserts that it contains `what`.
    fn next(&mut self, what: &str) -> String {
        let block = self.printed.next().unwrap_or_default();
        assert!(block.contains(what), "{what} is not in\n{block}");
        block
    }

    /// Runs a block with `sh -e` and returns its output.
    fn run_block(&self, script: &str) -> Result<String, String> {
        let mut command = Command::new("env");
        command.args(&self.setting).args(["sh", "-e", "-c", script]);
        let output = kubectl_run(command, "");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(text),
            false => Err(format!("{script}\n{text}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Runs a block whose last command is a background process, and returns that process.
    fn start_in_background(&self, name: &str, block: &str) -> Process {
        let running = block.strip_suffix('&').unwrap_or_else(|| panic!("{block}\nis not a background process"));
        // The last command includes lines joined by a backslash.
        let lines: Vec<&str> = running.lines().collect();
        let begin =
            lines[..lines.len() - 1].iter().rposition(|line| !line.ends_with('\\')).map_or(0, |before| before + 1);
        self.run_block(&lines[..begin].join("\n")).unwrap();
        let script = format!("exec {}", lines[begin..].join("\n"));
        let arguments = self.setting.iter().map(String::as_str).chain(["sh", "-c", &script]);
        Process::start(&format!("tutorial-{name}"), Path::new("env"), arguments, &self.directory)
    }
}

/// Code blocks below a heading of `document`.
fn blocks(document: &str, heading: &str) -> Vec<String> {
    let section = document.split_once(&format!("{heading}\n")).expect("a section of that name").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let typed = section.split("```sh\n").skip(1);
    typed.map(|rest| rest.split("\n```").next().unwrap_or_default().to_owned()).collect()
}

/// Replaces the port by the test's port on loopback.
fn at_port(text: &str, port: u16) -> String {
    text.replace("0.0.0.0:8443", "127.0.0.1:8443").replace("8443", &port.to_string())
}

fn tutorial(environment: &TestEnvironment, kubectl: &Kubectl) {
    let _alone = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let jane = environment.cluster.jane();
    let mut session = Session::open_at(environment, kubectl, &environment.cluster.endpoint, jane);
    let mut shell = TutorialShell::new(environment, kubectl, &session.namespace);

    // The server and its sidecar.
    let block = shell.next("library.py");
    let _library = shell.start_in_background("library", &block);
    let block = shell.next("--unix-socket");
    let output = eventually("the server without sidecar", || shell.run_block(&block));
    assert!(output.contains("APIResourceList"), "{output}");
    let block = shell.next("deploy/sidecar/rbac.yaml");
    shell.run_block(&block).unwrap();
    let mode = std::fs::metadata(shell.directory.join("sidecar.kubeconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "the token file is readable by others: {mode:o}");
    let block = shell.next("narthex sidecar");
    let mut sidecar = shell.start_in_background("sidecar", &block);
    let log = sidecar.reader();
    sidecar.wait_until(|| if log().contains("upstream reachable") { Ok(()) } else { Err(log()) });
    let block = shell.next("/readyz");
    assert_eq!(eventually("the sidecar to be ready", || shell.run_block(&block)), "ok");

    // In the cluster: jane has no permission until an RBAC binding exists.
    let block = shell.next("deploy/sidecar/here.yaml");
    shell.run_block(&block).unwrap();
    let block = shell.next("kubectl api-resources");
    eventually("books in discovery", || {
        let output = shell.run_block(&block)?;
        if output.contains("books") { Ok(()) } else { Err(output) }
    });
    let refused = "User \"jane\" cannot list resource \"books\" in API group \"library.example.com\"";
    session.run_unrecorded("get books").expect_error(refused);
    let block = shell.next("kubectl create rolebinding");
    let output = shell.run_block(&block).unwrap();
    assert!(output.contains("book.library.example.com/emma created") && output.ends_with("admin"), "{output}");
    let block = shell.next("--as jane");
    let output = eventually("jane authorized", || shell.run_block(&block));
    assert!(output.contains("emma"), "{output}");
    let last = shell.next("kubectl delete");
    assert_eq!(shell.printed.next(), None, "a block that was not run");

    // Further kubectl commands.
    let book = "apiVersion: library.example.com/v1\nkind: Book\nmetadata: {name: sense}\nspec: {title: Sense}\n";
    session.with_input("create -f -", book).ok();
    assert!(session.kubectl("get books").ok().contains("sense"));
    let lender = "get book sense -o jsonpath={.status.lender}/{.status.groups}";
    assert_eq!(session.kubectl(lender).ok(), r#"jane/["devs","qa","system:authenticated"]"#);
    let mut watch = session.stream("get books sense -w --no-headers");
    watch.line_with("sense");
    let forged = "{\"spec\":{\"pages\":474},\"status\":{\"lender\":\"root\"}}";
    session.kubectl(&format!("patch book sense --type=merge -p {forged}")).ok();
    watch.line_with("sense");
    assert_eq!(session.kubectl("get book sense -o jsonpath={.spec.pages}/{.status.lender}").ok(), "474/jane");
    for (title, output) in [("Persuasion", "created"), ("Persuasion", "unchanged"), ("Lady Susan", "configured")] {
        let book = book.replace("Sense", title).replace("sense", "applied");
        let step = session.with_input("apply -f -", &book);
        assert!(step.ok().contains(&format!("book.library.example.com/applied {output}")), "{}", step.output);
    }
    assert_eq!(session.kubectl("get book applied -o jsonpath={.spec.title}").ok(), "Lady Susan");
    session.kubectl("label book applied shelf=a").ok();
    session.kubectl("delete book applied").ok();
    session.run_unrecorded("get book applied").expect_error("books.library.example.com \"applied\" not found");

    // Through a gateway with the same cluster as registry.
    let books = format!("/apis/library.example.com/v1/namespaces/{}/books", session.namespace);
    let cluster = environment.cluster.admin_kubeconfig.display().to_string();
    let flags = [("--kubeconfig", &*cluster), ("--delegate-kubeconfig", &*cluster), ("--leader-elect", "false")];
    let name = format!("tutorial-{}", kubectl.version);
    let gateway = Gateway::start_without_registry(&environment.cluster, &shell.directory, &name, &flags);
    list_through_gateway(&gateway, jane, &books);

    // Direct requests to the sidecar: identity headers of a client are ignored, and RBAC applies.
    let endpoint = HttpsEndpoint::new(shell.port, &shell.directory.join("pki/backend-ca.crt"));
    let direct = |identity: Option<&Identity>, headers: &[(&str, &str)]| {
        let response = endpoint.send(identity, "GET", &books, headers, b"").unwrap();
        (response.status.as_u16(), response.text())
    };
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    assert_eq!(direct(None, &root).0, 401);
    let bob = environment.cluster.authorities.client.client(&format!("{name}-bob"), "bob", &[], None);
    let (status, text) = direct(Some(&bob), &root);
    assert!(status == 403 && text.contains(r#"User \"bob\" cannot list resource \"books\""#), "{status} {text}");
    assert_eq!(direct(Some(jane), &[]).0, 200);
    let token = shell.run_block("kubectl create token library -n library").unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let (status, text) = direct(None, &[("authorization", &bearer)]);
    let account = r#"User \"system:serviceaccount:library:library\" cannot list"#;
    assert!(status == 403 && text.contains(account), "{status} {text}");

    shell.run_block(&last).unwrap();
    eventually("jane denied", || {
        let (status, text) = direct(Some(jane), &[]);
        if status == 403 { Ok(()) } else { Err(text) }
    });
    assert!(!sidecar.log().contains("ERROR"), "{}", sidecar.log());
}

/// The gateway's front proxy certificate has the same CA as kube-apiserver's.
fn list_through_gateway(gateway: &Gateway, identity: &Identity, books: &str) {
    eventually("books through narthex", || {
        let response = gateway.endpoint.get(Some(identity), books)?;
        if response.status != 200 {
            return Err(response.text());
        }
        let list = response.json();
        assert_eq!(list["items"][0]["metadata"]["name"], "emma", "{list}");
        Ok(())
    });
}
