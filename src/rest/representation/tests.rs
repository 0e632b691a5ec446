//! Tests of the representations: negotiation, one object, lists, events.

use std::sync::Arc;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::HeaderMap;
use http::header::{ACCEPT, ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT, VARY};
use http_body_util::BodyExt as _;
use kubeapi::Query;
use kubeapi::protobuf::decode::{decode_object, read_envelope};
use kubeapi::yaml::read_yaml;
use serde_json::{Value, json};
use store::watch_cache::{
    CollectionSettings, Collections, ContinuePosition, HistoryLimits, ResourceCollection, Selection, Stored,
    WatchCursor, WatchQuery, WatchStart,
};
use store::{KeyValue, MemoryStore, Prefix};

use super::negotiate::{ObjectTransform, OutputEncoding, RowObject};
use super::*;
use crate::resources::builtin::builtin_kinds;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io";
const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// What kubectl sends.
const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,\
                       application/json";

fn config_maps() -> ServedKind {
    builtin_kinds().find("", "v1", "configmaps").unwrap()
}

fn negotiate_query(verb: &str, accept: &str, query: &str, agent: &str) -> Result<OutputMediaType, Status> {
    let headers = [(ACCEPT, accept), (USER_AGENT, agent)].map(|(name, value)| (name, value.parse().unwrap()));
    OutputMediaType::negotiate(&config_maps(), verb, &Query::parse(query), &HeaderMap::from_iter(headers))
}

fn negotiate(verb: &str, accept: &str) -> OutputMediaType {
    negotiate_query(verb, accept, "", "").unwrap()
}

fn prefix() -> Prefix {
    Prefix::parse("/registry/configmaps/").unwrap()
}

/// A stored ConfigMap as it is written: sorted, without a resourceVersion.
fn config_map_json(name: &str, data: &str) -> Bytes {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": data}, "metadata": {
        "name": name, "namespace": "default", "uid": "5fb1a22c-585f-4282-a9ac-64686cd450ab",
        "creationTimestamp": "2026-11-23T02:52:12Z", "labels": {"x": "y"},
    }});
    format!("{object}\n").into()
}

fn stored_value(name: &str, value: Bytes) -> Arc<Stored> {
    let key = prefix().key("default", name).unwrap();
    Arc::new(Stored::new(Arc::new(KeyValue { key, value, created: 2, revision: 214, expires: None }), &prefix(), &[]))
}

fn stored(name: &str, data: &str) -> Arc<Stored> {
    stored_value(name, config_map_json(name, data))
}

fn document(accept: &str, query: &str) -> String {
    let media_type = negotiate_query("get", accept, query, "").unwrap();
    let object = ReplyObject::stored(stored("a", "v"));
    String::from_utf8(object_document(&config_maps(), &object, media_type, true).unwrap()).unwrap()
}

fn list_of(objects: Vec<Arc<Stored>>) -> StoredList {
    StoredList { revision: 216, objects, next: None, remaining: None }
}

async fn list_response(list: StoredList, accept: &str, gzip: bool) -> (HeaderMap, Vec<Bytes>) {
    let mut headers = HeaderMap::from_iter([(ACCEPT, accept.parse().unwrap())]);
    if gzip {
        headers.insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
    }
    let media_type = OutputMediaType::negotiate(&config_maps(), "list", &Query::parse(""), &headers).unwrap();
    let response = respond(&config_maps(), media_type, StatusCode::OK, ReplyContent::List(list)).await.unwrap();
    let (parts, mut body) = response.into_parts();
    let mut frames = Vec::new();
    while let Some(frame) = body.frame().await {
        frames.push(frame.unwrap().into_data().unwrap());
    }
    (parts.headers, frames)
}

async fn list_json(list: StoredList, accept: &str) -> Value {
    serde_json::from_slice(&list_response(list, accept, false).await.1.concat()).unwrap()
}

fn decode(body: &[u8]) -> (String, Value) {
    let envelope = read_envelope(body).unwrap();
    let kinds = builtin_kinds();
    let message = match envelope.kind {
        "ConfigMap" => config_maps().version.message().unwrap(),
        "ConfigMapList" => config_maps().version.list_message().unwrap(),
        meta => kinds.meta_message(meta).unwrap(),
    };
    (envelope.kind.to_owned(), decode_object(&kinds.messages, message, &envelope).unwrap())
}

