//! The registry snapshot: validated APIServices, Services and endpoints.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use kubeapi::compare_by_priority;

use super::layered_sources::{DirtySet, EffectiveApiService, LayeredSources};
use super::objects::api_service::{ApiService, ApiServiceBackend};
use super::objects::endpoints::EndpointSlice;
use super::objects::service::{Service, ServiceType, service_key};
use crate::process::{ChangeLog, HelpTopic, Problem, Problems, ShardedMap};

/// A snapshot of the registry.
///
/// Objects that did not change are the same `Arc` in the next snapshot. An update costs as much as what changed,
/// however many objects there are.
#[derive(Clone, Default)]
pub struct Registry {
    /// Number of snapshots that differed from the one before.
    pub version: u64,
    /// Current errors. The last valid version of the objects concerned stays in use.
    pub problems: Arc<Problems>,
    /// Whether every source has been read completely at least once: an object that is absent here does not exist.
    pub complete: bool,
    api_services: ShardedMap<Arc<ApiService>>,
    /// Names of the APIServices that reference a Service, by [`service_key`].
    api_services_by_service: ShardedMap<Arc<[Arc<str>]>>,
    /// Services by [`service_key`].
    services: ShardedMap<Arc<Service>>,
    /// EndpointSlices by [`service_key`] of their Service.
    endpoint_slices: ShardedMap<Arc<[Arc<EndpointSlice>]>>,
    /// Errors of Services that could not be read, by [`service_key`].
    lookup_errors: ShardedMap<Arc<str>>,
    /// Warnings about valid but risky settings, by name of the APIService.
    warnings: ShardedMap<Arc<[Problem]>>,
    /// Identical for all snapshots of one sequence.
    lineage: Arc<()>,
    change_log: ChangeLog<SnapshotChange>,
}

/// Summary of an update of the registry, for the log.
#[derive(Default)]
pub(super) struct SnapshotUpdate {
    /// Whether nothing but endpoints changed.
    pub(super) only_endpoints: bool,
    /// Warnings that the snapshot before did not have.
    pub(super) new_warnings: Vec<Problem>,
}

/// An object that may differ from an earlier snapshot.
#[derive(Clone)]
enum SnapshotChange {
    ApiService(Arc<str>),
    Service(Arc<str>),
}

/// Identifies a snapshot, to compare a later one with it.
#[derive(Clone)]
pub struct Revision {
    lineage: Arc<()>,
    version: u64,
}

/// APIServices that may have changed since a [`Revision`], by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct RegistryChanges<'r> {
    /// APIServices that were added, removed or changed.
    pub api_services: BTreeSet<&'r str>,
    /// `api_services`, and APIServices with a changed Service or changed endpoints.
    pub affected: BTreeSet<&'r str>,
}

impl Registry {
    /// A complete registry without objects.
    pub fn empty() -> Registry {
        Registry { complete: true, ..Registry::default() }
    }

    /// The APIService of this name.
    pub fn api_service(&self, name: &str) -> Option<&Arc<ApiService>> {
        self.api_services.get(name)
    }

    /// Number of APIServices.
    pub fn len(&self) -> usize {
        self.api_services.len()
    }

    /// Whether there is no APIService.
    pub fn is_empty(&self) -> bool {
        self.api_services.is_empty()
    }

    /// All APIServices, in arbitrary order.
    pub fn api_services(&self) -> impl Iterator<Item = &Arc<ApiService>> {
        self.api_services.values()
    }

