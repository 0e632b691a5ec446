//! Events of a kube-apiserver in various orders.

use serde_json::{Value, json};

use super::*;
use crate::registry::layered_sources::LayeredSources;
use crate::registry::snapshot::Registry;
use crate::registry::{ApiService, ResolveError, ResolveRules, ResolvedBackend};

fn resolve(
    api_service: &ApiService,
    registry: &Registry,
    rules: ResolveRules,
) -> Result<ResolvedBackend, ResolveError> {
    crate::registry::resolve(api_service, registry, rules, &Default::default())
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn empty_store() -> ClusterStore {
    ClusterStore::new("kube-apiserver", Settings::default(), ApiServiceStatuses::default())
}

fn api_service(group: &str, namespace: &str) -> Value {
    json!({"metadata": {"name": format!("v1.{group}"), "resourceVersion": "1", "managedFields": [{}]},
        "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "later": {}, "service": {"namespace": namespace, "name": "api"}}})
}

/// An APIService that references this Service of the namespace.
fn api_service_referencing(group: &str, service: &str) -> Value {
    let mut one = api_service(group, "ns");
    one["spec"]["service"]["name"] = service.into();
    one
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns"},
        "spec": {"clusterIP": "10.0.0.1", "ports": [{"name": "https", "port": 443}]}})
}

fn slice(name: &str, service: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "ns", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4", "ports": [{"name": "https", "port": 8443}],
        "endpoints": [{"addresses": [address]}]})
}

fn apply_list(known: &mut ClusterStore, kind: &WatchedResource, objects: &[Value]) {
    known.reconcile();
    known.begin_list(kind);
    objects.iter().for_each(|object| known.apply_object(kind, &raw(object), true));
    known.finish_list(kind);
}

fn published(known: &mut ClusterStore) -> Vec<String> {
    known.reconcile();
    known.published.keys().cloned().collect()
}

/// The Services that could not be read.
fn services_with_lookup_error(known: &ClusterStore) -> Vec<String> {
    known.all_names().services.into_iter().filter(|key| known.lookup_error(key).is_some()).collect()
}

/// The Services that may have changed.
fn dirty_services(known: &mut ClusterStore) -> Vec<String> {
    known.reconcile();
    known.take_dirty().services.into_iter().collect()
}

fn resources_of_ns() -> [WatchedResource; 2] {
    [WatchedResource::Services("ns".to_owned()), WatchedResource::EndpointSlices("ns".to_owned())]
}

/// One APIService with a Service and an endpoint.
fn synced_store() -> ClusterStore {
    let mut known = empty_store();
    let [services, slices] = resources_of_ns();
    apply_list(&mut known, &WatchedResource::ApiServices, &[api_service("a.io", "ns")]);
    apply_list(&mut known, &services, &[service("api")]);
    apply_list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    assert_eq!(published(&mut known), ["v1.a.io"]);
    known
}

