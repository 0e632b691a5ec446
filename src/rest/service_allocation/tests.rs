//! Addresses and ports of Services above a store in memory.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::join_all;
use kubeapi::Status;
use serde_json::{Map, Value, json};
use store::watch_cache::{ResourceCollection, Stored};

use super::*;
use crate::resources::builtin::builtin_kinds;
use crate::rest::service_allocator::AllocationKey;
use crate::rest::test_support::{server, server_with};
use crate::rest::write::ReplacedObject;

/// A new Service, as it is decoded.
fn service(name: &str, spec: &Value) -> Map<String, Value> {
    let mut spec = spec.clone();
    if spec["type"].is_null() {
        spec["type"] = json!("ClusterIP");
    }
    let object = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"}, "spec": spec,
    });
    object.as_object().unwrap().clone()
}

fn services(api: &ApiServer) -> ResourceCollection {
    api.builtin_collection("", "services").unwrap()
}

async fn stored(api: &ApiServer, name: &str) -> Option<Arc<Stored>> {
    let services = services(api);
    services.get_latest(&services.prefix().key("default", name).unwrap()).await.unwrap()
}

async fn begin(
    api: &ApiServer,
    object: Map<String, Value>,
    is_dry_run: bool,
) -> Result<(Map<String, Value>, ServiceReservation), Status> {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let target = ObjectTarget::new(builtin_kinds().find("", "v1", "services").unwrap(), "default", name.clone(), "");
    let old = stored(api, &name).await.map(|stored| {
        let object = serde_json::from_slice(stored.bytes()).unwrap();
        ReplacedObject { stored, object, is_patch: true }
    });
    let write = ObjectWrite::new(&target, object, old);
    let (mut write, reservation) = begin_write(api, &target, write, is_dry_run).await?;
    Ok((write.objects().0.clone(), reservation.unwrap()))
}

/// Creates or replaces a Service, as requests do.
async fn write(api: &ApiServer, name: &str, spec: &Value) -> Result<Value, String> {
    let (object, reservation) = begin(api, service(name, spec), false).await.map_err(|status| status.message)?;
    let (services, value) = (services(api), Value::Object(object.clone()).to_string());
    let key = services.prefix().key("default", name).unwrap();
    match stored(api, name).await {
        None => drop(services.create(&key, value.into(), None).await.unwrap()),
        Some(old) => {
            services.update(&key, old.revision(), value.into(), None).await.unwrap();
            reservation.commit();
            api.release_of_service(&old, Some(&object)).await;
            return Ok(object["spec"].clone());
        }
    }
    reservation.commit();
    Ok(object["spec"].clone())
}

/// The values of a dry run.
async fn tried(api: &ApiServer, spec: &Value) -> Result<Value, String> {
    let (object, _) = begin(api, service("dry", spec), true).await.map_err(|status| status.message)?;
    Ok(object["spec"].clone())
}

/// Deletes a Service behind the back of its addresses.
async fn remove(api: &ApiServer, name: &str) {
    let current = stored(api, name).await.unwrap();
    services(api).delete(current.key(), current.revision()).await.unwrap();
}

async fn addresses(api: &ApiServer) -> Vec<String> {
    let addresses = api.builtin_collection("networking.k8s.io", "ipaddresses").unwrap();
    addresses.ensure_loaded().await.unwrap();
    addresses.snapshot().range(addresses.prefix(), None).map(|one| one.name().to_owned()).collect()
}

async fn small_server() -> ApiServer {
    server_with(&[], |settings| settings.services.primary_range = "10.0.0.0/29".parse().unwrap()).await.1
}

