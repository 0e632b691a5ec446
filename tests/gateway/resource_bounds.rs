//! What one request, watch or backend may cost: time, memory, and room in the audit log.

use std::io::Write as _;

use http::Method;
use serde_json::Value;

use crate::audit;
use crate::backend::{Backend, Settings, json};
use crate::client::request;
use crate::scene::THINGS;
use crate::world::World;

const SELF_REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const YAML: (&str, &str) = ("content-type", "application/yaml");

/// YAML of about 700 bytes with merge keys in merge keys: two seconds of CPU where it is expanded.
fn expanding_yaml() -> String {
    let mut text = "a0: &a0 {k: v, l: w}\n".to_owned();
    for level in 1..20 {
        let before = vec![format!("*a{}", level - 1); 6].join(",");
        text += &format!("a{level}: &a{level} {{<<: [{before}]}}\n");
    }
    text
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// Answers with a megabyte of blanks in a kilobyte of gzip whoever asks for `packed`.
async fn things(world: &World) -> Backend {
    Backend::start(world, Settings::default(), async |request| {
        let mut answer = json(200, "{}");
        if request.uri().path().ends_with("/packed") {
            let blanks = gzip(&format!("{{\"a\":\"{}\"}}", " ".repeat(900 << 10)));
            *answer.body_mut() = http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(
                http_body_util::Full::new(blanks.into()),
                |never| match never {},
            ));
            answer.headers_mut().insert("content-encoding", "gzip".parse().unwrap());
        }
        answer
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn yaml_review_that_expands_is_refused() {
    let world = World::new();
    let backend = things(&world).await;
    let scene = audit::scene(world, &backend, audit::EVERYTHING, &[]);
    let client = scene.http2().await;
    let ask = async |body: &str| client.ask(request(Method::POST, SELF_REVIEWS, &[YAML], body)).await;
    let before = scene.gateway.cpu();
    let yaml = expanding_yaml();
    for _ in 0..20 {
        let refused = ask(&yaml).await.refused(400, "BadRequest");
        assert!(refused["message"].as_str().unwrap().contains("merge keys"), "{refused}");
    }
    let spent = scene.gateway.cpu() - before;
    assert!(spent < crate::world::PATIENCE, "{spent:?}");
    // Others are read as before, also those that are read on another thread.
    let plain = "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\n\
                 spec: {resourceAttributes: &a {verb: get, resource: things}}\n";
    for body in [plain.to_owned(), format!("{plain}# {}\n", "x".repeat(8 << 10))] {
        let answer = ask(&body).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["status"]["allowed"]), (201, &Value::Bool(true)));
    }
    ask(&"#".repeat(33 << 10)).await.refused(413, "RequestEntityTooLarge");
}

#[tokio::test(flavor = "multi_thread")]
async fn audit_leaves_out_bodies_that_expand() {
    const REQUEST: &str = "audit.narthex.dev/request-object";
    const RESPONSE: &str = "audit.narthex.dev/response-object";
    let world = World::new();
    let backend = things(&world).await;
    let rules = format!("omitStages: [RequestReceived]\n{}", audit::EVERYTHING);
    let scene = audit::scene(world, &backend, &rules, &[]);
    let client = scene.http2().await;
    let yaml = expanding_yaml();
    assert_eq!(client.ask(request(Method::POST, &format!("{THINGS}/yaml"), &[YAML], &yaml)).await.status, 200);
    let event = audit::of(&scene.world, "/yaml", 1).await.remove(0);
    assert_eq!(event["annotations"][REQUEST], "left out: it would expand to much more than was sent");
    assert_eq!(event["annotations"]["audit.k8s.io/truncated"], "true");
    assert_eq!((&event["requestObject"], &event["responseObject"]), (&Value::Null, &serde_json::json!({})));

    // No API server unpacks a request's body.
    let packed = gzip("{\"a\":1}");
    let packed = http::Request::post(format!("{THINGS}/gzip"))
        .header("content-type", "application/json")
        .header("content-encoding", "gzip")
        .body(http_body_util::BodyExt::boxed(http_body_util::BodyExt::map_err(
            http_body_util::Full::new(packed.into()),
            |never| match never {},
        )))
        .unwrap();
    assert_eq!(client.ask(packed).await.status, 200);
    let event = audit::of(&scene.world, "/gzip", 1).await.remove(0);
    assert_eq!(event["annotations"][REQUEST], "left out: it cannot be read");

    // A response is, to a multiple of its length.
    let answer = client.ask(request(Method::GET, &format!("{THINGS}/packed"), &[("accept-encoding", "gzip")], "")).await;
    assert!(answer.body.len() < 4 << 10, "{}", answer.body.len());
    let event = audit::of(&scene.world, "/packed", 1).await.remove(0);
    assert_eq!(event["annotations"][RESPONSE], "left out: it would expand to much more than was sent");
}
