//! The snapshot: what exists, judged and sorted.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::api_service::{ApiService, Backend};
use super::endpoints::EndpointSlice;
use super::last_good::LastGood;
use super::scan::Scan;
use super::service::{Service, ServiceType};
use crate::kubeapi::compare_kube_aware;
use crate::process::{Problem, Problems, Sharded};

/// Where the registry is, and what it may say.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `--registry-dir`.
    pub dir: PathBuf,
    /// `--allow-url-backends`.
    pub allow_url_backends: bool,
    /// `--request-timeout`, for an APIService that does not say.
    pub default_request_timeout: Duration,
    /// Half of `--max-requests-inflight`, for an APIService that does not say; 0 for no limit.
    pub default_max_inflight: usize,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            dir: PathBuf::new(),
            allow_url_backends: false,
            default_request_timeout: Duration::from_secs(60),
            default_max_inflight: 200,
        }
    }
}

/// Reads the directory once. The error has every mistake in it.
pub fn load(settings: &Settings) -> Result<Registry, Problems> {
    let mut registry = LastGood::new(settings.clone()).update(Scan::of(&settings.dir));
    std::mem::take(&mut registry.problems).or(registry)
}

/// Reads `text` as if it were the only file of the directory, with the name `file`.
pub fn read(settings: &Settings, file: &str, text: &str) -> Result<Registry, Problems> {
    let mut registry = LastGood::new(settings.clone()).update(Scan::fixed(&[(file, text)]));
    std::mem::take(&mut registry.problems).or(registry)
}

/// What one source holds, or several together.
#[derive(Default)]
pub(super) struct Contents {
    /// Each with where it stands.
    pub(super) api_services: Vec<(String, Arc<ApiService>)>,
    pub(super) services: Vec<Arc<Service>>,
    pub(super) endpoint_slices: Vec<Arc<EndpointSlice>>,
    /// Services of which nobody knows what there is, as [`service_key`], and why.
    pub(super) unknown: BTreeMap<String, String>,
}

impl Contents {
    /// Both together. Of two with the same name this one's counts; who has a Service has its endpoints. The places of
    /// the APIServices that do not count are given back.
    pub(super) fn over(mut self, mut other: Contents) -> (Contents, Vec<String>) {
        let mut hidden = Vec::new();
        let names: HashSet<&str> = self.api_services.iter().map(|(_, one)| one.name.as_str()).collect();
        other.api_services.retain(|(place, one)| {
            let stays = !names.contains(one.name.as_str());
            if !stays {
                hidden.push(place.clone());
            }
            stays
        });
        let ours: HashSet<(&str, &str)> =
            self.services.iter().map(|one| (one.namespace.as_str(), one.name.as_str())).collect();
        other.services.retain(|one| !ours.contains(&(one.namespace.as_str(), one.name.as_str())));
        other.endpoint_slices.retain(|one| !ours.contains(&(one.namespace.as_str(), one.service.as_str())));
        let theirs: HashSet<(&str, &str)> =
            other.services.iter().map(|one| (one.namespace.as_str(), one.name.as_str())).collect();
        self.endpoint_slices.retain(|one| !theirs.contains(&(one.namespace.as_str(), one.service.as_str())));
        self.api_services.append(&mut other.api_services);
        self.services.append(&mut other.services);
        self.endpoint_slices.append(&mut other.endpoint_slices);
        self.unknown.append(&mut other.unknown);
        (self, hidden)
    }
}

