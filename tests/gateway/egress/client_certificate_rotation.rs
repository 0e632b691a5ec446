//! Rotation of the gateway's client certificate while a request is in flight.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use narthex::tls::{Authority, CertificateSpec};
use tokio::sync::oneshot;

use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::get;
use crate::support::fixtures::{TestEnvironment, eventually};
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

/// A request that has to be sent again after the rotation goes to an endpoint that trusts the new certificate alone.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_rotation_retry_uses_new_certificate() {
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let environment = TestEnvironment::new();
        let (authority, _) = Authority::new("requestheader-ca-2", SystemTime::now()).unwrap();
        let new = BackendSettings { front_proxies: vec![authority.certificate().clone()], ..settings.clone() };
        let renewed = Backend::start(&environment, new, async |_| json_response(200, r#"{"by":"renewed"}"#)).await;
        // The other endpoint keeps the request until it ends.
        let (ending, arrival) = start_silent_backend(&environment, settings).await;
        let fixture = GatewayFixture::new(environment, &[&ending, &renewed], &[]);
        let client = fixture.http2().await;
        let response = tokio::spawn(async move { client.send_and_read(get(THINGS, &[])).await });
        arrival.await.unwrap();
        replace_client_certificate(&fixture, &authority).await;
        assert!(renewed.received().is_empty(), "it trusts no certificate but the new one");
        ending.stop().await;
        let response = response.await.unwrap();
        assert_eq!((response.status.as_u16(), &*response.text()), (200, r#"{"by":"renewed"}"#));
        let peers: Vec<_> = renewed.received().iter().map(|request| request.peer.clone()).collect();
        assert_eq!(peers, ["narthex-front-proxy"]);
        // New requests find it, too.
        let client = fixture.http1().await;
        eventually("an answer", async || (client.get(THINGS).await.status == 200).then_some(())).await;
    }
}

/// A retry that gets no answer in time is not blamed on the certificate that was replaced before it.
#[tokio::test(flavor = "multi_thread")]
async fn client_certificate_rotation_retry_timeout_does_not_name_refusal_of_previous() {
    let environment = TestEnvironment::new();
    let (authority, _) = Authority::new("requestheader-ca-2", SystemTime::now()).unwrap();
    let (mut before, arrival) = start_silent_backend(&environment, BackendSettings::http1()).await;
    let fixture = GatewayFixture::new(environment, &[&before], &[]);
    // One connection, and so one worker, for both requests.
    let client = fixture.http2().await;
    let retried = client.clone();
    let timed_out = tokio::spawn(async move { retried.send_and_read(get(&format!("{THINGS}?timeout=8s"), &[])).await });
    arrival.await.unwrap();
    // The backend now trusts the new certificate alone, on new connections.
    before.stop_listening().await;
    let front_proxies = vec![authority.certificate().clone()];
    // A refusal over HTTP/2 is a failed dial, which ejects the endpoint.
    let settings = BackendSettings { address: before.address, front_proxies, ..BackendSettings::http2() };
    let (after, retry_arrival) = start_silent_backend(&fixture.environment, settings).await;
    let refused = client.get(THINGS).await;
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("ClientCertificateRefused"), "{}", refused.text());
    replace_client_certificate(&fixture, &authority).await;
    before.stop().await;
    retry_arrival.await.unwrap();
    let response = timed_out.await.unwrap();
    let text = response.text();
    assert_eq!(response.status, 504, "{text}");
    assert!(text.contains("did not complete within the allotted timeout"), "{text}");
    assert!(!text.contains("ClientCertificateRefused"), "{text}");
    assert_eq!(after.received().len(), 1);
}

/// A backend that answers no request, and a channel that tells of the first one.
async fn start_silent_backend(
    environment: &TestEnvironment,
    settings: BackendSettings,
) -> (Backend, oneshot::Receiver<()>) {
    let (arrived, arrival) = oneshot::channel();
    let arrived = Arc::new(Mutex::new(Some(arrived)));
    let backend = Backend::start(environment, settings, move |_| {
        let arrived = arrived.lock().unwrap().take();
        async move {
            if let Some(arrived) = arrived {
                arrived.send(()).unwrap();
            }
            std::future::pending().await
        }
    });
    (backend.await, arrival)
}

/// Replaces the front-proxy pair by one of `authority`, and waits until the gateway uses it.
async fn replace_client_certificate(fixture: &GatewayFixture, authority: &Authority) {
    let spec = CertificateSpec::client("narthex-front-proxy", &[]);
    fixture.environment.write_pair("front-proxy", &authority.issue(&spec, SystemTime::now()).unwrap());
    fixture.gateway.wait_for_log(&["client certificate reloaded", "front-proxy.crt"]).await;
}