#[test]
fn cluster_store_publishes_api_service_once_namespace_is_listed() {
    let mut known = empty_store();
    let settle = |known: &mut ClusterStore| {
        for gone in known.reconcile().stop {
            known.remove_namespace(&gone);
        }
        (known.namespaces.keys().cloned().collect::<BTreeSet<_>>(), known.complete)
    };
    assert_eq!(settle(&mut known), (BTreeSet::new(), false));
    apply_list(&mut known, &WatchedResource::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
    assert_eq!(settle(&mut known), (BTreeSet::from(["far".to_owned(), "ns".to_owned()]), false));
    assert!(published(&mut known).is_empty());
    let [services, slices] = resources_of_ns();
    apply_list(&mut known, &services, &[service("api")]);
    assert!(published(&mut known).is_empty());
    apply_list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    assert_eq!(published(&mut known), ["v1.a.io"]);
    // A namespace that may not be listed is not waited for.
    known.record_failure(&WatchedResource::Services("far".to_owned()), "the kube-apiserver answered 403", true);
    assert!(settle(&mut known).1);
    assert_eq!(published(&mut known), ["v1.a.io", "v1.b.io"]);
    let registry = Registry::from_sources(LayeredSources::single(&known));
    assert_eq!(
        resolve(&registry.sorted_api_services()[0], &registry, ResolveRules::default()).unwrap().endpoints.len(),
        1
    );
    let nowhere = resolve(&registry.sorted_api_services()[1], &registry, ResolveRules::default()).unwrap_err();
    assert_eq!(
        (nowhere.reason, nowhere.message.as_str()),
        (
            "ServiceAccessError",
            "service/api in \"far\" cannot be checked due to: services cannot be listed: the kube-apiserver \
             answered 403"
        )
    );
    let problems: Vec<String> = known.problems().0.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1);
    assert!(problems[0].starts_with("kube-apiserver, namespace \"far\": services cannot be listed: "), "{problems:?}");
    assert!(problems[0].ends_with(": v1.b.io"), "{problems:?}");
    // It moves: until the new namespace is listed, the previous Service is used.
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service("a.io", "new")), false);
    let leads = |known: &ClusterStore| match &known.published["v1.a.io"].backend {
        ApiServiceBackend::Service(reference) => reference.namespace.clone(),
        _ => panic!("no Service"),
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new", "ns"]), "ns".to_owned()));
    known.record_failure(&WatchedResource::Services("new".to_owned()), "the kube-apiserver answered 500", false);
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new", "ns"]), "ns".to_owned()));
    known.record_timeout("new", true);
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new"]), "new".to_owned()));
}

#[test]
fn cluster_store_namespace_failure_waits_and_stays_isolated() {
    let mut known = empty_store();
    let [services, slices] = resources_of_ns();
    apply_list(&mut known, &WatchedResource::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
    apply_list(&mut known, &services, &[service("api")]);
    apply_list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    let far = WatchedResource::EndpointSlices("far".to_owned());
    known.record_failure(&far, "the kube-apiserver answered 500", false);
    assert_eq!((published(&mut known), known.complete, known.problems().0.len()), (vec!["v1.a.io".into()], false, 0));
    let before = known.change_count;
    known.record_failure(&far, "the kube-apiserver answered 500", false);
    assert_eq!(known.change_count, before, "the same failure is no change");
    known.record_timeout("far", true);
    assert_eq!((published(&mut known).len(), known.complete, known.problems().0.len()), (2, true, 1));
    // A Service without its slices cannot be resolved either.
    apply_list(&mut known, &WatchedResource::Services("far".to_owned()), &[service("api")]);
    let registry = Registry::from_sources(LayeredSources::single(&known));
    let nowhere = resolve(&registry.sorted_api_services()[1], &registry, ResolveRules::default()).unwrap_err();
    assert_eq!(nowhere.reason, "ServiceAccessError");
    // After the first complete list, a new APIService is published with its error.
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service("c.io", "dark")), false);
    known.begin_list(&WatchedResource::Services("dark".to_owned()));
    assert_eq!(published(&mut known).len(), 2);
    known.record_timeout("dark", false);
    assert_eq!((published(&mut known).len(), known.complete, known.problems().0.len()), (3, true, 2));
    // The failure was temporary.
    apply_list(&mut known, &far, &[]);
    assert_eq!((services_with_lookup_error(&known), known.problems().0.len()), (vec!["dark/api".to_owned()], 1));
}

