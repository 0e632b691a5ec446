//! Authentication and identity headers: backends see the authenticated user, never what a client claims.

use http::{HeaderMap, HeaderValue, Method, Request};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::backend::{Backend, BackendSettings, ReceivedRequest, json_response};
use crate::support::bad_certs::BadCertIssuer;
use crate::support::client::{Client, RequestBody, connect, get, request};
use crate::support::fixtures::{CertKeyPair, GatewayProcess, TEST_TIMEOUT, TestEnvironment, eventually};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";

/// A backend of things that is always content, registered.
async fn start_things_backend(environment: &TestEnvironment) -> Backend {
    let backend = Backend::start(environment, BackendSettings::default(), async |_| json_response(200, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    backend
}

/// One client for each protocol.
async fn both_protocols(
    environment: &TestEnvironment,
    gateway: &GatewayProcess,
    pair: Option<&CertKeyPair>,
) -> [Client; 2] {
    [Client::http1(environment, gateway, pair).await, Client::http2(environment, gateway, pair).await]
}

/// All headers at the backend that a server could take for an identity, sorted by name.
pub(crate) fn identity_headers(seen: &ReceivedRequest) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, value) in &seen.headers {
        let canonical = name.as_str().replace('_', "-");
        if canonical.starts_with("x-remote-")
            || canonical.starts_with("x-corp-")
            || canonical.starts_with("impersonate")
        {
            lines.push(format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())));
        }
    }
    // Stable: the order of groups is kept.
    lines.sort_by_key(|line| line.split(':').next().map(str::to_owned));
    lines
}

/// The same without the extra that names a certificate.
fn caller_headers(seen: &ReceivedRequest) -> Vec<String> {
    let mut lines = identity_headers(seen);
    lines.retain(|line| !line.starts_with("x-remote-extra-authentication.kubernetes.io%2fcredential-id: X509SHA256="));
    lines
}

/// `CommonName`, spelled short.
const CN: rcgen::DnType = rcgen::DnType::CommonName;

#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_gives_name_groups_and_uid() {
    let environment = TestEnvironment::new();
    let bad_issuer = BadCertIssuer::new_trusted(&environment, "client-ca.crt");
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let uid = rcgen::DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]);
    let jane = bad_issuer.issue(&[(CN, "jane"), (rcgen::DnType::OrganizationName, "devs"), (uid, "42")]);
    for client in both_protocols(&environment, &gateway, Some(&jane)).await {
        assert_eq!(client.get(THINGS).await.status, 200);
        let seen = backend.last_request();
        assert_eq!(
            caller_headers(&seen),
            ["x-remote-group: devs", "x-remote-group: system:authenticated", "x-remote-uid: 42", "x-remote-user: jane"]
        );
        assert_eq!(seen.header_values("x-remote-extra-authentication.kubernetes.io%2fcredential-id").len(), 1);
    }
}

