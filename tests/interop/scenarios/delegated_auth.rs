//! Delegated authentication and authorization: narthex and the real extension server delegate to the same
//! kube-apiserver and must give the same responses.

use std::path::PathBuf;
use std::sync::Mutex;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::KubectlTestFn;
use crate::environment::{
    Gateway, HttpResponse, HttpsEndpoint, Identity, Kubectl, TestEnvironment, eventually, kubectl_run,
};

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("delegated auth: authentication and authorization results equal the extension server's", authn_and_authz_match),
    ("delegated auth: bound token invalid after its object is deleted", bound_token_expires),
    ("delegated auth: RBAC binding created and deleted", role_binding_changes),
];

const GROUP: &str = "/apis/wardle.example.com/v1alpha1";

/// Service accounts of one test, and two endpoints for the extension server.
pub(super) struct DelegationFixture<'w> {
    pub(super) environment: &'w TestEnvironment,
    pub(super) kubectl: &'w Kubectl,
    pub(super) gateway: Gateway,
    pub(super) namespace: String,
}

/// Credentials of a request: client certificate and Authorization header.
struct Caller<'s> {
    name: &'static str,
    certificate: Option<&'s Identity>,
    authorization: Option<String>,
}

impl<'w> DelegationFixture<'w> {
    pub(super) fn open(environment: &'w TestEnvironment, kubectl: &'w Kubectl, name: &str) -> DelegationFixture<'w> {
        let name = &format!("{name}-{}", kubectl.version.replace('.', "-"));
        let kubeconfig = least_privileged(environment, kubectl);
        let kubeconfig = kubeconfig.to_str().unwrap();
        let gateway = Gateway::start(
            &environment.cluster,
            &environment.extension,
            &environment.scratch(name),
            name,
            &[
                ("--authentication-kubeconfig", kubeconfig),
                ("--authorization-kubeconfig", kubeconfig),
                ("--authorization-mode", "Webhook"),
                // CAs come from the cluster's ConfigMap, as for the extension server.
                ("--client-ca-file", ""),
                ("--requestheader-client-ca-file", ""),
                // Paths that are allowed without authorization, as the extension server has them.
                ("--anonymous-auth", "true"),
                ("--log-level", "debug"),
            ],
        );
        let namespace = format!("{name}-{:08x}", fastrand::u32(..));
        environment.cluster.create_namespace(&namespace);
        let fixture = DelegationFixture { environment, kubectl, gateway, namespace };
        for account in ["bob", "alice"] {
            fixture.kubectl(&["create", "serviceaccount", account]);
        }
        let binding = format!("{}-bob", fixture.namespace);
        let subject = format!("--serviceaccount={}:bob", fixture.namespace);
        fixture.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=flunder-keeper", &subject]);
        fixture
    }

    /// Runs kubectl as cluster admin and returns its output.
    pub(super) fn kubectl(&self, args: &[&str]) -> String {
        let home = self.environment.scratch(&self.namespace);
        let mut command = self.kubectl.command(&self.environment.cluster.admin_kubeconfig, &home);
        command.arg("-n").arg(&self.namespace).args(args);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    pub(super) fn token(&self, account: &str, more: &[&str]) -> String {
        self.kubectl(&[&["create", "token", account], more].concat())
    }

    /// The extension server and the gateway in front of it.
    pub(super) fn endpoints(&self) -> [&HttpsEndpoint; 2] {
        [&self.environment.extension.endpoint, &self.gateway.endpoint]
    }

    fn ask(
        &self,
        endpoint: &HttpsEndpoint,
        caller: &Caller<'_>,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> HttpResponse {
        let mut headers = vec![("accept", "application/json")];
        if !body.is_empty() {
            headers.push(("content-type", "application/json"));
        }
        headers.extend(caller.authorization.as_deref().map(|value| ("authorization", value)));
        endpoint.send(caller.certificate, method, path, &headers, body).unwrap()
    }

    /// Waits until bob's binding is effective at both endpoints, so that no response depends on propagation.
    fn settle(&self, bob: &Caller<'_>) {
        for endpoint in self.endpoints() {
            eventually("bob authorized", || {
                let response = self.ask(endpoint, bob, "GET", &format!("{GROUP}/flunders"), b"");
                if response.status == 200 { Ok(()) } else { Err(response.text()) }
            });
        }
    }
}

