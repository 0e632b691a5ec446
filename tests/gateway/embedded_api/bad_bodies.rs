//! Request bodies that are too large, too deep, malformed or hostile.

use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, RequestBody, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// A request with a body that need not be text.
fn bytes_request(method: Method, path: &str, media_type: &str, body: impl Into<Bytes>) -> Request<RequestBody> {
    let body = Full::new(body.into()).map_err(|never| match never {}).boxed();
    Request::builder().method(method).uri(path).header("content-type", media_type).body(body).unwrap()
}

async fn post(client: &Client, media_type: &str, body: impl Into<Bytes>) -> ClientResponse {
    client.send_and_read(bytes_request(Method::POST, CONFIG_MAPS, media_type, body)).await
}

#[track_caller]
fn assert_bad_request(response: &ClientResponse, words: &str) {
    let status = response.assert_failure(400, "BadRequest");
    assert!(status["message"].as_str().unwrap().contains(words), "{words}: {status}");
}

#[tokio::test]
async fn body_over_three_mebibytes_is_413() {
    let api = EmbeddedApiFixture::start(&[]);
    let object = |bytes: usize| json!({"metadata": {"name": "a"}, "data": {"k": "x".repeat(bytes)}}).to_string();
    for client in [api.http1().await, api.http2().await] {
        for media_type in [JSON, YAML, PROTOBUF, "application/merge-patch+json"] {
            let status = post(&client, media_type, object(3 << 20)).await.assert_failure(413, "RequestEntityTooLarge");
            assert_eq!(status["message"], "Request entity too large: limit is 3145728");
        }
    }
    // Within the limit of bodies, but over that of a ConfigMap, and of a value in the store.
    let client = api.http2().await;
    post(&client, JSON, object(2 << 20)).await.assert_failure(422, "Invalid");
    let notes = json!({"metadata": {"name": "a", "annotations": {}}, "subsets": [{"addresses": [{"ip": "10.0.0.1",
        "targetRef": {"fieldPath": "x".repeat(2 << 20)}}]}]});
    let stored = send_json(&client, Method::POST, "/api/v1/namespaces/default/endpoints", &notes).await;
    stored.assert_failure(413, "RequestEntityTooLarge");
    assert_eq!(client.get(CONFIG_MAPS).await.json()["items"].as_array().unwrap().len(), 0);
}

const FREES: &str = "/apis/free.example.com/v1/namespaces/default/frees";

/// An API server with the ConfigMap `a`, and `a` of a custom resource whose objects may have any field.
async fn start_with_free_objects() -> (EmbeddedApiFixture, Client) {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "metadata": {"name": "frees.free.example.com"},
        "spec": {
            "group": "free.example.com", "scope": "Namespaced", "names": {"plural": "frees", "kind": "Free"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    });
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    assert_eq!(send_json(&client, Method::POST, crds, &crd).await.status, 201);
    eventually("the resource", async || (client.get(FREES).await.status == 200).then_some(())).await;
    let free = json!({"apiVersion": "free.example.com/v1", "kind": "Free", "metadata": {"name": "a"}});
    assert_eq!(send_json(&client, Method::POST, FREES, &free).await.status, 201);
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "a"}})).await.status, 201);
    (api, client)
}

