//! The last valid version of each object of the registry directory, kept while its file has errors.
//!
//! A change of one file costs as much as its objects, and objects of the same names in other files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::process::{ManifestDocument, Problem, Problems, is_json, parse_documents};
use crate::registry::directory::manifest_object::{API_SERVICE, ManifestKey, RegistryObject, SERVICE};
use crate::registry::directory::scan::{DirectoryScan, ManifestFile};
use crate::registry::layered_sources::{DirtySet, LayeredSources, RegistrySource};
use crate::registry::objects::annotations;
use crate::registry::objects::api_service::ApiService;
use crate::registry::objects::endpoints::EndpointSlice;
use crate::registry::objects::service::{Service, service_key, split_service_key};
use crate::registry::settings::Settings;
use crate::registry::snapshot::Registry;

/// Reads the directory once. The error holds all problems found.
pub fn load_directory(settings: &Settings) -> Result<Registry, Problems> {
    LastGood::build_registry(settings.clone(), DirectoryScan::read_directory(&settings.dir))
}

/// Parses `text` as a directory with the only file `file`.
pub fn parse_manifests(settings: &Settings, file: &str, text: &str) -> Result<Registry, Problems> {
    LastGood::build_registry(settings.clone(), DirectoryScan::from_texts(&[(file, text)]))
}

/// The last valid objects of the registry directory.
///
/// An object is removed when its file is gone, or when its file is valid and does not contain it. While a file has any
/// error, none of the objects read from it is removed.
pub(in crate::registry) struct LastGood {
    settings: Settings,
    files: BTreeMap<PathBuf, ParsedFile>,
    /// The valid objects in the files now, by name, in the order of files.
    claims: BTreeMap<ManifestKey, Vec<KnownObject>>,
    /// The objects in use: one claim of each name, or an earlier object that is kept.
    objects: BTreeMap<ManifestKey, KnownObject>,
    /// The names of `objects` by the file they were read from.
    objects_by_file: BTreeMap<PathBuf, BTreeSet<ManifestKey>>,
    /// The names of endpoints among `objects` by the key of their Service.
    endpoints: BTreeMap<String, BTreeSet<ManifestKey>>,
    /// Duplicates that are not used, by name: their file, and the error.
    duplicates: BTreeMap<ManifestKey, Vec<(PathBuf, Problem)>>,
    /// Number of errors of each file that has any.
    error_counts: BTreeMap<PathBuf, usize>,
}

/// Result of reading one file.
struct ParsedFile {
    names: BTreeSet<ManifestKey>,
    problems: Vec<Problem>,
    /// Whether the file names other files. Their content may change while this file stays the same.
    references_files: bool,
    /// Objects that are wrong.
    wrong: Vec<WrongObject>,
}

/// What is known of an object that is wrong; nothing of a document that cannot be read.
#[derive(Default)]
struct WrongObject {
    kind: String,
    namespace: String,
    name: String,
}

#[derive(Clone)]
struct KnownObject {
    file: PathBuf,
    location: String,
    object: RegistryObject,
}

impl LastGood {
    pub(in crate::registry) fn new(settings: Settings) -> LastGood {
        LastGood {
            settings,
            files: BTreeMap::new(),
            claims: BTreeMap::new(),
            objects: BTreeMap::new(),
            objects_by_file: BTreeMap::new(),
            endpoints: BTreeMap::new(),
            duplicates: BTreeMap::new(),
            error_counts: BTreeMap::new(),
        }
    }

    /// Builds the registry of `scan`. Fails with all errors found.
    pub(in crate::registry) fn build_registry(settings: Settings, scan: DirectoryScan) -> Result<Registry, Problems> {
        let mut state = LastGood::new(settings);
        state.update(scan);
        state.problems().into_result(Registry::from_sources(LayeredSources::single(&state)))
    }