#[test]
fn representation_negotiated_by_accept() {
    use ObjectTransform::{PartialMetadata, Table, Unchanged};
    use OutputEncoding::{Json, Protobuf, Yaml};
    let v1 = "meta.k8s.io/v1";
    for (verb, accept, expected) in [
        ("get", "", (Json, Unchanged)),
        ("get", "*/*", (Json, Unchanged)),
        ("get", "application/yaml", (Yaml, Unchanged)),
        ("list", "application/vnd.kubernetes.protobuf, */*", (Protobuf, Unchanged)),
        ("get", "application/vnd.kubernetes.protobuf;q=0.5,application/json", (Json, Unchanged)),
        ("get", "application/json;charset=utf-8", (Json, Unchanged)),
        ("get", "application/json;stream=watch;sv=v1", (Json, Unchanged)),
        ("list", KUBECTL, (Json, Table(v1, RowObject::Metadata))),
        ("watch", KUBECTL, (Json, Table(v1, RowObject::Metadata))),
        (
            "get",
            "application/yaml;as=Table;v=v1beta1;g=meta.k8s.io",
            (Yaml, Table("meta.k8s.io/v1beta1", RowObject::Metadata)),
        ),
        // The first clause has a transformation that protobuf has not.
        ("get", &format!("{PROTOBUF};as=Table;v=v1;g=meta.k8s.io,{PARTIAL}"), (Json, PartialMetadata(v1))),
        (
            "list",
            &format!("{PROTOBUF};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"),
            (Protobuf, PartialMetadata(v1)),
        ),
        ("watch", &format!("{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io"), (Protobuf, PartialMetadata(v1))),
        ("get", "application/json;as=Table;v=v2;g=meta.k8s.io,application/yaml", (Yaml, Unchanged)),
    ] {
        let found = negotiate(verb, accept);
        assert_eq!((found.encoding, found.transform), expected, "{verb} {accept}");
    }
    let row = |query| negotiate_query("get", TABLE, query, "").unwrap().transform;
    assert_eq!(row("includeObject=None"), Table(v1, RowObject::Absent));
    assert_eq!(row("includeObject=Object"), Table(v1, RowObject::Complete));
}

#[test]
fn representation_json_is_indented_for_people() {
    let encoding = |verb, accept, query, agent| negotiate_query(verb, accept, query, agent).unwrap().encoding;
    for (verb, accept, query, agent, is_pretty) in [
        ("get", "*/*", "", "curl/8", true),
        ("get", "*/*", "pretty=false", "curl/8", false),
        ("get", "*/*", "pretty=true", "", true),
        ("get", "application/json;pretty=1", "", "", true),
        ("get", "application/json;pretty=0", "", "kubectl/v1.36", false),
        ("watch", "*/*", "pretty=true", "curl/8", false),
    ] {
        let expected = if is_pretty { OutputEncoding::PrettyJson } else { OutputEncoding::Json };
        assert_eq!(encoding(verb, accept, query, agent), expected, "{verb} {accept} {query} {agent}");
    }
    assert_eq!(encoding("get", "application/yaml", "pretty=1", "curl/8"), OutputEncoding::Yaml);
}

/// Texts of a kube-apiserver 1.36.3.
#[test]
fn representation_not_acceptable_names_what_is_supported() {
    let media_types = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    let streams = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    let only = format!("only the following media types are accepted: {media_types}");
    let available = format!("406: Not Acceptable\n\nAvailable representations: {media_types}");
    for (verb, accept, expected) in [
        ("get", "text/html", available.clone()),
        ("create", "text/html", available.clone()),
        ("list", "text/html", format!("{available}, {streams}")),
        ("watch", "text/html", format!("{available}, {streams}")),
        ("watch", "application/yaml", format!("only the following media types are accepted: {streams}")),
        ("get", "application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", only.clone()),
        ("get", "application/json;as=Foo;v=v1;g=meta.k8s.io", only.clone()),
        ("get", "application/json;v=v1", only.clone()),
        ("get", "application/json;stream=other", only.clone()),
        ("get", "application/yaml;stream=watch", only),
        (
            "list",
            PARTIAL,
            "you requested PartialObjectMetadata, but the requested object is a list (*core.ConfigMapList)".into(),
        ),
        (
            "get",
            PARTIAL_LIST,
            "you requested PartialObjectMetadataList, but the requested object is not a list (*core.ConfigMap)".into(),
        ),
    ] {
        let status = negotiate_query(verb, accept, "", "").unwrap_err();
        assert_eq!(
            (status.code, status.reason, &*status.message),
            (406, "NotAcceptable", &*expected),
            "{verb} {accept}"
        );
    }
    let invalid = negotiate_query("get", TABLE, "includeObject=x", "").unwrap_err();
    assert_eq!(
        (invalid.code, &*invalid.message),
        (
            400,
            "Unable to convert to Table as requested: includeObject: Invalid value: \"x\": must be 'Metadata', 'Object', 'None', or empty"
        )
    );
}