/// Such a body takes a hundred times its size in memory, in each copy.
#[tokio::test]
async fn body_of_many_small_objects_is_413_and_costs_one_copy() {
    let items = vec![r#"{"":0}"#; 440_000].join(",");
    let body = |name: &str| {
        format!(r#"{{"apiVersion":"free.example.com/v1","kind":"Free","metadata":{{"name":"{name}"}},"x":[{items}]}}"#)
    };
    let operations = format!(r#"[{{"op":"add","path":"/x","value":[{items}]}}]"#);
    let (free, config_map) = (format!("{FREES}/a"), format!("{CONFIG_MAPS}/a"));
    for (method, path, media_type, body) in [
        (Method::POST, FREES, JSON, body("b")),
        (Method::PUT, &*free, JSON, body("a")),
        (Method::PATCH, &*free, "application/json-patch+json", operations),
        (Method::PATCH, &*free, "application/merge-patch+json", body("a")),
        (Method::PATCH, &*config_map, "application/strategic-merge-patch+json", body("a")),
    ] {
        // A gateway each: the allocator keeps the memory of a request for ten seconds.
        let (api, client) = start_with_free_objects().await;
        let refused = client.send_and_read(bytes_request(method, path, media_type, body)).await;
        let status = refused.assert_failure(413, "RequestEntityTooLarge");
        assert_eq!(status["message"], "Request entity too large: limit is 1572864", "{media_type}");
        // One copy takes 300 MB.
        let peak = api.gateway.peak_kilobytes();
        assert!(peak < 500_000, "{media_type}: {peak} kB");
    }
    let (api, client) = start_with_free_objects().await;
    let yaml = post(&client, YAML, format!("x: [{}]", "{a},".repeat(700_000))).await;
    assert_bad_request(&yaml, "too many mappings");
    let peak = api.gateway.peak_kilobytes();
    assert!(peak < 500_000, "YAML: {peak} kB");
}

#[tokio::test]
async fn body_of_more_than_128_levels_is_400() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let nested = |open: &str, close: &str, levels: usize| {
        format!("{{\"metadata\":{{\"name\":\"deep\"}},\"x\":{}1{}}}", open.repeat(levels), close.repeat(levels))
    };
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let body = nested(open, close, 128);
        assert_bad_request(&post(&client, JSON, body.clone()).await, "exceeded max depth");
        assert_bad_request(&post(&client, YAML, body).await, "exceeded max depth");
        assert_bad_request(
            &post(&client, JSON, nested(open, close, 1_000_000 / open.len())).await,
            "exceeded max depth",
        );
    }
    let allowed = post(&client, JSON, nested("[", "]", 127)).await;
    assert_eq!(allowed.status, 201, "{}", allowed.text());
    let deep = nested("[", "]", 1_000_000);
    for media_type in
        ["application/json-patch+json", "application/merge-patch+json", "application/strategic-merge-patch+json"]
    {
        let patch = bytes_request(Method::PATCH, &format!("{CONFIG_MAPS}/deep"), media_type, deep.clone());
        client.send_and_read(patch).await.assert_failure(400, "BadRequest");
    }
}

#[tokio::test]
async fn yaml_bombs_are_400_and_duplicate_keys_are_found() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let mut bomb = String::from("metadata: {name: bomb}\na0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for level in 1..12 {
        let aliases = format!("*a{}, ", level - 1).repeat(10);
        bomb += &format!("a{level}: &a{level} [{}]\n", aliases.trim_end_matches(", "));
    }
    assert_bad_request(&post(&client, YAML, bomb).await, "document contains excessive aliasing");
    let itself = "metadata: {name: a}\nx: &x [*x]\n";
    assert_bad_request(&post(&client, YAML, itself).await, "yaml: ");
    assert_bad_request(&post(&client, YAML, "metadata: {name: a}\nx: !!binary %%%\n").await, "yaml: ");
    // As API servers read YAML: merge keys, and `yes` is a boolean.
    let merged = "base: &base {a: '1'}\nmetadata: {name: merged}\ndata: {<<: *base, b: '2'}\n";
    let merged = post(&client, YAML, merged).await;
    assert_eq!((merged.status.as_u16(), &merged.json()["data"]), (201, &json!({"a": "1", "b": "2"})));

    let twice = "metadata: {name: twice}\ndata:\n  a: '1'\n  a: '2'\n";
    let strict = bytes_request(Method::POST, &format!("{CONFIG_MAPS}?fieldValidation=Strict"), YAML, twice);
    let strict = client.send_and_read(strict).await;
    assert_bad_request(
        &strict,
        "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"a\" already set in map",
    );
    let strict = bytes_request(
        Method::POST,
        &format!("{CONFIG_MAPS}?fieldValidation=Strict"),
        JSON,
        r#"{"metadata":{"name":"twice"},"data":{"a":"1","a":"2"},"other":1}"#,
    );
    let strict = client.send_and_read(strict).await;
    assert_bad_request(&strict, r#"strict decoding error: duplicate field "data.a", unknown field "other""#);
    let warned = post(&client, JSON, r#"{"metadata":{"name":"twice"},"data":{"a":"1","a":"2"},"other":1}"#).await;
    let warnings: Vec<_> = warned.headers.get_all("warning").iter().map(|value| value.to_str().unwrap()).collect();
    assert_eq!(warnings, [r#"299 - "duplicate field \"data.a\"""#, r#"299 - "unknown field \"other\"""#]);
    assert_eq!(warned.json()["data"], json!({"a": "2"}), "the last of duplicate keys counts");
}

#[tokio::test]
async fn warnings_of_a_body_are_bounded() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http1().await;
    let mut fields = serde_json::Map::new();
    fields.insert("metadata".to_owned(), json!({"name": "many"}));
    for number in 0..1000 {
        fields.insert(format!("unknown{number}{}", "x".repeat(900)), json!(1));
    }
    let response = post(&client, JSON, Value::Object(fields).to_string()).await;
    assert_eq!(response.status, 201, "{}", response.text());
    let sizes: Vec<usize> = response.headers.get_all("warning").iter().map(|value| value.len()).collect();
    assert!(sizes.len() == 16 && sizes.iter().all(|size| *size < 300), "{sizes:?}");
}

#[tokio::test]
async fn numbers_and_text_that_fit_no_field_are_400() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let lease = |seconds: &str| {
        let body = format!("{{\"metadata\":{{\"name\":\"l\"}},\"spec\":{{\"leaseDurationSeconds\":{seconds}}}}}");
        bytes_request(Method::POST, "/apis/coordination.k8s.io/v1/namespaces/default/leases", JSON, body)
    };
    for seconds in ["9223372036854775808", "2147483648", "1e400", "1.5", "-1e999999999", "\"15\"", "NaN", "0x10"] {
        let response = client.send_and_read(lease(seconds)).await;
        assert_eq!(response.status, 400, "{seconds}: {}", response.text());
    }
    assert_eq!(client.send_and_read(lease("15")).await.status, 201);
    // Invalid UTF-8 in JSON is replaced, as by Go; in YAML it is refused.
    let mut object = br#"{"metadata":{"name":"utf8"},"data":{"k":"a"#.to_vec();
    object.extend(b"\xff\"}}");
    let stored = post(&client, JSON, object).await;
    assert_eq!((stored.status.as_u16(), &stored.json()["data"]["k"]), (201, &json!("a\u{fffd}")));
    assert_bad_request(&post(&client, YAML, &b"metadata: {name: \"\xff\"}"[..]).await, "utf-8");
    for (media_type, body) in [(JSON, ""), (JSON, "null"), (JSON, "[]"), (YAML, ""), (YAML, "- a"), (PROTOBUF, "k8s")] {
        let response = post(&client, media_type, body).await;
        assert!(matches!(response.status.as_u16(), 400 | 422), "{media_type} {body}: {}", response.text());
    }
    post(&client, "application/cbor", "x").await.assert_failure(415, "UnsupportedMediaType");
    post(&client, "text/html", "x").await.assert_failure(415, "UnsupportedMediaType");
}

/// `runtime.Unknown` around a ConfigMap with a name and data.
fn protobuf_config_map() -> Vec<u8> {
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], bytes].concat()
    }
    let metadata = field(1, &field(1, b"binary"));
    let entry = field(2, &[field(1, b"key"), field(2, b"value")].concat());
    let object = [metadata, entry].concat();
    let type_meta = field(1, &[field(1, b"v1"), field(2, b"ConfigMap")].concat());
    [&b"k8s\0"[..], &type_meta, &field(2, &object), &field(3, b""), &field(4, b"")].concat()
}

