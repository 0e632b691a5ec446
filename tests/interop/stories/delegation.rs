//! The gateway that asks a real kube-apiserver who somebody is and what they may, beside the real extension server
//! that does the same: the same requests, the same answers, the same user.

use std::path::PathBuf;
use std::sync::Mutex;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::TrialWith;
use crate::world::{Answer, Door, Gateway, Identity, Kubectl, World, eventually, kubectl_run};

pub(super) const WITH_KUBECTL: &[(&str, TrialWith)] = &[
    ("delegated: who is asking, and may they", judged_alike),
    ("delegated: a bound token ends with its object", bound),
    ("delegated: a right is given and taken away", rights),
];

const GROUP: &str = "/apis/wardle.example.com/v1alpha1";

/// Service accounts of one trial, and two ways to the extension server.
pub(super) struct Scene<'w> {
    pub(super) world: &'w World,
    pub(super) kubectl: &'w Kubectl,
    pub(super) gateway: Gateway,
    pub(super) namespace: String,
}

/// Who asks: by which certificate and which headers.
struct Asker<'s> {
    name: &'static str,
    certificate: Option<&'s Identity>,
    authorization: Option<String>,
}

impl<'w> Scene<'w> {
    pub(super) fn open(world: &'w World, kubectl: &'w Kubectl, name: &str) -> Scene<'w> {
        let name = &format!("{name}-{}", kubectl.version.replace('.', "-"));
        let kubeconfig = least_privileged(world, kubectl);
        let kubeconfig = kubeconfig.to_str().unwrap();
        let gateway = Gateway::start(
            &world.cluster,
            &world.extension,
            &world.scratch(name),
            name,
            &[
                ("--authentication-kubeconfig", kubeconfig),
                ("--authorization-kubeconfig", kubeconfig),
                ("--authorization-mode", "Webhook"),
                // Whom to believe, the cluster says: as for the extension server.
                ("--client-ca-file", ""),
                ("--requestheader-client-ca-file", ""),
                // The extension server lets everybody try, whatever it is told.
                ("--anonymous-auth", "true"),
                ("--log-level", "debug"),
            ],
        );
        let namespace = format!("{name}-{:08x}", fastrand::u32(..));
        world.cluster.create_namespace(&namespace);
        let scene = Scene { world, kubectl, gateway, namespace };
        for account in ["bob", "alice"] {
            scene.kubectl(&["create", "serviceaccount", account]);
        }
        let binding = format!("{}-bob", scene.namespace);
        let subject = format!("--serviceaccount={}:bob", scene.namespace);
        scene.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=flunder-keeper", &subject]);
        scene
    }

    /// What kubectl says to the cluster's admin.
    pub(super) fn kubectl(&self, words: &[&str]) -> String {
        let home = self.world.scratch(&self.namespace);
        let mut command = self.kubectl.command(&self.world.cluster.admin_kubeconfig, &home);
        command.arg("-n").arg(&self.namespace).args(words);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(super) fn token(&self, account: &str, more: &[&str]) -> String {
        self.kubectl(&[&["create", "token", account], more].concat())
    }

    /// The extension server itself, and the gateway before it.
    pub(super) fn doors(&self) -> [&Door; 2] {
        [&self.world.extension.door, &self.gateway.door]
    }

    fn ask(&self, door: &Door, asker: &Asker<'_>, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut headers = vec![("accept", "application/json")];
        if !body.is_empty() {
            headers.push(("content-type", "application/json"));
        }
        headers.extend(asker.authorization.as_deref().map(|value| ("authorization", value)));
        door.send(asker.certificate, method, path, &headers, body).unwrap()
    }

    /// Waits until RBAC knows of bob's binding everywhere, so that no answer depends on how fast it traveled.
    fn settle(&self, bob: &Asker<'_>) {
        for door in self.doors() {
            eventually("bob to be allowed", || {
                let answer = self.ask(door, bob, "GET", &format!("{GROUP}/flunders"), b"");
                if answer.status == 200 { Ok(()) } else { Err(answer.text()) }
            });
        }
    }
}

