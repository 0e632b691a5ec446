//! Property test model of the registry: a registry updated change by change must equal one built anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::cluster::{ApiServiceStatuses, ClusterStore, WatchedResource};
use super::directory::last_good::LastGood;
use super::directory::scan::DirectoryScan;
use super::layered_sources::{DirtySet, LayeredSources, RegistrySource};
use super::settings::Settings;
use super::snapshot::Registry;
use super::snapshot::tests::dump;

/// One event of the model.
#[derive(Clone, Debug)]
pub(crate) enum ModelEvent {
    /// A file of the directory now has these objects. The flag adds an invalid document.
    File(u8, Vec<ModelObject>, bool),
    /// A file is deleted.
    RemoveFile(u8),
    /// An object is created or updated in the kube-apiserver.
    Apply(ModelObject),
    /// An object is deleted in the kube-apiserver.
    Delete(ModelObject),
    /// The kube-apiserver answers a pending list, successfully or not.
    AnswerList(u8, bool),
    /// A watched collection is listed again.
    Relist(u8),
    /// The wait for a namespace times out.
    NamespaceTimeout(u8),
}

/// An object in small numbers, so that names collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelObject {
    kind: u8,
    name: u8,
    namespace: u8,
    service: u8,
    variant: u8,
}

pub(crate) fn events() -> impl Strategy<Value = Vec<ModelEvent>> {
    let object = (0..3u8, 0..5u8, 0..2u8, 0..3u8, 0..3u8).prop_map(|(kind, name, namespace, service, says)| {
        ModelObject { kind, name, namespace, service, variant: says }
    });
    let file = (0..3u8, prop::collection::vec(object.clone(), 0..4), prop::bool::weighted(0.2));
    let event = prop_oneof![
        2 => file.prop_map(|(file, objects, broken)| ModelEvent::File(file, objects, broken)),
        1 => (0..3u8).prop_map(ModelEvent::RemoveFile),
        4 => object.clone().prop_map(ModelEvent::Apply),
        2 => object.prop_map(ModelEvent::Delete),
        4 => (any::<u8>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| ModelEvent::AnswerList(which, well)),
        1 => any::<u8>().prop_map(ModelEvent::Relist),
        1 => (0..2u8).prop_map(ModelEvent::NamespaceTimeout),
    ];
    prop::collection::vec(event, 0..60)
}

impl ModelObject {
    fn kind(self) -> &'static str {
        ["APIService", "Service", "EndpointSlice"][usize::from(self.kind)]
    }

    fn namespace(self) -> String {
        format!("n{}", self.namespace)
    }

    /// The object as JSON.
    fn value(self) -> Value {
        let ModelObject { name, service, variant: says, .. } = self;
        let namespace = self.namespace();
        match self.kind() {
            "APIService" => {
                let (group, version) = (["a.io", "b.io"][usize::from(name % 2)], format!("v{}", name / 2 + 1));
                let mut one = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
                    "metadata": {"name": format!("{version}.{group}")},
                    "spec": {"group": group, "version": version, "groupPriorityMinimum": says + 1, "versionPriority": 1}});
                if service < 2 {
                    one["spec"]["service"] = json!({"namespace": namespace, "name": format!("s{service}")});
                    one["spec"]["insecureSkipTLSVerify"] = json!(says == 0);
                }
                one
            }
            "Service" => json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("s{}", service % 2), "namespace": namespace},
                "spec": {"clusterIP": format!("10.0.0.{says}"), "ports": [{"name": "https", "port": 443}]}}),
            _ => json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {"name": format!("e{name}"), "namespace": namespace,
                    "labels": {"kubernetes.io/service-name": format!("s{service}")}},
                "addressType": "IPv4", "ports": [{"name": "https", "port": 8443}],
                "endpoints": [{"addresses": [format!("10.1.{says}.{name}")]}]}),
        }
    }

    /// Collection of the object, and its name there.
    fn resource_and_name(self) -> (WatchedResource, String) {
        let name = self.value()["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = match self.kind() {
            "APIService" => WatchedResource::ApiServices,
            "Service" => WatchedResource::Services(self.namespace()),
            _ => WatchedResource::EndpointSlices(self.namespace()),
        };
        (kind, name)
    }
}

