//! The embedded API server and kube-apiserver with etcd on the same job, in turns: CPU per request, memory, disk.
//!
//! ```text
//! cargo bench --bench objects
//! cargo bench --bench objects -- --rounds 3 --objects 1000 --watches 1000
//! cargo bench --bench objects -- --narthex P   # the program at P instead of the one built with the benchmark
//! cargo bench --bench objects -- --alone       # without kube-apiserver
//! cargo bench --bench objects -- --access --many 10000 # RBAC, tokens, owners, namespaces; kube-controller-manager too
//! cargo bench --bench objects -- --relay --seconds 5   # relayed requests beside the store
//! cargo bench --bench objects -- --custom              # custom resources, --rounds 1 --many 2000 for a short run
//! cargo bench --bench objects -- --custom --parts operations,watches,definitions,schemas,capacity
//! cargo bench --bench objects -- --custom --parts definitions --definitions 1,100,1000
//! cargo bench --bench objects -- --custom --parts relay --definitions 1000 --seconds 5
//! ```
//!
//! Needs `taskset`, and kube-apiserver and etcd: `tests/interop/peers/build kubernetes etcd`. The servers are pinned to
//! one core, the load to another. CPU time is that of all server processes, as counted by the kernel; ratios are of
//! medians measured side by side. Both write each change to the disk before they acknowledge it.

// One future on the stack at a time may be large.
#![allow(clippy::large_futures)]

mod access;
#[path = "../compare/backend.rs"]
mod backend;
mod client;
mod custom;
#[path = "../compare/fixtures.rs"]
#[allow(dead_code, reason = "shared with the other benchmark")]
mod fixtures;
#[path = "../compare/kube_apiserver.rs"]
#[allow(dead_code, reason = "shared with the other benchmark")]
mod kube_apiserver;
mod operations;
mod relay;
#[path = "../compare/server.rs"]
mod server;
mod watches;
mod workloads;

use fixtures::{BenchEnvironment, Proxy};

/// A server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiServerKind {
    Narthex,
    KubeApiserver,
}

/// Sizes of a run.
pub(crate) struct Options {
    rounds: usize,
    /// Objects of the operations.
    objects: u64,
    /// Objects of the large lists.
    many: u64,
    watches: u64,
}

/// One figure of each server, by round.
pub(crate) struct Row {
    name: String,
    unit: &'static str,
    values: [Vec<f64>; 2],
}

/// The results, in the order in which they were measured first.
#[derive(Default)]
pub(crate) struct Results(Vec<Row>);

impl Results {
    /// Keeps a figure for the table at the end, and shows it at once: a run takes long.
    pub(crate) fn add(&mut self, server: ApiServerKind, name: &str, unit: &'static str, value: f64) {
        eprintln!("  {name}, {unit}: {value:.2}");
        let index = self.0.iter().position(|row| row.name == name).unwrap_or_else(|| {
            self.0.push(Row { name: name.to_owned(), unit, values: Default::default() });
            self.0.len() - 1
        });
        self.0[index].values[server as usize].push(value);
    }