    /// All APIServices in the order of discovery: groups by their highest `groupPriorityMinimum`, versions by
    /// `versionPriority`, then as Kubernetes orders versions. Sorts at each call.
    pub fn sorted_api_services(&self) -> Vec<Arc<ApiService>> {
        let mut all: Vec<_> = self.api_services.values().cloned().collect();
        sort_by_api_service(&mut all, |one| one);
        all
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

    /// Warnings about one APIService.
    pub fn warnings_of(&self, name: &str) -> &[Problem] {
        self.warnings.get(name).map(AsRef::as_ref).unwrap_or_default()
    }

    /// Warnings about all APIServices, sorted by name.
    pub fn warnings(&self) -> Vec<Problem> {
        let mut names: Vec<&str> = self.warnings.names().collect();
        names.sort_unstable();
        names.into_iter().flat_map(|name| self.warnings_of(name)).cloned().collect()
    }

    /// Identifies this snapshot for [`Registry::changes_since`].
    pub fn revision(&self) -> Revision {
        Revision { lineage: self.lineage.clone(), version: self.version }
    }

    /// Whether this is the snapshot that `mark` identifies.
    pub fn is_at(&self, mark: &Revision) -> bool {
        Arc::ptr_eq(&self.lineage, &mark.lineage) && mark.version == self.version
    }

    /// What changed since `mark`. `None` if `mark` is too old: everything may have changed.
    pub fn changes_since(&self, mark: &Revision) -> Option<RegistryChanges<'_>> {
        if !Arc::ptr_eq(&self.lineage, &mark.lineage) {
            return None;
        }
        let mut changes = RegistryChanges::default();
        for change in self.change_log.changes_since(mark.version)? {
            match change {
                SnapshotChange::ApiService(name) => {
                    changes.api_services.insert(name);
                    changes.affected.insert(name);
                }
                SnapshotChange::Service(key) => {
                    changes.affected.extend(self.api_services_of_service(key).iter().map(AsRef::as_ref))
                }
            }
        }
        Some(changes)
    }

    /// The names of the APIServices that reference the Service of this key.
    fn api_services_of_service(&self, key: &str) -> &[Arc<str>] {
        self.api_services_by_service.get(key).map(AsRef::as_ref).unwrap_or_default()
    }

    /// The error that prevents reading a Service or its endpoints, if there is one.
    pub(super) fn lookup_error(&self, namespace: &str, service: &str) -> Option<&str> {
        self.lookup_errors.get(&service_key(namespace, service)).map(AsRef::as_ref)
    }

    /// Builds a registry of all objects of `layers`.
    pub(super) fn from_sources(layers: LayeredSources<'_>) -> Registry {
        let mut registry = Registry::empty();
        registry.update(&layers.all_names(), layers);
        // A reader of another snapshot must take this one as completely changed.
        registry.change_log.reset(registry.version);
        registry
    }

    /// Updates the objects named in `touched`, and no others. `None` if nothing changed.
    pub(super) fn update(&mut self, touched: &DirtySet, layers: LayeredSources<'_>) -> Option<SnapshotUpdate> {
        let (mut changes, mut only_endpoints) = (Vec::new(), true);
        let mut doubtful: BTreeSet<Arc<str>> = BTreeSet::new();
        for key in &touched.services {
            if let Some(endpoints) = self.update_service(key, layers) {
                only_endpoints &= endpoints;
                doubtful.extend(self.api_services_of_service(key).iter().cloned());
                changes.push(SnapshotChange::Service(key.as_str().into()));
            }
        }
        for name in &touched.api_services {
            let name: Arc<str> = name.as_str().into();
            if self.update_api_service(&name, layers) {
                changes.push(SnapshotChange::ApiService(name.clone()));
            }
            // Another source's APIService of this name may be hidden now.
            doubtful.insert(name);
        }
        let mut more = Vec::new();
        for name in doubtful {
            let warnings =
                layers.api_service(&name).map(|counting| self.collect_warnings(&counting)).unwrap_or_default();
            let before = self.warnings_of(&name);
            if *before == *warnings {
                continue;
            }
            more.extend(warnings.iter().filter(|warning| !before.contains(warning)).cloned());
            match warnings.is_empty() {
                true => self.warnings.remove(&name),
                false => self.warnings.insert(&name, warnings.into()),
            }
            changes.push(SnapshotChange::ApiService(name));
        }
        if changes.is_empty() {
            return None;
        }
        self.version += 1;
        only_endpoints &= !changes.iter().any(|change| matches!(change, SnapshotChange::ApiService(_)));
        changes.into_iter().for_each(|change| self.change_log.record(self.version, change));
        Some(SnapshotUpdate { only_endpoints, new_warnings: more })
    }