    /// Whether a file exists and has no errors.
    pub(in crate::registry) fn is_file_valid(&self, path: &Path) -> bool {
        self.files.get(path).is_some_and(|file| file.problems.is_empty())
    }

    /// Whether a file exists, valid or not.
    pub(in crate::registry) fn contains_file(&self, path: &Path) -> bool {
        self.files.contains_key(path)
    }

    /// Whether no file has an error in itself. There may still be duplicates across files.
    pub(in crate::registry) fn is_valid(&self) -> bool {
        self.files.values().all(|file| file.problems.is_empty())
    }

    /// Whether the Service `name` or its endpoints may be among the invalid objects.
    pub(in crate::registry) fn may_be_wrong(&self, namespace: &str, name: &str) -> bool {
        let mut wrong = self.files.values().flat_map(|file| &file.wrong);
        wrong.any(|one| {
            one.kind.is_empty()
                || (one.namespace.is_empty() || one.namespace == namespace)
                    && (one.name == name || one.kind.starts_with("Endpoint"))
        })
    }

    /// All EndpointSlices and Endpoints with their locations.
    pub(in crate::registry) fn endpoint_slices_in_order(&self) -> impl Iterator<Item = (&str, &EndpointSlice)> {
        self.objects.values().filter_map(|known_object| match &known_object.object {
            RegistryObject::EndpointSlice(one) => Some((known_object.location.as_str(), one.as_ref())),
            _ => None,
        })
    }

    /// Files that must be read again when any other file changes.
    pub(in crate::registry) fn files_with_references(&self) -> impl Iterator<Item = &PathBuf> {
        self.files.iter().filter(|(_, judged)| judged.references_files).map(|(path, _)| path)
    }

    /// Applies the content of the files in `scan`. Returns the objects that may have changed.
    pub(in crate::registry) fn update(&mut self, scan: DirectoryScan) -> DirtySet {
        let there: BTreeSet<&Path> = scan.files.iter().map(|file| file.path.as_path()).collect();
        let mut gone: Vec<PathBuf> = match &scan.only {
            None => self.files.keys().cloned().collect(),
            Some(paths) => paths.iter().filter(|path| self.files.contains_key(*path)).cloned().collect(),
        };
        gone.retain(|path| !there.contains(path.as_path()));
        let mut names = BTreeSet::new();
        for path in gone {
            self.remove_file(&path, &mut names);
        }
        for file in scan.files {
            self.remove_file(&file.path, &mut names);
            self.read_file(file, &mut names);
        }
        let mut touched = DirtySet::default();
        // Duplicates first: they are errors of their file, and a file with errors keeps its objects.
        let mut unclaimed = BTreeSet::new();
        for key in names {
            let claims = self.claims.get(&key).map(Vec::as_slice).unwrap_or_default();
            let (chosen, twice) = select_claim(claims, self.objects.get(&key));
            self.set_duplicates(&key, twice, &mut unclaimed);
            match chosen {
                Some(chosen) => self.put(key, chosen, &mut touched),
                None => drop(unclaimed.insert(key)),
            }
        }
        for key in unclaimed {
            let Some(known) = self.objects.get(&key).filter(|_| !self.claims.contains_key(&key)) else { continue };
            // A path that cannot be read may be a directory: objects below it are kept.
            if !known.file.ancestors().any(|path| self.error_counts.contains_key(path)) {
                self.remove(&key, &mut touched);
            }
        }
        touched
    }

    /// All errors, in the order of files.
    pub(in crate::registry) fn problems(&self) -> Problems {
        let mut all: BTreeMap<&Path, Vec<&Problem>> = BTreeMap::new();
        for path in self.error_counts.keys() {
            let problems = self.files.get(path).map(|file| file.problems.as_slice()).unwrap_or_default();
            all.entry(path).or_default().extend(problems);
        }
        for (path, problem) in self.duplicates.values().flatten() {
            all.entry(path).or_default().push(problem);
        }
        Problems(all.into_values().flatten().cloned().collect())
    }