/// A user name that cannot be forwarded unchanged is rejected: a backend would take the front proxy or another user
/// for the caller.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_name_invalid_in_header_is_401() {
    let environment = TestEnvironment::new();
    let bad_issuer = BadCertIssuer::new_trusted(&environment, "client-ca.crt");
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    for name in
        [&[][..], &[(CN, "")], &[(CN, "jane\r\nX-Remote-Group: system:masters")], &[(CN, "jane\0")], &[(CN, " jane")]]
    {
        let pair = bad_issuer.issue(name);
        for client in both_protocols(&environment, &gateway, Some(&pair)).await {
            client.get(THINGS).await.assert_failure(401, "Unauthorized");
        }
    }
    assert!(backend.received().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn token_file_authenticates_and_token_is_not_forwarded() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let file = environment.path("tokens.csv");
    std::fs::write(&file, "s3cret,jane,uid-1,\"devs,ops\"\n").unwrap();
    let gateway = environment.start_gateway(&[&format!("--token-auth-file={}", file.display())]);
    for client in both_protocols(&environment, &gateway, None).await {
        for authorization in ["Bearer s3cret", "bearer s3cret"] {
            let response = client
                .send_and_read(get(THINGS, &[("Authorization", authorization), ("authorization", "Basic eA==")]))
                .await;
            assert_eq!(response.status, 200);
            let seen = backend.last_request();
            assert_eq!(
                identity_headers(&seen),
                [
                    "x-remote-group: devs",
                    "x-remote-group: ops",
                    "x-remote-group: system:authenticated",
                    "x-remote-uid: uid-1",
                    "x-remote-user: jane"
                ]
            );
            assert!(seen.header_values("authorization").is_empty());
        }
    }
    for client in both_protocols(&environment, &gateway, None).await {
        client
            .send_and_read(get(THINGS, &[("authorization", "Bearer s3cre")]))
            .await
            .assert_failure(401, "Unauthorized");
    }
    gateway.wait_for_log(&["invalid bearer token"]).await;
    assert!(!gateway.log_lines().iter().any(|line| line.contains("s3cre")), "a token stands in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_header_identity_accepted_from_trusted_front_proxy_only() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&["--requestheader-uid-headers=X-Remote-Uid"]);
    let word = [
        ("x-remote-user", "jane"),
        ("X-Remote-User", "root"),
        ("x-remote-uid", "7"),
        ("X-Remote-Group", "devs"),
        ("x-remote-group", "a,b"),
        ("x-remote-group", "devs"),
        ("x-remote-extra-example.com%2fScope", "one"),
        ("X-Remote-Extra-example.com%2Fscope", "two"),
    ];
    let as_jane = [
        "x-remote-extra-example.com%2fscope: one",
        "x-remote-extra-example.com%2fscope: two",
        "x-remote-group: devs",
        "x-remote-group: a,b",
        "x-remote-group: devs",
        "x-remote-group: system:authenticated",
        "x-remote-uid: 7",
        "x-remote-user: jane",
    ];
    let proxy = environment.issue_front_proxy("outer-proxy");
    for client in both_protocols(&environment, &gateway, Some(&proxy)).await {
        assert_eq!(client.send_and_read(get(THINGS, &word)).await.status, 200);
        assert_eq!(identity_headers(&backend.last_request()), as_jane);
    }
    // No user name: neither the proxy's own user nor another.
    for anonymous in [&[("x-remote-group", "system:masters")][..], &[("x-remote-user", "")], &[]] {
        for client in both_protocols(&environment, &gateway, Some(&proxy)).await {
            client.send_and_read(get(THINGS, anonymous)).await.assert_failure(401, "Unauthorized");
        }
    }
    let recorded = backend.received().len();
    for client in both_protocols(&environment, &gateway, Some(&environment.issue_front_proxy("other-proxy"))).await {
        client.send_and_read(get(THINGS, &word)).await.assert_failure(401, "Unauthorized");
    }
    gateway.wait_for_log(&["x509: subject with cn=other-proxy is not in the allowed list"]).await;
    assert_eq!(backend.received().len(), recorded);
    for client in both_protocols(&environment, &gateway, Some(&environment.issue_user("outer-proxy", &[]))).await {
        assert_eq!(client.send_and_read(get(THINGS, &word)).await.status, 200);
        assert_eq!(
            caller_headers(&backend.last_request()),
            ["x-remote-group: system:authenticated", "x-remote-user: outer-proxy"]
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn request_header_name_invalid_in_header_is_401() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&environment.anonymous_flags().each_ref().map(String::as_str));
    let proxy = environment.issue_front_proxy("outer-proxy");
    for (name, value) in [
        ("x-remote-user", &b"jane\xff"[..]),
        ("x-remote-user", b"ja\tne"),
        ("x-remote-group", b"\xc3("),
        ("x-remote-group", b"a\tb"),
        ("x-remote-extra-a", b"\xff"),
    ] {
        for client in both_protocols(&environment, &gateway, Some(&proxy)).await {
            let mut request = get(THINGS, &[]);
            request.headers_mut().insert("x-remote-user", HeaderValue::from_static("jane"));
            request.headers_mut().insert(name, HeaderValue::from_bytes(value).unwrap());
            client.send_and_read(request).await.assert_failure(401, "Unauthorized");
        }
    }
    assert!(backend.received().is_empty());
}

/// Without credentials, exactly what kube-apiserver answers.
#[tokio::test(flavor = "multi_thread")]
async fn unauthenticated_request_is_401_as_kube_apiserver() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    for client in both_protocols(&environment, &gateway, None).await {
        let response = client.get(THINGS).await;
        assert_eq!(response.status, 401);
        assert_eq!(
            response.text().trim_end(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#
        );
        assert_eq!(response.headers["content-type"], "application/json");
        assert_eq!(response.headers["x-content-type-options"], "nosniff");
        assert!(!response.headers.contains_key("www-authenticate"));
    }
    for path in ["/", "/version", "/metrics", "/api", "/apis", "/openapi/v3", "/nowhere", "/apis/none.example.com/v1"] {
        Client::http1(&environment, &gateway, None).await.get(path).await.assert_failure(401, "Unauthorized");
    }
    let health = async |path: &str| Client::http1(&environment, &gateway, None).await.get(path).await.status;
    eventually("readiness", async || (health("/readyz").await == 200).then_some(())).await;
    for path in ["/livez", "/readyz", "/healthz", "/readyz?verbose"] {
        assert_eq!(health(path).await, 200, "{path}");
    }
    assert!(backend.received().is_empty());
}

/// With `--anonymous-auth`, requests without credentials are anonymous; requests with invalid credentials are
/// rejected.
#[tokio::test(flavor = "multi_thread")]
async fn anonymous_auth_applies_only_without_credentials() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&environment.anonymous_flags().each_ref().map(String::as_str));
    for client in both_protocols(&environment, &gateway, None).await {
        let forged = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];
        assert_eq!(client.send_and_read(get(THINGS, &forged)).await.status, 200);
        assert_eq!(
            identity_headers(&backend.last_request()),
            ["x-remote-group: system:unauthenticated", "x-remote-user: system:anonymous"]
        );
    }
    let recorded = backend.received().len();
    let untrusted = TestEnvironment::new().issue_user("jane", &["system:masters"]);
    for client in both_protocols(&environment, &gateway, Some(&untrusted)).await {
        client.get(THINGS).await.assert_failure(401, "Unauthorized");
    }
    for client in both_protocols(&environment, &gateway, None).await {
        client
            .send_and_read(get(THINGS, &[("authorization", "Bearer nonsense")]))
            .await
            .assert_failure(401, "Unauthorized");
    }
    let not_text = HeaderValue::from_bytes(b"Bearer \xff").unwrap();
    let mut request = get(THINGS, &[]);
    request.headers_mut().insert("authorization", not_text);
    Client::http1(&environment, &gateway, None).await.send_and_read(request).await.assert_failure(401, "Unauthorized");
    assert_eq!(backend.received().len(), recorded);
}