#[test]
fn cluster_store_cluster_ip_unused_without_endpoint_slices() {
    let mut known = synced_store();
    known.delete_object(&WatchedResource::EndpointSlices("ns".to_owned()), &raw(&slice("one", "api", "10.1.0.1")));
    let registry = Registry::from_sources(LayeredSources::single(&known));
    for endpoints in [true, false] {
        let rules = ResolveRules { routes_to_endpoints: endpoints, ..ResolveRules::default() };
        let nowhere = resolve(&registry.sorted_api_services()[0], &registry, rules).unwrap_err();
        assert_eq!(
            (nowhere.reason, nowhere.message.as_str()),
            ("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"")
        );
    }
}

#[test]
fn cluster_store_irrelevant_fields_are_no_change() {
    let mut known = synced_store();
    let before = (known.change_count, dirty_services(&mut known).len());
    let mut touched_up = api_service("a.io", "ns");
    touched_up["metadata"]["resourceVersion"] = "2".into();
    touched_up["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    touched_up["status"] = json!({"conditions": [{"type": "Available", "status": "True"}]});
    known.apply_object(&WatchedResource::ApiServices, &raw(&touched_up), false);
    known.apply_object(&resources_of_ns()[1], &raw(&slice("two", "", "10.1.0.2")), false);
    let mut names = slice("three", "api", "10.1.0.3");
    names["addressType"] = "FQDN".into();
    known.apply_object(&resources_of_ns()[1], &raw(&names), false);
    assert_eq!((known.change_count, dirty_services(&mut known).len(), known.problems().0.len()), (before.0, 0, 0));
    // The stored status is updated for the status writer.
    let written = known.statuses.get("v1.a.io").unwrap();
    assert_eq!((written.version.as_str(), written.conditions.len()), ("2", 1));
}

#[test]
fn cluster_store_invalid_object_reported_and_last_valid_kept() {
    let mut known = synced_store();
    let mut wrong = api_service("a.io", "ns");
    wrong["spec"]["versionPriority"] = 0.into();
    known.apply_object(&WatchedResource::ApiServices, &raw(&wrong), false);
    known.apply_object(&WatchedResource::ApiServices, &raw(&json!({"metadata": {}})), false);
    let mut elsewhere = slice("one", "api", "10.1.0.1");
    elsewhere["endpoints"][0]["addresses"][0] = "nowhere".into();
    known.apply_object(&resources_of_ns()[1], &raw(&elsewhere), false);
    let problems: Vec<String> = known.problems().0.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems[1].starts_with("kube-apiserver, APIService \"v1.a.io\": spec.versionPriority: 0"), "{problems:?}");
    assert!(problems[2].starts_with("kube-apiserver, EndpointSlice \"ns/one\": "), "{problems:?}");
    let registry = Registry::from_sources(LayeredSources::single(&known));
    assert!(resolve(&registry.sorted_api_services()[0], &registry, ResolveRules::default()).is_ok());
    // A list keeps errors of listed objects and drops those of absent ones.
    apply_list(&mut known, &WatchedResource::ApiServices, &[wrong]);
    assert_eq!(known.problems().0.len(), 2);
    apply_list(&mut known, &WatchedResource::ApiServices, &[]);
    assert_eq!((known.problems().0.len(), published(&mut known).len()), (1, 0));
    assert!(known.statuses.get("v1.a.io").is_none());
}

#[test]
fn cluster_store_change_marks_affected_names_dirty() {
    let mut known = synced_store();
    let [services, slices] = resources_of_ns();
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service_referencing("b.io", "other")), false);
    assert_eq!(dirty_services(&mut known), ["ns/api", "ns/other"], "everything is new");
    assert!(dirty_services(&mut known).is_empty());
    let count = |known: &ClusterStore, key| known.endpoint_slices(key).len();
    known.apply_object(&slices, &raw(&slice("two", "api", "10.1.0.2")), false);
    assert_eq!((dirty_services(&mut known), count(&known, "ns/api")), (vec!["ns/api".to_owned()], 2));
    // Moved from one Service to another: the slices of both changed.
    known.apply_object(&slices, &raw(&slice("two", "other", "10.1.0.2")), false);
    assert_eq!(dirty_services(&mut known), ["ns/api", "ns/other"]);
    assert_eq!((count(&known, "ns/api"), count(&known, "ns/other")), (1, 1));
    known.delete_object(&slices, &raw(&slice("two", "other", "10.1.0.2")));
    assert_eq!((dirty_services(&mut known), count(&known, "ns/other")), (vec!["ns/other".to_owned()], 0));
    known.apply_object(&services, &raw(&service("other")), false);
    assert_eq!(dirty_services(&mut known), ["ns/other"]);
    // An event with the same APIService is no change.
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service("a.io", "ns")), false);
    known.reconcile();
    assert_eq!(known.take_dirty(), DirtySet::default());
    let mut other = api_service("a.io", "ns");
    other["spec"]["versionPriority"] = 7.into();
    known.apply_object(&WatchedResource::ApiServices, &raw(&other), false);
    known.reconcile();
    let only = DirtySet { api_services: BTreeSet::from(["v1.a.io".to_owned()]), ..DirtySet::default() };
    assert_eq!(known.take_dirty(), only);
}