#[tokio::test]
async fn service_gets_the_address_that_it_asks_for_or_a_free_one() {
    let api = small_server().await;
    let given = write(&api, "given", &json!({"clusterIP": "10.0.0.6"})).await.unwrap();
    assert_eq!((&given["clusterIPs"], &given["clusterIP"]), (&json!(["10.0.0.6"]), &json!("10.0.0.6")));
    let ip_addresses = api.builtin_collection("networking.k8s.io", "ipaddresses").unwrap();
    let key = ip_addresses.prefix().key("", "10.0.0.6").unwrap();
    let stored = ip_addresses.get_latest(&key).await.unwrap().unwrap();
    let ip_address: Value = serde_json::from_slice(stored.bytes()).unwrap();
    let labels = json!({
        "ipaddress.kubernetes.io/ip-family": "IPv4", "ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io",
    });
    assert_eq!(ip_address["metadata"]["labels"], labels);
    let parent = json!({"resource": "services", "namespace": "default", "name": "given"});
    assert_eq!(ip_address["spec"], json!({"parentRef": parent}));
    for (ip, why) in [
        ("10.0.0.6", "provided IP is already allocated"),
        ("10.0.0.0", "the provided network does not match the current range"),
        ("10.0.0.7", "the provided network does not match the current range"),
        ("10.1.0.1", "the provided network does not match the current range"),
    ] {
        let expected = format!(
            "Service \"a\" is invalid: spec.clusterIPs: Invalid value: [\"{ip}\"]: failed to allocate IP {ip}: {why}"
        );
        assert_eq!(write(&api, "a", &json!({"clusterIP": ip})).await, Err(expected));
    }
    for spec in [json!({"clusterIP": "None"}), json!({"type": "ExternalName", "externalName": "a.b"})] {
        write(&api, "none", &spec).await.unwrap();
        remove(&api, "none").await;
    }
    for name in ["a", "b", "c", "d", "e"] {
        let spec = write(&api, name, &json!({})).await.unwrap();
        assert_eq!(spec["clusterIP"], spec["clusterIPs"][0]);
    }
    assert_eq!(addresses(&api).await, ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"]);
    let full = "Internal error occurred: failed to allocate a serviceIP for Service \"f\": range is full";
    assert_eq!(write(&api, "f", &json!({})).await, Err(full.to_owned()));
    // Of a Service that was deleted a moment ago.
    remove(&api, "given").await;
    let spec = write(&api, "f", &json!({"clusterIP": "10.0.0.6"})).await.unwrap();
    assert_eq!(spec["clusterIP"], "10.0.0.6");
}

#[tokio::test]
async fn dry_run_reserves_no_address_and_no_port() {
    let api = small_server().await;
    let spec = json!({"type": "NodePort", "ports": [{"port": 1}, {"port": 2}]});
    let spec = tried(&api, &spec).await.unwrap();
    assert_eq!(spec["clusterIP"], "10.0.0.0", "not a free one, as upstream");
    assert_eq!(spec["ports"], json!([{"port": 1, "nodePort": 32_769}, {"port": 2, "nodePort": 32_770}]));
    write(&api, "a", &json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": [{"port": 1, "nodePort": 30_000}]}))
        .await
        .unwrap();
    assert_eq!(tried(&api, &json!({"clusterIP": "10.0.0.1"})).await.unwrap()["clusterIP"], "10.0.0.1");
    let message = tried(&api, &json!({"clusterIP": "10.1.0.1"})).await.unwrap_err();
    let why = "failed to allocate IP 10.1.0.1: the provided IP (10.1.0.1) is not in the valid range. The range of valid IPs is \
               10.0.0.0/29";
    assert!(message.ends_with(why), "{message}");
    let message =
        tried(&api, &json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 30_000}]})).await.unwrap_err();
    assert!(message.ends_with("provided port is already allocated"), "{message}");
    assert_eq!(addresses(&api).await, ["10.0.0.1"]);
}

#[tokio::test]
async fn services_created_at_the_same_time_get_different_addresses_and_ports() {
    let (_, api) = server(&[]).await;
    let (node_port, api) = (json!({"type": "NodePort", "ports": [{"port": 80}]}), &api);
    let created = join_all((0..64).map(|number| {
        let spec = node_port.clone();
        async move { write(api, &format!("s{number}"), &spec).await.unwrap() }
    }));
    let created = created.await;
    let ips: BTreeSet<String> = created.iter().map(|spec| spec["clusterIP"].to_string()).collect();
    let ports: BTreeSet<i64> = created.iter().map(|spec| spec["ports"][0]["nodePort"].as_i64().unwrap()).collect();
    assert_eq!((ips.len(), ports.len()), (64, 64));
    assert!(ports.iter().all(|port| (30_086..=32_767).contains(port)), "the dynamic ones first: {ports:?}");
    let same = join_all((0..8).map(|number| async move {
        write(api, &format!("t{number}"), &json!({"clusterIP": "10.0.0.9"})).await.is_ok()
    }));
    assert_eq!(same.await.into_iter().filter(|is_created| *is_created).count(), 1);
}