#[test]
fn representation_of_object_in_each_encoding() {
    let json = document("application/json", "");
    assert_eq!(
        json,
        "{\"apiVersion\":\"v1\",\"data\":{\"k\":\"v\"},\"kind\":\"ConfigMap\",\"metadata\":{\"creationTimestamp\":\
                      \"2026-11-23T02:52:12Z\",\"labels\":{\"x\":\"y\"},\"name\":\"a\",\"namespace\":\"default\",\
                      \"resourceVersion\":\"214\",\"uid\":\"5fb1a22c-585f-4282-a9ac-64686cd450ab\"}}\n"
    );
    let pretty = document("application/json", "pretty=1");
    assert!(
        pretty.starts_with("{\n  \"apiVersion\": \"v1\",\n  \"data\": {\n    \"k\": \"v\"\n  },")
            && pretty.ends_with("\n  }\n}")
    );
    let value: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&pretty).unwrap(), value);
    let yaml = document("application/yaml", "");
    assert!(yaml.starts_with(
        "apiVersion: v1\ndata:\n  k: v\nkind: ConfigMap\nmetadata:\n  creationTimestamp: \"2026-11-23T02:52:12Z\"\n"
    ));
    assert_eq!(read_yaml(&yaml).unwrap().value, value);
    assert_eq!(
        document(PARTIAL, ""),
        format!(
            "{{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{}}}\n",
            value["metadata"]
        )
    );
}

/// Bytes of a kube-apiserver 1.36.3, without managedFields.
#[test]
fn representation_of_object_in_protobuf_is_that_of_kube_apiserver() {
    let encode = |accept| {
        let object = ReplyObject::stored(stored("a", "v<&"));
        object_document(&config_maps(), &object, negotiate("get", accept), true).unwrap()
    };
    let metadata =
        "CgFhEgAaB2RlZmF1bHQiACokNWZiMWEyMmMtNTg1Zi00MjgyLWE5YWMtNjQ2ODZjZDQ1MGFiMgMyMTQ4AEIICNzUjtgGEABaBgoBeBIBeQ==";
    let metadata = STANDARD.decode(metadata).unwrap();
    let length = u8::try_from(metadata.len()).unwrap();
    let object = [
        &b"k8s\0\n\x0f\n\x02v1\x12\tConfigMap\x12"[..],
        &[length + 12, 10, length],
        &metadata,
        b"\x12\x08\n\x01k\x12\x03v<&\x1a\0\"\0",
    ];
    assert_eq!(encode(PROTOBUF), object.concat());
    let head = b"k8s\0\n'\n\x0emeta.k8s.io/v1\x12\x15PartialObjectMetadata\x12";
    let partial = [&head[..], &[length + 2, 10, length], &metadata, b"\x1a\0\"\0"];
    assert_eq!(encode(&format!("{PROTOBUF};as=PartialObjectMetadata;v=v1;g=meta.k8s.io")), partial.concat());
}