/// The first authenticator that succeeds wins; an error of another does not change that.
#[tokio::test(flavor = "multi_thread")]
async fn authentication_succeeds_with_one_valid_credential() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let file = environment.path("tokens.csv");
    std::fs::write(&file, "s3cret,tom,1\n").unwrap();
    let gateway = environment.start_gateway(&[&format!("--token-auth-file={}", file.display())]);
    let untrusted = TestEnvironment::new().issue_user("mallory", &["system:masters"]);
    for (pair, token, expected) in [
        (environment.issue_user("jane", &[]), "nonsense", "x-remote-user: jane"),
        (environment.issue_user("jane", &[]), "s3cret", "x-remote-user: jane"),
        (untrusted, "s3cret", "x-remote-user: tom"),
    ] {
        for client in both_protocols(&environment, &gateway, Some(&pair)).await {
            let authorization = format!("Bearer {token}");
            assert_eq!(client.send_and_read(get(THINGS, &[("authorization", &authorization)])).await.status, 200);
            let seen = backend.last_request();
            assert!(identity_headers(&seen).contains(&expected.to_owned()), "{:?}", identity_headers(&seen));
            assert!(seen.header_values("authorization").is_empty());
        }
    }
}

/// Names a forger may try; every value says `evil`.
pub(crate) const FORGED_HEADERS: &[&str] = &[
    "X-Remote-User",
    "x-remote-user",
    "X-REMOTE-USER",
    "X-Remote-Uid",
    "X-Remote-Group",
    "X-Remote-Groups",
    "X-Remote-Extra-Scopes",
    "X-Remote-Extra-",
    "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
    "X_Remote_User",
    "x_remote_user",
    "X-Remote_User",
    "X_REMOTE_GROUP",
    "X_Remote_Uid",
    "X_Remote_Extra_Scopes",
    "X-Corp-User",
    "X_Corp_User",
    "X-Corp-Uid",
    "X-Corp-Group",
    "x-corp-extra-scopes",
    "X_CORP_EXTRA_scopes",
    "Cookie",
    "Proxy-Authorization",
    "Authorization",
    "X-Kubernetes-Peer-Proxied",
    "Client-Cert",
    "X-Client-Cert",
    "X-Forwarded-Client-Cert",
    "X-SSL-Client-Cert",
    "Ssl-Client-Cert",
    "X_Forwarded_Client_Cert",
];

