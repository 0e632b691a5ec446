//! The same requests at kube-apiserver and at the embedded API server: the responses are equal, except where the table
//! in `tests/interop/requests/differences.md` says that they differ, and why.

use std::collections::BTreeSet;

use serde_json::Value;

use super::kind_requests::kind_requests;
use super::recorder::Recorder;
use super::request_file::{RequestRow, read_requests};
use crate::environment::{Cluster, Gateway, LIKE_KUBE_APISERVER, Process, TestEnvironment, peer};

/// Compares the responses to the requests of `file`, in a namespace of their own.
pub(super) fn compare_requests(environment: &TestEnvironment, file: &str, name: &str, values: &[(&str, &str)]) {
    let directory = environment.scratch(&format!("requests-{name}"));
    let (signing_key, key) = &environment.cluster.authorities.service_account;
    let (signing_key, key) = (signing_key.display().to_string(), key.display().to_string());
    // Tokens as kube-apiserver's.
    let flags = [
        ("--service-account-issuer", "https://kubernetes.default.svc"),
        ("--service-account-signing-key-file", signing_key.as_str()),
        ("--service-account-key-file", key.as_str()),
    ];
    let flags = [&LIKE_KUBE_APISERVER[..], &flags].concat();
    let embedded = Gateway::start_embedded_api(&environment.cluster, &directory, "embedded", &flags);
    compare_responses(&environment.cluster, &embedded, file, name, values);
}

/// As [`compare_requests`], of a kube-apiserver with these controllers of kube-controller-manager and of the embedded API
/// server with its own.
pub(super) fn compare_with_controllers(environment: &TestEnvironment, file: &str, name: &str, controllers: &str) {
    let directory = environment.scratch(&format!("requests-{name}"));
    let cluster = Cluster::start_with(&directory.join("cluster"), &[]);
    let flags = [("--controllers", controllers), ("--disable-admission-plugins", "ServiceAccount")];
    let embedded = Gateway::start_embedded_api(&cluster, &directory, "embedded", &flags);
    let arguments = [
        format!("--kubeconfig={}", cluster.admin_kubeconfig.display()),
        format!("--controllers={controllers}"),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ];
    let program = peer("kube-controller-manager");
    let _manager = Process::start("kube-controller-manager", &program, arguments, &directory);
    compare_responses(&cluster, &embedded, file, name, &[]);
}

/// Sends the requests of a file to both servers in a new namespace.
fn compare_responses(cluster: &Cluster, embedded: &Gateway, file: &str, name: &str, values: &[(&str, &str)]) {
    let namespace = format!("requests-{name}");
    let values = [&[("namespace", namespace.as_str())], values].concat();
    let rows = read_requests(file, &values);
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
    let mut comparison = ResponseComparison::new(name);
    for ((row, expected), found) in rows.iter().zip(&expected).zip(&found) {
        comparison.check(row, expected, found);
    }
    comparison.finish(file);
}

