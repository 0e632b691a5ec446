//! Each metric family of the reference is served by narthex's server and agent, with its type, labels and buckets.

use std::collections::{BTreeMap, BTreeSet};

use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::pairs::OWN;
use super::run_local;
use super::target_server::{TargetBehavior, TargetServer};
use crate::environment::{Konnectivity, KonnectivityMode, KonnectivityPair, TestEnvironment, eventually, free_port};

/// Families of the reference that narthex does not serve, by the beginning of their names, and why.
const EXCEPTIONS: [(&str, &str); 4] = [
    ("go_", "the runtime of Go"),
    ("promhttp_", "the HTTP handler of Go's Prometheus client"),
    ("process_network_", "traffic of the machine's network namespace, not of the process"),
    ("process_virtual_memory_max_bytes", "a limit that nobody sets"),
];

#[derive(Debug, Default, PartialEq)]
struct Family {
    kind: String,
    /// Names of labels.
    labels: BTreeSet<String>,
    /// Upper bounds of a histogram's buckets.
    bounds: BTreeSet<String>,
}

/// Families by name.
fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families = BTreeMap::<String, Family>::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            name = family.to_owned();
            families.entry(name.clone()).or_default().kind = kind.to_owned();
        } else if let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) {
            let family = families.get_mut(&name).unwrap();
            let bound = labels.split(',').find_map(|label| label.strip_prefix("le=\"")?.strip_suffix('"'));
            // Programs write a number in different ways.
            family.bounds.extend(bound.map(|bound| bound.parse::<f64>().unwrap().to_string()));
            let labels = labels.split("=\"").filter_map(|part| part.rsplit([',', '"']).next());
            let labels = labels.filter(|label| !label.is_empty() && *label != "le");
            family.labels.extend(labels.map(str::to_owned));
        }
    }
    families
}

/// Asserts that each family of the reference is among our own, but for the exceptions.
pub(super) fn assert_serves(who: &str, own: &str, reference: &str) {
    let (own, reference) = (families(own), families(reference));
    assert!(!reference.is_empty());
    let is_exception = |name: &str| EXCEPTIONS.iter().any(|(prefix, _)| name.starts_with(prefix));
    let (excepted, wanted): (Vec<_>, Vec<_>) = reference.iter().partition(|(name, _)| is_exception(name));
    let missing: Vec<_> =
        wanted.iter().filter(|(name, family)| own.get(*name) != Some(family)).map(|(name, _)| *name).collect();
    for name in &missing {
        println!("{who}: {name}: {:?} instead of {:?}", own.get(*name), reference[*name]);
    }
    assert!(missing.is_empty(), "{who}: {missing:?}");
    for (name, _) in excepted {
        assert!(!own.contains_key(name), "{who}: {name} is served: no exception");
    }
    println!("{who}: {} families of the reference are served, of {}", wanted.len(), own.len());
}

/// Metrics of the server, of an agent that served, and of one whose server was killed.
struct Scrape {
    server: String,
    agent: String,
}

/// The same traffic for each pair.
fn scrape(environment: &TestEnvironment, pair: KonnectivityPair, mode: KonnectivityMode) -> Scrape {
    let directory = environment.scratch(&format!("metric-families-{}-{mode:?}", pair.has_own_server));
    let mut konnectivity = Konnectivity::with_pair(&directory, mode, pair);
    let echo = TargetServer::start(TargetBehavior::Echo);
    let exchange = async || {
        let mut stream = konnectivity.connect(echo.port).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
        stream
    };
    run_local(async {
        drop(exchange().await);
        assert!(konnectivity.connect(free_port()).await.is_err());
        // The agent is lost while a tunnel is open.
        let open = exchange().await;
        konnectivity.agents[0].process.signal(Signal::KILL);
        drop(open);
    });
    konnectivity.wait_for_agents(0);
    konnectivity.start_agent("agent-b", None);
    let exchange = async || {
        let mut stream = konnectivity.connect(echo.port).await.unwrap();
        stream.write_all(b"ping").await.unwrap();
        let mut answer = [0; 4];
        stream.read_exact(&mut answer).await.unwrap();
    };
    run_local(async { exchange().await });
    let server = konnectivity.metrics();
    konnectivity.server.signal(Signal::KILL);
    let agent = konnectivity.agents.last().unwrap();
    let scrape = eventually("the agent to lose its server", || {
        let text = agent.metrics();
        let is_lost = text.lines().any(|line| line.ends_with("open_server_connections 0"));
        if is_lost { Ok(text) } else { Err(text) }
    });
    Scrape { server, agent: scrape }
}

pub(super) fn are_served(environment: &TestEnvironment) {
    for mode in [KonnectivityMode::GrpcUnix, KonnectivityMode::ConnectUnix] {
        let (own, reference) = (scrape(environment, OWN, mode), scrape(environment, KonnectivityPair::REFERENCE, mode));
        assert!(families(&reference.server).values().any(|family| !family.bounds.is_empty()));
        assert_serves("server", &own.server, &reference.server);
        assert_serves("agent", &own.agent, &reference.agent);
        // What both pairs did is in the metrics of both.
        for text in [&own.server, &reference.server] {
            for series in ["stream_packets_total{", "dial_duration_seconds_count", "dial_failure_count{"] {
                assert!(text.contains(&format!("konnectivity_network_proxy_server_{series}")), "{series}\n{text}");
            }
        }
    }
}