#[tokio::test]
async fn protobuf_cut_at_every_byte_is_no_other_object() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let whole = protobuf_config_map();
    let path = format!("{CONFIG_MAPS}?dryRun=All");
    let dry_run = async |body: Vec<u8>| client.send_and_read(bytes_request(Method::POST, &path, PROTOBUF, body)).await;
    for end in 0..whole.len() {
        let response = dry_run(whole[..end].to_vec()).await;
        // Cut between the fields of the envelope it may still be whole.
        match response.status.as_u16() {
            201 => assert_eq!(response.json()["data"], json!({"key": "value"}), "cut at {end}"),
            status => assert!(matches!(status, 400 | 422), "cut at {end}: {}", response.text()),
        }
    }
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 0x80;
        let response = dry_run(flipped).await;
        assert!(matches!(response.status.as_u16(), 201 | 400 | 422), "flipped at {at}: {}", response.text());
    }
    let stored = post(&client, PROTOBUF, whole).await;
    assert_eq!((stored.status.as_u16(), &stored.json()["data"]), (201, &json!({"key": "value"})));
}

#[tokio::test]
async fn server_side_apply_is_415_with_what_to_use() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for (media_type, body) in [
        ("application/apply-patch+yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"),
        ("application/apply-patch+yaml", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#),
        ("application/apply-patch+cbor", "x"),
    ] {
        let path = format!("{CONFIG_MAPS}/a?fieldManager=kubectl&force=true");
        let apply = request(Method::PATCH, &path, &[("content-type", media_type)], body);
        let status = client.send_and_read(apply).await.assert_failure(415, "UnsupportedMediaType");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("use kubectl apply without --server-side"), "{message}");
    }
    let other = request(Method::PATCH, &format!("{CONFIG_MAPS}/a"), &[("content-type", "text/plain")], "x");
    let status = client.send_and_read(other).await.assert_failure(415, "UnsupportedMediaType");
    assert!(!status["message"].as_str().unwrap().contains("kubectl"), "{status}");
}

