//! Egress selections: backends and control planes are reached through proxies only.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use serde_json::{Value, json as value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::observability::audit::AuditWebhook;
use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{Backend, BackendSettings, json_response, start_watch_backend};
use crate::support::client::{Client, admin_request, get, metric_value};
use crate::support::fake_apiserver::FakeApiServer;
use crate::support::fake_egress_proxy::{
    EgressProxyRequest, FakeEgressProxy, ProxyAction, ProxyProtocol, socks5_reply,
};
use crate::support::fake_oidc_issuer::{FakeOidcIssuer, SigningKey};
use crate::support::fake_review_server::FakeReviewServer;
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually, run_narthex};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, annotations_yaml, open_watch, register_things};
use crate::support::raw_backend;

/// Where no packet gets (RFC 5737): what is registered here is reached by proxies only.
pub(crate) const UNROUTABLE: &str = "192.0.2.10:8443";

/// Writes our own kind of file with these selections, as YAML.
pub(crate) fn write_selections(environment: &TestEnvironment, text: &str) -> PathBuf {
    let path = environment.path("egress.yaml");
    let text = format!("apiVersion: narthex.dev/v1alpha1\nkind: EgressConfiguration\negressSelections:\n{text}");
    let hidden = environment.path(".egress.tmp");
    std::fs::write(&hidden, text).unwrap();
    std::fs::rename(hidden, &path).unwrap();
    path
}

/// A selection by one proxy on TCP.
pub(crate) fn tcp_selection(name: &str, protocol: &str, url: &str, more: &str) -> String {
    format!("- name: {name}\n  connection: {{proxyProtocol: {protocol}, transport: {{tcp: {{url: {url}{more}}}}}}}\n")
}

/// A gateway with `things` registered at `address`, and these selections.
fn start_gateway(
    environment: TestEnvironment,
    address: &str,
    annotations: &[(&str, &str)],
    text: &str,
) -> GatewayFixture {
    register_things(&environment, &[address.parse().unwrap()], annotations);
    let flag = format!("--egress-selector-config-file={}", write_selections(&environment, text).display());
    GatewayFixture::from_registry(environment, &[&flag])
}

/// A proxy policy that connects to `address` for every target.
pub(crate) fn connect_to(address: SocketAddr) -> impl Fn(&EgressProxyRequest) -> ProxyAction + Send + Sync + 'static {
    move |_| ProxyAction::Connect(address)
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_socks5_carries_requests_watches_and_probes() {
    let environment = TestEnvironment::new();
    let (backend, _writers) = start_watch_backend(&environment, BackendSettings::default()).await;
    let proxy = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let url = format!("socks5://jane:secret@{}", proxy.address);
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    let file = write_selections(&environment, &tcp_selection("cluster", "SOCKS5", &url, ""));
    let flag = format!("--egress-selector-config-file={}", file.display());
    let fixture = GatewayFixture::from_registry(environment, &[&flag, "--access-log=all"]);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    fixture.gateway.wait_for_log(&[" dial_us=", " proxy_us=", " tls_us="]).await;
    let _watch = open_watch(&client).await;
    // Address and credentials are sent unchanged.
    assert_eq!(proxy.targets(), [UNROUTABLE]);
    assert!(proxy.requests().iter().all(|recorded| recorded.credentials == "jane:secret"));
    let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1.things.example.com";
    let condition = eventually("a probe through the proxy", async || {
        let status = client.get(path).await.json();
        (status["status"]["conditions"][0]["status"] == "True").then_some(status)
    });
    condition.await;
    let started = metric_value(
        &fixture.gateway,
        "apiserver_egress_dialer_dial_start_total{protocol=\"socks5\",transport=\"tcp\"}",
    );
    assert!(started.await.unwrap() >= 2.0);
    // Requests on an open connection do not dial.
    let dials = proxy.requests().len();
    let responses = futures_util::future::join_all((0..100).map(|_| client.get(THINGS))).await;
    assert!(responses.iter().all(|response| response.status == 200) && proxy.requests().len() == dials);
    let status = admin_request(&fixture.gateway, get("/status.json", &[])).await;
    let (now, text) = (status.json(), status.text());
    assert_eq!(now["apiservices"][0]["egressRoute"], "cluster (socks5)");
    let proxy = value!({
        "selection": "cluster", "protocol": "socks5", "proxy": proxy.address.to_string(), "state": "serves",
        "stalledTunnels": 0,
    });
    assert_eq!(now["egress"], value!([proxy]));
    assert!(!text.contains("secret") && !fixture.gateway.log_lines().join("\n").contains("secret"));
}

