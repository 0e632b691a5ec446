//! The real kube-rbac-proxy and narthex, under the same program name and with the same flags, side by side in front
//! of one server: status, response and forwarded request must be equal. Intended differences give a reason.

mod fixture;
mod lifecycle;

use std::collections::BTreeMap;

use serde_json::json;

use self::fixture::{Case, Implementation, ProxyFixture, differs, same};
use super::TestFn;
use crate::environment::{ServerProtocol, TestEnvironment, start_echo_server};

#[path = "../../../../src/authenticate/jwt/test_signer.rs"]
#[allow(dead_code, reason = "only one kind of key is used here")]
mod test_signer;

pub(super) const TESTS: &[(&str, TestFn)] = &[
    ("kube-rbac-proxy: paths, methods and users", paths),
    ("kube-rbac-proxy: resource attributes", resource_attributes),
    ("kube-rbac-proxy: rewrites", rewrites),
    ("kube-rbac-proxy: static rules", static_rules),
    ("kube-rbac-proxy: allowed and ignored paths", allowed_and_ignored),
    ("kube-rbac-proxy: identity headers", identity),
    ("kube-rbac-proxy: audiences and OpenID Connect", tokens),
    ("kube-rbac-proxy: upstreams", upstreams),
    ("kube-rbac-proxy: every flag is supported", lifecycle::every_flag),
    ("kube-rbac-proxy: --proxy-endpoints-port", lifecycle::proxy_endpoints_port),
    ("kube-rbac-proxy: certificate file broken after start", lifecycle::certificate_broken_after_start),
    ("kube-rbac-proxy: invalid flags and files rejected at start", lifecycle::invalid_flags),
];

const WEBSOCKET_TOKEN: &str = "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Z29vZA, v4\r\n";
const IMPLEMENTATIONS: &[Implementation] = &[Implementation::KubeRbacProxy, Implementation::Narthex];

const NOT_FORWARDED: &str = "credentials and identity headers are not forwarded";
const HEAD: &str = "HEAD is authorized as get";
const AS_AUTHORIZED: &str = "the forwarded request is normalized to what was authorized";
const HTTP2: &str = "HTTP/2 to an upstream that supports it";
const DOTS: &str = "an ambiguous path is rejected, not cleaned";

fn flags(more: &[&str]) -> Vec<String> {
    more.iter().map(|&flag| flag.to_owned()).collect()
}

