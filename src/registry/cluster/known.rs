//! What a kube-apiserver said, kept until it says otherwise. Pure: objects in, contents out.
//!
//! An APIService is shown once its Service's namespace has been listed: before that nobody could say where it leads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::value::RawValue;

use super::collection::Collection;
use super::object;
use super::statuses::Statuses;
use crate::process::{Problem, Problems};
use crate::registry::api_service::{ApiService, Backend};
use crate::registry::endpoints::EndpointSlice;
use crate::registry::service::Service;
use crate::registry::snapshot::{Contents, Settings};

/// A collection that is followed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// All there are.
    ApiServices,
    /// Those of one namespace.
    Services(String),
    /// Those of one namespace.
    EndpointSlices(String),
}

/// All that is known.
pub(super) struct Known {
    settings: Settings,
    api_services: Collection<Arc<ApiService>>,
    /// What is shown of them.
    shown: BTreeMap<String, Arc<ApiService>>,
    /// The `status` that each has there.
    statuses: Statuses,
    namespaces: BTreeMap<String, Namespace>,
    problems: BTreeMap<(Kind, String), Vec<Problem>>,
    /// Counts what changed.
    pub(super) version: u64,
    /// The Services whose EndpointSlices changed since this was last asked, by namespace and name.
    endpoints: BTreeSet<(String, String)>,
    /// Whether anything else did.
    otherwise: bool,
    /// Counts what was said that somebody may want to look at, be it a mistake.
    pub(super) heard: u64,
}

/// A Service, by namespace and name, and its EndpointSlices.
pub(super) type ServiceEndpoints = ((String, String), Vec<Arc<EndpointSlice>>);

#[derive(Default)]
struct Namespace {
    services: Collection<Arc<Service>>,
    slices: Collection<Arc<EndpointSlice>>,
    /// Why it cannot be looked into, if that is so and nothing of it is known.
    refused: Option<String>,
}

impl Namespace {
    fn is_settled(&self) -> bool {
        self.refused.is_some() || (self.services.is_whole && self.slices.is_whole)
    }
}

impl Known {
    pub(super) fn new(settings: Settings, statuses: Statuses) -> Known {
        Known {
            settings,
            api_services: Collection::default(),
            shown: BTreeMap::new(),
            statuses,
            namespaces: BTreeMap::new(),
            problems: BTreeMap::new(),
            version: 0,
            heard: 0,
            endpoints: BTreeSet::new(),
            otherwise: false,
        }
    }

