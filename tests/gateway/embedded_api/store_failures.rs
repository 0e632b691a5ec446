//! Stores that cannot be opened or written: reported by name at the start or as 503, never silently empty.

use std::fs;
use std::path::PathBuf;

use http::Method;
use serde_json::json;

use crate::support::client::{Client, admin_request, get, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json, start_on_small_disk};
use crate::support::fixtures::{TestEnvironment, eventually, run_narthex};

/// The store of a gateway that has ended, with one ConfigMap in it.
async fn closed_store() -> (TestEnvironment, PathBuf) {
    let mut api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "precious"}, "data": {"key": "marked-value"}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    drop(client);
    api.gateway.signal("TERM");
    assert_eq!(api.gateway.wait_for_exit().await.code(), Some(0));
    let file = api.environment.path("data/store.db");
    (api.environment, file)
}

/// What a gateway that does not start says.
fn refused_start(environment: &TestEnvironment, flags: &[&str]) -> String {
    let flags: Vec<&str> = ["--embedded-api"].iter().chain(flags).copied().collect();
    let mut line = vec!["gateway".to_owned()];
    line.extend(environment.gateway_arguments(&flags));
    let output = run_narthex(&line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    text
}

#[tokio::test]
async fn store_with_flipped_bit_is_refused_with_its_key() {
    let (environment, file) = closed_store().await;
    let mut bytes = fs::read(&file).unwrap();
    let value = b"marked-value";
    let at = bytes.windows(value.len()).position(|window| window == value).unwrap();
    bytes[at] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let text = refused_start(&environment, &[]);
    for words in ["store.db", "/registry/configmaps/default/precious", "does not match its checksum"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(fs::read(&file).unwrap() == bytes, "the file is left as it is");
}

#[tokio::test]
async fn store_that_is_cut_off_or_no_store_is_refused() {
    let (environment, file) = closed_store().await;
    let whole = fs::read(&file).unwrap();
    let mut other_version = whole.clone();
    other_version[60..64].copy_from_slice(&99_u32.to_be_bytes());
    let mut overwritten = whole.clone();
    overwritten[4096..8192].fill(0xa5);
    let text = b"not a database, but long enough to be one".repeat(300);
    let cases: [(&[u8], &str); 6] = [
        (&whole[..whole.len() / 2], "damaged"),
        (&whole[..100], "damaged"),
        (b"", "damaged"),
        (&text, "file is not a database"),
        (&overwritten, "damaged"),
        (&other_version, "has format version 99, this program supports 1"),
    ];
    for (bytes, words) in cases {
        fs::write(&file, bytes).unwrap();
        let said = refused_start(&environment, &[]);
        assert!(said.contains("store.db") && said.contains(words), "{words}: {said}");
        assert!(fs::read(&file).unwrap() == bytes, "the file is left as it is");
    }
    fs::write(&file, &whole).unwrap();
    let gateway = environment.start_gateway(&["--embedded-api"]);
    let admin = environment.issue_user("admin", &["system:masters"]);
    let client = Client::http2(&environment, &gateway, Some(&admin)).await;
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/precious")).await.status, 200);
}

#[tokio::test]
async fn store_of_another_process_is_refused_with_its_id() {
    let api = EmbeddedApiFixture::start(&[]);
    let text = refused_start(&api.environment, &[]);
    assert!(text.contains("store.db is in use by process "), "{text}");
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "a"}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201, "the first goes on");
}

#[tokio::test]
async fn store_in_folder_that_cannot_be_written_is_refused() {
    let environment = TestEnvironment::new();
    // Neither root nor others can create files there.
    let text = refused_start(&environment, &["--store-file=/proc/narthex/store.db"]);
    assert!(text.contains("/proc/narthex"), "{text}");
    fs::write(environment.path("file"), "").unwrap();
    let below = format!("--store-file={}", environment.path("file/store.db").display());
    let text = refused_start(&environment, &[&below]);
    assert!(text.contains("file/store.db cannot be opened") && text.contains("is not a directory"), "{text}");
}

