//! What a kube-apiserver said, kept until it says otherwise. Pure: objects in, contents out.
//!
//! An APIService is shown once its Service's namespace has been listed, or nobody waits for that any more: before, it
//! could not be said where it leads. One that moves is shown where it was until then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::value::RawValue;

use super::collection::Collection;
use super::namespace::{Namespace, Part};
use super::object;
use super::statuses::Statuses;
use crate::process::{Problem, Problems};
use crate::registry::api_service::{ApiService, Backend};
use crate::registry::endpoints::EndpointSlice;
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
    /// Those that are shown as they were, because nobody knows yet where they lead now.
    moving: BTreeSet<String>,
    /// The `status` that each has there.
    statuses: Statuses,
    namespaces: BTreeMap<String, Namespace>,
    /// Whether everything was there once, as far as it can be had.
    pub(super) complete: bool,
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

impl Known {
    pub(super) fn new(settings: Settings, statuses: Statuses) -> Known {
        Known {
            settings,
            api_services: Collection::default(),
            shown: BTreeMap::new(),
            moving: BTreeSet::new(),
            statuses,
            namespaces: BTreeMap::new(),
            complete: false,
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
            Kind::Services(namespace) => self.namespace(namespace).services.end(),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).slices.end(),
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

    /// A collection cannot be listed or watched. Of a namespace of which nothing is known that concerns the APIServices
    /// that lead there: they are shown, at once if it was `refused`, and say why nobody knows where they lead.
    pub(super) fn fails(&mut self, kind: &Kind, why: &str, refused: bool) {
        let changed = match kind {
            Kind::ApiServices => false,
            Kind::Services(namespace) => self.namespace(namespace).fails(Part::Services, why, refused),
            Kind::EndpointSlices(namespace) => self.namespace(namespace).fails(Part::Slices, why, refused),
        };
        self.counts(changed);
    }

    /// A namespace was waited for; for the last time, if it is given up.
    pub(super) fn is_late(&mut self, namespace: &str, give_up: bool) {
        let changed = self.namespaces.get_mut(namespace).is_some_and(|one| one.is_late(give_up));
        self.counts(changed);
    }

    /// The namespaces in which APIServices have their Services, those of `others` too; and those where one that moved is
    /// still shown.
    fn wanted<'o>(&self, others: impl Iterator<Item = &'o ApiService>) -> BTreeSet<String> {
        let mut wanted: BTreeSet<String> = others.filter_map(namespace_of).map(str::to_owned).collect();
        let ours = self.api_services.values().chain(self.shown.values());
        wanted.extend(ours.filter_map(|one| namespace_of(one)).map(str::to_owned));
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

    /// Shows what can be, and says which namespaces are wanted for that and for `others`.
    pub(super) fn settle<'o>(&mut self, others: impl Iterator<Item = &'o ApiService>) -> BTreeSet<String> {
        let Known { api_services, shown, moving, namespaces, complete, .. } = self;
        shown.retain(|name, _| api_services.has(name));
        moving.retain(|name| api_services.has(name));
        for one in api_services.values() {
            let namespace = namespace_of(one).map(|name| namespaces.get(name));
            let shows = match namespace {
                None => true,
                Some(None) => false,
                // One that is new gains nothing by being hidden: who asks for it would be told that there is none.
                Some(Some(namespace)) => {
                    let new = *complete && !shown.contains_key(&one.name);
                    namespace.is_settled() || (new && namespace.trouble().is_some())
                }
            };
            if shows {
                shown.insert(one.name.clone(), one.clone());
                moving.remove(&one.name);
            } else if shown.contains_key(&one.name) && moving.insert(one.name.clone()) {
                tracing::info!(
                    apiservice = one.name,
                    namespace = namespace_of(one),
                    "an APIService moved; it is served as before until it is known what is in its new namespace, or \
                     that cannot be listed"
                );
            }
        }
        let wanted = self.wanted(others);
        let is_settled = |name: &String| self.namespaces.get(name).is_some_and(Namespace::is_settled);
        self.complete |= self.api_services.is_whole && wanted.iter().all(is_settled);
        wanted
    }

    /// What is known, as far as it is to be shown.
    pub(super) fn contents(&self) -> Contents {
        let Known { shown, namespaces, .. } = self;
        let unknown = |(name, one): (&String, &Namespace)| {
            let (what, why) = one.trouble()?;
            Some((name.clone(), format!("{what} cannot be listed: {why}")))
        };
        Contents {
            api_services: shown.values().map(|one| (place(&Kind::ApiServices, &one.name), one.clone())).collect(),
            services: namespaces.values().flat_map(|one| one.services.values().cloned()).collect(),
            endpoint_slices: namespaces.values().flat_map(|one| one.slices.values().cloned()).collect(),
            unknown: namespaces.iter().filter_map(unknown).collect(),
        }
    }