fn paths(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "paths");
    let clients = format!("--client-ca-file={}", environment.cluster.authorities.client.file.display());
    let upstream = format!("--upstream={}", fixture.upstream());
    let cases: Vec<Case> = vec![
        same("", "GET /metrics", "", 401),
        same("unknown", "GET /metrics", "", 401),
        same("", "GET /metrics", "Authorization: Basic YTpi\r\n", 401),
        same("", "GET /metrics", "Authorization: Bearer\r\n", 401),
        same("alice", "GET /metrics", "", 200),
        same("alice", "GET /metrics?a=b&c=%20d", "", 200),
        same("bob", "GET /metrics", "", 403),
        same("alice", "GET /other", "", 403),
        same("alice", "GET /metrics/", "", 403),
        same("alice", "GET /a%20b", "", 200),
        same("alice", "GET /%6detrics", "", 200),
        same("alice", "GET /api/v1/label/job/values", "", 200),
        same("alice", "GET /api/v1/namespaces/a/pods?watch=true", "", 200),
        same("alice", "GET /api/v1/watch", "", 200),
        same("alice", "POST /metrics", "\r\n\r\nhello", 403),
        same("alice", "PUT /metrics", "", 403),
        same("alice", "PATCH /metrics", "", 403),
        same("alice", "DELETE /metrics", "", 403),
        same("alice", "OPTIONS /metrics", "", 403),
        same("alice", "PROPFIND /metrics", "", 403),
        differs("alice", "HEAD /metrics", "", 403, 200, HEAD),
        same("carol", "HEAD /all", "", 200),
        same("carol", "OPTIONS /all", "", 200),
        same("carol", "PROPFIND /all", "", 200),
        same("carol", "POST /all", "Content-Type: text/plain\r\n\r\nhello", 200),
        same("carol", "POST /all", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 200),
        same("carol", "POST /all", "Expect: 100-continue\r\n\r\nhello", 200),
        same("admin", "GET /anything", "", 200),
        same("jane", "GET /metrics", "", 403),
        same("impostor", "GET /metrics", "", 401),
        differs("admin", "GET /x", "Authorization: Bearer not-a-token\r\n", 200, 200, NOT_FORWARDED),
        differs("alice", "GET /metrics", "X-Remote-User: root\r\nX-Remote-Groups: a\r\n", 200, 200, NOT_FORWARDED),
        differs("alice", "GET /metrics", "Impersonate-User: root\r\n", 200, 403, "impersonation needs permission"),
        same("alice", "GET /metrics", "Cookie: a=b\r\nOrigin: https://page.example\r\nUser-Agent: u\r\n", 200),
        same("alice", "GET /metrics", "Host: other.example:123\r\n", 200),
        same("alice", "GET http://elsewhere.example/metrics", "", 200),
        same("alice", "GET /metrics", "X-Custom: 1\r\nConnection: close, X-Custom\r\n", 200),
        same("alice", "GET /metrics", "X-Forwarded-For: 192.0.2.7\r\n", 200),
        differs("alice", "GET /a//b", "", 301, 403, DOTS),
        differs("alice", "GET //metrics", "", 301, 403, DOTS),
        differs("alice", "GET /x/../metrics", "", 301, 400, DOTS),
        differs("", "GET /./metrics", "", 301, 400, DOTS),
        same("alice", "GET /metrics?a=1;b=2&c=3", "", 200),
        same("alice", "GET /metrics?a=%zz&c=3", "", 200),
        differs("", "GET /%zz", "", 400, 400, "the body names the error in the path"),
        differs("alice", "GET /api/v1/a%2Fb", "", 200, 200, AS_AUTHORIZED),
        same("alice", "GET /api/v1/query?query=up;x&timeout=1ns", "", 200),
        same("alice", "GET /api/v1/query?timeout=soon", "", 200),
        same("alice", "GET /api/v1/nodes/n/proxy/%61", "", 200),
        differs("alice", "GET /api/v1/nodes/n/proxy/%2e%2e/x", "", 200, 400, DOTS),
        differs("", "OPTIONS *", "", 200, 400, "a wildcard is not a resource"),
    ];
    fixture.compare(IMPLEMENTATIONS, &[upstream, clients], None, &cases);
}

fn resource_attributes(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "attributes");
    let upstream = format!("--upstream={}", fixture.upstream());
    let file = "authorization:\n  resourceAttributes:\n    namespace: default\n    apiVersion: v1\n    resource: \
                services\n    subresource: proxy\n    name: kube-rbac-proxy\n";
    let cases = [
        same("", "GET /metrics", "", 401),
        same("alice", "GET /metrics", "", 200),
        same("alice", "GET /any/path", "", 200),
        same("bob", "GET /metrics", "", 403),
        same("alice", "POST /metrics", "\r\n\r\nx", 403),
        differs("alice", "HEAD /metrics", "", 403, 200, HEAD),
    ];
    fixture.compare(IMPLEMENTATIONS, std::slice::from_ref(&upstream), Some(file), &cases);
    let file = "{\"authorization\": {\"resourceattributes\": {\"namespace\": \"default\", \"Resource\": \"services\", \
                \"subresource\": \"proxy\", \"name\": \"{{ .Value }}\"}}}";
    fixture.compare(IMPLEMENTATIONS, &[upstream], Some(file), &[same("alice", "GET /metrics", "", 403)]);
}

