//! Representations of objects: JSON, YAML, protobuf, Table, PartialObjectMetadata.

use std::io::Read as _;

use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, get, next_chunk, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

/// What kubectl sends for `get` without `-o`.
const KUBECTL_ACCEPT: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                              application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn create(client: &Client, name: &str, data: &str) -> Value {
    let object = json!({"metadata": {"name": name}, "data": {"key": data}});
    let created = send_json(client, Method::POST, CONFIG_MAPS, &object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    created.json()
}

async fn get_as(client: &Client, path: &str, accept: &str) -> ClientResponse {
    client.send_and_read(get(path, &[("accept", accept)])).await
}

#[tokio::test]
async fn representation_of_object_follows_accept() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = create(&client, "a", "value").await;
    let path = format!("{CONFIG_MAPS}/a");
    let read = api.http1().await.get(&path).await;
    assert_eq!(read.headers["content-type"], "application/json");
    assert_eq!((read.json(), &read.json()["data"]), (object.clone(), &json!({"key": "value"})));

    let table = get_as(&client, &path, KUBECTL_ACCEPT).await;
    assert_eq!(table.headers["content-type"], "application/json");
    let table = table.json();
    assert_eq!(
        (&table["kind"], &table["metadata"]["resourceVersion"]),
        (&json!("Table"), &object["metadata"]["resourceVersion"])
    );
    assert_eq!((&table["rows"][0]["cells"][0], &table["rows"][0]["cells"][1]), (&json!("a"), &json!(1)));
    assert_eq!(table["rows"][0]["object"]["metadata"], object["metadata"]);

    let yaml = get_as(&client, &path, "application/yaml").await;
    assert_eq!(yaml.headers["content-type"], "application/yaml");
    assert!(yaml.text().starts_with("apiVersion: v1\ndata:\n  key: value\nkind: ConfigMap\n"), "{}", yaml.text());
    let protobuf = get_as(&client, &path, PROTOBUF).await;
    assert_eq!(protobuf.headers["content-type"], PROTOBUF);
    assert!(protobuf.body.starts_with(b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12"), "{protobuf:?}");
    let pretty = get_as(&client, &format!("{path}?pretty=true"), "*/*").await.text();
    assert!(pretty.starts_with("{\n  \"apiVersion\": \"v1\",\n"), "{pretty}");
}

#[tokio::test]
async fn representation_of_writes_and_errors_follows_accept() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let path = format!("{CONFIG_MAPS}/a");
    let send = async |method, path: &str, accept, body: &Value| {
        let headers = [("accept", accept), ("content-type", "application/json")];
        client.send_and_read(request(method, path, &headers, &body.to_string())).await
    };
    let object = json!({"metadata": {"name": "a"}, "data": {"key": "value"}});
    let created = send(Method::POST, CONFIG_MAPS, KUBECTL_ACCEPT, &object).await;
    assert_eq!((created.status.as_u16(), &created.json()["rows"][0]["cells"][0]), (201, &json!("a")));
    let updated = send(Method::PUT, &path, PROTOBUF, &json!({"metadata": {"name": "a"}})).await;
    assert_eq!((updated.status.as_u16(), &updated.body[..4]), (200, &b"k8s\0"[..]));
    let dry_run = send(
        Method::POST,
        &format!("{CONFIG_MAPS}?dryRun=All"),
        "application/yaml",
        &json!({"metadata": {"name": "b"}}),
    )
    .await;
    assert!(dry_run.status == 201 && dry_run.text().contains("\n  name: b\n"), "{}", dry_run.text());

    let missing = get_as(&client, &format!("{CONFIG_MAPS}/zzz"), PROTOBUF).await;
    assert_eq!((missing.status.as_u16(), &missing.headers["content-type"]), (404, &PROTOBUF.parse().unwrap()));
    let missing = get_as(&client, &format!("{CONFIG_MAPS}/zzz"), KUBECTL_ACCEPT).await;
    assert_eq!(missing.assert_failure(404, "NotFound")["message"], "configmaps \"zzz\" not found");
    let refused = get_as(&client, &path, "text/html").await.assert_failure(406, "NotAcceptable");
    assert_eq!(
        refused["message"],
        "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, \
         application/vnd.kubernetes.protobuf"
    );
    let deleted = send(Method::DELETE, &path, KUBECTL_ACCEPT, &json!({})).await.json();
    assert_eq!((&deleted["kind"], &deleted["status"]), (&json!("Status"), &json!("Success")));
}

#[tokio::test]
async fn representation_of_list_follows_accept_page_by_page() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for name in ["a", "b", "c"] {
        create(&client, name, "value").await;
    }
    let first = get_as(&client, &format!("{CONFIG_MAPS}?limit=2&includeObject=None"), KUBECTL_ACCEPT).await.json();
    assert_eq!((first["rows"].as_array().unwrap().len(), &first["metadata"]["remainingItemCount"]), (2, &json!(1)));
    assert_eq!(first["rows"][0]["object"], Value::Null);
    let token = first["metadata"]["continue"].as_str().unwrap();
    let second = get_as(&client, &format!("{CONFIG_MAPS}?limit=2&continue={token}"), PARTIAL_LIST).await.json();
    assert_eq!(
        (&second["kind"], &second["items"][0]["metadata"]["name"]),
        (&json!("PartialObjectMetadataList"), &json!("c"))
    );
    let protobuf = get_as(&client, CONFIG_MAPS, &format!("{PROTOBUF},application/json")).await;
    assert!(protobuf.body.starts_with(b"k8s\0\n\x13\n\x02v1\x12\rConfigMapList\x12"), "{protobuf:?}");
}

