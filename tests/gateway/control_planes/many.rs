//! Many control planes: an idle one costs memory and no thread, and requests cost the same for any number of them.

use std::fs;
use std::time::{Duration, Instant};

use crate::control_planes::fixture::{TestControlPlane, answer, connect, request, start_gateway};
use crate::support::client::Client;
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually_within};

/// Threads that a gateway with one control plane may have fewer, whatever the number of control planes.
const MORE_THREADS: usize = 30;
/// Requests that are measured.
const REQUESTS: u32 = 1000;
/// How long the process is measured without requests; longer with more control planes.
const IDLE_TIME: Duration = Duration::from_secs(2);

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

/// Until so many control planes have started: each reads the same API server's index of OpenAPI documents.
async fn wait_until_started(one: &TestControlPlane, reads_before: usize, count: usize) {
    eventually_within(Duration::from_secs(120), "all control planes to read OpenAPI", async || {
        (openapi_reads(one) >= reads_before + count).then_some(())
    })
    .await;
}

fn openapi_reads(one: &TestControlPlane) -> usize {
    one.server.received().iter().filter(|request| request.uri.path() == "/openapi/v3").count()
}

/// Starts a gateway with so many control planes, sends requests to one of them, and prints what that cost. Returns the
/// threads of the process, which are fewer than `most_threads`.
async fn run(
    environment: &TestEnvironment,
    one: &TestControlPlane,
    count: usize,
    most_threads: Option<usize>,
) -> usize {
    let entry = |number: usize| {
        format!(
            "- {{name: idle-{number}, pathPrefix: /clusters/idle-{number}, delegateKubeconfig: {0}.kubeconfig, \
             clientCAFile: {0}-ca.crt}}\n",
            one.name
        )
    };
    let mut entries: Vec<String> = (1..count).map(entry).collect();
    entries.push(one.by_path(""));
    let (begin, reads_before) = (Instant::now(), openapi_reads(one));
    let gateway = start_gateway(environment, &entries, &[]);
    let started = begin.elapsed();
    let client = connect(environment, &gateway, "localhost", Some(&one.admin), "http/1.1").await;
    let path = format!("/clusters/{}/api/v1/pods", one.name);
    wait_until_served(&client, &path, one).await;
    if count > 1 {
        wait_until_served(&client, &format!("/clusters/idle-{}/api/v1/pods", count - 1), one).await;
    }
    wait_until_started(one, reads_before, count).await;
    // Those that start control planes end after ten seconds of idleness.
    let threads = match most_threads {
        Some(most) => {
            let few = async || Some(threads(&gateway)).filter(|threads| *threads < most);
            eventually_within(Duration::from_secs(30), "threads to end", few).await
        }
        None => threads(&gateway),
    };
    // What the process does without requests is not part of their cost.
    let idle_time = IDLE_TIME * u32::try_from(count / 50).unwrap().max(1);
    if count >= 100 {
        // Many still start.
        tokio::time::sleep(idle_time).await;
    }
    let before = gateway.cpu_time();
    tokio::time::sleep(idle_time).await;
    let idle = (gateway.cpu_time() - before).div_f64(idle_time.as_secs_f64());
    let (before, begin) = (gateway.cpu_time(), Instant::now());
    for _ in 0..REQUESTS {
        assert_eq!(request(&client, "localhost", &path, &[]).await.status, 200);
    }
    let background = idle.mul_f64(begin.elapsed().as_secs_f64());
    let spent = (gateway.cpu_time() - before).saturating_sub(background) / REQUESTS;
    let memory = gateway.resident_kilobytes();
    println!(
        "{count} control planes: started in {started:.1?}, {spent:.1?} of CPU per request, {idle:.1?} per idle second, \
         {memory} kB, {threads} threads"
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
        run(&environment, &one, count, Some(first + MORE_THREADS)).await;
        count *= 10;
    }
}
