//! The sidecar beside kube-rbac-proxy, with HAProxy, which does no reviews, as the lower bound.

use std::time::Instant;

use crate::chart::{Bar, Panel};
use crate::fixtures::{BenchEnvironment, SidecarKind, Upstream, kube_rbac_proxy};
use crate::load::{self, Load};
use crate::{Options, median, mtls_load, show, watch};

/// Starts of each, for the time from nothing to the first answer.
const STARTS: usize = 5;

/// Client protocol, credentials and upstream.
struct SidecarScenario {
    name: &'static str,
    is_http1: bool,
    uses_certificates: bool,
    upstream: Upstream,
    /// Two requests at a time, and no more: as many as kube-rbac-proxy keeps idle connections to an upstream with
    /// HTTP/1.1 or with a certificate of its own. Otherwise many at a time.
    is_two_at_a_time: bool,
}

const SCENARIOS: &[SidecarScenario] = &[
    SidecarScenario {
        name: "h1-token-plain",
        is_http1: true,
        uses_certificates: false,
        upstream: Upstream::Plain,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-token-plain",
        is_http1: false,
        uses_certificates: false,
        upstream: Upstream::Plain,
        is_two_at_a_time: false,
    },
    // One connection for all, over which kube-rbac-proxy is at its best.
    SidecarScenario {
        name: "h1-token-tls",
        is_http1: true,
        uses_certificates: false,
        upstream: Upstream::Tls,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-token-tls",
        is_http1: false,
        uses_certificates: false,
        upstream: Upstream::Tls,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h1-cert-tls",
        is_http1: true,
        uses_certificates: true,
        upstream: Upstream::Tls,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-cert-tls",
        is_http1: false,
        uses_certificates: true,
        upstream: Upstream::Tls,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h1-token-mutual",
        is_http1: true,
        uses_certificates: false,
        upstream: Upstream::Mutual,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-token-mutual",
        is_http1: false,
        uses_certificates: false,
        upstream: Upstream::Mutual,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h1-cert-plain",
        is_http1: true,
        uses_certificates: true,
        upstream: Upstream::Plain,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-cert-plain",
        is_http1: false,
        uses_certificates: true,
        upstream: Upstream::Plain,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h1-cert-mutual",
        is_http1: true,
        uses_certificates: true,
        upstream: Upstream::Mutual,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h2-cert-mutual",
        is_http1: false,
        uses_certificates: true,
        upstream: Upstream::Mutual,
        is_two_at_a_time: false,
    },
    SidecarScenario {
        name: "h1-two-plain",
        is_http1: true,
        uses_certificates: false,
        upstream: Upstream::Plain,
        is_two_at_a_time: true,
    },
    SidecarScenario {
        name: "h1-two-mutual",
        is_http1: true,
        uses_certificates: false,
        upstream: Upstream::Mutual,
        is_two_at_a_time: true,
    },
];

pub(crate) fn compare(environment: &BenchEnvironment, options: &Options) {
    let reviewer = environment.start_reviewer();
    let mut guards = vec![SidecarKind::Narthex, SidecarKind::NarthexRelays, SidecarKind::Haproxy];
    if kube_rbac_proxy().is_some() {
        guards.push(SidecarKind::KubeRbacProxy);
    } else {
        println!("without kube-rbac-proxy; build it with tests/interop/peers/build kube-rbac-proxy");
    }
    let requests = requests(environment, options, &guards);
    if options.only.is_some() {
        return options.draw(&[requests]);
    }
    options.draw(&[requests, memory(environment, options, &guards)]);
    starts(environment, &guards);
    at_once(environment, &guards);
    drop(reviewer);
}

