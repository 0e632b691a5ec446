//! Who asks, what they may, and the two doors before one server.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{Door, Identity, Process, Said, Speaks, World, echo, eventually, free_port, peer, runtime};

/// Whose door it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Theirs,
    /// The same flags, and the same name of the program.
    Ours,
}

/// Service accounts with their rights, in a namespace of their own.
pub(super) struct Scene<'w> {
    pub(super) world: &'w World,
    pub(super) scratch: PathBuf,
    pub(super) namespace: String,
    /// Tokens by the name of who has them.
    pub(super) tokens: BTreeMap<&'static str, String>,
    pub(super) certificates: BTreeMap<&'static str, Identity>,
}

/// One request: who sends it, its first line without the version, further headers and, after an empty line, its body.
/// `SCENE` stands for the namespace, `PORT` for the door's port.
pub(super) struct Case {
    who: &'static str,
    line: &'static str,
    headers: &'static str,
    theirs: u16,
    ours: Option<(u16, &'static str)>,
}

/// A request that is answered by both alike, with this status.
pub(super) fn same(who: &'static str, line: &'static str, headers: &'static str, status: u16) -> Case {
    Case { who, line, headers, theirs: status, ours: None }
}

/// A request that is meant to be answered in another way by ours, and why.
pub(super) fn differs(
    who: &'static str,
    line: &'static str,
    headers: &'static str,
    theirs: u16,
    ours: u16,
    why: &'static str,
) -> Case {
    Case { who, line, headers, theirs, ours: Some((ours, why)) }
}

impl Case {
    pub(super) fn line(&self) -> &'static str {
        self.line
    }
}

/// A running door.
pub(super) struct Running {
    pub(super) door: Door,
    pub(super) process: Process,
}

impl<'w> Scene<'w> {
    pub(super) fn open(world: &'w World, name: &str) -> Scene<'w> {
        let namespace = format!("krp-{name}-{:08x}", fastrand::u32(..));
        let mut scene = Scene {
            world,
            scratch: world.scratch(&format!("kube-rbac-proxy-{name}")),
            namespace,
            tokens: BTreeMap::new(),
            certificates: BTreeMap::new(),
        };
        world.cluster.create_namespace(&scene.namespace);
        for account in ["alice", "bob", "carol"] {
            scene.create(
                &format!("/api/v1/namespaces/{}/serviceaccounts", scene.namespace),
                &json!({
                    "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account},
                }),
            );
            let token = scene.token(account, &[]);
            scene.tokens.insert(account, token);
        }
        scene.tokens.insert("nobody", "not-a-token".to_owned());
        let authorities = &world.cluster.authorities;
        for (name, identity) in
            [("jane", &authorities.jane), ("admin", &authorities.admin), ("impostor", &authorities.impostor)]
        {
            scene.certificates.insert(name, identity.clone());
        }
        scene.grant();
        scene
    }

    /// A token of a service account, for these audiences if there are any.
    pub(super) fn token(&self, account: &str, audiences: &[&str]) -> String {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.namespace);
        let mut request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        if !audiences.is_empty() {
            request["spec"]["audiences"] = json!(audiences);
        }
        let answer = self.create(&path, &request);
        answer["status"]["token"].as_str().unwrap().to_owned()
    }

    fn create(&self, path: &str, document: &Value) -> Value {
        let headers = [("content-type", "application/json")];
        let body = document.to_string();
        let answer =
            self.world.cluster.door.send(Some(self.world.cluster.admin()), "POST", path, &headers, body.as_bytes());
        let answer = answer.unwrap();
        assert!(answer.status.is_success(), "POST {path}: {}", answer.text());
        answer.json()
    }

