//! Narthex, HAProxy, kube-rbac-proxy and kube-apiserver's aggregation layer in front of the same server, in turns. The
//! results chart in the README is of this comparison.

use crate::chart::{Bar, Panel};
use crate::fixtures::{BenchEnvironment, Contender, kube_rbac_proxy};
use crate::load::{self, Load};
use crate::{Options, SCENARIOS, kube_apiserver, median, show, watch};

/// Scenarios of the chart.
const CHARTED: [&str; 3] = ["h2-h2-1k", "h1-h1-1k", "h2-h2-64k"];

/// Prints the figures and draws the chart, if one is wanted.
pub(crate) fn compare(environment: &BenchEnvironment, options: &Options) {
    let _reviewer = environment.start_reviewer();
    let mut contenders = vec![Contender::Narthex, Contender::HaproxySameHeaders];
    match kube_rbac_proxy() {
        Some(_) => contenders.push(Contender::KubeRbacProxy),
        None => println!("without kube-rbac-proxy; build it with tests/interop/peers/build kube-rbac-proxy"),
    }
    match kube_apiserver::is_built() {
        true => contenders.push(Contender::KubeApiserver),
        false => println!("without kube-apiserver; build it with tests/interop/peers/build kubernetes etcd"),
    }
    let requests = requests(environment, options, &contenders);
    options.draw(&[requests, memory(environment, options, &contenders)]);
}

fn requests(environment: &BenchEnvironment, options: &Options, contenders: &[Contender]) -> Panel {
    let mut panel = Panel::new("CPU time of the proxy per 1,000 requests", "ms");
    println!(
        "CPU ms of the proxy per 1,000 responses, median (min-max) of {} rounds of {} s",
        options.rounds, options.seconds
    );
    for scenario in SCENARIOS.iter().filter(|one| CHARTED.contains(&one.name) && options.wants(one.name)) {
        let _backend = environment.start_backend(scenario.backend_http1);
        let mut figures = vec![Vec::new(); contenders.len()];
        for _ in 0..options.rounds {
            for (contender, figures) in contenders.iter().zip(&mut figures) {
                let proxy = environment.start_proxy(*contender, scenario.backend_http1);
                let load = |seconds| load::run(&scenario.load, environment, &proxy, scenario.path, seconds);
                figures.push(proxy.cost_per_thousand(options.seconds, load));
            }
        }
        let first = median(&figures[0]);
        let mut bars = Vec::new();
        for (contender, figures) in contenders.iter().zip(&figures) {
            let (name, value) = (contender.name(), median(figures));
            println!("{:<12} {name:<22} {:>26} {:>8.2} times Narthex", scenario.name, show(figures), value / first);
            bars.push(Bar::new(name, value));
        }
        panel.groups.push((scenario.name.to_owned(), bars));
    }
    panel
}

fn memory(environment: &BenchEnvironment, options: &Options, contenders: &[Contender]) -> Panel {
    let mut panel = Panel::new("Memory per idle watch", "kB");
    let watches = options.watches.unwrap_or(1000);
    println!("\nkB of resident memory per idle watch, {watches} clients with one HTTP/2 watch each");
    let _backend = environment.start_backend(false);
    let mut bars = Vec::new();
    for contender in contenders {
        let proxy = environment.start_proxy(*contender, false);
        load::run(&Load::Http2 { clients: 1, streams: 1 }, environment, &proxy, "small", 1);
        let before = proxy.resident_kilobytes();
        let client = watch::spawn(environment, &proxy, watches);
        let (held, after) = (client.open_count(), proxy.resident_kilobytes());
        let each = (after - before) as f64 / held as f64;
        println!("{:<22} {each:>7.1} kB ({before} -> {after} kB, {held} of {watches} held)", contender.name());
        bars.push(Bar::new(contender.name(), each));
    }
    panel.groups.push(("h2-h2".to_owned(), bars));
    panel
}
