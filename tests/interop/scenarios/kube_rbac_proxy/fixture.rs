//! Users with permissions and the two proxies in front of one server.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::environment::{
    HttpsEndpoint, Identity, Process, RawResponse, ServerProtocol, TestEnvironment, eventually, free_port, peer,
    runtime, start_echo_server,
};

/// The implementation of a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Implementation {
    KubeRbacProxy,
    /// narthex with the same flags and program name.
    Narthex,
}

/// Service accounts with permissions, in a namespace of their own.
pub(super) struct ProxyFixture<'w> {
    pub(super) environment: &'w TestEnvironment,
    pub(super) scratch: PathBuf,
    pub(super) namespace: String,
    /// Tokens by user.
    pub(super) tokens: BTreeMap<&'static str, String>,
    pub(super) certificates: BTreeMap<&'static str, Identity>,
}

/// A request: user, request line without the version, further headers and, after an empty line, the body. `TESTNS`
/// stands for the namespace, `PORT` for the proxy's port.
pub(super) struct Case {
    user: &'static str,
    line: &'static str,
    headers: &'static str,
    upstream: u16,
    narthex: Option<(u16, &'static str)>,
}

/// A request with the same response from both, with this status.
pub(super) fn same(user: &'static str, line: &'static str, headers: &'static str, status: u16) -> Case {
    Case { user, line, headers, upstream: status, narthex: None }
}

/// A request with an intended difference, and the reason.
pub(super) fn differs(
    user: &'static str,
    line: &'static str,
    headers: &'static str,
    upstream: u16,
    narthex: u16,
    why: &'static str,
) -> Case {
    Case { user, line, headers, upstream, narthex: Some((narthex, why)) }
}

impl Case {
    pub(super) fn line(&self) -> &'static str {
        self.line
    }
}

/// A running proxy.
pub(super) struct ProxyProcess {
    pub(super) endpoint: HttpsEndpoint,
    pub(super) process: Process,
}

