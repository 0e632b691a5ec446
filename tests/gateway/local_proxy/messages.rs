//! `run_narthex proxy` refuses ambiguous messages of clients and API servers.

use crate::local_proxy::proxy::{ProxyProcess, environment_with_apiserver, loopback_settings, write_kubeconfig};
use crate::support::backend::BackendSettings;
use crate::support::fixtures::TestEnvironment;
use crate::support::raw_backend::{self, RawConnection};

/// client-go overwrites an empty `Impersonate-User`: a client of the proxy must not act as the kubeconfig's own user.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_impersonation_headers_refused_when_kubeconfig_impersonates() {
    let (environment, server) = environment_with_apiserver().await;
    let proxy_process = ProxyProcess::start(&environment, &["--port=0", "--as=limited", "--as-group=few"]);
    for forged in [
        "Impersonate-User:\r\n",
        "Impersonate-User: \r\n",
        "Impersonate-User: root\r\n",
        "impersonate_user: root\r\n",
        "Impersonate-Group: system:masters\r\n",
        "Impersonate-Uid: 1\r\n",
        "Impersonate-Extra-Scopes: all\r\n",
        "Connection: Impersonate-User\r\nImpersonate-User: root\r\n",
        "Impersonate-User: root\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
    ] {
        let response = proxy_process.request("GET /api", forged).await;
        assert_eq!(response.status, 403, "{forged:?}: {response:?}");
        assert!(response.body.contains("Impersonate-"), "{forged:?}: {response:?}");
    }
    assert!(server.received().is_empty());
    assert_eq!(proxy_process.get("/api").await.status, 200);
    let seen = server.last_request();
    assert_eq!(
        (seen.header_values("impersonate-user"), seen.header_values("impersonate-group")),
        (vec!["limited".into()], vec!["few".into()])
    );
    // Without impersonation of its own it is the client's to ask for.
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    assert_eq!(
        proxy_process.request("GET /api", "Impersonate-User: jane\r\nX_Forwarded_For: evil\r\n").await.status,
        200
    );
    assert_eq!(server.last_request().header_values("impersonate-user"), ["jane"]);
    assert!(server.last_request().header_values("x_forwarded_for").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_ambiguous_responses_refused() {
    let environment = TestEnvironment::new();
    let server = raw_backend::http1(&environment, loopback_settings(BackendSettings::http1()), |mut talk: RawConnection| async move {
        loop {
            let response = match talk.head.split(' ').nth(1).unwrap() {
                "/both" => {
                    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
                }
                "/coding" => "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
                "/switch" => "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nabc",
                _ => "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc",
            };
            talk.write(response).await;
            if talk.next_head().await.is_none() {
                return;
            }
        }
    })
    .await;
    write_kubeconfig(&environment, &format!("https://{}", server.address), "secret");
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    assert_eq!(proxy_process.get("/fine").await.body, "abc");
    for path in ["/both", "/coding", "/switch"] {
        let response = proxy_process.get(path).await;
        assert_eq!(response.status, 500, "{path}: {response:?}");
        assert!(!response.body.contains("abc"), "{path}: {response:?}");
    }
}

/// Requests that the HTTP library would refuse with an empty body.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_malformed_requests_get_a_reason_and_a_record() {
    let (environment, server) = environment_with_apiserver().await;
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    assert_eq!(proxy_process.get("/api?a=<b>").await.status, 200);
    assert_eq!(server.last_request().uri.path_and_query().unwrap().as_str(), "/api?a=%3Cb%3E");
    let long = format!("/api?a={}", "b".repeat(80_000));
    for (path, status, part) in
        [("/api?a=\u{7}", 400, "byte 0x07 at position 7 is not allowed"), (&long, 414, "the most are 65534")]
    {
        let response = proxy_process.get(path).await;
        assert_eq!(response.status, status, "{response:?}");
        assert!(response.body.contains("\"kind\":\"Status\"") && response.body.contains(part), "{response:?}");
    }
    assert_eq!(server.received().len(), 1);
}
