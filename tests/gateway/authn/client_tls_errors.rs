//! TLS errors of clients: serving certificate not trusted, or plain HTTP on the HTTPS port.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::client::metric_value;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};

async fn wait_for_error_count(gateway: &GatewayProcess, reason: &str, count: f64) {
    let name = format!("narthex_tls_handshake_failures_total{{reason=\"{reason}\"}}");
    eventually(&name, async || (metric_value(gateway, &name).await? >= count).then_some(())).await;
}

fn count_warnings(gateway: &GatewayProcess, words: &str) -> usize {
    gateway.log_lines().iter().filter(|line| line.contains("WARN") && line.contains(words)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_handshake_rejected_by_client_counted_and_logged_once_a_minute() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let mut roots = rustls::RootCertStore::empty();
    roots.add(TestEnvironment::new().serving_ca.certificate().clone()).unwrap();
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = rustls::ClientConfig::builder_with_provider(narthex::tls::provider())
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        let socket = TcpStream::connect(gateway.address).await.unwrap();
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        assert!(connector.connect("localhost".try_into().unwrap(), socket).await.is_err());
    }
    wait_for_error_count(&gateway, "certificate_refused", 2.0).await;
    gateway.wait_for_log(&["WARN", "client rejected the serving certificate", "127.0.0.1"]).await;
    assert_eq!(count_warnings(&gateway, "client rejected the serving certificate"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn http_request_on_https_port_answered_400() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let expected = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
    for request in [
        "GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n".to_owned(),
        "HEAD / HTTP/1.1\r\n\r\n".to_owned(),
        format!("POST /x HTTP/1.1\r\ncontent-length: 30000\r\n\r\n{}", "x".repeat(30_000)),
        "PUT /x HTTP/1.0\r\n\r\n".to_owned(),
        "OPTIONS * HTTP/1.1\r\n\r\n".to_owned(),
    ] {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        // Its first bytes come one by one.
        socket.set_nodelay(true).unwrap();
        for byte in request.as_bytes()[..4].chunks(1) {
            socket.write_all(byte).await.unwrap();
            tokio::task::yield_now().await;
        }
        socket.write_all(&request.as_bytes()[4..]).await.unwrap();
        let mut response = String::new();
        socket.read_to_string(&mut response).await.unwrap();
        assert_eq!(response, expected, "{}", &request[..12]);
    }
    wait_for_error_count(&gateway, "plain_http", 5.0).await;
    gateway.wait_for_log(&["WARN", "HTTP request to the HTTPS port", "127.0.0.1"]).await;
    assert_eq!(count_warnings(&gateway, "HTTP request to the HTTPS port"), 1);
    // What only begins like one is no request, nor is what Go does not take for one.
    for other in ["GEX / HTTP/1.1\r\n\r\n", "DELETE /x HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut socket = TcpStream::connect(gateway.address).await.unwrap();
        socket.write_all(other.as_bytes()).await.unwrap();
        let mut response = Vec::new();
        let _ = socket.read_to_end(&mut response).await;
        assert!(!String::from_utf8_lossy(&response).contains("HTTP"), "{other:?}: {response:?}");
    }
    wait_for_error_count(&gateway, "not_tls", 3.0).await;
    assert_eq!(metric_value(&gateway, "apiserver_tls_handshake_errors_total").await, Some(8.0));
}