impl<'w> ProxyFixture<'w> {
    pub(super) fn open(environment: &'w TestEnvironment, name: &str) -> ProxyFixture<'w> {
        let namespace = format!("krp-{name}-{:08x}", fastrand::u32(..));
        let mut fixture = ProxyFixture {
            environment,
            scratch: environment.scratch(&format!("kube-rbac-proxy-{name}")),
            namespace,
            tokens: BTreeMap::new(),
            certificates: BTreeMap::new(),
        };
        environment.cluster.create_namespace(&fixture.namespace);
        for account in ["alice", "bob", "carol"] {
            fixture.create(
                &format!("/api/v1/namespaces/{}/serviceaccounts", fixture.namespace),
                &json!({
                    "apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account},
                }),
            );
            let token = fixture.token(account, &[]);
            fixture.tokens.insert(account, token);
        }
        fixture.tokens.insert("unknown", "not-a-token".to_owned());
        let authorities = &environment.cluster.authorities;
        for (name, identity) in
            [("jane", &authorities.jane), ("admin", &authorities.admin), ("impostor", &authorities.impostor)]
        {
            fixture.certificates.insert(name, identity.clone());
        }
        fixture.grant();
        fixture
    }

    /// A token of a service account, for these audiences if there are any.
    pub(super) fn token(&self, account: &str, audiences: &[&str]) -> String {
        let path = format!("/api/v1/namespaces/{}/serviceaccounts/{account}/token", self.namespace);
        let mut request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
        if !audiences.is_empty() {
            request["spec"]["audiences"] = json!(audiences);
        }
        let response = self.create(&path, &request);
        response["status"]["token"].as_str().unwrap().to_owned()
    }

    fn create(&self, path: &str, document: &Value) -> Value {
        let headers = [("content-type", "application/json")];
        let body = document.to_string();
        let response = self.environment.cluster.endpoint.send(
            Some(self.environment.cluster.admin()),
            "POST",
            path,
            &headers,
            body.as_bytes(),
        );
        let response = response.unwrap();
        assert!(response.status.is_success(), "POST {path}: {}", response.text());
        response.json()
    }

    /// RBAC objects: alice may read some paths, a service and the metrics of her namespace; carol has all verbs on
    /// one path; bob has no permissions.
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

    /// Starts a plaintext upstream and returns its URL.
    pub(super) fn upstream(&self) -> String {
        format!("http://127.0.0.1:{}/", start_echo_server(&ServerProtocol::Http1, |_| BTreeMap::new()))
    }

    /// Starts a proxy with these flags; `TESTNS` in `file` is replaced by the namespace.
    pub(super) fn start(&self, implementation: Implementation, flags: &[String], file: Option<&str>) -> ProxyProcess {
        static DOORS: AtomicU32 = AtomicU32::new(0);
        let name = format!("{implementation:?}-{}", DOORS.fetch_add(1, Ordering::Relaxed)).to_lowercase();
        let authorities = &self.environment.cluster.authorities;
        let serving = authorities.serving.server(&format!("krp-{name}"), &["127.0.0.1", "localhost"]);
        let port = free_port();
        let mut arguments = vec![
            format!("--secure-listen-address=127.0.0.1:{port}"),
            format!("--kubeconfig={}", self.environment.cluster.admin_kubeconfig.display()),
            format!("--tls-cert-file={}", serving.certificate.display()),
            format!("--tls-private-key-file={}", serving.key.display()),
        ];
        arguments.extend(flags.iter().map(|flag| flag.replace("TESTNS", &self.namespace)));
        if let Some(text) = file {
            let path = self.scratch.join(format!("{name}.yaml"));
            std::fs::write(&path, text.replace("TESTNS", &self.namespace)).unwrap();
            arguments.push(format!("--config-file={}", path.display()));
        }
        let mut process = Process::start(&name, &self.program(implementation), arguments, &self.scratch);
        let endpoint = HttpsEndpoint::new(port, &authorities.serving.file);
        // Both return 401 to unauthenticated requests once they serve.
        process.wait_until(|| endpoint.get(None, "/").map(drop));
        ProxyProcess { endpoint, process }
    }

    /// The program, under the same name for both.
    pub(super) fn program(&self, implementation: Implementation) -> PathBuf {
        match implementation {
            Implementation::KubeRbacProxy => peer("kube-rbac-proxy"),
            Implementation::Narthex => {
                let link = self.scratch.join("kube-rbac-proxy");
                if !link.exists() {
                    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_narthex"), &link).unwrap();
                }
                link
            }
        }
    }

    /// Sends the cases to both proxies, started with the same flags, and panics with all unexpected results.
    pub(super) fn compare(
        &self,
        implementation: &[Implementation],
        flags: &[String],
        file: Option<&str>,
        cases: &[Case],
    ) {
        let proxy_process: Vec<_> = implementation
            .iter()
            .map(|&implementation| (implementation, self.start(implementation, flags, file)))
            .collect();
        self.settle();
        // Issuer keys are fetched after the proxy starts to serve.
        if let Some(case) = cases.iter().find(|case| case.upstream == 200) {
            for (implementation, proxy_process) in &proxy_process {
                eventually(&format!("{implementation:?} authenticating"), || {
                    match self.ask(&proxy_process.endpoint, case).status {
                        401 => Err("401 for all users".to_owned()),
                        _ => Ok(()),
                    }
                });
            }
        }
        let mut wrong = Vec::new();
        for case in cases {
            let responses: Vec<_> = proxy_process
                .iter()
                .map(|(implementation, proxy_process)| (implementation, self.ask(&proxy_process.endpoint, case)))
                .collect();
            let upstream = &responses[0].1;
            let mut report =
                |what: String| wrong.push(format!("{} {} {:?}: {what}", case.user, case.line, case.headers));
            if upstream.status != case.upstream {
                report(format!("kube-rbac-proxy's status is not {}: {upstream:?}", case.upstream));
            }
            let Some((_, narthex)) = responses.get(1) else { continue };
            match case.narthex {
                None if narthex == upstream => {}
                None => report(format!("\n   theirs: {upstream:?}\n   ours:   {narthex:?}")),
                Some((status, _)) if narthex != upstream && narthex.status == status => {}
                Some(expected) => report(format!("not {expected:?}\n   theirs: {upstream:?}\n   ours:   {narthex:?}")),
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    /// Waits until RBAC permissions are effective: a proxy may cache a denial for half a minute.
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
            eventually("RBAC permissions", || {
                if review(user, &json!({"path": path, "verb": verb})) { Ok(()) } else { Err(path.to_owned()) }
            });
        }
    }

    /// Sends a request on a new connection and returns the response.
    pub(super) fn ask(&self, endpoint: &HttpsEndpoint, case: &Case) -> RawResponse {
        let (headers, body) = case.headers.split_once("\r\n\r\n").unwrap_or((case.headers.trim_end(), ""));
        let mut request = format!("{} HTTP/1.1\r\n", case.line);
        if !headers.contains("Host:") {
            request.push_str("Host: api.example\r\n");
        }
        if !headers.contains("Connection:") {
            request.push_str("Connection: close\r\n");
        }
        if let Some(token) = self.tokens.get(case.user) {
            request.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        if !headers.is_empty() {
            request.push_str(headers);
            request.push_str("\r\n");
        }
        if !body.is_empty() && !headers.contains("Transfer-Encoding") {
            request.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        let request = format!("{request}\r\n{body}")
            .replace("TESTNS", &self.namespace)
            .replace("PORT", &endpoint.port.to_string());
        let user = self.certificates.get(case.user);
        let all = runtime().block_on(async {
            let mut stream = match endpoint.connect(user, b"http/1.1").await {
                Ok(stream) => stream,
                Err(why) => return format!("HTTP/1.1 0 {why}").into_bytes(),
            };
            let mut all = Vec::new();
            let exchange = async {
                stream.write_all(request.as_bytes()).await?;
                stream.flush().await?;
                stream.read_to_end(&mut all).await
            };
            // A server that rejects a request may reset the connection after the response.
            let _ = tokio::time::timeout(std::time::Duration::from_secs(20), exchange).await;
            all
        });
        without_proxy_headers(RawResponse::read(&all, is_compared).with_redirect_before_go_1_26())
    }
}

/// Whether a response header is compared; headers of time and connection are not.
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

/// Removes intended differences from the echoed request: narthex adds headers about the request's origin,
/// kube-rbac-proxy adds Accept-Encoding: gzip.
fn without_proxy_headers(mut responses: RawResponse) -> RawResponse {
    let Ok(mut got) = serde_json::from_str::<Value>(&responses.body) else { return responses };
    if let Some(headers) = got["headers"].as_array_mut() {
        headers.retain(|line| {
            let beside = ["audit-id", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-uri", "accept-encoding"];
            !beside.iter().any(|name| line[0] == *name)
        });
    }
    responses.body = serde_json::to_string_pretty(&got).unwrap();
    responses
}

/// Standard error of a program that exits with an error at once; `None` if it keeps running.
pub(super) fn exit_error(program: &Path, arguments: &[String]) -> Option<String> {
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
    let mut responses = String::new();
    let _ = child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut responses));
    let status = child.wait().unwrap();
    let _ = std::io::stdout().flush();
    (ended && !status.success()).then_some(responses)
}