/// What exists. Objects that did not change are the same `Arc` in the next snapshot.
#[derive(Clone, Default)]
pub struct Registry {
    /// In the order of discovery: groups by their highest `groupPriorityMinimum`, versions by
    /// `versionPriority`, then as Kubernetes orders versions.
    pub api_services: Vec<Arc<ApiService>>,
    /// Counts the snapshots that differed from the one before.
    pub version: u64,
    /// What is wrong now: the objects meant are as they last were when they were right.
    pub problems: Problems,
    /// What is allowed but deserves a second look.
    pub warnings: Arc<Vec<Problem>>,
    /// Whether every source has said all there is at least once: what is not here does not exist.
    pub complete: bool,
    /// Services of which nobody knows what there is, by namespace and name, and why.
    unknown: Arc<BTreeMap<String, String>>,
    by_name: Sharded<Arc<ApiService>>,
    /// By namespace and name of the Service.
    services: Sharded<Arc<Service>>,
    /// By namespace and name of the Service.
    endpoint_slices: Sharded<Arc<[Arc<EndpointSlice>]>>,
    /// The same for all snapshots between which nothing but endpoints changed.
    lineage: Arc<()>,
    /// Of what changed after this version, everything is in `lately`.
    settled: u64,
    /// The Services whose endpoints did, and the version that each made.
    lately: VecDeque<(u64, Arc<str>)>,
}

/// A snapshot, to compare a later one with.
#[derive(Clone)]
pub struct Mark {
    lineage: Arc<()>,
    version: u64,
}

/// Whoever looks at a snapshot more seldom than this has to look at all of it.
const LATELY: usize = 128;

impl Registry {
    /// What nobody says anything of.
    pub fn nothing() -> Registry {
        Registry { complete: true, ..Registry::default() }
    }

    /// The APIService of this name.
    pub fn api_service(&self, name: &str) -> Option<&Arc<ApiService>> {
        self.by_name.get(name)
    }

    /// The Service of this namespace and name.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&Arc<Service>> {
        self.services.get(&service_key(namespace, name))
    }

    /// The EndpointSlices of a Service; its Endpoints only if there is no slice.
    pub fn endpoint_slices_of(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        let all = self.endpoint_slices.get(&service_key(namespace, service));
        let all = all.map(AsRef::as_ref).unwrap_or_default();
        let modern = all.iter().any(|slice| !slice.legacy);
        all.iter().filter(|slice| slice.legacy != modern).cloned().collect()
    }

    /// To ask a later snapshot what changed since this one.
    pub fn mark(&self) -> Mark {
        Mark { lineage: self.lineage.clone(), version: self.version }
    }

    /// Whether this is the snapshot that was marked.
    pub fn is_at(&self, mark: &Mark) -> bool {
        Arc::ptr_eq(&self.lineage, &mark.lineage) && mark.version == self.version
    }

    /// The Services whose endpoints changed since `mark`, as `namespace/name`; nothing if more than endpoints changed,
    /// or it is too long ago.
    pub fn only_endpoints_since(&self, mark: &Mark) -> Option<Vec<&str>> {
        if !Arc::ptr_eq(&self.lineage, &mark.lineage) || mark.version < self.settled {
            return None;
        }
        Some(self.lately.iter().filter(|(at, _)| *at > mark.version).map(|(_, service)| service.as_ref()).collect())
    }

    /// The same with other endpoints of some Services, which costs what they are, whatever else there is.
    pub(super) fn with_endpoints(&self, version: u64, changed: Vec<(String, Vec<Arc<EndpointSlice>>)>) -> Registry {
        let mut registry = Registry { version, ..self.clone() };
        for (service, slices) in changed {
            if slices.is_empty() {
                registry.endpoint_slices.remove(&service);
            } else {
                registry.endpoint_slices.insert(&service, slices.into());
            }
            registry.lately.push_back((version, service.into()));
            if registry.lately.len() > LATELY {
                registry.settled = registry.lately.pop_front().map_or(registry.settled, |(version, _)| version);
            }
        }
        registry
    }

    /// Why nobody knows what there is of a Service, if that is so.
    pub(super) fn trouble(&self, namespace: &str, service: &str) -> Option<&str> {
        self.unknown.get(&service_key(namespace, service)).map(String::as_str)
    }

    /// Sorts what was found and looks for what deserves a second look.
    pub(super) fn of(contents: Contents) -> Registry {
        let Contents { mut api_services, services, endpoint_slices, unknown } = contents;
        let mut registry = Registry { unknown: Arc::new(unknown), complete: true, ..Registry::default() };
        for one in services {
            registry.services.insert(&service_key(&one.namespace, &one.name), one);
        }
        let mut by_service: BTreeMap<String, Vec<Arc<EndpointSlice>>> = BTreeMap::new();
        for one in endpoint_slices {
            by_service.entry(service_key(&one.namespace, &one.service)).or_default().push(one);
        }
        for (service, slices) in by_service {
            registry.endpoint_slices.insert(&service, slices.into());
        }
        let mut warnings = Vec::new();
        for (place, one) in &api_services {
            registry.warn(place, one, &mut warnings);
            registry.by_name.insert(&one.name, one.clone());
        }
        registry.warnings = Arc::new(warnings);
        sort(&mut api_services);
        registry.api_services = api_services.into_iter().map(|(_, one)| one).collect();
        registry
    }

    /// This is the version; whoever knows another snapshot has to look at all of it.
    pub(super) fn is_version(&mut self, version: u64) {
        (self.version, self.settled) = (version, version);
    }

    fn warn(&self, place: &str, one: &ApiService, warnings: &mut Vec<Problem>) {
        let mut external = false;
        if let Backend::Service(reference) = &one.backend {
            let (name, namespace) = (&reference.name, &reference.namespace);
            match self.service(namespace, name) {
                None if self.trouble(namespace, name).is_some() => {}
                None => {
                    let message = format!("service/{name} in {namespace:?} is not there: unavailable until it is");
                    warnings.push(Problem::field(place, "spec.service", message));
                }
                Some(service) => external = service.kind == ServiceType::ExternalName,
            }
        }
        if one.insecure_skip_tls_verify {
            let message = if external {
                "an ExternalName without verification: whoever answers to that name receives the requests"
            } else {
                "the backend's certificate is not verified: whoever can answer in its place can read and forge"
            };
            warnings.push(Problem::field(place, "spec.insecureSkipTLSVerify", message));
        } else if one.ca_bundle.is_none() && matches!(one.backend, Backend::Service(_)) {
            let message = "none given: any authority that this machine trusts may vouch for the backend";
            warnings.push(Problem::field(place, "spec.caBundle", message));
        }
    }
}