#[test]
fn table_of_object_has_columns_cells_and_row_object() {
    let table = |query| serde_json::from_str::<Value>(&document(TABLE, query)).unwrap();
    let metadata = table("");
    assert!(document(TABLE, "").starts_with("{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"214\"},\"columnDefinitions\":[{\"name\":\"Name\",\"type\":\"string\",\"format\":\"name\",\"description\":\"Name must"));
    let names: Vec<_> =
        metadata["columnDefinitions"].as_array().unwrap().iter().map(|column| &column["name"]).collect();
    assert_eq!(names, ["Name", "Data", "Age"]);
    let row = &metadata["rows"][0];
    assert_eq!((&row["cells"][0], &row["cells"][1]), (&json!("a"), &json!(1)));
    assert_eq!(
        (&row["object"]["kind"], &row["object"]["metadata"]["resourceVersion"]),
        (&json!("PartialObjectMetadata"), &json!("214"))
    );
    assert_eq!(row["object"].get("data"), None);
    assert_eq!(table("includeObject=None")["rows"][0]["object"], Value::Null);
    assert_eq!(table("includeObject=Object")["rows"][0]["object"]["data"], json!({"k": "v"}));
    let yaml =
        read_yaml(&document("application/yaml;as=Table;v=v1;g=meta.k8s.io", "includeObject=None")).unwrap().value;
    assert_eq!(yaml["rows"][0]["cells"][0], "a");
    let unstored = ReplyObject::Unstored(json!({"metadata": {"name": "dry"}}));
    let dry_run = object_document(&config_maps(), &unstored, negotiate("create", TABLE), true).unwrap();
    let dry_run: Value = serde_json::from_slice(&dry_run).unwrap();
    assert_eq!((&dry_run["metadata"], &dry_run["rows"][0]["cells"]), (&json!({}), &json!(["dry", 0, "<unknown>"])));
}

#[tokio::test]
async fn list_page_has_continue_and_remaining_count_in_each_representation() {
    let page = || {
        let next = Some(ContinuePosition { revision: Some(216), start: "/a\0".to_owned() });
        StoredList { next, remaining: Some(2), ..list_of(vec![stored("a", "v")]) }
    };
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6MjE2LCJzdGFydCI6Ii9hXHUwMDAwIn0";
    let metadata = json!({"resourceVersion": "216", "continue": token, "remainingItemCount": 2});
    let plain = list_json(page(), "").await;
    assert_eq!(
        (&plain["kind"], &plain["metadata"], &plain["items"][0]["data"]["k"]),
        (&json!("ConfigMapList"), &metadata, &json!("v"))
    );
    assert_eq!(list_json(page(), "application/json;pretty=1").await, plain);
    let table = list_json(page(), TABLE).await;
    assert_eq!((&table["metadata"], table["rows"].as_array().unwrap().len()), (&metadata, 1));
    let partial = list_json(page(), PARTIAL_LIST).await;
    assert_eq!((&partial["kind"], &partial["metadata"]), (&json!("PartialObjectMetadataList"), &metadata));
    assert_eq!(partial["items"][0]["kind"], "PartialObjectMetadata");
    for (accept, expected) in [
        ("application/yaml", &plain),
        ("application/yaml;as=Table;v=v1;g=meta.k8s.io", &table),
        ("application/yaml;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", &partial),
    ] {
        let (headers, frames) = list_response(page(), accept, false).await;
        assert_eq!(headers[CONTENT_TYPE], "application/yaml");
        let yaml = read_yaml(std::str::from_utf8(&frames.concat()).unwrap()).unwrap().value;
        assert_eq!((&yaml["metadata"], &yaml["items"]), (&expected["metadata"], &expected["items"]), "{accept}");
        assert_eq!((&yaml["kind"], &yaml["rows"][0]["object"]), (&expected["kind"], &expected["rows"][0]["object"]));
    }
    let (headers, frames) = list_response(page(), PROTOBUF, false).await;
    assert_eq!(headers[CONTENT_TYPE], PROTOBUF);
    let (kind, list) = decode(&frames.concat());
    assert_eq!((&*kind, &list["metadata"], &list["items"][0]["data"]["k"]), ("ConfigMapList", &metadata, &json!("v")));
    let (_, frames) =
        list_response(page(), &format!("{PROTOBUF};as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"), false).await;
    let (kind, list) = decode(&frames.concat());
    assert_eq!(
        (&*kind, &list["metadata"], &list["items"][0]["metadata"]["name"]),
        ("PartialObjectMetadataList", &metadata, &json!("a"))
    );
}

