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
        let (arrived, arrival) = oneshot::channel();
        let arrived = Arc::new(Mutex::new(Some(arrived)));
        // The other endpoint keeps the request until it ends.
        let ending = Backend::start(&environment, settings, move |_| {
            let arrived = arrived.lock().unwrap().take();
            async move {
                if let Some(arrived) = arrived {
                    arrived.send(()).unwrap();
                }
                std::future::pending().await
            }
        })
        .await;
        let fixture = GatewayFixture::new(environment, &[&ending, &renewed], &[]);
        let client = fixture.http2().await;
        let response = tokio::spawn(async move { client.send_and_read(get(THINGS, &[])).await });
        arrival.await.unwrap();
        let spec = CertificateSpec::client("narthex-front-proxy", &[]);
        fixture.environment.write_pair("front-proxy", &authority.issue(&spec, SystemTime::now()).unwrap());
        fixture.gateway.wait_for_log(&["client certificate reloaded", "front-proxy.crt"]).await;
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
