//! The sidecar under the name kube-rbac-proxy: its flags, configuration file and messages. `tests/interop` compares it
//! with the real one.

use http::{Method, Request};
use serde_json::json;

use crate::sidecar::delegated_auth::{SidecarStage, TINA, start_named_server};
use crate::support::client::{Client, get};
use crate::support::fake_review_server::{access_review_reply, default_reply};
use crate::support::fixtures::{TestEnvironment, eventually};

const NAME: &str = "kube-rbac-proxy";
const REWRITES: &str = "authorization:\n  rewrites:\n    byQueryParameter: {name: namespace}\n  resourceAttributes: {resource: \
                        namespaces, subresource: metrics, namespace: '{{ .Value }}'}\n";

/// Writes the authorization file, and gives the flag that names it.
fn write_config_file(environment: &TestEnvironment, text: &str) -> String {
    let path = environment.path("authorization.yaml");
    std::fs::write(&path, text).unwrap();
    format!("--config-file={}", path.display())
}

#[tokio::test]
async fn rbac_proxy_refusals_and_forwarded_headers() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[]).await;
    let anonymous = fixture.get("/metrics", &[]).await;
    assert_eq!((anonymous.status.as_u16(), &*anonymous.text()), (401, "Unauthorized\n"));
    assert_eq!(anonymous.headers["content-type"], "text/plain; charset=utf-8");
    let forged = [TINA, ("x-remote-user", "root"), ("x-remote-groups", "system:masters")];
    for path in ["/metrics", "/api/v1/watch", "/healthz"] {
        assert_eq!(fixture.get(path, &forged).await.status, 200, "{path}");
        let seen = server.last_request();
        assert_eq!(seen.uri.path(), path);
        for name in ["x-remote-user", "x-remote-groups", "x-remote-group", "x-remote-uid", "authorization"] {
            assert!(seen.header_values(name).is_empty(), "{name}");
        }
        let recorded = fixture.reviewer.reviews("SubjectAccessReview").pop().unwrap();
        assert_eq!(recorded["spec"]["nonResourceAttributes"], json!({"path": path, "verb": "get"}));
    }
    fixture.reviewer.set_behavior(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => access_review_reply(json!({"allowed": false})),
        _ => default_reply(question),
    });
    let refused = fixture.get("/other", &[TINA]).await;
    assert_eq!(refused.text(), "Forbidden (user=tina, verb=get, resource=, subresource=)\n");
    assert_eq!(refused.status, 403);
}

/// As kube-prometheus has it, `[$(IP)]:9100`, whatever a pod's IP may be; and no host is every address of both families.
#[tokio::test]
async fn rbac_proxy_listens_on_addresses_as_go() {
    let ipv6 = std::net::TcpListener::bind("[::1]:0").is_ok();
    for (place, hosts) in [
        ("[127.0.0.1]:0", &["127.0.0.1"][..]),
        ("localhost:0", &["127.0.0.1"]),
        (":0", &["127.0.0.1", "::1"]),
        ("0.0.0.0:0", &["127.0.0.1", "::1"]),
        ("[::]:0", &["127.0.0.1", "::1"]),
    ] {
        let environment = TestEnvironment::new();
        let server = start_named_server(&environment, "{}").await;
        let place = format!("--secure-listen-address={place}");
        let mut fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[&place]).await;
        for host in hosts.iter().filter(|host| ipv6 || !host.contains(':')) {
            fixture.sidecar.address.set_ip(host.parse().unwrap());
            assert_eq!(fixture.get("/metrics", &[TINA]).await.status, 200, "{place} at {host}");
            assert_eq!(server.last_request().header_values("x-forwarded-for"), [*host], "{place}");
        }
    }
}