#[test]
fn cluster_store_unreferenced_services_ignored() {
    let mut known = synced_store();
    let [services, slices] = resources_of_ns();
    let mut registry = Registry::from_sources(LayeredSources::single(&known));
    dirty_services(&mut known);
    let before = known.change_count;
    let mut wrong = slice("wrong", "more", "10.1.0.3");
    wrong["endpoints"][0]["addresses"][0] = "nowhere".into();
    known.apply_object(&services, &raw(&service("more")), false);
    known.apply_object(&slices, &raw(&slice("two", "more", "10.1.0.2")), false);
    known.apply_object(&slices, &raw(&wrong), false);
    known.delete_object(&slices, &raw(&slice("other", "more", "10.1.0.2")));
    known.delete_object(&services, &raw(&service("more")));
    assert_eq!((known.change_count, dirty_services(&mut known).len()), (before, 0));
    apply_list(&mut known, &services, &[service("api"), service("more")]);
    apply_list(&mut known, &slices, &[slice("one", "api", "10.1.0.1"), slice("two", "more", "10.1.0.2"), wrong]);
    known.reconcile();
    assert!(registry.update(&known.take_dirty(), LayeredSources::single(&known)).is_none());
    assert_eq!(known.problems().0.len(), 0);
    let sizes = |known: &ClusterStore| {
        (known.namespaces["ns"].services.objects.values().count(), known.endpoint_slices("ns/api").len())
    };
    assert_eq!(sizes(&known), (1, 1));
    // A slice moved to another Service is removed from its previous one.
    known.apply_object(&slices, &raw(&slice("one", "more", "10.1.0.1")), false);
    assert_eq!(sizes(&known), (1, 0));
}

#[test]
fn cluster_store_new_reference_listed_before_published() {
    let mut known = synced_store();
    let [services, slices] = resources_of_ns();
    let leads = |known: &ClusterStore| {
        let of = |one: &Arc<ApiService>| referenced_service(one).unwrap().1.to_owned();
        known.published.values().map(of).collect::<Vec<_>>()
    };
    let settle = |known: &mut ClusterStore| known.reconcile().restart;
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service_referencing("b.io", "more")), false);
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service_referencing("a.io", "more")), false);
    assert_eq!(settle(&mut known), [services.clone(), slices.clone()]);
    assert_eq!(settle(&mut known), [], "once");
    assert_eq!(leads(&known), ["api"], "one waits, one stays where it was");
    let [api, more] = [slice("one", "api", "10.1.0.1"), slice("two", "more", "10.1.0.2")];
    apply_list(&mut known, &services, &[service("api"), service("more")]);
    apply_list(&mut known, &slices, &[api, more]);
    settle(&mut known);
    assert_eq!(leads(&known), ["more", "more"]);
    assert_eq!(known.namespaces["ns"].services.objects.values().count(), 1, "the other is named no more");
    // A failed list affects only the APIServices that wait for it.
    known.apply_object(&WatchedResource::ApiServices, &raw(&api_service_referencing("c.io", "third")), false);
    assert_eq!(settle(&mut known).len(), 2);
    known.record_failure(&services, "the kube-apiserver answered 500", false);
    settle(&mut known);
    assert_eq!(leads(&known), ["more", "more", "third"]);
    assert_eq!(services_with_lookup_error(&known), ["ns/third"]);
    assert!(known.problems().0[0].to_string().ends_with(": v1.c.io"));
}