    fn print(&self) {
        println!("{:<72} {:>26} {:>28} {:>8}", "median (min-max)", "narthex", "kube-apiserver and etcd", "ratio");
        for row in &self.0 {
            let [own, theirs] = row.values.each_ref().map(|values| median(values));
            let ratio = match (own, theirs) {
                (Some(own), Some(theirs)) if own > 0.0 => format!("{:.1}", theirs / own),
                _ => String::new(),
            };
            let name = format!("{}, {}", row.name, row.unit);
            println!("{name:<72} {:>26} {:>28} {ratio:>8}", show(&row.values[0]), show(&row.values[1]));
        }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

fn show(values: &[f64]) -> String {
    let Some(middle) = median(values) else { return String::new() };
    let (least, most) =
        values.iter().fold((f64::INFINITY, 0_f64), |(least, most), value| (least.min(*value), most.max(*value)));
    if middle < 10.0 {
        format!("{middle:.2} ({least:.2}-{most:.2})")
    } else {
        format!("{middle:.0} ({least:.0}-{most:.0})")
    }
}

/// CPU time of all processes of a server so far, in milliseconds.
pub(crate) fn cpu(server: &Proxy) -> f64 {
    server.processes().map(fixtures::ChildProcess::cpu_milliseconds).sum()
}

/// Resident memory of all processes of a server, in KiB.
pub(crate) fn memory(server: &Proxy) -> f64 {
    server.processes().map(fixtures::ChildProcess::resident_kilobytes).sum::<i64>() as f64
}

/// Bytes that all processes of a server had written so far.
pub(crate) fn written(server: &Proxy) -> f64 {
    server.processes().map(fixtures::ChildProcess::written_bytes).sum::<i64>() as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == "backend") {
        return backend::main(&arguments[1..]);
    }
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str, default: u64| {
        value(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} takes a number")))
    };
    let options = Options {
        rounds: number("--rounds", 3) as usize,
        objects: number("--objects", 1_000),
        many: number("--many", 10_000),
        watches: number("--watches", 1_000),
    };
    if !fixtures::is_installed("taskset") {
        eprintln!("not found: taskset. On Debian: apt-get install util-linux");
        std::process::exit(1);
    }
    let has_flag = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let relays = has_flag("--relay");
    let custom = has_flag("--custom")
        .then(|| custom::CustomOptions::new(value("--parts").as_deref(), value("--definitions").as_deref()));
    let relays = relays || custom.as_ref().is_some_and(|custom| custom.has("relay"));
    let mut servers = vec![ApiServerKind::Narthex];
    match kube_apiserver::is_built() && !relays && !has_flag("--alone") {
        true => servers.push(ApiServerKind::KubeApiserver),
        false if relays => {}
        false => println!("without kube-apiserver; tests/interop/peers/build kubernetes etcd builds it"),
    }
    narthex::listen::raise_descriptor_limit();
    // The load runs beside the servers, not on their core.
    let own = std::process::id().to_string();
    let pinned = std::process::Command::new("taskset").args(["-cp", "0", &own]).output();
    assert!(pinned.expect("taskset is there").status.success(), "this process cannot be pinned to a core");
    let narthex = value("--narthex").unwrap_or_else(|| env!("CARGO_BIN_EXE_narthex").to_owned());
    let environment = BenchEnvironment::new(narthex.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    if relays {
        let seconds = number("--seconds", 5);
        return match custom {
            Some(custom) => {
                runtime.block_on(relay::run_beside_crds(&environment, options.rounds, seconds, custom.most_crds()))
            }
            None => runtime.block_on(relay::run(&environment, options.rounds, seconds)),
        };
    }
    let mut results = Results::default();
    for round in 0..options.rounds {
        for server in &servers {
            eprintln!("round {} of {}: {server:?}", round + 1, options.rounds);
            match &custom {
                Some(custom) => {
                    runtime.block_on(custom::measure(&environment, *server, &options, custom, &mut results));
                }
                None if has_flag("--access") => {
                    runtime.block_on(access::measure(&environment, *server, &options, &mut results));
                }
                None => runtime.block_on(measure(&environment, *server, &options, &mut results)),
            }
        }
    }
    results.print();
}

/// One round of one server: a fresh store each time.
async fn measure(environment: &BenchEnvironment, kind: ApiServerKind, options: &Options, results: &mut Results) {
    let began = std::time::Instant::now();
    let server = match kind {
        ApiServerKind::Narthex => environment.start_embedded_api(false),
        ApiServerKind::KubeApiserver => kube_apiserver::start_control_plane(environment),
    };
    results.add(kind, "start to the first object created", "ms", began.elapsed().as_secs_f64() * 1000.0);
    // What a start does in the background passes before anything is measured.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    results.add(kind, "memory at rest", "MiB", memory(&server) / 1024.0);
    let client = client::ApiClient::connect(environment.directory(), server.port, &environment.token).await;
    operations::measure(&client, kind, &server, options, results).await;
    operations::measure_rates(environment, kind, &server, results).await;
    operations::measure_lists(&client, kind, &server, options, results).await;
    workloads::measure(&client, kind, &server, options, results).await;
    watches::measure(environment, kind, &server, options, results).await;
}
