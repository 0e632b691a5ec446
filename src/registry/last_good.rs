//! The objects as they last were when they were right, kept while their files are wrong.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::annotations::nearest;
use super::api_service::ApiService;
use super::endpoints::EndpointSlice;
use super::scan::Scan;
use super::service::Service;
use super::snapshot::{Contents, Registry, Settings};
use crate::process::{Document, documents, is_json};
use crate::process::{Problem, Problems};

/// What was right last. An object goes when its file is gone, or when its file is right and lacks it; while
/// anything in a file is wrong, nothing that came from that file goes.
pub(super) struct LastGood {
    settings: Settings,
    objects: BTreeMap<Key, Known>,
    pub(super) version: u64,
}

/// Kind, namespace, name.
type Key = (&'static str, String, String);

struct Known {
    file: PathBuf,
    place: String,
    object: Object,
}

#[derive(Clone)]
enum Object {
    ApiService(Arc<ApiService>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
}

/// Kinds, and the versions of them that we read.
const KINDS: [(&str, &str); 4] = [
    ("APIService", "apiregistration.k8s.io/v1"),
    ("Service", "v1"),
    ("EndpointSlice", "discovery.k8s.io/v1"),
    ("Endpoints", "v1"),
];

impl LastGood {
    pub(super) fn new(settings: Settings) -> LastGood {
        LastGood { settings, objects: BTreeMap::new(), version: 0 }
    }

    /// The registry that `scan` makes of what was known before.
    pub(super) fn update(&mut self, scan: Scan) -> Registry {
        let mut problems = Problems::default();
        let mut wrong_files: Vec<PathBuf> = Vec::new();
        let mut objects: BTreeMap<Key, Known> = BTreeMap::new();
        for file in scan.files {
            let before = problems.0.len();
            if let Some(text) = problems.keep(file.text) {
                let (found, mut wrong) = documents(&file.path.display().to_string(), &text, is_json(&file.path));
                problems.0.append(&mut wrong.0);
                for document in found {
                    let place = document.place.clone();
                    let Some(object) = self.judge(document, file.modified, &mut problems) else { continue };
                    self.place(Known { file: file.path.clone(), place, object }, &mut objects, &mut problems);
                }
            }
            if problems.0.len() > before {
                wrong_files.push(file.path);
            }
        }
        let mut changed = self.version == 0 || objects.keys().any(|key| !self.objects.contains_key(key));
        for (key, old) in std::mem::take(&mut self.objects) {
            match objects.get_mut(&key) {
                Some(new) if new.object.same(&old.object) => new.object = old.object,
                Some(_) => changed = true,
                // A path that cannot be read may be a directory: whatever was below it is not gone.
                None if wrong_files.iter().any(|wrong| old.file.starts_with(wrong)) => {
                    objects.insert(key, old);
                }
                None => changed = true,
            }
        }
        self.objects = objects;
        self.version += u64::from(changed);
        let mut registry = Registry::of(self.contents());
        registry.problems = problems;
        registry.is_version(self.version);
        registry
    }

    /// Whether this Service is known.
    pub(super) fn has_service(&self, namespace: &str, name: &str) -> bool {
        self.objects.contains_key(&("Service", namespace.to_owned(), name.to_owned()))
    }

    /// What is known.
    pub(super) fn contents(&self) -> Contents {
        let mut contents = Contents::default();
        for known in self.objects.values() {
            match &known.object {
                Object::ApiService(one) => contents.api_services.push((known.place.clone(), one.clone())),
                Object::Service(one) => contents.services.push(one.clone()),
                Object::EndpointSlice(one) => contents.endpoint_slices.push(one.clone()),
            }
        }
        contents
    }

    fn judge(&self, document: Document, modified: SystemTime, problems: &mut Problems) -> Option<Object> {
        let place = &document.place;
        let known = KINDS.iter().find(|(kind, _)| *kind == document.kind);
        match known {
            _ if document.kind.is_empty() => {
                problems.0.push(Problem::field(place, "kind", "required"));
                return None;
            }
            None => {
                let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
                let near = nearest(&document.kind, &kinds).map(|kind| format!(", did you mean {kind}?"));
                let message = format!(
                    "unknown kind {:?} ({:?}){}: a registry directory holds {} and List",
                    document.kind,
                    document.api_version,
                    near.unwrap_or_default(),
                    kinds.join(", ")
                );
                problems.0.push(Problem::field(place, "kind", message));
                return None;
            }
            Some((kind, version)) if *version != document.api_version => {
                let message = format!("{kind} is read as {version}, not as {:?}", document.api_version);
                problems.0.push(Problem::field(place, "apiVersion", message));
                return None;
            }
            Some(_) => {}
        }
        let before = problems.0.len();
        unknown_fields(&document, problems);
        if problems.0.len() > before {
            // Judged all the same, so that all mistakes are named at once.
            self.read(document, modified, problems);
            return None;
        }
        self.read(document, modified, problems)
    }

    fn read(&self, document: Document, modified: SystemTime, problems: &mut Problems) -> Option<Object> {
        match document.kind.as_str() {
            "APIService" => ApiService::read(document, modified, &self.settings, problems).map(Object::api_service),
            "Service" => Service::read(document, problems).map(|one| Object::Service(Arc::new(one))),
            "EndpointSlice" => EndpointSlice::read(document, problems).map(Object::endpoint_slice),
            _ => EndpointSlice::read_endpoints(document, problems).map(Object::endpoint_slice),
        }
    }

    /// Adds `new`. Of two with the same name the one stays that was there before, else the first.
    fn place(&self, new: Known, objects: &mut BTreeMap<Key, Known>, problems: &mut Problems) {
        let key = new.object.key();
        let Some(other) = objects.get_mut(&key) else {
            objects.insert(key, new);
            return;
        };
        let (twice, first) = match self.objects.get(&key) {
            Some(before) if before.file == new.file && before.file != other.file => {
                (std::mem::replace(&mut *other, new).place, other.place.clone())
            }
            _ => (new.place, other.place.clone()),
        };
        problems.0.push(Problem::field(twice, "metadata.name", format_args!("the same object is already in {first}")));
    }
}

/// A field with a slip in its name would be ignored in silence; further down only APIServices are read that
/// strictly.
fn unknown_fields(document: &Document, problems: &mut Problems) {
    const METADATA: [&str; 15] = [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ];
    let own: &[&str] = match document.kind.as_str() {
        "EndpointSlice" => &["apiVersion", "kind", "metadata", "addressType", "endpoints", "ports"],
        "Endpoints" => &["apiVersion", "kind", "metadata", "subsets"],
        _ => &["apiVersion", "kind", "metadata", "spec", "status"],
    };
    for (path, value, known) in
        [("", Some(&document.value), own), ("metadata.", document.value.get("metadata"), &METADATA)]
    {
        let fields = value.and_then(serde_json::Value::as_object).into_iter().flat_map(|fields| fields.keys());
        for field in fields.filter(|field| !known.contains(&field.as_str())) {
            let near = nearest(field, known).map(|known| format!(", did you mean {known}?")).unwrap_or_default();
            problems.0.push(Problem::field(
                &document.place,
                format_args!("{path}{field}"),
                format_args!("unknown field{near}"),
            ));
        }
    }
}

impl Object {
    fn api_service(one: ApiService) -> Object {
        Object::ApiService(Arc::new(one))
    }

    fn endpoint_slice(one: EndpointSlice) -> Object {
        Object::EndpointSlice(Arc::new(one))
    }

    fn key(&self) -> Key {
        match self {
            Object::ApiService(one) => ("APIService", String::new(), one.name.clone()),
            Object::Service(one) => ("Service", one.namespace.clone(), one.name.clone()),
            Object::EndpointSlice(one) => {
                let kind = if one.legacy { "Endpoints" } else { "EndpointSlice" };
                (kind, one.namespace.clone(), one.name.clone())
            }
        }
    }

    fn same(&self, other: &Object) -> bool {
        match (self, other) {
            (Object::ApiService(a), Object::ApiService(b)) => a.same(b),
            (Object::Service(a), Object::Service(b)) => a == b,
            (Object::EndpointSlice(a), Object::EndpointSlice(b)) => a == b,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::snapshot::tests::api_service;

    fn local(name: &str, priority: &str) -> String {
        api_service(name, &format!("groupPriorityMinimum: {priority}, versionPriority: 1"))
    }

    fn names(registry: &Registry) -> Vec<&str> {
        registry.api_services.iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn what_did_not_change_stays_the_same_object() {
        let mut state = LastGood::new(Settings::default());
        let (a, b) = (local("v1.a.io", "1"), local("v1.b.io", "1"));
        let one = state.update(Scan::fixed(&[("a", &a), ("b", &b)]));
        // Moved to another file: still the same object.
        let two = state.update(Scan::fixed(&[("c", &format!("{b}{a}"))]));
        assert_eq!((one.version, two.version), (1, 1));
        assert!(Arc::ptr_eq(&one.api_services[0], &two.api_services[0]));
        let three = state.update(Scan::fixed(&[("c", &format!("{b}{}", local("v1.a.io", "2")))]));
        assert_eq!(three.version, 2);
        assert!(!Arc::ptr_eq(two.api_service("v1.a.io").unwrap(), three.api_service("v1.a.io").unwrap()));
        assert!(Arc::ptr_eq(two.api_service("v1.b.io").unwrap(), three.api_service("v1.b.io").unwrap()));
        let none = state.update(Scan::fixed(&[]));
        assert_eq!((none.version, none.api_services.len()), (3, 0));
    }

    #[test]
    fn wrong_later_keeps_what_was_right_and_takes_what_is() {
        let mut state = LastGood::new(Settings::default());
        let (a, b) = (local("v1.a.io", "1"), local("v1.b.io", "1"));
        let good = state.update(Scan::fixed(&[("f", &format!("{a}{b}"))]));
        // a is wrong, b is right and new, c is new.
        let mixed = format!("{}{}{}", local("v1.a.io", "0"), local("v1.b.io", "7"), local("v1.c.io", "1"));
        let now = state.update(Scan::fixed(&[("f", &mixed)]));
        assert_eq!(now.problems.0.len(), 1);
        assert_eq!(names(&now), ["v1.b.io", "v1.a.io", "v1.c.io"]);
        assert!(Arc::ptr_eq(good.api_service("v1.a.io").unwrap(), now.api_service("v1.a.io").unwrap()));
        // Not even YAML: all of it stays.
        let now = state.update(Scan::fixed(&[("f", "kind: [")]));
        assert_eq!(names(&now).len(), 3);
        // Mended: what is not there goes.
        let now = state.update(Scan::fixed(&[("f", &b)]));
        assert_eq!((names(&now), now.problems.0.len()), (vec!["v1.b.io"], 0));
    }

    #[test]
    fn an_unreadable_directory_takes_nothing_away() {
        let mut state = LastGood::new(Settings::default());
        state.update(Scan::fixed(&[("dir/sub/f", &local("v1.a.io", "1"))]));
        let mut scan = Scan::fixed(&[("dir", "")]);
        scan.files[0].text = Err(Problem::new("dir", "cannot be read"));
        let now = state.update(scan);
        assert_eq!((names(&now), now.version), (vec!["v1.a.io"], 1));
    }

    #[test]
    fn a_name_twice_is_named_with_both_places() {
        let mut state = LastGood::new(Settings::default());
        let (one, two) = (local("v1.a.io", "1"), local("v1.a.io", "2"));
        let now = state.update(Scan::fixed(&[("b", &one)]));
        assert!(now.problems.0.is_empty());
        // A second one in a file that comes first does not take its place.
        let now = state.update(Scan::fixed(&[("a", &two), ("b", &one)]));
        assert_eq!(
            now.problems.to_string(),
            "a, document 1, APIService \"v1.a.io\": metadata.name: the same object is already in b, document 1, APIService \"v1.a.io\""
        );
        assert_eq!(now.api_services[0].group_priority_minimum, 1);
    }

    #[test]
    fn kinds_that_are_not_ours() {
        let mut state = LastGood::new(Settings::default());
        let text = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}\n---\napiVersion: v1\n---\nkind: ApiService\napiVersion: v1\n---\nkind: APIService\napiVersion: apiregistration.k8s.io/v1beta1\n";
        let now = state.update(Scan::fixed(&[("f.yaml", text)]));
        let problems: Vec<String> = now.problems.0.iter().map(ToString::to_string).collect();
        assert!(
            problems[0]
                .starts_with("f.yaml, document 1, Deployment \"x\": kind: unknown kind \"Deployment\" (\"apps/v1\"): "),
            "{problems:#?}"
        );
        assert_eq!(problems[1], "f.yaml, document 2: kind: required");
        assert!(problems[2].contains("did you mean APIService?"), "{problems:#?}");
        assert!(problems[3].contains("apiVersion: APIService is read as apiregistration.k8s.io/v1"), "{problems:#?}");
    }

    #[test]
    fn slips_in_field_names_are_found() {
        let mut state = LastGood::new(Settings::default());
        let text = local("v1.a.io", "0").replace("metadata: {", "metadata: {anotations: {}, ")
            + "kind: Service\napiVersion: v1\nmetadata: {name: a}\nsepc: {}\n";
        let problems = state.update(Scan::fixed(&[("f", &text)])).problems.to_string();
        assert!(problems.contains("metadata.anotations: unknown field, did you mean annotations?"), "{problems}");
        assert!(problems.contains("spec.groupPriorityMinimum: 0 is out of range"), "{problems}");
        assert!(problems.contains("Service \"a\": sepc: unknown field, did you mean spec?"), "{problems}");
    }

    #[test]
    fn a_client_certificate_that_is_replaced_is_another_api_service() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = LastGood::new(Settings { dir: dir.path().to_owned(), ..Settings::default() });
        let text = local("v1.a.io", "1")
            .replace("metadata: {", "metadata: {annotations: {narthex.dev/client-certificate: pairs/a}, ");
        std::fs::create_dir(dir.path().join("pairs")).unwrap();
        let problems = state.update(Scan::fixed(&[("f", &text)])).problems;
        assert!(problems.to_string().contains("metadata.annotations[narthex.dev/client-certificate]: "), "{problems}");
        let renew = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
            std::fs::write(dir.path().join("pairs/a.crt"), certificate.pem()).unwrap();
            std::fs::write(dir.path().join("pairs/a.key"), key.serialize_pem()).unwrap();
        };
        renew();
        let one = state.update(Scan::fixed(&[("f", &text)]));
        assert_eq!(one.problems.to_string(), "");
        let same = state.update(Scan::fixed(&[("f", &text)]));
        assert!(Arc::ptr_eq(&one.api_services[0], &same.api_services[0]));
        renew();
        let other = state.update(Scan::fixed(&[("f", &text)]));
        assert!(!Arc::ptr_eq(&one.api_services[0], &other.api_services[0]));
    }
}