    /// Updates one Service. `None` if it did not change, else whether only its endpoints changed.
    fn update_service(&mut self, key: &str, layers: LayeredSources<'_>) -> Option<bool> {
        let (service, slices, trouble) = (layers.service(key), layers.endpoint_slices(key), layers.lookup_error(key));
        let same_service = is_same_arc(self.services.get(key), service.as_ref());
        let before = self.endpoint_slices.get(key).map(AsRef::as_ref).unwrap_or_default();
        let same_slices = before.len() == slices.len() && before.iter().zip(&slices).all(|(a, b)| Arc::ptr_eq(a, b));
        let same_trouble = self.lookup_errors.get(key).map(AsRef::as_ref) == trouble.as_deref();
        if !same_service {
            set_or_remove(&mut self.services, key, service);
        }
        if !same_slices {
            set_or_remove(&mut self.endpoint_slices, key, (!slices.is_empty()).then(|| slices.into()));
        }
        if !same_trouble {
            set_or_remove(&mut self.lookup_errors, key, trouble.map(Arc::from));
        }
        let same = same_service && same_trouble;
        (!(same && same_slices)).then_some(same)
    }

    /// Updates one APIService. True if it changed.
    fn update_api_service(&mut self, name: &Arc<str>, layers: LayeredSources<'_>) -> bool {
        let now = layers.api_service(name).map(|counting| counting.api_service);
        let before = self.api_services.get(name);
        if is_same_arc(before, now.as_ref()) {
            return false;
        }
        let (was, is) =
            (before.and_then(|one| one.backend.service_key()), now.as_ref().and_then(|one| one.backend.service_key()));
        if was != is {
            let others = |key: &str, also: Option<&Arc<str>>| {
                let mut names: Vec<_> =
                    self.api_services_of_service(key).iter().filter(|one| *one != name).chain(also).cloned().collect();
                names.sort_unstable();
                (!names.is_empty()).then(|| names.into())
            };
            let (left, joined) =
                (was.map(|key| (others(&key, None), key)), is.map(|key| (others(&key, Some(name)), key)));
            for (names, key) in left.into_iter().chain(joined) {
                set_or_remove(&mut self.api_services_by_service, &key, names);
            }
        }
        set_or_remove(&mut self.api_services, name, now);
        true
    }

    fn collect_warnings(&self, counting: &EffectiveApiService) -> Vec<Problem> {
        let EffectiveApiService { location, api_service: one, hidden_location: hides } = counting;
        let mut warnings = Vec::new();
        let mut external = false;
        if let ApiServiceBackend::Service(reference) = &one.backend {
            let (name, namespace) = (&reference.name, &reference.namespace);
            match self.service(namespace, name) {
                None if self.lookup_error(namespace, name).is_some() => {}
                None => {
                    let message = format!("service/{name} in {namespace:?} not found: unavailable until it exists");
                    warnings.push(
                        Problem::at_field(location, "spec.service", message).with_help(HelpTopic::ServiceNotResolved),
                    );
                }
                Some(service) => external = service.kind == ServiceType::ExternalName,
            }
        }
        if one.insecure_skip_tls_verify {
            let message = if external {
                "ExternalName without certificate verification: any server behind that DNS name gets the requests"
            } else {
                "the backend's certificate is not verified: an impostor can read and forge requests and responses"
            };
            let problem = Problem::at_field(location, "spec.insecureSkipTLSVerify", message);
            warnings.push(problem.with_help(HelpTopic::BackendNotVerified));
        } else if one.ca_bundle.is_none() && matches!(one.backend, ApiServiceBackend::Service(_)) {
            let message = "not set: the backend's certificate is verified with the system's CA certificates";
            warnings
                .push(Problem::at_field(location, "spec.caBundle", message).with_help(HelpTopic::BackendNotVerified));
        }
        let hidden = "ignored: the registry directory has an APIService of the same name";
        let overridden = |location| Problem::new(location, hidden).with_help(HelpTopic::ApiServiceOverridden);
        warnings.extend(hides.iter().map(overridden));
        warnings
    }
}

