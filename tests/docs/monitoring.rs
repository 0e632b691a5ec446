//! Alerts and dashboard in `deploy/` use metrics and labels of the reference, which is made from the code; each alert has a
//! section in the runbook.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::page::{Page, repository};

const RULES: &str = "deploy/prometheus/narthex.rules.yaml";
const DASHBOARD: &str = "deploy/grafana/narthex.json";
/// Labels that Prometheus adds, that of control planes, and that of buckets.
const COMMON_LABELS: [&str; 4] = ["job", "instance", "control_plane", "le"];

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

fn alerts() -> Vec<Value> {
    let rules: Value = serde_saphyr::from_str(&read(RULES)).unwrap();
    rules["groups"][0]["rules"].as_array().unwrap().clone()
}

/// The expressions of the alerts and of the dashboard's panels, with where they are.
fn expressions() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut all: Vec<_> = alerts().iter().map(|alert| (text(&alert["alert"]), text(&alert["expr"]))).collect();
    let dashboard: Value = serde_json::from_str(&read(DASHBOARD)).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().into_iter().flatten() {
            all.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    all
}

/// Metrics of the reference with their labels; of a histogram also its series.
fn documented_metrics() -> BTreeMap<String, BTreeSet<String>> {
    let mut metrics = BTreeMap::new();
    for line in Page::read("docs/reference/metrics.md").text.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let name = cells[1].trim_matches('`');
        let labels: BTreeSet<String> = words(cells[3]).into_iter().collect();
        for suffix in if cells[2] == "histogram" { &["_bucket", "_sum", "_count"][..] } else { &[""] } {
            metrics.insert(format!("{name}{suffix}"), labels.clone());
        }
    }
    metrics
}

fn words(text: &str) -> Vec<String> {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    parts.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The metrics that an expression names.
fn metrics_in<'m>(expression: &str, documented: &'m BTreeMap<String, BTreeSet<String>>) -> Vec<&'m String> {
    let words = words(expression);
    documented.keys().filter(|name| words.contains(name)).collect()
}

/// Words that look like a metric of this process or of kube-apiserver.
fn looks_like_metric(word: &str) -> bool {
    let prefixes = [
        "narthex_",
        "konnectivity_",
        "apiserver_",
        "aggregator_",
        "etcd_",
        "process_",
        "authentication_",
        "leader_election_",
    ];
    prefixes.iter().any(|prefix| word.starts_with(prefix))
}

/// The labels that an expression selects by or groups by.
fn labels_in(expression: &str) -> BTreeSet<String> {
    let mut labels = BTreeSet::new();
    for part in expression.split('{').skip(1) {
        let selectors = part.split('}').next().unwrap();
        for selector in selectors.split("\",").filter(|selector| selector.contains('=')) {
            let name = selector.split(['=', '!']).next().unwrap();
            labels.extend(words(name));
        }
    }
    for part in expression.split("by (").skip(1) {
        labels.extend(words(part.split(')').next().unwrap()));
    }
    labels
}

#[test]
fn alerts_and_dashboard_use_documented_metrics_and_labels() {
    let documented = documented_metrics();
    assert!(documented.len() > 80, "{}", documented.len());
    let expressions = expressions();
    assert!(expressions.len() > 40, "{}", expressions.len());
    let mut wrong = Vec::new();
    for (place, expression) in expressions {
        let used = metrics_in(&expression, &documented);
        let unknown =
            words(&expression).into_iter().filter(|word| looks_like_metric(word) && !documented.contains_key(word));
        wrong.extend(unknown.map(|word| format!("{place}: no metric {word}")));
        if used.is_empty() && !expression.contains("up{") {
            wrong.push(format!("{place}: no metric of ours in {expression}"));
        }
        let known = |label: &String| {
            COMMON_LABELS.contains(&label.as_str()) || used.iter().any(|metric| documented[*metric].contains(label))
        };
        wrong.extend(
            labels_in(&expression)
                .iter()
                .filter(|label| !known(label))
                .map(|label| format!("{place}: no label {label}")),
        );
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn each_alert_has_a_section_in_the_runbook() {
    let runbook = Page::read("docs/operations/runbook.md");
    let mut sections: BTreeSet<String> =
        runbook.anchors().into_iter().filter(|anchor| anchor.starts_with("narthex")).collect();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let anchor = name.to_lowercase();
        assert_eq!(alert["annotations"]["runbook_url"], format!("docs/operations/runbook.md#{anchor}"), "{name}");
        assert!(sections.remove(&anchor), "{name} has no section");
    }
    assert!(sections.is_empty(), "sections without an alert: {sections:?}");
}

/// The tests of the rules have each alert fire, and each is silent in the first of them.
#[test]
fn each_alert_fires_in_a_test_of_the_rules() {
    let tests: Value = serde_saphyr::from_str(&read("deploy/prometheus/narthex.rules.test.yaml")).unwrap();
    let tests = tests["tests"].as_array().unwrap();
    let names = |tests: &[Value], fires: bool| -> BTreeSet<String> {
        let rules = tests.iter().flat_map(|test| test["alert_rule_test"].as_array().unwrap());
        let rules = rules.filter(|rule| rule["exp_alerts"].as_array().unwrap().is_empty() != fires);
        rules.map(|rule| rule["alertname"].as_str().unwrap().to_owned()).collect()
    };
    let alerts: BTreeSet<String> = alerts().iter().map(|alert| alert["alert"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names(&tests[..1], false), alerts);
    assert_eq!(names(tests, true), alerts);
}
