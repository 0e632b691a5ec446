//! OpenAPI v2: documents of all backends merged into one; an invalid one is left out.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response as response};
use crate::support::client::{Client, get};
use crate::support::fixtures::{TestEnvironment, eventually};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A document of one group with one path, its own `Thing` with a description, and the shared `Meta`.
fn openapi_document(group: &str, description: &str) -> Value {
    let of_thing = json!([{"group": group, "version": "v1", "kind": "Thing"}]);
    let mut document = json!({
        "swagger": "2.0", "info": {"title": group, "version": "1"},
        "paths": {"/apis/other.example.com/v1/stolen": {"get": {"responses": {"200": {"description": "OK"}}}}},
        "definitions": {
            "Thing": {"description": description, "type": "object", "properties": {"metadata": {"$ref": "#/definitions/Meta"}},
                "x-kubernetes-group-version-kind": of_thing},
            "Meta": {"type": "object"},
        },
    });
    document["paths"][format!("/apis/{group}/v1/things")] = json!({
        "get": {"operationId": format!("list {group}"),
            "responses": {"200": {"description": "OK", "schema": {"$ref": "#/definitions/Thing"}}}},
    });
    document
}

async fn start_backend(
    environment: &TestEnvironment,
    name: &str,
    say: impl Fn() -> BackendResponse + Send + Sync + 'static,
) -> Backend {
    let host: &'static str = format!("{name}-v1.{name}.svc").leak();
    let settings = BackendSettings { names: vec![host], handles_probes: true, ..BackendSettings::default() };
    let say = Arc::new(say);
    let group = format!("{name}.example.com");
    let text = format!(r#"{{"kind":"APIResourceList","groupVersion":"{group}/v1","resources":[]}}"#);
    let backend = Backend::start(environment, settings, move |request| {
        let (say, text) = (say.clone(), text.clone());
        async move {
            match request.uri().path() {
                "/openapi/v2" => say(),
                "/openapi/v3" => response(200, r#"{"paths":{}}"#),
                path if path.starts_with("/apis/") => response(200, &text),
                _ => response(404, "{}"),
            }
        }
    })
    .await;
    environment.register_apiservice(&group, "v1", &[&backend]);
    backend
}

async fn connect_as_jane(environment: &TestEnvironment, gateway: &crate::support::fixtures::GatewayProcess) -> Client {
    Client::http2(environment, gateway, Some(&environment.issue_user("jane", &[]))).await
}

fn object_keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_first_request_gets_merged_document() {
    let environment = TestEnvironment::new();
    let _parts = start_backend(&environment, "parts", || {
        response(200, &openapi_document("parts.example.com", "a part").to_string())
    })
    .await;
    let _things = start_backend(&environment, "things", || {
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let first = client.get("/openapi/v2").await;
    assert_eq!(first.headers["content-type"], "application/json");
    let whole = first.json();
    assert_eq!(whole["info"]["title"], "narthex", "{whole}");
    assert_eq!(
        object_keys(&whole["paths"]),
        ["/apis/parts.example.com/v1/things", "/apis/things.example.com/v1/things"],
        "nobody speaks for others"
    );
    assert_eq!(object_keys(&whole["definitions"]), ["Meta", "Thing", "Thing_v2"]);
    assert_eq!(whole["definitions"]["Thing"]["description"], "a part");
    assert_eq!(whole["definitions"]["Thing_v2"]["description"], "a thing");
    assert_eq!(whole["definitions"]["Thing_v2"]["x-kubernetes-group-version-kind"][0]["group"], "things.example.com");
    let schema = |path: &str| whole["paths"][path]["get"]["responses"]["200"]["schema"]["$ref"].clone();
    assert_eq!(schema("/apis/parts.example.com/v1/things"), "#/definitions/Thing");
    assert_eq!(schema("/apis/things.example.com/v1/things"), "#/definitions/Thing_v2");
    let tag = first.headers["etag"].to_str().unwrap();
    let again = client.send_and_read(get("/openapi/v2", &[("if-none-match", tag), ("accept", PROTOBUF)])).await;
    assert_eq!((again.status.as_u16(), again.body.len()), (304, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_fetched_on_first_request_and_cached() {
    let environment = TestEnvironment::new();
    let recorded = Arc::<AtomicUsize>::default();
    let counter = recorded.clone();
    let _things = start_backend(&environment, "things", move || {
        counter.fetch_add(1, Ordering::Relaxed);
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    eventually("discovery", async || client.get("/apis").await.text().contains("things.example.com").then_some(()))
        .await;
    assert_eq!(recorded.load(Ordering::Relaxed), 0);
    for _ in 0..3 {
        assert_eq!(client.get("/openapi/v2").await.status, 200);
    }
    assert_eq!(recorded.load(Ordering::Relaxed), 1);
    client.send_and_read(get("/openapi/v2", &[("accept", "text/html")])).await.assert_failure(406, "NotAcceptable");
    let post = crate::support::client::request(http::Method::POST, "/openapi/v2", &[], "{}");
    client.send_and_read(post).await.assert_failure(405, "MethodNotAllowed");
    let head = crate::support::client::request(http::Method::HEAD, "/openapi/v2", &[], "");
    let head = client.send_and_read(head).await;
    assert!(head.body.is_empty() && head.headers.contains_key("etag"), "{head:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_compressed_by_accept_encoding() {
    let environment = TestEnvironment::new();
    let text = openapi_document("things.example.com", &"a long story, ".repeat(20_000)).to_string();
    let _things = start_backend(&environment, "things", move || response(200, &text)).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let plain = client.get("/openapi/v2").await;
    assert!(!plain.headers.contains_key("content-encoding"));
    let binary = client.send_and_read(get("/openapi/v2", &[("accept", PROTOBUF)])).await;
    assert_eq!(
        (&binary.headers["content-type"], &binary.headers["etag"]),
        (&PROTOBUF.parse().unwrap(), &plain.headers["etag"])
    );
    assert!(binary.body.starts_with(b"\x0a\x032.0\x12"), "{:?}", &binary.body[..20]);
    for (accept, expected) in [("application/json", &plain.body), (PROTOBUF, &binary.body)] {
        for codings in ["gzip", "gzip, deflate, br, zstd", "zstd;q=0.2, gzip;q=0.1"] {
            let headers = [("accept", accept), ("accept-encoding", codings)];
            let encoded = client.send_and_read(get("/openapi/v2", &headers)).await;
            assert_eq!(encoded.headers["content-encoding"], "gzip");
            assert_eq!(encoded.headers["vary"], "Accept, Accept-Encoding");
            assert!(encoded.body.len() < expected.len() / 10, "{} of {}", encoded.body.len(), expected.len());
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&encoded.body[..]).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == expected[..], "{accept} {codings}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_invalid_document_of_one_backend_omitted() {
    let environment = TestEnvironment::new();
    let encoded = {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut packer, &vec![b' '; 1 << 20]).unwrap();
        packer.finish().unwrap()
    };
    let with = |header: &'static str, value: &'static str, status: u16| {
        let mut response = response(status, &openapi_document("bad.example.com", "bad").to_string());
        response.headers_mut().insert(header, value.parse().unwrap());
        response
    };
    let mut cyclic = openapi_document("cyclic.example.com", "round and round");
    cyclic["definitions"]["Meta"] = json!({"allOf": [{"$ref": "#/definitions/Thing"}]});
    let bomb = move || {
        let mut bomb = response(200, "");
        *bomb.body_mut() = http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(
            http_body_util::Full::new(encoded.clone().into()),
            |never| match never {},
        ));
        bomb.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        bomb
    };
    let unhealthy = json!({"swagger": "2.0", "info": {"title": "x", "version": "1"}, "paths": {}, "definitions": {"Thing": {"type": 7}}});
    let _good = start_backend(&environment, "things", || {
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let _cyclic = start_backend(&environment, "cyclic", move || response(200, &cyclic.to_string())).await;
    let _bad = [
        start_backend(&environment, "bomb", bomb).await,
        start_backend(&environment, "elsewhere", move || with("location", "https://evil.dev/", 302)).await,
        start_backend(&environment, "error", || response(500, "{}")).await,
        start_backend(&environment, "huge", || response(200, &" ".repeat((16 << 20) + 1))).await,
        start_backend(&environment, "ill", move || response(200, &unhealthy.to_string())).await,
        start_backend(&environment, "page", || response(200, "<html>log in</html>")).await,
        start_backend(&environment, "unmodified", || response(304, "")).await,
    ];
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let whole = client.get("/openapi/v2").await.json();
    assert_eq!(
        object_keys(&whole["paths"]),
        ["/apis/cyclic.example.com/v1/things", "/apis/things.example.com/v1/things"]
    );
    let log = gateway.wait_for_log(&["OpenAPI v2 of the backend failed", "v1.ill.example.com"]).await;
    assert!(log.contains("definitions: Thing: type: is of the wrong type"), "{log}");
    let status = crate::support::client::admin_request(&gateway, get("/status.json", &[])).await.json();
    let problems: Vec<&str> =
        status["documentProblems"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    let of: Vec<&str> =
        problems.iter().filter_map(|problem| problem.split_once(".example.com: OpenAPI v2: ")).map(|it| it.0).collect();
    assert_eq!(
        of,
        ["v1.bomb", "v1.elsewhere", "v1.error", "v1.huge", "v1.ill", "v1.page", "v1.unmodified"],
        "{problems:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_unresponsive_backend_delays_bounded_time() {
    let environment = TestEnvironment::new();
    let _things = start_backend(&environment, "things", || {
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let settings =
        BackendSettings { names: vec!["slow-v1.slow.svc"], handles_probes: true, ..BackendSettings::default() };
    let slow = Backend::start(&environment, settings, async |_| std::future::pending().await).await;
    environment.register_apiservice("slow.example.com", "v1", &[&slow]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let whole = client.get("/openapi/v2").await.json();
    assert_eq!(object_keys(&whole["paths"]), ["/apis/things.example.com/v1/things"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v2_updated_when_apiservices_change() {
    let environment = TestEnvironment::new();
    let _things = start_backend(&environment, "things", || {
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let shows = async |paths: &[&str]| {
        eventually(&format!("{paths:?}"), async || {
            let whole = client.get("/openapi/v2").await.json();
            (object_keys(&whole["paths"]) == paths).then_some(())
        })
        .await;
    };
    shows(&["/apis/things.example.com/v1/things"]).await;
    let _parts = start_backend(&environment, "parts", || {
        response(200, &openapi_document("parts.example.com", "a part").to_string())
    })
    .await;
    shows(&["/apis/parts.example.com/v1/things", "/apis/things.example.com/v1/things"]).await;
    std::fs::remove_file(environment.path("registry/v1.things.example.com.yaml")).unwrap();
    shows(&["/apis/parts.example.com/v1/things"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v3_converted_from_v2_only_backend() {
    let environment = TestEnvironment::new();
    let settings =
        BackendSettings { names: vec!["old-v1.old.svc"], handles_probes: true, ..BackendSettings::default() };
    let old = Backend::start(&environment, settings, async |request| match request.uri().path() {
        "/openapi/v2" => response(200, &openapi_document("old.example.com", "an old thing").to_string()),
        _ => response(404, "{}"),
    })
    .await;
    environment.register_apiservice("old.example.com", "v1", &[&old]);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let key = "apis/old.example.com/v1";
    let url = eventually("the index", async || {
        client.get("/openapi/v3").await.json()["paths"][key]["serverRelativeURL"].as_str().map(str::to_owned)
    })
    .await;
    let made = client.get(&url).await;
    assert_eq!(made.headers["cache-control"], "public, immutable", "{url}");
    let whole = made.json();
    assert_eq!(
        (&whole["openapi"], object_keys(&whole["paths"])),
        (&json!("3.0.0"), vec!["/apis/old.example.com/v1/things"])
    );
    let thing = &whole["components"]["schemas"]["Thing"];
    assert_eq!(thing["properties"]["metadata"]["$ref"], "#/components/schemas/Meta");
    assert_eq!(thing["x-kubernetes-group-version-kind"][0]["group"], "old.example.com");
    assert_eq!(client.get(&format!("/openapi/v3/{key}")).await.headers["etag"], made.headers["etag"]);
    assert!(
        old.received().iter().all(|seen| seen.header_values("x-remote-user") != ["jane"]),
        "nothing of it is relayed"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_and_discovery_etags_equal_across_replicas() {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let environment = TestEnvironment::new();
    let _parts = start_backend(&environment, "parts", || {
        response(200, &openapi_document("parts.example.com", "a part").to_string())
    })
    .await;
    let _things = start_backend(&environment, "things", || {
        response(200, &openapi_document("things.example.com", "a thing").to_string())
    })
    .await;
    let mut all = Vec::new();
    for data in ["one", "two"] {
        // Each keeps for itself.
        let gateway = environment.start_gateway(&[&format!("--data-dir={}", environment.path(data).display())]);
        let client = connect_as_jane(&environment, &gateway).await;
        let both = eventually("both to be known", async || {
            let document = client.send_and_read(get("/apis", &[("accept", AGGREGATED)])).await;
            let current = document.json()["items"]
                .as_array()
                .unwrap()
                .iter()
                .all(|it| it["versions"][0]["freshness"] == "Current");
            (current && document.text().contains("parts.example.com")).then_some(document)
        })
        .await;
        let mut tags = vec![both.headers["etag"].clone()];
        for path in ["/apis", "/api", "/apis/things.example.com", "/openapi/v3", "/openapi/v2"] {
            tags.push(client.get(path).await.headers["etag"].clone());
        }
        all.push(tags);
    }
    assert_eq!(all[0], all[1]);
}
