//! Disk cache of backends' documents across restarts.

use std::io::{BufRead as _, BufReader};

use base64::Engine as _;
use flate2::read::GzDecoder;
use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response as response};
use crate::support::client::{Client, admin_request, get};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const APISERVICE: &str = "v1.things.example.com";
const KINDS: [&str; 3] = ["discovery", "openapi-v2", "openapi-v3"];

fn things_response(path: &str) -> BackendResponse {
    let key = "apis/things.example.com/v1";
    match path {
        "/apis/things.example.com/v1" => response(
            200,
            r#"{"kind":"APIResourceList","groupVersion":"things.example.com/v1","resources":[
                {"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list"]}]}"#,
        ),
        "/openapi/v2" => response(
            200,
            r#"{"swagger":"2.0","info":{"title":"things","version":"1"},"paths":{"/apis/things.example.com/v1/things":{}}}"#,
        ),
        "/openapi/v3" => {
            let url = format!("/openapi/v3/{key}?hash=ABC123");
            response(200, &json!({"paths": {key: {"serverRelativeURL": url}}}).to_string())
        }
        _ => response(404, "{}"),
    }
}

async fn start_backend(environment: &TestEnvironment) -> Backend {
    let settings = BackendSettings { handles_probes: true, ..BackendSettings::default() };
    let backend = Backend::start(environment, settings, async |request| things_response(request.uri().path())).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    backend
}

async fn connect_as_jane(environment: &TestEnvironment, gateway: &GatewayProcess) -> Client {
    Client::http2(environment, gateway, Some(&environment.issue_user("jane", &[]))).await
}

/// Freshness and resources of the group in discovery, whether OpenAPI v3 lists it, and whether v2 describes it.
async fn observed_documents(client: &Client) -> (String, usize, bool, bool) {
    let discovery = client.send_and_read(get("/apis", &[("accept", V2)])).await.json();
    let its = |item: &&Value| item["metadata"]["name"] == "things.example.com";
    let version = discovery["items"].as_array().unwrap().iter().find(its).map(|item| item["versions"][0].clone());
    let version = version.unwrap_or_default();
    (
        version["freshness"].as_str().unwrap_or_default().to_owned(),
        version["resources"].as_array().map_or(0, Vec::len),
        client.get("/openapi/v3").await.text().contains("v1?hash=ABC123"),
        client.get("/openapi/v2").await.text().contains("/apis/things.example.com/v1/things"),
    )
}

/// Waits until what was kept is served.
async fn wait_for_cached_documents(client: &Client) {
    eventually("what was kept to be read", async || {
        (observed_documents(client).await == ("Stale".into(), 1, true, true)).then_some(())
    })
    .await;
}

/// An environment with cached documents; gateway and backend have stopped.
async fn environment_with_cached_documents() -> TestEnvironment {
    let environment = TestEnvironment::new();
    let backend = start_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    eventually("all to be known", async || {
        let kept = KINDS.iter().all(|kind| cache_file(&environment, kind).exists());
        (observed_documents(&client).await == ("Current".into(), 1, true, true) && kept).then_some(())
    })
    .await;
    backend.stop().await;
    environment
}

/// The first line of what is kept; empty if nothing is.
fn cache_file_header(environment: &TestEnvironment, kind: &str) -> String {
    let mut line = String::new();
    if let Ok(file) = std::fs::File::open(cache_file(environment, kind)) {
        let _ = BufReader::new(GzDecoder::new(file)).read_line(&mut line);
    }
    line
}