#[tokio::test]
async fn rbac_proxy_rewrites_authorize_every_parameter_value() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let file = write_config_file(&environment, REWRITES);
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[&file]).await;
    fixture.reviewer.set_behavior(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => {
            access_review_reply(json!({"allowed": question["spec"]["resourceAttributes"]["namespace"] != "secret"}))
        }
        _ => default_reply(question),
    });
    assert_eq!(fixture.get("/?namespace=a&namespace=b", &[TINA]).await.status, 200);
    let recorded: Vec<_> =
        fixture.reviewer.reviews("SubjectAccessReview").into_iter().map(|recorded| recorded["spec"].clone()).collect();
    let attributes = |namespace: &str| json!({"namespace": namespace, "verb": "get", "resource": "namespaces", "subresource": "metrics"});
    assert_eq!(
        recorded.iter().map(|spec| spec["resourceAttributes"].clone()).collect::<Vec<_>>(),
        [attributes("a"), attributes("b")]
    );
    let refused = fixture.get("/?namespace=a&namespace=secret&namespace=c", &[TINA]).await;
    assert_eq!(refused.text(), "Forbidden (user=tina, verb=get, resource=namespaces, subresource=metrics)\n");
    assert_eq!(fixture.reviewer.reviews("SubjectAccessReview").len(), 3, "nothing is asked behind a no");
    let none = fixture.get("/", &[TINA]).await;
    assert_eq!(
        (none.status.as_u16(), &*none.text()),
        (400, "Bad Request. The request or configuration is malformed.\n")
    );
    assert_eq!(fixture.get("/", &[]).await.status, 401);
    assert_eq!(server.received().len(), 1);
}

#[tokio::test]
async fn rbac_proxy_static_rules_need_no_review_and_are_reloaded() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let rules =
        |path: &str| format!("authorization:\n  static:\n  - {{user: {{groups: [devs]}}, verb: get, path: {path}}}\n");
    let flag = write_config_file(&environment, &rules("/metrics"));
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[&flag]).await;
    fixture.reviewer.set_behavior(|question| match question["kind"].as_str() {
        Some("SubjectAccessReview") => access_review_reply(json!({"allowed": false})),
        _ => default_reply(question),
    });
    let client = Client::http2(&fixture.environment, &fixture.sidecar, None).await;
    assert_eq!(client.send_and_read(get("/metrics", &[TINA])).await.status, 200);
    let head =
        Request::builder().method(Method::HEAD).uri("/metrics").header(TINA.0, TINA.1).body(<_>::default()).unwrap();
    assert_eq!(client.send_and_read(head).await.status, 200);
    assert!(fixture.reviewer.reviews("SubjectAccessReview").is_empty());
    assert_eq!(client.send_and_read(get("/other", &[TINA])).await.status, 403);
    // A static rule with all verbs does not permit impersonation.
    let acting = [TINA, ("impersonate-user", "root")];
    assert_eq!(client.send_and_read(get("/metrics", &acting)).await.status, 403);

    write_config_file(&fixture.environment, "authorization: {static: [{verb: get}]}\n");
    fixture.sidecar.wait_for_log(&["the last good one stays", "static[0].path"]).await;
    assert_eq!(client.send_and_read(get("/metrics", &[TINA])).await.status, 200);
    write_config_file(&fixture.environment, &rules("/other2"));
    eventually("the new rule", async || {
        (client.send_and_read(get("/other2", &[TINA])).await.status == 200).then_some(())
    })
    .await;
    assert_eq!(client.send_and_read(get("/metrics", &[TINA])).await.status, 403);
    // What no request ever meets is no mistake, and told.
    write_config_file(&fixture.environment, "authorization: {static: [{verb: GET, path: metrics}]}\n");
    fixture.sidecar.wait_for_log(&["WARN", "static[0].verb", "\\\"GET\\\" matches no request"]).await;
    fixture.sidecar.wait_for_log(&["WARN", "static[0].path", "\\\"metrics\\\" matches no request"]).await;
}

#[tokio::test]
async fn rbac_proxy_head_authorized_as_get() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let flag = write_config_file(
        &environment,
        "authorization:\n  rules:\n  - {paths: [/metrics], methods: [GET], resourceAttributes: {resource: pods}}\n  \
         - {paths: [/metrics], resourceAttributes: {resource: secrets}}\n",
    );
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[&flag]).await;
    let client = Client::http1(&fixture.environment, &fixture.sidecar, None).await;
    for (method, verb, resource) in
        [(Method::HEAD, "get", "pods"), (Method::GET, "get", "pods"), (Method::POST, "create", "secrets")]
    {
        let request = Request::builder().method(&method).uri("/metrics").header(TINA.0, TINA.1);
        assert_eq!(client.send_and_read(request.body(<_>::default()).unwrap()).await.status, 200, "{method}");
        let recorded = fixture.reviewer.reviews("SubjectAccessReview").pop().unwrap();
        assert_eq!(recorded["spec"]["resourceAttributes"], json!({"verb": verb, "resource": resource}), "{method}");
    }
}