fn rewrites(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "rewrites");
    let upstream = format!("--upstream={}", fixture.upstream());
    let attributes = "  resourceAttributes:\n    apiVersion: v1\n    resource: namespaces\n    subresource: metrics\n    \
                      namespace: \"{{ .Value }}\"\n";
    let query = format!("authorization:\n  rewrites:\n    byQueryParameter:\n      name: \"namespace\"\n{attributes}");
    let cases = [
        same("", "GET /metrics", "", 401),
        same("alice", "GET /metrics", "", 400),
        same("alice", "GET /metrics?Namespace=TESTNS", "", 400),
        same("alice", "GET /metrics?namespace=TESTNS", "", 200),
        same("alice", "POST /metrics?namespace=TESTNS", "\r\n\r\nnamespace=default", 200),
        same("alice", "DELETE /metrics?namespace=TESTNS", "", 403),
        same("alice", "GET /metrics?namespace=default", "", 403),
        same("alice", "GET /metrics?namespace=", "", 403),
        same("alice", "GET /metrics?namespace=TESTNS&namespace=TESTNS", "", 200),
        same("alice", "GET /metrics?namespace=TESTNS&namespace=default", "", 403),
        same("alice", "GET /metrics?namespace=default&namespace=TESTNS", "", 403),
        same("alice", "GET /metrics?n%61mespace=TESTNS", "", 200),
        differs("alice", "GET /metrics?namespace=default;&namespace=TESTNS", "", 200, 200, AS_AUTHORIZED),
        same("alice", "GET /metrics?namespace=TESTNS;namespace=default", "", 400),
        same("bob", "GET /metrics?namespace=TESTNS", "", 403),
    ];
    fixture.compare(IMPLEMENTATIONS, std::slice::from_ref(&upstream), Some(&query), &cases);
    let header = format!("authorization:\n  rewrites:\n    byHttpHeader:\n      name: x-namespace\n{attributes}");
    let cases = [
        same("alice", "GET /metrics?namespace=TESTNS", "", 400),
        same("alice", "GET /metrics", "X-Namespace: TESTNS\r\n", 200),
        same("alice", "GET /metrics", "X-NAMESPACE: TESTNS\r\nx-namespace: TESTNS\r\n", 200),
        same("alice", "GET /metrics", "X-Namespace: TESTNS\r\nX-Namespace: default\r\n", 403),
        same("alice", "GET /metrics", "X-Namespace: default, TESTNS\r\n", 403),
        same("alice", "GET /metrics", "X-Namespace:\r\n", 403),
        differs(
            "alice",
            "GET /metrics",
            "X-Namespace: TESTNS\r\nConnection: close, X-Namespace\r\n",
            200,
            400,
            "the upstream would not see what was authorized",
        ),
        differs(
            "alice",
            "GET /metrics",
            "X-Namespace: TESTNS\r\nX_Namespace: default\r\n",
            200,
            400,
            "the upstream may see another value than was authorized",
        ),
    ];
    fixture.compare(IMPLEMENTATIONS, std::slice::from_ref(&upstream), Some(&header), &cases);
    let both = format!(
        "authorization:\n  rewrites:\n    byQueryParameter: {{name: namespace}}\n    byHttpHeader: {{name: X-Namespace}}\n\
         {attributes}"
    );
    let cases = [
        same("alice", "GET /metrics?namespace=TESTNS", "X-Namespace: TESTNS\r\n", 200),
        same("alice", "GET /metrics?namespace=TESTNS", "X-Namespace: default\r\n", 403),
        same("alice", "GET /metrics?namespace=default", "X-Namespace: TESTNS\r\n", 403),
    ];
    fixture.compare(IMPLEMENTATIONS, &[upstream], Some(&both), &cases);
}

