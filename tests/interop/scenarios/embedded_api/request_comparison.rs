//! The same requests at kube-apiserver and at the embedded API server: the responses are equal, except where the table
//! in `tests/interop/requests/differences.md` says that they differ, and why.

use std::collections::BTreeSet;

use serde_json::Value;

use super::recorder::Recorder;
use super::request_file::{RequestRow, read_requests};
use crate::environment::{Gateway, LIKE_KUBE_APISERVER, TestEnvironment};

/// Compares the responses to the requests of `file`, in a namespace of their own.
pub(super) fn compare_requests(environment: &TestEnvironment, file: &str, name: &str, values: &[(&str, &str)]) {
    let namespace = format!("requests-{name}");
    let values = [&[("namespace", namespace.as_str())], values].concat();
    let rows = read_requests(file, &values);
    let directory = environment.scratch(&namespace);
    let cluster = &environment.cluster;
    let embedded = Gateway::start_embedded_api(cluster, &directory, "embedded", &LIKE_KUBE_APISERVER);
    let document = serde_json::json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    for endpoint in [&cluster.endpoint, &embedded.endpoint] {
        endpoint.create(cluster.admin(), "/api/v1/namespaces", &document);
    }
    let [expected, found] = std::thread::scope(|scope| {
        let recorded = [&cluster.endpoint, &embedded.endpoint].map(|endpoint| {
            let rows = &rows;
            scope.spawn(move || Recorder::new(endpoint, cluster.admin()).record(rows))
        });
        recorded.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let mut known = read_differences(name);
    let mut problems = Vec::new();
    let mut allowed = 0;
    for ((row, expected), found) in rows.iter().zip(&expected).zip(&found) {
        allowed += check(row, expected, found, &mut known, &mut problems);
    }
    println!("{name}: {} requests, {allowed} values differ as the table says", rows.len());
    for unused in known.iter().filter(|difference| !difference.is_used) {
        let Difference { request, path, .. } = unused;
        problems.push((request.clone(), format!("  {path} does not differ any more: remove the row of the table")));
    }
    assert!(
        problems.is_empty(),
        "{file}: {} of {} requests: {} differences\n{}",
        problems.iter().map(|(title, _)| title).collect::<BTreeSet<_>>().len(),
        rows.len(),
        problems.len(),
        problems.iter().map(|(title, text)| format!("### {title}\n{text}\n")).collect::<String>()
    );
}

/// A row of the table of differences.
struct Difference {
    /// Title of a request, or of a section for all its values.
    request: String,
    path: String,
    is_used: bool,
}

/// Reads the rows of the table for the run `name`: run, request, path, reason.
fn read_differences(name: &str) -> Vec<Difference> {
    let table = include_str!("../../requests/differences.md");
    let rows = table.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").map(str::trim).collect();
        let [run, request, path, reason] = cells[..] else { panic!("differences.md: not four cells: {line}") };
        assert!(!reason.is_empty(), "differences.md: no reason: {line}");
        (run == name).then(|| Difference { request: request.to_owned(), path: path.to_owned(), is_used: false })
    });
    rows.collect()
}

/// Compares two responses; returns the number of values that differ as the table says.
fn check(
    row: &RequestRow,
    expected: &Value,
    found: &Value,
    known: &mut [Difference],
    problems: &mut Vec<(String, String)>,
) -> usize {
    let mut differences = Vec::new();
    collect_differences("", expected, found, &mut differences);
    let section = row.title.split(" [").next().unwrap_or_default();
    let mut allowed = 0;
    for (path, expected, found) in differences {
        let is_known = |known: &&mut Difference| {
            (known.request == row.title || known.request == section) && covers(&known.path, &path)
        };
        if let Some(difference) = known.iter_mut().find(is_known) {
            difference.is_used = true;
            allowed += 1;
            continue;
        }
        let request = format!("{} {:.150}", row.method, row.path);
        let text = format!("{request}\n  {path}\n    kube-apiserver {expected}\n    embedded       {found}");
        problems.push((row.title.clone(), text));
    }
    allowed
}

/// Whether `pattern` names the value at `path` or one that it is in.
fn covers(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('.');
    pattern.split('.').all(|wanted| segments.next().is_some_and(|segment| wanted == "*" || wanted == segment))
}

fn collect_differences(path: &str, expected: &Value, found: &Value, differences: &mut Vec<(String, String, String)>) {
    let inner = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => {
            let null = Value::Null;
            let keys: BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
            for key in keys {
                let (expected, found) = (expected.get(key).unwrap_or(&null), found.get(key).unwrap_or(&null));
                collect_differences(&inner(key), expected, found, differences);
            }
        }
        (Value::Array(expected), Value::Array(found)) if expected.len() == found.len() => {
            for (index, (expected, found)) in expected.iter().zip(found).enumerate() {
                collect_differences(&inner(&index.to_string()), expected, found, differences);
            }
        }
        _ if expected == found => {}
        _ => {
            let shortened = |value: &Value| value.to_string().chars().take(900).collect::<String>();
            differences.push((path.to_owned(), shortened(expected), shortened(found)));
        }
    }
}
