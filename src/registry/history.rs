//! Property test model of the registry: a registry updated change by change must equal one built anew.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::cluster::{Kind, Known, Statuses};
use super::last_good::LastGood;
use super::scan::Scan;
use super::snapshot::tests::shape;
use super::snapshot::{Registry, Settings};
use super::source::{Layers, Source, Touched};

/// One event of the model.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A file of the directory now has these objects. The flag adds an invalid document.
    File(u8, Vec<Object>, bool),
    /// A file is deleted.
    NoFile(u8),
    /// An object is created or updated in the kube-apiserver.
    Has(Object),
    /// An object is deleted in the kube-apiserver.
    Lacks(Object),
    /// The kube-apiserver answers a pending list, successfully or not.
    Lists(u8, bool),
    /// A watched collection is listed again.
    Relists(u8),
    /// The wait for a namespace times out.
    GivesUp(u8),
}

/// An object in small numbers, so that names collide.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    kind: u8,
    name: u8,
    namespace: u8,
    service: u8,
    says: u8,
}

pub(crate) fn events() -> impl Strategy<Value = Vec<Event>> {
    let object = (0..3u8, 0..5u8, 0..2u8, 0..3u8, 0..3u8).prop_map(|(kind, name, namespace, service, says)| Object {
        kind,
        name,
        namespace,
        service,
        says,
    });
    let file = (0..3u8, prop::collection::vec(object.clone(), 0..4), prop::bool::weighted(0.2));
    let event = prop_oneof![
        2 => file.prop_map(|(file, objects, broken)| Event::File(file, objects, broken)),
        1 => (0..3u8).prop_map(Event::NoFile),
        4 => object.clone().prop_map(Event::Has),
        2 => object.prop_map(Event::Lacks),
        4 => (any::<u8>(), prop::bool::weighted(0.8)).prop_map(|(which, well)| Event::Lists(which, well)),
        1 => any::<u8>().prop_map(Event::Relists),
        1 => (0..2u8).prop_map(Event::GivesUp),
    ];
    prop::collection::vec(event, 0..60)
}

impl Object {
    fn kind(self) -> &'static str {
        ["APIService", "Service", "EndpointSlice"][usize::from(self.kind)]
    }

    fn namespace(self) -> String {
        format!("n{}", self.namespace)
    }

    /// The object as JSON.
    fn value(self) -> Value {
        let Object { name, service, says, .. } = self;
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

    /// Its collection, and its name there.
    fn place(self) -> (Kind, String) {
        let name = self.value()["metadata"]["name"].as_str().unwrap().to_owned();
        let kind = match self.kind() {
            "APIService" => Kind::ApiServices,
            "Service" => Kind::Services(self.namespace()),
            _ => Kind::EndpointSlices(self.namespace()),
        };
        (kind, name)
    }
}

/// Both sources, and the registry that is updated change by change.
pub(crate) struct History {
    files: BTreeMap<String, String>,
    directory: LastGood,
    /// State of the same directory, always read completely.
    whole: LastGood,
    /// Objects of the kube-apiserver.
    server: BTreeMap<(Kind, String), Value>,
    known: Known,
    /// Lists that are requested and not answered yet.
    asked: Vec<Kind>,
    /// Collections that were listed and are watched.
    watched: BTreeSet<Kind>,
    pub(crate) registry: Registry,
}

fn raw(value: &Value) -> Box<serde_json::value::RawValue> {
    serde_json::value::to_raw_value(value).unwrap()
}

impl History {
    pub(crate) fn new() -> History {
        let known = Known::new(Settings::default(), Statuses::default());
        let mut registry = Registry::nothing();
        registry.complete = false;
        History {
            files: BTreeMap::new(),
            directory: LastGood::new(Settings::default()),
            whole: LastGood::new(Settings::default()),
            server: BTreeMap::new(),
            known,
            asked: vec![Kind::ApiServices],
            watched: BTreeSet::new(),
            registry,
        }
    }

