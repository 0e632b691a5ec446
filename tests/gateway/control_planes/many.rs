//! Many control planes: an idle one costs memory, but no thread, and requests cost the same for any number of them.

use std::fs;

use crate::control_planes::fixture::{TestControlPlane, answer, connect, request, start_gateway};
use crate::support::fixtures::{GatewayProcess, TestEnvironment};

/// Requests that are measured.
const REQUESTS: u32 = 300;

fn threads(gateway: &GatewayProcess) -> usize {
    fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap().count()
}

/// Starts a gateway with so many control planes, sends requests to one of them, and prints what that cost. Returns the
/// threads of the process.
async fn run(environment: &TestEnvironment, one: &TestControlPlane, count: usize) -> usize {
    let idle = |number: usize| {
        format!(
            "- {{name: idle-{number}, pathPrefix: /clusters/idle-{number}, delegateKubeconfig: {0}.kubeconfig, \
             clientCAFile: {0}-ca.crt}}\n",
            one.name
        )
    };
    let mut entries: Vec<String> = (1..count).map(idle).collect();
    entries.push(one.by_path(""));
    let begin = std::time::Instant::now();
    let gateway = start_gateway(environment, &entries, &[]);
    let started = begin.elapsed();
    let client = connect(environment, &gateway, "localhost", Some(&one.admin), "http/1.1").await;
    let path = format!("/clusters/{}/api/v1/pods", one.name);
    assert_eq!(request(&client, "localhost", &path, &[]).await.json(), answer(one.name, "/api/v1/pods"));
    if count > 1 {
        let path = format!("/clusters/idle-{}/api/v1/pods", count - 1);
        assert_eq!(request(&client, "localhost", &path, &[]).await.json(), answer(one.name, "/api/v1/pods"));
    }
    let before = gateway.cpu_time();
    for _ in 0..REQUESTS {
        assert_eq!(request(&client, "localhost", &path, &[]).await.status, 200);
    }
    let spent = (gateway.cpu_time() - before) / REQUESTS;
    let (threads, memory) = (threads(&gateway), gateway.resident_kilobytes());
    println!(
        "{count} control planes: started in {started:.1?}, {spent:.1?} of CPU per request, {memory} kB, {threads} threads"
    );
    threads
}

/// `NARTHEX_TEST_CONTROL_PLANES` is the largest number; by default a small one, because each is started.
#[tokio::test(flavor = "multi_thread")]
async fn control_planes_take_no_thread_each() {
    let most = std::env::var("NARTHEX_TEST_CONTROL_PLANES").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let environment = TestEnvironment::new();
    let one = TestControlPlane::start(&environment, "c").await;
    let (mut count, mut counted) = (1, Vec::new());
    while count <= most {
        counted.push((count, run(&environment, &one, count).await));
        count *= 10;
    }
    let (first, last) = (counted[0].1, counted[counted.len() - 1].1);
    // Those that start control planes end after some seconds of idleness.
    assert!(last < first + 40, "{counted:?}");
}
