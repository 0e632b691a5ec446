//! An extension API server that knows nothing of Kubernetes' certificates, tokens and RBAC: the example in Python, with
//! `narthex sidecar` in front of it, in a real cluster.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;

use super::TrialWith;
use crate::world::{
    Door, Gateway, Identity, Kubectl, Process, Session, Step, World, eventually, free_port, is_ready, kubeconfig,
};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] =
    &[("sidecar: an API server in Python", tutorial), ("sidecar: its serving certificate is asked for", certificate)];

/// What the serving certificate is for.
const NAMES: [&str; 3] = ["library.library.svc", "localhost", "127.0.0.1"];
/// There is one APIService of this name in a cluster, and each kubectl has its own sidecar.
static REGISTERED: Mutex<()> = Mutex::new(());

/// The two processes of the pod, on this machine.
struct Pod {
    door: Door,
    sidecar: Process,
    _library: Process,
}

/// What an administrator does once, with the files that the repository has for it.
struct Admin<'w> {
    world: &'w World,
    kubectl: &'w Kubectl,
    directory: PathBuf,
}

impl Admin<'_> {
    fn run(&self, words: &str, input: &str) -> Step {
        let mut command = self.kubectl.command(&self.world.cluster.admin_kubeconfig, &self.directory);
        command.args(words.split_whitespace());
        Step::run(words, command, input)
    }

    /// A kubeconfig with a token of the service account, as the pod has it.
    fn service_account(&self) -> PathBuf {
        let token = self.run("create token library -n library", "").ok().trim().to_owned();
        let cluster = &self.world.cluster;
        let file = kubeconfig::write(&self.directory, "pod", &cluster.door.url(), &cluster.door.authority, None);
        let mut document: serde_json::Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        document["users"][0]["user"]["token"] = token.into();
        std::fs::write(&file, document.to_string()).unwrap();
        file
    }

    /// Registers the sidecar. There is no network of pods here: the Service is a name of this machine.
    fn register(&self, port: u16) {
        let authority = std::fs::read_to_string(&self.world.cluster.authorities.backend.file).unwrap();
        let bundle = base64::engine::general_purpose::STANDARD.encode(authority);
        let place = format!("type: ExternalName\n  externalName: localhost\n  ports:\n  - port: {port}\n");
        let manifests = include_str!("../../../deploy/sidecar/apiservice.yaml");
        let pods = "selector:\n    app: library\n  ports:\n  - port: 443\n    targetPort: 8443\n";
        assert!(manifests.contains(pods) && manifests.contains("    port: 443\n"));
        let manifests = manifests
            .replace(pods, &place)
            .replace("    port: 443\n", &format!("    port: {port}\n"))
            .replace("CA_BUNDLE", &bundle);
        self.run("apply -f -", &manifests).ok();
    }
}

impl Pod {
    fn start(world: &World, directory: &Path, asks: &Path, name: &str) -> Pod {
        let socket = directory.join("library.sock");
        let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/python/library.py");
        let arguments = [library.as_os_str(), socket.as_os_str()];
        let library = Process::start(&format!("{name}-library"), Path::new("python3"), arguments, directory);
        let serving = world.cluster.authorities.backend.server(&format!("{name}-serving"), &NAMES);
        let flags = [
            format!("--tls-cert-file={}", serving.certificate.display()),
            format!("--tls-private-key-file={}", serving.key.display()),
            "--authorization-webhook-cache-unauthorized-ttl=0s".to_owned(),
            "--authorization-webhook-cache-authorized-ttl=0s".to_owned(),
        ];
        let (sidecar, port) = begin(directory, &socket, asks, name, &flags);
        let mut pod =
            Pod { door: Door::new(port, &world.cluster.authorities.backend.file), sidecar, _library: library };
        let Pod { door, sidecar, .. } = &mut pod;
        sidecar.wait_until(|| is_ready(door, world.cluster.admin()));
        pod
    }
}

/// The sidecar alone, which may not be ready yet, and where it listens.
fn begin(directory: &Path, socket: &Path, asks: &Path, name: &str, flags: &[String]) -> (Process, u16) {
    let port = free_port();
    let mut arguments = vec![
        "sidecar".to_owned(),
        format!("--upstream=unix:{}", socket.display()),
        format!("--secure-listen-address=127.0.0.1:{port}"),
        format!("--kubeconfig={}", asks.display()),
        "--admin-address=127.0.0.1:0".to_owned(),
        format!("--data-dir={}", directory.join("data").display()),
    ];
    arguments.extend_from_slice(flags);
    let program = Path::new(env!("CARGO_BIN_EXE_narthex"));
    (Process::start(&format!("{name}-sidecar"), program, arguments, directory), port)
}

