//! Narthex and HAProxy on the same job, in turns: CPU per request and memory per idle watch.
//!
//! ```text
//! cargo bench --bench compare                  # all scenarios, five rounds
//! cargo bench --bench compare -- --rounds 3 --seconds 2 --only h2-h2
//! cargo bench --bench compare -- --watches 2000
//! cargo bench --bench compare -- --reviews     # TokenReview and SubjectAccessReview, beside kube-rbac-proxy
//! cargo bench --bench compare -- --reviews --only new-tokens
//! cargo bench --bench compare -- --sidecar     # the sidecar beside kube-rbac-proxy and HAProxy
//! cargo bench --bench compare -- --documents   # discovery, OpenAPI and the delegate, beside a plain request
//! cargo bench --bench compare -- --cluster     # registry and delegate of a cluster, beside a registry directory
//! cargo bench --bench compare -- --tracing     # off, on without a sampled request, on with every request sampled
//! cargo bench --bench compare -- --control-planes  # one request with 1, 10, 100 and 1,000 control planes
//! cargo bench --bench compare -- --failover    # one of three backends is killed, or stopped, under load
//! cargo bench --bench compare -- --peers       # beside HAProxy, kube-rbac-proxy and kube-apiserver
//! cargo bench --bench compare -- --chart F     # also draws CPU and memory into F, an SVG; also with --sidecar and --peers
//! cargo bench --bench compare -- --against C   # beside the program of commit C; --profile P builds both with P
//! cargo bench --bench compare -- --narthex P   # the program at P instead of the one built with the benchmark
//! ```
//!
//! Cargo builds the program for a benchmark with the library features of the tests (tokio's pausable clock). A release
//! build is without them, and a little cheaper: `cargo install --path . --root P`.
//!
//! Needs `haproxy`, `h2load` (nghttp2-client), `wrk` and `taskset`, all packaged by Debian. The proxy
//! under test is pinned to one core, load and backend to another. Compared are the CPU time of the proxy's
//! process per 1,000 responses, and the growth of its resident memory per idle watch: both as counted by the
//! kernel, as ratios of medians measured side by side.
//!
//! Narthex runs with default flags and does its whole work: authenticates a bearer token, routes, sets identity
//! headers, counts, writes its access log. HAProxy terminates TLS, sets one header and forwards; in a column of its
//! own it also compares the token and sets and removes the headers that Narthex does, so that backends get the same
//! bytes. The ratios are Narthex to plain HAProxy, Narthex with an access log of every request to plain HAProxy, and
//! Narthex to HAProxy with the same headers.

mod against;
mod backend;
mod chart;
mod cluster;
mod control_planes;
mod discovery_documents;
mod failover;
mod fake_apiserver;
#[allow(dead_code, reason = "shared with the other benchmark")]
mod fixtures;
mod kube_apiserver;
mod load;
mod mtls_load;
mod peers;
mod reviews;
mod server;
mod sidecar;
mod tracing;
mod unique_tokens;
mod watch;

use std::path::PathBuf;

use chart::{Bar, Panel};
use fixtures::{BenchEnvironment, Contender};
use load::Load;

/// One job: what the client speaks, what the backend speaks, what is asked for.
struct Scenario {
    name: &'static str,
    load: Load,
    backend_http1: bool,
    path: &'static str,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "h2-h2-1k", load: Load::Http2 { clients: 8, streams: 16 }, backend_http1: false, path: "small" },
    Scenario { name: "h2-h1-1k", load: Load::Http2 { clients: 8, streams: 16 }, backend_http1: true, path: "small" },
    Scenario { name: "h1-h1-1k", load: Load::Http1 { connections: 32 }, backend_http1: true, path: "small" },
    Scenario { name: "h1-h2-1k", load: Load::Http1 { connections: 32 }, backend_http1: false, path: "small" },
    Scenario { name: "h2-h2-64k", load: Load::Http2 { clients: 8, streams: 4 }, backend_http1: false, path: "big" },
    Scenario { name: "h1-h1-64k", load: Load::Http1 { connections: 32 }, backend_http1: true, path: "big" },
];

struct Options {
    rounds: usize,
    seconds: u32,
    only: Option<String>,
    watches: Option<usize>,
    chart: Option<PathBuf>,
}

impl Options {
    fn wants(&self, scenario: &str) -> bool {
        self.only.as_deref().is_none_or(|only| scenario.contains(only))
    }