#[tokio::test]
async fn list_without_objects_is_empty_in_each_representation() {
    for accept in ["", "application/json;pretty=1", TABLE, PARTIAL_LIST] {
        let list = list_json(list_of(Vec::new()), accept).await;
        assert_eq!(list.get("items").or(list.get("rows")), Some(&json!([])), "{accept}");
    }
    for accept in ["application/yaml", "application/yaml;as=Table;v=v1;g=meta.k8s.io"] {
        let (_, frames) = list_response(list_of(Vec::new()), accept, false).await;
        let list = read_yaml(std::str::from_utf8(&frames.concat()).unwrap()).unwrap().value;
        assert_eq!(list.get("items").or(list.get("rows")), Some(&json!([])), "{accept}");
    }
    let (_, frames) = list_response(list_of(Vec::new()), PROTOBUF, false).await;
    assert_eq!(decode(&frames.concat()).1["metadata"]["resourceVersion"], "216");
}

#[tokio::test]
async fn list_of_many_objects_comes_in_bounded_frames() {
    let many: Vec<_> = (0..2_000).map(|n| stored(&format!("name-{n:04}"), &"x".repeat(300))).collect();
    let large = stored("name-large", &"y".repeat(200 << 10));
    let all = || list_of(many.iter().cloned().chain([large.clone()]).collect());
    for accept in ["", "application/json;pretty=1", TABLE, "application/yaml", PROTOBUF] {
        let (headers, frames) = list_response(all(), accept, false).await;
        assert_eq!(headers.get(CONTENT_ENCODING), None);
        assert!(frames.len() > 3, "{accept}: {} frames", frames.len());
        let longest = frames[..frames.len() - 1].iter().map(Bytes::len).max().unwrap();
        assert!(longest < 400 << 10, "{accept}: a frame of {longest} bytes");
        let body = frames.concat();
        let list = match accept {
            "application/yaml" => read_yaml(std::str::from_utf8(&body).unwrap()).unwrap().value,
            PROTOBUF => decode(&body).1,
            _ => serde_json::from_slice(&body).unwrap(),
        };
        let items = list.get("items").or(list.get("rows")).unwrap().as_array().unwrap();
        let name = |item: &Value| item["metadata"].get("name").or(item["cells"].get(0)).cloned().unwrap();
        assert_eq!(items.len(), 2_001, "{accept}");
        assert_eq!((name(&items[7]), name(&items[2_000])), (json!("name-0007"), json!("name-large")), "{accept}");
    }
}

#[tokio::test]
async fn list_in_protobuf_beyond_what_is_kept_is_encoded_again_in_order() {
    let many: Vec<_> = (0..30).map(|n| stored(&format!("name-{n:02}"), &"x".repeat(200 << 10))).collect();
    let (_, frames) = list_response(list_of(many), PROTOBUF, false).await;
    assert!(frames.iter().all(|frame| frame.len() < 400 << 10));
    let list = decode(&frames.concat()).1;
    let items = list["items"].as_array().unwrap();
    let names: Vec<_> = items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (0..30).map(|n| format!("name-{n:02}")).collect::<Vec<_>>());
    assert!(items.iter().all(|item| item["data"]["k"].as_str().unwrap().len() == 200 << 10));
}

#[tokio::test]
async fn indented_object_that_is_nested_deep_comes_in_bounded_frames() {
    let nested = format!("{}{}1{}", "[".repeat(120), "1,".repeat(300_000), "]".repeat(120));
    let value = serde_json::from_str(&format!("{{\"metadata\":{{\"name\":\"a\"}},\"data\":{nested}}}")).unwrap();
    let pretty = OutputMediaType { encoding: OutputEncoding::PrettyJson, ..negotiate("get", "") };
    let content = ReplyContent::Object(ReplyObject::Unstored(value));
    let mut body = respond(&config_maps(), pretty, StatusCode::OK, content).await.unwrap().into_body();
    let (mut bytes, mut longest) = (0, 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.unwrap().into_data().unwrap();
        bytes += frame.len();
        longest = longest.max(frame.len());
    }
    assert!(bytes > 60 << 20, "{bytes}");
    assert!(longest < 8 << 20, "a frame of {longest} bytes");
}

