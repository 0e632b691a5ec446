//! The registry directory, changed while the gateway runs: changes apply at once and no request is lost.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::assert_refused::retry_after_seconds;
use crate::support::backend::{
    Backend, BackendSettings, BodyWriter, data_frame, json_response, start_scripted_backend, streamed_response,
};
use crate::support::client::{Client, admin_request, get, metric_value, next_chunk};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually, run_narthex};

const THINGS: &str = "/apis/things.example.com/v1/namespaces/default/things";
const PARTS: &str = "/apis/parts.example.com/v1/namespaces/default/parts";

/// A backend that answers its own name.
async fn start_named_backend(environment: &TestEnvironment, settings: BackendSettings, name: &'static str) -> Backend {
    Backend::start(environment, settings, async move |_| json_response(200, name)).await
}

fn parts_settings() -> BackendSettings {
    BackendSettings { names: vec!["parts-v1.parts.svc"], ..BackendSettings::default() }
}

/// Opens a watch and says its first event.
async fn open_watch(
    client: &Client,
    writers: &mut tokio::sync::mpsc::UnboundedReceiver<BodyWriter>,
) -> (hyper::body::Incoming, BodyWriter) {
    let client = client.clone();
    let pending = tokio::spawn(async move { client.send(get(&format!("{THINGS}?watch=1"), &[])).await.unwrap() });
    let writer = writers.recv().await.unwrap();
    writer.send(data_frame("first\n")).unwrap();
    let mut body = pending.await.unwrap().into_body();
    assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "first\n");
    (body, writer)
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_apiservices_added_changed_and_removed_under_load() {
    let environment = Arc::new(TestEnvironment::new());
    let (send, mut writers) = tokio::sync::mpsc::unbounded_channel();
    let things = Backend::start(&environment, BackendSettings::default(), move |request| {
        let response = if request.uri().query().is_some_and(|query| query.contains("watch=1")) {
            let (sender, response) = streamed_response(200);
            send.send(sender).unwrap();
            response
        } else {
            json_response(200, "{}")
        };
        async { response }
    })
    .await;
    let others = start_named_backend(&environment, parts_settings(), "parts").await;
    environment.register_apiservice("things.example.com", "v1", &[&things]);
    let gateway = Arc::new(environment.start_gateway(&[]));
    let jane = environment.issue_user("jane", &[]);
    let watching = [
        Client::http1(&environment, &gateway, Some(&jane)).await,
        Client::http2(&environment, &gateway, Some(&jane)).await,
    ];
    let mut watches = Vec::new();
    for client in &watching {
        watches.push(open_watch(client, &mut writers).await);
    }

    let (recorded, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let mut load = tokio::task::JoinSet::new();
    for number in 0..4 {
        let client = if number % 2 == 0 {
            Client::http1(&environment, &gateway, Some(&jane)).await
        } else {
            Client::http2(&environment, &gateway, Some(&jane)).await
        };
        let (recorded, stop) = (recorded.clone(), stop.clone());
        load.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let response = client.get(THINGS).await;
                assert_eq!((response.status.as_u16(), response.text().as_str()), (200, "{}"));
                recorded.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let more = async || {
        let now = recorded.load(Ordering::Relaxed);
        eventually("more requests", async || (recorded.load(Ordering::Relaxed) > now + 20).then_some(())).await;
    };
    more().await;

    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    let absent = client.get(PARTS).await.assert_failure(404, "NotFound");
    assert_eq!(absent["details"]["causes"][0]["reason"], "NoAPIService", "{absent}");
    for round in 0..2 {
        // It comes.
        environment.register_apiservice("parts.example.com", "v1", &[&others]);
        eventually("parts", async || (client.get(PARTS).await.status == 200).then_some(())).await;
        // What runs is changed.
        let annotated = environment.apiservice_manifests(
            "things.example.com",
            "v1",
            &[things.address],
            &format!("  annotations: {{narthex.dev/request-timeout: {}s}}", 20 + round),
        );
        environment.write_registry("v1.things.example.com.yaml", &annotated);
        more().await;
        // It goes.
        std::fs::remove_file(environment.path("registry/v1.parts.example.com.yaml")).unwrap();
        let gone = eventually("parts to go", async || {
            let response = client.get(PARTS).await;
            (response.status != 200).then_some(response)
        })
        .await
        .assert_failure(404, "NotFound");
        let cause = &gone["details"]["causes"][0];
        assert_eq!(cause["reason"], "NoAPIService");
        assert!(cause["message"].as_str().unwrap().contains("no APIService claims parts.example.com/v1"), "{cause}");
        more().await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = load.join_next().await {
        ended.expect("no request is dropped");
    }
    for (mut body, writer) in watches {
        writer.send(data_frame("later\n")).unwrap();
        assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "later\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_endpoint_change_moves_requests_and_keeps_watches() {
    let environment = TestEnvironment::new();
    for settings in [BackendSettings::http1(), BackendSettings::http2()] {
        let (old, mut writers) = start_scripted_backend(&environment, settings.clone()).await;
        let new = start_named_backend(&environment, settings, "new").await;
        environment.register_apiservice("things.example.com", "v1", &[&old]);
        let gateway = environment.start_gateway(&[]);
        let jane = environment.issue_user("jane", &[]);
        let client = Client::http2(&environment, &gateway, Some(&jane)).await;
        let (mut body, writer) = open_watch(&client, &mut writers).await;
        environment.register_apiservice("things.example.com", "v1", &[&new]);
        eventually("the new endpoint to be asked", async || {
            let pending = client.get(THINGS);
            tokio::pin!(pending);
            tokio::select! {
                response = &mut pending => (response.text() == "new").then_some(()),
                // It still went to the old one.
                writer = writers.recv() => {
                    drop(writer);
                    pending.await;
                    None
                }
            }
        })
        .await;
        writer.send(data_frame("later\n")).unwrap();
        assert_eq!(next_chunk(&mut body).await.unwrap().unwrap(), "later\n");
        drop(writer);
        assert!(next_chunk(&mut body).await.is_none(), "the watch ends when its backend ends it");
        assert_eq!(client.get(THINGS).await.text(), "new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_invalid_file_keeps_last_good_state_and_is_reported() {
    let environment = TestEnvironment::new();
    let things = start_named_backend(&environment, BackendSettings::default(), "things").await;
    let others = start_named_backend(&environment, parts_settings(), "parts").await;
    environment.register_apiservice("things.example.com", "v1", &[&things]);
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.text(), "things");

    let file = "v1.things.example.com.yaml";
    let good = environment.read_file(&format!("registry/{file}"));
    environment.write_registry(file, &good.replace("groupPriorityMinimum: 1000", "groupPriorityMinimum: many"));
    let output_text = gateway.wait_for_log(&["registry:", file, "groupPriorityMinimum"]).await;
    assert!(output_text.contains("WARN"), "{output_text}");
    let count = async |file: &str, wanted: f64| {
        let path = environment.path(&format!("registry/{file}"));
        let errors = format!("narthex_registry_errors{{source=\"{}\"}}", path.display());
        eventually(&errors, async || (metric_value(&gateway, &errors).await? == wanted).then_some(())).await
    };
    count(file, 1.0).await;
    assert_eq!(client.get(THINGS).await.text(), "things");
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    let problems = report["registryProblems"].as_array().unwrap();
    assert_eq!(problems.len(), 1, "{report}");
    assert!(problems[0].as_str().unwrap().contains("groupPriorityMinimum"), "{report}");
    let page = admin_request(&gateway, get("/", &[])).await.text();
    assert!(page.contains(file) && page.contains("groupPriorityMinimum"), "{page}");
    let shown = run_narthex(&["status".to_owned(), format!("--admin-address={}", gateway.admin)]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains(file) && shown.contains("groupPriorityMinimum"), "{shown}");

    // Others are not held up by it.
    environment.register_apiservice("parts.example.com", "v1", &[&others]);
    eventually("parts", async || (client.get(PARTS).await.text() == "parts").then_some(())).await;
    assert_eq!(client.get(THINGS).await.text(), "things");

    // A file that is no YAML at all, and the mending of both.
    environment.write_registry("broken.yaml", "kind: [\n");
    gateway.wait_for_log(&["registry:", "broken.yaml"]).await;
    count("broken.yaml", 1.0).await;
    environment.write_registry(file, &good);
    std::fs::remove_file(environment.path("registry/broken.yaml")).unwrap();
    gateway.wait_for_log(&["all errors are fixed"]).await;
    count(file, 0.0).await;
    count("broken.yaml", 0.0).await;
    eventually("no problems", async || {
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        (report["registryProblems"] == serde_json::json!([])).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_missing_service_or_endpoints_reported() {
    let environment = TestEnvironment::new();
    let things = start_named_backend(&environment, BackendSettings::default(), "things").await;
    environment.register_apiservice("things.example.com", "v1", &[&things]);
    let all = environment.read_file("registry/v1.things.example.com.yaml");
    let documents: Vec<&str> = all.split("---\n").collect();
    let (api_service, service) = (documents[0], documents[1]);
    let unready = documents[2].replace("ready: true", "ready: false");
    let other_port = documents[2].replace("name: https", "name: other");
    let cases = [
        (vec![api_service], "ServiceNotFound"),
        (vec![api_service, service, &unready], "MissingEndpoints"),
        (vec![api_service, service, &other_port], "MissingEndpoints"),
    ];
    environment.write_registry("v1.things.example.com.yaml", api_service);
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let clients = [
        Client::http1(&environment, &gateway, Some(&jane)).await,
        Client::http2(&environment, &gateway, Some(&jane)).await,
    ];
    for (documents, reason) in cases {
        environment.write_registry("v1.things.example.com.yaml", &documents.join("---\n"));
        for client in &clients {
            let response = eventually(reason, async || {
                let response = client.get(THINGS).await;
                response.text().contains(reason).then_some(response)
            })
            .await;
            let status = response.assert_failure(503, "ServiceUnavailable");
            assert_eq!(status["details"]["causes"][0]["reason"], reason, "{status}");
            assert!(status["message"].as_str().unwrap().contains("v1.things.example.com"), "{status}");
            assert!(retry_after_seconds(&response).is_some());
            assert!(!response.text().contains("127.0.0.1"), "{status}");
        }
    }
    environment.write_registry("v1.things.example.com.yaml", &all);
    eventually("things", async || (clients[0].get(THINGS).await.text() == "things").then_some(())).await;
}

/// A mounted ConfigMap: files are links through `..data`, which is swapped by a rename.
#[tokio::test(flavor = "multi_thread")]
async fn registry_mounted_configmap_reloaded() {
    let environment = TestEnvironment::new();
    let (one, two) = (
        start_named_backend(&environment, BackendSettings::default(), "one").await,
        start_named_backend(&environment, BackendSettings::default(), "two").await,
    );
    let registry = environment.path("registry");
    let mount = |version: &str, backend: &Backend| {
        let folder = registry.join(version);
        std::fs::create_dir(&folder).unwrap();
        let text = environment.apiservice_manifests("things.example.com", "v1", &[backend.address], "");
        std::fs::write(folder.join("things.yaml"), text).unwrap();
        let _ = std::fs::remove_file(registry.join("..data_tmp"));
        symlink(version, registry.join("..data_tmp")).unwrap();
        std::fs::rename(registry.join("..data_tmp"), registry.join("..data")).unwrap();
    };
    mount("..2026_01", &one);
    symlink(Path::new("..data/things.yaml"), registry.join("things.yaml")).unwrap();
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.text(), "one");
    mount("..2026_02", &two);
    std::fs::remove_dir_all(registry.join("..2026_01")).unwrap();
    eventually("the new state", async || (client.get(THINGS).await.text() == "two").then_some(())).await;
    mount("..2026_03", &one);
    std::fs::remove_dir_all(registry.join("..2026_02")).unwrap();
    eventually("the newest state", async || (client.get(THINGS).await.text() == "one").then_some(())).await;
    assert_eq!(
        admin_request(&gateway, get("/status.json", &[])).await.json()["registryProblems"],
        serde_json::json!([])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_ordered_by_group_and_version_priority() {
    let environment = TestEnvironment::new();
    let local = |group: &str, version: &str, minimum: u32, priority: u32| {
        let text = format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {version}.{group}}}\nspec:\n  \
             group: {group}\n  version: {version}\n  groupPriorityMinimum: {minimum}\n  versionPriority: {priority}\n  \
             insecureSkipTLSVerify: true\n  service: {{namespace: a, name: a}}\n"
        );
        environment.write_registry(&format!("{version}.{group}.yaml"), &text);
    };
    local("b.example.com", "v1", 100, 10);
    local("a.example.com", "v1", 100, 10);
    local("z.example.com", "v1beta1", 200, 5);
    local("z.example.com", "v1", 50, 5);
    local("z.example.com", "v2alpha1", 50, 20);
    local("z.example.com", "v2", 50, 5);
    local("z.example.com", "v10", 50, 5);
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    let order = async || {
        let list = client.get("/apis").await.json();
        let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
        let groups = list["groups"].as_array().unwrap().iter().map(|group| {
            assert_eq!(group["preferredVersion"], group["versions"][0]);
            let versions: Vec<_> = group["versions"].as_array().unwrap().iter().map(|v| text(&v["version"])).collect();
            format!("{}: {}", text(&group["name"]), versions.join(" "))
        });
        groups.collect::<Vec<_>>()
    };
    let wanted = |rest: &[&str]| {
        let mut all = vec!["apiregistration.k8s.io: v1".to_owned()];
        let questions = ["authentication.k8s.io: v1", "authorization.k8s.io: v1"];
        all.extend(rest.iter().chain(&questions).map(|one| (*one).to_owned()));
        all
    };
    let first = wanted(&["z.example.com: v2alpha1 v10 v2 v1 v1beta1", "a.example.com: v1", "b.example.com: v1"]);
    eventually("the order", async || (order().await == first).then_some(())).await;
    local("b.example.com", "v1", 300, 10);
    local("z.example.com", "v1", 50, 30);
    let then = wanted(&["b.example.com: v1", "z.example.com: v1 v2alpha1 v10 v2 v1beta1", "a.example.com: v1"]);
    eventually("the new order", async || (order().await == then).then_some(())).await;
    // The group's priority was that of the version that goes.
    std::fs::remove_file(environment.path("registry/v1beta1.z.example.com.yaml")).unwrap();
    let last = wanted(&["b.example.com: v1", "a.example.com: v1", "z.example.com: v1 v2alpha1 v10 v2"]);
    eventually("the last order", async || (order().await == last).then_some(())).await;
}

/// Tools that replace a whole folder at once.
#[tokio::test(flavor = "multi_thread")]
async fn registry_replaced_directory_reloaded() {
    let environment = TestEnvironment::new();
    let (one, two) = (
        start_named_backend(&environment, BackendSettings::default(), "one").await,
        start_named_backend(&environment, BackendSettings::default(), "two").await,
    );
    let registry = environment.path("registry");
    environment.register_apiservice("things.example.com", "v1", &[&one]);
    let gateway = environment.start_gateway(&[]);
    let jane = environment.issue_user("jane", &[]);
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    assert_eq!(client.get(THINGS).await.text(), "one");
    std::fs::rename(&registry, environment.path("away")).unwrap();
    // Gone is a mistake, not an empty registry.
    eventually("the mistake to show", async || {
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        (report["registryProblems"] != serde_json::json!([])).then_some(())
    })
    .await;
    assert_eq!(client.get(THINGS).await.text(), "one");
    std::fs::create_dir(&registry).unwrap();
    environment.register_apiservice("things.example.com", "v1", &[&two]);
    eventually("the new directory", async || (client.get(THINGS).await.text() == "two").then_some(())).await;
    environment.register_apiservice("things.example.com", "v1", &[&one]);
    eventually("a change in it", async || (client.get(THINGS).await.text() == "one").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn registry_last_good_state_served_when_a_file_is_broken_at_start() {
    let environment = TestEnvironment::new();
    let things = start_named_backend(&environment, BackendSettings::default(), "things").await;
    let others = start_named_backend(&environment, parts_settings(), "parts").await;
    environment.register_apiservice("things.example.com", "v1", &[&things]);
    environment.register_apiservice("parts.example.com", "v1", &[&others]);
    let file = "v1.things.example.com.yaml";
    let good = environment.read_file(&format!("registry/{file}"));
    let broken = good.replace("groupPriorityMinimum: 1000", "groupPriorityMinimum: many");
    let refused = |command: &[&str], more: &[&str]| {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let output = run_narthex(&[command, environment.gateway_arguments(more)].concat());
        assert_eq!(output.status.code(), Some(1));
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(message.contains(file) && message.contains("groupPriorityMinimum"), "{message}");
    };
    let jane = environment.issue_user("jane", &[]);
    let recorded = async |gateway: &GatewayProcess, path: &str| {
        let client = Client::http2(&environment, gateway, Some(&jane)).await;
        eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
        client.get(path).await.text()
    };
    let saved = || std::fs::read_dir(environment.path("data/last-good-registry")).map_or(0, |entries| entries.count());

    // At a first start nothing is known, and of one that fails nothing is remembered.
    environment.write_registry(file, &broken);
    refused(&["gateway"], &[]);
    refused(&["gateway"], &[]);
    environment.write_registry(file, &good);
    let mut gateway = environment.start_gateway(&[]);
    eventually("both files to be saved", async || (saved() == 2).then_some(())).await;
    // Saved as it was when it was last right, by the process that read it.
    let later = good.replace("groupPriorityMinimum: 1000", "groupPriorityMinimum: 1001");
    environment.write_registry(file, &later);
    let holds = |text: &str| {
        let mut entries = std::fs::read_dir(environment.path("data/last-good-registry")).unwrap();
        entries.any(|entry| std::fs::read_to_string(entry.unwrap().path()).is_ok_and(|saved| saved.contains(text)))
    };
    eventually("the change to be saved", async || holds("groupPriorityMinimum: 1001").then_some(())).await;
    gateway.signal("TERM");
    gateway.wait_for_exit().await;

    environment.write_registry(file, &broken);
    for strict in [&["check", "gateway"][..], &["gateway"]] {
        refused(strict, &["--registry-strict"]);
    }
    refused(&["check", "gateway"], &[]);
    let another = format!("--data-dir={}", environment.path("another").display());
    refused(&["gateway"], &[&another]);
    let mut gateway = environment.start_gateway(&[]);
    assert_eq!(recorded(&gateway, THINGS).await, "things");
    assert_eq!(recorded(&gateway, PARTS).await, "parts");
    let output_text = gateway.wait_for_log(&["registry:", file, "groupPriorityMinimum", "last good state"]).await;
    assert!(output_text.contains("WARN"), "{output_text}");
    let problems = async |gateway: &GatewayProcess| {
        admin_request(gateway, get("/status.json", &[])).await.json()["registryProblems"].as_array().unwrap().len()
    };
    assert_eq!(problems(&gateway).await, 1);

    // The broken file is followed, and stays remembered over another start.
    gateway.signal("TERM");
    gateway.wait_for_exit().await;
    let gateway = environment.start_gateway(&[]);
    assert_eq!(recorded(&gateway, THINGS).await, "things");
    std::fs::remove_file(environment.path(&format!("registry/{file}"))).unwrap();
    eventually("the mistake to be gone", async || (problems(&gateway).await == 0).then_some(())).await;
    let client = Client::http2(&environment, &gateway, Some(&jane)).await;
    client.get(THINGS).await.assert_failure(404, "NotFound");
    eventually("one file to be saved", async || (saved() == 1).then_some(())).await;
}
