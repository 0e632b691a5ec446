//! CPU cost of a registry change in a running gateway, with few APIServices and with many; and of its start.
//!
//! ```text
//! cargo bench --bench registry                            # 10, 100 and 1,000 APIServices with 5 endpoints each
//! cargo bench --bench registry -- --sizes 10,1000 --changes 500
//! ```
//!
//! The gateway is the real binary, and watches a fake kube-apiserver. Figures are its CPU time as counted by the kernel
//! for all threads, less the idle CPU time: from the watch event to the last consequence, be it the snapshot, the route
//! table, warnings, metrics or documents. The figure of an added APIService includes two watches of its namespace, a
//! probe, and requests for its discovery and OpenAPI. In a registry directory a change is a file that is replaced.
//!
//! Every APIService has a Service of its own; five of them share a namespace.

// It stops at what it did not expect, and needs only a part of the test environment.
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)]

#[path = "../tests/gateway/support"]
mod support {
    pub(crate) mod backend;
    pub(crate) mod client;
    pub(crate) mod fake_apiserver;
    pub(crate) mod fixtures;
}

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use support::backend::{Backend, BackendSettings, api_resource_list, json_response as response};
use support::client::Client;
use support::fake_apiserver::FakeApiServer;
use support::fixtures::{GatewayProcess, TestEnvironment};

/// Endpoints of each APIService.
const ENDPOINTS: usize = 5;
/// APIServices with their Services in one namespace.
const APISERVICES_PER_NAMESPACE: usize = 5;
/// Between two changes, so that each is looked at by itself.
const PACE: Duration = Duration::from_millis(5);
/// Files are looked at when it was quiet for a tenth of a second.
const PACE_OF_FILES: Duration = Duration::from_millis(150);
/// How long nothing is done to see what that takes.
const QUIET: Duration = Duration::from_secs(2);
/// It is ready when every backend was asked.
const TIMEOUT: Duration = Duration::from_secs(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    let sizes = value("--sizes").map_or("10,100,1000", String::as_str);
    let sizes: Vec<usize> = sizes.split(',').map(|size| size.parse().expect("--sizes takes numbers")).collect();
    let changes = value("--changes").map_or(200, |text| text.parse().expect("--changes takes a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut all: Vec<RegistryFigures> = Vec::new();
    for size in &sizes {
        let figures = runtime.block_on(measure(*size, changes));
        eprintln!("{size} APIServices: {figures:?}");
        all.push(figures);
    }
    println!("CPU time of one change, and of the start");
    let row = |name: &str, cells: Vec<String>, ratio: f64| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>12}")).collect();
        println!("{name:<34}{cells}{ratio:>9.2}");
    };
    let heads: String = sizes.iter().map(|size| format!("{size:>12}")).collect();
    println!("{:<34}{heads}{:>9}", "APIServices", "ratio");
    for (index, (name, _)) in all[0].changes.iter().enumerate() {
        let figures: Vec<Duration> = all.iter().map(|figures| figures.changes[index].1).collect();
        row(name, figures.iter().map(|it| format!("{it:.1?}")).collect(), ratio(&figures));
    }
    let figures: Vec<Duration> = all.iter().map(|figures| figures.start.0).collect();
    row("until ready, CPU", figures.iter().map(|it| format!("{it:.1?}")).collect(), ratio(&figures));
    let figures: Vec<Duration> = all.iter().map(|figures| figures.start.1).collect();
    row("until ready, by the clock", figures.iter().map(|it| format!("{it:.1?}")).collect(), ratio(&figures));
    let figures: Vec<Duration> = all.iter().map(|figures| figures.idle).collect();
    row("a second of nothing", figures.iter().map(|it| format!("{it:.1?}")).collect(), ratio(&figures));
    let cells = all.iter().map(|figures| format!("{} MiB", figures.resident >> 10)).collect();
    row("resident", cells, 0.0);
}

fn ratio(figures: &[Duration]) -> f64 {
    figures.last().unwrap().as_secs_f64() / figures[0].as_secs_f64().max(1e-9)
}

#[derive(Debug)]
struct RegistryFigures {
    changes: Vec<(&'static str, Duration)>,
    /// CPU time and time until it is ready.
    start: (Duration, Duration),
    /// CPU time of a second in which nothing happens.
    idle: Duration,
    /// In KiB.
    resident: u64,
}

fn namespace(number: usize) -> String {
    format!("ns{}", number / APISERVICES_PER_NAMESPACE)
}

/// One APIService and its Service; where its endpoints are, `slice` says.
fn documents(environment: &TestEnvironment, number: usize, priority: usize) -> (String, String) {
    let annotations = "  annotations:\n    narthex.dev/server-name: things-v1.things.svc\n    \
                       narthex.dev/probe-interval: 24h\n";
    let text = environment.apiservice_manifests(&format!("g{number}.example.com"), "v1", &[], annotations);
    let text = text
        .replace("versionPriority: 15", &format!("versionPriority: {priority}"))
        .replace(&format!("namespace: g{number},"), &format!("namespace: {},", namespace(number)));
    let (api_service, service) = text.split_once("---\n").unwrap();
    (api_service.to_owned(), service.to_owned())
}

fn slice(number: usize, port: u16, first: usize) -> String {
    let mut text = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  namespace: {}\n  name: g{number}-v1-0\n  \
         labels: {{kubernetes.io/service-name: g{number}-v1}}\naddressType: IPv4\nports: [{{name: https, port: {port}}}]\n\
         endpoints:\n",
        namespace(number)
    );
    for endpoint in first..first + ENDPOINTS {
        let _ = writeln!(text, "- {{addresses: [127.0.0.{endpoint}], conditions: {{ready: true}}}}");
    }
    text
}