    /// Removes the claims of a file. Adds the names concerned to `names`.
    fn remove_file(&mut self, path: &Path, names: &mut BTreeSet<ManifestKey>) {
        let Some(judged) = self.files.remove(path) else { return };
        for key in &judged.names {
            if let Some(claims) = self.claims.get_mut(key) {
                claims.retain(|claim| claim.file != path);
                if claims.is_empty() {
                    self.claims.remove(key);
                }
            }
        }
        names.extend(judged.names);
        if !judged.problems.is_empty() {
            self.decrement_error_count(path, names);
        }
    }

    /// Decrements the number of errors of a file. At zero, adds the names kept only because of them to `names`.
    fn decrement_error_count(&mut self, path: &Path, names: &mut BTreeSet<ManifestKey>) {
        let Some(count) = self.error_counts.get_mut(path) else { return };
        *count -= 1;
        if *count == 0 {
            self.error_counts.remove(path);
            let below = self.objects_by_file.range(path.to_owned()..).take_while(|(file, _)| file.starts_with(path));
            names.extend(below.flat_map(|(_, keys)| keys).filter(|key| !self.claims.contains_key(*key)).cloned());
        }
    }

    fn read_file(&mut self, file: ManifestFile, names: &mut BTreeSet<ManifestKey>) {
        let ManifestFile { path, text, modified } = file;
        let mut problems = Problems::default();
        let mut state =
            ParsedFile { names: BTreeSet::new(), problems: Vec::new(), references_files: false, wrong: Vec::new() };
        if text.is_err() {
            state.wrong.push(WrongObject::default());
        }
        if let Some(text) = problems.collect(text) {
            state.references_files = text.contains(annotations::CLIENT_CERTIFICATE);
            let (found, mut wrong) = parse_documents(&path.display().to_string(), &text, is_json(&path));
            state.wrong.extend(wrong.0.iter().map(|_| WrongObject::default()));
            problems.0.append(&mut wrong.0);
            for document in found {
                let location = document.location.clone();
                let of = WrongObject::of(&document);
                let Some(object) = RegistryObject::parse(&self.settings, document, modified, &mut problems) else {
                    state.wrong.push(of);
                    continue;
                };
                let key = object.key();
                let claims = self.claims.entry(key.clone()).or_default();
                // After claims of earlier files, and earlier claims of this file.
                let at = claims.partition_point(|claim| claim.file <= path);
                claims.insert(at, KnownObject { file: path.clone(), location, object });
                names.insert(key.clone());
                state.names.insert(key);
            }
        }
        state.problems = problems.0;
        if !state.problems.is_empty() {
            *self.error_counts.entry(path.clone()).or_default() += 1;
        }
        // Objects that this file no longer contains are in `names` already: their claims, or the file's errors, ended.
        self.files.insert(path, state);
    }

    fn set_duplicates(
        &mut self,
        key: &ManifestKey,
        twice: Vec<(PathBuf, Problem)>,
        unclaimed: &mut BTreeSet<ManifestKey>,
    ) {
        for (path, _) in &twice {
            *self.error_counts.entry(path.clone()).or_default() += 1;
        }
        let before = match twice.is_empty() {
            true => self.duplicates.remove(key),
            false => self.duplicates.insert(key.clone(), twice),
        };
        for (path, _) in before.into_iter().flatten() {
            self.decrement_error_count(&path, unclaimed);
        }
    }

    fn put(&mut self, key: ManifestKey, mut object: KnownObject, touched: &mut DirtySet) {
        if let Some(before) = self.objects.get(&key) {
            let same = object.object.is_same(&before.object);
            if same {
                object.object = before.object.clone();
            }
            if same && object.location == before.location && object.file == before.file {
                return;
            }
            self.remove(&key, touched);
        }
        touched.add_object(&object.object);
        if let RegistryObject::EndpointSlice(one) = &object.object {
            self.endpoints.entry(service_key(&one.namespace, &one.service)).or_default().insert(key.clone());
        }
        self.objects_by_file.entry(object.file.clone()).or_default().insert(key.clone());
        self.objects.insert(key, object);
    }