fn static_rules(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "static");
    let upstream = format!("--upstream={}", fixture.upstream());
    let clients = format!("--client-ca-file={}", environment.cluster.authorities.client.file.display());
    let file = "authorization:\n  static:\n  - user:\n      name: system:serviceaccount:TESTNS:bob\n    \
                resourceRequest: false\n    verb: get\n    path: /metrics\n  - user:\n      groups: [devs]\n    verb: \
                get\n    path: /devs\n  - path: /open\n  - path: /star\n    verb: '*'\n";
    let cases = [
        same("", "GET /metrics", "", 401),
        same("", "GET /open", "", 401),
        same("bob", "GET /metrics", "", 200),
        same("bob", "POST /metrics", "", 403),
        same("bob", "GET /metrics/", "", 403),
        same("bob", "GET /other", "", 403),
        same("alice", "GET /metrics", "", 200),
        same("bob", "DELETE /open", "", 200),
        same("bob", "OPTIONS /star", "", 200),
        same("bob", "GET /star", "", 403),
        differs("bob", "HEAD /metrics", "", 403, 200, HEAD),
        differs("bob", "HEAD /star", "", 200, 403, HEAD),
        same("jane", "GET /devs", "", 200),
        differs("bob", "GET /devs", "", 200, 403, "groups of static rules apply"),
    ];
    fixture.compare(IMPLEMENTATIONS, &[upstream.clone(), clients], Some(file), &cases);
    let file = "authorization:\n  rewrites:\n    byQueryParameter:\n      name: \"namespace\"\n  resourceAttributes:\n    \
                resource: namespaces\n    subresource: metrics\n    namespace: \"{{ .Value }}\"\n  static:\n    - user:\n        \
                name: system:serviceaccount:TESTNS:bob\n      resourceRequest: true\n      resource: namespaces\n      \
                subresource: metrics\n      namespace: default\n      verb: get\n";
    let cases = [
        same("bob", "GET /metrics?namespace=default", "", 200),
        same("bob", "GET /metrics?namespace=forbidden", "", 403),
        same("bob", "GET /metrics?namespace=default&namespace=forbidden", "", 403),
        same("bob", "GET /metrics", "", 400),
        same("alice", "GET /metrics?namespace=TESTNS", "", 200),
    ];
    fixture.compare(IMPLEMENTATIONS, &[upstream], Some(file), &cases);
}

fn allowed_and_ignored(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "allowed");
    let upstream = format!("--upstream={}", fixture.upstream());
    let allowed = flags(&[&upstream, "--allow-paths=/metrics,/api/v1/label/*/values", "--allow-paths=/o[tu]her?"]);
    let cases = [
        same("", "GET /", "", 404),
        same("alice", "GET /", "", 404),
        same("", "GET /metrics", "", 401),
        same("alice", "GET /metrics", "", 200),
        same("alice", "GET /%6detrics", "", 200),
        same("alice", "GET /metrics/", "", 404),
        same("alice", "GET /METRICS", "", 404),
        same("alice", "GET /api/v1/label/job/values", "", 200),
        same("alice", "GET /api/v1/label/a%2Fb/values", "", 404),
        same("alice", "GET /api/v1/label/name", "", 404),
        same("alice", "GET /others", "", 403),
        same("alice", "GET /other", "", 404),
        same("alice", "POST /nothing", "\r\n\r\nx", 404),
        same("alice", "HEAD /nothing", "", 404),
    ];
    fixture.compare(IMPLEMENTATIONS, &allowed, None, &cases);
    let ignored = flags(&[&upstream, "--ignore-paths=/metrics,/api/v1/*", "--ignore-paths=/public/*/logo"]);
    let cases = [
        same("", "GET /metrics", "", 200),
        same("", "POST /metrics", "\r\n\r\nx", 200),
        same("", "GET /api/v1/labels", "", 200),
        same("", "GET /api/v1/label/job/values", "", 401),
        same("", "GET /", "", 401),
        same("", "GET /Metrics", "", 401),
        same("", "GET /metrics;x", "", 401),
        same("", "GET /public/a/logo", "", 200),
        same("unknown", "GET /", "", 401),
        differs("unknown", "GET /metrics", "", 200, 200, NOT_FORWARDED),
        differs("", "GET /metrics", "X-Remote-User: root\r\n", 200, 200, NOT_FORWARDED),
        differs("", "GET /metrics", WEBSOCKET_TOKEN, 200, 200, NOT_FORWARDED),
        differs("", "GET /public%2Fa/logo", "", 200, 401, DOTS),
        differs("", "GET /public/..;/logo", "", 200, 400, DOTS),
        differs("", "GET /public/..%5C..%5Csecret/logo", "", 200, 400, DOTS),
        differs("", "GET /public//logo", "", 301, 401, DOTS),
        differs("", "GET /public/../logo", "", 301, 400, DOTS),
        differs("", "GET /public/%2e%2e/logo", "", 200, 400, DOTS),
    ];
    fixture.compare(IMPLEMENTATIONS, &ignored, None, &cases);
}