/// A kubeconfig of the service account in `deploy/delegation/rbac.yaml`, which may only create reviews.
fn least_privileged(environment: &TestEnvironment, kubectl: &Kubectl) -> PathBuf {
    static MADE: Mutex<()> = Mutex::new(());
    // Serialized: two concurrent applies of the same objects conflict.
    let _one = MADE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let directory = environment.scratch("narthex-service-account");
    let kubectl = |args: &[&str]| {
        let mut command = kubectl.command(&environment.cluster.admin_kubeconfig, &directory);
        command.args(args);
        let output = kubectl_run(command, "");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    kubectl(&["apply", "-f", concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/delegation/rbac.yaml")]);
    let token = kubectl(&["create", "token", "narthex", "-n", "narthex"]);
    std::fs::write(directory.join("token"), token).unwrap();
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {
            "server": environment.cluster.endpoint.url(), "certificate-authority": environment.cluster.endpoint.authority,
        }}],
        "users": [{"name": "narthex", "user": {"tokenFile": "token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "narthex"}}],
        "current-context": "c",
    });
    let path = directory.join("kubeconfig");
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

fn bearer(name: &'static str, token: &str) -> Caller<'static> {
    Caller { name, certificate: None, authorization: Some(format!("Bearer {token}")) }
}

/// The same token with changed claims, signed with kube-apiserver's key.
fn signed_again(environment: &TestEnvironment, token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut parts = token.split('.');
    let (header, payload) = (parts.next().unwrap(), parts.next().unwrap());
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
    change(&mut claims);
    let signed = format!("{header}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let pem = std::fs::read_to_string(&environment.cluster.authorities.service_account.0).unwrap();
    let key = rcgen::KeyPair::from_pem(&pem).unwrap();
    let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &key.serialize_der()).unwrap();
    let signature = key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
}

fn authn_and_authz_match(environment: &TestEnvironment, kubectl: &Kubectl) {
    let fixture = DelegationFixture::open(environment, kubectl, "delegating");
    let bob = fixture.token("bob", &[]);
    let now = jiff::Timestamp::now().as_second();
    let again = signed_again(environment, &bob, |_| {});
    let expired = signed_again(environment, &bob, |claims| {
        claims["exp"] = json!(now - 60);
        claims["iat"] = json!(now - 3600);
        claims["nbf"] = json!(now - 3600);
    });
    let not_yet = signed_again(environment, &bob, |claims| claims["nbf"] = json!(now + 3600));
    let mut forged = bob.clone();
    forged.pop();
    let plain = |name, value: &str| Caller { name, certificate: None, authorization: Some(value.to_owned()) };
    let jane = environment.cluster.jane();
    let impostor = &environment.cluster.authorities.impostor;
    let callers = [
        bearer("bob", &bob),
        bearer("bob, signed by the test with kube-apiserver's key", &again),
        bearer("alice, without permissions", &fixture.token("alice", &[])),
        bearer("bob, expired token", &expired),
        bearer("bob, token not yet valid", &not_yet),
        bearer("bob, for another audience", &fixture.token("bob", &["--audience=elsewhere"])),
        bearer("bob, truncated signature", &forged),
        bearer(
            "alg none",
            &format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), bob.split('.').nth(1).unwrap()),
        ),
        bearer("garbage", "garbage"),
        bearer("a long token", &"x".repeat(20_000)),
        plain("another scheme", "Basic Ym9iOmJvYg=="),
        plain("a scheme without token", "Bearer"),
        plain("lower case and blanks", &format!("bearer {bob} trailing words")),
        plain("two blanks", &format!("Bearer  {bob}")),
        Caller { name: "no credentials", certificate: None, authorization: None },
        Caller { name: "jane", certificate: Some(jane), authorization: None },
        Caller { name: "jane with bob's token", certificate: Some(jane), authorization: Some(format!("Bearer {bob}")) },
        Caller { name: "jane with garbage", certificate: Some(jane), authorization: Some("Bearer garbage".to_owned()) },
        Caller { name: "an impostor", certificate: Some(impostor), authorization: None },
        Caller {
            name: "an impostor with bob's token",
            certificate: Some(impostor),
            authorization: Some(format!("Bearer {bob}")),
        },
    ];
    fixture.settle(&callers[0]);
    let namespaced = format!("{GROUP}/namespaces/{}/flunders", fixture.namespace);
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
    for caller in &callers {
        for (method, path) in &requests {
            // An invalid object: a permitted create fails in validation.
            let body: &[u8] = if *method == "POST" { b"{}" } else { b"" };
            let [direct, through] = fixture.endpoints().map(|endpoint| {
                let response = fixture.ask(endpoint, caller, method, path, body);
                (response.status, normalized(&response.text()), response.headers.get("www-authenticate").cloned())
            });
            if direct != through {
                differences
                    .push(format!("{} {method} {path}:\n  direct  {direct:?}\n  through {through:?}", caller.name));
            }
        }
    }
    assert!(differences.is_empty(), "{} differences\n{}", differences.len(), differences.join("\n"));

    for caller in &callers[..2] {
        let users = fixture.endpoints().map(|endpoint| {
            let mark = format!("mark-{:08x}", fastrand::u32(..));
            let path = format!("{GROUP}/flunders?fieldSelector=metadata.name%3D{mark}");
            assert_eq!(fixture.ask(endpoint, caller, "GET", &path, b"").status, 200);
            environment.extension.audit_event(&mark)["user"].clone()
        });
        assert_eq!(users[0]["username"], format!("system:serviceaccount:{}:bob", fixture.namespace));
        assert!(users[0]["uid"].is_string() && users[0]["extra"].is_object(), "{}", users[0]);
        assert_eq!(users[0], users[1], "direct and through narthex");
    }

    // Requests denied by the gateway do not reach the extension server.
    let mark = format!("unseen-{:08x}", fastrand::u32(..));
    for caller in &callers[2..6] {
        let path = format!("{GROUP}/fischers/{mark}");
        assert!(fixture.ask(&fixture.gateway.endpoint, caller, "DELETE", &path, b"").status.is_client_error());
    }
    let seen = format!("seen-{:08x}", fastrand::u32(..));
    fixture.ask(
        &fixture.gateway.endpoint,
        &callers[0],
        "GET",
        &format!("{GROUP}/flunders?fieldSelector=metadata.name%3D{seen}"),
        b"",
    );
    environment.extension.audit_event(&seen);
    assert!(!environment.extension.has_audit_event(&mark));

    // Both accept identity headers from the cluster's front proxy and from no other client.
    let proxy = &environment.cluster.authorities.front_proxy;
    for (certificate, status) in [(proxy, 200), (impostor, 401)] {
        for endpoint in fixture.endpoints() {
            let headers = [("x-remote-user", "jane"), ("x-remote-group", "devs")];
            let response =
                endpoint.send(Some(certificate), "GET", &format!("{GROUP}/flunders"), &headers, b"").unwrap();
            assert_eq!(response.status, status, "{}", response.text());
        }
    }
}

fn bound_token_expires(environment: &TestEnvironment, kubectl: &Kubectl) {
    let fixture = DelegationFixture::open(environment, kubectl, "bound");
    fixture.kubectl(&["create", "secret", "generic", "anchor"]);
    let token = fixture.token("bob", &["--bound-object-kind=Secret", "--bound-object-name=anchor"]);
    let bob = bearer("bob", &token);
    fixture.settle(&bob);
    fixture.kubectl(&["delete", "secret", "anchor"]);
    for endpoint in fixture.endpoints() {
        // Within the cache TTLs of narthex and of the API server.
        eventually("the token to be rejected after its secret is deleted", || {
            let response = fixture.ask(endpoint, &bob, "GET", &format!("{GROUP}/flunders"), b"");
            if response.status == 401 { Ok(()) } else { Err(response.text()) }
        });
    }
}

fn role_binding_changes(environment: &TestEnvironment, kubectl: &Kubectl) {
    let fixture = DelegationFixture::open(environment, kubectl, "rights");
    let alice = bearer("alice", &fixture.token("alice", &[]));
    let (binding, subject) =
        (format!("{}-alice", fixture.namespace), format!("--serviceaccount={}:alice", fixture.namespace));
    let give =
        || fixture.kubectl(&["create", "clusterrolebinding", &binding, "--clusterrole=flunder-keeper", &subject]);
    let take = || fixture.kubectl(&["delete", "clusterrolebinding", &binding]);
    for (change, status) in [(&give as &dyn Fn() -> String, 200), (&take, 403), (&give, 200)] {
        change();
        for endpoint in fixture.endpoints() {
            // Within the cache TTL.
            eventually(&format!("status {status} for alice"), || {
                let response = fixture.ask(endpoint, &alice, "GET", &format!("{GROUP}/flunders"), b"");
                if response.status == status { Ok(()) } else { Err(response.text()) }
            });
        }
    }
}

/// Removes values that differ from request to request.
pub(super) fn normalized(text: &str) -> String {
    let version = regex::Regex::new(r#""resourceVersion":"\d+""#).unwrap();
    version.replace_all(text, r#""resourceVersion":"N""#).into_owned()
}
