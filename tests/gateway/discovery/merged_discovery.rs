//! Discovery of the APIs behind the gateway; a faulty backend does not affect the others.

use http::Method;
use serde_json::{Value, json};

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response as response};
use crate::support::client::{Client, ClientResponse, get, next_chunk, request};
use crate::support::fixtures::{GatewayProcess, TestEnvironment, eventually};

const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const APISERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Probes so often that a test need not wait.
const FREQUENT_PROBES: &str = "  annotations: {narthex.dev/probe-interval: 100ms}";
/// And gives up as soon.
const FREQUENT_SHORT_PROBES: &str =
    "  annotations: {narthex.dev/probe-interval: 100ms, narthex.dev/probe-timeout: 300ms}";

fn settings(service: &'static str) -> BackendSettings {
    BackendSettings { names: vec![service], handles_probes: true, ..BackendSettings::default() }
}

/// What a backend of `things_response` says of itself, in every form there is.
fn things_response(path: &str, accept: &str) -> BackendResponse {
    let v2 = json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [
        {"metadata": {"name": "things.example.com"}, "versions": [{"version": "v1", "freshness": "Current", "resources": [
            {"resource": "things", "responseKind": {"group": "things.example.com", "version": "v1", "kind": "Thing"},
             "scope": "Namespaced", "singularResource": "thing", "verbs": ["get", "list", "watch"], "shortNames": ["th"],
             "subresources": [{"subresource": "status", "responseKind": {"group": "things.example.com", "version": "v1", "kind": "Thing"}, "verbs": ["get"]}]},
        ]}]},
    ]});
    match path {
        "/apis" if accept.contains("as=APIGroupDiscoveryList") => {
            let mut all = response(200, &v2.to_string());
            all.headers_mut().insert("content-type", V2.parse().unwrap());
            all
        }
        "/apis/things.example.com/v1" => {
            response(200, r#"{"kind":"APIResourceList","groupVersion":"things.example.com/v1","resources":[]}"#)
        }
        "/openapi/v3" => response(
            200,
            r#"{"paths":{"apis/things.example.com/v1":{"serverRelativeURL":"/openapi/v3/apis/things.example.com/v1?hash=ABC123"},"api/v1":{"serverRelativeURL":"/openapi/v3/api/v1?hash=FF"}}}"#,
        ),
        "/openapi/v3/apis/things.example.com/v1" => {
            let mut document = response(200, r#"{"openapi":"3.0.0","info":{"title":"things"}}"#);
            document.headers_mut().insert("etag", "\"ABC123\"".parse().unwrap());
            document
        }
        path if path.ends_with("/things") => response(200, "{}"),
        _ => response(404, "{}"),
    }
}

async fn start_things_backend(environment: &TestEnvironment, mut settings: BackendSettings) -> Backend {
    settings.handles_probes = true;
    let backend = Backend::start(environment, settings, async |request| {
        let accept = request.headers().get("accept").map_or("", |accept| accept.to_str().unwrap()).to_owned();
        things_response(request.uri().path(), &accept)
    })
    .await;
    let text = environment.apiservice_manifests("things.example.com", "v1", &[backend.address], FREQUENT_PROBES);
    environment.write_registry("v1.things.example.com.yaml", &text);
    backend
}

async fn connect_as_jane(environment: &TestEnvironment, gateway: &GatewayProcess) -> Client {
    Client::http2(environment, gateway, Some(&environment.issue_user("jane", &[]))).await
}

async fn aggregated_discovery(client: &Client) -> Value {
    let read = client.send_and_read(get("/apis", &[("accept", V2)])).await;
    assert_eq!((read.status.as_u16(), read.headers["content-type"].to_str().unwrap()), (200, V2));
    read.json()
}

/// Group, freshness and the names of resources of each version in an aggregated document.
fn discovery_lines(list: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut lines = Vec::new();
    for group in list["items"].as_array().unwrap() {
        for version in group["versions"].as_array().unwrap() {
            let resources = version["resources"].as_array().map_or(&[][..], Vec::as_slice);
            let names: Vec<String> = resources.iter().map(|resource| text(&resource["resource"])).collect();
            lines.push(format!(
                "{} {} {} {}",
                text(&group["metadata"]["name"]),
                text(&version["version"]),
                text(&version["freshness"]),
                names.join(",")
            ));
        }
    }
    lines
}

/// Waits until discovery shows these, and after them what is always there.
async fn wait_for_discovery(client: &Client, wanted: &[&str]) {
    let always = [
        "authentication.k8s.io v1 Current selfsubjectreviews",
        "authorization.k8s.io v1 Current selfsubjectaccessreviews,selfsubjectrulesreviews",
    ];
    let wanted = [wanted, &always].concat();
    let mut last = Vec::new();
    eventually(&format!("discovery to show {wanted:?}"), async || {
        last = discovery_lines(&aggregated_discovery(client).await);
        (last == wanted).then_some(())
    })
    .await;
}

/// The condition `Available` of an APIService.
async fn available_condition(client: &Client, name: &str) -> (String, String, String) {
    let object = client.get(&format!("{APISERVICES}/{name}")).await.json();
    let condition = object["status"]["conditions"]
        .as_array()
        .and_then(|all| all.iter().find(|condition| condition["type"] == "Available"))
        .cloned()
        .unwrap_or_default();
    let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("reason"), text("message"))
}