fn is_same_arc<T>(one: Option<&Arc<T>>, other: Option<&Arc<T>>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn set_or_remove<V: Clone>(all: &mut ShardedMap<V>, key: &str, value: Option<V>) {
    match value {
        Some(value) => all.insert(key, value),
        None => all.remove(key),
    }
}

/// Sorts in the order of discovery (`apiregistration/v1/helper`, `SortedByGroupAndVersion`).
///
/// Groups are sorted by their highest priority, then by name. Versions of a group are sorted by priority, then as
/// Kubernetes orders versions.
pub fn sort_by_api_service<T>(all: &mut [T], of: impl for<'a> Fn(&'a T) -> &'a ApiService) {
    let mut groups: HashMap<String, (i32, String)> = HashMap::new();
    for one in all.iter().map(&of) {
        let mine = (-one.group_priority_minimum, one.name.clone());
        let best = groups.entry(one.group.clone()).or_insert_with(|| mine.clone());
        if mine < *best {
            *best = mine;
        }
    }
    all.sort_by(|a, b| {
        let (a, b) = (of(a), of(b));
        groups[&a.group]
            .cmp(&groups[&b.group])
            .then_with(|| compare_by_priority((a.version_priority, &a.version), (b.version_priority, &b.version)))
    });
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::PathBuf;

    use super::super::directory::last_good::{load_directory, parse_manifests};
    use super::super::settings::Settings;
    use super::*;

    /// A registry of these documents, which must be valid. Also used by tests of other modules.
    pub(crate) fn registry(text: &str) -> Registry {
        let settings = Settings { allow_url_backends: true, ..Settings::default() };
        parse_manifests(&settings, "registry.yaml", text).unwrap_or_else(|problems| panic!("{problems}"))
    }

    pub(crate) fn api_service(name: &str, rest: &str) -> String {
        let (version, group) = name.split_once('.').unwrap();
        format!(
            "apiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {{name: {name}}}\nspec: {{group: {group:?}, version: {version}, {rest}}}\n---\n"
        )
    }

    /// The content of a registry as text, to compare it with another.
    pub(crate) fn dump(registry: &Registry) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        all.extend(
            registry.sorted_api_services().iter().map(|one| format!("{one:?} {} {:?}", one.manifest, one.source)),
        );
        let mut rest = Vec::new();
        rest.extend(registry.services.values().map(|one| format!("{one:?}")));
        rest.extend(registry.endpoint_slices.values().map(|all| format!("{all:?}")));
        let unknown = |key: &str| format!("{key} unknown: {}", registry.lookup_errors.get(key).unwrap());
        rest.extend(registry.lookup_errors.names().map(unknown));
        rest.extend(
            registry
                .api_services_by_service
                .names()
                .map(|key| format!("{key} is named by {:?}", registry.api_services_of_service(key))),
        );
        rest.sort();
        all.append(&mut rest);
        all.extend(registry.warnings().iter().map(ToString::to_string));
        all
    }

    #[test]
    fn registry_sorts_groups_and_versions_as_discovery() {
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
        let names: Vec<String> = registry(&text).sorted_api_services().iter().map(|one| one.name.clone()).collect();
        assert_eq!(names, ["v1.z.io", "v1.b.io", "v1.a.io", "v10.a.io", "v2.a.io", "v1alpha1.a.io"]);
    }

    #[test]
    fn registry_risky_settings_are_warnings() {
        let priorities = "groupPriorityMinimum: 1, versionPriority: 1";
        let text = api_service("v1.a.io", &format!("{priorities}, service: {{name: a, namespace: ns}}"))
            + &api_service(
                "v1.b.io",
                &format!("{priorities}, insecureSkipTLSVerify: true, service: {{name: b, namespace: ns}}"),
            )
            + "apiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: ns}\nspec: {type: ExternalName, externalName: x.y}\n";
        let warnings: Vec<String> = registry(&text).warnings().iter().map(ToString::to_string).collect();
        assert_eq!(warnings.len(), 3, "{warnings:#?}");
        assert!(warnings[0].contains("service/a in \"ns\" not found"));
        assert!(warnings[1].contains("spec.caBundle: not set"));
        assert!(warnings[2].contains("ExternalName without certificate verification"));
    }

    #[test]
    fn registry_sample_manifests_are_valid() {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("deploy/registry");
        let registry =
            load_directory(&Settings { dir, ..Settings::default() }).unwrap_or_else(|problems| panic!("{problems}"));
        let all = registry.sorted_api_services();
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["v1beta1.wardle.example.com", "v1alpha1.wardle.example.com", "v1beta1.metrics.k8s.io"]);
        for one in &all {
            assert!(
                crate::registry::resolve(one, &registry, Default::default(), &Default::default()).is_ok(),
                "{}",
                one.name
            );
        }
        assert!(
            registry.warnings().iter().all(|warning| warning.field == "spec.caBundle"),
            "{:?}",
            registry.warnings()
        );
    }
}
