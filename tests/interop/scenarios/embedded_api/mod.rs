//! The embedded API server beside kube-apiserver: the same requests, kubectl commands and client-go programs.

mod client_go;
mod cluster_without_machines;
mod custom_resources;
mod extension_server;
mod extension_servers_alone;
mod gateways_elect;
mod gateways_on_etcd;
mod helm;
mod kind_requests;
mod kube_controller_manager;
mod kube_rs_watchers;
mod kube_schedulers;
mod kubectl_descriptions;
mod kubectl_stories;
pub(super) mod operators;
mod process_kills;
mod recorder;
mod request_comparison;
mod request_file;

use self::request_comparison::{compare_kinds, compare_requests, compare_with_controllers};
use super::{KubectlTestFn, TestFn};
use crate::environment::TestEnvironment;

pub(super) const KUBECTL_TESTS: &[(&str, KubectlTestFn)] = &[
    ("embedded API: commands print what they print for kube-apiserver", kubectl_stories::compare_commands),
    ("embedded API: descriptions are those of kube-apiserver", kubectl_descriptions::compare_descriptions),
    ("embedded API: watch and wait", kubectl_stories::watch_and_wait),
    (
        "embedded API: extension server without kube-apiserver behind stored APIServices",
        extension_server::serves_behind_stored_api_services,
    ),
    (
        "embedded API: sample-apiserver and metrics-server without kube-apiserver",
        extension_servers_alone::delegate_to_the_embedded_api_server,
    ),
    ("embedded API: gateways: standby takes over", gateways_elect::standby_takes_over),
    ("embedded API: custom resources: the page on definitions", custom_resources::follow_crds_page),
    ("embedded API: custom resources: the page on versions", custom_resources::follow_versions_page),
    ("embedded API: custom resources: storage version with a webhook", custom_resources::change_storage_version),
    ("embedded API: custom resources: CRDs of four projects", custom_resources::installs_crds),
];

pub(super) const GATEWAY_TESTS: &[(&str, TestFn)] = &[
    ("embedded API: etcd: two gateways share one", gateways_on_etcd::two_gateways_share_an_etcd),
    ("embedded API: etcd: that of a kube-apiserver is read", gateways_on_etcd::reads_the_etcd_of_a_kube_apiserver),
    ("embedded API: requests: objects", |environment| compare_requests(environment, "objects.http", "objects", &[])),
    ("embedded API: requests: patches", |environment| compare_requests(environment, "patches.http", "patches", &[])),
    ("embedded API: requests: deletions", |environment| {
        compare_requests(environment, "deletions.http", "deletions", &[]);
    }),
    ("embedded API: requests: lists", |environment| compare_requests(environment, "lists.http", "lists", &[])),
    ("embedded API: requests: list options", |environment| {
        compare_requests(environment, "list_options.http", "list-options", &[]);
    }),
    ("embedded API: requests: watches", |environment| compare_requests(environment, "watches.http", "watches", &[])),
    ("embedded API: requests: transforms", |environment| {
        compare_requests(environment, "transforms.http", "transforms", &[]);
    }),
    ("embedded API: requests: encodings", |environment| {
        compare_requests(environment, "encodings.http", "encodings", &[]);
    }),
    ("embedded API: requests: namespaces", |environment| {
        compare_requests(environment, "namespaces.http", "namespaces", &[]);
    }),
    ("embedded API: requests: events", |environment| {
        compare_requests(environment, "events.http", "events", &[]);
    }),
    ("embedded API: requests: services", |environment| {
        compare_requests(environment, "services.http", "services", &[]);
    }),
    ("embedded API: requests: validation", |environment| {
        compare_requests(environment, "validation.http", "validation", &[]);
    }),
    ("embedded API: requests: roles", |environment| {
        compare_with_controllers(environment, "roles.http", "roles", "clusterrole-aggregation-controller");
    }),
    ("embedded API: requests: tokens", |environment| compare_requests(environment, "tokens.http", "tokens", &[])),
    ("embedded API: requests: owners", |environment| {
        compare_with_controllers(environment, "owners.http", "owners", "garbage-collector-controller");
    }),
    ("embedded API: requests: kinds", compare_kinds),
    ("embedded API: Helm: releases live and end", helm::releases_live_and_end),
    (
        "embedded API: custom resources: stored values are those in etcd",
        custom_resources::stores_values_of_kube_apiserver,
    ),
    ("embedded API: requests: custom conversion", |environment| compare_custom(environment, "conversion")),
    ("embedded API: requests: custom definitions", |environment| compare_custom(environment, "definitions")),
    ("embedded API: requests: custom objects", |environment| compare_custom(environment, "objects")),
    ("embedded API: requests: custom defaults", |environment| compare_custom(environment, "defaults")),
    ("embedded API: requests: custom encodings", |environment| compare_custom(environment, "encodings")),
    ("embedded API: requests: custom field validation", |environment| compare_custom(environment, "field_validation")),
    ("embedded API: requests: custom ratcheting", |environment| compare_custom(environment, "ratcheting")),
    ("embedded API: requests: custom fields", |environment| compare_custom(environment, "fields")),
    ("embedded API: requests: custom finalizers", |environment| compare_custom(environment, "finalizers")),
    ("embedded API: requests: custom limits", |environment| compare_custom(environment, "limits")),
    ("embedded API: requests: custom pruning", |environment| compare_custom(environment, "pruning")),
    ("embedded API: requests: custom subresources", |environment| compare_custom(environment, "subresources")),
    ("embedded API: requests: custom tables", |environment| compare_custom(environment, "tables")),
    ("embedded API: requests: custom validation", |environment| compare_custom(environment, "validation")),
    ("embedded API: requests: custom versions", |environment| compare_custom(environment, "versions")),
    ("embedded API: requests: custom yaml", |environment| compare_custom(environment, "yaml")),
    ("embedded API: requests: life of secrets", |environment| compare_lifecycle(environment, 0)),
    ("embedded API: requests: life of serviceaccounts", |environment| compare_lifecycle(environment, 1)),
    ("embedded API: requests: life of events", |environment| compare_lifecycle(environment, 2)),
    ("embedded API: requests: life of services", |environment| compare_lifecycle(environment, 3)),
    ("embedded API: requests: life of endpoints", |environment| compare_lifecycle(environment, 4)),
    ("embedded API: requests: life of leases", |environment| compare_lifecycle(environment, 5)),
    ("embedded API: requests: life of endpointslices", |environment| compare_lifecycle(environment, 6)),
    ("embedded API: requests: life of configmaps", |environment| compare_lifecycle(environment, 7)),
    ("embedded API: client-go: informers see the same events", client_go::informers_see_the_same_events),
    ("embedded API: client-go: leader election", client_go::leader_election_takes_over),
    ("embedded API: kube-scheduler: standby takes over", kube_schedulers::standby_takes_over),
    (
        "embedded API: kube-controller-manager: namespaces are filled and deleted",
        kube_controller_manager::fills_and_deletes_namespaces,
    ),
    (
        "embedded API: cluster without machines: workloads run and are drained",
        cluster_without_machines::workloads_run_and_are_drained,
    ),
    ("embedded API: kube-rs: watchers see the same events", kube_rs_watchers::watchers_see_the_same_events),
    ("embedded API: killed while kubectl and client-go write and watch", process_kills::acknowledged_writes_survive),
];