/// Both sources, and the registry that is updated change by change.
pub(crate) struct RegistryModel {
    files: BTreeMap<String, String>,
    directory: LastGood,
    /// State of the same directory, always read completely.
    whole: LastGood,
    /// Objects of the kube-apiserver.
    server: BTreeMap<(WatchedResource, String), Value>,
    store: ClusterStore,
    /// Lists that are requested and not answered yet.
    pending_lists: Vec<WatchedResource>,
    /// Collections that were listed and are watched.
    watched: BTreeSet<WatchedResource>,
    pub(crate) registry: Registry,
}

fn raw(value: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

impl RegistryModel {
    pub(crate) fn new() -> RegistryModel {
        let store = ClusterStore::new("kube-apiserver", Settings::default(), ApiServiceStatuses::default());
        let mut registry = Registry::empty();
        registry.complete = false;
        RegistryModel {
            files: BTreeMap::new(),
            directory: LastGood::new(Settings::default()),
            whole: LastGood::new(Settings::default()),
            server: BTreeMap::new(),
            store,
            pending_lists: vec![WatchedResource::ApiServices],
            watched: BTreeSet::new(),
            registry,
        }
    }

    fn layers(&self) -> LayeredSources<'_> {
        let lower: &dyn RegistrySource = &self.store;
        LayeredSources { upper: Some(&self.directory), lower: Some(lower).filter(|_| self.store.complete) }
    }

    /// The registry built anew from the current sources.
    pub(crate) fn rebuild(&self) -> Registry {
        Registry::from_sources(self.layers())
    }

    pub(crate) fn apply(&mut self, event: &ModelEvent) {
        let mut touched = DirtySet::default();
        match event {
            ModelEvent::File(number, objects, broken) => {
                let text: String = objects.iter().map(|one| format!("{}\n---\n", one.value())).collect();
                let text = if *broken { format!("{text}kind: Pod\n") } else { text };
                touched = self.file(*number, Some(&text));
            }
            ModelEvent::RemoveFile(number) => touched = self.file(*number, None),
            ModelEvent::Apply(object) => {
                let (kind, name) = object.resource_and_name();
                self.server.insert((kind.clone(), name), object.value());
                if self.watched.contains(&kind) {
                    self.store.apply_object(&kind, &raw(&object.value()), false);
                }
            }
            ModelEvent::Delete(object) => {
                let (kind, name) = object.resource_and_name();
                if let Some(gone) = self.server.remove(&(kind.clone(), name))
                    && self.watched.contains(&kind)
                {
                    self.store.delete_object(&kind, &raw(&gone));
                }
            }
            ModelEvent::AnswerList(which, well) if !self.pending_lists.is_empty() => {
                let kind = self.pending_lists.remove(usize::from(*which) % self.pending_lists.len());
                match well {
                    true => self.list(&kind),
                    false => {
                        self.store.record_failure(&kind, "the kube-apiserver answered 403", true);
                        self.pending_lists.push(kind);
                    }
                }
            }
            ModelEvent::Relist(which) if !self.watched.is_empty() => {
                let kind = self.watched.iter().nth(usize::from(*which) % self.watched.len()).unwrap().clone();
                self.list(&kind);
            }
            ModelEvent::AnswerList(..) | ModelEvent::Relist(_) => {}
            ModelEvent::NamespaceTimeout(namespace) => self.store.record_timeout(&format!("n{namespace}"), true),
        }
        for name in &touched.api_services {
            self.store
                .set_directory_reference(name, self.directory.api_service(name).as_ref().map(|(_, one)| one.as_ref()));
        }
        let plan = self.store.reconcile();
        for namespace in plan.stop {
            let of = |kind: &WatchedResource| matches!(kind, WatchedResource::Services(of) | WatchedResource::EndpointSlices(of) if *of == namespace);
            self.pending_lists.retain(|kind| !of(kind));
            self.watched.retain(|kind| !of(kind));
            self.store.remove_namespace(&namespace);
        }
        for kind in plan.restart {
            self.watched.remove(&kind);
            if !self.pending_lists.contains(&kind) {
                self.pending_lists.push(kind);
            }
        }
        touched.extend(self.store.take_dirty());
        if self.store.complete && !self.registry.complete {
            touched.extend(self.layers().all_names());
        }
        let mut registry = self.registry.clone();
        registry.update(&touched, self.layers());
        registry.complete = self.store.complete;
        self.registry = registry;
    }

    fn file(&mut self, number: u8, text: Option<&str>) -> DirtySet {
        let path = format!("{number}.yaml");
        match text {
            Some(text) => drop(self.files.insert(path.clone(), text.to_owned())),
            None => drop(self.files.remove(&path)),
        }
        let all: Vec<(&str, &str)> = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        self.whole.update(DirectoryScan::from_texts(&all));
        let only = text.map(|text| (path.as_str(), text)).into_iter().collect::<Vec<_>>();
        let only =
            DirectoryScan { only: Some(BTreeSet::from([PathBuf::from(&path)])), ..DirectoryScan::from_texts(&only) };
        self.directory.update(only)
    }

    fn list(&mut self, kind: &WatchedResource) {
        self.store.begin_list(kind);
        let of = self.server.iter().filter(|((of, _), _)| of == kind);
        for (_, object) in of {
            self.store.apply_object(kind, &raw(object), true);
        }
        self.store.finish_list(kind);
        self.watched.insert(kind.clone());
    }

    /// Answers all pending lists.
    fn answer_all_lists(&mut self) {
        while !self.pending_lists.is_empty() {
            self.apply(&ModelEvent::AnswerList(0, true));
        }
    }

    /// The registry of a new model with the same kube-apiserver and an empty directory.
    fn rebuild_from_server(&self) -> Registry {
        let mut other = RegistryModel::new();
        other.server.clone_from(&self.server);
        other.directory = LastGood::new(Settings::default());
        other.directory.update(DirectoryScan::from_texts(&[]));
        other.answer_all_lists();
        Registry::from_sources(LayeredSources::single(&other.store))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_is_as_if_it_were_made_anew(events in events()) {
        let mut model = RegistryModel::new();
        for event in &events {
            let before = model.registry.clone();
            model.apply(event);
            prop_assert_eq!(dump(&model.registry), dump(&model.rebuild()), "after {:?}", event);
            // Objects not reported as changed are unchanged.
            let changes = model.registry.changes_since(&before.revision()).unwrap();
            for one in before.api_services().chain(model.registry.api_services()) {
                let name = one.name.as_str();
                let same = |registry: &Registry| registry.api_service(name).map(|one| one.manifest.to_string());
                prop_assert!(
                    changes.api_services.contains(name)
                        || (same(&before) == same(&model.registry)
                            && before.warnings_of(name) == model.registry.warnings_of(name)),
                    "{} after {:?}", name, event
                );
            }
            prop_assert_eq!(model.directory.problems().to_string(), model.whole.problems().to_string());
            let of = |state: &LastGood| dump(&Registry::from_sources(LayeredSources::single(state)));
            prop_assert_eq!(of(&model.directory), of(&model.whole), "after {:?}", event);
        }
        // After all lists are answered, earlier events make no difference.
        model.answer_all_lists();
        let cluster = Registry::from_sources(LayeredSources::single(&model.store));
        let named_here = |line: &String| !line.starts_with('n') && !line.starts_with("Service") && !line.starts_with('[');
        let apis = |registry: &Registry| dump(registry).into_iter().filter(named_here).collect::<Vec<_>>();
        prop_assert_eq!(apis(&cluster), apis(&model.rebuild_from_server()));
    }
}
