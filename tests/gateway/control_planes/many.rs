//! Many control planes: an idle one costs memory and one thread, and requests cost the same for any number of them.

use std::fs;
use std::time::Duration;

use crate::control_planes::fixture::{TestControlPlane, answer, connect, request, start_gateway};
use crate::support::client::Client;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually_within};

/// Threads that a gateway with one control plane has not, beside one of each, which writes its discovery cache.
const MORE_THREADS: usize = 30;
/// Requests that are measured.
const REQUESTS: u32 = 300;

fn threads(gateway: &GatewayProcess) -> usize {
    fs::read_dir(format!("/proc/{}/task", gateway.id())).unwrap().count()
}

/// Until a control plane has started it answers with 503.
async fn wait_until_served(client: &Client, path: &str, one: &TestControlPlane) {
    eventually_within(Duration::from_secs(120), path, async || {
        let response = request(client, "localhost", path, &[]).await;
        (response.status == 200 && response.json() == answer(one.name, "/api/v1/pods")).then_some(())
    })
    .await;
}

/// Until the control planes have started, and have read their discovery.
async fn wait_until_idle(gateway: &GatewayProcess) {
    let mut before = gateway.cpu_time();
    eventually_within(Duration::from_secs(120), "the gateway to be idle", async || {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = gateway.cpu_time();
        // The CPU time of threads that ended is not in it.
        (now.saturating_sub(std::mem::replace(&mut before, now)) < Duration::from_millis(50)).then_some(())
    })
    .await;
}

/// Starts a gateway with so many control planes, sends requests to one of them, and prints what that cost. Returns the
/// threads of the process, which are fewer than `most_threads`.
async fn run(
    environment: &TestEnvironment,
    one: &TestControlPlane,
    count: usize,
    most_threads: Option<usize>,
) -> usize {
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
    wait_until_served(&client, &path, one).await;
    if count > 1 {
        wait_until_served(&client, &format!("/clusters/idle-{}/api/v1/pods", count - 1), one).await;
    }
    wait_until_idle(&gateway).await;
    // Those that start control planes end after ten seconds of idleness. The CPU time of what ended would be missing below.
    let threads = match most_threads {
        Some(most) => {
            let few = async || Some(threads(&gateway)).filter(|threads| *threads < most);
            eventually_within(Duration::from_secs(30), "threads to end", few).await
        }
        None => threads(&gateway),
    };
    let before = gateway.cpu_time();
    for _ in 0..REQUESTS {
        assert_eq!(request(&client, "localhost", &path, &[]).await.status, 200);
    }
    let spent = (gateway.cpu_time() - before) / REQUESTS;
    let memory = gateway.resident_kilobytes();
    println!(
        "{count} control planes: started in {started:.1?}, {spent:.1?} of CPU per request, {memory} kB, {threads} threads"
    );
    threads
}

/// `NARTHEX_TEST_CONTROL_PLANES` is the largest number; by default a small one, because each is started.
#[tokio::test(flavor = "multi_thread")]
async fn control_planes_share_worker_threads() {
    let most = std::env::var("NARTHEX_TEST_CONTROL_PLANES").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let environment = TestEnvironment::new();
    let one = TestControlPlane::start(&environment, "c").await;
    let first = run(&environment, &one, 1, None).await;
    let mut count = 10;
    while count <= most {
        run(&environment, &one, count, Some(first + MORE_THREADS + count)).await;
        count *= 10;
    }
}
