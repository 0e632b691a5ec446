//! Events of a kube-apiserver in various orders.

use serde_json::{Value, json};

use super::*;
use crate::registry::snapshot::Registry;
use crate::registry::source::Layers;
use crate::registry::{ApiService, Resolved, Rules, Unavailable};

fn resolve(api_service: &ApiService, registry: &Registry, rules: Rules) -> Result<Resolved, Unavailable> {
    crate::registry::resolve(api_service, registry, rules, &Default::default())
}

fn raw(value: &Value) -> Box<RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

fn known() -> Known {
    Known::new(Settings::default(), Statuses::default())
}

fn api_service(group: &str, namespace: &str) -> Value {
    json!({"metadata": {"name": format!("v1.{group}"), "resourceVersion": "1", "managedFields": [{}]},
        "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
            "insecureSkipTLSVerify": true, "later": {}, "service": {"namespace": namespace, "name": "api"}}})
}

/// An APIService that references this Service of the namespace.
fn naming(group: &str, service: &str) -> Value {
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

fn list(known: &mut Known, kind: &Kind, objects: &[Value]) {
    known.settle();
    known.begins(kind);
    objects.iter().for_each(|object| known.has(kind, &raw(object), true));
    known.is_whole(kind);
}

fn shown(known: &mut Known) -> Vec<String> {
    known.settle();
    known.shown.keys().cloned().collect()
}

/// The Services that could not be read.
fn unknown(known: &Known) -> Vec<String> {
    known.all().services.into_iter().filter(|key| known.trouble(key).is_some()).collect()
}

/// The Services that may have changed.
fn touched(known: &mut Known) -> Vec<String> {
    known.settle();
    known.take_touched().services.into_iter().collect()
}

fn of_ns() -> [Kind; 2] {
    [Kind::Services("ns".to_owned()), Kind::EndpointSlices("ns".to_owned())]
}

/// One APIService with a Service and an endpoint.
fn settled() -> Known {
    let mut known = known();
    let [services, slices] = of_ns();
    list(&mut known, &Kind::ApiServices, &[api_service("a.io", "ns")]);
    list(&mut known, &services, &[service("api")]);
    list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    assert_eq!(shown(&mut known), ["v1.a.io"]);
    known
}

#[test]
fn an_api_service_is_shown_once_somebody_can_say_where_it_leads() {
    let mut known = known();
    let settle = |known: &mut Known| {
        for gone in known.settle().gone {
            known.forget(&gone);
        }
        (known.namespaces.keys().cloned().collect::<BTreeSet<_>>(), known.complete)
    };
    assert_eq!(settle(&mut known), (BTreeSet::new(), false));
    list(&mut known, &Kind::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
    assert_eq!(settle(&mut known), (BTreeSet::from(["far".to_owned(), "ns".to_owned()]), false));
    assert!(shown(&mut known).is_empty());
    let [services, slices] = of_ns();
    list(&mut known, &services, &[service("api")]);
    assert!(shown(&mut known).is_empty());
    list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    assert_eq!(shown(&mut known), ["v1.a.io"]);
    // A namespace that may not be listed is not waited for.
    known.fails(&Kind::Services("far".to_owned()), "the kube-apiserver answered 403", true);
    assert!(settle(&mut known).1);
    assert_eq!(shown(&mut known), ["v1.a.io", "v1.b.io"]);
    let registry = Registry::of(Layers::only(&known));
    assert_eq!(resolve(&registry.in_order()[0], &registry, Rules::default()).unwrap().endpoints.len(), 1);
    let nowhere = resolve(&registry.in_order()[1], &registry, Rules::default()).unwrap_err();
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
    known.has(&Kind::ApiServices, &raw(&api_service("a.io", "new")), false);
    let leads = |known: &Known| match &known.shown["v1.a.io"].backend {
        Backend::Service(reference) => reference.namespace.clone(),
        _ => panic!("no Service"),
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new", "ns"]), "ns".to_owned()));
    known.fails(&Kind::Services("new".to_owned()), "the kube-apiserver answered 500", false);
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new", "ns"]), "ns".to_owned()));
    known.is_late("new", true);
    assert_eq!((settle(&mut known).0, leads(&known)), (names(&["far", "new"]), "new".to_owned()));
}

#[test]
fn what_fails_is_waited_for_and_concerns_nobody_else() {
    let mut known = known();
    let [services, slices] = of_ns();
    list(&mut known, &Kind::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
    list(&mut known, &services, &[service("api")]);
    list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
    let far = Kind::EndpointSlices("far".to_owned());
    known.fails(&far, "the kube-apiserver answered 500", false);
    assert_eq!((shown(&mut known), known.complete, known.problems().0.len()), (vec!["v1.a.io".into()], false, 0));
    let before = known.heard;
    known.fails(&far, "the kube-apiserver answered 500", false);
    assert_eq!(known.heard, before, "the same failure is no change");
    known.is_late("far", true);
    assert_eq!((shown(&mut known).len(), known.complete, known.problems().0.len()), (2, true, 1));
    // A Service without its slices cannot be resolved either.
    list(&mut known, &Kind::Services("far".to_owned()), &[service("api")]);
    let registry = Registry::of(Layers::only(&known));
    let nowhere = resolve(&registry.in_order()[1], &registry, Rules::default()).unwrap_err();
    assert_eq!(nowhere.reason, "ServiceAccessError");
    // After the first complete list, a new APIService is published with its error.
    known.has(&Kind::ApiServices, &raw(&api_service("c.io", "dark")), false);
    known.begins(&Kind::Services("dark".to_owned()));
    assert_eq!(shown(&mut known).len(), 2);
    known.is_late("dark", false);
    assert_eq!((shown(&mut known).len(), known.complete, known.problems().0.len()), (3, true, 2));
    // The failure was temporary.
    list(&mut known, &far, &[]);
    assert_eq!((unknown(&known), known.problems().0.len()), (vec!["dark/api".to_owned()], 1));
}

#[test]
fn without_endpoints_a_cluster_ip_is_not_believed() {
    let mut known = settled();
    known.lacks(&Kind::EndpointSlices("ns".to_owned()), &raw(&slice("one", "api", "10.1.0.1")));
    let registry = Registry::of(Layers::only(&known));
    for endpoints in [true, false] {
        let rules = Rules { endpoints, ..Rules::default() };
        let nowhere = resolve(&registry.in_order()[0], &registry, rules).unwrap_err();
        assert_eq!(
            (nowhere.reason, nowhere.message.as_str()),
            ("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"")
        );
    }
}

#[test]
fn what_does_not_concern_us_is_no_change() {
    let mut known = settled();
    let before = (known.heard, touched(&mut known).len());
    let mut touched_up = api_service("a.io", "ns");
    touched_up["metadata"]["resourceVersion"] = "2".into();
    touched_up["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
    touched_up["status"] = json!({"conditions": [{"type": "Available", "status": "True"}]});
    known.has(&Kind::ApiServices, &raw(&touched_up), false);
    known.has(&of_ns()[1], &raw(&slice("two", "", "10.1.0.2")), false);
    let mut names = slice("three", "api", "10.1.0.3");
    names["addressType"] = "FQDN".into();
    known.has(&of_ns()[1], &raw(&names), false);
    assert_eq!((known.heard, touched(&mut known).len(), known.problems().0.len()), (before.0, 0, 0));
    // The stored status is updated for the status writer.
    let written = known.statuses.of("v1.a.io").unwrap();
    assert_eq!((written.version.as_str(), written.conditions.len()), ("2", 1));
}

#[test]
fn what_is_wrong_is_named_and_takes_nothing_away() {
    let mut known = settled();
    let mut wrong = api_service("a.io", "ns");
    wrong["spec"]["versionPriority"] = 0.into();
    known.has(&Kind::ApiServices, &raw(&wrong), false);
    known.has(&Kind::ApiServices, &raw(&json!({"metadata": {}})), false);
    let mut elsewhere = slice("one", "api", "10.1.0.1");
    elsewhere["endpoints"][0]["addresses"][0] = "nowhere".into();
    known.has(&of_ns()[1], &raw(&elsewhere), false);
    let problems: Vec<String> = known.problems().0.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:#?}");
    assert!(problems[1].starts_with("kube-apiserver, APIService \"v1.a.io\": spec.versionPriority: 0"), "{problems:?}");
    assert!(problems[2].starts_with("kube-apiserver, EndpointSlice \"ns/one\": "), "{problems:?}");
    let registry = Registry::of(Layers::only(&known));
    assert!(resolve(&registry.in_order()[0], &registry, Rules::default()).is_ok());
    // A list keeps errors of listed objects and drops those of absent ones.
    list(&mut known, &Kind::ApiServices, &[wrong]);
    assert_eq!(known.problems().0.len(), 2);
    list(&mut known, &Kind::ApiServices, &[]);
    assert_eq!((known.problems().0.len(), shown(&mut known).len()), (1, 0));
    assert!(known.statuses.of("v1.a.io").is_none());
}

#[test]
fn a_change_touches_what_it_is_about() {
    let mut known = settled();
    let [services, slices] = of_ns();
    known.has(&Kind::ApiServices, &raw(&naming("b.io", "other")), false);
    assert_eq!(touched(&mut known), ["ns/api", "ns/other"], "everything is new");
    assert!(touched(&mut known).is_empty());
    let count = |known: &Known, key| known.endpoint_slices(key).len();
    known.has(&slices, &raw(&slice("two", "api", "10.1.0.2")), false);
    assert_eq!((touched(&mut known), count(&known, "ns/api")), (vec!["ns/api".to_owned()], 2));
    // Moved from one Service to another: the slices of both changed.
    known.has(&slices, &raw(&slice("two", "other", "10.1.0.2")), false);
    assert_eq!(touched(&mut known), ["ns/api", "ns/other"]);
    assert_eq!((count(&known, "ns/api"), count(&known, "ns/other")), (1, 1));
    known.lacks(&slices, &raw(&slice("two", "other", "10.1.0.2")));
    assert_eq!((touched(&mut known), count(&known, "ns/other")), (vec!["ns/other".to_owned()], 0));
    known.has(&services, &raw(&service("other")), false);
    assert_eq!(touched(&mut known), ["ns/other"]);
    // An event with the same APIService is no change.
    known.has(&Kind::ApiServices, &raw(&api_service("a.io", "ns")), false);
    known.settle();
    assert_eq!(known.take_touched(), Touched::default());
    let mut other = api_service("a.io", "ns");
    other["spec"]["versionPriority"] = 7.into();
    known.has(&Kind::ApiServices, &raw(&other), false);
    known.settle();
    let only = Touched { api_services: BTreeSet::from(["v1.a.io".to_owned()]), ..Touched::default() };
    assert_eq!(known.take_touched(), only);
}

#[test]
fn what_no_api_service_names_is_neither_kept_nor_news() {
    let mut known = settled();
    let [services, slices] = of_ns();
    let mut registry = Registry::of(Layers::only(&known));
    touched(&mut known);
    let before = known.heard;
    let mut wrong = slice("wrong", "more", "10.1.0.3");
    wrong["endpoints"][0]["addresses"][0] = "nowhere".into();
    known.has(&services, &raw(&service("more")), false);
    known.has(&slices, &raw(&slice("two", "more", "10.1.0.2")), false);
    known.has(&slices, &raw(&wrong), false);
    known.lacks(&slices, &raw(&slice("other", "more", "10.1.0.2")));
    known.lacks(&services, &raw(&service("more")));
    assert_eq!((known.heard, touched(&mut known).len()), (before, 0));
    list(&mut known, &services, &[service("api"), service("more")]);
    list(&mut known, &slices, &[slice("one", "api", "10.1.0.1"), slice("two", "more", "10.1.0.2"), wrong]);
    known.settle();
    assert!(registry.look(&known.take_touched(), Layers::only(&known)).is_none());
    assert_eq!(known.problems().0.len(), 0);
    let sizes = |known: &Known| {
        (known.namespaces["ns"].services.objects.values().count(), known.endpoint_slices("ns/api").len())
    };
    assert_eq!(sizes(&known), (1, 1));
    // A slice moved to another Service is removed from its previous one.
    known.has(&slices, &raw(&slice("one", "more", "10.1.0.1")), false);
    assert_eq!(sizes(&known), (1, 0));
}

#[test]
fn one_that_is_named_later_is_listed_before_anybody_is_led_there() {
    let mut known = settled();
    let [services, slices] = of_ns();
    let leads = |known: &Known| {
        let of = |one: &Arc<ApiService>| service_of(one).unwrap().1.to_owned();
        known.shown.values().map(of).collect::<Vec<_>>()
    };
    let settle = |known: &mut Known| known.settle().anew;
    known.has(&Kind::ApiServices, &raw(&naming("b.io", "more")), false);
    known.has(&Kind::ApiServices, &raw(&naming("a.io", "more")), false);
    assert_eq!(settle(&mut known), [services.clone(), slices.clone()]);
    assert_eq!(settle(&mut known), [], "once");
    assert_eq!(leads(&known), ["api"], "one waits, one stays where it was");
    let [api, more] = [slice("one", "api", "10.1.0.1"), slice("two", "more", "10.1.0.2")];
    list(&mut known, &services, &[service("api"), service("more")]);
    list(&mut known, &slices, &[api, more]);
    settle(&mut known);
    assert_eq!(leads(&known), ["more", "more"]);
    assert_eq!(known.namespaces["ns"].services.objects.values().count(), 1, "the other is named no more");
    // A failed list affects only the APIServices that wait for it.
    known.has(&Kind::ApiServices, &raw(&naming("c.io", "third")), false);
    assert_eq!(settle(&mut known).len(), 2);
    known.fails(&services, "the kube-apiserver answered 500", false);
    settle(&mut known);
    assert_eq!(leads(&known), ["more", "more", "third"]);
    assert_eq!(unknown(&known), ["ns/third"]);
    assert!(known.problems().0[0].to_string().ends_with(": v1.c.io"));
}
