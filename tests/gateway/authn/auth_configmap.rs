//! CAs and request-header settings from ConfigMap extension-apiserver-authentication, at start and on change.
//!
//! The gateway listens only after the review server has answered, which therefore runs on a thread of its own.

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, get};
use crate::support::fake_review_server::{AuthConfigMapState, FakeReviewServer};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{THINGS, annotations_yaml};

struct AuthConfigMapFixture {
    environment: TestEnvironment,
    reviewer: FakeReviewServer,
    backend: Backend,
}

impl AuthConfigMapFixture {
    async fn new() -> AuthConfigMapFixture {
        let environment = TestEnvironment::new();
        let backend = Backend::start(&environment, BackendSettings::http2(), |_| async { response(200, "{}") }).await;
        let manifests =
            environment.apiservice_manifests("things.example.com", "v1", &[backend.address], &annotations_yaml(&[]));
        environment.write_registry("things.yaml", &manifests);
        let reviewer = FakeReviewServer::start(&environment).await;
        AuthConfigMapFixture { environment, reviewer, backend }
    }

    /// Without CA files.
    fn arguments(&self, more: &[&str]) -> Vec<String> {
        let kubeconfig =
            format!("--authentication-kubeconfig={}", self.environment.path("reviewer.kubeconfig").display());
        let mut arguments = self.environment.gateway_arguments(more);
        arguments.retain(|it| !it.starts_with("--client-ca-file") && !it.starts_with("--requestheader-"));
        arguments.push(kubeconfig);
        arguments
    }

    /// What kube-apiserver writes, with some of it otherwise.
    fn config_map(&self, otherwise: &[(&str, Value)]) -> AuthConfigMapState {
        let mut data = json!({
            "client-ca-file": self.environment.read_file("client-ca.crt"),
            "requestheader-client-ca-file": self.environment.read_file("requestheader-ca.crt"),
            "requestheader-username-headers": r#"["X-Remote-User"]"#,
            "requestheader-group-headers": r#"["X-Remote-Group"]"#,
            "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
            "requestheader-allowed-names": r#"["outer-proxy"]"#,
        });
        for (key, value) in otherwise {
            data[key] = value.clone();
        }
        AuthConfigMapState::Present(data)
    }

    async fn get_as_jane(&self, gateway: &GatewayProcess) -> ClientResponse {
        let jane = self.environment.issue_user("jane", &["devs"]);
        Client::http1(&self.environment, gateway, Some(&jane)).await.get(THINGS).await
    }