#[tokio::test]
async fn deletion_leaves_dependents_to_a_garbage_collector_that_runs() {
    // It is that of a kube-controller-manager.
    let api = EmbeddedApiFixture::start(&["--controllers=*,-garbage-collector-controller"]);
    let client = api.http2().await;
    let delete = async |path: &str, body: &'static str| {
        client.send_and_read(bytes_request(Method::DELETE, path, JSON, body)).await
    };
    for (name, body, finalizers) in [
        ("foreground", r#"{"propagationPolicy":"Foreground"}"#, json!(["foregroundDeletion"])),
        ("orphan", r#"{"propagationPolicy":"Orphan"}"#, json!(["orphan"])),
        ("former", r#"{"orphanDependents":true}"#, json!(["orphan"])),
    ] {
        let path = format!("{CONFIG_MAPS}/{name}");
        assert_eq!(
            send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": name}})).await.status,
            201
        );
        assert_eq!(delete(&path, body).await.status, 200);
        let marked = client.get(&path).await.json();
        assert_eq!(marked["metadata"]["finalizers"], finalizers, "{name}");
        let time = &marked["metadata"]["deletionTimestamp"];
        assert!(time.is_string(), "{marked}");
        // Another deletion may change the policy, not the time.
        assert_eq!(delete(&path, r#"{"propagationPolicy":"Foreground"}"#).await.status, 200);
        let again = client.get(&path).await.json();
        assert_eq!(again["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        assert_eq!(&again["metadata"]["deletionTimestamp"], time);
        assert_eq!(delete(&path, r#"{"propagationPolicy":"Background"}"#).await.status, 200);
        assert_eq!(client.get(&path).await.status, 404);
    }
    assert_eq!(
        send_json(&client, Method::POST, CONFIG_MAPS, &json!({"metadata": {"name": "plain"}})).await.status,
        201
    );
    assert_eq!(delete(&format!("{CONFIG_MAPS}/plain"), "").await.status, 200);
    assert_eq!(client.get(&format!("{CONFIG_MAPS}/plain")).await.status, 404);
}

#[tokio::test]
async fn delete_options_that_are_not_supported_are_refused_by_name() {
    let api = EmbeddedApiFixture::start(&["--enable-garbage-collector=false"]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "kept"}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    let path = format!("{CONFIG_MAPS}/kept");
    for (path, media_type, body) in [
        (path.clone(), JSON, r#"{"propagationPolicy":"Foreground"}"#),
        (path.clone(), YAML, "propagationPolicy: Orphan"),
        (path.clone(), JSON, r#"{"orphanDependents":true}"#),
        (format!("{path}?propagationPolicy=Foreground"), JSON, ""),
        (CONFIG_MAPS.to_owned(), JSON, r#"{"propagationPolicy":"Orphan"}"#),
    ] {
        let status = client.send_and_read(bytes_request(Method::DELETE, &path, media_type, body)).await;
        let status = status.assert_failure(422, "Invalid");
        assert!(status["message"].as_str().unwrap().contains("no garbage collector; use Background"), "{status}");
    }
    for body in ["[", "{\"preconditions\":[[[[", "\u{0}"] {
        client.send_and_read(bytes_request(Method::DELETE, &path, JSON, body)).await.assert_failure(400, "BadRequest");
    }
    assert_eq!(client.get(&path).await.status, 200);
    let gone =
        client.send_and_read(bytes_request(Method::DELETE, &path, JSON, r#"{"propagationPolicy":"Background"}"#));
    assert_eq!(gone.await.status, 200);
}

#[tokio::test]
async fn number_beyond_floats_is_400_where_it_is_read() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    for (body, expected) in [
        (
            r#"{"metadata":{"name":"a","generation":1e400}}"#,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number 1e400 into Go \
             struct field ObjectMeta.metadata.generation of type int64",
        ),
        (
            r#"{"metadata":{"name":"a"},"data":{"a":1e400}}"#,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct \
             field ConfigMap.data of type string",
        ),
        (r#"{"kind":1e400}"#, "cannot unmarshal number into Go struct field .kind of type string"),
    ] {
        assert_bad_request(&post(&client, JSON, body).await, expected);
    }
    let unknown = post(&client, JSON, r#"{"metadata":{"name":"a"},"unknown":1e400}"#).await;
    assert_eq!(unknown.status, 201, "{}", unknown.text());

    super::conversion_webhooks::establish(
        &client,
        &super::conversion_webhooks::crd("v1", &json!({"strategy": "None"})),
    )
    .await;
    for (body, version) in [
        (r#"{"apiVersion":"example.com/v1","kind":"Route","metadata":{"name":"a"},"spec":{"x":[1e400]}}"#, "v1"),
        (r#"{"apiVersion":"example.com/v9","kind":"Route","metadata":{"generation":1e400}}"#, "v9"),
    ] {
        let path = super::conversion_webhooks::V1;
        let response = client.send_and_read(bytes_request(Method::POST, path, JSON, body)).await;
        let expected = format!(
            "Route in version {version:?} cannot be handled as a Route: json: cannot unmarshal number 1e400 into Go value \
             of type float64"
        );
        assert_eq!(response.assert_failure(400, "BadRequest")["message"], *expected);
    }
}

#[tokio::test]
async fn yaml_body_with_quoted_lines_at_indentation_of_key_is_read() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let created = post(&client, YAML, "metadata:\n  name: a\ndata:\n  k: \"one\n  two\"\n").await;
    assert_eq!((created.status.as_u16(), &created.json()["data"]["k"]), (201, &json!("one two")));
}
