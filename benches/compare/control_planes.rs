//! Cost of a request to one of 1, 10, 100 and 1,000 control planes, and cost of the others.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::fixtures::{BenchEnvironment, Gateway};
use crate::load::{self, Load};
use crate::{Options, median, show};

const COUNTS: [usize; 4] = [1, 10, 100, 1000];
/// Path of the requests; the API server of the control plane serves it.
const PATH: &str = "/clusters/measured/api/v1/namespaces/default/small";
/// Time after the start for what follows it: discovery and OpenAPI of each API server.
const SETTLING_TIME: Duration = Duration::from_secs(5);
/// How long the process is measured without requests: two intervals of polls.
const IDLE_TIME: Duration = Duration::from_secs(6);

/// Figures of one number of control planes in all rounds.
#[derive(Default)]
struct PlaneFigures {
    request_micros: Vec<f64>,
    request_micros_with_polls: Vec<f64>,
    idle_milliseconds: Vec<f64>,
    mebibytes: Vec<f64>,
    threads: Vec<f64>,
    start_seconds: Vec<f64>,
    requests: u64,
}

/// Prints a row for each number of control planes, whose rounds are interleaved.
pub(crate) fn measure(environment: &BenchEnvironment, options: &Options) {
    for count in COUNTS {
        environment.write(&file_name(count), &control_planes(count));
    }
    let _backend = environment.start_backend(false);
    println!(
        "median (min-max) of {} rounds of {} s, HTTP/2; CPU per request without what the process spends on polls",
        options.rounds, options.seconds
    );
    println!(
        "{:>8} {:>22} {:>8} {:>22} {:>24} {:>22} {:>18} {:>18} {:>12}",
        "planes",
        "CPU µs per request",
        "ratio",
        "with polls",
        "CPU ms per idle second",
        "MiB",
        "threads",
        "start, s",
        "requests"
    );
    let mut figures: [PlaneFigures; COUNTS.len()] = Default::default();
    for round in 0..options.rounds {
        // Each round begins with another number, so that none always runs on a warmer or quieter machine.
        for turn in 0..COUNTS.len() {
            let at = (round + turn) % COUNTS.len();
            measure_round(environment, options, COUNTS[at], &mut figures[at]);
        }
    }
    let one = median(&figures[0].request_micros);
    for (count, figures) in COUNTS.iter().zip(&figures) {
        println!(
            "{count:>8} {:>22} {:>8.2} {:>22} {:>24} {:>22} {:>18} {:>18} {:>12}",
            show(&figures.request_micros),
            median(&figures.request_micros) / one,
            show(&figures.request_micros_with_polls),
            show(&figures.idle_milliseconds),
            show(&figures.mebibytes),
            show(&figures.threads),
            show(&figures.start_seconds),
            figures.requests
        );
    }
}

fn measure_round(environment: &BenchEnvironment, options: &Options, count: usize, figures: &mut PlaneFigures) {
    let file = environment.directory().join(file_name(count)).display().to_string();
    let begin = Instant::now();
    let gateway = environment.start_gateway(&[format!("--control-planes-config={file}")]);
    wait_until_serving(&gateway, count);
    figures.start_seconds.push(begin.elapsed().as_secs_f64());
    let proxy = &gateway.proxy;
    proxy.wait_for_response_at(environment, PATH);
    std::thread::sleep(SETTLING_TIME);
    let cpu_and_time = || (proxy.cpu_milliseconds(), Instant::now());
    let (before, begin) = cpu_and_time();
    std::thread::sleep(IDLE_TIME);
    let idle = (proxy.cpu_milliseconds() - before) / begin.elapsed().as_secs_f64();
    figures.idle_milliseconds.push(idle);
    let load = |seconds| {
        let load = Load::Http2 { clients: 8, streams: 16 };
        load::run_at(&load, environment, proxy, PATH, &[], seconds)
    };
    load(1);
    let (before, begin) = cpu_and_time();
    let responses = load(options.seconds);
    let spent = proxy.cpu_milliseconds() - before;
    let polls = idle * begin.elapsed().as_secs_f64();
    let each = |milliseconds: f64| milliseconds * 1000.0 / responses as f64;
    figures.request_micros.push(each(spent - polls));
    figures.request_micros_with_polls.push(each(spent));
    figures.mebibytes.push(proxy.resident_kilobytes() as f64 / 1024.0);
    figures.threads.push(proxy.processes().map(|process| process.threads() as f64).sum());
    figures.requests += responses;
}

fn file_name(count: usize) -> String {
    format!("control-planes-{count}.yaml")
}

/// All have the same API server and the same users; the requests are for the last one.
fn control_planes(count: usize) -> String {
    let entry = |name: &str| {
        format!(
            "- {{name: {name}, pathPrefix: /clusters/{name}, delegateKubeconfig: delegate.kubeconfig, \
             clientCAFile: ca.crt, tokenAuthFile: tokens.csv}}\n"
        )
    };
    let mut text = "apiVersion: narthex.dev/v1alpha1\nkind: ControlPlanes\ncontrolPlanes:\n".to_owned();
    text.extend((1..count).map(|number| entry(&format!("idle-{number}"))));
    text + &entry("measured")
}

fn wait_until_serving(gateway: &Gateway, count: usize) {
    let end = Instant::now() + Duration::from_secs(300);
    loop {
        let report: Value = serde_json::from_str(&gateway.get_admin("/status.json")).expect("a report");
        let rows = report["controlPlanes"].as_array().map(Vec::as_slice).unwrap_or_default();
        if rows.len() == count && rows.iter().all(|row| row["state"] == "serving") {
            return;
        }
        assert!(Instant::now() < end, "not all serve: {}", gateway.proxy.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}