#[tokio::test]
async fn address_of_a_request_that_fails_is_free_again() {
    let api = small_server().await;
    let (_, reservation) = begin(&api, service("a", &json!({"clusterIP": "10.0.0.3"})), false).await.unwrap();
    // The request is not finished: its Service may be written yet.
    api.reconcile_all_allocations().await.unwrap();
    assert_eq!(addresses(&api).await, ["10.0.0.3"]);
    assert!(write(&api, "b", &json!({"clusterIP": "10.0.0.3"})).await.is_err());
    drop(reservation);
    assert!(!api.allocation_queue().is_empty());
    api.reconcile_allocation(&AllocationKey::Address("10.0.0.3".parse().unwrap())).await.unwrap();
    assert!(addresses(&api).await.is_empty());
}

#[tokio::test]
async fn addresses_are_repaired_at_start() {
    let orphan = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "IPAddress",
        "metadata": {"name": "10.0.0.2", "labels": {"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"}},
        "spec": {"parentRef": {"resource": "services", "namespace": "default", "name": "gone"}},
    });
    let (mut of_others, old) =
        (orphan.clone(), service("old", &json!({"clusterIP": "10.0.0.4", "clusterIPs": ["10.0.0.4"]})));
    of_others["metadata"] = json!({"name": "10.0.0.3"});
    let (_, api) = server(&[
        ("/registry/ipaddresses/10.0.0.2", orphan),
        ("/registry/ipaddresses/10.0.0.3", of_others),
        ("/registry/services/specs/default/old", Value::Object(old)),
    ])
    .await;
    api.reconcile_all_allocations().await.unwrap();
    assert_eq!(addresses(&api).await, ["10.0.0.3", "10.0.0.4"]);
    for ip in ["10.0.0.3", "10.0.0.4"] {
        assert!(write(&api, "new", &json!({"clusterIP": ip})).await.is_err(), "{ip}");
    }
}

#[tokio::test]
async fn addresses_follow_changes_of_a_service() {
    let (_, api) = server_with(&[], |settings| {
        settings.services.secondary_range = Some("fd00::/120".parse().unwrap());
        settings.validation.service_families = settings.services.families();
    })
    .await;
    let external = json!({"type": "ExternalName", "externalName": "a.b"});
    assert_eq!(write(&api, "a", &external).await.unwrap(), external);
    let spec = write(&api, "a", &json!({"clusterIP": "10.0.0.5"})).await.unwrap();
    assert_eq!((&spec["clusterIPs"], addresses(&api).await), (&json!(["10.0.0.5"]), vec!["10.0.0.5".to_owned()]));
    // The second family.
    let mut spec = write(&api, "a", &json!({"ipFamilyPolicy": "PreferDualStack"})).await.unwrap();
    assert_eq!((spec["clusterIPs"][0].as_str(), &spec["ipFamilies"]), (Some("10.0.0.5"), &json!(["IPv4", "IPv6"])));
    let second = spec["clusterIPs"][1].as_str().unwrap().to_owned();
    assert_eq!(addresses(&api).await, ["10.0.0.5".to_owned(), second]);
    spec["ipFamilyPolicy"] = json!("SingleStack");
    let spec = write(&api, "a", &spec).await.unwrap();
    assert_eq!((&spec["clusterIPs"], addresses(&api).await), (&json!(["10.0.0.5"]), vec!["10.0.0.5".to_owned()]));
    // A store from before addresses were allocated.
    let (services, key) = (services(&api), services(&api).prefix().key("default", "b").unwrap());
    let without = Value::Object(service("b", &json!({"ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack"})));
    services.create(&key, without.to_string().into(), None).await.unwrap();
    let spec = write(&api, "b", &json!({})).await.unwrap();
    assert!(spec["clusterIP"].as_str().unwrap().starts_with("10.0.0."), "{spec}");
}

