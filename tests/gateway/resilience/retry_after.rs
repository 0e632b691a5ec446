//! The header `Retry-After`: only where kube-apiserver sends it. kubectl retries a request whose response has it ten
//! times before it prints the error.

use http::Method;

use crate::support::assert_refused::{assert_cause, first_cause, retry_after_seconds};
use crate::support::backend::BackendSettings;
use crate::support::client::request;
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS, register_things};
use crate::support::raw_backend::{self, RawConnection};

/// An address where nothing listens.
fn closed_port() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_while_backend_is_down() {
    let fixture = GatewayFixture::with_addresses(TestEnvironment::new(), &[closed_port()], &[]);
    let clients = fixture.both_protocols().await;
    for client in &clients {
        for method in [Method::GET, Method::POST] {
            let response = client.send_and_read(request(method, THINGS, &[], "{}")).await;
            assert_cause(&response.assert_failure(503, "ServiceUnavailable"), "ConnectionRefused");
            assert!(retry_after_seconds(&response).is_some());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_while_circuit_is_open() {
    let environment = TestEnvironment::new();
    let backend = raw_backend::http1(&environment, BackendSettings::http1(), async |mut talk: RawConnection| {
        talk.write("\0\u{1}\r\n\r\n").await;
        talk.close().await;
    })
    .await;
    // No probe of ours makes it unavailable meanwhile.
    let fixture = GatewayFixture::new(environment, &[&backend], &[("probe-interval", "24h")]);
    let clients = fixture.both_protocols().await;
    eventually("the circuit to open", async || {
        let response = clients[0].get(THINGS).await;
        (first_cause(&response.json()) == "CircuitOpen").then_some(())
    })
    .await;
    for client in &clients {
        let response = client.get(THINGS).await;
        // One of them may be the request that is let through to see whether the backend answers again.
        assert!(matches!(response.status.as_u16(), 502 | 503), "{}", response.status);
        assert!(retry_after_seconds(&response).is_some());
        let response = client.send_and_read(request(Method::POST, THINGS, &[], "{}")).await;
        assert!(matches!(response.status.as_u16(), 502 | 503), "{}", response.status);
        assert_eq!(retry_after_seconds(&response).is_some(), first_cause(&response.json()) == "CircuitOpen");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_header_absent_in_text_format() {
    let environment = TestEnvironment::new();
    register_things(&environment, &[closed_port()], &[]);
    let fixture = GatewayFixture::from_registry(environment, &["--error-format=text"]);
    for client in fixture.both_protocols().await {
        let response = client.get(THINGS).await;
        assert_eq!((response.status.as_u16(), &*response.text()), (503, "service unavailable\n"));
        assert!(!response.headers.contains_key("retry-after"));
    }
}
