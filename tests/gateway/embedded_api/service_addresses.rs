//! Addresses and ports that Services get, and the objects that the server makes for Services itself.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::support::client::{Client, ClientResponse, request};
use crate::support::embedded_api::{EmbeddedApiFixture, send_json};
use crate::support::fixtures::eventually;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const IP_ADDRESSES: &str = "/apis/networking.k8s.io/v1/ipaddresses";

/// Six addresses, the first is that of the Service `kubernetes`.
const SMALL_RANGE: &str = "--service-cluster-ip-range=10.0.0.0/29";

async fn create(client: &Client, name: &str, spec: &Value) -> ClientResponse {
    send_json(client, Method::POST, SERVICES, &json!({"metadata": {"name": name}, "spec": spec})).await
}

async fn created(client: &Client, name: &str, spec: &Value) -> Value {
    let response = create(client, name, spec).await;
    assert_eq!(response.status, 201, "{}", response.text());
    response.json()["spec"].clone()
}

async fn delete(client: &Client, path: &str) {
    let response = client.send_and_read(request(Method::DELETE, path, &[], "")).await;
    assert_eq!(response.status, 200, "{}", response.text());
}

async fn addresses(client: &Client) -> Vec<String> {
    let list = client.get(IP_ADDRESSES).await.json();
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn service_kubernetes_is_made_with_its_endpoints_and_range() {
    let api = EmbeddedApiFixture::start(&["--advertise-address=192.0.2.7", "--kubernetes-service-node-port=30443"]);
    let client = api.http2().await;
    let service = client.get(&format!("{SERVICES}/kubernetes")).await.json();
    let port = api.gateway.address.port();
    let https = json!({"name": "https", "port": 443, "protocol": "TCP", "targetPort": port, "nodePort": 30_443});
    assert_eq!((&service["spec"]["clusterIP"], &service["spec"]["ports"]), (&json!("10.0.0.1"), &json!([https])));
    let endpoints = client.get("/api/v1/namespaces/default/endpoints/kubernetes").await.json();
    let expected =
        json!([{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}]);
    assert_eq!(endpoints["subsets"], expected);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = client.get(&format!("{slices}/kubernetes")).await.json();
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["192.0.2.7"]));
    let cidr = client.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes").await.json();
    assert_eq!(cidr["spec"]["cidrs"], json!(["10.0.0.0/24"]));
    assert_eq!(addresses(&client).await, ["10.0.0.1"]);
    // They come back.
    let uid = &service["metadata"]["uid"];
    delete(&client, &format!("{SERVICES}/kubernetes")).await;
    let again = async || {
        let service = client.get(&format!("{SERVICES}/kubernetes")).await;
        (service.status == 200 && service.json()["metadata"]["uid"] != *uid).then_some(())
    };
    eventually("the Service kubernetes", again).await;
    let endpoints = async || {
        let response = client.get("/api/v1/namespaces/default/endpoints/kubernetes").await;
        (response.status == 200).then_some(())
    };
    eventually("the endpoints", endpoints).await;
    let taken = create(&client, "b", &json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_443}]})).await;
    let refused = taken.assert_failure(422, "Invalid");
    assert!(refused["message"].as_str().unwrap().ends_with("provided port is already allocated"), "{refused}");
}

