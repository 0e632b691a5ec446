//! Many clients at once: watches that never read, writers of one object, deletions of many.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_are_never_read_use_no_memory_for_events() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object =
        |round: usize| json!({"metadata": {"name": "big"}, "data": {"k": format!("{round}{}", "x".repeat(100_000))}});
    let path = format!("{CONFIG_MAPS}/big");
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object(0)).await.status, 201);
    const WATCHES: usize = 1_000;
    let mut watches = Vec::new();
    for _ in 0..WATCHES / 50 {
        // A connection of its own, whose window fills.
        let idle = api.http2().await;
        for _ in 0..50 {
            let watch = idle.send(get(&format!("{CONFIG_MAPS}?watch=1&resourceVersion=0"), &[])).await.unwrap();
            assert_eq!(watch.status(), 200);
            watches.push(watch);
        }
    }
    let metric = "apiserver_longrunning_requests{component=\"apiserver\",group=\"\",resource=\"configmaps\",scope=\"namespace\",subresource=\"\",verb=\"WATCH\",version=\"v1\"}";
    crate::embedded_api::observability::wait_for_metric(&api.gateway, metric, WATCHES as f64).await;
    let before = api.gateway.resident_kilobytes();
    for round in 1..=50 {
        assert_eq!(send_json(&client, Method::PUT, &path, &object(round)).await.status, 200);
    }
    // 50 events of 100 kB for each of 1,000 watches would be 5 GB; the history has them once.
    let grown = api.gateway.resident_kilobytes().saturating_sub(before);
    assert!(grown < 300_000, "{grown} kB more after 50 events to {WATCHES} watches that are not read");
    // Another watch is served meanwhile, and theirs go on where they are.
    let mut body = client.send(get(&format!("{CONFIG_MAPS}?watch=1"), &[])).await.unwrap().into_body();
    assert!(next_chunk(&mut body).await.unwrap().unwrap().starts_with(b"{\"type\":\"ADDED\""));
    drop(watches);
    crate::embedded_api::observability::wait_for_metric(&api.gateway, metric, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn patches_of_one_object_by_many_clients_are_all_kept() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = json!({"metadata": {"name": "shared"}, "data": {"first": "1"}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    let path = format!("{CONFIG_MAPS}/shared");
    let patch = async |client: Client, number: usize| {
        let media_type = ["application/merge-patch+json", "application/strategic-merge-patch+json"][number % 2];
        let body = json!({"data": {format!("key{number}"): "x"}}).to_string();
        // A conflict after several attempts is the client's to repeat, as with a kube-apiserver.
        loop {
            let patch = request(Method::PATCH, &path, &[("content-type", media_type)], &body);
            let response = client.send_and_read(patch).await;
            match response.status.as_u16() {
                200 => return response.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned(),
                409 => {}
                code => panic!("{code}: {}", response.text()),
            }
        }
    };
    let clients = join_all((0..100).map(async |_| api.http1().await)).await;
    let versions = join_all(clients.into_iter().enumerate().map(|(number, client)| patch(client, number))).await;
    let unique: std::collections::HashSet<_> = versions.iter().collect();
    assert_eq!(unique.len(), 100, "each acknowledged change has a version of its own");
    let read = client.get(&path).await.json();
    assert_eq!(read["data"].as_object().unwrap().len(), 101, "{read}");
}

#[tokio::test(flavor = "multi_thread")]
async fn collection_is_deleted_while_other_requests_are_answered() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    const OBJECTS: usize = 3000;
    let create = async |number: usize| {
        let object = json!({"metadata": {"name": format!("o{number}"), "labels": {"half": (number % 2).to_string()}}});
        assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    };
    for chunk in 0..OBJECTS / 100 {
        join_all((0..100).map(|number| create(chunk * 100 + number))).await;
    }
    let deleting = api.http2().await;
    let half = format!("{CONFIG_MAPS}?labelSelector=half%3D0");
    let delete = tokio::spawn(async move { deleting.send_and_read(request(Method::DELETE, &half, &[], "")).await });
    let mut answered = 0;
    while !delete.is_finished() {
        let lease = json!({"metadata": {"name": format!("l{answered}")}});
        let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
        assert_eq!(send_json(&client, Method::POST, leases, &lease).await.status, 201);
        // Selected, but not there when the deletion began; except perhaps the first.
        let late = json!({"metadata": {"name": format!("z{answered}"), "labels": {"half": "0"}}});
        assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &late).await.status, 201);
        answered += 1;
    }
    let deleted = delete.await.unwrap();
    assert_eq!(deleted.status, 200);
    let list = deleted.json();
    let names = |list: &Value| -> BTreeSet<String> {
        let items = list["items"].as_array().unwrap().iter();
        items.map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert!(answered > 0);
    let (deleted, left) = (names(&list), names(&client.get(CONFIG_MAPS).await.json()));
    assert!(deleted.is_disjoint(&left), "what is answered as deleted is deleted");
    let created =
        (0..OBJECTS).map(|number| format!("o{number}")).chain((0..answered).map(|number| format!("z{number}")));
    assert_eq!(deleted.union(&left).cloned().collect::<BTreeSet<_>>(), created.collect(), "and nothing else");
    let is_old = |name: &&String| name.starts_with('o');
    assert_eq!((deleted.iter().filter(is_old).count(), left.iter().filter(is_old).count()), (OBJECTS / 2, OBJECTS / 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn large_objects_do_not_hold_up_small_requests() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    // Many small values cost more than few large ones.
    let data: serde_json::Map<String, Value> =
        (0..15_000).map(|number| (format!("k{number}"), json!(format!("value {number}")))).collect();
    let object = json!({"metadata": {"name": "large"}, "data": data});
    let writer = api.http2().await;
    let created = send_json(&writer, Method::POST, CONFIG_MAPS, &object).await;
    assert_eq!(created.status, 201, "{:.200}", created.text());
    let path = format!("{CONFIG_MAPS}/large");
    let writes = tokio::spawn(async move {
        for round in 0..5 {
            let patch = json!({"data": {"round": round.to_string()}}).to_string();
            let headers = [("content-type", "application/strategic-merge-patch+json")];
            let patched = writer.send_and_read(request(Method::PATCH, &path, &headers, &patch)).await;
            assert_eq!(patched.status, 200, "{:.200}", patched.text());
        }
        writer.get(&path).await.json()["data"]["round"].clone()
    });
    while !writes.is_finished() {
        assert_eq!(client.get("/api/v1/namespaces/default").await.status, 200);
    }
    assert_eq!(writes.await.unwrap(), "4");
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_one_object_sees_each_change_in_order() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let object = |round: usize| json!({"metadata": {"name": "one"}, "data": {"round": round.to_string()}});
    let created = send_json(&client, Method::POST, CONFIG_MAPS, &object(0)).await.json();
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let query = format!("{CONFIG_MAPS}?watch=1&resourceVersion={version}&fieldSelector=metadata.name%3Done");
    let mut body = client.send(get(&query, &[])).await.unwrap().into_body();
    for round in 1..=50 {
        assert_eq!(send_json(&client, Method::PUT, &format!("{CONFIG_MAPS}/one"), &object(round)).await.status, 200);
        let other = json!({"metadata": {"name": format!("other{round}")}});
        assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &other).await.status, 201);
    }
    let mut lines = String::new();
    while lines.lines().count() < 50 || !lines.ends_with('\n') {
        lines += std::str::from_utf8(&next_chunk(&mut body).await.unwrap().unwrap()).unwrap();
    }
    let rounds: Vec<String> = lines
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["object"]["data"]["round"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(rounds, (1..=50).map(|round| round.to_string()).collect::<Vec<_>>());
}