/// A kubeconfig of the service account that `deploy/delegation/rbac.yaml` makes, which may ask and do nothing else.
fn least_privileged(world: &World, kubectl: &Kubectl) -> PathBuf {
    static MADE: Mutex<()> = Mutex::new(());
    // One at a time: two that apply the same at once would be in each other's way.
    let _one = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = world.scratch("narthex-service-account");
    let kubectl = |words: &[&str]| {
        let mut command = kubectl.command(&world.cluster.admin_kubeconfig, &directory);
        command.args(words);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    kubectl(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/delegation/rbac.yaml")]);
    let token = kubectl(&["create", "token", "narthex", "-n", "narthex"]);
    std::fs::write(directory.join("token"), token).unwrap();
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": world.cluster.door.url(), "certificate-authority": world.cluster.door.authority,
        }}],
        "users": [{"name": "narthex", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "narthex"}}],
        "current-context": "c",
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

fn bearer(name: &'static str, token: &str) -> Asker<'static> {
    Asker { name, certificate: None, authorization: Some(format!("Bearer {token}")) }
}

/// The same token with other claims, signed as the kube-apiserver signs.
fn signed_again(world: &World, token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut parts = token.split('.');
    let (header, payload) = (parts.next().unwrap(), parts.next().unwrap());
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    change(&mut claims);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let pem = std::fs::read_to_string(&world.cluster.authorities.service_account.0).unwrap();
    let key = rcgen::KeyPair::from_pem(&pem).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap();
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

fn judged_alike(world: &World, kubectl: &Kubectl) {
    let scene = Scene::open(world, kubectl, "delegating");
    let bob = scene.token("bob", &[]);
    let now = jiff::Timestamp::now().as_second();
    let again = signed_again(world, &bob, |_| {});
    let expired = signed_again(world, &bob, |claims| {
        claims["exp"] = json!(now - 60);
        claims["iat"] = json!(now - 3600);
        claims["nbf"] = json!(now - 3600);
    });
    let not_yet = signed_again(world, &bob, |claims| claims["nbf"] = json!(now + 3600));
    let mut forged = bob.clone();
    forged.pop();
    let plain = |name, value: &str| Asker { name, certificate: None, authorization: Some(value.to_owned()) };
    let jane = world.cluster.jane();
    let impostor = &world.cluster.authorities.impostor;
    let askers = [
        bearer("bob", &bob),
        bearer("bob, signed by us as by the API server", &again),
        bearer("alice, who may nothing", &scene.token("alice", &[])),
        bearer("bob, whose token ended", &expired),
        bearer("bob, whose token has not begun", &not_yet),
        bearer("bob, for another audience", &scene.token("bob", &["--audience=elsewhere"])),
        bearer("bob, with a signature cut short", &forged),
        bearer(
            "alg none",
            &format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), bob.split('.').nth(1).unwrap()),
        ),
        bearer("garbage", "garbage"),
        bearer("a long one", &"x".repeat(20_000)),
        plain("another scheme", "Basic Ym9iOmJvYg=="),
        plain("a scheme alone", "Bearer"),
        plain("lower case and blanks", &format!("bearer {bob} trailing words")),
        plain("two blanks", &format!("Bearer  {bob}")),
        Asker { name: "nobody", certificate: None, authorization: None },
        Asker { name: "jane", certificate: Some(jane), authorization: None },
        Asker { name: "jane with bob's token", certificate: Some(jane), authorization: Some(format!("Bearer {bob}")) },
        Asker { name: "jane with garbage", certificate: Some(jane), authorization: Some("Bearer garbage".to_owned()) },
        Asker { name: "an impostor", certificate: Some(impostor), authorization: None },
        Asker {
            name: "an impostor with bob's token",
            certificate: Some(impostor),
            authorization: Some(format!("Bearer {bob}")),
        },
    ];
    scene.settle(&askers[0]);
    let namespaced = format!("{GROUP}/namespaces/{}/flunders", scene.namespace);
    let requests = [
        ("GET", format!("{GROUP}/flunders")),
        ("GET", namespaced.clone()),
        ("GET", format!("{namespaced}?labelSelector=a%3Db,c&fieldSelector=metadata.name%3Dx")),
        ("GET", format!("{namespaced}/missing")),
        ("GET", format!("{namespaced}/missing/status")),
        ("DELETE", format!("{GROUP}/fischers/missing")),
        ("DELETE", format!("{GROUP}/fischers")),
        ("GET", format!("{GROUP}/fischers?watch=true&timeoutSeconds=1")),
        ("POST", namespaced),
        ("GET", GROUP.to_owned()),
        ("GET", "/metrics/any".to_owned()),
        ("GET", "/nothing%20%22%3Chere%3E".to_owned()),
        ("PURGE", "/nothing".to_owned()),
    ];
    let mut differences = Vec::new();
    for asker in &askers {
        for (method, path) in &requests {
            // Something that validation refuses: who may create gets as far as that.
            let body: &[u8] = if *method == "POST" { b"{}" } else { b"" };
            let [direct, through] = scene.doors().map(|door| {
                let answer = scene.ask(door, asker, method, path, body);
                (answer.status, blanked(&answer.text()), answer.headers.get("www-authenticate").cloned())
            });
            if direct != through {
                differences
                    .push(format!("{} {method} {path}:\n  direct  {direct:?}\n  through {through:?}", asker.name));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));

    for asker in &askers[..2] {
        let users = scene.doors().map(|door| {
            let mark = format!("mark-{:08x}", fastrand::u32(..));
            let path = format!("{GROUP}/flunders?fieldSelector=metadata.name%3D{mark}");
            assert_eq!(scene.ask(door, asker, "GET", &path, b"").status, 200);
            world.extension.audited(&mark)["user"].clone()
        });
        assert_eq!(users[0]["username"], format!("system:serviceaccount:{}:bob", scene.namespace));
        assert!(users[0]["uid"].is_string() && users[0]["extra"].is_object(), "{}", users[0]);
        assert_eq!(users[0], users[1], "directly, and through narthex");
    }

    // What the gateway refused, nobody behind it saw.
    let mark = format!("unseen-{:08x}", fastrand::u32(..));
    for asker in &askers[2..6] {
        let path = format!("{GROUP}/fischers/{mark}");
        assert!(scene.ask(&scene.gateway.door, asker, "DELETE", &path, b"").status.is_client_error());
    }
    let seen = format!("seen-{:08x}", fastrand::u32(..));
    scene.ask(
        &scene.gateway.door,
        &askers[0],
        "GET",
        &format!("{GROUP}/flunders?fieldSelector=metadata.name%3D{seen}"),
        b"",
    );
    world.extension.audited(&seen);
    assert!(!world.extension.has_audited(&mark));

    // A front proxy that the cluster names is believed, by either server, and nobody else is one.
    let proxy = &world.cluster.authorities.front_proxy;
    for (certificate, status) in [(proxy, 200), (impostor, 401)] {
        for door in scene.doors() {
            let headers = [("x-remote-user", "jane"), ("x-remote-group", "devs")];
            let answer = door.send(Some(certificate), "GET", &format!("{GROUP}/flunders"), &headers, b"").unwrap();
            assert_eq!(answer.status, status, "{}", answer.text());
        }
    }
}

fn bound(world: &World, kubectl: &Kubectl) {
    let scene = Scene::open(world, kubectl, "bound");
    scene.kubectl(&["create", "secret", "generic", "anchor"]);
    let token = scene.token("bob", &["--bound-object-kind=Secret", "--bound-object-name=anchor"]);
    let bob = bearer("bob", &token);
    scene.settle(&bob);
    scene.kubectl(&["delete", "secret", "anchor"]);
    for door in scene.doors() {
        // Within the time that answers are believed, and the API server's own.
        eventually("the token to end with its secret", || {
            let answer = scene.ask(door, &bob, "GET", &format!("{GROUP}/flunders"), b"");
            if answer.status == 401 { Ok(()) } else { Err(answer.text()) }
        });
    }
}

fn rights(world: &World, kubectl: &Kubectl) {
    let scene = Scene::open(world, kubectl, "rights");
    let alice = bearer("alice", &scene.token("alice", &[]));
    let (binding, subject) =
        (format!("{}-alice", scene.namespace), format!("--serviceaccount={}:alice", scene.namespace));
    let give = || scene.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=flunder-keeper", &subject]);
    let take = || scene.kubectl(&["delete", "clusterrolebinding", &binding]);
    for (change, status) in [(&give as &dyn Fn() -> String, 200), (&take, 403), (&give, 200)] {
        change();
        for door in scene.doors() {
            // Within the time that answers are believed.
            eventually(&format!("alice to be answered {status}"), || {
                let answer = scene.ask(door, &alice, "GET", &format!("{GROUP}/flunders"), b"");
                if answer.status == status { Ok(()) } else { Err(answer.text()) }
            });
        }
    }
}

/// What differs from one request to the next whatever happens.
pub(super) fn blanked(text: &str) -> String {
    let version = regex::Regex::new(r#""resourceVersion":"\d+""#).unwrap();
    version.replace_all(text, r#""resourceVersion":"N""#).into_owned()
}