fn tutorial(world: &World, kubectl: &Kubectl) {
    let _alone = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("sidecar-{}", kubectl.version.replace('.', "-"));
    let admin = Admin { world, kubectl, directory: world.scratch(&name) };
    admin.run("apply -f -", include_str!("../../../deploy/sidecar/rbac.yaml")).ok();
    let asks = admin.service_account();
    let pod = Pod::start(world, &admin.directory, &asks, &name);
    admin.register(pod.door.port);
    admin.run("wait --for=condition=Available apiservice/v1.library.example.com --timeout=60s", "").ok();

    // Through kube-apiserver: jane may nothing, until RBAC says that she may.
    let jane = world.cluster.jane();
    let mut session = Session::open_at(world, kubectl, &world.cluster.door, jane);
    eventually("books in discovery", || {
        let step = session.aside("api-resources --api-group=library.example.com --no-headers --cached=false");
        if step.output.contains("books") { Ok(()) } else { Err(step.output + &step.errors) }
    });
    let refused = "User \"jane\" cannot list resource \"books\" in API group \"library.example.com\"";
    session.aside("get books").refused(refused);
    let namespace = session.namespace.clone();
    let books = format!("/apis/library.example.com/v1/namespaces/{namespace}/books");
    let binding = format!("rolebinding jane-lends -n {namespace}");
    admin.run(&format!("create {binding} --clusterrole=library:librarian --user=jane"), "").ok();
    eventually("jane to be let in", || {
        let step = session.aside("get books");
        if step.success { Ok(()) } else { Err(step.errors) }
    });
    let book = "apiVersion: library.example.com/v1\nkind: Book\nmetadata: {name: emma}\nspec: {title: Emma}\n";
    session.with_input("create -f -", book).ok();
    assert!(session.kubectl("get books").ok().contains("emma"));
    let lender = "get book emma -o jsonpath={.status.lender}/{.status.groups}";
    assert_eq!(session.kubectl(lender).ok(), r#"jane/["devs","qa","system:authenticated"]"#);
    let mut watch = session.stream("get books -w --no-headers");
    watch.line_with("emma");
    session.kubectl("patch book emma --type=merge -p {\"spec\":{\"pages\":474}}").ok();
    watch.line_with("emma");
    assert_eq!(session.kubectl("get book emma -o jsonpath={.spec.pages}").ok(), "474");

    // Through a gateway of ours that follows the same cluster.
    let cluster = world.cluster.admin_kubeconfig.display().to_string();
    let flags = [("--kubeconfig", &*cluster), ("--delegate-kubeconfig", &*cluster), ("--leader-elect", "false")];
    let gateway = Gateway::bare(&world.cluster, &admin.directory, &format!("{name}-gateway"), &flags);
    through(&gateway, jane, &books);

    // Straight at the sidecar: nobody believes what a client says of itself, and RBAC decides as before.
    let straight = |who: Option<&Identity>, headers: &[(&str, &str)]| {
        let answer = pod.door.send(who, "GET", &books, headers, b"").unwrap();
        (answer.status.as_u16(), answer.text())
    };
    let root = [("x-remote-user", "root"), ("x-remote-group", "system:masters")];
    assert_eq!(straight(None, &root).0, 401);
    let bob = world.cluster.authorities.client.client(&format!("{name}-bob"), "bob", &[], None);
    let (status, text) = straight(Some(&bob), &root);
    assert!(status == 403 && text.contains(r#"User \"bob\" cannot list resource \"books\""#), "{status} {text}");
    assert_eq!(straight(Some(jane), &[]).0, 200);
    let token = admin.run("create token library -n library", "").ok().trim().to_owned();
    let bearer = format!("Bearer {token}");
    let (status, text) = straight(None, &[("authorization", &bearer)]);
    let account = r#"User \"system:serviceaccount:library:library\" cannot list"#;
    assert!(status == 403 && text.contains(account), "{status} {text}");

    admin.run(&format!("delete {binding}"), "").ok();
    eventually("jane to be let in no more", || {
        let (status, text) = straight(Some(jane), &[]);
        if status == 403 { Ok(()) } else { Err(text) }
    });
    assert!(!pod.sidecar.log().contains("ERROR"), "{}", pod.sidecar.log());
    admin.run("delete apiservice v1.library.example.com", "").ok();
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

/// Somebody approves what the sidecar asks for, and a signer signs it; until then it is not ready.
fn certificate(world: &World, kubectl: &Kubectl) {
    let name = format!("requesting-{}", kubectl.version.replace('.', "-"));
    let admin = Admin { world, kubectl, directory: world.scratch(&name) };
    admin.run("apply -f -", include_str!("../../../deploy/sidecar/rbac.yaml")).ok();
    let asks = admin.service_account();
    let socket = admin.directory.join("nobody.sock");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let flags = [
        "--request-serving-certificate=example.com/serving".to_owned(),
        format!("--serving-certificate-names={}", NAMES.join(",")),
    ];
    let (sidecar, _) = begin(&admin.directory, &socket, &asks, &name, &flags);
    eventually("the sidecar to say that it may not ask", || {
        let log = sidecar.log();
        let said = "cannot create resource \"certificatesigningrequests\"";
        if log.contains(said) { Ok(()) } else { Err(log) }
    });
    drop(sidecar);

    admin.run("apply -f -", include_str!("../../../deploy/sidecar/serving-certificate.yaml")).ok();
    let (sidecar, port) = begin(&admin.directory, &socket, &asks, &name, &flags);
    let wanted = eventually("the request", || {
        let log = sidecar.log();
        let named = log.split("kubectl certificate approve ").nth(1).and_then(|rest| rest.split_whitespace().next());
        named.map(str::to_owned).ok_or(log)
    });
    let own = Door::new(port, &admin.directory.join("data/pki/serving-ca.crt"));
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

    let door = Door::new(port, &file);
    eventually("the certificate that was signed", || {
        let ready = door.get(None, "/readyz")?;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    });
    // The next start needs no other.
    drop(sidecar);
    let (_sidecar, port) = begin(&admin.directory, &socket, &asks, &name, &flags);
    let door = Door::new(port, &file);
    eventually("the same certificate after a start", || {
        let ready = door.get(None, "/readyz")?;
        if ready.status == 200 { Ok(()) } else { Err(ready.text()) }
    });
    let listed = admin.run("get csr -o name", "");
    assert_eq!(listed.ok().lines().filter(|line| line.contains("narthex-serving-")).count(), 1, "{}", listed.output);
    admin.run(&format!("delete csr {wanted}"), "").ok();
    admin.run("delete clusterrolebinding library:serving-certificate", "").ok();
}
