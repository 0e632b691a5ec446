//! The tutorial of `docs/tutorials/sidecar.md`, typed as it is printed: an API server in Python that knows nothing of
//! Kubernetes' certificates, tokens and RBAC, with `narthex sidecar` in front of it, in a real cluster.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::TrialWith;
use crate::world::{
    Door, Gateway, Identity, Kubectl, Process, Session, World, eventually, free_port, kubeconfig, kubectl_run,
};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[("sidecar: the tutorial as it is printed", tutorial)];

/// There is one APIService of this name in a cluster, and each kubectl has its own sidecar.
static REGISTERED: Mutex<()> = Mutex::new(());

/// Somebody at a shell, who administers the cluster and types what is printed, word for word but for the port.
struct Reader {
    directory: PathBuf,
    /// What `env` is told.
    setting: Vec<String>,
    port: u16,
    printed: std::vec::IntoIter<String>,
}

impl Reader {
    /// In a folder with what the repository has, and a kubeconfig for `namespace`.
    fn sit_down(world: &World, kubectl: &Kubectl, namespace: &str) -> Reader {
        let directory = world.scratch(&format!("tutorial-{}", kubectl.version));
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

        let cluster = &world.cluster;
        let (url, authority) = (cluster.door.url(), &cluster.door.authority);
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
            // What RBAC says counts at once.
            "NARTHEX_AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL=0s".to_owned(),
            "NARTHEX_AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL=0s".to_owned(),
        ];
        let printed = blocks(include_str!("../../../docs/tutorials/sidecar.md"), "## On this machine");
        let printed: Vec<String> = printed.iter().map(|block| at_port(block, port)).collect();
        Reader { directory, setting, port, printed: printed.into_iter() }
    }

    /// The next block of the document, which must be about `what`.
    fn next(&mut self, what: &str) -> String {
        let block = self.printed.next().unwrap_or_default();
        assert!(block.contains(what), "{what} is not in\n{block}");
        block
    }

    /// Types it, and gives what was answered. The first command that fails is the last.
    fn types(&self, script: &str) -> Result<String, String> {
        let mut command = Command::new("env");
        command.args(&self.setting).args(["sh", "-e", "-c", script]);
        let output = kubectl_run(command, "");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(format!("{script}\n{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Types a block whose last command goes on in the background, and leaves it there.
    fn starts(&self, name: &str, block: &str) -> Process {
        let running = block.strip_suffix('&').unwrap_or_else(|| panic!("{block}\ndoes not go on in the background"));
        // Its last command is all lines that are tied to the last one.
        let lines: Vec<&str> = running.lines().collect();
        let begin =
            lines[..lines.len() - 1].iter().rposition(|line| !line.ends_with('\\')).map_or(0, |before| before + 1);
        self.types(&lines[..begin].join("\n")).unwrap();
        let script = format!("exec {}", lines[begin..].join("\n"));
        let arguments = self.setting.iter().map(String::as_str).chain(["sh", "-c", &script]);
        Process::start(&format!("tutorial-{name}"), Path::new("env"), arguments, &self.directory)
    }
}

/// What is to be typed below a heading of `document`.
fn blocks(document: &str, heading: &str) -> Vec<String> {
    let section = document.split_once(&format!("{heading}\n")).expect("a section of that name").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let typed = section.split("```sh\n").skip(1);
    typed.map(|rest| rest.split("\n```").next().unwrap_or_default().to_owned()).collect()
}

/// The same at a port of this test's own, on loopback.
fn at_port(text: &str, port: u16) -> String {
    text.replace("0.0.0.0:8443", "127.0.0.1:8443").replace("8443", &port.to_string())
}

fn tutorial(world: &World, kubectl: &Kubectl) {
    let _alone = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let jane = world.cluster.jane();
    let mut session = Session::open_at(world, kubectl, &world.cluster.door, jane);
    let mut reader = Reader::sit_down(world, kubectl, &session.namespace);

    // The server, and the sidecar before it.
    let block = reader.next("library.py");
    let _library = reader.starts("library", &block);
    let block = reader.next("curl --unix-socket");
    let said = eventually("the server alone", || reader.types(&block));
    assert!(said.contains("APIResourceList"), "{said}");
    let block = reader.next("deploy/sidecar/rbac.yaml");
    reader.types(&block).unwrap();
    let mode = std::fs::metadata(reader.directory.join("sidecar.kubeconfig")).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "others may read the token: {mode:o}");
    let block = reader.next("narthex sidecar");
    let mut sidecar = reader.starts("sidecar", &block);
    let log = sidecar.reader();
    sidecar.wait_until(|| if log().contains("upstream reachable") { Ok(()) } else { Err(log()) });
    let block = reader.next("/readyz");
    assert_eq!(eventually("the sidecar being ready", || reader.types(&block)), "ok");

    // The cluster: jane may nothing, until RBAC says that she may.
    let block = reader.next("deploy/sidecar/here.yaml");
    reader.types(&block).unwrap();
    let block = reader.next("kubectl api-resources");
    eventually("books in discovery", || {
        let said = reader.types(&block)?;
        if said.contains("books") { Ok(()) } else { Err(said) }
    });
    let refused = "User \"jane\" cannot list resource \"books\" in API group \"library.example.com\"";
    session.aside("get books").refused(refused);
    let block = reader.next("kubectl create rolebinding");
    let said = reader.types(&block).unwrap();
    assert!(said.contains("book.library.example.com/emma created") && said.ends_with("admin"), "{said}");
    let block = reader.next("--as jane");
    let said = eventually("jane to be let in", || reader.types(&block));
    assert!(said.contains("emma"), "{said}");
    let last = reader.next("kubectl delete");
    assert_eq!(reader.printed.next(), None, "a block that nobody typed");

    // What a person does with books besides.
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
    for (title, said) in [("Persuasion", "created"), ("Persuasion", "unchanged"), ("Lady Susan", "configured")] {
        let book = book.replace("Sense", title).replace("sense", "applied");
        let step = session.with_input("apply -f -", &book);
        assert!(step.ok().contains(&format!("book.library.example.com/applied {said}")), "{}", step.output);
    }
    assert_eq!(session.kubectl("get book applied -o jsonpath={.spec.title}").ok(), "Lady Susan");
    session.kubectl("label book applied shelf=a").ok();
    session.kubectl("delete book applied").ok();
    session.aside("get book applied").refused("books.library.example.com \"applied\" not found");

    // Through a gateway of ours that follows the same cluster.
    let books = format!("/apis/library.example.com/v1/namespaces/{}/books", session.namespace);
    let cluster = world.cluster.admin_kubeconfig.display().to_string();
    let flags = [("--kubeconfig", &*cluster), ("--delegate-kubeconfig", &*cluster), ("--leader-elect", "false")];
    let name = format!("tutorial-{}", kubectl.version);
    let gateway = Gateway::bare(&world.cluster, &reader.directory, &name, &flags);
    through(&gateway, jane, &books);

    // Straight at the sidecar: nobody believes what a client says of itself, and RBAC decides as before.
    let door = Door::new(reader.port, &reader.directory.join("pki/backend-ca.crt"));
    let straight = |who: Option<&Identity>, headers: &[(&str, &str)]| {
        let answer = door.send(who, "GET", &books, headers, b"").unwrap();
        (answer.status.as_u16(), answer.text())
    };
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    assert_eq!(straight(None, &root).0, 401);
    let bob = world.cluster.authorities.client.client(&format!("{name}-bob"), "bob", &[], None);
    let (status, text) = straight(Some(&bob), &root);
    assert!(status == 403 && text.contains(r#"User \"bob\" cannot list resource \"books\""#), "{status} {text}");
    assert_eq!(straight(Some(jane), &[]).0, 200);
    let token = reader.types("kubectl create token library -n library").unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let (status, text) = straight(None, &[("authorization", &bearer)]);
    let account = r#"User \"system:serviceaccount:library:library\" cannot list"#;
    assert!(status == 403 && text.contains(account), "{status} {text}");

    reader.types(&last).unwrap();
    eventually("jane to be let in no more", || {
        let (status, text) = straight(Some(jane), &[]);
        if status == 403 { Ok(()) } else { Err(text) }
    });
    assert!(!sidecar.log().contains("ERROR"), "{}", sidecar.log());
}

/// The gateway comes as a front proxy by the same authority as kube-apiserver does.
fn through(gateway: &Gateway, who: &Identity, books: &str) {
    eventually("books through narthex", || {
        let answer = gateway.door.get(Some(who), books)?;
        if answer.status != 200 {
            return Err(answer.text());
        }
        let list = answer.json();
        assert_eq!(list["items"][0]["metadata"]["name"], "emma", "{list}");
        Ok(())
    });
}
