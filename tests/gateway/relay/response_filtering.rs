//! Response filtering: redirects and headers that affect the shared origin do not reach the client.

use crate::support::assert_refused::first_cause;
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::get;
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};

#[tokio::test(flavor = "multi_thread")]
async fn redirect_responses_rejected_and_other_3xx_passed() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let (status, location) = query.split_once(',').unwrap();
        let mut response = json_response(status.parse().unwrap(), "");
        if !location.is_empty() {
            response.headers_mut().insert("location", location.parse().unwrap());
            response.headers_mut().insert("x-inside", "secret".parse().unwrap());
        }
        response
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        for status in [300, 301, 302, 303, 304, 307, 308, 399] {
            for location in ["https://10.0.0.1/", "/apis", "//evil"] {
                let response = client.get(&format!("{THINGS}?{status},{location}")).await;
                let refused = response.assert_failure(502, "InternalError");
                assert_eq!(first_cause(&refused), "RedirectRejected");
                assert!(!response.headers.contains_key("location") && !response.headers.contains_key("x-inside"));
                let expected = "the backend attempted to redirect this request, which is not permitted";
                assert_eq!(refused["message"], expected);
            }
            let response = client.get(&format!("{THINGS}?{status},")).await;
            assert_eq!(response.status, status);
        }
        // 201 with a Location is no redirect.
        let response = client.get(&format!("{THINGS}?201,/apis/x")).await;
        assert_eq!((response.status.as_u16(), response.headers["location"].to_str().unwrap()), (201, "/apis/x"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn response_headers_affecting_shared_origin_removed() {
    let environment = TestEnvironment::new();
    let backend = Backend::start(&environment, BackendSettings::default(), async |_| {
        let mut response = json_response(200, "{}");
        for (name, value) in [
            ("set-cookie", "session=stolen"),
            ("strict-transport-security", "max-age=1"),
            ("alt-svc", "h3=\":443\""),
            ("clear-site-data", "*"),
            ("www-authenticate", "Basic"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("audit-id", "theirs-1"),
            ("audit-id", "theirs-2"),
            ("keep-alive", "timeout=5"),
            ("x-content-type-options", "sniff"),
            ("warning", "299 - \"deprecated\""),
            ("retry-after", "7"),
            ("x-kubernetes-pf-flowschema-uid", "abc"),
        ] {
            response.headers_mut().append(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let fixture = GatewayFixture::new(environment, &[&backend], &[]);
    for client in fixture.both_protocols().await {
        let response = client.send_and_read(get(THINGS, &[("audit-id", "mine-1")])).await;
        for gone in [
            "set-cookie",
            "strict-transport-security",
            "alt-svc",
            "clear-site-data",
            "www-authenticate",
            "access-control-allow-origin",
            "access-control-allow-credentials",
            "keep-alive",
            "connection",
        ] {
            assert!(!response.headers.contains_key(gone), "{gone}");
        }
        let ids: Vec<_> = response.headers.get_all("audit-id").iter().collect();
        assert_eq!(ids, ["mine-1"]);
        let sniff: Vec<_> = response.headers.get_all("x-content-type-options").iter().collect();
        assert_eq!(sniff, ["nosniff"]);
        assert_eq!(response.headers["warning"], "299 - \"deprecated\"");
        assert_eq!(response.headers["retry-after"], "7");
        assert_eq!(response.headers["x-kubernetes-pf-flowschema-uid"], "abc");
    }
}