    async fn get_through_proxy(
        &self,
        gateway: &GatewayProcess,
        name: &str,
        headers: &[(&str, &str)],
    ) -> ClientResponse {
        let proxy = self.environment.issue_front_proxy(name);
        Client::http1(&self.environment, gateway, Some(&proxy)).await.send_and_read(get(THINGS, headers)).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_configmap_cas_trusted_and_updates_followed() {
    let fixture = AuthConfigMapFixture::new().await;
    fixture.reviewer.set_config_map(fixture.config_map(&[]));
    let gateway = GatewayProcess::start(&fixture.arguments(&[]));
    let jane =
        Client::http2(&fixture.environment, &gateway, Some(&fixture.environment.issue_user("jane", &["devs"]))).await;
    assert_eq!(jane.get(THINGS).await.status, 200);
    assert_eq!(fixture.get_through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 200);
    assert_eq!(fixture.backend.last_request().header_values("x-remote-user"), ["tom"]);
    assert_eq!(fixture.get_through_proxy(&gateway, "stranger", &[("x-remote-user", "tom")]).await.status, 401);

    // Other names, in the same authorities: the new ones count, the old ones are gone from every request.
    fixture.reviewer.set_config_map(fixture.config_map(&[
        ("requestheader-username-headers", json!(r#"["X-Their-User"]"#)),
        ("requestheader-allowed-names", json!(r#"["another"]"#)),
    ]));
    let headers = [("x-their-user", "tim"), ("x-remote-user", "root")];
    eventually("the new names", async || {
        (fixture.get_through_proxy(&gateway, "another", &headers).await.status == 200).then_some(())
    })
    .await;
    let seen = fixture.backend.last_request();
    assert_eq!(
        (seen.header_values("x-remote-user"), seen.header_values("x-their-user")),
        (vec!["tim".to_owned()], Vec::new())
    );
    assert_eq!(fixture.get_through_proxy(&gateway, "outer-proxy", &headers).await.status, 401);

    // A mistake keeps what was good.
    fixture.reviewer.set_config_map(fixture.config_map(&[("requestheader-username-headers", json!("no list"))]));
    gateway.wait_for_log(&["has invalid values", "is not a JSON list"]).await;
    assert_eq!(fixture.get_through_proxy(&gateway, "another", &headers).await.status, 200);

    // An authority that is taken away is not believed any more, on the connections that stand, too.
    fixture.reviewer.set_config_map(fixture.config_map(&[("client-ca-file", json!(""))]));
    eventually("jane not to be believed", async || {
        let refused = match jane.send(get(THINGS, &[])).await {
            Ok(response) => response.status() == 401,
            // Her connection was closed for it.
            Err(_) => true,
        };
        refused.then_some(())
    })
    .await;
    assert_eq!(fixture.get_as_jane(&gateway).await.status, 401);

    // And back; then it is deleted, and believed for its grace.
    fixture.reviewer.set_config_map(fixture.config_map(&[]));
    eventually("jane to be believed again", async || (fixture.get_as_jane(&gateway).await.status == 200).then_some(()))
        .await;
    fixture.reviewer.set_config_map(AuthConfigMapState::Absent);
    gateway.wait_for_log(&["was deleted; its CAs stay trusted during the grace period"]).await;
    assert_eq!(fixture.get_as_jane(&gateway).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_configmap_lookup_failure_fatal_unless_tolerated() {
    let fixture = AuthConfigMapFixture::new().await;
    fixture.reviewer.set_config_map(AuthConfigMapState::Forbidden);
    let output = run_narthex(&[vec!["gateway".to_owned()], fixture.arguments(&[])].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("Unable to get configmap/extension-apiserver-authentication in kube-system.  Usually fixed by"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_configmap_tolerated_failure_applied_when_available() {
    let fixture = AuthConfigMapFixture::new().await;
    fixture.reviewer.set_config_map(AuthConfigMapState::Forbidden);
    let gateway = GatewayProcess::start(&fixture.arguments(&["--authentication-tolerate-lookup-failure"]));
    gateway.wait_for_log(&["Continuing without authentication configuration"]).await;
    assert_eq!(fixture.get_as_jane(&gateway).await.status, 401);
    fixture.reviewer.set_config_map(fixture.config_map(&[]));
    eventually("jane to be believed", async || (fixture.get_as_jane(&gateway).await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn auth_configmap_overridden_by_flags_and_lookup_skippable() {
    let fixture = AuthConfigMapFixture::new().await;
    let other = narthex::tls::Authority::new("other", std::time::SystemTime::now()).unwrap().1.certificate;
    fixture.reviewer.set_config_map(fixture.config_map(&[("client-ca-file", json!(other))]));
    let client_ca = format!("--client-ca-file={}", fixture.environment.path("client-ca.crt").display());
    let mut arguments = fixture.arguments(&[]);
    arguments.push(client_ca);
    let gateway = GatewayProcess::start(&arguments);
    assert_eq!(fixture.get_as_jane(&gateway).await.status, 200);
    assert_eq!(fixture.get_through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 200);
    arguments.push("--authentication-skip-lookup".to_owned());
    let gateway = GatewayProcess::start(&arguments);
    assert_eq!(fixture.get_as_jane(&gateway).await.status, 200);
    assert_eq!(fixture.get_through_proxy(&gateway, "outer-proxy", &[("x-remote-user", "tom")]).await.status, 401);
}
