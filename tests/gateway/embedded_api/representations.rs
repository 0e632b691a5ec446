//! Representations of objects: JSON, YAML, protobuf, Table, PartialObjectMetadata.

use http::Method;
use serde_json::json;

use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

#[tokio::test]
async fn representation_of_object_is_json_by_default() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "a"}, "data": {"key": "value"}});
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &object).await;
    assert_eq!(created.status, 201, "{}", created.text());
    let read = api.http1().await.get(&format!("{CONFIG_MAPS}/a")).await;
    assert_eq!(read.headers["content-type"], "application/json");
    assert_eq!(read.json(), created.json());
    assert_eq!(read.json()["data"], object["data"]);
}
