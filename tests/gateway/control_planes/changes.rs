//! Control planes come, change and go with their file, without touching others.

use std::fs;

use hyper::body::Incoming;

use crate::control_planes::fixture::{
    TestControlPlane, answer, connect, open, request, start_gateway, status_of, wait_for_state, write_control_planes,
    write_file,
};
use crate::support::backend::data_frame;
use crate::support::client::{Client, admin_request, get, next_chunk};
use crate::support::fixtures::{TestEnvironment, eventually};

/// Opens a watch, and reads its first event.
async fn open_watch(client: &Client, path: &str, token: &str) -> Incoming {
    let authorization = format!("Bearer {token}");
    let response = open(client, "localhost", &format!("{path}?watch=1"), &[("authorization", &authorization)]).await;
    assert_eq!(response.status(), 200);
    let mut body = response.into_body();
    next_chunk(&mut body).await.unwrap().unwrap();
    body
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_added_changed_and_removed_while_others_keep_their_watches() {
    let environment = TestEnvironment::new();
    let c = TestControlPlane::start(&environment, "c").await;
    let d = TestControlPlane::start(&environment, "d").await;
    let e = TestControlPlane::start(&environment, "e").await;
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let mut kept = open_watch(&client, "/clusters/c/api/v1/pods", "c-token").await;
    let mut ended = open_watch(&client, "/clusters/d/api/v1/pods", "d-token").await;

    // e comes, d goes.
    write_control_planes(&environment, &[c.by_path(""), e.by_path("")]);
    wait_for_state(&gateway, "e", "serving").await;
    assert_eq!(status_of(&gateway, "d").await, None);
    let other = connect(&environment, &gateway, "localhost", Some(&e.admin), "http/1.1").await;
    assert_eq!(request(&other, "localhost", "/clusters/e/api/v1", &[]).await.json(), answer("e", "/api/v1"));
    let gone = request(&other, "localhost", "/clusters/d/api/v1", &[("authorization", "Bearer d-token")]).await;
    gone.assert_failure(401, "Unauthorized");
    while let Some(Ok(_)) = next_chunk(&mut ended).await {}

    // c stays as it is: its watch goes on.
    c.watches.lock().unwrap()[0].send(data_frame("second\n")).unwrap();
    assert_eq!(next_chunk(&mut kept).await.unwrap().unwrap(), "second\n");

    // An invalid file changes nothing, and is reported.
    write_file(&environment, "apiVersion: narthex.dev/v1alpha1\nkind: ControlPlanes\ncontrolPlanes: [{name: C}]\n");
    gateway.wait_for_log(&["last valid file stays in use", "controlPlanes[C].name"]).await;
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    assert!(report["fileProblems"].to_string().contains("controlPlanes[C]"), "{report}");
    assert_eq!(request(&other, "localhost", "/clusters/e/api/v1", &[]).await.status, 200);

    // c changes: its watch ends, and its new client CA counts at once.
    let other_ca = environment.read_file("e-ca.crt");
    fs::write(environment.path("new-ca.crt"), other_ca).unwrap();
    let changed = c.by_path("").replace("clientCAFile: c-ca.crt", "clientCAFile: new-ca.crt");
    write_control_planes(&environment, &[changed, e.by_path("")]);
    while let Some(Ok(_)) = next_chunk(&mut kept).await {}
    for (admin, status) in [(&e.admin, 200), (&c.admin, 401)] {
        let client = connect(&environment, &gateway, "localhost", Some(admin), "http/1.1").await;
        assert_eq!(request(&client, "localhost", "/clusters/c/api/v1", &[]).await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_that_cannot_be_started_answers_503_alone() {
    let environment = TestEnvironment::new();
    let (a, c) = (TestControlPlane::start(&environment, "a").await, TestControlPlane::start(&environment, "c").await);
    fs::remove_file(environment.path("a.kubeconfig")).unwrap();
    fs::remove_file(environment.path("c-ca.crt")).unwrap();
    let d = TestControlPlane::start(&environment, "d").await;
    let gateway = start_gateway(&environment, &[a.by_host(""), c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", Some(&d.admin), "http/1.1").await;
    assert_eq!(request(&client, "localhost", "/clusters/d/api/v1", &[]).await.json(), answer("d", "/api/v1"));
    let status =
        request(&client, "localhost", "/clusters/c/api/v1", &[]).await.assert_failure(503, "ServiceUnavailable");
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("control plane \"c\"") && !message.contains("c-ca.crt"), "{message}");
    gateway.wait_for_log(&["control plane cannot be started", "c-ca.crt", "controlPlanes[c].clientCAFile"]).await;
    let row = status_of(&gateway, "c").await.unwrap();
    assert_eq!(row["state"], "failed");
    assert!(row["problems"].to_string().contains("c-ca.crt"), "{row}");
    // It is tried again.
    fs::copy(environment.path("d-ca.crt"), environment.path("c-ca.crt")).unwrap();
    wait_for_state(&gateway, "c", "serving").await;
    assert_eq!(request(&client, "localhost", "/clusters/c/api/v1", &[]).await.json(), answer("c", "/api/v1"));
    assert_eq!(status_of(&gateway, "a").await.unwrap()["state"], "failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_client_ca_removal_takes_effect_on_open_connections() {
    let environment = TestEnvironment::new();
    let (c, d) = (TestControlPlane::start(&environment, "c").await, TestControlPlane::start(&environment, "d").await);
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", Some(&c.admin), "http/1.1").await;
    assert_eq!(request(&client, "localhost", "/clusters/c/api/v1", &[]).await.status, 200);
    fs::copy(environment.path("d-ca.crt"), environment.path("c-ca.crt")).unwrap();
    eventually("the old CA to be distrusted", async || {
        let client = connect(&environment, &gateway, "localhost", Some(&c.admin), "http/1.1").await;
        (request(&client, "localhost", "/clusters/c/api/v1", &[]).await.status == 401).then_some(())
    })
    .await;
    let client = connect(&environment, &gateway, "localhost", Some(&d.admin), "http/1.1").await;
    assert_eq!(request(&client, "localhost", "/clusters/c/api/v1", &[]).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn control_planes_drain_with_the_process() {
    let environment = TestEnvironment::new();
    let c = TestControlPlane::start(&environment, "c").await;
    let mut gateway = start_gateway(&environment, &[c.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let mut watch = open_watch(&client, "/clusters/c/api/v1/pods", "c-token").await;
    gateway.signal("TERM");
    while let Some(Ok(_)) = next_chunk(&mut watch).await {}
    assert!(gateway.wait_for_exit().await.success());
}