/// A gateway with `nN.things.example.com/v1` at `192.0.2.N` for each of these numbers, all of which could be reached by
/// the proxy of kind `kind` until just now: from now on it does as `policy` says.
pub(crate) async fn start_gateway_behind_failing_proxy(
    kind: ProxyProtocol,
    numbers: &[u8],
    policy: impl Fn(u8) -> ProxyAction + Send + Sync + 'static,
) -> (GatewayFixture, Client, FakeEgressProxy) {
    let environment = TestEnvironment::new();
    let names: Vec<String> = numbers.iter().map(|number| format!("n{number}-v1.n{number}.svc")).collect();
    let pair = environment.issue_backend(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let settings = BackendSettings { pair: Some(pair), ..BackendSettings::http2() };
    let backend = Backend::start(&environment, settings, async |_| json_response(200, "{}")).await;
    for number in numbers {
        let address = [SocketAddr::from(([192, 0, 2, *number], 443))];
        let name = format!("n{number}.things.example.com");
        environment.write_registry(
            &format!("{number}.yaml"),
            &environment.apiservice_manifests(&name, "v1", &address, &annotations_yaml(&[])),
        );
    }
    let (address, is_lost) = (backend.address, Arc::new(AtomicBool::new(false)));
    let lost = is_lost.clone();
    let policy = move |recorded: &EgressProxyRequest| {
        if is_lost.load(SeqCst) { policy(target_number(recorded)) } else { ProxyAction::Connect(address) }
    };
    let proxy = FakeEgressProxy::start_tcp(kind, None, "127.0.0.1:0".parse().unwrap(), policy).await;
    let (protocol, scheme) = match kind {
        ProxyProtocol::Socks5 => ("SOCKS5", "socks5"),
        ProxyProtocol::HttpConnect => ("HTTPConnect", "http"),
        ProxyProtocol::Konnectivity => ("GRPC", "http"),
    };
    let text = tcp_selection("cluster", protocol, &format!("{scheme}://{}", proxy.address), "") + "  dialTimeout: 1s\n";
    let flag = format!("--egress-selector-config-file={}", write_selections(&environment, &text).display());
    let fixture = GatewayFixture::from_registry(environment, &[&flag]);
    let client = fixture.http2().await;
    for number in numbers {
        let path = format!("/apis/n{number}.things.example.com/v1/things");
        eventually("the APIService", async || (client.get(&path).await.status == 200).then_some(())).await;
    }
    lost.store(true, SeqCst);
    backend.stop().await;
    (fixture, client, proxy)
}

/// What a client is told of APIService `number`, at the first time that it asks.
pub(crate) async fn assert_egress_failure(client: &Client, number: u8, code: u16, reason: &str, cause: &str) {
    let response = client.get(&format!("/apis/n{number}.things.example.com/v1/things")).await;
    let status = response.assert_failure(code, reason);
    let causes = status["details"]["causes"].as_array().unwrap();
    assert_eq!(causes.last().unwrap()["reason"], cause, "{status}");
    let text = response.text();
    assert!(text.contains(&format!("v1.n{number}.things.example.com")), "{text}");
    assert!(!text.contains("192.0.2") && !text.contains("127.0.0.1") && !text.contains("reply"), "{text}");
    // No Retry-After where the configuration must be changed first.
    assert_eq!(retry_after_seconds(&response).is_some(), !matches!(code, 403 | 500), "{text}");
}

/// The last number of an address that was asked for.
fn target_number(recorded: &EgressProxyRequest) -> u8 {
    recorded.target.strip_prefix("192.0.2.").unwrap().split(':').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_socks5_refusals_mapped_to_statuses() {
    let cases: [(u8, u16, &str, &str); 12] = [
        (1, 502, "InternalError", "ProxyFailed"),
        (2, 403, "Forbidden", "ProxyForbids"),
        (3, 502, "InternalError", "NetworkUnreachable"),
        (4, 502, "InternalError", "HostUnreachable"),
        (5, 502, "InternalError", "ConnectionRefused"),
        (6, 502, "InternalError", "TTLExpired"),
        (7, 500, "InternalError", "ProxyUnsuited"),
        (8, 500, "InternalError", "ProxyUnsuited"),
        (9, 502, "InternalError", "ProxyFailed"),
        (100, 502, "InternalError", "ProxyAnswerInvalid"),
        (101, 504, "Timeout", "ProxyTimeout"),
        (102, 502, "InternalError", "ProxyAnswerInvalid"),
    ];
    let numbers = cases.map(|case| case.0);
    let (fixture, client, proxy) =
        start_gateway_behind_failing_proxy(ProxyProtocol::Socks5, &numbers, |number| match number {
            100 => ProxyAction::Reply(b"\x05\x00\x00\x01".to_vec()),
            101 => ProxyAction::Hang,
            102 => ProxyAction::Reply(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()),
            code => ProxyAction::Reply(socks5_reply(code)),
        })
        .await;
    for (number, code, reason, cause) in cases {
        assert_egress_failure(&client, number, code, reason, cause).await;
    }
    fixture.gateway.wait_for_log(&["reply 07, it does not support CONNECT", &proxy.address.to_string()]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_http_connect_refusals_mapped_to_statuses() {
    let cases: [(u8, &str, u16, &str, &str); 10] = [
        (
            1,
            "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\n\r\n",
            502,
            "InternalError",
            "ProxyCredentialsRefused",
        ),
        (2, "HTTP/1.1 403 Forbidden\r\n\r\n", 403, "Forbidden", "ProxyForbids"),
        (3, "HTTP/1.1 302 Found\r\nLocation: http://192.0.2.99/\r\n\r\n", 502, "InternalError", "ProxyRedirects"),
        (4, "HTTP/1.1 503 Service Unavailable\r\n\r\nlookup 192.0.2.4 failed", 502, "InternalError", "ProxyFailed"),
        (5, "HTTP/1.1 504 Gateway Timeout\r\n\r\n", 504, "Timeout", "ProxyTimeout"),
        (6, "HTTP/1.1 405 Method Not Allowed\r\n\r\n", 500, "InternalError", "ProxyUnsuited"),
        (7, "SSH-2.0-OpenSSH_9.9\r\n", 502, "InternalError", "ProxyAnswerInvalid"),
        (8, "HTTP/1.1 200 OK\r\nX: ", 502, "InternalError", "ProxyAnswerInvalid"),
        (9, "", 502, "InternalError", "ProxyAnswerInvalid"),
        (10, "\0", 504, "Timeout", "ProxyTimeout"),
    ];
    let numbers = cases.map(|case| case.0);
    let (fixture, client, _proxy) =
        start_gateway_behind_failing_proxy(ProxyProtocol::HttpConnect, &numbers, move |number| {
            match cases.iter().find(|case| case.0 == number) {
                // Said for ever.
                Some((8, begin, ..)) => ProxyAction::Reply([begin.as_bytes(), &vec![b'x'; 2 << 20]].concat()),
                Some((10, ..)) | None => ProxyAction::Hang,
                Some((_, text, ..)) => ProxyAction::Reply(text.as_bytes().to_vec()),
            }
        })
        .await;
    for (number, _, code, reason, cause) in cases {
        assert_egress_failure(&client, number, code, reason, cause).await;
    }
    fixture.gateway.wait_for_log(&["Location: http://192.0.2.99/"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_http_connect_credentials_sent_for_requests_and_upgrades() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |request| {
        if request.headers().contains_key("upgrade") {
            json_response(400, "no tunnel today")
        } else {
            json_response(200, "{}")
        }
    })
    .await;
    let credentials = environment.path("proxy.creds");
    std::fs::write(&credentials, "jane:first\n").unwrap();
    let address = backend.address;
    let proxy = FakeEgressProxy::start_connect(move |recorded| match &*recorded.credentials {
        // Any 2xx is a yes, and has no body whatever it says.
        "jane:first" => ProxyAction::ConnectAndReply(
            address,
            b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.0 204 Why not\r\nContent-Length: 5\r\n\r\n".to_vec(),
        ),
        _ => ProxyAction::Reply(b"HTTP/1.1 407 Who are you?\r\n\r\n".to_vec()),
    })
    .await;
    let more = ", credentialsFile: proxy.creds";
    let text = tcp_selection("cluster", "HTTPConnect", &format!("http://{}", proxy.address), more);
    let fixture = start_gateway(environment, UNROUTABLE, &[], &text);
    let client = fixture.http1().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let upgrade = [("connection", "Upgrade"), ("upgrade", "websocket")];
    assert_eq!(client.send_and_read(get(&format!("{THINGS}/a/exec"), &upgrade)).await.status, 400);
    assert!(backend.last_request().headers.contains_key("upgrade"));
    let heads: Vec<String> = proxy.requests().into_iter().map(|recorded| recorded.head).collect();
    assert!(
        heads.iter().all(|head| head.starts_with(&format!("CONNECT {UNROUTABLE} HTTP/1.1\r\nHost: {UNROUTABLE}\r\n"))),
        "{heads:?}"
    );

    // New credentials are used for the next connection; invalid ones are reported to the operator.
    std::fs::write(&credentials, "jane:second\n").unwrap();
    fixture.gateway.wait_for_log(&["egress selections reloaded"]).await;
    let client = fixture.http1().await;
    let refused = eventually("the new credentials", async || {
        let response = client.get(THINGS).await;
        (response.status != 200).then_some(response)
    });
    assert!(refused.await.text().contains("ProxyCredentialsRefused"));
    std::fs::write(&credentials, "no pair\n").unwrap();
    fixture.gateway.wait_for_log(&["the last good ones stay", "must be user:password"]).await;
    std::fs::write(&credentials, "jane:first\n").unwrap();
    eventually("the right credentials", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert!(!fixture.gateway.log_lines().join("\n").contains("jane:"));
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_failover_to_next_proxy_is_sticky() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http1(), async |_| json_response(200, "{}")).await;
    let [silent, broken] = [
        FakeEgressProxy::start_socks5(|_| ProxyAction::Hang).await,
        FakeEgressProxy::start_socks5(|_| ProxyAction::Reply(socks5_reply(1))).await,
    ];
    let good = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let gone = FakeEgressProxy::start_socks5(|_| ProxyAction::Hang).await.stop().await;
    let urls: Vec<String> = [gone, silent.address, broken.address, good.address]
        .iter()
        .map(|address| format!("\"socks5://{address}\""))
        .collect();
    let text = format!(
        "- name: cluster\n  connection: {{proxyProtocol: SOCKS5, transport: {{tcp: {{urls: [{}]}}}}}}\n  dialTimeout: 2s\n",
        urls.join(", ")
    );
    let fixture = start_gateway(environment, UNROUTABLE, &[], &text);
    let client = fixture.http2().await;
    eventually("the last of four proxies", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    fixture.gateway.wait_for_log(&["switched to another egress proxy", &good.address.to_string()]).await;
    let before = [silent.requests().len(), broken.requests().len()];
    let clients = futures_util::future::join_all((0..20).map(|_| client.get(THINGS))).await;
    assert!(clients.iter().all(|response| response.status == 200));
    assert_eq!([silent.requests().len(), broken.requests().len()], before, "the one that served is asked first");
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_no_proxy_goes_direct_and_missing_selection_fails() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let proxy = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let url = format!("socks5://{}", proxy.address);
    let text = tcp_selection("cluster", "SOCKS5", &url, "")
        + "  noProxy: [127.0.0.0/8]\n"
        + &tcp_selection("dmz", "SOCKS5", &url, "");
    let here = backend.address.to_string();
    let fixture = start_gateway(environment, &here, &[], &text);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    assert_eq!(proxy.requests(), []);
    register_things(&fixture.environment, &[backend.address], &[("egress", "DMZ")]);
    eventually("the way through the proxy", async || {
        assert_eq!(client.get(THINGS).await.status, 200);
        (proxy.targets() == [&*here]).then_some(())
    })
    .await;
    register_things(&fixture.environment, &[backend.address], &[("egress", "elsewhere")]);
    let refused = eventually("a way that is not there", async || {
        let response = client.get(THINGS).await;
        (response.status != 200).then_some(response)
    });
    let status = refused.await.assert_failure(503, "ServiceUnavailable");
    assert_eq!(status["details"]["causes"][0]["reason"], "EgressSelectionNotFound");
    // The writer of the file corrects it.
    write_selections(&fixture.environment, &(text + &tcp_selection("elsewhere", "SOCKS5", &url, "")));
    eventually("the selection", async || (client.get(THINGS).await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_konnectivity_unix_socket_created_later() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let socket = environment.path("konnectivity.sock");
    // kube-apiserver's own kind of file.
    let path = environment.path("selector.yaml");
    let text = format!(
        "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections:\n- name: cluster\n  \
         connection: {{proxyProtocol: HTTPConnect, transport: {{uds: {{udsName: {}}}}}}}\n",
        socket.display()
    );
    std::fs::write(&path, text).unwrap();
    register_things(&environment, &[UNROUTABLE.parse().unwrap()], &[]);
    let fixture =
        GatewayFixture::from_registry(environment, &[&format!("--egress-selector-config-file={}", path.display())]);
    let client = fixture.http2().await;
    // From the attempt itself, or from a probe that was faster.
    let response = client.get(THINGS).await;
    response.assert_failure(503, "ServiceUnavailable");
    assert!(response.text().contains("ProxyUnreachable"), "{}", response.text());
    fixture.gateway.wait_for_log(&["the socket does not exist (yet)"]).await;
    let server = FakeEgressProxy::start_unix(ProxyProtocol::HttpConnect, &socket, connect_to(backend.address));
    eventually("the socket", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    assert_eq!(server.requests()[0].head, format!("CONNECT {UNROUTABLE} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"));
    let name =
        "apiserver_egress_dialer_dial_failure_count{protocol=\"http_connect\",stage=\"connect\",transport=\"uds\"}";
    assert!(metric_value(&fixture.gateway, name).await.unwrap() >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_proxy_mutual_tls_certificates_reloaded() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let pair = environment.issue_backend(&["proxy.example"]);
    let proxy = FakeEgressProxy::start_tcp(
        ProxyProtocol::HttpConnect,
        Some((&environment, &pair)),
        "127.0.0.1:0".parse().unwrap(),
        connect_to(backend.address),
    )
    .await;
    let identity = || {
        environment
            .client_ca
            .issue(&narthex::tls::CertificateSpec::client("narthex", &[]), std::time::SystemTime::now())
    };
    environment.write_pair("egress", &identity().unwrap());
    let tls = ", tlsConfig: {caBundle: backend-ca.crt, clientCert: egress.crt, clientKey: egress.key, tlsServerName: proxy.example}";
    let text = tcp_selection("cluster", "HTTPConnect", &format!("https://{}", proxy.address), tls);
    std::fs::copy(environment.path("backend-ca.crt"), environment.path("right.crt")).unwrap();
    let fixture = start_gateway(environment, UNROUTABLE, &[], &text);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let file =
        ["crt", "key"].map(|it| fixture.environment.path(&format!("egress.{it}")).display().to_string()).join(" with ");
    let name = format!("narthex_certificate_expiry_timestamp_seconds{{file=\"{file}\"}}");
    eventually("when what it is shown ends", async || metric_value(&fixture.gateway, &name).await).await;
    let status = admin_request(&fixture.gateway, get("/status.json", &[])).await.json();
    assert!(status["certificates"].as_array().unwrap().iter().any(|one| one["file"] == *file), "{status}");
    // Another authority: new connections are opened, and this proxy is not trusted any more.
    std::fs::copy(fixture.environment.path("client-ca.crt"), fixture.environment.path("backend-ca.crt")).unwrap();
    let refused = eventually("the other authority", async || {
        let response = client.get(THINGS).await;
        (response.status != 200).then_some(response)
    });
    let refused = refused.await;
    assert!(refused.text().contains("ProxyHandshakeFailed"), "{}", refused.text());
    std::fs::copy(fixture.environment.path("right.crt"), fixture.environment.path("backend-ca.crt")).unwrap();
    eventually("the right authority", async || (client.get(THINGS).await.status == 200).then_some(())).await;
}

/// Lets a kubeconfig name its server where no packet gets.
fn make_unroutable(environment: &TestEnvironment, name: &str, number: u8) {
    let path = environment.path(&format!("{name}.kubeconfig"));
    let mut document: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let cluster = &mut document["clusters"][0]["cluster"];
    let server = cluster["server"].as_str().unwrap().replace("127.0.0.1", &format!("192.0.2.{number}"));
    cluster["server"] = server.into();
    cluster["tls-server-name"] = "127.0.0.1".into();
    std::fs::write(path, document.to_string()).unwrap();
}

/// A proxy policy that connects to the requested port on this machine.
fn connect_to_loopback(recorded: &EgressProxyRequest) -> ProxyAction {
    let port = recorded.target.rsplit(':').next().unwrap().parse().unwrap();
    ProxyAction::Connect(([127, 0, 0, 1], port).into())
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_controlplane_selection_used_for_reviews_registry_audit_and_jwks() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let (reviewer, cluster) = (FakeReviewServer::start(&environment).await, FakeApiServer::start(&environment).await);
    cluster.apply(&environment.apiservice_manifests("things.example.com", "v1", &[UNROUTABLE.parse().unwrap()], ""));
    let sink = AuditWebhook::listen(&environment, &[]).await;
    let key = SigningKey::ed();
    let issuer = FakeOidcIssuer::start(&environment, &[("k", &key)]).await;
    make_unroutable(&environment, "reviewer", 20);
    make_unroutable(&environment, "cluster", 21);
    make_unroutable(&environment, "sink", 22);
    let mut configuration = issuer.single_issuer_configuration(&environment, &value!({}));
    configuration["jwt"][0]["issuer"]["egressSelectorType"] = "controlplane".into();
    std::fs::write(environment.path("authentication.json"), configuration.to_string()).unwrap();
    std::fs::write(
        environment.path("policy.yaml"),
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\nomitStages: [RequestReceived]\n",
    )
    .unwrap();
    let to_backends = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let to_planes = FakeEgressProxy::start_connect(connect_to_loopback).await;
    let text = tcp_selection("cluster", "SOCKS5", &format!("socks5://{}", to_backends.address), "")
        + &tcp_selection("controlplane", "HTTPConnect", &format!("http://{}", to_planes.address), "");
    let reviews = environment.path("reviewer.kubeconfig").display().to_string();
    let mut flags = sink.flags(&environment, &["--audit-webhook-batch-max-wait=10ms", "--leader-elect=false"]);
    flags.extend([
        format!("--egress-selector-config-file={}", write_selections(&environment, &text).display()),
        format!("--authentication-kubeconfig={reviews}"),
        "--authentication-skip-lookup".to_owned(),
        format!("--authorization-kubeconfig={reviews}"),
        "--authorization-mode=Webhook".to_owned(),
        format!("--authentication-config={}", environment.path("authentication.json").display()),
        FakeApiServer::kubeconfig_flag(&environment),
    ]);
    let fixture = GatewayFixture::from_registry(environment, &flags.iter().map(String::as_str).collect::<Vec<_>>());
    let anonymous = Client::http1(&fixture.environment, &fixture.gateway, None).await;
    let signed = key.token("EdDSA", "k", &issuer.claims(&value!({})));
    for token in ["good", &signed] {
        eventually("the token and all that it takes", async || {
            let client = Client::http1(&fixture.environment, &fixture.gateway, None).await;
            let response = client.send_and_read(get(THINGS, &[("authorization", &format!("Bearer {token}"))])).await;
            (response.status == 200).then_some(())
        })
        .await;
    }
    drop(anonymous);
    eventually("the audit", async || (!sink.received_paths().is_empty()).then_some(())).await;
    assert_eq!(to_backends.targets(), [UNROUTABLE]);
    // The issuer is where its tokens say it is: on this machine, and all the same it is the proxy that goes there.
    let hosts: std::collections::BTreeSet<String> =
        to_planes.targets().iter().map(|target| target.split(':').next().unwrap().to_owned()).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    assert_eq!(hosts, ["127.0.0.1", "192.0.2.20", "192.0.2.21", "192.0.2.22"]);
    assert!(!reviewer.reviews("TokenReview").is_empty() && !reviewer.reviews("SubjectAccessReview").is_empty());
}

#[test]
fn egress_missing_issuer_selection_refused_at_start() {
    let environment = TestEnvironment::new();
    let configuration = value!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "AuthenticationConfiguration",
        "jwt": [{
            "issuer": {"url": "https://issuer.example", "audiences": ["a"], "egressSelectorType": "cluster"},
            "claimMappings": {"username": {"claim": "sub", "prefix": ""}},
        }],
    });
    std::fs::write(environment.path("authentication.json"), configuration.to_string()).unwrap();
    let flag = format!("--authentication-config={}", environment.path("authentication.json").display());
    let mut arguments = vec!["gateway".to_owned()];
    arguments.extend(environment.gateway_arguments(&[&flag]));
    let output = run_narthex(&arguments);
    let output_text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{output_text}");
    let expected = "jwt[0].issuer.egressSelectorType: egress lookup for \"cluster\" is not configured";
    assert!(output_text.contains(expected), "{output_text}");
}

/// The two ways by others that carry bytes as they are, each with its proxy to `address` and its selection.
async fn start_tcp_proxies(address: SocketAddr) -> [(FakeEgressProxy, String); 2] {
    let (socks, http) = (
        FakeEgressProxy::start_socks5(connect_to(address)).await,
        FakeEgressProxy::start_connect(connect_to(address)).await,
    );
    let texts = [
        tcp_selection("cluster", "SOCKS5", &format!("socks5://{}", socks.address), ""),
        tcp_selection("cluster", "HTTPConnect", &format!("http://{}", http.address), ""),
    ];
    let [by_socks, by_http] = texts;
    [(socks, by_socks), (http, by_http)]
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_data_sent_before_close_fully_delivered() {
    const SENT: usize = 2 << 20;
    const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    const ASK: &str = "GET /apis/things.example.com/v1/namespaces/default/things/one/exec HTTP/1.1\r\nhost: a\r\n\
                       connection: Upgrade\r\nupgrade: websocket\r\n\r\n";
    let mut environment = TestEnvironment::new();
    let (arrived, mut lengths) = tokio::sync::mpsc::unbounded_channel();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), move |mut talk| {
        let arrived = arrived.clone();
        async move {
            talk.write(SWITCH).await;
            let mut length = talk.buffered.len();
            talk.buffered.clear();
            while talk.read_more().await.is_some() {
                length += std::mem::take(&mut talk.buffered).len();
            }
            let _ = arrived.send(length);
        }
    })
    .await;
    for (_proxy, text) in start_tcp_proxies(backend.address).await {
        let fixture = start_gateway(environment, UNROUTABLE, &[], &text);
        for _ in 0..10 {
            let mut client = fixture.connect("http/1.1").await;
            client.write_all(ASK.as_bytes()).await.unwrap();
            let mut head = [0; SWITCH.len()];
            tokio::time::timeout(TEST_TIMEOUT, client.read_exact(&mut head)).await.unwrap().unwrap();
            client.write_all(&vec![b'x'; SENT]).await.unwrap();
            client.shutdown().await.unwrap();
            drop(client);
            let length = tokio::time::timeout(TEST_TIMEOUT, lengths.recv()).await.unwrap().unwrap();
            assert_eq!(length, SENT);
        }
        environment = fixture.environment;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_thousand_dials_leak_no_descriptors() {
    let mut environment = TestEnvironment::new();
    let settings = BackendSettings { handles_probes: false, ..BackendSettings::http1() };
    let backend = Backend::start(&environment, settings, async |_| {
        let mut response = json_response(200, "{}");
        response.headers_mut().insert("connection", "close".parse().unwrap());
        response
    })
    .await;
    for (proxy, text) in start_tcp_proxies(backend.address).await {
        let fixture = start_gateway(environment, UNROUTABLE, &[], &text);
        let client = fixture.http2().await;
        eventually("the APIService", async || (client.get(THINGS).await.status == 200).then_some(())).await;
        let (before, dials) = (fixture.gateway.descriptor_count(), proxy.requests().len());
        for _ in 0..10 {
            let responses = futures_util::future::join_all((0..100).map(|_| client.get(THINGS))).await;
            assert!(responses.iter().all(|response| response.status == 200));
        }
        assert!(proxy.requests().len() >= dials + 1000, "each request had its own: {}", proxy.requests().len());
        // What the peers closed is closed here as soon as it is seen.
        eventually("the descriptors to go", async || (fixture.gateway.descriptor_count() <= before + 4).then_some(()))
            .await;
        environment = fixture.environment;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn egress_reload_keeps_connections_of_unchanged_selections() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::http2(), async |_| json_response(200, "{}")).await;
    let proxy = FakeEgressProxy::start_socks5(connect_to(backend.address)).await;
    let actual = tcp_selection("cluster", "SOCKS5", &format!("socks5://{}", proxy.address), "");
    let fixture = start_gateway(environment, UNROUTABLE, &[], &actual);
    let client = fixture.http2().await;
    assert_eq!(client.get(THINGS).await.status, 200);
    let dials = proxy.requests().len();
    let other = tcp_selection("dmz", "HTTPConnect", "http://192.0.2.99:3128", "");
    write_selections(&fixture.environment, &(actual.clone() + &other));
    fixture.gateway.wait_for_log(&["egress selections reloaded", "dmz"]).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    assert_eq!(proxy.requests().len(), dials);
    // A mistake changes nothing, and is told.
    write_selections(&fixture.environment, &(actual.clone() + &other.replace("http:", "gopher:")));
    fixture.gateway.wait_for_log(&["the last good ones stay", "gopher"]).await;
    assert_eq!(client.get(THINGS).await.status, 200);
    // Another way is another connection.
    write_selections(&fixture.environment, &format!("{actual}  dialTimeout: 3s\n"));
    eventually("a new connection", async || {
        assert_eq!(client.get(THINGS).await.status, 200);
        (proxy.requests().len() > dials).then_some(())
    })
    .await;
}