#[tokio::test]
async fn rbac_proxy_allow_paths_and_ignore_paths() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture =
        SidecarStage::with_command(NAME, &[("/", &server)], environment, &["--ignore-paths=/metrics,/public/*"]).await;
    let forged = [TINA, ("x-remote-user", "root"), ("x-remote-extra-a", "b"), ("impersonate-user", "c")];
    let response = fixture.get("/metrics?a=b", &forged).await;
    assert_eq!(response.status, 200, "{}", response.text());
    let seen = server.last_request();
    for name in ["x-remote-user", "x-remote-group", "x-remote-extra-a", "impersonate-user", "authorization"] {
        assert!(seen.header_values(name).is_empty(), "{name}");
    }
    assert!(fixture.reviewer.reviews("TokenReview").is_empty());
    for path in ["/public%2Fx", "/public/a;b", "/public//x", "/Metrics", "/metrics/", "/public/%255c"] {
        assert_eq!(fixture.get(path, &[]).await.status, 401, "{path}");
    }
    for path in ["/public/../x", "/public/%2e%2e/x", "/public/..%5Cx"] {
        assert_eq!(fixture.get(path, &[]).await.status, 400, "{path}");
    }
    assert_eq!(server.received().len(), 1);
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &["--allow-paths=/metrics"]).await;
    let gone = fixture.get("/other", &[TINA]).await;
    assert_eq!((gone.status.as_u16(), &*gone.text()), (404, "404 page not found\n"));
    assert_eq!(fixture.get("/metrics", &[]).await.status, 401);
    assert_eq!(fixture.get("/metrics", &[TINA]).await.status, 200);
}

#[tokio::test]
async fn rbac_proxy_auth_header_fields() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    // All the others are taken without a word, or with one that they mean nothing.
    let flags = [
        "--auth-header-fields-enabled",
        "--auth-header-user-field-name=X-Who",
        "--auth-token-audiences=a,b",
        "--http2-disable",
        "--http2-max-concurrent-streams=7",
        "--http2-max-size=262144",
        "--tls-reload-interval=1m0s",
        "--kube-api-qps=5.5",
        "--kube-api-burst=10",
        "--logtostderr=true",
        "--v=2",
    ];
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &flags).await;
    let forged = [TINA, ("x-who", "root"), ("x_who", "root"), ("connection", "x-who, x-remote-groups")];
    assert_eq!(fixture.get("/metrics", &forged).await.status, 200);
    let seen = server.last_request();
    assert_eq!(seen.header_values("x-who"), ["tina"]);
    assert_eq!(seen.header_values("x-remote-groups"), ["devs|system:authenticated"]);
    assert!(seen.header_values("x-remote-user").is_empty() && seen.header_values("x_who").is_empty());
    assert_eq!(fixture.reviewer.reviews("TokenReview")[0]["spec"]["audiences"], json!(["a", "b"]));
    fixture.sidecar.wait_for_log(&["--logtostderr", "has no effect"]).await;
}

#[tokio::test]
async fn rbac_proxy_forwards_paths_and_host_unchanged() {
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[]).await;
    for (path, passed_on) in [
        // Parameters that have a meaning in kube-apiserver, or are malformed, are not interpreted.
        ("/api/v1/query?query=a;b&timeout=1ns", "/api/v1/query?query=a;b&timeout=1ns"),
        ("/api/v1/query?timeout=soon&c=%zz", "/api/v1/query?timeout=soon&c=%zz"),
        ("/api/v1//label", "/api/v1//label"),
        ("/api/v1/nodes/n/proxy/%61", "/api/v1/nodes/n/proxy/%61"),
        ("/api/v1/label/a%2Fb", "/api/v1/label/a/b"),
    ] {
        assert_eq!(fixture.get(path, &[TINA, ("host", "shop.example:8443")]).await.status, 200, "{path}");
        let seen = server.last_request();
        assert_eq!(seen.uri.path_and_query().unwrap(), passed_on);
        let host = seen.uri.authority().map(ToString::to_string).or_else(|| seen.header_values("host").pop());
        assert_eq!(host.as_deref(), Some("shop.example:8443"));
    }
    assert_eq!(fixture.get("/api/v1/nodes/n/proxy/%2e%2e/x", &[TINA]).await.status, 400);

    // Where the query is judged, only what was judged goes on.
    let environment = TestEnvironment::new();
    let server = start_named_server(&environment, "{}").await;
    let file = write_config_file(&environment, REWRITES);
    let fixture = SidecarStage::with_command(NAME, &[("/", &server)], environment, &[&file]).await;
    assert_eq!(fixture.get("/?namespace=x;y&namespace=a&b=%zz", &[TINA]).await.status, 200);
    assert_eq!(server.last_request().uri.path_and_query().unwrap(), "/?namespace=a");
}