    fn remove(&mut self, key: &ManifestKey, touched: &mut DirtySet) {
        let Some(known) = self.objects.remove(key) else { return };
        touched.add_object(&known.object);
        remove_from_set(&mut self.objects_by_file, &known.file, key);
        if let RegistryObject::EndpointSlice(one) = &known.object {
            remove_from_set(&mut self.endpoints, &service_key(&one.namespace, &one.service), key);
        }
    }
}

impl WrongObject {
    fn of(document: &ManifestDocument) -> WrongObject {
        let namespace = document.value.pointer("/metadata/namespace").and_then(|it| it.as_str()).unwrap_or_default();
        WrongObject { kind: document.kind.clone(), namespace: namespace.to_owned(), name: document.name.clone() }
    }
}

/// Selects one of several objects with the same name: the one of the file that was used `before`, else the first.
/// Returns an error for each of the others, with its file.
fn select_claim(
    claims: &[KnownObject],
    before: Option<&KnownObject>,
) -> (Option<KnownObject>, Vec<(PathBuf, Problem)>) {
    let Some((first, others)) = claims.split_first() else { return (None, Vec::new()) };
    let (mut chosen, mut twice) = (first, Vec::new());
    for new in others {
        let was = before.is_some_and(|before| before.file == new.file && before.file != chosen.file);
        let passed_over = if was { std::mem::replace(&mut chosen, new) } else { new };
        let message = format!("the same object is already in {}", chosen.location);
        twice.push((passed_over.file.clone(), Problem::at_field(&passed_over.location, "metadata.name", message)));
    }
    (Some(chosen.clone()), twice)
}

fn remove_from_set<K: Ord + Clone>(all: &mut BTreeMap<K, BTreeSet<ManifestKey>>, of: &K, key: &ManifestKey) {
    if let Some(keys) = all.get_mut(of) {
        keys.remove(key);
        if keys.is_empty() {
            all.remove(of);
        }
    }
}

impl RegistrySource for LastGood {
    fn api_service(&self, name: &str) -> Option<(String, Arc<ApiService>)> {
        match self.objects.get(&(API_SERVICE, String::new(), name.to_owned()))? {
            KnownObject { location: place, object: RegistryObject::ApiService(one), .. } => {
                Some((place.clone(), one.clone()))
            }
            _ => None,
        }
    }

    fn service(&self, key: &str) -> Option<Arc<Service>> {
        let (namespace, name) = split_service_key(key);
        match &self.objects.get(&(SERVICE, namespace.to_owned(), name.to_owned()))?.object {
            RegistryObject::Service(one) => Some(one.clone()),
            _ => None,
        }
    }

    fn endpoint_slices(&self, key: &str) -> Vec<Arc<EndpointSlice>> {
        let slice = |key: &ManifestKey| match &self.objects.get(key)?.object {
            RegistryObject::EndpointSlice(one) => Some(one.clone()),
            _ => None,
        };
        self.endpoints.get(key).into_iter().flatten().filter_map(slice).collect()
    }

    fn lookup_error(&self, _: &str) -> Option<String> {
        None
    }