pub(crate) const CUSTOM_HEADER_FLAGS: &[&str] = &[
    "--requestheader-username-headers=X-Remote-User,X-Corp-User",
    "--requestheader-uid-headers=X-Remote-Uid,X-Corp-Uid",
    "--requestheader-group-headers=X-Remote-Group,X-Corp-Group",
    "--requestheader-extra-headers-prefix=X-Remote-Extra-,X-Corp-Extra-",
];

/// Asserts that nothing of a forgery arrived, and that jane did.
#[track_caller]
fn assert_only_jane(seen: &ReceivedRequest, what: &str) {
    assert_eq!(
        caller_headers(seen),
        ["x-remote-group: devs", "x-remote-group: system:authenticated", "x-remote-user: jane"],
        "{what}"
    );
    for (name, value) in &seen.headers {
        assert!(!String::from_utf8_lossy(value.as_bytes()).contains("evil"), "{what}: {name} arrived");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_identity_headers_removed() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(CUSTOM_HEADER_FLAGS);
    let jane = environment.issue_user("jane", &["devs"]);
    for client in both_protocols(&environment, &gateway, Some(&jane)).await {
        for name in FORGED_HEADERS {
            // Alone, twice, with a body, and named as belonging to the hop.
            let lines = [(*name, "evil"), (*name, "also evil")];
            for mut forged in
                [get(THINGS, &lines[..1]), get(THINGS, &lines), request(Method::POST, THINGS, &lines, "{}")]
            {
                if matches!(client, Client::Http1(_)) {
                    let hop =
                        HeaderValue::from_str(&format!("keep-alive, {name}, X-Remote-User, x-remote-group")).unwrap();
                    forged.headers_mut().insert("connection", hop);
                }
                assert_eq!(client.send_and_read(forged).await.status, 200, "{name}");
                assert_only_jane(&backend.last_request(), name);
            }
        }
        let all: Vec<_> = FORGED_HEADERS.iter().map(|name| (*name, "evil")).collect();
        assert_eq!(client.send_and_read(get(THINGS, &all)).await.status, 200);
        assert_only_jane(&backend.last_request(), "all at once");
    }
}

/// Without the custom names being configured, the standard ones still go, and those of a token's holder, too.
#[tokio::test(flavor = "multi_thread")]
async fn standard_identity_headers_removed_with_custom_names_configured() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&[
        "--requestheader-username-headers=X-Corp-User",
        "--requestheader-group-headers=X-Corp-Group",
        "--requestheader-extra-headers-prefix=X-Corp-Extra-",
    ]);
    let proxy = environment.issue_front_proxy("outer-proxy");
    for client in both_protocols(&environment, &gateway, Some(&proxy)).await {
        let lines = [
            ("x-corp-user", "jane"),
            ("x-corp-group", "devs"),
            ("x-remote-user", "evil"),
            ("x-remote-group", "evil"),
            ("x-remote-uid", "evil"),
            ("x-remote-extra-evil", "evil"),
            ("x_remote_user", "evil"),
        ];
        assert_eq!(client.send_and_read(get(THINGS, &lines)).await.status, 200);
        assert_only_jane(&backend.last_request(), "standard names beside custom ones");
        // Over HTTP/2 this is the last request of its connection.
        client.send_and_read(get(THINGS, &[("x-remote-user", "evil")])).await.assert_failure(401, "Unauthorized");
    }
}