/// A Service as a key: no namespace has a slash.
pub(super) fn service_key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Groups by their highest priority, of equals the one with the first name; inside a group versions by
/// priority, of equals the one Kubernetes prefers (`apiregistration/v1/helper`, `SortedByGroupAndVersion`).
fn sort(all: &mut [(String, Arc<ApiService>)]) {
    let mut groups: BTreeMap<String, (i32, String)> = BTreeMap::new();
    for (_, one) in all.iter() {
        let mine = (-one.group_priority_minimum, one.name.clone());
        let best = groups.entry(one.group.clone()).or_insert_with(|| mine.clone());
        if mine < *best {
            *best = mine;
        }
    }
    all.sort_by(|(_, a), (_, b)| {
        groups[&a.group]
            .cmp(&groups[&b.group])
            .then_with(|| b.version_priority.cmp(&a.version_priority))
            .then_with(|| compare_kube_aware(&b.version, &a.version))
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A registry of these documents, which must be right; for the tests of other modules too.
    pub(crate) fn registry(text: &str) -> Registry {
        let settings = Settings { allow_url_backends: true, ..Settings::default() };
        read(&settings, "registry.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
    }

    pub(crate) fn api_service(name: &str, rest: &str) -> String {
        let (version, group) = name.split_once('.').unwrap();
        format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {name}}}\nspec: {{group: {group:?}, version: {version}, {rest}}}\n---\n"
        )
    }

    #[test]
    fn groups_and_versions_are_in_the_order_of_discovery() {
        let text: String = [
            ("v1.b.io", 10, 1),
            ("v1alpha1.a.io", 10, 1),
            ("v2.a.io", 5, 1),
            ("v10.a.io", 5, 1),
            ("v1.a.io", 5, 9),
            ("v1.z.io", 20, 1),
        ]
        .iter()
        .map(|(name, group, version)| {
            api_service(name, &format!("groupPriorityMinimum: {group}, versionPriority: {version}"))
        })
        .collect();
        let names: Vec<String> = registry(&text).api_services.iter().map(|one| one.name.clone()).collect();
        assert_eq!(names, ["v1.z.io", "v1.b.io", "v1.a.io", "v10.a.io", "v2.a.io", "v1alpha1.a.io"]);
    }

    #[test]
    fn what_changed_since_a_snapshot_is_known_for_a_while() {
        let priorities = "groupPriorityMinimum: 1, versionPriority: 1";
        let first = registry(&api_service("v1.a.io", &format!("{priorities}, service: {{name: a, namespace: ns}}")));
        let slices = || {
            vec![Arc::new(EndpointSlice {
                namespace: "ns".to_owned(),
                name: "one".to_owned(),
                service: "a".to_owned(),
                legacy: false,
                subsets: Vec::new(),
            })]
        };
        let second = first.with_endpoints(2, vec![("ns/a".to_owned(), slices())]);
        let third = second.with_endpoints(3, vec![("ns/a".to_owned(), Vec::new()), ("ns/b".to_owned(), slices())]);
        assert_eq!(third.only_endpoints_since(&first.mark()), Some(vec!["ns/a", "ns/a", "ns/b"]));
        assert_eq!(third.only_endpoints_since(&second.mark()), Some(vec!["ns/a", "ns/b"]));
        assert_eq!(third.only_endpoints_since(&third.mark()), Some(Vec::new()));
        let count = |registry: &Registry, service| registry.endpoint_slices_of("ns", service).len();
        assert_eq!((count(&first, "a"), count(&second, "a"), count(&third, "a"), count(&third, "b")), (0, 1, 0, 1));
        // Another registry, of the same version or not.
        assert_eq!(registry("").only_endpoints_since(&first.mark()), None);
        let mut last = third.clone();
        for version in 4..4 + LATELY as u64 {
            last = last.with_endpoints(version, vec![("ns/a".to_owned(), slices())]);
        }
        assert_eq!(last.only_endpoints_since(&second.mark()), None, "too long ago");
        assert_eq!(last.only_endpoints_since(&third.mark()).map(|all| all.len()), Some(LATELY));
    }

    #[test]
    fn what_is_allowed_but_risky_is_a_warning() {
        let priorities = "groupPriorityMinimum: 1, versionPriority: 1";
        let text = api_service("v1.a.io", &format!("{priorities}, service: {{name: a, namespace: ns}}"))
            + &api_service(
                "v1.b.io",
                &format!("{priorities}, insecureSkipTLSVerify: true, service: {{name: b, namespace: ns}}"),
            )
            + "apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: ns}\nspec: {type: ExternalName, externalName: x.y}\n";
        let warnings: Vec<String> = registry(&text).warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 3, "{warnings:#?}");
        assert!(warnings[0].contains("service/a in \"ns\" is not there"));
        assert!(warnings[1].contains("spec.caBundle: none given"));
        assert!(warnings[2].contains("an ExternalName without verification"));
    }

    #[test]
    fn the_sample_is_right() {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/registry");
        let registry = load(&Settings { dir, ..Settings::default() }).unwrap_or_else(|problems| panic!("{problems}"));
        let names: Vec<&str> = registry.api_services.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["v1beta1.wardle.example.com", "v1alpha1.wardle.example.com", "v1beta1.metrics.k8s.io"]);
        for one in &registry.api_services {
            assert!(
                crate::registry::resolve(one, &registry, Default::default(), &Default::default()).is_ok(),
                "{}",
                one.name
            );
        }
        assert!(registry.warnings.iter().all(|warning| warning.field == "spec.caBundle"), "{:?}", registry.warnings);
    }
}