/// Compares the responses to requests about objects of every built-in kind. They have a kube-apiserver of their own: some
/// of the objects change what it does with others.
pub(super) fn compare_kinds(environment: &TestEnvironment) {
    let directory = environment.scratch("requests-kinds");
    let cluster = Cluster::start_with(&directory.join("cluster"), &["--allow-privileged=true".to_owned()]);
    let flags = [&LIKE_KUBE_APISERVER[..], &[("--unenforced-warnings", "false")]].concat();
    let embedded = Gateway::start_embedded_api(&cluster, &directory, "embedded", &flags);
    let mut recorders =
        [&cluster.endpoint, &embedded.endpoint].map(|endpoint| Recorder::new(endpoint, cluster.admin()));
    let mut comparison = ResponseComparison::new("kinds");
    for row in kind_requests() {
        let row = std::slice::from_ref(&row);
        let [mut expected, found] = std::thread::scope(|scope| {
            let recorded = recorders.each_mut().map(|recorder| scope.spawn(move || recorder.record(row)));
            recorded.map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        // kube-apiserver has errors about a Go map in another order each time.
        let is_created = row[0].method == "POST" && expected[0]["status"] == 201;
        if is_created && row[0].path.ends_with("/customresourcedefinitions") {
            // kube-apiserver establishes a definition five seconds after its names are accepted.
            std::thread::sleep(std::time::Duration::from_secs(8));
        }
        if differs_in_order_alone(&expected[0], &found[0]) {
            expected[0]["body"]["details"]["causes"] = found[0]["body"]["details"]["causes"].clone();
            expected[0]["body"]["message"] = found[0]["body"]["message"].clone();
        }
        comparison.check(&row[0], &expected[0], &found[0]);
    }
    comparison.finish("kinds");
}

/// Whether two responses have the same causes, and messages of them, in another order.
fn differs_in_order_alone(first: &Value, second: &Value) -> bool {
    let causes = |response: &Value| -> Vec<String> {
        let causes = response["body"]["details"]["causes"].as_array().into_iter().flatten();
        causes.map(Value::to_string).collect()
    };
    let (mut expected, mut found) = (causes(first), causes(second));
    let is_different = expected != found;
    expected.sort_unstable();
    found.sort_unstable();
    let length = |response: &Value| response["body"]["message"].as_str().map(str::len);
    is_different && expected == found && length(first) == length(second)
}

/// Compares the responses of a run with the table of differences at hand.
struct ResponseComparison {
    name: String,
    known: Vec<Difference>,
    /// Titles of requests, and what differs.
    problems: Vec<(String, String)>,
    /// Number of requests.
    count: usize,
    /// Number of values that differ as the table says.
    allowed: usize,
}

impl ResponseComparison {
    fn new(name: &str) -> ResponseComparison {
        let (problems, count, allowed) = Default::default();
        ResponseComparison { name: name.to_owned(), known: read_differences(name), problems, count, allowed }
    }

    fn check(&mut self, row: &RequestRow, expected: &Value, found: &Value) {
        self.count += 1;
        self.allowed += check(row, expected, found, &mut self.known, &mut self.problems);
    }

    /// Asserts that nothing else differed, and that each row of the table was needed.
    fn finish(mut self, what: &str) {
        println!("{}: {} requests, {} values differ as the table says", self.name, self.count, self.allowed);
        for unused in self.known.iter().filter(|difference| !difference.is_used) {
            let Difference { request, path, .. } = unused;
            let text = format!("  {path} does not differ any more: remove the row of the table");
            self.problems.push((request.clone(), text));
        }
        assert!(
            self.problems.is_empty(),
            "{what}: {} of {} requests: {} differences\n{}",
            self.problems.iter().map(|(title, _)| title).collect::<BTreeSet<_>>().len(),
            self.count,
            self.problems.len(),
            self.problems.iter().map(|(title, text)| format!("### {title}\n{text}\n")).collect::<String>()
        );
    }
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
    match expected["status"] == found["status"] {
        true => collect_differences("", expected, found, &mut differences),
        // One difference for a Status beside an object.
        false => {
            for field in ["status", "headers", "body"] {
                match field {
                    "body" if expected["body"] != found["body"] => {
                        let shown =
                            |value: &Value| value["message"].as_str().map_or_else(|| shortened(value), shortened_text);
                        differences.push(("body".to_owned(), shown(&expected["body"]), shown(&found["body"])));
                    }
                    "body" => {}
                    field => collect_differences(field, &expected[field], &found[field], &mut differences),
                }
            }
        }
    }
    let section = row.title.split(" [").next().unwrap_or_default();
    let mut allowed = 0;
    for (path, expected, found) in differences {
        let is_known = |known: &&mut Difference| {
            (known.request == row.title || known.request == section || is_glob_match(&known.request, &row.title))
                && covers(&known.path, &path)
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

/// Whether a pattern with stars, each of which stands for any text, fits a title.
fn is_glob_match(pattern: &str, title: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = title.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    last.is_some_and(|last| last.is_empty() || title.ends_with(last))
}

/// JSON that is not too long for the list of differences.
fn shortened(value: &Value) -> String {
    shortened_text(&value.to_string())
}

fn shortened_text(text: &str) -> String {
    text.chars().take(900).collect()
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
            differences.push((path.to_owned(), shortened(expected), shortened(found)));
        }
    }
}
