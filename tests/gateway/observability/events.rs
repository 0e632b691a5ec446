//! `/events` of the admin listener: the live status page, and `narthex status --watch`.

use std::process::Stdio;

use http::Method;
use tokio::io::{AsyncBufReadExt, BufReader};

use super::admin::connect_as_jane;
use crate::support::backend::{Backend, BackendSettings, json_response};
use crate::support::client::{admin_request, get, request};
use crate::support::event_stream::EventStream;
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually};
use crate::support::gateway_fixture::{THINGS, register_things};

/// Number of streams that may be open.
const MAX_STREAMS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn events_show_unavailable_backend_with_reason() {
    let environment = TestEnvironment::new();
    let backend =
        Backend::start(&environment, BackendSettings::default(), |_| async { json_response(200, "{}") }).await;
    let address = backend.address.to_string();
    register_things(&environment, &[backend.address], &[]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let mut events = EventStream::open(gateway.admin).await;
    assert_eq!(events.status, 200);
    let content = events.wait_for(|content| content.contains(&format!("{address}<span"))).await;
    assert!(content.contains("v1.things.example.com") && !content.contains("unreachable"), "{content}");
    assert!(!content.contains("<script") && !content.contains("<html"), "{content}");
    assert_eq!(client.get(THINGS).await.status, 200);
    backend.stop().await;
    assert_eq!(client.get(THINGS).await.status, 503);
    let content = events.wait_for(|content| content.contains("unreachable (ConnectionRefused)")).await;
    assert!(content.contains("id=\"attention\""), "{content}");
    // Sampled every ten seconds.
    let content = events.wait_for(|content| content.contains("Requests over 15 minutes: now ")).await;
    assert!(content.contains("<svg viewBox"), "{content}");
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let traffic = &report["apiservices"][0]["traffic"];
    assert_eq!(traffic["intervalSeconds"], 10, "{report}");
    assert!(traffic["requests"].as_array().unwrap().iter().any(|count| *count != 0), "{report}");
    let attention = report["verdict"]["attention"].as_array().unwrap();
    assert!(attention.iter().any(|one| one["text"].as_str().unwrap().contains("ConnectionRefused")), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_refused_to_foreign_hosts_origins_and_other_methods() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    assert_eq!(admin_request(&gateway, get("/events", &[("host", "evil.example.com")])).await.status, 403);
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        let events = EventStream::open_with(gateway.admin, &[("sec-fetch-site", site)]).await;
        assert_eq!(events.status, status, "{site}");
    }
    assert_eq!(admin_request(&gateway, request(Method::POST, "/events", &[], "")).await.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_bounded_in_number_until_clients_leave() {
    let environment = TestEnvironment::new();
    let gateway = environment.start_gateway(&[]);
    let mut open = Vec::new();
    for _ in 0..MAX_STREAMS {
        let mut events = EventStream::open(gateway.admin).await;
        assert!(events.next().await.is_some());
        open.push(events);
    }
    assert_eq!(EventStream::open(gateway.admin).await.status, 503);
    assert_eq!(admin_request(&gateway, get("/", &[])).await.status, 200, "the page itself is served");
    drop(open);
    eventually("room for another stream", async || {
        (EventStream::open(gateway.admin).await.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_end_on_drain_with_a_last_event() {
    let environment = TestEnvironment::new();
    let mut gateway = environment.start_gateway(&["--shutdown-delay-duration=3s"]);
    let mut events = EventStream::open(gateway.admin).await;
    events.wait_for(|content| content.contains("serving")).await;
    gateway.signal("TERM");
    let mut last = String::new();
    while let Some(content) = events.next().await {
        last = content;
    }
    assert!(last.contains("shutting down: "), "{last}");
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
}

/// Every report is appended where standard output is not a terminal; a restart of the process is survived.
#[tokio::test(flavor = "multi_thread")]
async fn status_watch_survives_restart_and_ends_cleanly() {
    let environment = TestEnvironment::new();
    let mut gateway = environment.start_gateway(&[]);
    let address = gateway.admin.to_string();
    let mut watch = tokio::process::Command::new(env!("CARGO_BIN_EXE_narthex"))
        .args(["status", "--watch", "--interval=1", "--admin-address", &address])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut reports = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut errors = BufReader::new(watch.stderr.take().unwrap()).lines();
    let mut wait_for_report = async || {
        let next = async { while !reports.next_line().await.unwrap().unwrap().starts_with("Narthex ") {} };
        tokio::time::timeout(TEST_TIMEOUT, next).await.expect("a report in time");
    };
    wait_for_report().await;
    gateway.signal("KILL");
    gateway.wait_for_exit().await;
    let error = tokio::time::timeout(TEST_TIMEOUT, errors.next_line()).await.unwrap().unwrap().unwrap();
    assert!(error.contains(&address), "{error}");
    let _restarted = environment.start_gateway(&[&format!("--admin-address={address}")]);
    wait_for_report().await;
    let pid = rustix::process::Pid::from_raw(watch.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let status = tokio::time::timeout(TEST_TIMEOUT, watch.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
}