#[tokio::test]
async fn list_over_128_kib_is_gzipped_for_clients_that_accept_it() {
    let list = |count: usize| list_of((0..count).map(|n| stored(&format!("n-{n}"), &"x".repeat(700))).collect());
    let unzip = |body: &[u8]| {
        let mut plain = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(body), &mut plain).unwrap();
        plain
    };
    for accept in ["", TABLE, PROTOBUF] {
        let count = 800;
        let (headers, frames) = list_response(list(count), accept, true).await;
        assert!(headers[CONTENT_ENCODING] == "gzip" && headers[VARY] == "Accept-Encoding", "{accept}: {headers:?}");
        let body = unzip(&frames.concat());
        assert!(frames.concat().len() < body.len() / 3);
        let plain = list_response(list(count), accept, false).await.1.concat();
        assert_eq!(body.len(), plain.len(), "{accept}");
    }
    let (headers, frames) = list_response(list(100), "", true).await;
    assert_eq!(headers.get(CONTENT_ENCODING), None, "{} bytes", frames.concat().len());
}

#[tokio::test]
async fn list_with_unreadable_object_is_an_internal_error() {
    let list = list_of(vec![stored("a", "v"), stored_value("broken", "k8s\0".into())]);
    let refused = list_frames(&config_maps(), list, negotiate("list", "")).await.err().unwrap();
    assert_eq!(refused.code, 500);
    assert!(refused.message.contains("/registry/configmaps/default/broken cannot be read"), "{}", refused.message);
    let broken = ReplyObject::stored(stored_value("broken", "k8s\0".into()));
    assert_eq!(object_document(&config_maps(), &broken, negotiate("get", TABLE), true).unwrap_err().code, 500);
}

struct WatchFixture {
    collections: Collections,
    config_maps: ResourceCollection,
}

impl WatchFixture {
    fn new() -> WatchFixture {
        let store = Arc::new(MemoryStore::new());
        let collections = Collections::new(store, HistoryLimits::default(), Arc::new(|| 0));
        let settings = CollectionSettings { prefix: prefix(), fields: Arc::new([]), upgrade: None, repair: None };
        WatchFixture { config_maps: collections.collection(&settings), collections }
    }

    async fn create(&self, name: &str) {
        let key = prefix().key("default", name).unwrap();
        self.config_maps.create(&key, config_map_json(name, "v"), None).await.unwrap();
    }

    async fn watch(&self, start: WatchStart) -> WatchCursor {
        let (namespace, selection) = (None, Selection::default());
        let query = WatchQuery { namespace, selection, start, sends_bookmarks: true, timeout: None };
        self.config_maps.watch(query, &self.collections.notifier()).await.unwrap()
    }
}

async fn next(cursor: &mut WatchCursor, encoder: &mut EventEncoder) -> Bytes {
    encoder.encode(cursor.next().await.unwrap().unwrap()).await.unwrap()
}

fn encoder(accept: &str, query: &str) -> EventEncoder {
    let media_type = negotiate_query("watch", accept, query, "").unwrap();
    EventEncoder::new(config_maps(), media_type, EventViewCache::default())
}

