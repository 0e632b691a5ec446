//! `run_narthex proxy` with kubeconfigs that obtain credentials elsewhere: exec plugins, OIDC, basic auth, impersonation,
//! and several merged files.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::local_proxy::proxy::{ProxyProcess, loopback_settings, read_until, send_raw};
use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::fake_oidc_issuer::{DISCOVERY, FakeOidcIssuer, unix_now};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};

/// An environment with an API server that accepts one token, or any client certificate without it, and credential
/// plugins.
struct ExecAuthFixture {
    environment: TestEnvironment,
    server: Backend,
}

impl ExecAuthFixture {
    async fn new(believed: Option<&'static str>) -> ExecAuthFixture {
        let environment = TestEnvironment::new();
        let server = Backend::start(&environment, loopback_settings(BackendSettings::http2()), move |request| {
            let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
            let known = believed.is_none_or(|token| given == Some(token));
            async move { if known { response(200, "{}") } else { response(401, "{\"kind\":\"Status\"}") } }
        })
        .await;
        ExecAuthFixture { environment, server }
    }

    fn write_program(&self, name: &str, script: &str) {
        let path = self.environment.path(name);
        std::fs::write(&path, format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A program that counts how often it was run, and says what is in a file.
    fn write_counting_program(&self) {
        self.write_program("program", "cd \"${0%/*}\"; echo x >> runs; echo noise >&2; cat said");
    }

    fn set_output(&self, status: &Value) {
        let reply =
            json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": status});
        self.write_atomically("said", &reply.to_string());
    }

    /// A program that gives one token when it is run first, and another from then on.
    fn rotate_tokens(&self, first: &str, then: &str) {
        self.write_program("program", "cd \"${0%/*}\"; cat said; cp next said");
        self.set_output(&json!({ "token": then }));
        std::fs::rename(self.environment.path("said"), self.environment.path("next")).unwrap();
        self.set_output(&json!({ "token": first }));
        self.write_exec_kubeconfig(&json!({}));
    }

    fn run_count(&self) -> usize {
        std::fs::read_to_string(self.environment.path("runs")).map_or(0, |runs| runs.lines().count())
    }

    /// Never half a file.
    fn write_atomically(&self, name: &str, text: &str) {
        let hidden = self.environment.path(&format!(".{name}.tmp"));
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.environment.path(name)).unwrap();
    }

    fn write_kubeconfig(&self, user: &Value) {
        // What a test says stands over what every server here needs: a certificate that it believes.
        let mut whole = json!({"client-certificate": "front-proxy.crt", "client-key": "front-proxy.key"});
        whole.as_object_mut().unwrap().extend(user.as_object().unwrap().clone());
        whole.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        let document = json!({
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", self.server.address), "certificate-authority": "backend-ca.crt",
            }}],
            "users": [{"name": "jane", "user": whole}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "jane"}}],
            "current-context": "x",
        });
        self.write_atomically("kubeconfig", &document.to_string());
    }

    fn write_exec_kubeconfig(&self, more: &Value) {
        let mut exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never"});
        exec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.write_kubeconfig(&json!({"exec": exec}));
    }

    fn kubeconfig_path(&self) -> String {
        self.environment.path("kubeconfig").display().to_string()
    }

    fn start_proxy(&self) -> ProxyProcess {
        // Not beside the kubeconfig: changes in another folder do not trigger a reload of the kubeconfig.
        std::fs::create_dir_all(self.environment.path("logs")).unwrap();
        let log = std::fs::File::create(self.environment.path("logs/log")).unwrap();
        ProxyProcess::spawn(
            &[&format!("--kubeconfig={}", self.kubeconfig_path()), "--port=0", "--log-level=debug"],
            &[],
            Stdio::from(log),
        )
    }

    /// What the door has logged, with what its programs have said on standard error.
    fn read_log(&self) -> String {
        std::fs::read_to_string(self.environment.path("logs/log")).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_token_fetched_once_for_concurrent_requests() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_counting_program();
    fixture.set_output(&json!({"token": "s3cret-token"}));
    fixture.write_exec_kubeconfig(&json!({}));
    let proxy_process = fixture.start_proxy();
    assert_eq!(fixture.run_count(), 0, "the plugin ran before a request");
    let recorded = (0..20).map(|number| {
        let proxy_process = &proxy_process;
        async move { proxy_process.get(&format!("/api/{number}")).await.status }
    });
    assert!(futures_util::future::join_all(recorded).await.iter().all(|status| *status == 200));
    assert_eq!(
        (fixture.run_count(), fixture.server.last_request().header_values("authorization")),
        (1, vec!["Bearer s3cret-token".to_owned()])
    );
    // A client with credentials of its own needs none of them.
    proxy_process.request("GET /api", "Authorization: Bearer own\r\n").await;
    assert_eq!(fixture.server.last_request().header_values("authorization"), ["Bearer own"]);
    // Another program, or the same run otherwise, gives others.
    fixture.set_output(&json!({"token": "another"}));
    fixture.write_exec_kubeconfig(&json!({"args": ["--other"]}));
    eventually("the other token", async || {
        proxy_process.get("/api").await;
        (fixture.server.last_request().header_values("authorization") == ["Bearer another"]).then_some(())
    })
    .await;
    assert_eq!(fixture.run_count(), 2);
    let log = fixture.read_log();
    assert!(log.contains("noise"), "what it says on standard error is for the person: {log}");
    assert!(!log.contains("s3cret") && !log.contains("another"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_client_certificate_used() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_counting_program();
    let (certificate, key) =
        (fixture.environment.read_file("front-proxy.crt"), fixture.environment.read_file("front-proxy.key"));
    fixture.set_output(&json!({"clientCertificateData": certificate, "clientKeyData": key}));
    let exec =
        json!({"apiVersion": "client.authentication.k8s.io/v1", "command": "./program", "interactiveMode": "Never"});
    fixture.write_kubeconfig(&json!({"client-certificate": null, "client-key": null, "exec": exec}));
    let proxy_process = fixture.start_proxy();
    assert_eq!(proxy_process.get("/api").await.status, 200);
    let seen = fixture.server.last_request();
    assert_eq!((seen.peer.as_str(), seen.header_values("authorization").len()), ("narthex-front-proxy", 0));
    assert!(!fixture.read_log().contains("PRIVATE KEY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_credentials_renewed_before_expiry() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_counting_program();
    fixture.set_output(&json!({"token": "short", "expirationTimestamp": "2001-01-01T00:00:00Z"}));
    fixture.write_exec_kubeconfig(&json!({}));
    let proxy_process = fixture.start_proxy();
    assert_eq!(proxy_process.get("/api").await.status, 200);
    fixture.set_output(&json!({"token": "long", "expirationTimestamp": "2100-01-01T00:00:00Z"}));
    for _ in 0..3 {
        proxy_process.get("/api").await;
        assert_eq!(fixture.server.last_request().header_values("authorization"), ["Bearer long"]);
    }
    assert_eq!(fixture.run_count(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_rerun_and_request_retried_after_401() {
    let fixture = ExecAuthFixture::new(Some("Bearer new")).await;
    fixture.write_counting_program();
    fixture.set_output(&json!({"token": "old"}));
    fixture.write_exec_kubeconfig(&json!({}));
    let proxy_process = fixture.start_proxy();
    // One that has nothing better to offer is not asked again and again.
    for _ in 0..3 {
        let reply = proxy_process.get("/api").await;
        assert_eq!((reply.status, reply.body.as_str()), (401, "{\"kind\":\"Status\"}"));
    }
    assert_eq!(fixture.run_count(), 2);
    // Nor is it for what a client has brought itself.
    let proxy_process = fixture.start_proxy();
    assert_eq!(proxy_process.request("GET /api", "Authorization: Bearer own\r\n").await.status, 401);
    assert_eq!(fixture.run_count(), 3);
    fixture.set_output(&json!({"token": "new"}));
    assert_eq!(proxy_process.get("/api").await.status, 200);
    assert_eq!(fixture.run_count(), 4);
    // A request with a body is not retried; the next request has the new credentials.
    let fixture = ExecAuthFixture::new(Some("Bearer new")).await;
    fixture.rotate_tokens("old", "new");
    let proxy_process = fixture.start_proxy();
    let post = "POST /api HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
    let status = send_raw(proxy_process.connect().await, post).await.status;
    assert_eq!((status, fixture.server.received().len()), (401, 1));
    eventually("the new credentials", async || {
        (send_raw(proxy_process.connect().await, post).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_credentials_on_upgrades_retried_after_401() {
    let environment = TestEnvironment::new();
    let server = Backend::start_raw(&environment, loopback_settings(BackendSettings::http1()), |stream| async move {
        use tokio::io::AsyncReadExt as _;
        let (mut stream, mut head) = (stream, Vec::new());
        while !head.windows(4).any(|four| four == b"\r\n\r\n") {
            if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                return;
            }
        }
        let known = String::from_utf8(head).unwrap().to_lowercase().contains("authorization: bearer new");
        let reply = match known {
            true => "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello",
            false => "HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno",
        };
        stream.write_all(reply.as_bytes()).await.unwrap();
        let _ = stream.read_buf(&mut Vec::new()).await;
    })
    .await;
    let fixture = ExecAuthFixture { environment, server };
    fixture.rotate_tokens("old", "new");
    let proxy_process = fixture.start_proxy();
    let mut stream = proxy_process.connect().await;
    let upgrade = "GET /api HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    stream.write_all(upgrade.as_bytes()).await.unwrap();
    assert!(read_until(&mut stream, "hello").await.starts_with("HTTP/1.1 101 "));
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_failure_reported_with_user_and_install_hint() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_program("program", "echo s3cret; echo the reason >&2; exit 3");
    fixture.write_exec_kubeconfig(
        &json!({"args": ["--client-secret=s3cret"], "env": [{"name": "KEY", "value": "s3cret"}]}),
    );
    let proxy_process = fixture.start_proxy();
    let reply = proxy_process.get("/api").await;
    let expected = format!(
        "getting credentials: exec: executable ./program failed with exit code 3\nuser \"jane\" of {}: its error output is \
         in the terminal or log of narthex proxy\n",
        fixture.kubeconfig_path()
    );
    assert_eq!((reply.status, reply.body.as_str()), (500, expected.as_str()));
    let log = fixture.read_log();
    assert!(log.contains("the reason") && log.contains("no credentials for the API server"), "{log}");
    assert!(!log.contains("s3cret"), "{log}");
    // It is asked again when it is mended.
    fixture.write_counting_program();
    fixture.set_output(&json!({"token": "t"}));
    eventually("an answer", async || (proxy_process.get("/api").await.status == 200).then_some(())).await;

    // One that is not there is told before it is needed, too.
    fixture.write_exec_kubeconfig(&json!({"command": "no-such-program", "installHint": "get it from example.com"}));
    let missing = "executable no-such-program not found";
    let output =
        run_narthex(&["check", "proxy", &format!("--kubeconfig={}", fixture.kubeconfig_path())].map(str::to_owned));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && message.contains(missing) && message.contains("get it from example.com"),
        "{message}"
    );
    let reply = fixture.start_proxy().get("/api").await;
    assert_eq!(reply.status, 500);
    assert!(reply.body.starts_with(&format!("getting credentials: exec: {missing}\n")), "{}", reply.body);
    assert!(reply.body.contains("get it from example.com"), "{}", reply.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_run_survives_disconnect_of_first_waiter() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_counting_program();
    fixture.set_output(&json!({"token": "t"}));
    std::fs::rename(fixture.environment.path("program"), fixture.environment.path("quick")).unwrap();
    let fifo = fixture.environment.path("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    fixture.write_program("program", "cd \"${0%/*}\"; read go < go; exec ./quick");
    fixture.write_exec_kubeconfig(&json!({}));
    let proxy_process = fixture.start_proxy();
    let mut gone = proxy_process.connect().await;
    gone.write_all(b"GET /api HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let (waiting, let_go) = tokio::join!(proxy_process.get("/api"), async {
        // Opening it waits until the program reads.
        let writing = tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().write(true).open(fifo).unwrap());
        let mut go = writing.await.unwrap();
        drop(gone);
        std::io::Write::write_all(&mut go, b"go\n")
    });
    let_go.unwrap();
    assert_eq!((waiting.status, fixture.run_count()), (200, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_basic_auth_and_impersonation_sent() {
    let fixture = ExecAuthFixture::new(None).await;
    let owner = json!({
        "username": "jane", "password": "s3cret", "as": "joe", "as-groups": ["dev", "ops"], "as-user-extra": {"Scopes": ["a"]},
    });
    fixture.write_kubeconfig(&owner);
    let proxy_process = fixture.start_proxy();
    proxy_process.get("/api").await;
    let seen = fixture.server.last_request();
    assert_eq!(seen.header_values("authorization"), ["Basic amFuZTpzM2NyZXQ="]);
    assert_eq!(
        (seen.header_values("impersonate-user"), seen.header_values("impersonate-group")),
        (vec!["joe".to_owned()], vec!["dev".to_owned(), "ops".to_owned()])
    );
    assert_eq!(seen.header_values("impersonate-extra-scopes"), ["a"]);
    // No other user is impersonated beside joe.
    assert_eq!(proxy_process.request("GET /api", "Impersonate-User: ann\r\n").await.status, 403);
    assert!(!fixture.read_log().contains("s3cret") && !fixture.read_log().contains("amFuZTpzM2NyZXQ"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubeconfig_files_merged_and_reloaded() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_kubeconfig(&json!({"token": "first"}));
    let files = format!("{}:{}:", fixture.environment.path("before").display(), fixture.kubeconfig_path());
    let proxy_process = ProxyProcess::spawn(&["--port=0"], &[("KUBECONFIG", &files)], Stdio::inherit());
    proxy_process.get("/api").await;
    assert_eq!(fixture.server.last_request().header_values("authorization"), ["Bearer first"]);
    // One that comes to stand before it.
    let user = json!({"client-certificate": "front-proxy.crt", "client-key": "front-proxy.key", "token": "before"});
    fixture.write_atomically("before", &json!({"users": [{"name": "jane", "user": user}]}).to_string());
    eventually("the first file to count", async || {
        proxy_process.get("/api").await;
        (fixture.server.last_request().header_values("authorization") == ["Bearer before"]).then_some(())
    })
    .await;
}

/// An unsigned token: neither the API server of these tests nor the proxy verifies it.
fn id_token(name: &str, exp: u64) -> String {
    let part = |text: Value| URL_SAFE_NO_PAD.encode(text.to_string());
    format!("{}.{}.{name}", part(json!({"alg": "none"})), part(json!({"sub": "jane", "exp": exp})))
}

#[tokio::test(flavor = "multi_thread")]
async fn oidc_auth_provider_refreshes_tokens_and_saves_them() {
    let fixture = ExecAuthFixture::new(None).await;
    let issuer = FakeOidcIssuer::start(&fixture.environment, &[]).await;
    let discovery = json!({"issuer": issuer.url, "token_endpoint": format!("{}/token", issuer.url)}).to_string();
    issuer.serve(DISCOVERY, Some((200, "application/json", discovery)));
    let (over, good) = (id_token("over", unix_now() - 60), id_token("good", unix_now() + 3600));
    let response = |id: &str| json!({"id_token": id, "refresh_token": "r3fresh-2", "token_type": "Bearer"}).to_string();
    let user = |id: &str| {
        json!({"auth-provider": {"name": "oidc", "config": {
            "idp-issuer-url": issuer.url, "idp-certificate-authority": "backend-ca.crt", "client-id": "kubectl",
            "client-secret": "cl1ent", "id-token": id, "refresh-token": "r3fresh-1",
        }}})
    };
    // While the token is valid the plugin is not run.
    fixture.write_kubeconfig(&user(&good));
    let proxy_process = fixture.start_proxy();
    proxy_process.get("/api").await;
    assert_eq!(fixture.server.last_request().header_values("authorization"), [format!("Bearer {good}")]);
    assert_eq!(issuer.request_count(DISCOVERY), 0);
    drop(proxy_process);

    fixture.write_kubeconfig(&user(&over));
    let proxy_process = fixture.start_proxy();
    issuer.serve(
        "/token",
        Some((400, "application/json", json!({"error": "invalid_grant", "error_description": "gone"}).to_string())),
    );
    let reply = proxy_process.get("/api").await;
    assert_eq!(reply.status, 500);
    let expected = format!(
        "getting credentials: failed to refresh token: {}/token answered 400 Bad Request: invalid_grant gone\n",
        issuer.url
    );
    assert!(reply.body.starts_with(&expected) && reply.body.contains("user \"jane\""), "{}", reply.body);
    // First by a header, then in the form.
    assert_eq!(issuer.request_count("/token"), 2);
    let newest = id_token("newest", unix_now() + 3600);
    issuer.serve("/token", Some((200, "application/json", response(&newest))));
    eventually("the new token", async || (proxy_process.get("/api").await.status == 200).then_some(())).await;
    assert_eq!(fixture.server.last_request().header_values("authorization"), [format!("Bearer {newest}")]);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(fixture.kubeconfig_path()).unwrap()).unwrap();
    let config = &written["users"][0]["user"]["auth-provider"]["config"];
    assert_eq!((&config["id-token"], &config["refresh-token"]), (&json!(newest), &json!("r3fresh-2")));
    assert_eq!(config["client-id"], "kubectl");
    let before = issuer.request_count("/token");
    proxy_process.get("/api").await;
    assert_eq!(issuer.request_count("/token"), before);
    let log = fixture.read_log();
    assert!(!log.contains("r3fresh") && !log.contains("cl1ent") && !log.contains(&newest), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_plugin_refused_in_gateway_kubeconfig() {
    let fixture = ExecAuthFixture::new(None).await;
    fixture.write_exec_kubeconfig(&json!({}));
    let output = run_narthex(&[
        "check".to_owned(),
        "gateway".to_owned(),
        format!("--authentication-kubeconfig={}", fixture.kubeconfig_path()),
    ]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("users[0].user.exec: is not supported here; use a client certificate, token or tokenFile"),
        "{message}"
    );
    // A flag of 2 files is one file with an odd name, as with kubectl.
    let arguments =
        ["check".to_owned(), "proxy".to_owned(), format!("--kubeconfig={0}:{0}", fixture.kubeconfig_path())];
    assert_eq!(run_narthex(&arguments).status.code(), Some(1));
}