/// CPU seconds of a second in which nothing happens.
async fn idle(gateway: &GatewayProcess) -> f64 {
    let (before, began) = (gateway.cpu_time(), Instant::now());
    tokio::time::sleep(QUIET).await;
    (gateway.cpu_time() - before).as_secs_f64() / began.elapsed().as_secs_f64()
}

/// Waits until nothing of the start is left to be done.
async fn idle_cpu(gateway: &GatewayProcess) -> f64 {
    let mut before = idle(gateway).await;
    for _ in 0..30 {
        let now = idle(gateway).await;
        if now > before * 0.8 {
            return now;
        }
        before = now;
    }
    before
}

/// CPU time of one of `count` changes, less what is done anyhow.
async fn measure_changes(
    gateway: &GatewayProcess,
    count: usize,
    pace: Duration,
    mut change: impl FnMut(usize),
) -> Duration {
    let idle_before = idle(gateway).await;
    let (before, began) = (gateway.cpu_time(), Instant::now());
    for number in 0..count {
        change(number);
        tokio::time::sleep(pace).await;
    }
    // For what is asked of backends then.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (spent, took) = (gateway.cpu_time() - before, began.elapsed());
    let idle = f64::midpoint(idle_before, idle(gateway).await);
    spent.saturating_sub(took.mul_f64(idle)) / u32::try_from(count).unwrap()
}

async fn measure(all: usize, changes: usize) -> RegistryFigures {
    let environment = TestEnvironment::new();
    let settings = BackendSettings { address: "0.0.0.0:0".parse().unwrap(), ..BackendSettings::http2() };
    let backend = Backend::start(&environment, settings, |request| async move {
        // As an extension API server from before aggregated discovery, as all of them stand behind the same address.
        match api_resource_list(request.uri().path()) {
            Some(resources) => response(200, &resources),
            None => response(404, "{}"),
        }
    })
    .await;
    let port = backend.address.port();
    let cluster = FakeApiServer::start(&environment).await;
    cluster.disable_bookmarks();
    let apply = |number: usize| {
        let (api_service, service) = documents(&environment, number, 15);
        for document in [slice(number, port, 1), service, api_service] {
            cluster.apply(&document);
        }
    };
    (0..all).for_each(apply);
    let began = Instant::now();
    let gateway = environment.start_gateway(&[
        &FakeApiServer::kubeconfig_flag(&environment),
        "--leader-elect=false",
        "--access-log=off",
    ]);
    let jane = environment.issue_user("jane", &[]);
    let last = format!("/apis/g{}.example.com/v1/namespaces/default/things", all - 1);
    loop {
        let client = Client::http2(&environment, &gateway, Some(&jane)).await;
        if client.get("/readyz").await.status == 200 && client.get(&last).await.status != 503 {
            break;
        }
        assert!(began.elapsed() < TIMEOUT, "it is never ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let start = (gateway.cpu_time(), began.elapsed());
    let idle = idle_cpu(&gateway).await;
    let resident = gateway.resident_kilobytes();

    let one = all / 2;
    let mut figures = Vec::new();
    let endpoints = |number: usize| cluster.apply(&slice(one, port, 1 + (number + 1) % 50));
    figures.push(("an EndpointSlice", measure_changes(&gateway, changes, PACE, endpoints).await));
    let service = |number: usize| {
        let (_, service) = documents(&environment, one, 15);
        cluster.apply(&service.replace("clusterIP: 10.0.0.1", &format!("clusterIP: 10.0.1.{}", number % 250)));
    };
    figures.push(("a Service", measure_changes(&gateway, changes, PACE, service).await));
    let priority = |number: usize| cluster.apply(&documents(&environment, one, 16 + number % 500).0);
    figures.push(("an APIService, its priority", measure_changes(&gateway, changes, PACE, priority).await));
    let added = changes.min(100);
    // Each in a namespace of its own.
    let number = |number: usize| (all / APISERVICES_PER_NAMESPACE + 1 + number) * APISERVICES_PER_NAMESPACE;
    figures.push(("an APIService is added", measure_changes(&gateway, added, PACE, |one| apply(number(one))).await));
    let remove = |one: usize| {
        cluster.delete(&format!("/apis/apiregistration.k8s.io/v1/apiservices/v1.g{}.example.com", number(one)));
    };
    figures.push(("an APIService is removed", measure_changes(&gateway, added, PACE, remove).await));
    drop(gateway);

    // The same from a directory.
    for number in 0..all {
        let (api_service, service) = documents(&environment, number, 15);
        let text = [api_service, service, slice(number, port, 1)].join("---\n");
        environment.write_registry(&format!("{number}.yaml"), &text);
    }
    let gateway = environment.start_gateway(&["--access-log=off"]);
    idle_cpu(&gateway).await;
    let file = |number: usize| {
        let (api_service, service) = documents(&environment, one, 16 + number);
        let text = [api_service, service, slice(one, port, 1)].join("---\n");
        environment.write_registry(&format!("{one}.yaml"), &text);
    };
    figures.push((
        "a file: an APIService's priority",
        measure_changes(&gateway, changes.min(20), PACE_OF_FILES, file).await,
    ));
    RegistryFigures { changes: figures, start, idle: Duration::from_secs_f64(idle), resident }
}