#[tokio::test]
async fn watch_events_in_each_representation() {
    let fixture = WatchFixture::new();
    fixture.create("a").await;
    let initial = WatchStart::Latest { marks_end: true };
    let json = |frame: &[u8]| serde_json::from_slice::<Value>(frame).unwrap();

    let (mut cursor, mut plain) = (fixture.watch(initial).await, encoder("", ""));
    let added = next(&mut cursor, &mut plain).await;
    assert!(added.starts_with(b"{\"type\":\"ADDED\",\"object\":{\"apiVersion\":\"v1\",") && added.ends_with(b"}}}\n"));
    let end = json(&next(&mut cursor, &mut plain).await);
    let metadata = json!({"resourceVersion": "2", "annotations": {"k8s.io/initial-events-end": "true"}});
    assert_eq!(
        (&end["type"], &end["object"]["kind"], &end["object"]["metadata"]),
        (&json!("BOOKMARK"), &json!("ConfigMap"), &metadata)
    );

    let (mut cursor, mut partial) = (fixture.watch(initial).await, encoder(PARTIAL, ""));
    let added = json(&next(&mut cursor, &mut partial).await);
    assert_eq!(
        (&added["object"]["kind"], &added["object"]["metadata"]["resourceVersion"]),
        (&json!("PartialObjectMetadata"), &json!("2"))
    );
    assert_eq!(json(&next(&mut cursor, &mut partial).await)["object"]["kind"], "PartialObjectMetadata");

    let (mut cursor, mut table) = (fixture.watch(initial).await, encoder(TABLE, "includeObject=None"));
    let added = json(&next(&mut cursor, &mut table).await)["object"].take();
    assert_eq!((&added["kind"], &added["metadata"]), (&json!("Table"), &json!({"resourceVersion": "2"})));
    assert_eq!((added["columnDefinitions"].as_array().unwrap().len(), &added["rows"][0]["object"]), (3, &Value::Null));
    let end = json(&next(&mut cursor, &mut table).await)["object"].take();
    assert_eq!(end["columnDefinitions"], Value::Null, "columns are in the first event only");
    let object = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata});
    assert_eq!(end["rows"], json!([{"cells": ["", 0, "<unknown>"], "object": object}]));

    let (mut cursor, mut protobuf) = (fixture.watch(initial).await, encoder(PROTOBUF, ""));
    assert_eq!(protobuf.content_type(), "application/vnd.kubernetes.protobuf;stream=watch");
    let added = next(&mut cursor, &mut protobuf).await;
    let length = u32::from_be_bytes(added[..4].try_into().unwrap());
    assert_eq!(length as usize, added.len() - 4);
    assert_eq!(&added[4..12], b"\n\x05ADDED\x12");
    let document = added.windows(4).position(|bytes| bytes == b"k8s\0").unwrap();
    let (kind, object) = decode(&added[document..]);
    assert_eq!((&*kind, &object["metadata"]["name"]), ("ConfigMap", &json!("a")));
    let error = protobuf.encode_error(&Status::expired("too old resource version: 1 (2)"));
    assert_eq!(&error[4..12], b"\n\x05ERROR\x12");
    let error = plain.encode_error(&Status::expired("too old"));
    assert_eq!(json(&error)["object"]["reason"], "Expired");
}

#[tokio::test]
async fn watch_event_is_encoded_once_for_each_representation() {
    let fixture = WatchFixture::new();
    fixture.create("first").await;
    let after = WatchStart::After(2);
    let mut cursors = Vec::new();
    for accept in ["", "", PARTIAL, PARTIAL, PROTOBUF, PROTOBUF, TABLE] {
        cursors.push((fixture.watch(after).await, encoder(accept, "")));
    }
    fixture.create("a").await;
    let mut frames = Vec::new();
    for (cursor, encoder) in &mut cursors {
        frames.push(next(cursor, encoder).await);
    }
    for pair in frames.chunks_exact(2) {
        assert_eq!(pair[0].as_ptr(), pair[1].as_ptr(), "one encoding, shared");
    }
    assert!(frames[0] != frames[2] && frames[2] != frames[4]);
    // A watch that sent its columns has another form.
    fixture.create("b").await;
    let (mut fresh, mut fresh_encoder) = (fixture.watch(WatchStart::After(3)).await, encoder(TABLE, ""));
    let with_columns = next(&mut fresh, &mut fresh_encoder).await;
    let (cursor, encoder) = &mut cursors[6];
    let without = next(cursor, encoder).await;
    assert!(with_columns.len() > without.len() + 1000);
}

#[tokio::test]
async fn watch_event_encodings_kept_are_bounded() {
    let fixture = WatchFixture::new();
    let cache = EventViewCache::default();
    let mut cursor = fixture.watch(WatchStart::Latest { marks_end: false }).await;
    let mut encoder = EventEncoder::new(config_maps(), negotiate("watch", ""), cache.clone());
    let key = |n: usize| prefix().key("default", &format!("n-{n}")).unwrap();
    let mut changes = Vec::new();
    for n in 0..20 {
        fixture.config_maps.create(&key(n), config_map_json("n", &"x".repeat(1 << 20)), None).await.unwrap();
        let event = cursor.next().await.unwrap().unwrap();
        changes.push(event.change.clone().unwrap());
        encoder.encode(event).await.unwrap();
    }
    let kept = |change: &Arc<store::watch_cache::StoredChange>| {
        let mut is_kept = true;
        change.views().get_or_encode(u64::MAX - 1, Bytes::new);
        change.views().get_or_encode(0, || {
            is_kept = false;
            Bytes::new()
        });
        is_kept
    };
    assert!(kept(&changes[19]) && kept(&changes[14]));
    assert!(!kept(&changes[0]) && !kept(&changes[11]));
}