    /// What is wrong with objects; they are as they last were when they were right, if they ever were. And what is
    /// wrong with namespaces.
    pub(super) fn problems(&self) -> Problems {
        let of_namespace = |(name, one): (&String, &Namespace)| {
            let (what, why) = one.given_up().or(one.trouble().filter(|_| self.complete))?;
            let leads = |one: &&Arc<ApiService>| namespace_of(one) == Some(name);
            let its: Vec<&str> = self.api_services.values().filter(leads).map(|one| one.name.as_str()).collect();
            let message = format!("{what} cannot be listed: {why}; unavailable until they can be: {}", its.join(", "));
            Some(Problem::new(format!("kube-apiserver, namespace {name:?}"), message))
        };
        let namespaces = self.namespaces.iter().filter_map(of_namespace);
        Problems(self.problems.values().flatten().cloned().chain(namespaces).collect())
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
        known.settle(std::iter::empty());
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
        assert_eq!(shown(&mut known), ["v1.a.io"]);
        known
    }

    #[test]
    fn an_api_service_is_shown_once_somebody_can_say_where_it_leads() {
        let mut known = known();
        let settle = |known: &mut Known| (known.settle(std::iter::empty()), known.complete);
        assert_eq!(settle(&mut known), (BTreeSet::new(), false));
        list(&mut known, &Kind::ApiServices, &[api_service("a.io", "ns"), api_service("b.io", "far")]);
        assert_eq!(settle(&mut known), (BTreeSet::from(["far".to_owned(), "ns".to_owned()]), false));
        assert!(shown(&mut known).is_empty());
        let [services, slices] = of_ns();
        list(&mut known, &services, &[service("api")]);
        assert!(shown(&mut known).is_empty());
        list(&mut known, &slices, &[slice("one", "api", "10.1.0.1")]);
        assert_eq!(shown(&mut known), ["v1.a.io"]);
        // Somewhere we may not look: that is all there will be to say.
        known.fails(&Kind::Services("far".to_owned()), "the kube-apiserver answered 403", true);
        assert!(settle(&mut known).1);
        assert_eq!(shown(&mut known), ["v1.a.io", "v1.b.io"]);
        let registry = Registry::of(known.contents());
        assert_eq!(resolve(&registry.api_services[0], &registry, Rules::default()).unwrap().endpoints.len(), 1);
        let nowhere = resolve(&registry.api_services[1], &registry, Rules::default()).unwrap_err();
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
        assert!(
            problems[0].starts_with("kube-apiserver, namespace \"far\": services cannot be listed: "),
            "{problems:?}"
        );
        assert!(problems[0].ends_with(": v1.b.io"), "{problems:?}");
        // It moves on: until the new place is known it stands where it stood.
        known.has(&Kind::ApiServices, &raw(&api_service("a.io", "new")), false);
        let leads = |known: &Known| match &known.contents().api_services[0].1.backend {
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
        assert_eq!(known.heard, before, "the same again is no news");
        known.is_late("far", true);
        assert_eq!((shown(&mut known).len(), known.complete, known.problems().0.len()), (2, true, 1));
        // With a Service and without its slices nobody can say where it is, either.
        list(&mut known, &Kind::Services("far".to_owned()), &[service("api")]);
        let registry = Registry::of(known.contents());
        let nowhere = resolve(&registry.api_services[1], &registry, Rules::default()).unwrap_err();
        assert_eq!(nowhere.reason, "ServiceAccessError");
        // Later nobody waits for somebody else: what is new is there, and says why it cannot be used.
        known.has(&Kind::ApiServices, &raw(&api_service("c.io", "dark")), false);
        known.begins(&Kind::Services("dark".to_owned()));
        assert_eq!(shown(&mut known).len(), 2);
        known.is_late("dark", false);
        assert_eq!((shown(&mut known).len(), known.complete, known.problems().0.len()), (3, true, 2));
        // It was a passing weakness.
        list(&mut known, &far, &[]);
        let unknown: Vec<String> = known.contents().unknown.into_keys().collect();
        assert_eq!((unknown, known.problems().0.len()), (vec!["dark".to_owned()], 1));
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