/// A kind in `lifecycle.http`: apiVersion, kind, plural, fields, merge patch.
const KINDS: [[&str; 5]; 8] = [
    ["v1", "Secret", "secrets", r#""data":{"a":"eA=="},"stringData":{"b":"y"}"#, r#"{"stringData":{"c":"z"}}"#],
    [
        "v1",
        "ServiceAccount",
        "serviceaccounts",
        r#""automountServiceAccountToken":false"#,
        r#"{"secrets":[{"name":"s"}]}"#,
    ],
    [
        "v1",
        "Event",
        "events",
        r#""involvedObject":{"kind":"Pod","namespace":"{{namespace}}","name":"p"},"reason":"Started","message":"m","type":"Normal","source":{"component":"c"}"#,
        r#"{"count":2}"#,
    ],
    [
        "v1",
        "Service",
        "services",
        r#""spec":{"type":"ExternalName","externalName":"example.com","ports":[{"port":80}]}"#,
        r#"{"spec":{"externalName":"example.org"}}"#,
    ],
    [
        "v1",
        "Endpoints",
        "endpoints",
        r#""subsets":[{"addresses":[{"ip":"10.1.0.1"}],"ports":[{"port":80}]}]"#,
        r#"{"subsets":[{"addresses":[{"ip":"10.1.0.2"}],"ports":[{"port":80}]}]}"#,
    ],
    [
        "coordination.k8s.io/v1",
        "Lease",
        "leases",
        r#""spec":{"holderIdentity":"a","leaseDurationSeconds":15,"acquireTime":"2026-01-01T00:00:00.000000Z"}"#,
        r#"{"spec":{"holderIdentity":"b","leaseTransitions":1}}"#,
    ],
    [
        "discovery.k8s.io/v1",
        "EndpointSlice",
        "endpointslices",
        r#""addressType":"IPv4","endpoints":[{"addresses":["10.1.0.1"]}],"ports":[{"port":80}]"#,
        r#"{"ports":[{"port":81,"name":"x"}]}"#,
    ],
    ["v1", "ConfigMap", "configmaps", r#""data":{"a":"b"}"#, r#"{"data":{"c":"d"}}"#],
];

/// Compares the responses to requests on custom resources, in a group of their own: tests share kube-apiserver.
fn compare_custom(environment: &TestEnvironment, what: &str) {
    let name = format!("custom-{}", what.replace('_', "-"));
    let group = format!("{name}.example.com");
    compare_requests(environment, &format!("custom_{what}.http"), &name, &[("group", &*group)]);
}

fn compare_lifecycle(environment: &TestEnvironment, number: usize) {
    let [api_version, kind, plural, payload, change] = KINDS[number];
    let namespace = format!("requests-life-of-{plural}");
    let root = if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") };
    let payload = payload.replace("{{namespace}}", &namespace);
    let values = [
        ("collection", &*format!("{root}/namespaces/{namespace}/{plural}")),
        ("apiVersion", api_version),
        ("kind", kind),
        ("payload", &*payload),
        ("change", change),
    ];
    compare_requests(environment, "lifecycle.http", &format!("life-of-{plural}"), &values);
}