    /// alice may look at some paths, at a service and at the metrics of her namespace; carol may do anything to one
    /// path; bob may nothing.
    fn grant(&self) {
        let rbac = "/apis/rbac.authorization.k8s.io/v1";
        let role = |name: &str, rules: Value| {
            let name = format!("{}-{name}", self.namespace);
            self.create(
                &format!("{rbac}/clusterroles"),
                &json!({
                    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                    "metadata": {"name": name}, "rules": rules,
                }),
            );
        };
        let bind = |name: &str, account: &str, namespace: Option<&str>| {
            let name = format!("{}-{name}", self.namespace);
            let (kind, path) = match namespace {
                None => ("ClusterRoleBinding", format!("{rbac}/clusterrolebindings")),
                Some(namespace) => ("RoleBinding", format!("{rbac}/namespaces/{namespace}/rolebindings")),
            };
            self.create(
                &path,
                &json!({
                    "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
                    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
                    "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": self.namespace}],
                }),
            );
        };
        role("paths", json!([{"nonResourceURLs": ["/metrics", "/a b", "/api/*", "/ws"], "verbs": ["get"]}]));
        role(
            "service",
            json!([{
                "apiGroups": [""], "resources": ["services/proxy"], "resourceNames": ["kube-rbac-proxy"], "verbs": ["get"],
            }]),
        );
        role("metrics", json!([{"apiGroups": [""], "resources": ["namespaces/metrics"], "verbs": ["get", "create"]}]));
        role("all", json!([{"nonResourceURLs": ["/all"], "verbs": ["*"]}]));
        bind("paths", "alice", None);
        bind("service", "alice", None);
        bind("metrics", "alice", Some(&self.namespace));
        bind("all", "carol", None);
    }

    /// A server behind the door, without TLS.
    pub(super) fn upstream(&self) -> String {
        format!("http://127.0.0.1:{}/", echo(&Speaks::Http1, |_| BTreeMap::new()))
    }

    /// A door with these flags; `SCENE` in `file` is the namespace.
    pub(super) fn start(&self, whose: Whose, flags: &[String], file: Option<&str>) -> Running {
        static DOORS: AtomicU32 = AtomicU32::new(0);
        let name = format!("{whose:?}-{}", DOORS.fetch_add(1, Ordering::Relaxed)).to_lowercase();
        let authorities = &self.world.cluster.authorities;
        let serving = authorities.serving.server(&format!("krp-{name}"), &["127.0.0.1", "localhost"]);
        let port = free_port();
        let mut arguments = vec![
            format!("--secure-listen-address=127.0.0.1:{port}"),
            format!("--kubeconfig={}", self.world.cluster.admin_kubeconfig.display()),
            format!("--tls-cert-file={}", serving.certificate.display()),
            format!("--tls-private-key-file={}", serving.key.display()),
        ];
        arguments.extend(flags.iter().map(|flag| flag.replace("SCENE", &self.namespace)));
        if let Some(text) = file {
            let path = self.scratch.join(format!("{name}.yaml"));
            std::fs::write(&path, text.replace("SCENE", &self.namespace)).unwrap();
            arguments.push(format!("--config-file={}", path.display()));
        }
        let mut process = Process::start(&name, &self.program(whose), arguments, &self.scratch);
        let door = Door::new(port, &authorities.serving.file);
        // Before it is known who asks, both answer 401.
        process.wait_until(|| door.get(None, "/").map(drop));
        Running { door, process }
    }

    /// The program, under the name that both have.
    pub(super) fn program(&self, whose: Whose) -> PathBuf {
        match whose {
            Whose::Theirs => peer("kube-rbac-proxy"),
            Whose::Ours => {
                let link = self.scratch.join("kube-rbac-proxy");
                if !link.exists() {
                    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narthex"), &link).unwrap();
                }
                link
            }
        }
    }

    /// Asks both doors, made with the same flags, and says what is not as it is meant to be.
    pub(super) fn compare(&self, whose: &[Whose], flags: &[String], file: Option<&str>, cases: &[Case]) {
        let running: Vec<_> = whose.iter().map(|&whose| (whose, self.start(whose, flags, file))).collect();
        self.settle();
        // Keys of an issuer are fetched when the door is open already.
        if let Some(case) = cases.iter().find(|case| case.theirs == 200) {
            for (whose, running) in &running {
                eventually(&format!("{whose:?} letting somebody in"), || match self.ask(&running.door, case).status {
                    401 => Err("nobody is known".to_owned()),
                    _ => Ok(()),
                });
            }
        }
        let mut wrong = Vec::new();
        for case in cases {
            let said: Vec<_> = running.iter().map(|(whose, running)| (whose, self.ask(&running.door, case))).collect();
            let theirs = &said[0].1;
            let mut complain =
                |what: String| wrong.push(format!("{} {} {:?}: {what}", case.who, case.line, case.headers));
            if theirs.status != case.theirs {
                complain(format!("theirs is not {}: {theirs:?}", case.theirs));
            }
            let Some((_, ours)) = said.get(1) else { continue };
            match case.ours {
                None if ours == theirs => {}
                None => complain(format!("\n   theirs: {theirs:?}\n   ours:   {ours:?}")),
                Some((status, _)) if ours != theirs && ours.status == status => {}
                Some(meant) => complain(format!("not {meant:?}\n   theirs: {theirs:?}\n   ours:   {ours:?}")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Rights travel to kube-apiserver's authorizer, and each door may remember for half a minute that there was none.
    pub(super) fn settle(&self) {
        let review = |user: &str, attributes: &Value| {
            let document = json!({
                "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
                "spec": {"user": format!("system:serviceaccount:{}:{user}", self.namespace),
                    "nonResourceAttributes": attributes},
            });
            self.create("/apis/authorization.k8s.io/v1/subjectaccessreviews", &document)["status"]["allowed"] == true
        };
        for (user, path, verb) in [("alice", "/metrics", "get"), ("carol", "/all", "put")] {
            eventually("rights to be known", || {
                if review(user, &json!({"path": path, "verb": verb})) { Ok(()) } else { Err(path.to_owned()) }
            });
        }
    }

    /// What is said to a request on a connection of its own.
    pub(super) fn ask(&self, door: &Door, case: &Case) -> Said {
        let (headers, body) = case.headers.split_once("\r\n\r\n").unwrap_or((case.headers.trim_end(), ""));
        let mut request = format!("{} HTTP/1.1\r\n", case.line);
        if !headers.contains("Host:") {
            request.push_str("Host: api.example\r\n");
        }
        if !headers.contains("Connection:") {
            request.push_str("Connection: close\r\n");
        }
        if let Some(token) = self.tokens.get(case.who) {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if !headers.is_empty() {
            request.push_str(headers);
            request.push_str("\r\n");
        }
        if !body.is_empty() && !headers.contains("Transfer-Encoding") {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let request =
            format!("{request}\r\n{body}").replace("SCENE", &self.namespace).replace("PORT", &door.port.to_string());
        let who = self.certificates.get(case.who);
        let all = runtime().block_on(async {
            let mut stream = match door.connect(who, b"http/1.1").await {
                Ok(stream) => stream,
                Err(why) => return format!("HTTP/1.1 0 {why}").into_bytes(),
            };
            let mut all = Vec::new();
            let exchange = async {
                stream.write_all(request.as_bytes()).await?;
                stream.flush().await?;
                stream.read_to_end(&mut all).await
            };
            // Who refuses a request may cut the connection behind the answer.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(20), exchange).await;
            all
        });
        normal(Said::read(&all, is_compared).into_words_before_go_1_26())
    }
}

/// Headers of answers that say something about the request, not about the moment or the connection.
fn is_compared(name: &str) -> bool {
    matches!(
        name,
        "content-type"
            | "location"
            | "x-content-type-options"
            | "allow"
            | "www-authenticate"
            | "set-cookie"
            | "access-control-allow-origin"
            | "strict-transport-security"
    )
}

/// Of what the server behind the door got, only what both doors are meant to say alike. Ours says beside it where a
/// request came from; theirs says that it would take gzip, which it unpacks again.
fn normal(mut said: Said) -> Said {
    let Ok(mut got) = serde_json::from_str::<Value>(&said.body) else { return said };
    if let Some(headers) = got["headers"].as_array_mut() {
        headers.retain(|line| {
            let beside = ["audit-id", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", "accept-encoding"];
            !beside.iter().any(|name| line[0] == *name)
        });
    }
    said.body = serde_json::to_string_pretty(&got).unwrap();
    said
}

/// Whether a program ends at once with these arguments, and what it says.
pub(super) fn refuses(program: &Path, arguments: &[String]) -> Option<String> {
    let mut child = std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ended = (0..200).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(50));
        child.try_wait().unwrap().is_some()
    });
    if !ended {
        let _ = child.kill();
    }
    let mut said = String::new();
    let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut said));
    let status = child.wait().unwrap();
    let _ = std::io::stdout().flush();
    (ended && !status.success()).then_some(said)
}