/// What stands behind a body may be merged into the header by a backend.
#[tokio::test(flavor = "multi_thread")]
async fn forged_identity_trailers_removed() {
    let environment = TestEnvironment::new();
    let backend =
        Backend::start(&environment, BackendSettings::default(), async |request: Request<hyper::body::Incoming>| {
            let body = request.into_body().collect().await.unwrap();
            let trailers = body.trailers().cloned().unwrap_or_default();
            let names: Vec<_> = trailers.keys().map(http::HeaderName::as_str).collect();
            json_response(200, &names.join(","))
        })
        .await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(CUSTOM_HEADER_FLAGS);
    let jane = environment.issue_user("jane", &["devs"]);
    for client in both_protocols(&environment, &gateway, Some(&jane)).await {
        let mut trailers = HeaderMap::new();
        let mut names = vec!["x-checksum".to_owned()];
        names.extend(FORGED_HEADERS.iter().map(|name| name.to_ascii_lowercase()));
        names.extend(["impersonate-user".to_owned(), "impersonate_group".to_owned(), "x-forwarded-for".to_owned()]);
        for name in &names {
            trailers.insert(http::HeaderName::try_from(name).unwrap(), HeaderValue::from_static("evil"));
        }
        let frames = [Ok(Frame::data("{}".into())), Ok(Frame::trailers(trailers))];
        let body: RequestBody = BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames)));
        let mut request =
            request(Method::POST, THINGS, &[("trailer", &names.join(", ")), ("te", "trailers")], "").map(|_| body);
        request.headers_mut().insert("content-type", HeaderValue::from_static("application/json"));
        let response = client.send_and_read(request).await;
        assert_eq!((response.status.as_u16(), response.text().as_str()), (200, "x-checksum"));
        assert_only_jane(&backend.last_request(), "trailers");
    }
}

