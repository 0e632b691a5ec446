//! Cost of webhook reviews: cached, and for every request.

use crate::fixtures::{BenchEnvironment, Contender, kube_rbac_proxy};
use crate::load::{self, Load};
use crate::{Options, SCENARIOS, Scenario, median, show, unique_tokens};

/// kube-rbac-proxy keeps two idle connections to what stands behind it, and makes a new one for each further request:
/// here it need not.
const TWO_CONNECTIONS: Scenario =
    Scenario { name: "h1-h1-1k-two", load: Load::Http1 { connections: 2 }, backend_http1: true, path: "small" };

/// New tokens in one round.
const UNIQUE_TOKENS: usize = 5000;
/// New tokens before anything is measured.
const WARM_UP_REQUESTS: usize = 500;
/// New tokens, twice: what the first of them leave behind is kept, the second must replace it.
const CONCURRENT_REQUESTS: usize = 100_000;

pub(crate) fn compare(environment: &BenchEnvironment, options: &Options) {
    let _reviewer = environment.start_reviewer();
    let mut reviewed = vec![Contender::NarthexReviews];
    if kube_rbac_proxy().is_some() {
        reviewed.push(Contender::KubeRbacProxy);
    } else {
        println!("without kube-rbac-proxy; build it with tests/interop/peers/build kube-rbac-proxy");
    }
    compare_cached(environment, options, &reviewed);
    let _backend = environment.start_backend(false);
    if options.wants("new-tokens") {
        compare_uncached(environment, options, &reviewed);
    }
    if options.wants("many-tokens") {
        compare_concurrent(environment, &reviewed);
    }
}

fn compare_cached(environment: &BenchEnvironment, options: &Options, reviewed: &[Contender]) {
    println!(
        "CPU ms of the proxy per 1,000 answers, median (min-max) of {} rounds of {} s: a token of a file, and every user \
         may; or token and permission reviewed, and remembered",
        options.rounds, options.seconds
    );
    println!(
        "{:<12} {:>22} {:>22} {:>22} {:>14} {:>14}",
        "scenario", "narthex, file", "narthex, reviews", "kube-rbac-proxy", "reviews/file", "peer/narthex"
    );
    for scenario in SCENARIOS.iter().chain([&TWO_CONNECTIONS]).filter(|scenario| options.wants(scenario.name)) {
        let _backend = environment.start_backend(scenario.backend_http1);
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..options.rounds {
            for (contender, figures) in [Contender::Narthex].iter().chain(reviewed).zip(&mut figures) {
                let proxy = environment.start_proxy(*contender, scenario.backend_http1);
                let load = |seconds| load::run(&scenario.load, environment, &proxy, scenario.path, seconds);
                figures.push(proxy.cost_per_thousand(options.seconds, load));
            }
        }
        print_row(scenario.name, &figures);
    }
}

fn compare_uncached(environment: &BenchEnvironment, options: &Options, reviewed: &[Contender]) {
    println!(
        "\nnew-tokens: {UNIQUE_TOKENS} requests a round, each with a token that was never seen: two reviews for each"
    );
    println!("{:<18} {:>24} {:>20}", "", "CPU ms per 1,000", "requests/s");
    let mut figures = [const { (Vec::new(), Vec::new()) }; 2];
    for _ in 0..options.rounds {
        for (contender, (cpu, rate)) in reviewed.iter().zip(&mut figures) {
            let proxy = environment.start_proxy(*contender, false);
            unique_tokens::run(environment, &proxy, 0, WARM_UP_REQUESTS);
            let before = proxy.cpu_milliseconds();
            let took = unique_tokens::run(environment, &proxy, WARM_UP_REQUESTS, UNIQUE_TOKENS);
            cpu.push((proxy.cpu_milliseconds() - before) / (UNIQUE_TOKENS as f64 / 1000.0));
            rate.push(UNIQUE_TOKENS as f64 / took.as_secs_f64());
        }
    }
    for (contender, (cpu, rate)) in reviewed.iter().zip(&figures) {
        println!("{:<18} {:>24} {:>20.0}", contender.name(), show(cpu), median(rate));
    }
}

fn compare_concurrent(environment: &BenchEnvironment, reviewed: &[Contender]) {
    println!(
        "\nmany-tokens: resident kB before, after {CONCURRENT_REQUESTS} distinct tokens, and after as many others"
    );
    for contender in reviewed {
        let proxy = environment.start_proxy(*contender, false);
        unique_tokens::run(environment, &proxy, 0, WARM_UP_REQUESTS);
        let before = proxy.resident_kilobytes();
        unique_tokens::run(environment, &proxy, WARM_UP_REQUESTS, CONCURRENT_REQUESTS);
        let once = proxy.resident_kilobytes();
        unique_tokens::run(environment, &proxy, WARM_UP_REQUESTS + CONCURRENT_REQUESTS, CONCURRENT_REQUESTS);
        println!("{:<18} {before:>8} {once:>8} {:>8}", contender.name(), proxy.resident_kilobytes());
    }
}

fn print_row(name: &str, figures: &[Vec<f64>; 3]) {
    let [file, reviews, peer] = figures;
    let ratio = |one: &[f64], other: &[f64]| match (one, other) {
        ([], _) | (_, []) => "-".to_owned(),
        _ => format!("{:.2}", median(one) / median(other)),
    };
    let shown = |figures: &[f64]| if figures.is_empty() { "-".to_owned() } else { show(figures) };
    println!(
        "{name:<12} {:>22} {:>22} {:>22} {:>14} {:>14}",
        shown(file),
        shown(reviews),
        shown(peer),
        ratio(reviews, file),
        ratio(peer, reviews)
    );
}
