//! OpenAPI of version 2: the documents of all backends in one, whatever one of them says.

use std::io::Read as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::backend::{Answer, Backend, Settings, json as answer};
use crate::client::{Client, get};
use crate::world::{World, eventually};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// A document of one group with one path, a `Thing` of its own that says `description`, and `Meta` as everybody's.
fn document(group: &str, description: &str) -> Value {
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

async fn backend(world: &World, name: &str, say: impl Fn() -> Answer + Send + Sync + 'static) -> Backend {
    let host: &'static str = format!("{name}-v1.{name}.svc").leak();
    let settings = Settings { names: vec![host], all: true, ..Settings::default() };
    let say = Arc::new(say);
    let group = format!("{name}.example.com");
    let text = format!(r#"{{"kind":"APIResourceList","groupVersion":"{group}/v1","resources":[]}}"#);
    let backend = Backend::start(world, settings, move |request| {
        let (say, text) = (say.clone(), text.clone());
        async move {
            match request.uri().path() {
                "/openapi/v2" => say(),
                path if path.starts_with("/apis/") => answer(200, &text),
                _ => answer(404, "{}"),
            }
        }
    })
    .await;
    world.register(&group, "v1", &[&backend]);
    backend
}

async fn jane(world: &World, gateway: &crate::world::Gateway) -> Client {
    Client::http2(world, gateway, Some(&world.user("jane", &[]))).await
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().map(|object| object.keys().map(String::as_str).collect()).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_who_asks_gets_all_that_backends_say_of_their_own() {
    let world = World::new();
    let _parts = backend(&world, "parts", || answer(200, &document("parts.example.com", "a part").to_string())).await;
    let _things =
        backend(&world, "things", || answer(200, &document("things.example.com", "a thing").to_string())).await;
    let gateway = world.gateway(&[]);
    let client = jane(&world, &gateway).await;
    let first = client.get("/openapi/v2").await;
    assert_eq!(first.headers["content-type"], "application/json");
    let whole = first.json();
    assert_eq!(whole["info"]["title"], "narthex", "{whole}");
    assert_eq!(
        keys(&whole["paths"]),
        ["/apis/parts.example.com/v1/things", "/apis/things.example.com/v1/things"],
        "nobody speaks for others"
    );
    assert_eq!(keys(&whole["definitions"]), ["Meta", "Thing", "Thing_v2"]);
    assert_eq!(whole["definitions"]["Thing"]["description"], "a part");
    assert_eq!(whole["definitions"]["Thing_v2"]["description"], "a thing");
    assert_eq!(whole["definitions"]["Thing_v2"]["x-kubernetes-group-version-kind"][0]["group"], "things.example.com");
    let schema = |path: &str| whole["paths"][path]["get"]["responses"]["200"]["schema"]["$ref"].clone();
    assert_eq!(schema("/apis/parts.example.com/v1/things"), "#/definitions/Thing");
    assert_eq!(schema("/apis/things.example.com/v1/things"), "#/definitions/Thing_v2");
    let tag = first.headers["etag"].to_str().unwrap();
    let again = client.ask(get("/openapi/v2", &[("if-none-match", tag), ("accept", PROTOBUF)])).await;
    assert_eq!((again.status.as_u16(), again.body.len()), (304, 0));
}
