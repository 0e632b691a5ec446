//! The metrics: names, types and help texts as the process renders them, labels from a sample of each family.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use narthex::observe::metrics::{
    ExpositionFormat, KonnectivityAgentMetrics, KonnectivityServerGauges, KonnectivityServerMetrics, Metrics,
    StreamPacketType, StreamSegment,
};

use super::{code, escaped, table};
use crate::source::SourceFile;

/// Families that Kubernetes describes by nothing but their stability.
const WITHOUT_HELP: [(&str, &str); 4] = [
    ("authentication_token_cache_active_fetch_count", "Token lookups that run (in_flight) or wait for one (blocked)."),
    ("authentication_token_cache_fetch_total", "Token lookups that ran, by result."),
    ("authentication_token_cache_request_duration_seconds", "Time of token lookups, by result."),
    ("authentication_token_cache_request_total", "Token lookups, by whether the cache had the answer."),
];

#[derive(Default)]
struct Family {
    kind: String,
    help: String,
    labels: BTreeSet<String>,
}

pub(super) fn regions(sources: &[SourceFile]) -> BTreeMap<String, String> {
    // A unit test holds this file: what the process renders when each family has a sample.
    let golden = std::fs::read_to_string(crate::page::repository().join("src/observe/metrics/golden.txt")).unwrap();
    let mut families = BTreeMap::new();
    add(&golden, &mut families);
    add(&Metrics::new().render(ExpositionFormat::Classic), &mut families);
    let konnectivity = konnectivity_sample();
    add(&konnectivity, &mut families);
    assert_eq!(
        named_in(sources),
        families.keys().cloned().collect(),
        "left: metrics in the sources; right: those with a sample in src/observe/metrics/golden.txt"
    );
    let own = |name: &str| name.starts_with("narthex_");
    let process = |name: &str| name.starts_with("process_");
    let konnectivity = |name: &str| name.starts_with("konnectivity_");
    [
        ("metrics with Kubernetes names", rows(&families, |name| !own(name) && !process(name) && !konnectivity(name))),
        ("metrics of narthex", rows(&families, own)),
        ("metrics of the process", rows(&families, process)),
        ("metrics of Konnectivity", rows(&families, konnectivity)),
    ]
    .map(|(name, text)| (name.to_owned(), text))
    .into()
}

/// What a Konnectivity server and an agent render when each family has a sample.
fn konnectivity_sample() -> String {
    let (server, agent) = (KonnectivityServerMetrics::default(), KonnectivityAgentMetrics::default());
    server.record_dial(Duration::ZERO);
    server.record_frontend_write(Duration::ZERO);
    server.record_connection(Duration::ZERO);
    agent.record_dial(Duration::ZERO);
    for streams in [&server.streams, &agent.streams] {
        streams.record_packet(StreamSegment::ToAgent, StreamPacketType::Data);
        streams.record_error(StreamSegment::ToAgent, "Unavailable");
    }
    for calls in [&server.lease_lists, &server.lease_deletions, &agent.lease_lists, &agent.lease_watches] {
        calls.record(200, Duration::ZERO);
    }
    let gauges = KonnectivityServerGauges { ready_backends: vec![("default", 1)], ..Default::default() };
    let format = ExpositionFormat::Classic;
    server.render(&gauges, format) + &agent.render(format)
}

fn rows(families: &BTreeMap<String, Family>, wanted: impl Fn(&str) -> bool) -> String {
    let rows = families.iter().filter(|(name, _)| wanted(name)).map(|(name, family)| {
        let mut help = family.help.trim().to_owned();
        if let Some((_, words)) = WITHOUT_HELP.iter().find(|(one, _)| one == name) {
            help = format!("{help} {words}");
        }
        assert!(help.rsplit("] ").next().is_some_and(|words| words.len() > 5), "{name} has no help text");
        let labels: Vec<String> = family.labels.iter().map(|label| code(label)).collect();
        vec![code(name), family.kind.clone(), labels.join(", "), escaped(&help)]
    });
    table(&["Metric", "Type", "Labels", "Description"], rows)
}

fn add(text: &str, families: &mut BTreeMap<String, Family>) {
    let mut last = String::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|line| line.split_once(' ')) {
            last = name.to_owned();
            families.entry(last.clone()).or_default().help = help.to_owned();
        } else if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|line| line.split_once(' ')) {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if let Some((_, labels)) = line.split_once('{') {
            let labels = labels.rsplit_once('}').map_or("", |(labels, _)| labels);
            let names = labels.split("=\"").filter_map(|part| part.rsplit([',', '"']).next());
            let names = names.filter(|name| !name.is_empty() && *name != "le");
            families.get_mut(&last).expect("a family before its samples").labels.extend(names.map(str::to_owned));
        }
    }
}

/// The texts below `src/observe/metrics` that look like the name of a family.
fn named_in(sources: &[SourceFile]) -> BTreeSet<String> {
    let files = sources.iter().filter(|file| file.path.starts_with("src/observe/metrics/"));
    let literals = files.flat_map(|file| &file.literals).map(|literal| literal.value.clone());
    let prefixes = [
        "narthex_",
        "apiserver_",
        "aggregator_",
        "authenti",
        "etcd_",
        "leader_election_",
        "process_",
        "konnectivity_",
        "serviceaccount_",
        "workqueue_",
    ];
    let is_name = |text: &String| {
        text.matches('_').count() >= if text.starts_with("authenti") { 1 } else { 2 }
            && prefixes.iter().any(|prefix| text.starts_with(prefix))
            && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit())
            && text != "apiserver_id_hash"
    };
    // These are shorter.
    let short = ["narthex_watches", "workqueue_depth"];
    literals.filter(|text| is_name(text) || short.contains(&text.as_str())).collect()
}
