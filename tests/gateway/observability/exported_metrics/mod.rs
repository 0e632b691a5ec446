//! Metrics of the real programs: dashboard and alerts name exported metrics, and the reference has all of them.

mod backends;
mod proxies;
mod requests;
mod stored_objects;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// Folders of dashboards and alerts, and the ending of their files.
const USERS: [(&str, &str); 2] = [("deploy/grafana", "json"), ("deploy/prometheus", "yaml")];
const REFERENCE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/reference/metrics.md"));

/// First words of metric names that dashboards and alerts may have.
const PREFIXES: [&str; 9] = [
    "aggregator_",
    "apiserver_",
    "authenticated_",
    "authentication_",
    "etcd_",
    "konnectivity_",
    "leader_election_",
    "narthex_",
    "process_",
];

/// Families that need hundreds of clients, and the tests of the real program that see them:
/// `unread_watches_of_large_events_give_memory_back_while_connected`.
const NOT_CAUSED: [&str; 2] = ["apiserver_terminated_watchers_total", "narthex_compute_rejected_total"];

/// A family as exported or documented.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Family {
    kind: String,
    labels: BTreeSet<String>,
}

/// Families by name.
type Families = BTreeMap<String, Family>;

/// Reads what a program serves at `/metrics` in the Prometheus text format.
fn read_exported(text: &str, families: &mut Families) {
    for line in text.lines() {
        let mut words = line.split(' ');
        if let (Some("#"), Some("TYPE"), Some(name), Some(kind)) =
            (words.next(), words.next(), words.next(), words.next())
        {
            families.entry(name.to_owned()).or_default().kind = kind.to_owned();
        }
    }
    for line in text.lines().filter(|line| line.contains('{') && !line.starts_with('#')) {
        let (name, rest) = line.split_once('{').unwrap();
        let name = family_name(name, |name| families.contains_key(name)).unwrap_or_else(|| panic!("no TYPE of {line}"));
        let family = families.get_mut(name).unwrap();
        family.labels.extend(label_names(rest));
        // Of the buckets of histograms, and of all metrics of a control plane.
        family.labels.retain(|label| label != "le" && label != "control_plane");
    }
}

/// The names in `name="value",name="value"} 1`.
fn label_names(mut text: &str) -> Vec<String> {
    let mut names = Vec::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        names.push(name.trim_start_matches(',').to_owned());
        let mut is_escaped = false;
        let end = rest.find(|letter| {
            let is_end = letter == '"' && !is_escaped;
            is_escaped = letter == '\\' && !is_escaped;
            is_end
        });
        text = &rest[end.unwrap() + 1..];
        if text.starts_with('}') {
            break;
        }
    }
    names
}

/// The family of a sample: its name, or for a histogram the name without its ending.
fn family_name(sample: &str, is_known: impl Fn(&str) -> bool) -> Option<&str> {
    let names = ["", "_bucket", "_sum", "_count"].iter().filter_map(|ending| sample.strip_suffix(ending));
    names.into_iter().find(|name| is_known(name))
}

/// The tables of the reference.
fn read_documented() -> Families {
    let mut families = Families::new();
    for line in REFERENCE.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let labels = cells[3].split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        families.insert(cells[1].trim_matches('`').to_owned(), Family { kind: cells[2].to_owned(), labels });
    }
    families
}

/// The files of a folder of the repository with this ending, with their names.
fn read_folder((folder, ending): (&str, &str)) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let files: Vec<_> = files.filter(|path| path.extension().is_some_and(|of| of == ending)).collect();
    assert!(!files.is_empty(), "{}", folder.display());
    files.iter().map(|path| (path.display().to_string(), fs::read_to_string(path).unwrap())).collect()
}

/// Words of `text` that are names of metrics.
fn metrics_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| PREFIXES.iter().any(|prefix| word.len() > prefix.len() && word.starts_with(prefix))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn exported_metrics_are_those_of_dashboard_alerts_and_reference() {
    let mut exported = Families::new();
    let one_process_each = async {
        [
            requests::relay_and_authentication().await,
            requests::webhook_chain().await,
            backends::failing_backends().await,
            backends::cluster_registry().await,
            stored_objects::embedded_api().await,
            stored_objects::full_disk().await,
            proxies::socks5().await,
        ]
    };
    let (konnectivity, texts) = tokio::join!(proxies::konnectivity(), one_process_each);
    for text in texts.iter().chain(&konnectivity) {
        read_exported(text, &mut exported);
    }
    let documented = read_documented();
    let mut problems = Vec::new();
    for (place, text) in USERS.into_iter().flat_map(read_folder) {
        let names = metrics_in(&text);
        assert!(names.len() > 10, "{place}: {names:?}");
        let missing = names.into_iter().filter(|name| family_name(name, |name| exported.contains_key(name)).is_none());
        problems.extend(missing.map(|name| format!("{place}: {name} is not exported")));
    }
    for (name, family) in &exported {
        match documented.get(name) {
            None => problems.push(format!("{name} is not in the reference")),
            Some(known) if known != family => {
                problems.push(format!("{name} is {family:?}, and in the reference {known:?}"));
            }
            Some(_) => {}
        }
    }
    for name in documented.keys() {
        match (exported.contains_key(name), NOT_CAUSED.contains(&name.as_str())) {
            (false, false) => problems.push(format!("{name} of the reference is not exported")),
            (true, true) => problems.push(format!("{name} is exported; remove it from NOT_CAUSED")),
            _ => {}
        }
    }
    assert!(problems.is_empty(), "\n{}", problems.join("\n"));
}