/// Sends `text` on a connection of its own and gives what is answered until the end of the header.
pub(crate) async fn send_raw(
    environment: &TestEnvironment,
    gateway: &GatewayProcess,
    pair: Option<&CertKeyPair>,
    text: &str,
) -> String {
    let mut stream = connect(environment, gateway.address, pair, &["http/1.1"]).await;
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    let reading = async {
        while !response.ends_with(b"\r\n\r\n") {
            match stream.read_u8().await {
                Ok(byte) => response.push(byte),
                Err(_) => break,
            }
        }
    };
    tokio::time::timeout(TEST_TIMEOUT, reading).await.expect("an answer in time");
    String::from_utf8(response).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrade_carries_identity_headers_without_forged_ones() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |_| json_response(418, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(CUSTOM_HEADER_FLAGS);
    let jane = environment.issue_user("jane", &["devs"]);
    for protocol in ["SPDY/3.1", "websocket"] {
        let mut text = format!(
            "GET {THINGS}/one/exec HTTP/1.1\r\nHost: localhost\r\nUpgrade: {protocol}\r\n\
             Connection: X-Remote-Group, Upgrade, X-Remote-User\r\nConnection: x-remote-extra-a\r\n"
        );
        for name in FORGED_HEADERS {
            text += &format!("{name}: evil\r\n");
        }
        let response = send_raw(&environment, &gateway, Some(&jane), &(text + "\r\n")).await;
        assert!(response.starts_with("HTTP/1.1 418 "), "{response}");
        let seen = backend.last_request();
        assert_only_jane(&seen, protocol);
        assert_eq!(
            (seen.header_values("connection"), seen.header_values("upgrade")),
            (vec!["Upgrade".to_owned()], vec![protocol.to_owned()])
        );
    }
}

/// A bearer token in the WebSocket subprotocols authenticates the request and is not forwarded.
#[tokio::test(flavor = "multi_thread")]
async fn websocket_protocol_token_authenticates_and_is_removed() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |_| json_response(418, "{}")).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let file = environment.path("tokens.csv");
    std::fs::write(&file, "token,tom,1\n").unwrap();
    let gateway = environment.start_gateway(&[&format!("--token-auth-file={}", file.display())]);
    let ask = |protocols: &str| {
        format!(
            "GET {THINGS}/one/exec HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Protocol: {protocols}\r\n\r\n"
        )
    };
    let token = "base64url.bearer.authorization.k8s.io.dG9rZW4"; // "token"
    let response = send_raw(&environment, &gateway, None, &ask(&format!("v4.channel.k8s.io, {token}"))).await;
    assert!(response.starts_with("HTTP/1.1 418 "), "{response}");
    let seen = backend.last_request();
    assert_eq!(seen.header_values("x-remote-user"), ["tom"]);
    assert_eq!(seen.header_values("sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    // Also when another authenticator succeeded, and where the token has no meaning.
    let jane = environment.issue_user("jane", &[]);
    send_raw(&environment, &gateway, Some(&jane), &ask(&format!("{token}, v4.channel.k8s.io"))).await;
    assert_eq!(backend.last_request().header_values("x-remote-user"), ["jane"]);
    assert_eq!(backend.last_request().header_values("sec-websocket-protocol"), ["v4.channel.k8s.io"]);
    let plain = Client::http1(&environment, &gateway, Some(&jane)).await;
    plain.send_and_read(get(THINGS, &[("sec-websocket-protocol", token)])).await;
    assert!(backend.last_request().header_values("sec-websocket-protocol").is_empty());
    let recorded = backend.received().len();
    for wrong in
        [token.to_owned(), format!("{token},{token},a"), "base64url.bearer.authorization.k8s.io.eA,a".to_owned()]
    {
        let response = send_raw(&environment, &gateway, None, &ask(&wrong)).await;
        assert!(response.starts_with("HTTP/1.1 401 "), "{wrong}: {response}");
    }
    assert_eq!(backend.received().len(), recorded);
}

#[tokio::test(flavor = "multi_thread")]
async fn impersonation_is_403_without_deciding_authorizer() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let admin = environment.issue_user("admin", &["system:masters"]);
    for name in
        ["Impersonate-User", "Impersonate-Group", "impersonate-uid", "Impersonate-Extra-Scopes", "Impersonate_User"]
    {
        for client in both_protocols(&environment, &gateway, Some(&admin)).await {
            let status = client.send_and_read(get(THINGS, &[(name, "jane")])).await.assert_failure(403, "Forbidden");
            assert!(status["message"].as_str().unwrap().to_lowercase().contains("impersonat"), "{status}");
        }
        let text = format!(
            "GET {THINGS}/one/exec HTTP/1.1\r\nHost: localhost\r\nUpgrade: SPDY/3.1\r\n\
             Connection: Upgrade, {name}\r\n{name}: jane\r\n\r\n"
        );
        let response = send_raw(&environment, &gateway, Some(&admin), &text).await;
        assert!(response.starts_with("HTTP/1.1 403 "), "{response}");
    }
    assert!(backend.received().is_empty());
}

/// As in kube-apiserver, which does not authenticate these requests as anonymous.
#[tokio::test(flavor = "multi_thread")]
async fn anonymous_auth_disabled_with_warning_under_always_allow() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment).await;
    for mode in ["--authorization-mode=AlwaysAllow", "--log-level=info"] {
        let gateway = environment.start_gateway(&["--anonymous-auth", mode]);
        for client in both_protocols(&environment, &gateway, None).await {
            client.get(THINGS).await.assert_failure(401, "Unauthorized");
        }
        gateway.wait_for_log(&["warning", "--anonymous-auth", "AlwaysAllow"]).await;
    }
    assert!(backend.received().is_empty());
}
