//! Which control plane gets a request, and what is authenticated for one is not for another.

use crate::control_planes::fixture::{TestControlPlane, answer, connect, request, start_gateway};
use crate::support::fixtures::TestEnvironment;

const PATH: &str = "/api/v1/namespaces/default/pods";

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_by_host_with_its_own_client_ca() {
    let environment = TestEnvironment::new();
    let (a, b) = (TestControlPlane::start(&environment, "a").await, TestControlPlane::start(&environment, "b").await);
    let gateway = start_gateway(&environment, &[a.by_host(""), b.by_host("")], &[]);
    for protocol in ["http/1.1", "h2"] {
        let client = connect(&environment, &gateway, "a.example", Some(&a.admin), protocol).await;
        for host in ["a.example", "a.example:6443", "A.example"] {
            assert_eq!(request(&client, host, PATH, &[]).await.json(), answer("a", PATH), "{protocol} {host}");
        }
        let seen = a.last_client_request();
        assert_eq!(seen.header_values("x-remote-user"), ["a-admin"]);
        assert_eq!(seen.header_values("x-remote-group"), ["devs", "system:masters", "system:authenticated"]);
        // The same connection, for other hosts, as a browser would coalesce them.
        for host in ["b.example", "localhost", "127.0.0.1", "other.example"] {
            request(&client, host, PATH, &[]).await.assert_failure(421, "MisdirectedRequest");
        }
        assert_eq!(request(&client, "a.example", PATH, &[]).await.status, 200);
        // Nor does a connection for another host, or for none, lead to a control plane.
        for server_name in ["localhost", "127.0.0.1"] {
            let client = connect(&environment, &gateway, server_name, Some(&a.admin), protocol).await;
            request(&client, "a.example", PATH, &[]).await.assert_failure(421, "MisdirectedRequest");
            request(&client, "localhost", PATH, &[]).await.assert_failure(401, "Unauthorized");
        }
        // What is trusted for one is not for the other, though both CAs have the same name.
        let client = connect(&environment, &gateway, "b.example", Some(&a.admin), protocol).await;
        request(&client, "b.example", PATH, &[]).await.assert_failure(401, "Unauthorized");
        let jane = environment.issue_user("jane", &["system:masters"]);
        let client = connect(&environment, &gateway, "a.example", Some(&jane), protocol).await;
        request(&client, "a.example", PATH, &[]).await.assert_failure(401, "Unauthorized");
        // Tokens likewise.
        for (server_name, token, status) in
            [("a.example", "a-token", 200), ("b.example", "a-token", 401), ("b.example", "b-token", 200)]
        {
            let client = connect(&environment, &gateway, server_name, None, protocol).await;
            let bearer = format!("Bearer {token}");
            let response = request(&client, server_name, PATH, &[("authorization", &bearer)]).await;
            assert_eq!(response.status, status, "{server_name} {token}");
        }
    }
    assert!(b.client_requests().iter().all(|path| path == PATH), "{:?}", b.client_requests());
    assert_eq!(b.client_requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_by_path_verifies_certificate_for_each_request_of_a_connection() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    for protocol in ["http/1.1", "h2"] {
        let client = connect(&environment, &gateway, "localhost", Some(&c.admin), protocol).await;
        for _ in 0..2 {
            let response = request(&client, "localhost", &format!("/clusters/c{PATH}"), &[]).await;
            assert_eq!(response.json(), answer("c", PATH), "{protocol}");
            request(&client, "localhost", &format!("/clusters/d{PATH}"), &[]).await.assert_failure(401, "Unauthorized");
            if protocol == "h2" {
                // GOAWAY follows a 401.
                break;
            }
            request(&client, "localhost", PATH, &[]).await.assert_failure(401, "Unauthorized");
        }
        // A certificate for one and a token for the other on the same connection: each is what it is there.
        let client = connect(&environment, &gateway, "localhost", Some(&c.admin), protocol).await;
        let token = [("authorization", "Bearer d-token")];
        for (path, user) in [("c", "c-admin"), ("d", "d-robot"), ("c", "c-admin")] {
            let response = request(&client, "localhost", &format!("/clusters/{path}{PATH}"), &token).await;
            assert_eq!(response.status, 200);
            let server = if path == "c" { &c } else { &d };
            assert_eq!(server.last_client_request().header_values("x-remote-user"), [user]);
        }
        let jane = environment.issue_user("jane", &["system:masters"]);
        let client = connect(&environment, &gateway, "localhost", Some(&jane), protocol).await;
        assert_eq!(request(&client, "localhost", "/apis", &[]).await.status, 200);
        request(&client, "localhost", "/clusters/c/apis", &[]).await.assert_failure(401, "Unauthorized");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_path_prefix_is_neither_decoded_nor_normalized() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let token = [("authorization", "Bearer c-token")];
    for protocol in ["http/1.1", "h2"] {
        let client = connect(&environment, &gateway, "localhost", None, protocol).await;
        for path in [
            "/clusters/c/../d/api/v1/pods",
            "/clusters/c/%2e%2e/d/api/v1/pods",
            "/clusters/c/.%2E/d/api/v1/pods",
            "/clusters/c/./api/v1/pods",
            "/clusters/../clusters/d/api",
            "/clusters/%63/api/v1/pods",
            "/clusters//c/api/v1/pods",
            "//clusters/c/api/v1/pods",
            "/clusters%2Fc/api/v1/pods",
            "/clusters/c/api/v1/namespaces/%2e%2e/pods",
            "/clusters/c/api/v1/namespaces/a%2Fb/pods",
            "/clusters/c/api//v1/pods",
        ] {
            let response = request(&client, "localhost", path, &token).await;
            response.assert_failure(400, "BadRequest");
        }
        // Whole segments, stripped once.
        let response = request(&client, "localhost", "/clusters/c/clusters/d/api", &token).await;
        assert_eq!(response.json(), answer("c", "/clusters/d/api"));
        let response = request(&client, "localhost", "/clusters/c/clusters/c/api/v1", &token).await;
        assert_eq!(response.json(), answer("c", "/clusters/c/api/v1"));
        let client = connect(&environment, &gateway, "localhost", None, protocol).await;
        request(&client, "localhost", "/clusters/cc/api", &token).await.assert_failure(401, "Unauthorized");
    }
    assert_eq!(d.client_requests(), [""; 0]);
}