fn requests(environment: &BenchEnvironment, options: &Options, guards: &[SidecarKind]) -> Panel {
    let mut panel = Panel::new("CPU time of the proxy per 1,000 requests", "ms");
    println!(
        "CPU ms of the proxy per 1,000 answers, median (min-max) of {} rounds of {} s; token and permission reviewed and \
         remembered, but for `relays` (a token of a file, everybody may) and haproxy (nobody is asked)",
        options.rounds, options.seconds
    );
    println!(
        "{:<16} {:>20} {:>20} {:>20} {:>24} {:>12} {:>14} {:>12}",
        "scenario", "narthex", "relays", "haproxy", "kube-rbac-proxy", "to haproxy", "relays to it", "peer to us"
    );
    for scenario in SCENARIOS.iter().filter(|scenario| options.wants(scenario.name)) {
        let _backend = environment.start_upstream(scenario.upstream);
        let load = match scenario.is_http1 {
            true => Load::Http1 { connections: if scenario.is_two_at_a_time { 2 } else { 32 } },
            false => Load::Http2 { clients: 8, streams: 16 },
        };
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..options.rounds {
            for (sidecar, figures) in guards.iter().zip(&mut figures) {
                let proxy = environment.start_sidecar(*sidecar, scenario.upstream);
                let run = |seconds| match scenario.uses_certificates {
                    true => mtls_load::run_with_certificates(environment, &proxy, scenario.is_http1, seconds),
                    false => load::run(&load, environment, &proxy, "small", seconds),
                };
                figures.push(proxy.cost_per_thousand(options.seconds, run));
            }
        }
        let bars = guards.iter().zip(&figures).map(|(sidecar, figures)| Bar::new(sidecar.name(), median(figures)));
        panel.groups.push((scenario.name.to_owned(), bars.collect()));
        let [actual, relays, haproxy, peer] = &figures;
        let ratio = |one: &[f64], other: &[f64]| match one.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.2}", median(one) / median(other)),
        };
        let shown = if peer.is_empty() { "-".to_owned() } else { show(peer) };
        println!(
            "{:<16} {:>20} {:>20} {:>20} {shown:>24} {:>12} {:>14} {:>12}",
            scenario.name,
            show(actual),
            show(relays),
            show(haproxy),
            ratio(actual, haproxy),
            ratio(relays, haproxy),
            ratio(peer, actual)
        );
    }
    panel
}

fn memory(environment: &BenchEnvironment, options: &Options, guards: &[SidecarKind]) -> Panel {
    let mut bars = Vec::new();
    let watches = options.watches.unwrap_or(1000);
    println!("\nresident kB at rest, and for each of {watches} idle watches (HTTP/2 on both sides, mutual TLS behind)");
    let _backend = environment.start_upstream(Upstream::Mutual);
    for sidecar in guards {
        let proxy = environment.start_sidecar(*sidecar, Upstream::Mutual);
        let rest = proxy.resident_kilobytes();
        load::run(&Load::Http2 { clients: 1, streams: 1 }, environment, &proxy, "small", 1);
        let before = proxy.resident_kilobytes();
        let client = watch::spawn(environment, &proxy, watches);
        let held = client.open_count();
        let after = proxy.resident_kilobytes();
        let each = (after - before) as f64 / held as f64;
        println!(
            "{:<24} {rest:>8} at rest {each:>8.1} a watch ({before} -> {after}, {held} of {watches} held)",
            sidecar.name(),
        );
        bars.push(Bar::new(sidecar.name(), each));
    }
    let mut panel = Panel::new("Memory per idle watch", "kB");
    panel.groups.push(("HTTP/2, mutual TLS".to_owned(), bars));
    panel
}

fn starts(environment: &BenchEnvironment, guards: &[SidecarKind]) {
    println!("\nms from nothing to the first answer to a request with a token, median (min-max) of {STARTS}");
    let _backend = environment.start_upstream(Upstream::Plain);
    let mut figures = vec![Vec::new(); guards.len()];
    for _ in 0..STARTS {
        for (sidecar, figures) in guards.iter().zip(&mut figures) {
            let began = Instant::now();
            let proxy = environment.spawn_sidecar(*sidecar, Upstream::Plain);
            proxy.wait_for_first_response(environment);
            figures.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    }
    for (sidecar, figures) in guards.iter().zip(&figures) {
        println!("{:<24} {:>24}", sidecar.name(), show(figures));
    }
}

fn at_once(environment: &BenchEnvironment, guards: &[SidecarKind]) {
    println!("\nreviews asked for when 32 clients with one new token ask one thing at once (each review takes 50 ms)");
    let _backend = environment.start_upstream(Upstream::Plain);
    for sidecar in guards.iter().filter(|sidecar| matches!(sidecar, SidecarKind::Narthex | SidecarKind::KubeRbacProxy))
    {
        let proxy = environment.start_sidecar(*sidecar, Upstream::Plain);
        let before = environment.review_count();
        mtls_load::request_all_at_once(environment, &proxy, "slow-token");
        println!("{:<24} {:>6}", sidecar.name(), environment.review_count() - before);
    }
}
