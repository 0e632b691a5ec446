//! Namespaces and CRDs are deleted and made again while clients create objects in them: what was acknowledged is
//! deleted with its namespace or CRD, or is in the one that has its name now. And a CRD is served when its
//! events say so.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Deletions of one namespace or CRD.
const ROUNDS: usize = 6;

/// Connections that create, each with requests one after another.
const WRITERS: usize = 8;

/// Bytes of an object: it is handled by a compute thread, so time passes between the checks and the commit.
const OBJECT_BYTES: usize = 80_000;

/// An object that a client was told is created.
struct Acknowledged {
    path: String,
    revision: u64,
}

fn revision_of(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Creates objects in the collections until `is_over`.
async fn create_objects(
    client: Client,
    collections: Arc<[String]>,
    is_over: Arc<AtomicBool>,
    writer: usize,
    acknowledged: mpsc::UnboundedSender<Acknowledged>,
) {
    for number in 0.. {
        if is_over.load(Ordering::SeqCst) {
            return;
        }
        let collection = &collections[number % collections.len()];
        let (metadata, filling) = (json!({"name": format!("w{writer}-{number}")}), "YWFh".repeat(OBJECT_BYTES / 4));
        let object = match collection.starts_with("/api/") {
            true => json!({"metadata": metadata, "data": {"filling": filling}}),
            false => json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "filling": filling}),
        };
        let response = send_json(&client, Method::POST, collection, &object).await;
        match response.status.as_u16() {
            201 => {
                let path = format!("{collection}/w{writer}-{number}");
                let _ = acknowledged.send(Acknowledged { path, revision: revision_of(&response.json()) });
            }
            403 | 404 => {}
            _ => panic!("{response:?}"),
        }
    }
}

/// Makes, fills, deletes and makes an owner again while objects are created; checks what its successors have.
async fn assert_nothing_inherited(api: &EmbeddedApiFixture, owners: &str, owner: Value, collections: &[&str]) {
    let collections: Arc<[String]> = collections.iter().map(|path| (*path).to_owned()).collect();
    let (is_over, client) = (Arc::new(AtomicBool::new(false)), api.http2().await);
    let (sender, mut acknowledged) = mpsc::unbounded_channel();
    let path = format!("{owners}/{}", owner["metadata"]["name"].as_str().unwrap());
    let make = async || {
        let made = send_json(&client, Method::POST, owners, &owner).await;
        assert_eq!(made.status, 201, "{made:?}");
        revision_of(&made.json())
    };
    let mut made = make().await;
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (client, sender) = (api.http2().await, sender.clone());
        writers.push(tokio::spawn(create_objects(client, collections.clone(), is_over.clone(), writer, sender)));
    }
    let mut created = Vec::new();
    for round in 0..ROUNDS {
        // It is deleted while objects are created in it.
        loop {
            let object = acknowledged.recv().await.unwrap();
            let is_in_it = object.revision > made;
            created.push(object);
            if is_in_it {
                break;
            }
        }
        let deleted = client.send_and_read(request(Method::DELETE, &path, &[], "")).await;
        assert_eq!(deleted.status, 200, "{deleted:?}");
        eventually("the end of the owner", async || (client.get(&path).await.status == 404).then_some(())).await;
        made = make().await;
        if owners == CRDS {
            eventually("the resource is served", async || {
                (client.get(&format!("{}?limit=1", collections[0])).await.status == 200).then_some(())
            })
            .await;
        }
        for collection in &*collections {
            // Whole objects would wait for compute threads behind all those that are written.
            let accept = [("accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")];
            let list = client.send_and_read(request(Method::GET, collection, &accept, "")).await.json();
            for object in list["items"].as_array().unwrap() {
                assert!(revision_of(object) > made, "round {round}: {object} is older than its owner, {made}");
            }
        }
    }
    is_over.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    drop(sender);
    while let Some(object) = acknowledged.recv().await {
        created.push(object);
    }
    for object in created.iter().filter(|object| object.revision > made) {
        assert_eq!(client.get(&object.path).await.status, 200, "{} is lost", object.path);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespace_deleted_under_load_leaves_nothing_to_its_successor() {
    let api = EmbeddedApiFixture::start(&[]);
    let namespace = json!({"metadata": {"name": "busy"}});
    let collections = ["/api/v1/namespaces/busy/secrets", "/api/v1/namespaces/busy/configmaps"];
    assert_nothing_inherited(&api, "/api/v1/namespaces", namespace, &collections).await;
}

fn crd(plural: &str) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let kind = plural.strip_suffix('s').unwrap();
    let kind = format!("{}{}", kind[..1].to_uppercase(), &kind[1..]);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {
            "group": "example.com", "scope": "Cluster", "names": {"plural": plural, "kind": kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
        },
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_deleted_under_load_leaves_nothing_to_its_successor() {
    let api = EmbeddedApiFixture::start(&[]);
    assert_nothing_inherited(&api, CRDS, crd("things"), &["/apis/example.com/v1/things"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn crd_is_served_when_an_event_says_that_it_is_established() {
    let api = EmbeddedApiFixture::start(&[]);
    let (client, writer) = (api.http2().await, api.http2().await);
    let watch = client.send(get(&format!("{CRDS}?watch=1"), &[])).await.unwrap();
    let (mut body, mut text) = (watch.into_body(), Vec::new());
    for number in 0..20 {
        let plural = format!("number{number}s");
        assert_eq!(send_json(&client, Method::POST, CRDS, &crd(&plural)).await.status, 201);
        let mut is_established = false;
        while !is_established {
            text.extend_from_slice(&next_chunk(&mut body).await.unwrap().unwrap());
            while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = text.drain(..=end).collect();
                let event: Value = serde_json::from_slice(&line).unwrap();
                let conditions = event["object"]["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let established = |one: &Value| one["type"] == "Established" && one["status"] == "True";
                is_established |= event["object"]["metadata"]["name"] == format!("{plural}.example.com")
                    && conditions.iter().any(established);
            }
        }
        let kind = crd(&plural)["spec"]["names"]["kind"].clone();
        let object = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "a"}});
        let created = send_json(&writer, Method::POST, &format!("/apis/example.com/v1/{plural}"), &object).await;
        assert_eq!(created.status, 201, "{plural}: {created:?}");
        let discovery = writer.get("/apis/example.com/v1").await.json();
        let mut resources = discovery["resources"].as_array().unwrap().iter();
        assert!(resources.any(|resource| resource["name"] == *plural), "{plural} is not in {discovery}");
        let openapi = writer.get("/openapi/v3/apis/example.com/v1").await.json();
        assert!(openapi["paths"][format!("/apis/example.com/v1/{plural}")].is_object(), "{plural}");
    }
}