    fn all_names(&self) -> DirtySet {
        let mut all = DirtySet::default();
        self.objects.values().for_each(|known_object| all.add_object(&known_object.object));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::snapshot::tests::api_service;

    fn local(name: &str, priority: &str) -> String {
        api_service(name, &format!("groupPriorityMinimum: {priority}, versionPriority: 1"))
    }

    /// The last valid objects, and the registry built from them.
    struct TestState(LastGood, Registry);

    impl TestState {
        fn new(settings: Settings) -> TestState {
            TestState(LastGood::new(settings), Registry::empty())
        }

        fn update(&mut self, scan: DirectoryScan) -> Registry {
            let touched = self.0.update(scan);
            self.1.update(&touched, LayeredSources::single(&self.0));
            self.1.problems = Arc::new(self.0.problems());
            self.1.clone()
        }
    }

    fn names(registry: &Registry) -> Vec<String> {
        registry.sorted_api_services().iter().map(|one| one.name.clone()).collect()
    }

    #[test]
    fn last_good_unchanged_object_keeps_its_arc() {
        let mut state = TestState::new(Settings::default());
        let (a, b) = (local("v1.a.io", "1"), local("v1.b.io", "1"));
        let one = state.update(DirectoryScan::from_texts(&[("a", &a), ("b", &b)]));
        // Moved to another file: still the same object.
        let two = state.update(DirectoryScan::from_texts(&[("c", &format!("{b}{a}"))]));
        assert_eq!((one.version, two.version), (1, 1));
        assert!(Arc::ptr_eq(&one.sorted_api_services()[0], &two.sorted_api_services()[0]));
        let three = state.update(DirectoryScan::from_texts(&[("c", &format!("{b}{}", local("v1.a.io", "2")))]));
        assert_eq!(three.version, 2);
        assert!(!Arc::ptr_eq(two.api_service("v1.a.io").unwrap(), three.api_service("v1.a.io").unwrap()));
        assert!(Arc::ptr_eq(two.api_service("v1.b.io").unwrap(), three.api_service("v1.b.io").unwrap()));
        let none = state.update(DirectoryScan::from_texts(&[]));
        assert_eq!((none.version, none.len()), (3, 0));
    }

    #[test]
    fn last_good_invalid_object_kept_and_valid_ones_updated() {
        let mut state = TestState::new(Settings::default());
        let (a, b) = (local("v1.a.io", "1"), local("v1.b.io", "1"));
        let good = state.update(DirectoryScan::from_texts(&[("f", &format!("{a}{b}"))]));
        // a is invalid, b is valid and changed, c is new.
        let mixed = format!("{}{}{}", local("v1.a.io", "0"), local("v1.b.io", "7"), local("v1.c.io", "1"));
        let now = state.update(DirectoryScan::from_texts(&[("f", &mixed)]));
        assert_eq!(now.problems.0.len(), 1);
        assert_eq!(names(&now), ["v1.b.io", "v1.a.io", "v1.c.io"]);
        assert!(Arc::ptr_eq(good.api_service("v1.a.io").unwrap(), now.api_service("v1.a.io").unwrap()));
        // Not YAML: all objects stay.
        let now = state.update(DirectoryScan::from_texts(&[("f", "kind: [")]));
        assert_eq!(names(&now).len(), 3);
        // Fixed: absent objects are removed.
        let now = state.update(DirectoryScan::from_texts(&[("f", &b)]));
        assert_eq!((names(&now), now.problems.0.len()), (vec!["v1.b.io".to_owned()], 0));
    }

    #[test]
    fn last_good_unreadable_directory_removes_nothing() {
        let mut state = TestState::new(Settings::default());
        state.update(DirectoryScan::from_texts(&[("dir/sub/f", &local("v1.a.io", "1"))]));
        let mut scan = DirectoryScan::from_texts(&[("dir", "")]);
        scan.files[0].text = Err(Problem::new("dir", "cannot be read"));
        let now = state.update(scan);
        assert_eq!((names(&now), now.version), (vec!["v1.a.io".to_owned()], 1));
    }

    #[test]
    fn last_good_duplicate_name_reports_both_locations() {
        let mut state = TestState::new(Settings::default());
        let (one, two) = (local("v1.a.io", "1"), local("v1.a.io", "2"));
        let now = state.update(DirectoryScan::from_texts(&[("b", &one)]));
        assert!(now.problems.0.is_empty());
        // A duplicate in a file that sorts first does not replace it.
        let now = state.update(DirectoryScan::from_texts(&[("a", &two), ("b", &one)]));
        assert_eq!(
            now.problems.to_string(),
            "a, document 1, APIService \"v1.a.io\": metadata.name: the same object is already in b, document 1, APIService \"v1.a.io\""
        );
        assert_eq!(now.sorted_api_services()[0].group_priority_minimum, 1);
    }

    #[test]
    fn last_good_unknown_kinds_reported() {
        let mut state = TestState::new(Settings::default());
        let text = "kind: Deployment\napiVersion: apps/v1\nmetadata: {name: x}\n---\napiVersion: v1\n---\nkind: ApiService\napiVersion: v1\n---\nkind: APIService\napiVersion: apiregistration.k8s.io/v1beta1\n";
        let now = state.update(DirectoryScan::from_texts(&[("f.yaml", text)]));
        let problems: Vec<String> = now.problems.0.iter().map(ToString::to_string).collect();
        assert!(
            problems[0]
                .starts_with("f.yaml, document 1, Deployment \"x\": kind: unknown kind \"Deployment\" (\"apps/v1\"): "),
            "{problems:#?}"
        );
        assert_eq!(problems[1], "f.yaml, document 2: kind: required");
        assert!(problems[2].contains("did you mean APIService?"), "{problems:#?}");
        assert!(
            problems[3].contains("apiVersion: APIService is supported as apiregistration.k8s.io/v1"),
            "{problems:#?}"
        );
    }

    #[test]
    fn last_good_misspelled_fields_reported() {
        let mut state = TestState::new(Settings::default());
        let text = local("v1.a.io", "0").replace("metadata: {", "metadata: {anotations: {}, ")
            + "kind: Service\napiVersion: v1\nmetadata: {name: a}\nsepc: {}\n";
        let problems = state.update(DirectoryScan::from_texts(&[("f", &text)])).problems.to_string();
        assert!(problems.contains("metadata.anotations: unknown field, did you mean annotations?"), "{problems}");
        assert!(problems.contains("spec.groupPriorityMinimum: 0 is out of range"), "{problems}");
        assert!(problems.contains("Service \"a\": sepc: unknown field, did you mean spec?"), "{problems}");
    }

    #[test]
    fn last_good_renewed_client_certificate_changes_api_service() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = TestState::new(Settings { dir: dir.path().to_owned(), ..Settings::default() });
        let text = local("v1.a.io", "1")
            .replace("metadata: {", "metadata: {annotations: {narthex.dev/client-certificate: pairs/a}, ");
        std::fs::create_dir(dir.path().join("pairs")).unwrap();
        let problems = state.update(DirectoryScan::from_texts(&[("f", &text)])).problems;
        assert!(problems.to_string().contains("metadata.annotations[narthex.dev/client-certificate]: "), "{problems}");
        let renew = || {
            let key = rcgen::KeyPair::generate().unwrap();
            let certificate = rcgen::CertificateParams::default().self_signed(&key).unwrap();
            std::fs::write(dir.path().join("pairs/a.crt"), certificate.pem()).unwrap();
            std::fs::write(dir.path().join("pairs/a.key"), key.serialize_pem()).unwrap();
        };
        renew();
        let one = state.update(DirectoryScan::from_texts(&[("f", &text)]));
        assert_eq!(one.problems.to_string(), "");
        let same = state.update(DirectoryScan::from_texts(&[("f", &text)]));
        assert!(Arc::ptr_eq(&one.sorted_api_services()[0], &same.sorted_api_services()[0]));
        renew();
        let other = state.update(DirectoryScan::from_texts(&[("f", &text)]));
        assert!(!Arc::ptr_eq(&one.sorted_api_services()[0], &other.sorted_api_services()[0]));
    }
}