fn identity(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "identity");
    let upstream = format!("--upstream={}", fixture.upstream());
    let clients = format!("--client-ca-file={}", environment.cluster.authorities.client.file.display());
    let on = flags(&[&upstream, &clients, "--auth-header-fields-enabled"]);
    let cases = [
        same("alice", "GET /metrics", "", 200),
        same("admin", "GET /x", "", 200),
        same("alice", "GET /metrics", "X-Remote-User: root\r\nX-Remote-Groups: system:masters\r\n", 200),
        differs("alice", "GET /metrics", "X-Remote-Group: system:masters\r\n", 200, 200, NOT_FORWARDED),
        differs(
            "alice",
            "GET /metrics",
            "Connection: close, X-Remote-User, X-Remote-Groups\r\n",
            200,
            200,
            "a client cannot remove the proxy's headers",
        ),
    ];
    fixture.compare(IMPLEMENTATIONS, &on, None, &cases);
    let named = flags(&[
        &upstream,
        "--auth-header-fields-enabled=true",
        "--auth-header-user-field-name=X-Who",
        "--auth-header-groups-field-name=X-Which",
        "--auth-header-groups-field-separator=, ",
    ]);
    let cases = [
        same("alice", "GET /metrics", "", 200),
        same("alice", "GET /metrics", "X-Who: root\r\nX-Which: a\r\nX-Which: b\r\n", 200),
        differs("alice", "GET /metrics", "X_Who: root\r\n", 200, 200, NOT_FORWARDED),
    ];
    fixture.compare(IMPLEMENTATIONS, &named, None, &cases);
    let off = flags(&[&upstream, "--auth-header-user-field-name=X-Who"]);
    let cases = [
        same("alice", "GET /metrics", "", 200),
        differs("alice", "GET /metrics", "X-Who: root\r\n", 200, 200, NOT_FORWARDED),
    ];
    fixture.compare(IMPLEMENTATIONS, &off, None, &cases);
}

fn tokens(environment: &TestEnvironment) {
    let mut fixture = ProxyFixture::open(environment, "tokens");
    let upstream = format!("--upstream={}", fixture.upstream());
    for (name, audiences) in [("right", &["kube-rbac-proxy"][..]), ("wrong", &["another"]), ("two", &["a", "metrics"])]
    {
        let token = fixture.token("alice", audiences);
        fixture.tokens.insert(name, token);
    }
    let audiences = flags(&[&upstream, "--auth-token-audiences=kube-rbac-proxy,metrics"]);
    let cases = [
        same("right", "GET /metrics", "", 200),
        same("two", "GET /metrics", "", 200),
        same("wrong", "GET /metrics", "", 401),
        same("alice", "GET /metrics", "", 401),
    ];
    fixture.compare(IMPLEMENTATIONS, &audiences, None, &cases);

    let key = test_signer::SigningKey::rsa();
    let serving = environment.cluster.authorities.serving.server("krp-issuer", &["127.0.0.1"]);
    let port = start_echo_server(&ServerProtocol::Tls(&serving, None), |port| {
        let url = format!("https://127.0.0.1:{port}");
        let keys = serde_json::from_str(&test_signer::key_set(&[key.jwk("k")])).unwrap();
        BTreeMap::from([
            ("/.well-known/openid-configuration".to_owned(), json!({"issuer": url, "jwks_uri": format!("{url}/keys")})),
            ("/keys".to_owned(), keys),
        ])
    });
    let url = format!("https://127.0.0.1:{port}");
    let subject = format!("system:serviceaccount:{}:alice", fixture.namespace);
    let mut sign = |name: &'static str, claims: &serde_json::Value| {
        let mut whole = json!({"iss": url, "aud": "client", "email": subject, "exp": 4_000_000_000_u64});
        for (name, value) in claims.as_object().unwrap() {
            whole[name] = value.clone();
        }
        fixture.tokens.insert(name, key.token("RS256", "k", &whole));
    };
    sign("oidc", &json!({"groups": ["a", "b"]}));
    sign("oidc-group", &json!({"groups": "one"}));
    sign("oidc-unbound", &json!({"email": "somebody"}));
    sign("oidc-other-client", &json!({"aud": "other"}));
    sign("oidc-other-issuer", &json!({"iss": "https://other.example"}));
    sign("oidc-late", &json!({"exp": 1}));
    sign("oidc-unverified", &json!({"email_verified": false}));
    let openid = flags(&[
        &upstream,
        &format!("--oidc-issuer={url}"),
        "--oidc-clientID=client",
        &format!("--oidc-ca-file={}", environment.cluster.authorities.serving.file.display()),
        "--auth-header-fields-enabled",
    ]);
    let cases = [
        same("oidc", "GET /metrics", "", 200),
        same("oidc-group", "GET /metrics", "", 200),
        same("oidc-unbound", "GET /metrics", "", 403),
        same("oidc-other-client", "GET /metrics", "", 401),
        same("oidc-other-issuer", "GET /metrics", "", 401),
        same("oidc-late", "GET /metrics", "", 401),
        same("oidc-unverified", "GET /metrics", "", 401),
        same("alice", "GET /metrics", "", 401),
        same("", "GET /metrics", "", 401),
    ];
    fixture.compare(IMPLEMENTATIONS, &openid, None, &cases);
    let prefixed = [
        openid,
        flags(&["--oidc-username-claim=name", "--oidc-username-prefix=system:", "--oidc-groups-prefix=oidc:"]),
    ]
    .concat();
    let mut whole = json!({"iss": url, "aud": "client", "groups": ["a"], "exp": 4_000_000_000_u64});
    whole["name"] = subject.trim_start_matches("system:").into();
    fixture.tokens.insert("oidc-prefixed", key.token("RS256", "k", &whole));
    let cases = [same("oidc-prefixed", "GET /metrics", "", 200), same("oidc", "GET /metrics", "", 401)];
    fixture.compare(IMPLEMENTATIONS, &prefixed, None, &cases);
}

