//! Names, options and tokens that clients may not send.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, get, next_chunk, request};
use crate::support::embedded_api::{CONFIG_MAPS, EmbeddedApiFixture, send_json};

async fn create_config_maps(client: &Client, count: usize) {
    for number in 0..count {
        let object = json!({"metadata": {"name": format!("m{number:03}")}});
        assert_eq!(send_json(client, Method::POST, CONFIG_MAPS, &object).await.status, 201);
    }
}

fn items(list: &Value) -> usize {
    list["items"].as_array().unwrap_or_else(|| panic!("{list}")).len()
}

#[tokio::test]
async fn names_in_path_and_body_cannot_leave_their_resource() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let long = "x".repeat(254);
    for name in ["..", ".", "a/b", "a%2Fb", "%2e%2e", "A", "a_b", "-a", "a%", "\u{0}", "ä", &*long, "a b"] {
        let object = json!({"metadata": {"name": name}});
        let created = send_json(&client, Method::POST, CONFIG_MAPS, &object).await;
        let status = created.assert_failure(422, "Invalid");
        assert!(status["message"].as_str().unwrap().contains("metadata.name"), "{name:?}: {status}");
    }
    for path in ["..", "%2e%2e", ".%2E", ".", "a%2Fb", "a%2fb/c", "a%00b", "%ff", "a%25b", "%2e%2e%2fsecrets"] {
        for method in [Method::GET, Method::PUT, Method::DELETE] {
            let object = json!({"metadata": {"name": "a"}}).to_string();
            let headers = [("content-type", "application/json")];
            let sent = request(method.clone(), &format!("{CONFIG_MAPS}/{path}"), &headers, &object);
            let response = client.send_and_read(sent).await;
            let code = response.status.as_u16();
            assert!(matches!(code, 400 | 404 | 405), "{method} {path}: {code} {}", response.text());
        }
    }
    let namespaces = ["..", "%2e%2e", "a%2Fb", "default%2F..", "%00"];
    for namespace in namespaces {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        let listed = client.get(&path).await;
        assert!(matches!(listed.status.as_u16(), 200 | 400 | 404 | 405), "{path}: {}", listed.text());
        if listed.status == 200 {
            assert_eq!(items(&listed.json()), 0, "{path}");
        }
        let created = send_json(&client, Method::POST, &path, &json!({"metadata": {"name": "a"}})).await;
        assert!(matches!(created.status.as_u16(), 400 | 404 | 405), "{path}: {}", created.text());
    }
    let longest = json!({"metadata": {"name": "y".repeat(253)}});
    assert_eq!(send_json(&client, Method::POST, CONFIG_MAPS, &longest).await.status, 201);
    let listed = client.get(CONFIG_MAPS).await.json();
    let names = listed["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap());
    assert_eq!(names.filter(|name| *name != "kube-root-ca.crt").collect::<Vec<_>>(), ["y".repeat(253)]);
}

#[tokio::test]
async fn list_options_that_are_invalid_are_refused() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_config_maps(&client, 3).await;
    for (query, code) in [
        ("limit=x", 400),
        ("limit=9223372036854775808", 400),
        ("resourceVersion=word", 400),
        ("resourceVersion=-1", 400),
        ("resourceVersion=18446744073709551616", 400),
        // As upstream: the watch cache does not say whose fault it is.
        ("watch=1&resourceVersion=word", 500),
        ("watch=1&resourceVersion=-5", 500),
        ("timeoutSeconds=x", 400),
        ("labelSelector=a%3D%3D%3Db", 400),
        ("fieldSelector=spec.nothing%3Dx", 400),
        ("resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=Sideways&resourceVersion=1", 422),
        ("sendInitialEvents=true", 422),
        ("timeout=nonsense", 400),
    ] {
        let response = client.get(&format!("{CONFIG_MAPS}?{query}")).await;
        assert_eq!(response.status, code, "{query}: {}", response.text());
        assert_eq!(response.json()["kind"], "Status", "{query}");
    }
    // As upstream, every value but 0 and false is true.
    let watch = client.send(get(&format!("{CONFIG_MAPS}?watch=x"), &[])).await.unwrap();
    let first = next_chunk(&mut watch.into_body()).await.unwrap().unwrap();
    assert!(first.starts_with(b"{\"type\":\"ADDED\""), "{first:?}");
    // As upstream: a negative limit is none, a version from the future is waited for and then refused.
    assert_eq!(items(&client.get(&format!("{CONFIG_MAPS}?limit=-1")).await.json()), 3);
    for query in ["resourceVersion=4000000000", "resourceVersion=4000000000&resourceVersionMatch=NotOlderThan"] {
        let future = client.get(&format!("{CONFIG_MAPS}?{query}")).await;
        let status = future.assert_failure(504, "Timeout");
        assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge", "{status}");
    }
    let future = client.get(&format!("{CONFIG_MAPS}/m000?resourceVersion=4000000000")).await;
    future.assert_failure(504, "Timeout");
}