#[tokio::test]
async fn check_reports_flags_and_store_of_embedded_api_at_once() {
    let environment = TestEnvironment::new();
    fs::write(environment.path("notes.txt"), "x".repeat(1000)).unwrap();
    let store = format!("--store-file={}", environment.path("notes.txt").display());
    let kubeconfig = format!("--delegate-kubeconfig={}", environment.path("none").display());
    let flags = ["--embedded-api", &store, "--event-ttl=0s", "--min-request-timeout=x", &kubeconfig];
    let mut line = vec!["check".to_owned(), "gateway".to_owned()];
    line.extend(environment.gateway_arguments(&flags));
    let output = run_narthex(&line);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    for words in [
        "--embedded-api: cannot be given together with --delegate-kubeconfig",
        "--event-ttl: must be greater than 0",
        "--min-request-timeout: \"x\": use a whole number",
        "notes.txt is damaged: file is not a database",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let mut line = vec!["check".to_owned(), "gateway".to_owned()];
    line.extend(environment.gateway_arguments(&["--store-file=x", "--event-ttl=2h"]));
    let text = String::from_utf8(run_narthex(&line).stderr).unwrap();
    for flag in ["--store-file: needs --embedded-api", "--event-ttl: needs --embedded-api"] {
        assert!(text.contains(flag), "{flag}: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_is_503_and_reads_go_on() {
    let environment = TestEnvironment::new();
    let gateway = start_on_small_disk(&environment);
    let admin = environment.issue_user("admin", &["system:masters"]);
    let client = Client::http2(&environment, &gateway, Some(&admin)).await;
    let object = |name: &str| json!({"metadata": {"name": name}, "data": {"k": "x".repeat(200_000)}});
    let mut stored = Vec::new();
    let refused = loop {
        let name = format!("big{}", stored.len());
        let response = send_json(&client, Method::POST, CONFIG_MAPS, &object(&name)).await;
        if response.status != 201 {
            break response;
        }
        stored.push(name);
        assert!(stored.len() < 100, "no limit is reached");
    };
    let status = refused.assert_failure(503, "ServiceUnavailable");
    assert!(status["message"].as_str().unwrap().contains("no space left"), "{status}");
    assert!(!refused.headers.contains_key("retry-after"), "client-go would retry silently");
    assert!(!stored.is_empty());
    gateway.wait_for_log(&["store.db", "transaction refused, nothing changed", "no space left"]).await;
    // Everything acknowledged is there, nothing else is.
    let names = async |client: &Client| {
        let list = client.get(CONFIG_MAPS).await.json();
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&client).await, stored);
    let checks = client.get("/readyz?verbose").await;
    assert!(checks.text().contains("[+]etcd excluded: the last write was refused"), "{}", checks.text());
    let report = admin_request(&gateway, get("/status.json", &[])).await.json();
    assert!(report["verdict"]["text"].as_str().unwrap().contains("store refuses writes: no space left"), "{report}");
    // A small write may fit still, and deletions make room in the end.
    for name in &stored {
        let path = format!("{CONFIG_MAPS}/{name}");
        let deleted = client.send_and_read(request(Method::DELETE, &path, &[], "")).await;
        assert!(matches!(deleted.status.as_u16(), 200 | 503), "{}", deleted.text());
    }
    let left = names(&client).await;
    drop(gateway);
    let gateway = environment.start_gateway(&["--embedded-api"]);
    let client = Client::http2(&environment, &gateway, Some(&admin)).await;
    assert_eq!(names(&client).await, left, "the same after a restart with room");
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &object("more")).await;
    assert_eq!(created.status, 201, "{}", created.text());
    eventually("the check", async || client.get("/readyz?verbose").await.text().contains("[+]etcd ok").then_some(()))
        .await;
}