    /// A list of this kind begins.
    pub(super) fn begins(&mut self, kind: &Kind) {
        match kind {
            Kind::ApiServices => self.api_services.begin(),
            Kind::Services(namespace) => self.namespace(namespace).services.begin(),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).slices.begin(),
        }
    }

    /// An object of a list, or (`listed` is false) of an event.
    pub(super) fn has(&mut self, kind: &Kind, text: &RawValue, listed: bool) {
        let mut problems = Problems::default();
        let Some(read) = object::head(kind, text, &mut problems) else {
            self.tell(kind, String::new(), problems);
            return;
        };
        let name = read.name.clone();
        match kind {
            Kind::ApiServices => {
                let (one, written) = object::api_service(read, &self.settings, &mut problems);
                self.statuses.put(&name, written);
                let same = |a: &Arc<ApiService>, b: &Arc<ApiService>| a.same(b);
                let changed = self.api_services.put(&name, one.map(Arc::new), listed, same);
                self.counts(changed);
            }
            Kind::Services(namespace) => {
                let one = object::service(read, &mut problems).map(Arc::new);
                let services = &mut self.namespaces.entry(namespace.clone()).or_default().services;
                let changed = services.put(&name, one, listed, PartialEq::eq);
                self.counts(changed);
            }
            Kind::EndpointSlices(namespace) => {
                let one = object::endpoint_slice(read, &mut problems);
                let slices = &mut self.namespaces.entry(namespace.clone()).or_default().slices;
                let services = |one: Option<&Arc<EndpointSlice>>| one.map(|one| one.service.clone());
                let mut touched = vec![services(slices.get(&name))];
                let changed = match one {
                    // One that belongs to no Service, or has no addresses: none of ours.
                    Ok(None) => slices.remove(&name),
                    Ok(Some(one)) => slices.put(&name, Some(Arc::new(one)), listed, PartialEq::eq),
                    Err(object::Wrong) => slices.put(&name, None, listed, PartialEq::eq),
                };
                touched.push(services(slices.get(&name)));
                self.endpoints_change(namespace, changed, touched);
            }
        }
        self.tell(kind, name, problems);
    }

    /// The list is whole.
    pub(super) fn is_whole(&mut self, kind: &Kind) {
        let changed = match kind {
            Kind::ApiServices => {
                let changed = self.api_services.end();
                let (statuses, api_services) = (&self.statuses, &self.api_services);
                statuses.retain(|name| api_services.has(name));
                changed
            }
            Kind::Services(namespace) => {
                let namespace = self.namespace(namespace);
                namespace.refused = None;
                namespace.services.end()
            }
            Kind::EndpointSlices(namespace) => {
                let namespace = self.namespace(namespace);
                namespace.refused = None;
                namespace.slices.end()
            }
        };
        let listed: BTreeSet<String> = match kind {
            Kind::ApiServices => self.api_services.listed(),
            Kind::Services(namespace) => self.namespace(namespace).services.listed(),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).slices.listed(),
        };
        self.problems.retain(|(of, name), _| of != kind || listed.contains(name));
        self.counts(changed);
        self.heard += 1;
        self.otherwise = true;
    }

    /// An object is gone.
    pub(super) fn lacks(&mut self, kind: &Kind, text: &RawValue) {
        let Some(name) = object::name_of(text) else { return };
        let gone = match kind {
            Kind::ApiServices => {
                self.statuses.remove(&name);
                self.api_services.remove(&name)
            }
            Kind::Services(namespace) => self.namespace(namespace).services.remove(&name),
            Kind::EndpointSlices(namespace) => {
                let slices = &mut self.namespaces.entry(namespace.clone()).or_default().slices;
                let touched = slices.get(&name).map(|one| one.service.clone());
                let gone = slices.remove(&name);
                self.endpoints_change(namespace, gone, vec![touched]);
                self.untell(kind, name);
                return;
            }
        };
        self.counts(gone);
        self.untell(kind, name);
    }

    /// The API server refuses a collection. That of a namespace of which nothing is known is settled by it: the
    /// APIServices that lead there are shown, and say why nobody knows where they lead.
    pub(super) fn is_refused(&mut self, kind: &Kind, why: &str) {
        let (Kind::Services(namespace) | Kind::EndpointSlices(namespace)) = kind else { return };
        let namespace = self.namespace(namespace);
        if !namespace.is_settled() {
            namespace.refused = Some(why.to_owned());
            self.counts(true);
        }
    }

    /// The namespaces in which APIServices have their Services, those of `others` too.
    pub(super) fn wanted<'o>(&self, others: impl Iterator<Item = &'o ApiService>) -> BTreeSet<String> {
        let mut wanted: BTreeSet<String> = others.filter_map(namespace_of).map(str::to_owned).collect();
        wanted.extend(self.api_services.values().filter_map(|one| namespace_of(one)).map(str::to_owned));
        wanted
    }

    /// A namespace is followed no more.
    pub(super) fn forget(&mut self, namespace: &str) {
        let gone = self.namespaces.remove(namespace).is_some();
        self.counts(gone);
        self.problems.retain(|(kind, _), _| match kind {
            Kind::ApiServices => true,
            Kind::Services(of) | Kind::EndpointSlices(of) => of != namespace,
        });
    }

    /// Whether all that is `wanted` was said at least once.
    pub(super) fn is_complete(&self, wanted: &BTreeSet<String>) -> bool {
        self.api_services.is_whole
            && wanted.iter().all(|name| self.namespaces.get(name).is_some_and(Namespace::is_settled))
    }

    /// What is known, as far as it is to be shown.
    pub(super) fn contents(&mut self) -> Contents {
        let Known { api_services, shown, namespaces, .. } = self;
        shown.retain(|name, _| api_services.has(name));
        for one in api_services.values() {
            let settled = namespace_of(one).is_none_or(|name| namespaces.get(name).is_some_and(Namespace::is_settled));
            if settled {
                shown.insert(one.name.clone(), one.clone());
            }
        }
        Contents {
            api_services: shown.values().map(|one| (place(&Kind::ApiServices, &one.name), one.clone())).collect(),
            services: namespaces.values().flat_map(|one| one.services.values().cloned()).collect(),
            endpoint_slices: namespaces.values().flat_map(|one| one.slices.values().cloned()).collect(),
            refused: namespaces.iter().filter_map(|(name, one)| Some((name.clone(), one.refused.clone()?))).collect(),
        }
    }

    /// What is wrong with objects; they are as they last were when they were right, if they ever were.
    pub(super) fn problems(&self) -> Problems {
        Problems(self.problems.values().flatten().cloned().collect())
    }

    fn namespace(&mut self, name: &str) -> &mut Namespace {
        self.namespaces.entry(name.to_owned()).or_default()
    }

    /// What changed since this was last asked, if it is nothing but endpoints: each Service with those it has now.
    pub(super) fn only_endpoints(&mut self) -> Option<Vec<ServiceEndpoints>> {
        let endpoints = std::mem::take(&mut self.endpoints);
        if std::mem::take(&mut self.otherwise) {
            return None;
        }
        let all = |(namespace, service): (String, String)| {
            let slices = self.namespaces.get(&namespace).map(|one| one.slices.values());
            let slices = slices.into_iter().flatten().filter(|one| one.service == service).cloned().collect();
            ((namespace, service), slices)
        };
        Some(endpoints.into_iter().map(all).collect())
    }

    fn counts(&mut self, changed: bool) {
        self.version += u64::from(changed);
        self.heard += u64::from(changed);
        self.otherwise |= changed;
    }

    fn endpoints_change(&mut self, namespace: &str, changed: bool, services: Vec<Option<String>>) {
        if changed {
            self.version += 1;
            self.heard += 1;
            self.endpoints.extend(services.into_iter().flatten().map(|service| (namespace.to_owned(), service)));
        }
    }

    fn untell(&mut self, kind: &Kind, name: String) {
        self.tell(kind, name, Problems::default());
    }

    fn tell(&mut self, kind: &Kind, name: String, problems: Problems) {
        let key = (kind.clone(), name);
        let (before, now) = match problems.0.is_empty() {
            true => (self.problems.remove(&key), None),
            false => (self.problems.insert(key, problems.0.clone()), Some(problems.0)),
        };
        self.heard += u64::from(before != now);
        self.otherwise |= before != now;
    }
}

