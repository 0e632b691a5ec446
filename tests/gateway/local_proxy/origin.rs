//! Host and Origin checks of `run_narthex proxy`: foreign names and foreign web pages are refused.

use tokio::io::AsyncWriteExt;

use crate::local_proxy::proxy::{ProxyProcess, environment_with_apiserver, read_until};
use crate::support::fixtures::run_narthex;

/// Host and Origin checks: requests with other values do not reach the API server.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_foreign_hosts_and_origins_refused() {
    let (environment, server) = environment_with_apiserver().await;
    let proxy_process = ProxyProcess::start(&environment, &["--port=0"]);
    let port = proxy_process.address.rsplit_once(':').unwrap().1.to_owned();
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for (line, headers, status) in [
        ("GET /api", "Host: localhost:PORT\r\n", 200),
        ("GET /api", "Host: 127.0.0.1:PORT\r\n", 200),
        ("GET /api", "Host: [::1]:PORT\r\n", 200),
        ("GET /api", "Host: [::1]\r\n", 200),
        ("GET http://localhost:PORT/api", "Host: rebound.example\r\n", 200),
        ("GET /api", "Host: localhost:PORT\r\nOrigin: http://localhost:PORT\r\nSec-Fetch-Site: same-origin\r\n", 200),
        ("GET /api", "Host: localhost:PORT\r\nSec-Fetch-Site: none\r\n", 200),
        ("GET /api", "Host: localhost:PORT\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-origin\r\n", 200),
        // Names that are not ours, or not written as ours.
        ("GET /api", "Host: rebound.example:PORT\r\n", 403),
        ("GET /api", "Host: localhost.:PORT\r\n", 403),
        ("GET /api", "Host: localhost.\r\n", 403),
        ("GET /api", "Host: LOCALHOST:PORT\r\n", 403),
        ("GET /api", "Host: localhost.rebound.example\r\n", 403),
        ("GET /api", "Host: 127.0.0.1.rebound.example\r\n", 403),
        ("GET /api", "Host: 127.0.0.2\r\n", 403),
        ("GET /api", "Host: 0.0.0.0:PORT\r\n", 403),
        ("GET /api", "Host: 2130706433\r\n", 403),
        ("GET /api", "Host: [::]:PORT\r\n", 403),
        ("GET /api", "Host: [::ffff:127.0.0.1]:PORT\r\n", 403),
        ("GET /api", "Host: [::1]:PORT.rebound.example\r\n", 403),
        ("GET /api", "Host:\r\n", 403),
        ("GET http://rebound.example/api", "Host: localhost:PORT\r\n", 403),
        ("GET http://LOCALHOST:PORT/api", "Host: localhost:PORT\r\n", 403),
        ("GET http://localhost.:PORT/api", "Host: localhost:PORT\r\n", 403),
        // Pages of others, whatever a browser says of them.
        ("GET /api", "Host: localhost\r\nOrigin: null\r\n", 403),
        ("POST /api", "Host: localhost\r\nOrigin: null\r\nContent-Length: 0\r\n", 403),
        ("GET /api", "Host: localhost\r\nOrigin: http://rebound.example\r\n", 403),
        ("GET /api", "Host: localhost\r\nOrigin: http://localhost.rebound.example:PORT\r\n", 403),
        ("GET /api", "Host: localhost\r\nOrigin: http://LOCALHOST:PORT\r\n", 403),
        ("GET /api", "Host: localhost\r\nOrigin: http://localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("GET /api", "Host: localhost\r\nOrigin: localhost\r\n", 403),
        // Of other servers on this machine.
        ("GET /api", "Host: localhost:PORT\r\nOrigin: http://localhost:3000\r\n", 403),
        ("GET /api", "Host: localhost:PORT\r\nOrigin: http://localhost\r\n", 403),
        ("GET /api", "Host: localhost:PORT\r\nOrigin: http://localhost:3000\r\nSec-Fetch-Site: same-site\r\n", 403),
        ("GET /api", "Host: localhost:PORT\r\nSec-Fetch-Site: same-site\r\n", 403),
        ("GET /api", "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: no-cors\r\n", 403),
        (
            "POST /api",
            "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\nContent-Length: 0\r\n",
            403,
        ),
        (
            "OPTIONS /api",
            "Host: localhost\r\nOrigin: http://evil.example\r\nAccess-Control-Request-Method: DELETE\r\n",
            403,
        ),
        // Websockets know no same-origin rule: a browser opens them to whomever a page names.
        ("GET /api/ws", "Host: localhost\r\nOrigin: http://evil.example\r\nUPGRADE", 403),
        ("GET /api/ws", "Host: localhost\r\nOrigin: null\r\nUPGRADE", 403),
        ("GET /api/ws", "Host: rebound.example\r\nOrigin: http://rebound.example\r\nUPGRADE", 403),
    ] {
        let [line, headers] = [line, headers].map(|text| text.replace("PORT", &port).replace("UPGRADE", upgrade));
        let before = server.received().len();
        let connection = if headers.contains("Upgrade") { "" } else { "Connection: close\r\n" };
        let mut stream = proxy_process.connect().await;
        stream.write_all(format!("{line} HTTP/1.1\r\n{headers}{connection}\r\n").as_bytes()).await.unwrap();
        let output = read_until(&mut stream, "\r\n\r\n").await;
        assert!(output.starts_with(&format!("HTTP/1.1 {status} ")), "{line} {headers:?}: {output}");
        assert!(!output.to_lowercase().contains("access-control-"), "no page of others is given leave: {output}");
        assert_eq!(server.received().len() - before, usize::from(status == 200), "{line} {headers:?}");
    }
}

/// All hosts are accepted, foreign origins are not.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_accept_hosts_wildcard_still_refuses_foreign_origins() {
    let (environment, server) = environment_with_apiserver().await;
    let kubeconfig = format!("--kubeconfig={}", environment.path("kubeconfig").display());
    let output = run_narthex(&["check".to_owned(), "proxy".to_owned(), kubeconfig, "--accept-hosts=.*".to_owned()]);
    let warned = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && warned.contains("warning: --accept-hosts: accepts every host name"), "{warned}");
    let proxy_process = ProxyProcess::start(&environment, &["--port=0", "--accept-hosts=.*"]);
    let cross_site = "Sec-Fetch-Site: cross-site\r\n";
    for (line, headers, status) in [
        (
            "POST /api",
            "Host: rebind.evil.example\r\nOrigin: http://evil.example\r\nSec-Fetch-Site: cross-site\r\n",
            403,
        ),
        ("POST /api", "Host: rebind.evil.example\r\nOrigin: http://evil.example\r\n", 403),
        ("POST /api", "Host: localhost\r\nOrigin: http://evil.example\r\n", 403),
        ("POST /api", &format!("Host: localhost\r\nOrigin: http://localhost\r\n{cross_site}"), 403),
        ("GET /api", &format!("Host: localhost\r\n{cross_site}"), 403),
        ("GET /api", "Host: proxy.example\r\nOrigin: http://proxy.example\r\n", 200),
        ("POST /api", "Host: proxy.example:8001\r\n", 200),
    ] {
        let before = server.received().len();
        let output = proxy_process.request(line, &format!("{headers}Content-Length: 0\r\n")).await;
        assert_eq!(output.status, status, "{line} {headers:?}");
        assert_eq!(server.received().len() - before, usize::from(status == 200), "{line} {headers:?}");
    }
    let open = ProxyProcess::start(&environment, &["--port=0", "--disable-filter"]);
    assert_eq!(open.request("GET /api", &format!("Origin: http://evil.example\r\n{cross_site}")).await.status, 200);
}