#[tokio::test]
async fn service_addresses_are_allocated_and_free_again() {
    let mut api = EmbeddedApiFixture::start(&[SMALL_RANGE]);
    let client = api.http2().await;
    let ports = json!({"ports": [{"port": 80}]});
    let given = json!({"clusterIP": "10.0.0.5", "ports": [{"port": 80}]});
    created(&client, "a", &given).await;
    let refused = create(&client, "b", &given).await.assert_failure(422, "Invalid");
    assert_eq!(
        refused["message"],
        "Service \"b\" is invalid: spec.clusterIPs: Invalid value: [\"10.0.0.5\"]: failed to allocate IP 10.0.0.5: provided \
         IP is already allocated"
    );
    // One that is deleted has its address no more.
    for _ in 0..3 {
        delete(&client, &format!("{SERVICES}/a")).await;
        assert_eq!(addresses(&client).await, ["10.0.0.1"]);
        created(&client, "a", &given).await;
        assert_eq!(addresses(&client).await, ["10.0.0.1", "10.0.0.5"]);
    }
    for name in ["b", "c", "d", "e"] {
        created(&client, name, &ports).await;
    }
    let full = create(&client, "f", &ports).await.assert_failure(500, "InternalError");
    assert_eq!(
        full["message"],
        "Internal error occurred: failed to allocate a serviceIP for Service \"f\": range is full"
    );
    // An invalid Service keeps nothing.
    delete(&client, &format!("{SERVICES}/e")).await;
    for _ in 0..2 {
        create(&client, "f", &json!({"ports": [{"port": 80}, {"port": 80}]})).await.assert_failure(422, "Invalid");
        // Until the controller has seen it.
        let is_free = async || (addresses(&client).await.len() == 5).then_some(());
        eventually("a free address", is_free).await;
    }
    created(&client, "f", &ports).await;
    // Changes of the type.
    let merge = [("content-type", "application/merge-patch+json")];
    let path = format!("{SERVICES}/a");
    let patch = r#"{"spec":{"type":"ExternalName","externalName":"a.b"}}"#;
    let external = client.send_and_read(request(Method::PATCH, &path, &merge, patch)).await;
    assert_eq!((external.status, &external.json()["spec"]["clusterIP"]), (200.try_into().unwrap(), &Value::Null));
    assert!(!addresses(&client).await.contains(&"10.0.0.5".to_owned()));
    let patch = r#"{"spec":{"type":"ClusterIP","externalName":null}}"#;
    let internal = client.send_and_read(request(Method::PATCH, &path, &merge, patch)).await;
    assert_eq!(internal.json()["spec"]["clusterIPs"], json!(["10.0.0.5"]), "{}", internal.text());
    // Somebody deletes an address that is used: it comes back.
    delete(&client, &format!("{IP_ADDRESSES}/10.0.0.5")).await;
    let is_back = async || addresses(&client).await.contains(&"10.0.0.5".to_owned()).then_some(());
    eventually("the address", is_back).await;
    // Another process has the same addresses.
    let before = addresses(&client).await;
    drop(client);
    api.gateway.signal("KILL");
    api.gateway.wait_for_exit().await;
    api.restart();
    let client = api.http2().await;
    assert_eq!(addresses(&client).await, before);
    assert_eq!(create(&client, "g", &ports).await.status, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn services_created_by_many_clients_get_different_addresses() {
    let api = EmbeddedApiFixture::start(&[]);
    let clients = [api.http2().await, api.http2().await, api.http2().await, api.http2().await];
    let spec = json!({"type": "NodePort", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]});
    let spec = &spec;
    let all = join_all((0..64).map(|number| {
        let client = &clients[number % clients.len()];
        async move { created(client, &format!("s{number}"), spec).await }
    }));
    let all = all.await;
    let ips: BTreeSet<String> = all.iter().map(|spec| spec["clusterIP"].to_string()).collect();
    let node_ports =
        all.iter().flat_map(|spec| spec["ports"].as_array().unwrap()).map(|port| port["nodePort"].to_string());
    let node_ports: BTreeSet<String> = node_ports.collect();
    assert_eq!((ips.len(), node_ports.len()), (64, 128));
    assert_eq!(addresses(&clients[0]).await.len(), 65);
    // All of them are free again.
    let deleted = clients[0].send_and_read(request(Method::DELETE, SERVICES, &[], "")).await;
    assert_eq!(deleted.status, 200, "{}", deleted.text());
    let is_free = async || (addresses(&clients[0]).await == ["10.0.0.1"]).then_some(());
    eventually("free addresses", is_free).await;
}

#[tokio::test]
async fn dual_stack_services_need_two_ranges() {
    let api = EmbeddedApiFixture::start(&["--service-cluster-ip-range=10.0.0.0/24,fd00::/108"]);
    let client = api.http2().await;
    let spec = created(&client, "a", &json!({"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]})).await;
    assert_eq!(spec["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert!(spec["clusterIPs"][1].as_str().unwrap().starts_with("fd00::"), "{spec}");
    let path = format!("{SERVICES}/a");
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"spec":{"ipFamilyPolicy":"SingleStack"}}"#;
    let single = client.send_and_read(request(Method::PATCH, &path, &merge, patch)).await.json();
    assert_eq!(
        (&single["spec"]["clusterIPs"], &single["spec"]["ipFamilies"]),
        (&json!([spec["clusterIP"]]), &json!(["IPv4"]))
    );
    assert_eq!(addresses(&client).await.len(), 2);
    let single = EmbeddedApiFixture::start(&[]);
    let client = single.http2().await;
    let dual = create(&client, "a", &json!({"ipFamilyPolicy": "RequireDualStack", "ports": [{"port": 80}]})).await;
    assert_eq!(
        dual.assert_failure(422, "Invalid")["message"],
        "Service \"a\" is invalid: spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": this cluster is not configured for \
         dual-stack services"
    );
}
