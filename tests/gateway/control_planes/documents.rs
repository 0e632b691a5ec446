//! Discovery and OpenAPI documents of one control plane, and their ETags, are no answer for another.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::control_planes::fixture::{TestControlPlane, V2, connect, request, start_gateway, start_two};
use crate::support::client::{Client, ClientResponse};
use crate::support::fixtures::{TestEnvironment, eventually};

const TOKEN: (&str, &str) = ("authorization", "Bearer shared");
const PROTOBUF_DISCOVERY: &str =
    "application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const PROTOBUF_OPENAPI: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// Paths and media types of the documents that the gateway merges.
const DOCUMENTS: [(&str, &str); 6] = [
    ("/apis", V2),
    ("/apis", PROTOBUF_DISCOVERY),
    ("/apis", "application/json"),
    ("/openapi/v3", "application/json"),
    ("/openapi/v2", "application/json"),
    ("/openapi/v2", PROTOBUF_OPENAPI),
];

/// A document of the control plane `name`, if it is not the one with this ETag.
async fn get_document(client: &Client, name: &str, document: (&str, &str), etag: Option<&str>) -> ClientResponse {
    let mut headers = vec![TOKEN, ("accept", document.1)];
    headers.extend(etag.map(|etag| ("if-none-match", etag)));
    request(client, "localhost", &format!("/clusters/{name}{}", document.0), &headers).await
}

/// The test groups that a document names, in any encoding.
fn groups(response: &ClientResponse) -> BTreeSet<&'static str> {
    let text = response.text();
    ["c.example.com", "d.example.com"].into_iter().filter(|group| text.contains(group)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_discovery_and_openapi_etags_of_one_never_match_another() {
    let environment = TestEnvironment::new();
    let (c, d) = start_two(&environment).await;
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let own_group = |name: &str| if name == "c" { "c.example.com" } else { "d.example.com" };
    for protocol in ["http/1.1", "h2"] {
        let client = connect(&environment, &gateway, "localhost", None, protocol).await;
        for document in DOCUMENTS {
            // Both ETags are those of documents with the groups of the servers.
            let mut etags = Vec::new();
            for name in ["c", "d"] {
                let response = eventually(&format!("{document:?} of {name}"), async || {
                    let response = get_document(&client, name, document, None).await;
                    groups(&response).contains(own_group(name)).then_some(response)
                })
                .await;
                assert_eq!(response.status, 200, "{document:?} of {name}");
                assert_eq!(groups(&response), BTreeSet::from([own_group(name)]), "{document:?} of {name}");
                etags.push((name, response.headers["etag"].to_str().unwrap().to_owned()));
            }
            assert_ne!(etags[0].1, etags[1].1, "{document:?}");
            // Each ETag at its own control plane, and at the other; twice, as the first answer may be cached.
            for _ in 0..2 {
                for (of, etag) in &etags {
                    for name in ["c", "d"] {
                        let response = get_document(&client, name, document, Some(etag)).await;
                        let context = format!("{document:?} of {name} with the ETag of {of}");
                        if name == *of {
                            assert_eq!((response.status.as_u16(), response.body.len()), (304, 0), "{context}");
                        } else {
                            assert_eq!(response.status, 200, "{context}");
                            assert_eq!(groups(&response), BTreeSet::from([own_group(name)]), "{context}");
                        }
                    }
                }
            }
        }
    }
    // Both servers send the same ETag with each document. The gateway revalidates with it, and keeps them apart.
    for one in [&c, &d] {
        for path in ["/apis", "/openapi/v3", "/openapi/v2"] {
            eventually(&format!("revalidation of {path} of {}", one.name), async || {
                let received = one.server.received();
                let mut requests = received.iter().filter(|request| request.uri.path() == path);
                requests.any(|request| request.header_values("if-none-match") == [TestControlPlane::ETAG]).then_some(())
            })
            .await;
        }
    }
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    for document in DOCUMENTS {
        for name in ["c", "d"] {
            let response = get_document(&client, name, document, None).await;
            assert_eq!(groups(&response), BTreeSet::from([own_group(name)]), "{document:?} of {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn control_plane_openapi_v2_has_definitions_of_its_own_server_alone() {
    let environment = TestEnvironment::new();
    let (c, d) = start_two(&environment).await;
    let gateway = start_gateway(&environment, &[c.by_path(""), d.by_path("")], &[]);
    let client = connect(&environment, &gateway, "localhost", None, "h2").await;
    let document = ("/openapi/v2", "application/json");
    // The document of c is merged first, and that of d on its first request.
    for name in ["c", "d", "c"] {
        let group = format!("{name}.example.com");
        let merged = eventually(&format!("the paths of {name}"), async || {
            let merged = get_document(&client, name, document, None).await.json();
            merged["paths"].get(format!("/apis/{group}/v1/kinds")).is_some().then_some(merged)
        })
        .await;
        let kinds: Vec<&Value> = merged["definitions"]
            .as_object()
            .unwrap()
            .values()
            .filter_map(|definition| definition["x-kubernetes-group-version-kind"].get(0))
            .filter(|kind| kind["kind"] == "Kind")
            .collect();
        assert_eq!(kinds.len(), 1, "{name}: {merged}");
        assert_eq!(kinds[0]["group"], group);
    }
}
