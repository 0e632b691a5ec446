//! Relayed requests beside the store: CPU per relayed request and latency without a store, with an idle store and with a
//! store that clients write to as fast as it acknowledges.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use http::Method;
use tokio::task::JoinSet;

use crate::client::{ApiClient, ObjectRequest};
use crate::custom::install_crds;
use crate::fixtures::{BenchEnvironment, Contender, Proxy};
use crate::operations::config_map;
use crate::{cpu, median, show};

const RELAYED: &str = "/apis/bench.narthex.dev/v1/namespaces/default/small";
const CONFIG_MAPS: &str = "/api/v1/namespaces/bench/configmaps";

/// Clients that write at the same time.
const WRITERS: usize = 16;
/// Relayed requests at the same time when CPU is measured.
const RELAYED_AT_ONCE: usize = 16;
/// Pause between relayed requests when latency is measured.
const LATENCY_INTERVAL: Duration = Duration::from_millis(5);

/// Load on a server for one phase, and what came of it.
struct Phase {
    /// CPU milliseconds of the server.
    cpu: f64,
    relayed: u64,
    written: u64,
    /// Milliseconds of each relayed request.
    latencies: Vec<f64>,
}

/// Figures by round.
#[derive(Default)]
struct Figures {
    without_store: Vec<f64>,
    idle_store: Vec<f64>,
    loaded_store: Vec<f64>,
    writes_per_second: Vec<f64>,
    idle_latencies: [Vec<f64>; 2],
    loaded_latencies: [Vec<f64>; 2],
}

/// Measures `rounds` times, `seconds` for each phase, and prints a table.
pub(crate) async fn run(environment: &BenchEnvironment, rounds: usize, seconds: u64) {
    let _backend = environment.start_backend(false);
    let mut figures = Figures::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let load = Load { environment, duration: Duration::from_secs(seconds) };
        let plain = environment.start_proxy(Contender::Narthex, false);
        load.phase(&plain, RELAYED_AT_ONCE, 0, None).await;
        figures.without_store.push(load.phase(&plain, RELAYED_AT_ONCE, 0, None).await.per_thousand(0.0));
        drop(plain);

        let server = environment.start_embedded_api(true);
        load.create_objects(&server).await;
        load.phase(&server, RELAYED_AT_ONCE, 0, None).await;
        figures.idle_store.push(load.phase(&server, RELAYED_AT_ONCE, 0, None).await.per_thousand(0.0));
        let writes = load.phase(&server, 0, WRITERS, None).await;
        let write_cost = writes.cpu / writes.written as f64;
        let both = load.phase(&server, RELAYED_AT_ONCE, WRITERS, None).await;
        figures.loaded_store.push(both.per_thousand(write_cost));
        figures.writes_per_second.push(both.written as f64 / seconds as f64);
        for (writers, latencies) in [(0, &mut figures.idle_latencies), (WRITERS, &mut figures.loaded_latencies)] {
            let mut phase = load.phase(&server, 1, writers, Some(LATENCY_INTERVAL)).await;
            phase.latencies.sort_by(f64::total_cmp);
            let at = |part: f64| phase.latencies[((phase.latencies.len() - 1) as f64 * part) as usize];
            latencies[0].push(at(0.5));
            latencies[1].push(at(0.99));
        }
    }
    figures.print();
}

/// Measures relayed requests with and without installed CRDs, and prints a table.
pub(crate) async fn run_beside_crds(environment: &BenchEnvironment, rounds: usize, seconds: u64, crds: u64) {
    let _backend = environment.start_backend(false);
    let mut costs = [Vec::new(), Vec::new()];
    let mut latencies = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        let load = Load { environment, duration: Duration::from_secs(seconds) };
        for (place, count) in [0, crds].into_iter().enumerate() {
            let server = environment.start_embedded_api(true);
            if count > 0 {
                install_crds(&load.connect(&server).await, 0..count).await;
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            load.phase(&server, RELAYED_AT_ONCE, 0, None).await;
            costs[place].push(load.phase(&server, RELAYED_AT_ONCE, 0, None).await.per_thousand(0.0));
            let mut phase = load.phase(&server, 1, 0, Some(LATENCY_INTERVAL)).await;
            phase.latencies.sort_by(f64::total_cmp);
            latencies[place].push(phase.latencies[(phase.latencies.len() - 1) * 99 / 100]);
        }
    }
    println!("{:<56} {:>24}", "median (min-max)", "narthex");
    for (place, name) in ["without CRDs".to_owned(), format!("{crds} CRDs")].iter().enumerate() {
        println!("{:<56} {:>24}", format!("relayed, {name}, CPU per 1,000, ms"), show(&costs[place]));
        println!("{:<56} {:>24}", format!("relayed one by one, {name}, p99, ms"), show(&latencies[place]));
    }
    let middle = |values: &[f64]| median(values).unwrap_or_default();
    println!("with CRDs to without: {:.3}", middle(&costs[1]) / middle(&costs[0]));
}

