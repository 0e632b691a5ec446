//! The sidecar beside kube-rbac-proxy, with HAProxy, which does no reviews, as the lower bound.

use std::time::Instant;

use crate::load::{self, Load};
use crate::world::{Guard, Upstream, World, kube_rbac_proxy};
use crate::{Options, asker, median, show, watch};

/// Starts of each, for the time from nothing to the first answer.
const STARTS: usize = 5;

/// What clients speak, how they show who they are, and what stands behind.
struct Scenario {
    name: &'static str,
    http1: bool,
    certificates: bool,
    upstream: Upstream,
    /// Two requests at a time, and no more: as many as kube-rbac-proxy keeps idle connections to an upstream with
    /// HTTP/1.1 or with a certificate of its own. Otherwise many at a time.
    two: bool,
}

const SCENARIOS: &[Scenario] = &[
    Scenario { name: "h1-token-plain", http1: true, certificates: false, upstream: Upstream::Plain, two: false },
    Scenario { name: "h2-token-plain", http1: false, certificates: false, upstream: Upstream::Plain, two: false },
    // One connection for all, over which kube-rbac-proxy is at its best.
    Scenario { name: "h1-token-tls", http1: true, certificates: false, upstream: Upstream::Tls, two: false },
    Scenario { name: "h2-token-tls", http1: false, certificates: false, upstream: Upstream::Tls, two: false },
    Scenario { name: "h1-cert-tls", http1: true, certificates: true, upstream: Upstream::Tls, two: false },
    Scenario { name: "h2-cert-tls", http1: false, certificates: true, upstream: Upstream::Tls, two: false },
    Scenario { name: "h1-token-mutual", http1: true, certificates: false, upstream: Upstream::Mutual, two: false },
    Scenario { name: "h2-token-mutual", http1: false, certificates: false, upstream: Upstream::Mutual, two: false },
    Scenario { name: "h1-cert-plain", http1: true, certificates: true, upstream: Upstream::Plain, two: false },
    Scenario { name: "h2-cert-plain", http1: false, certificates: true, upstream: Upstream::Plain, two: false },
    Scenario { name: "h1-cert-mutual", http1: true, certificates: true, upstream: Upstream::Mutual, two: false },
    Scenario { name: "h2-cert-mutual", http1: false, certificates: true, upstream: Upstream::Mutual, two: false },
    Scenario { name: "h1-two-plain", http1: true, certificates: false, upstream: Upstream::Plain, two: true },
    Scenario { name: "h1-two-mutual", http1: true, certificates: false, upstream: Upstream::Mutual, two: true },
];

pub(crate) fn compare(world: &World, options: &Options) {
    let reviewer = world.reviewer();
    let mut guards = vec![Guard::Narthex, Guard::NarthexRelays, Guard::Haproxy];
    if kube_rbac_proxy().is_some() {
        guards.push(Guard::KubeRbacProxy);
    } else {
        println!("without kube-rbac-proxy; build it with tests/interop/peers/build kube-rbac-proxy");
    }
    requests(world, options, &guards);
    if options.only.is_some() {
        return;
    }
    memory(world, options, &guards);
    starts(world, &guards);
    at_once(world, &guards);
    drop(reviewer);
}

fn requests(world: &World, options: &Options, guards: &[Guard]) {
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
        let _backend = world.upstream(scenario.upstream);
        let load = match scenario.http1 {
            true => Load::Http1 { connections: if scenario.two { 2 } else { 32 } },
            false => Load::Http2 { clients: 8, streams: 16 },
        };
        let mut figures = [const { Vec::new() }; 4];
        for _ in 0..options.rounds {
            for (guard, figures) in guards.iter().zip(&mut figures) {
                let proxy = world.guard(*guard, scenario.upstream);
                let run = |seconds| match scenario.certificates {
                    true => asker::with_certificates(world, &proxy, scenario.http1, seconds),
                    false => load::run(&load, world, &proxy, "small", seconds),
                };
                figures.push(proxy.cost(options.seconds, run));
            }
        }
        let [ours, relays, haproxy, peer] = &figures;
        let ratio = |one: &[f64], other: &[f64]| match one.is_empty() {
            true => "-".to_owned(),
            false => format!("{:.2}", median(one) / median(other)),
        };
        let shown = if peer.is_empty() { "-".to_owned() } else { show(peer) };
        println!(
            "{:<16} {:>20} {:>20} {:>20} {shown:>24} {:>12} {:>14} {:>12}",
            scenario.name,
            show(ours),
            show(relays),
            show(haproxy),
            ratio(ours, haproxy),
            ratio(relays, haproxy),
            ratio(peer, ours)
        );
    }
}

fn memory(world: &World, options: &Options, guards: &[Guard]) {
    let watches = options.watches.unwrap_or(1000);
    println!("\nresident kB at rest, and for each of {watches} idle watches (HTTP/2 on both sides, mutual TLS behind)");
    let _backend = world.upstream(Upstream::Mutual);
    for guard in guards {
        let proxy = world.guard(*guard, Upstream::Mutual);
        let rest = proxy.resident_kilobytes();
        load::run(&Load::Http2 { clients: 1, streams: 1 }, world, &proxy, "small", 1);
        let before = proxy.resident_kilobytes();
        let client = watch::spawn(world, &proxy, watches);
        let held = client.held();
        let after = proxy.resident_kilobytes();
        println!(
            "{:<24} {rest:>8} at rest {:>8.1} a watch ({before} -> {after}, {held} of {watches} held)",
            guard.name(),
            (after - before) as f64 / held as f64
        );
    }
}

fn starts(world: &World, guards: &[Guard]) {
    println!("\nms from nothing to the first answer to a request with a token, median (min-max) of {STARTS}");
    let _backend = world.upstream(Upstream::Plain);
    let mut figures = vec![Vec::new(); guards.len()];
    for _ in 0..STARTS {
        for (guard, figures) in guards.iter().zip(&mut figures) {
            let began = Instant::now();
            let proxy = world.begin(*guard, Upstream::Plain);
            proxy.first_answer(world);
            figures.push(began.elapsed().as_secs_f64() * 1000.0);
        }
    }
    for (guard, figures) in guards.iter().zip(&figures) {
        println!("{:<24} {:>24}", guard.name(), show(figures));
    }
}

fn at_once(world: &World, guards: &[Guard]) {
    println!("\nreviews asked for when 32 clients with one new token ask one thing at once (each review takes 50 ms)");
    let _backend = world.upstream(Upstream::Plain);
    for guard in guards.iter().filter(|guard| matches!(guard, Guard::Narthex | Guard::KubeRbacProxy)) {
        let proxy = world.guard(*guard, Upstream::Plain);
        let before = world.reviews();
        asker::at_once(world, &proxy, "slow-token");
        println!("{:<24} {:>6}", guard.name(), world.reviews() - before);
    }
}
