//! Addresses of conversion webhooks: those that are refused, those that an egress proxy reaches or forbids, and how much of
//! a response is read.

use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::{Value, json};

use super::conversion_webhooks::{V1, V2, change_crd, crd, create, establish, failure, route_v1};
use crate::egress::selections::{tcp_selection, write_selections};
use crate::support::backend::BackendResponse;
use crate::support::conversion_webhook::{ConversionWebhook, right_answer};
use crate::support::embedded_api::EmbeddedApiFixture;
use crate::support::fake_egress_proxy::{FakeEgressProxy, ProxyAction};

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_at_link_local_or_own_address_is_refused() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let own = format!("https://{}/", api.gateway.address);
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let service =
        json!({"metadata": {"name": "metadata"}, "spec": {"type": "ExternalName", "externalName": "169.254.169.254"}});
    create(&client, "/api/v1/namespaces/default/services", &service).await;
    let by_service = json!({"service": {"namespace": "default", "name": "metadata"}});
    let own_refused = "the address is that of this server, which is refused for webhooks";
    let link_local_refused = "link-local addresses are refused for webhooks";
    for (config, expected) in [
        (json!({"url": own}), own_refused),
        // The name of an address that is refused.
        (json!({"url": format!("https://localhost:{}/", api.gateway.address.port())}), own_refused),
        (json!({"url": "https://169.254.169.254/"}), link_local_refused),
        (json!({"url": "https://[fe80::1]/"}), link_local_refused),
        (by_service, link_local_refused),
    ] {
        change_crd(&client, |crd| {
            crd["spec"]["conversion"]["webhook"]["clientConfig"] = config.clone();
        })
        .await;
        let refused = failure(&client.get(&format!("{V2}/a")).await);
        assert!(refused.ends_with(expected), "{config}: {refused}");
        assert_eq!(client.get(&format!("{V1}/a")).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_is_reached_or_forbidden_by_the_egress_proxy() {
    const FORBIDDEN: &str = "192.0.2.1:443";
    let proxy = FakeEgressProxy::start_connect(|request| match &*request.target {
        FORBIDDEN => ProxyAction::Reply(b"HTTP/1.1 403 Forbidden\r\n\r\n".to_vec()),
        target => ProxyAction::Connect(target.parse().unwrap()),
    })
    .await;
    let api = EmbeddedApiFixture::start_with(|environment| {
        let text = tcp_selection("cluster", "HTTPConnect", &format!("http://{}", proxy.address), "");
        vec![format!("--egress-selector-config-file={}", write_selections(environment, &text).display())]
    });
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    let forbidden = webhook.conversion(&json!({"url": format!("https://{FORBIDDEN}/convert")}));
    establish(&client, &crd("v1", &forbidden)).await;
    create(&client, V1, &route_v1("a", 80)).await;
    let refused = failure(&client.get(&format!("{V2}/a")).await);
    let expected = format!(
        "conversion webhook for example.com/v1, Kind=Route failed: Post \"https://{FORBIDDEN}/convert?timeout=30s\": "
    );
    assert!(refused.starts_with(&expected) && refused.contains("403"), "{refused}");
    assert_eq!(client.get(&format!("{V1}/a")).await.status, 200);
    change_crd(&client, |crd| crd["spec"]["conversion"] = webhook.conversion_by_url()).await;
    assert_eq!(client.get(&format!("{V2}/a")).await.json()["spec"]["host"], "a");
    assert_eq!(proxy.targets(), [webhook.backend.address.to_string(), FORBIDDEN.to_owned()]);
}

/// Parts of a response that were taken, of 1 MiB each.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A response of 1 GiB, which does not say its length.
fn gibibyte(_: &mut Value) -> BackendResponse {
    let parts = (0..1024).map(|_| {
        TAKEN.fetch_add(1, Ordering::Relaxed);
        Ok(Frame::data(Bytes::from(vec![b' '; 1 << 20])))
    });
    http::Response::new(StreamBody::new(futures_util::stream::iter(parts)).boxed())
}

#[tokio::test(flavor = "multi_thread")]
async fn conversion_webhook_response_of_a_gibibyte_is_read_up_to_the_limit() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let webhook = ConversionWebhook::start(&api.environment).await;
    establish(&client, &crd("v1", &webhook.conversion_by_url())).await;
    create(&client, V1, &route_v1("a", 80)).await;
    webhook.set_answer(gibibyte);
    let message = failure(&client.get(&format!("{V2}/a")).await);
    // 3 MiB, and four times the request.
    assert!(message.contains("?timeout=30s\": the response is larger than 31"), "{message}");
    let taken = TAKEN.load(Ordering::Relaxed);
    assert!((3..64).contains(&taken), "{taken} MiB");
    webhook.set_answer(right_answer);
    assert_eq!(client.get(&format!("{V2}/a")).await.json()["spec"]["host"], "a");
}