fn upstreams(environment: &TestEnvironment) {
    let fixture = ProxyFixture::open(environment, "upstreams");
    let authorities = &environment.cluster.authorities;
    let serving = authorities.backend.server("krp-upstream", &["127.0.0.1"]);
    let cases = || {
        [
            same("alice", "GET /metrics?a=b", "", 200),
            same("carol", "POST /all", "\r\n\r\nhello", 200),
            same("bob", "GET /metrics", "", 403),
        ]
    };
    let port = start_echo_server(&ServerProtocol::H2c, |_| BTreeMap::new());
    let h2c = flags(&[&format!("--upstream=http://127.0.0.1:{port}"), "--upstream-force-h2c"]);
    fixture.compare(IMPLEMENTATIONS, &h2c, None, &cases());

    let port = start_echo_server(&ServerProtocol::Tls(&serving, Some(&authorities.client)), |_| BTreeMap::new());
    let mutual = flags(&[
        &format!("--upstream=https://127.0.0.1:{port}/"),
        &format!("--upstream-ca-file={}", authorities.backend.file.display()),
        &format!("--upstream-client-cert-file={}", authorities.jane.certificate.display()),
        &format!("--upstream-client-key-file={}", authorities.jane.key.display()),
    ]);
    let cases = [
        differs("alice", "GET /metrics?a=b", "", 200, 200, HTTP2),
        differs("carol", "POST /all", "\r\n\r\nhello", 200, 200, HTTP2),
        same("bob", "GET /metrics", "", 403),
    ];
    fixture.compare(IMPLEMENTATIONS, &mutual, None, &cases);
    // Without client certificate and CA: both detect it per request.
    for wrong in [&mutual[..2], &mutual[..1]] {
        fixture.compare(IMPLEMENTATIONS, wrong, None, &[same("alice", "GET /metrics", "", 502)]);
    }
    // The path of the upstream URL is a prefix of the request's path.
    let base = flags(&[&format!("--upstream={}base/", fixture.upstream())]);
    fixture.compare(IMPLEMENTATIONS, &base, None, &[same("alice", "GET /metrics?x", "", 200)]);
    let down = flags(&["--upstream=http://127.0.0.1:1/"]);
    fixture.compare(
        IMPLEMENTATIONS,
        &down,
        None,
        &[same("alice", "GET /metrics", "", 502), same("", "GET /metrics", "", 401)],
    );
}
