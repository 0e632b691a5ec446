//! Watches.

use super::Scenario;
use crate::environment::Session;

pub(super) const SCENARIOS: &[(&str, Scenario)] = &[
    ("watch: get -w", get_and_watch),
    ("watch: get --watch-only", watch_only),
    ("watch: timeoutSeconds ends the stream", watch_that_ends),
    ("watch: long watch beside other requests", long_watch_beside_traffic),
];

fn create(session: &mut Session<'_>, name: &str) {
    let document = serde_json::json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "Flunder",
        "metadata": {"name": name}, "spec": {"reference": "x"},
    });
    session.with_input("create -f -", &document).ok();
}

fn get_and_watch(session: &mut Session<'_>) {
    create(session, "first");
    let mut watch = session.stream("get flunders -w --output-watch-events");
    let added = watch.line_with("first");
    assert!(added.starts_with("ADDED"), "{added}");
    create(session, "second");
    assert!(watch.line_with("second").starts_with("ADDED"));
    session.kubectl("label flunder second seen=yes").ok();
    assert!(watch.line_with("second").starts_with("MODIFIED"));
    session.kubectl("delete flunder second").ok();
    assert!(watch.line_with("second").starts_with("DELETED"));
    assert!(watch.is_running());
}

fn watch_only(session: &mut Session<'_>) {
    create(session, "before");
    let version = session.run_unrecorded("get flunder before -o jsonpath={.metadata.resourceVersion}");
    // From a resource version on, so that no event is lost between list and watch.
    let path = format!(
        "/apis/wardle.example.com/v1beta1/namespaces/{}/flunders?watch=1&allowWatchBookmarks=true&resourceVersion={}",
        session.namespace,
        version.ok()
    );
    create(session, "after");
    let mut watch = session.stream(&format!("get --raw {path}"));
    let event: serde_json::Value = serde_json::from_str(&watch.line_with("ADDED")).unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "after");
    assert_eq!(event["object"]["apiVersion"], "wardle.example.com/v1beta1");
}

fn watch_that_ends(session: &mut Session<'_>) {
    create(session, "only");
    let path = format!("/apis/wardle.example.com/v1alpha1/namespaces/{}/flunders", session.namespace);
    // The server's timeout ends the stream cleanly; kubectl must not report an error.
    let step = session.kubectl(&format!("get --raw {path}?watch=1&timeoutSeconds=1"));
    assert!(step.ok().contains("\"ADDED\""), "{}", step.output);
}

fn long_watch_beside_traffic(session: &mut Session<'_>) {
    let mut watches: Vec<_> = (0..3).map(|_| session.stream("get flunders -w -o name")).collect();
    create(session, "start");
    for watch in &mut watches {
        watch.line_with("flunder.wardle.example.com/start");
    }
    for round in 0..10 {
        create(session, &format!("busy-{round}"));
        session.kubectl("get flunders -o name").ok();
        session.kubectl(&format!("delete flunder busy-{round}")).ok();
    }
    create(session, "end");
    for watch in &mut watches {
        watch.line_with("flunder.wardle.example.com/end");
        assert!(watch.is_running());
    }
}