#[tokio::test]
async fn representation_of_large_list_is_complete_and_gzipped() {
    let api = EmbeddedApiFixture::start(&[]);
    let (http1, http2) = (api.http1().await, api.http2().await);
    for number in 0..50 {
        create(&http2, &format!("name-{number:02}"), &"x".repeat(8_000)).await;
    }
    for client in [&http1, &http2] {
        for accept in ["application/json", "application/json;pretty=1", PROTOBUF] {
            let plain = get_as(client, CONFIG_MAPS, accept).await;
            assert!(plain.is_complete && plain.body.len() > 400_000, "{accept}: {} bytes", plain.body.len());
            assert_eq!(plain.headers.get("content-encoding"), None);
            let headers = [("accept", accept), ("accept-encoding", "gzip")];
            let packed = client.send_and_read(get(CONFIG_MAPS, &headers)).await;
            assert!(packed.is_complete && packed.body.len() < 40_000, "{accept}: {} bytes", packed.body.len());
            assert!(packed.headers["content-encoding"] == "gzip" && packed.headers["vary"] == "Accept-Encoding");
            let mut unpacked = Vec::new();
            flate2::read::GzDecoder::new(&packed.body[..]).read_to_end(&mut unpacked).unwrap();
            assert!(unpacked == plain.body, "{accept}");
        }
        let list = get_as(client, CONFIG_MAPS, "application/json").await.json();
        assert_eq!(
            (list["items"].as_array().unwrap().len(), &list["items"][49]["metadata"]["name"]),
            (50, &json!("name-49"))
        );
    }
}

#[tokio::test]
async fn representation_of_watch_follows_accept() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create(&client, "a", "value").await;
    let start = format!("{CONFIG_MAPS}?watch=1");
    let watch = async |accept: &str| client.send(get(&start, &[("accept", accept)])).await.unwrap();

    let response = watch(KUBECTL_ACCEPT).await;
    assert_eq!(response.headers()["content-type"], "application/json");
    let mut tables = response.into_body();
    let event =
        async |body: &mut _| serde_json::from_slice::<Value>(&next_chunk(body).await.unwrap().unwrap()).unwrap();
    let added = event(&mut tables).await;
    assert_eq!((&added["type"], &added["object"]["rows"][0]["cells"][0]), (&json!("ADDED"), &json!("a")));
    assert_eq!(added["object"]["columnDefinitions"][2]["name"], "Age");

    let response = watch(PROTOBUF).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let mut protobuf = response.into_body();
    let added = next_chunk(&mut protobuf).await.unwrap().unwrap();
    assert_eq!(
        (u32::from_be_bytes(added[..4].try_into().unwrap()) as usize, &added[4..11]),
        (added.len() - 4, &b"\n\x05ADDED"[..])
    );

    create(&client, "b", "value").await;
    let added = event(&mut tables).await;
    assert_eq!(
        (&added["object"]["rows"][0]["cells"][0], &added["object"]["columnDefinitions"]),
        (&json!("b"), &Value::Null)
    );
    assert_eq!(&next_chunk(&mut protobuf).await.unwrap().unwrap()[4..11], b"\n\x05ADDED");
    let refused = get_as(&client, &start, "application/yaml").await;
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["content-type"]),
        (406, &"application/yaml".parse().unwrap())
    );
}

#[tokio::test]
async fn list_items_of_builtin_kinds_have_no_type() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "a", "labels": {"x": "y"}}, "data": {"kind": "k"}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"namespace": "default"}, "reason": "r"});
    let events = "/api/v1/namespaces/default/events";
    assert_eq!(send_json(&client, Method::POST, events, &event).await.status, 201);
    let selected = format!("{CONFIG_MAPS}?labelSelector=x");
    for path in [
        selected.as_str(),
        "/api/v1/namespaces",
        events,
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/apiregistration.k8s.io/v1/apiservices",
    ] {
        let list = client.get(path).await.json();
        assert!(list["kind"].as_str().unwrap().ends_with("List") && list["apiVersion"].is_string(), "{path}");
        for item in list["items"].as_array().unwrap() {
            assert!(item["metadata"]["resourceVersion"].is_string(), "{path}: {item}");
            assert_eq!((item.get("kind"), item.get("apiVersion")), (None, None), "{path}: {item}");
        }
    }
    let yaml = client.send_and_read(get(&selected, &[("accept", "application/yaml")])).await.text();
    assert!(yaml.starts_with("apiVersion: v1\nitems:\n- data:\n    kind: k\n  metadata:\n"), "{yaml}");
    let partial = [("accept", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io")];
    let partial = client.send_and_read(get(&selected, &partial)).await.json();
    assert_eq!(partial["items"][0]["kind"], "PartialObjectMetadata");
    let request =
        get(&format!("{selected}&includeObject=Object"), &[("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")]);
    assert_eq!(client.send_and_read(request).await.json()["rows"][0]["object"]["kind"], "ConfigMap");
    let single = client.get(&format!("{CONFIG_MAPS}/a")).await.json();
    assert_eq!((&single["kind"], &single["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    let watch = client.get(&format!("{selected}&watch=1&timeoutSeconds=1")).await.text();
    assert!(watch.contains(r#""kind":"ConfigMap""#), "{watch}");
    let deleted = send_json(&client, Method::DELETE, &selected, &json!({})).await.json();
    assert_eq!((deleted["items"][0].get("kind"), &deleted["items"][0]["data"]["kind"]), (None, &json!("k")));
}