    /// Draws the chart, if one is wanted.
    fn draw(&self, panels: &[Panel]) {
        if let Some(path) = &self.chart {
            std::fs::write(path, chart::render(panels)).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            println!("\nchart: {}", path.display());
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("mtls-load") => return mtls_load::main(&arguments[1..]),
        Some("backend") => return backend::main(&arguments[1..]),
        Some("collector") => return tracing::main(&arguments[1..]),
        Some("cluster") => return cluster::main(&arguments[1..]),
        Some("fake-apiserver") => return fake_apiserver::main(&arguments[1..]),
        Some("unique-tokens") => return unique_tokens::main(&arguments[1..]),
        Some("watch") => return watch::main(&arguments[1..]),
        _ => {}
    }
    let value = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1)).cloned();
    let number = |name: &str, default: usize| {
        value(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} takes a number")))
    };
    let options = Options {
        rounds: number("--rounds", 5),
        seconds: number("--seconds", 3) as u32,
        only: value("--only"),
        watches: value("--watches").map(|text| text.parse().expect("--watches takes a number")),
        chart: value("--chart").map(PathBuf::from),
    };
    let narthex = value("--narthex").unwrap_or_else(|| env!("CARGO_BIN_EXE_narthex").to_owned()).into();
    let wants = |job: &str| arguments.iter().any(|argument| argument == job);
    if let Some(commit) = value("--against") {
        check_tools(&["h2load", "wrk", "taskset"]);
        return against::compare(&options, &commit, &value("--profile").unwrap_or_else(|| "release".to_owned()));
    }
    if wants("--failover") {
        return failover::run(&BenchEnvironment::new(narthex), options.seconds);
    }
    // These compare Narthex with itself.
    let tools: &[&str] = match wants("--tracing") || wants("--control-planes") {
        true => &["h2load", "wrk", "taskset"],
        false => &["haproxy", "h2load", "wrk", "taskset"],
    };
    check_tools(tools);
    let environment = BenchEnvironment::new(narthex);
    if wants("--tracing") {
        return tracing::compare(&environment, &options);
    }
    if wants("--control-planes") {
        return control_planes::measure(&environment, &options);
    }
    if wants("--peers") {
        return peers::compare(&environment, &options);
    }
    if wants("--reviews") {
        return reviews::compare(&environment, &options);
    }
    if wants("--sidecar") {
        return sidecar::compare(&environment, &options);
    }
    if wants("--cluster") {
        return cluster::compare(&environment, &options);
    }
    if wants("--documents") {
        return discovery_documents::measure(&environment, &options);
    }
    let requests = if options.watches.is_none() { requests(&environment, &options) } else { Panel::default() };
    options.draw(&[requests, memory(&environment, &options)]);
}

/// Ends the process if a tool is missing.
fn check_tools(tools: &[&str]) {
    let missing: Vec<_> = tools.iter().copied().filter(|tool| !fixtures::is_installed(tool)).collect();
    if !missing.is_empty() {
        eprintln!(
            "not found: {}. On Debian: apt-get install haproxy nghttp2-client wrk util-linux",
            missing.join(", ")
        );
        std::process::exit(1);
    }
}

fn requests(environment: &BenchEnvironment, options: &Options) -> Panel {
    let mut panel = Panel::new("CPU time of the proxy per 1,000 requests", "ms");
    println!(
        "CPU ms of the proxy per 1,000 answers, median (min-max) of {} rounds of {} s",
        options.rounds, options.seconds
    );
    println!(
        "{:<12} {:>22} {:>22} {:>22} {:>22} {:>8} {:>8} {:>8}",
        "scenario", "narthex", "narthex, log all", "haproxy", "haproxy, same headers", "ratio", "all", "same"
    );
    for scenario in SCENARIOS.iter().filter(|scenario| options.wants(scenario.name)) {
        let _backend = environment.start_backend(scenario.backend_http1);
        let contenders =
            [Contender::Narthex, Contender::NarthexLogsAll, Contender::Haproxy, Contender::HaproxySameHeaders];
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..options.rounds {
            for (contender, figures) in contenders.iter().zip(&mut figures) {
                let proxy = environment.start_proxy(*contender, scenario.backend_http1);
                let load = |seconds| load::run(&scenario.load, environment, &proxy, scenario.path, seconds);
                figures.push(proxy.cost_per_thousand(options.seconds, load));
            }
        }
        let medians = figures.each_ref().map(|figures| median(figures));
        let bars = contenders.iter().zip(medians).map(|(contender, median)| Bar::new(contender.name(), median));
        panel.groups.push((scenario.name.to_owned(), bars.collect()));
        let shown = figures.each_ref().map(|figures| show(figures));
        println!(
            "{:<12} {:>22} {:>22} {:>22} {:>22} {:>8.2} {:>8.2} {:>8.2}",
            scenario.name,
            shown[0],
            shown[1],
            shown[2],
            shown[3],
            medians[0] / medians[2],
            medians[1] / medians[2],
            medians[0] / medians[3]
        );
    }
    panel
}

fn memory(environment: &BenchEnvironment, options: &Options) -> Panel {
    let mut panel = Panel::new("Memory per idle watch", "kB");
    let watches = options.watches.unwrap_or(1000);
    println!("\nkB of resident memory per idle watch, {watches} clients with one HTTP/2 watch each");
    for http1 in [false, true] {
        let _backend = environment.start_backend(http1);
        let backend = if http1 { "h1" } else { "h2" };
        let mut bars = Vec::new();
        for contender in [Contender::Narthex, Contender::Haproxy] {
            let proxy = environment.start_proxy(contender, http1);
            load::run(&Load::Http2 { clients: 1, streams: 1 }, environment, &proxy, "small", 1);
            let before = proxy.resident_kilobytes();
            let client = watch::spawn(environment, &proxy, watches);
            let held = client.open_count();
            let after = proxy.resident_kilobytes();
            let each = (after - before) as f64 / held as f64;
            println!(
                "{:<8} {backend:<4} {each:>7.1} kB a watch ({before} -> {after} kB, {held} of {watches} held)",
                contender.name(),
            );
            bars.push(Bar::new(contender.name(), each));
        }
        panel.groups.push((format!("{backend} backend"), bars));
    }
    panel
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn show(figures: &[f64]) -> String {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    format!("{:.1} ({least:.1}-{most:.1})", median(figures))
}