fn cache_file(environment: &TestEnvironment, kind: &str) -> std::path::PathBuf {
    environment.path("data/last-good").join(kind).join(format!("{APISERVICE}.gz"))
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_served_after_restart_while_backend_is_down() {
    let environment = environment_with_cached_documents().await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_cached_documents(&client).await;
    // And so it stays when the backend was asked in vain.
    gateway.wait_for_log(&["APIService is not available", APISERVICE, "ConnectionRefused"]).await;
    eventually("discovery to fail", async || {
        let report = admin_request(&gateway, get("/status.json", &[])).await.json();
        (report["apiservices"][0]["discovery"]["problem"] != "").then_some(())
    })
    .await;
    assert_eq!(observed_documents(&client).await, ("Stale".into(), 1, true, true));
    let _back = start_backend(&environment).await;
    eventually("it to be current", async || (observed_documents(&client).await.0 == "Current").then_some(())).await;
}

/// A disk that does not respond: here a FIFO without a writer. Routes, probes and discovery are not affected.
#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_hang_does_not_block_start() {
    let environment = environment_with_cached_documents().await;
    for kind in ["discovery", "openapi-v3"] {
        let file = cache_file(&environment, kind);
        std::fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
    }
    let _back = start_backend(&environment).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    eventually("it to be current", async || {
        let (freshness, resources, openapi, _) = observed_documents(&client).await;
        ((freshness.as_str(), resources, openapi) == ("Current", 1, true)).then_some(())
    })
    .await;
    // Something else is registered, and found.
    let settings = BackendSettings { names: vec!["others-v1.others.svc"], ..BackendSettings::default() };
    let others = Backend::start(&environment, settings, async |_| response(200, "{}")).await;
    environment.register_apiservice("others.example.com", "v1", &[&others]);
    eventually("the other to be served", async || {
        let recorded = client.get("/apis/others.example.com/v1/namespaces/default/things").await;
        (recorded.status == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_of_other_backend_ignored() {
    let environment = environment_with_cached_documents().await;
    let text = environment.read_file(&format!("registry/{APISERVICE}.yaml"));
    let annotated =
        text.replacen("metadata:\n", "metadata:\n  annotations: {narthex.dev/server-name: things.elsewhere}\n", 1);
    assert_ne!(text, annotated);
    environment.write_registry(&format!("{APISERVICE}.yaml"), &annotated);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    gateway.wait_for_log(&["cached document ignored: saved for a different backend", "/discovery/"]).await;
    gateway.wait_for_log(&["cached document ignored: saved for a different backend", "/openapi-v3/"]).await;
    assert_eq!(observed_documents(&client).await, ("Stale".into(), 0, false, false));
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_kept_after_ca_rotation() {
    let environment = environment_with_cached_documents().await;
    let text = environment.read_file(&format!("registry/{APISERVICE}.yaml"));
    let before = base64::engine::general_purpose::STANDARD.encode(environment.read_file("backend-ca.crt"));
    let both = [environment.read_file("backend-ca.crt"), environment.read_file("requestheader-ca.crt")].concat();
    let rotated = text.replace(&before, &base64::engine::general_purpose::STANDARD.encode(both));
    assert_ne!(text, rotated);
    environment.write_registry(&format!("{APISERVICE}.yaml"), &rotated);
    let gateway = environment.start_gateway(&[]);
    wait_for_cached_documents(&connect_as_jane(&environment, &gateway).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_rewritten_when_backend_moves_with_same_documents() {
    let environment = TestEnvironment::new();
    let settings = BackendSettings {
        handles_probes: true,
        names: vec!["things-v1.things.svc", "things.elsewhere"],
        ..BackendSettings::default()
    };
    let backend = Backend::start(&environment, settings, async |request| things_response(request.uri().path())).await;
    environment.register_apiservice("things.example.com", "v1", &[&backend]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    eventually("all to be known", async || {
        let kept = KINDS.iter().all(|kind| cache_file_header(&environment, kind).contains("things.example.com"));
        (observed_documents(&client).await == ("Current".into(), 1, true, true) && kept).then_some(())
    })
    .await;
    let moved = "metadata:\n  annotations: {narthex.dev/server-name: things.elsewhere}\n";
    let text = environment.read_file(&format!("registry/{APISERVICE}.yaml")).replacen("metadata:\n", moved, 1);
    environment.write_registry(&format!("{APISERVICE}.yaml"), &text);
    eventually("all to be kept anew", async || {
        KINDS.iter().all(|kind| cache_file_header(&environment, kind).contains("things.elsewhere")).then_some(())
    })
    .await;
    drop((client, gateway));
    backend.stop().await;
    let gateway = environment.start_gateway(&[]);
    wait_for_cached_documents(&connect_as_jane(&environment, &gateway).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_corrupt_files_ignored_at_start() {
    let environment = environment_with_cached_documents().await;
    for kind in KINDS {
        std::fs::write(cache_file(&environment, kind), "no file of ours").unwrap();
    }
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    assert_eq!(observed_documents(&client).await, ("Stale".into(), 0, false, false));
    gateway.wait_for_log(&["cached document ignored: cannot be read"]).await;
    let _back = start_backend(&environment).await;
    eventually("it to be current", async || (observed_documents(&client).await.0 == "Current").then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_removed_with_apiservice() {
    let environment = environment_with_cached_documents().await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    assert_eq!(observed_documents(&client).await.0, "Stale");
    std::fs::remove_file(environment.path(&format!("registry/{APISERVICE}.yaml"))).unwrap();
    eventually("nothing to be left", async || {
        KINDS.iter().all(|kind| !cache_file(&environment, kind).exists()).then_some(())
    })
    .await;
    eventually("no document to speak of it", async || {
        (observed_documents(&client).await == (String::new(), 0, false, false)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disk_cache_of_apiservice_removed_while_stopped_is_deleted() {
    let environment = environment_with_cached_documents().await;
    std::fs::remove_file(environment.path(&format!("registry/{APISERVICE}.yaml"))).unwrap();
    let _gateway = environment.start_gateway(&[]);
    eventually("nothing to be left", async || {
        KINDS.iter().all(|kind| !cache_file(&environment, kind).exists()).then_some(())
    })
    .await;
}