impl Figures {
    fn print(&self) {
        println!("{:<56} {:>24}", "median (min-max)", "narthex");
        let row = |name: &str, values: &[f64]| println!("{name:<56} {:>24}", show(values));
        row("relayed, without a store, CPU per 1,000, ms", &self.without_store);
        row("relayed, idle store, CPU per 1,000, ms", &self.idle_store);
        row("relayed, loaded store, CPU per 1,000 less that of writes", &self.loaded_store);
        row("writes beside them, per s", &self.writes_per_second);
        row("relayed one by one, idle store, median, ms", &self.idle_latencies[0]);
        row("relayed one by one, idle store, p99, ms", &self.idle_latencies[1]);
        row("relayed one by one, loaded store, median, ms", &self.loaded_latencies[0]);
        row("relayed one by one, loaded store, p99, ms", &self.loaded_latencies[1]);
        let middle = |values: &[f64]| median(values).unwrap_or_default();
        println!("idle store to none: {:.3}", middle(&self.idle_store) / middle(&self.without_store));
        println!("loaded store to idle store: {:.3}", middle(&self.loaded_store) / middle(&self.idle_store));
    }
}

impl Phase {
    /// CPU milliseconds for 1,000 relayed requests when each write takes `write_cost` milliseconds.
    fn per_thousand(&self, write_cost: f64) -> f64 {
        (self.cpu - write_cost * self.written as f64) * 1000.0 / self.relayed as f64
    }
}

struct Load<'e> {
    environment: &'e BenchEnvironment,
    duration: Duration,
}

impl Load<'_> {
    async fn connect(&self, server: &Proxy) -> ApiClient {
        ApiClient::connect(self.environment.directory(), server.port, &self.environment.token).await
    }

    /// One object for each writer.
    async fn create_objects(&self, server: &Proxy) {
        let mut client = self.connect(server).await;
        for writer in 0..WRITERS {
            let body = config_map(&format!("writer-{writer}"), 0);
            client.send(&ObjectRequest::new(Method::POST, CONFIG_MAPS).body("application/json", body)).await;
        }
    }

    /// Relays `at_once` requests at a time and writes with `writers` clients until the time is over.
    async fn phase(&self, server: &Proxy, at_once: usize, writers: usize, interval: Option<Duration>) -> Phase {
        let (ended, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (relayer, writer_client) = (self.connect(server).await, self.connect(server).await);
        let (mut relaying, mut writing) = (JoinSet::new(), JoinSet::new());
        let before = cpu(server);
        for _ in 0..at_once {
            let (mut client, ended) = (relayer.clone(), ended.clone());
            relaying.spawn(async move {
                let request = ObjectRequest::new(Method::GET, RELAYED);
                let mut latencies = Vec::new();
                while !ended.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    client.send(&request).await;
                    latencies.push(began.elapsed().as_secs_f64() * 1000.0);
                    if let Some(interval) = interval {
                        tokio::time::sleep(interval).await;
                    }
                }
                latencies
            });
        }
        for writer in 0..writers {
            let (mut client, ended, written) = (writer_client.clone(), ended.clone(), written.clone());
            writing.spawn(async move {
                let name = format!("writer-{writer}");
                while !ended.load(Ordering::Relaxed) {
                    let change = written.fetch_add(1, Ordering::Relaxed) + 1;
                    let put = ObjectRequest::new(Method::PUT, format!("{CONFIG_MAPS}/{name}"));
                    client.send(&put.body("application/json", config_map(&name, change))).await;
                }
            });
        }
        tokio::time::sleep(self.duration).await;
        ended.store(true, Ordering::Relaxed);
        let latencies: Vec<f64> = relaying.join_all().await.into_iter().flatten().collect();
        writing.join_all().await;
        let relayed = latencies.len() as u64;
        Phase { cpu: cpu(server) - before, relayed, written: written.load(Ordering::Relaxed), latencies }
    }
}