#[tokio::test]
async fn request_ends_at_the_timeout_of_its_client() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    // Without it, the version from the future is waited for three seconds, and the cause is told.
    let response = client.get(&format!("{CONFIG_MAPS}?resourceVersion=4000000000&timeout=800ms")).await;
    let status = response.assert_failure(504, "Timeout");
    assert!(status["details"]["causes"].is_null(), "{status}");
}

#[tokio::test]
async fn continue_tokens_that_are_forged_reach_nothing_else() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_config_maps(&client, 5).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"k": "v"}});
    assert_eq!(send_json(&client, Method::POST, "/api/v1/namespaces/default/secrets", &secret).await.status, 201);
    let first = client.get(&format!("{CONFIG_MAPS}?limit=2")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap().to_owned();
    let second = client.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}")).await.json();
    assert_eq!(second["items"][0]["metadata"]["name"], "m002");

    let revision: u64 = first["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    let forged = |start: &str, revision: i64| {
        URL_SAFE_NO_PAD.encode(json!({"v": "meta.k8s.io/v1", "rv": revision, "start": start}).to_string())
    };
    let revision = i64::try_from(revision).unwrap();
    for (text, code) in [
        ("x".to_owned(), 400),
        ("%00".to_owned(), 400),
        (URL_SAFE_NO_PAD.encode("{}"), 400),
        (URL_SAFE_NO_PAD.encode("[".repeat(10_000)), 400),
        (forged("../../secrets/default/s", revision), 400),
        (forged("/../secrets/default/s\u{0}", revision), 400),
        (forged("", revision), 400),
        (forged("default/m001\u{0}", 0), 400),
    ] {
        let response = client.get(&format!("{CONFIG_MAPS}?limit=2&continue={text}")).await;
        assert_eq!(response.status, code, "{text:.60}: {}", response.text());
    }
    // A token may name any start, which is below the list or after it, and any revision: never more than the list has.
    for start in ["kube-system/x\u{0}", "zzz\u{0}", "default/m001\u{0}", "~", "default"] {
        for revision in [revision, -1, 1, i64::MAX] {
            let response = client.get(&format!("{CONFIG_MAPS}?limit=500&continue={}", forged(start, revision))).await;
            match response.status.as_u16() {
                200 => {
                    let list = response.json();
                    let names = list["items"].as_array().unwrap().iter().map(|item| &item["kind"]);
                    assert!(items(&list) <= 5 && !names.clone().any(|kind| kind == "Secret"), "{start:?}: {list}");
                }
                code => assert!(matches!(code, 400 | 410 | 504), "{start:?} {revision}: {}", response.text()),
            }
        }
    }
    let both = client.get(&format!("{CONFIG_MAPS}?limit=2&continue={token}&resourceVersion=1")).await;
    both.assert_failure(400, "BadRequest");
}

#[tokio::test]
async fn subresources_methods_and_versions_that_do_not_exist_are_refused() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    create_config_maps(&client, 1).await;
    for (method, path, code) in [
        ("GET", "/api/v1/namespaces/default/configmaps/m000/scale", 404),
        ("GET", "/api/v1/namespaces/default/configmaps/m000/status", 404),
        ("POST", "/api/v1/namespaces/default/configmaps/m000", 405),
        ("PUT", "/api/v1/namespaces/default/configmaps", 405),
        ("PATCH", "/api/v1/namespaces/default/configmaps", 405),
        ("POST", "/api/v1/configmaps", 405),
        ("DELETE", "/api/v1/namespaces", 405),
        ("GET", "/api/v2/namespaces/default/configmaps", 404),
        ("GET", "/apis/coordination.k8s.io/v1beta9/namespaces/default/leases", 404),
        ("GET", "/api/v1/namespaces/default/nothings", 404),
        ("FROB", "/api/v1/namespaces/default/configmaps/m000", 405),
    ] {
        let response = client.send_and_read(request(method.parse().unwrap(), path, &[], "{}")).await;
        assert_eq!(response.status, code, "{method} {path}: {}", response.text());
    }
    let head = client.send_and_read(request(Method::HEAD, &format!("{CONFIG_MAPS}/m000"), &[], "")).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (405, 0), "only GET has a route");
    let slashed = client.send_and_read(get(&format!("{CONFIG_MAPS}/m000/"), &[])).await;
    assert_eq!(slashed.status, 200);
}

#[tokio::test]
async fn watch_with_negative_timeout_ends_at_once() {
    let api = EmbeddedApiFixture::start(&[]);
    let client = api.http2().await;
    let path = format!("{CONFIG_MAPS}?watch=1&timeoutSeconds=-1");
    let event = client.get(&path).await;
    assert_eq!(
        (event.status.as_u16(), event.json()),
        (
            200,
            json!({"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "context deadline exceeded", "reason": "InternalError", "code": 500}})
        )
    );
    let ended = client.get(&format!("{path}&resourceVersion=0")).await;
    assert_eq!((ended.status.as_u16(), &*ended.text()), (200, ""));
    client.get(&format!("{path}&fieldSelector=bad%3D1")).await.assert_failure(400, "BadRequest");
    assert_eq!(client.get(&format!("{CONFIG_MAPS}?timeoutSeconds=-1")).await.status, 200);
}