async fn wait_for_condition(client: &Client, name: &str, status: &str, reason: &str) {
    eventually(&format!("{name} to become {status}"), async || {
        let now = available_condition(client, name).await;
        (now.0 == status && now.1 == reason).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_stale_after_apiservice_moves_until_new_backend_answers() {
    let environment = TestEnvironment::new();
    let old = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_discovery(
        &client,
        &["apiregistration.k8s.io v1 Current apiservices", "things.example.com v1 Current things"],
    )
    .await;
    let recorded = |backend: &Backend| backend.received().iter().filter(|seen| seen.uri.path() == "/apis").count();
    let before = recorded(&old);

    let (speaks, received_bytes) = tokio::sync::watch::channel(false);
    let new = Backend::start(&environment, settings("things-v1.things.svc"), move |request| {
        let mut received_bytes = received_bytes.clone();
        async move {
            let path = request.uri().path().to_owned();
            if path == "/apis" {
                received_bytes.wait_for(|speaks| *speaks).await.unwrap();
            }
            things_response(&path, V2)
        }
    })
    .await;
    let annotations = "  annotations: {narthex.dev/server-name: things-v1.things.svc}";
    let text = environment.apiservice_manifests("things.example.com", "v1", &[new.address], annotations);
    environment.write_registry(
        "v1.things.example.com.yaml",
        &text
            .replace("things, name: things-v1", "things, name: new")
            .replace("service-name: things-v1", "service-name: new"),
    );
    // Before any timeout.
    wait_for_discovery(
        &client,
        &["apiregistration.k8s.io v1 Current apiservices", "things.example.com v1 Stale things"],
    )
    .await;
    speaks.send_replace(true);
    wait_for_discovery(
        &client,
        &["apiregistration.k8s.io v1 Current apiservices", "things.example.com v1 Current things"],
    )
    .await;
    assert!(recorded(&new) > 0);
    assert_eq!(recorded(&old), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_unaffected_by_dead_and_stalled_backends() {
    let environment = TestEnvironment::new();
    let _things = start_things_backend(&environment, BackendSettings::default()).await;
    let dead =
        Backend::start(&environment, settings("parts-v1.parts.svc"), async |_| response(200, "{}")).await.stop().await;
    environment.write_registry(
        "v1.parts.example.com.yaml",
        &environment.apiservice_manifests("parts.example.com", "v1", &[dead], FREQUENT_PROBES),
    );
    // It shakes hands and then says nothing.
    let stalled =
        Backend::start_raw(&environment, settings("knots-v1.knots.svc"), async |_stream| std::future::pending().await)
            .await;
    let text = environment.apiservice_manifests("knots.example.com", "v1", &[stalled.address], FREQUENT_SHORT_PROBES);
    environment.write_registry("v1.knots.example.com.yaml", &text);

    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    // Asked once is enough; that it does not answer is not waited for.
    eventually("readiness", async || (client.get("/readyz").await.status == 200).then_some(())).await;
    wait_for_discovery(
        &client,
        &[
            "apiregistration.k8s.io v1 Current apiservices",
            "knots.example.com v1 Stale ",
            "parts.example.com v1 Stale ",
            "things.example.com v1 Current things",
        ],
    )
    .await;
    let groups = client.get("/apis").await.json();
    let names: Vec<_> = groups["groups"].as_array().unwrap().iter().map(|group| group["name"].clone()).collect();
    let groups = ["apiregistration.k8s.io", "knots.example.com", "parts.example.com", "things.example.com"];
    assert_eq!(names, [&groups[..], &["authentication.k8s.io", "authorization.k8s.io"]].concat());
    assert_eq!(client.get("/apis/things.example.com/v1").await.json()["kind"], "APIResourceList");
    assert_eq!(client.get("/apis/knots.example.com").await.json()["kind"], "APIGroup");
    assert_eq!(client.get("/openapi/v3").await.status, 200);
    assert_eq!(client.get("/apis/things.example.com/v1/things").await.text(), "{}");
    let refused = client.get("/apis/parts.example.com/v1").await.assert_failure(503, "ServiceUnavailable");
    assert!(refused["message"].as_str().unwrap().contains("v1.parts.example.com"), "{refused}");

    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
    wait_for_condition(&client, "v1.parts.example.com", "False", "FailedDiscoveryCheck").await;
    wait_for_condition(&client, "v1.knots.example.com", "False", "FailedDiscoveryCheck").await;
    for name in ["v1.parts.example.com", "v1.knots.example.com"] {
        let message = available_condition(&client, name).await.2;
        assert!(!message.contains("127.0.0.1"), "{message}");
    }
    assert_eq!(client.get("/readyz").await.text(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_last_good_document_marked_stale_during_outage() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let own = "apiregistration.k8s.io v1 Current apiservices";
    wait_for_discovery(&client, &[own, "things.example.com v1 Current things"]).await;
    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
    let address = backend.stop().await;
    wait_for_discovery(&client, &[own, "things.example.com v1 Stale things"]).await;
    wait_for_condition(&client, "v1.things.example.com", "False", "FailedDiscoveryCheck").await;
    assert_eq!(client.get("/readyz").await.text(), "ok");
    let _back = start_things_backend(&environment, BackendSettings { address, ..BackendSettings::default() }).await;
    wait_for_discovery(&client, &[own, "things.example.com v1 Current things"]).await;
    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn discovery_aggregated_and_plain_forms_with_etags() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_discovery(
        &client,
        &["apiregistration.k8s.io v1 Current apiservices", "things.example.com v1 Current things"],
    )
    .await;

    let beta = client.send_and_read(get("/apis", &[("accept", V2BETA1)])).await;
    assert_eq!(beta.headers["content-type"], V2BETA1);
    assert_eq!(beta.json()["apiVersion"], "apidiscovery.k8s.io/v2beta1");
    assert_eq!(discovery_lines(&beta.json()), discovery_lines(&aggregated_discovery(&client).await));
    // kubectl names all three; the first wins.
    let accept = format!("{V2},{V2BETA1},application/json");
    let whole = client.send_and_read(get("/apis", &[("accept", &accept)])).await;
    assert_eq!(whole.headers["content-type"], V2);
    assert_eq!(whole.headers["vary"], "Accept");
    let thing = &whole.json()["items"][1]["versions"][0]["resources"][0];
    assert_eq!((thing["scope"].as_str(), thing["shortNames"][0].as_str()), (Some("Namespaced"), Some("th")));
    assert_eq!(thing["subresources"][0]["subresource"], "status");
    let tag = whole.headers["etag"].to_str().unwrap().to_owned();
    assert!(tag.starts_with('"') && tag.len() > 100, "{tag}");
    let again = client.send_and_read(get("/apis", &[("accept", &accept), ("if-none-match", &tag)])).await;
    assert_eq!((again.status.as_u16(), again.body.len(), again.headers["etag"].to_str().unwrap()), (304, 0, &*tag));
    let other = client.send_and_read(get("/apis", &[("accept", &accept), ("if-none-match", "\"another\"")])).await;
    assert_eq!(other.status, 200);
    let core = client.send_and_read(get("/api", &[("accept", V2)])).await;
    assert_eq!((core.headers["content-type"].to_str().unwrap(), &core.json()["items"]), (V2, &json!([])));

    let binary = "application/vnd.kubernetes.protobuf";
    for form in ["", V2.trim_start_matches("application/json")] {
        let read = client.send_and_read(get("/apis", &[("accept", &format!("{binary}{form},application/json"))])).await;
        assert_eq!(read.headers["content-type"], format!("{binary}{form}"));
        assert!(read.body.starts_with(b"k8s\0"), "{:?}", read.body);
        assert!(read.body.windows(18).any(|bytes| bytes == b"things.example.com"));
    }

    // The older forms.
    let list = client.get("/apis").await.json();
    assert_eq!((list["kind"].as_str(), list["apiVersion"].as_str()), (Some("APIGroupList"), Some("v1")));
    let group = &list["groups"][1];
    assert_eq!(group["preferredVersion"], json!({"groupVersion": "things.example.com/v1", "version": "v1"}));
    assert_eq!(client.get("/apis/").await.json(), list);
    assert_eq!(client.get("/api").await.json()["kind"], "APIVersions");
    let group = client.get("/apis/things.example.com").await.json();
    assert_eq!((group["kind"].as_str(), group["name"].as_str()), (Some("APIGroup"), Some("things.example.com")));
    let seen = backend.received().len();
    let version = client.get("/apis/things.example.com/v1").await.json();
    assert_eq!(version["groupVersion"], "things.example.com/v1");
    let relayed = &backend.received()[seen..];
    assert!(
        relayed.iter().any(|seen| seen.header_values("x-remote-user") == ["jane"]),
        "the version's document is relayed"
    );
    let yaml = client.send_and_read(get("/apis", &[("accept", "application/yaml")])).await;
    assert!(yaml.text().contains("kind: APIGroupList"), "{}", yaml.text());
    client.send_and_read(request(Method::POST, "/apis", &[], "{}")).await.assert_failure(405, "MethodNotAllowed");
    client.get("/apis/unknown.example.com").await.assert_failure(404, "NotFound");

    // Our own group.
    let own = client.get("/apis/apiregistration.k8s.io").await.json();
    assert_eq!(own["versions"][0]["groupVersion"], "apiregistration.k8s.io/v1");
    let own = client.get("/apis/apiregistration.k8s.io/v1").await.json();
    assert_eq!(own["kind"], "APIResourceList");
    assert_eq!(own["resources"][0]["name"], "apiservices");
}

#[tokio::test(flavor = "multi_thread")]
async fn openapi_v3_index_merged_and_documents_relayed() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let key = "apis/things.example.com/v1";
    let index = eventually("the index", async || {
        let index = client.get("/openapi/v3").await;
        index.text().contains("ABC123").then_some(index)
    })
    .await;
    let paths = index.json()["paths"].clone();
    let keys: Vec<_> = paths.as_object().unwrap().keys().cloned().collect();
    // What a backend lists of others is not believed.
    assert_eq!(keys, ["apis/apiregistration.k8s.io/v1", key]);
    let url = paths[key]["serverRelativeURL"].as_str().unwrap();
    assert_eq!(url, "/openapi/v3/apis/things.example.com/v1?hash=ABC123");
    let document = client.get(url).await;
    assert_eq!(document.status, 200, "{}", document.text());
    assert_eq!(document.json()["info"]["title"], "things");
    assert!(document.headers["cache-control"].to_str().unwrap().contains("immutable"), "{:?}", document.headers);
    let seen =
        backend.received().into_iter().rev().find(|seen| seen.header_values("x-remote-user") == ["jane"]).unwrap();
    assert_eq!(seen.uri.path_and_query().unwrap(), "/openapi/v3/apis/things.example.com/v1");
    let own = client.get(paths["apis/apiregistration.k8s.io/v1"]["serverRelativeURL"].as_str().unwrap()).await;
    assert_eq!(own.json()["openapi"], "3.0.0");
    let tag = index.headers["etag"].to_str().unwrap();
    assert_eq!(client.send_and_read(get("/openapi/v3", &[("if-none-match", tag)])).await.status, 304);
    client.get("/openapi/v3/apis/unknown.example.com/v1").await.assert_failure(404, "NotFound");
    assert_eq!(client.get("/openapi/v2").await.json()["swagger"], "2.0");
}

#[tokio::test(flavor = "multi_thread")]
async fn apiservices_readable_as_objects_lists_and_tables() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
    let list = client.get(APISERVICES).await.json();
    assert_eq!(
        (list["kind"].as_str(), list["apiVersion"].as_str()),
        (Some("APIServiceList"), Some("apiregistration.k8s.io/v1"))
    );
    let item = &list["items"][0];
    assert_eq!(item["metadata"]["name"], "v1.things.example.com");
    assert_eq!(item["spec"]["service"], json!({"namespace": "things", "name": "things-v1", "port": 443}));
    let table = client
        .send_and_read(get(APISERVICES, &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]))
        .await
        .json();
    assert_eq!(table["kind"], "Table");
    let columns: Vec<_> = table["columnDefinitions"].as_array().unwrap().iter().map(|c| c["name"].clone()).collect();
    assert_eq!(columns, ["Name", "Service", "Available", "Age"]);
    let cells = &table["rows"][0]["cells"].as_array().unwrap()[..3];
    assert_eq!(cells, ["v1.things.example.com", "things/things-v1", "True"]);
    for (method, path) in [
        (Method::POST, APISERVICES.to_owned()),
        (Method::DELETE, APISERVICES.to_owned()),
        (Method::PUT, format!("{APISERVICES}/v1.things.example.com")),
        (Method::PATCH, format!("{APISERVICES}/v1.things.example.com")),
        (Method::DELETE, format!("{APISERVICES}/v1.things.example.com")),
        (Method::PUT, format!("{APISERVICES}/v1.things.example.com/status")),
    ] {
        let status =
            client.send_and_read(request(method, &path, &[], "{}")).await.assert_failure(405, "MethodNotAllowed");
        assert!(status["message"].as_str().unwrap().contains("registry directory"), "{status}");
    }
    let absent = client.get(&format!("{APISERVICES}/v1.nothing")).await.assert_failure(404, "NotFound");
    assert_eq!(absent["message"], "apiservices.apiregistration.k8s.io \"v1.nothing\" not found");
}

/// The next event of a watch, read across frames.
async fn next_event(body: &mut hyper::body::Incoming, rest: &mut String) -> Value {
    loop {
        if let Some((line, later)) = rest.split_once('\n') {
            let value = serde_json::from_str(line).unwrap();
            *rest = later.to_owned();
            return value;
        }
        rest.push_str(std::str::from_utf8(&next_chunk(body).await.unwrap().unwrap()).unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn apiservice_watch_reports_availability_changes_only() {
    let environment = TestEnvironment::new();
    let backend = start_things_backend(&environment, BackendSettings::default()).await;
    let mut gateway = environment.start_gateway(&["--shutdown-watch-termination-grace-period=10m"]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
    let list = client.get(APISERVICES).await.json();
    let version = list["metadata"]["resourceVersion"].as_str().unwrap();
    let watch = client.send(get(&format!("{APISERVICES}?watch=1&resourceVersion={version}"), &[])).await.unwrap();
    let (mut body, mut rest) = (watch.into_body(), String::new());
    let status = |event: &Value| {
        assert_eq!(event["type"], "MODIFIED", "{event}");
        event["object"]["status"]["conditions"][0]["status"].as_str().unwrap().to_owned()
    };
    let address = backend.stop().await;
    assert_eq!(status(&next_event(&mut body, &mut rest).await), "False");
    let back = Backend::start(
        &environment,
        BackendSettings { address, ..settings("things-v1.things.svc") },
        async |request| things_response(request.uri().path(), ""),
    )
    .await;
    assert_eq!(status(&next_event(&mut body, &mut rest).await), "True");
    std::fs::remove_file(environment.path("registry/v1.things.example.com.yaml")).unwrap();
    let gone = next_event(&mut body, &mut rest).await;
    assert_eq!(
        (gone["type"].as_str(), gone["object"]["metadata"]["name"].as_str()),
        (Some("DELETED"), Some("v1.things.example.com"))
    );
    drop(back);
    gateway.signal("TERM");
    assert!(next_chunk(&mut body).await.is_none(), "the watch ends at once: it stands between two events");
    drop(client);
    assert_eq!(gateway.wait_for_exit().await.code(), Some(0));
}

/// A single slip is no outage; as many in a row as the annotation says are.
#[tokio::test(flavor = "multi_thread")]
async fn availability_failures_below_threshold_ignored() {
    let environment = TestEnvironment::new();
    let (plan, probes) =
        (std::sync::Arc::new(std::sync::Mutex::new(0_u32)), std::sync::Arc::new(std::sync::Mutex::new(0_u32)));
    let (failing, counter) = (plan.clone(), probes.clone());
    let backend = Backend::start(&environment, settings("things-v1.things.svc"), move |request| {
        // Discovery asks for the aggregated form, a probe for the plain one.
        let path = request.uri().path().to_owned();
        let accept = request.headers().get("accept").map_or("", |accept| accept.to_str().unwrap()).to_owned();
        let (failing, counter) = (failing.clone(), counter.clone());
        async move {
            if path == "/apis/things.example.com/v1" {
                *counter.lock().unwrap() += 1;
                let mut failing = failing.lock().unwrap();
                if *failing > 0 {
                    *failing -= 1;
                    return response(500, "{}");
                }
            }
            things_response(&path, &accept)
        }
    })
    .await;
    let annotations = "  annotations: {narthex.dev/probe-interval: 100ms, narthex.dev/failure-threshold: \"3\"}";
    let text = environment.apiservice_manifests("things.example.com", "v1", &[backend.address], annotations);
    environment.write_registry("v1.things.example.com.yaml", &text);
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    wait_for_condition(&client, "v1.things.example.com", "True", "Passed").await;
    let object = client.get(&format!("{APISERVICES}/v1.things.example.com")).await.json();
    *plan.lock().unwrap() = 2;
    let before = *probes.lock().unwrap();
    eventually("the slips to pass", async || (*probes.lock().unwrap() >= before + 5).then_some(())).await;
    let now = client.get(&format!("{APISERVICES}/v1.things.example.com")).await.json();
    assert_eq!(now["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"], "nothing happened");
    *plan.lock().unwrap() = 3;
    let watch = client.send(get(
        &format!("{APISERVICES}?watch=1&resourceVersion={}", now["metadata"]["resourceVersion"].as_str().unwrap()),
        &[],
    ));
    let (mut body, mut rest) = (watch.await.unwrap().into_body(), String::new());
    for wanted in ["False", "True"] {
        let event = next_event(&mut body, &mut rest).await;
        assert_eq!(event["object"]["status"]["conditions"][0]["status"], wanted, "{event}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn local_paths_require_authentication_except_health() {
    let environment = TestEnvironment::new();
    let _backend = start_things_backend(&environment, BackendSettings::default()).await;
    let gateway = environment.start_gateway(&[]);
    let client = connect_as_jane(&environment, &gateway).await;
    let anonymous =
        async |path: &str| -> ClientResponse { Client::http1(&environment, &gateway, None).await.get(path).await };
    for path in ["/", "/version", "/metrics", "/apis", "/api", "/openapi/v3", APISERVICES, "/nothing"] {
        anonymous(path).await.assert_failure(401, "Unauthorized");
    }
    eventually("readiness", async || (anonymous("/readyz").await.status == 200).then_some(())).await;
    for path in ["/livez", "/readyz", "/healthz", "/livez/ping"] {
        assert_eq!(anonymous(path).await.text(), "ok", "{path}");
    }
    let index = client.get("/").await.json();
    let paths: Vec<&str> = index["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    let listed = [
        "/api",
        "/apis",
        "/apis/apiregistration.k8s.io",
        "/apis/apiregistration.k8s.io/v1",
        "/apis/authentication.k8s.io",
        "/apis/authentication.k8s.io/v1",
        "/apis/authorization.k8s.io",
        "/apis/authorization.k8s.io/v1",
        "/apis/things.example.com",
        "/apis/things.example.com/v1",
        "/healthz",
        "/livez",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ];
    assert_eq!(paths, listed);
    for path in listed {
        assert_eq!(client.get(path).await.status, 200, "{path}");
    }
    let version = client.get("/version").await.json();
    assert!(version["gitVersion"].as_str().unwrap().starts_with('v') && version["platform"].is_string(), "{version}");
    let metrics = client.get("/metrics").await;
    assert!(metrics.headers["content-type"].to_str().unwrap().starts_with("text/plain"), "{:?}", metrics.headers);
    assert!(metrics.text().contains("apiserver_request_total"));
    for path in [
        "/nothing",
        "/nothing/at/all",
        "/apis/none.example.com/v1",
        "/apis/none.example.com/v1/namespaces/a/b/c",
        "/readyz/unknown",
        "/api/v1/pods",
        "/logs",
    ] {
        client.get(path).await.assert_failure(404, "NotFound");
    }
    client.send_and_read(request(Method::POST, "/version", &[], "{}")).await.assert_failure(405, "MethodNotAllowed");
}