/// The namespace in which this APIService has its Service.
fn namespace_of(one: &ApiService) -> Option<&str> {
    match &one.backend {
        Backend::Service(reference) => Some(&reference.namespace),
        Backend::Local | Backend::Url(_) => None,
    }
}

/// Where a problem stands.
pub(super) fn place(kind: &Kind, name: &str) -> String {
    match kind {
        Kind::ApiServices => format!("kube-apiserver, APIService {name:?}"),
        Kind::Services(namespace) => format!("kube-apiserver, Service \"{namespace}/{name}\""),
        Kind::EndpointSlices(namespace) => format!("kube-apiserver, EndpointSlice \"{namespace}/{name}\""),
    }
}

/// When an object was made; the epoch if it does not say.
pub(super) fn created(timestamp: &str) -> SystemTime {
    timestamp.parse::<jiff::Timestamp>().map_or(SystemTime::UNIX_EPOCH, SystemTime::from)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::registry::snapshot::Registry;
    use crate::registry::{Rules, resolve};

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
        known.begins(kind);
        objects.iter().for_each(|object| known.has(kind, &raw(object), true));
        known.is_whole(kind);
    }

    fn shown(known: &mut Known) -> Vec<String> {
        known.contents().api_services.iter().map(|(_, one)| one.name.clone()).collect()
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
        known
    }

    #[test]
    fn an_api_service_is_shown_once_somebody_can_say_where_it_leads() {
        let mut known = known();
        let wanted = |known: &Known| known.wanted(std::iter::empty());
        assert!(!known.is_complete(&wanted(&known)));
        list(&mut known, &Kind::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
        assert_eq!(wanted(&known), BTreeSet::from(["far".to_owned(), "ns".to_owned()]));
        assert!(shown(&mut known).is_empty());
        let [services, slices] = of_ns();
        list(&mut known, &services, &[service("api")]);
        assert!(shown(&mut known).is_empty());
        list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
        assert_eq!(shown(&mut known), ["v1.a.io"]);
        // Somewhere we may not look: that is all there will be to say.
        known.is_refused(&Kind::Services("far".to_owned()), "the kube-apiserver answered 403");
        assert!(known.is_complete(&wanted(&known)));
        assert_eq!(shown(&mut known), ["v1.a.io", "v1.b.io"]);
        let registry = Registry::of(known.contents());
        assert_eq!(resolve(&registry.api_services[0], &registry, Rules::default()).unwrap().endpoints.len(), 1);
        let nowhere = resolve(&registry.api_services[1], &registry, Rules::default()).unwrap_err();
        assert_eq!(nowhere.reason, "ServiceAccessError");
        // It moves on: until the new place is known it stands where it stood.
        known.has(&Kind::ApiServices, &raw(&api_service("a.io", "new")), false);
        let contents = known.contents();
        let Backend::Service(reference) = &contents.api_services[0].1.backend else { panic!() };
        assert_eq!(reference.namespace, "ns");
    }

    #[test]
    fn without_endpoints_a_cluster_ip_is_not_believed() {
        let mut known = settled();
        known.lacks(&Kind::EndpointSlices("ns".to_owned()), &raw(&slice("one", "api", "10.1.0.1")));
        let registry = Registry::of(known.contents());
        for endpoints in [true, false] {
            let rules = Rules { endpoints, ..Rules::default() };
            let nowhere = resolve(&registry.api_services[0], &registry, rules).unwrap_err();
            assert_eq!(
                (nowhere.reason, nowhere.message.as_str()),
                ("EndpointsNotFound", "cannot find endpointslices for service/api in \"ns\"")
            );
        }
    }

    #[test]
    fn what_does_not_concern_us_is_no_change() {
        let mut known = settled();
        let before = known.version;
        let mut touched = api_service("a.io", "ns");
        touched["metadata"]["resourceVersion"] = "2".into();
        touched["metadata"]["managedFields"] = json!([{"manager": "kubectl"}]);
        touched["status"] = json!({"conditions": [{"type": "Available", "status": "True"}]});
        known.has(&Kind::ApiServices, &raw(&touched), false);
        known.has(&of_ns()[1], &raw(&slice("two", "", "10.1.0.2")), false);
        let mut names = slice("three", "api", "10.1.0.3");
        names["addressType"] = "FQDN".into();
        known.has(&of_ns()[1], &raw(&names), false);
        assert_eq!((known.version, known.problems().0.len()), (before, 0));
        // Whoever writes conditions sees what stands there.
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
        assert!(
            problems[1].starts_with("kube-apiserver, APIService \"v1.a.io\": spec.versionPriority: 0"),
            "{problems:?}"
        );
        assert!(problems[2].starts_with("kube-apiserver, EndpointSlice \"ns/one\": "), "{problems:?}");
        let registry = Registry::of(known.contents());
        assert!(resolve(&registry.api_services[0], &registry, Rules::default()).is_ok());
        // A list says the same of the wrong ones, and forgets those that are no more.
        list(&mut known, &Kind::ApiServices, &[wrong]);
        assert_eq!(known.problems().0.len(), 2);
        list(&mut known, &Kind::ApiServices, &[]);
        assert_eq!((known.problems().0.len(), shown(&mut known).len()), (1, 0));
        assert!(known.statuses.of("v1.a.io").is_none());
    }

    #[test]
    fn endpoints_alone_are_told_by_service() {
        let mut known = settled();
        let [services, slices] = of_ns();
        assert!(known.only_endpoints().is_none(), "everything is new");
        assert_eq!(known.only_endpoints().unwrap(), []);
        known.has(&slices, &raw(&slice("two", "api", "10.1.0.2")), false);
        let told = known.only_endpoints().unwrap();
        assert_eq!((told[0].0.1.as_str(), told[0].1.len()), ("api", 2));
        // From one Service to another: both have others now.
        known.has(&slices, &raw(&slice("two", "other", "10.1.0.2")), false);
        let told: Vec<_> = known.only_endpoints().unwrap().into_iter().map(|(key, of)| (key.1, of.len())).collect();
        assert_eq!(told, [("api".to_owned(), 1), ("other".to_owned(), 1)]);
        known.lacks(&slices, &raw(&slice("two", "other", "10.1.0.2")));
        assert_eq!(known.only_endpoints().unwrap()[0].1.len(), 0);
        known.has(&slices, &raw(&slice("one", "api", "10.1.0.9")), false);
        known.has(&services, &raw(&service("more")), false);
        assert!(known.only_endpoints().is_none());
    }
}