#[tokio::test]
async fn node_ports_follow_the_rules_of_kube_apiserver() {
    let (_, api) = server(&[]).await;
    let ports = |spec: Value| -> Vec<i64> {
        spec["ports"].as_array().unwrap().iter().map(|port| port["nodePort"].as_i64().unwrap_or_default()).collect()
    };
    // Protocols of a port share its node port.
    let both =
        json!([{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP", "nodePort": 30_053}, {"port": 80}]);
    let found = ports(write(&api, "a", &json!({"type": "NodePort", "ports": both})).await.unwrap());
    assert_eq!(found[..2], [30_053, 30_053]);
    assert_ne!(found[2], 30_053);
    let node_port = |port: i64| json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": port}]});
    for (port, why) in [
        (30_053, "provided port is already allocated"),
        (80, "provided port is not in the valid range. The range of valid ports is 30000-32767"),
        (70_000, "provided port is not in the valid range. The range of valid ports is 30000-32767"),
    ] {
        let expected = format!("Service \"b\" is invalid: spec.ports[0].nodePort: Invalid value: {port}: {why}");
        assert_eq!(write(&api, "b", &node_port(port)).await, Err(expected));
    }
    let balancer = json!({
        "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{"port": 1}],
        "externalTrafficPolicy": "Local", "healthCheckNodePort": 30_100,
    });
    let spec = write(&api, "balancer", &balancer).await.unwrap();
    assert_eq!((ports(spec.clone()), &spec["healthCheckNodePort"]), (vec![0], &json!(30_100)));
    let refused = write(&api, "b", &balancer).await.unwrap_err();
    let why = "Internal error occurred: failed to allocate requested HealthCheck NodePort 30100: provided port is already \
               allocated";
    assert_eq!(refused, why);
    let mut any = balancer.clone();
    any.as_object_mut().unwrap().remove("healthCheckNodePort");
    assert!(write(&api, "other", &any).await.unwrap()["healthCheckNodePort"].as_i64().unwrap() >= 30_086);
    // A replacement keeps its ports, and frees what it does not have any more.
    let mut more = node_port(30_053);
    more["ports"] = json!([{"port": 1, "nodePort": 30_053}, {"port": 2, "nodePort": 30_054, "name": "b"}]);
    assert_eq!(ports(write(&api, "a", &more).await.unwrap()), [30_053, 30_054]);
    let mut twice = more.clone();
    twice["ports"][1]["nodePort"] = json!(30_053);
    assert_eq!(write(&api, "a", &twice).await, Err("duplicate nodePort: { 30053}".to_owned()));
    assert_eq!(ports(write(&api, "a", &node_port(30_054)).await.unwrap()), [30_054]);
    write(&api, "b", &node_port(30_053)).await.unwrap();
    // Of a Service that was deleted unseen.
    remove(&api, "b").await;
    write(&api, "c", &node_port(30_053)).await.unwrap();
}

#[tokio::test]
async fn node_ports_of_stored_services_are_taken_and_the_range_can_be_full() {
    let stored = service("old", &json!({"type": "NodePort", "ports": [{"port": 1, "nodePort": 31_000}]}));
    let (_, api) = server_with(&[("/registry/services/specs/default/old", Value::Object(stored))], |settings| {
        settings.services.node_ports = 31_000..=31_001;
    })
    .await;
    let spec = json!({"type": "NodePort", "ports": [{"port": 1}]});
    assert_eq!(write(&api, "a", &spec).await.unwrap()["ports"][0]["nodePort"], 31_001);
    let full = "Internal error occurred: failed to allocate a nodePort: range is full";
    assert_eq!(write(&api, "b", &spec).await, Err(full.to_owned()));
    remove(&api, "old").await;
    assert_eq!(write(&api, "b", &spec).await.unwrap()["ports"][0]["nodePort"], 31_000);
}

#[tokio::test]
async fn ready_service_cidrs_extend_the_ranges() {
    let cidr = |name: &str, range: &str, status: &Value| {
        let key = format!("/registry/servicecidrs/{name}");
        let object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name},
            "spec": {"cidrs": [range]}, "status": {"conditions": [{"type": "Ready", "status": status}]},
        });
        (key, object)
    };
    let records = [
        cidr("kubernetes", "10.0.0.0/29", &json!("True")),
        cidr("b", "10.1.0.0/24", &json!("True")),
        cidr("c", "10.2.0.0/24", &json!("False")),
    ];
    let records: Vec<(&str, Value)> = records.iter().map(|(key, object)| (key.as_str(), object.clone())).collect();
    let (_, api) = server(&records).await;
    write(&api, "a", &json!({"clusterIP": "10.1.0.1"})).await.unwrap();
    assert!(write(&api, "b", &json!({"clusterIP": "10.2.0.1"})).await.is_err(), "not ready");
    for number in 0..7 {
        write(&api, &format!("s{number}"), &json!({})).await.unwrap();
    }
}