    fn layers(&self) -> Layers<'_> {
        let lower: &dyn Source = &self.known;
        Layers { upper: Some(&self.directory), lower: Some(lower).filter(|_| self.known.complete) }
    }

    /// The registry built anew from the current sources.
    pub(crate) fn anew(&self) -> Registry {
        Registry::of(self.layers())
    }

    pub(crate) fn happens(&mut self, event: &Event) {
        let mut touched = Touched::default();
        match event {
            Event::File(number, objects, broken) => {
                let text: String = objects.iter().map(|one| format!("{}\n---\n", one.value())).collect();
                let text = if *broken { format!("{text}kind: Pod\n") } else { text };
                touched = self.file(*number, Some(&text));
            }
            Event::NoFile(number) => touched = self.file(*number, None),
            Event::Has(object) => {
                let (kind, name) = object.place();
                self.server.insert((kind.clone(), name), object.value());
                if self.watched.contains(&kind) {
                    self.known.has(&kind, &raw(&object.value()), false);
                }
            }
            Event::Lacks(object) => {
                let (kind, name) = object.place();
                if let Some(gone) = self.server.remove(&(kind.clone(), name))
                    && self.watched.contains(&kind)
                {
                    self.known.lacks(&kind, &raw(&gone));
                }
            }
            Event::Lists(which, well) if !self.asked.is_empty() => {
                let kind = self.asked.remove(usize::from(*which) % self.asked.len());
                match well {
                    true => self.list(&kind),
                    false => {
                        self.known.fails(&kind, "the kube-apiserver answered 403", true);
                        self.asked.push(kind);
                    }
                }
            }
            Event::Relists(which) if !self.watched.is_empty() => {
                let kind = self.watched.iter().nth(usize::from(*which) % self.watched.len()).unwrap().clone();
                self.list(&kind);
            }
            Event::Lists(..) | Event::Relists(_) => {}
            Event::GivesUp(namespace) => self.known.is_late(&format!("n{namespace}"), true),
        }
        for name in &touched.api_services {
            self.known.also(name, self.directory.api_service(name).as_ref().map(|(_, one)| one.as_ref()));
        }
        let wanted = self.known.settle();
        for namespace in wanted.gone {
            let of = |kind: &Kind| matches!(kind, Kind::Services(of) | Kind::EndpointSlices(of) if *of == namespace);
            self.asked.retain(|kind| !of(kind));
            self.watched.retain(|kind| !of(kind));
            self.known.forget(&namespace);
        }
        for kind in wanted.anew {
            self.watched.remove(&kind);
            if !self.asked.contains(&kind) {
                self.asked.push(kind);
            }
        }
        touched.extend(self.known.take_touched());
        if self.known.complete && !self.registry.complete {
            touched.extend(self.layers().all());
        }
        let mut registry = self.registry.clone();
        registry.look(&touched, self.layers());
        registry.complete = self.known.complete;
        self.registry = registry;
    }

    fn file(&mut self, number: u8, text: Option<&str>) -> Touched {
        let path = format!("{number}.yaml");
        match text {
            Some(text) => drop(self.files.insert(path.clone(), text.to_owned())),
            None => drop(self.files.remove(&path)),
        }
        let all: Vec<(&str, &str)> = self.files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        self.whole.update(Scan::fixed(&all));
        let only = text.map(|text| (path.as_str(), text)).into_iter().collect::<Vec<_>>();
        let only = Scan { only: Some(BTreeSet::from([PathBuf::from(&path)])), ..Scan::fixed(&only) };
        self.directory.update(only)
    }

    fn list(&mut self, kind: &Kind) {
        self.known.begins(kind);
        let of = self.server.iter().filter(|((of, _), _)| of == kind);
        for (_, object) in of {
            self.known.has(kind, &raw(object), true);
        }
        self.known.is_whole(kind);
        self.watched.insert(kind.clone());
    }

    /// Answers all pending lists.
    fn comes_to_rest(&mut self) {
        while !self.asked.is_empty() {
            self.happens(&Event::Lists(0, true));
        }
    }

    /// The registry of a new model with the same kube-apiserver and an empty directory.
    fn of_a_newcomer(&self) -> Registry {
        let mut other = History::new();
        other.server.clone_from(&self.server);
        other.directory = LastGood::new(Settings::default());
        other.directory.update(Scan::fixed(&[]));
        other.comes_to_rest();
        Registry::of(Layers::only(&other.known))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 160, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_is_as_if_it_were_made_anew(events in events()) {
        let mut history = History::new();
        for event in &events {
            let before = history.registry.clone();
            history.happens(event);
            prop_assert_eq!(shape(&history.registry), shape(&history.anew()), "after {:?}", event);
            // Objects not reported as changed are unchanged.
            let changes = history.registry.changes_since(&before.mark()).unwrap();
            for one in before.api_services().chain(history.registry.api_services()) {
                let name = one.name.as_str();
                let same = |registry: &Registry| registry.api_service(name).map(|one| one.manifest.to_string());
                prop_assert!(
                    changes.api_services.contains(name)
                        || (same(&before) == same(&history.registry)
                            && before.warnings_of(name) == history.registry.warnings_of(name)),
                    "{} after {:?}", name, event
                );
            }
            prop_assert_eq!(history.directory.problems().to_string(), history.whole.problems().to_string());
            let of = |state: &LastGood| shape(&Registry::of(Layers::only(state)));
            prop_assert_eq!(of(&history.directory), of(&history.whole), "after {:?}", event);
        }
        // After all lists are answered, earlier events make no difference.
        history.comes_to_rest();
        let cluster = Registry::of(Layers::only(&history.known));
        let named_here = |line: &String| !line.starts_with('n') && !line.starts_with("Service") && !line.starts_with('[');
        let apis = |registry: &Registry| shape(registry).into_iter().filter(named_here).collect::<Vec<_>>();
        prop_assert_eq!(apis(&cluster), apis(&history.of_a_newcomer()));
    }
}
