//! A fake kube-apiserver: objects that can be listed, watched and updated, and faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http::{Method, Request};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use narthex::tls::CertificateSpec as CertificateRequest;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response as response, streamed_response,
};
use crate::support::fixtures::TestEnvironment;

/// A cluster that runs; it stops when dropped.
pub(crate) struct FakeApiServer {
    backend: Backend,
    shared: Arc<FakeApiServerState>,
}

struct FakeApiServerState {
    store: Mutex<FakeObjectStore>,
    /// Says that something happened; the number of times that all watches were cut.
    changes: watch::Sender<u64>,
    /// Whether watches are told of versions at which nothing of theirs happened.
    bookmarks: AtomicBool,
}

#[derive(Default)]
struct FakeObjectStore {
    version: u64,
    /// By path.
    objects: BTreeMap<String, Value>,
    history: Vec<FakeObjectChange>,
    /// Changes up to this one are forgotten.
    compacted_version: u64,
    /// Objects on a page, whatever is asked for.
    page_size: Option<usize>,
    /// Paths that begin so are answered with this status.
    failing_paths: BTreeMap<String, u16>,
}

#[derive(Clone)]
struct FakeObjectChange {
    version: u64,
    kind: &'static str,
    path: String,
    object: Value,
}

impl FakeApiServer {
    /// Listens, and writes `apiserver_response.kubeconfig`, which names it.
    pub(crate) async fn start(environment: &TestEnvironment) -> FakeApiServer {
        let shared = Arc::new(FakeApiServerState {
            store: Mutex::default(),
            changes: watch::channel(0).0,
            bookmarks: AtomicBool::new(true),
        });
        FakeApiServer::start_with(environment, shared, "127.0.0.1:0".parse().unwrap()).await
    }

    async fn start_with(
        environment: &TestEnvironment,
        shared: Arc<FakeApiServerState>,
        address: SocketAddr,
    ) -> FakeApiServer {
        let serving = shared.clone();
        let settings =
            BackendSettings { names: vec!["127.0.0.1"], address, handles_probes: true, ..BackendSettings::http2() };
        let backend = Backend::start(environment, settings, move |request| {
            let shared = serving.clone();
            async move { shared.serve(request).await }
        })
        .await;
        let identity = CertificateRequest::client("narthex", &[]);
        environment
            .write_pair("cluster-client", &environment.request_header_ca.issue(&identity, SystemTime::now()).unwrap());
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}", backend.address),
                "certificate-authority": "backend-ca.crt",
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate": "cluster-client.crt",
                "client-key": "cluster-client.key",
            }}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        std::fs::write(environment.path("cluster.kubeconfig"), document.to_string()).unwrap();
        FakeApiServer { backend, shared }
    }

    /// The flag that names it.
    pub(crate) fn kubeconfig_flag(environment: &TestEnvironment) -> String {
        format!("--kubeconfig={}", environment.path("cluster.kubeconfig").display())
    }

    /// Puts the objects of a YAML stream there; what is the same already stays as it is.
    pub(crate) fn apply(&self, documents: &str) {
        self.shared.apply(documents);
    }

    /// The object at `path`, if there is one.
    pub(crate) fn get(&self, path: &str) -> Option<Value> {
        self.shared.store.lock().unwrap().objects.get(path).cloned()
    }

    /// Changes an object as another client would.
    pub(crate) fn edit(&self, path: &str, edit: impl FnOnce(&mut Value)) {
        let mut object = self.get(path).unwrap();
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        edit(&mut object);
        self.shared.change(|store| store.put(path, object));
    }

    /// How often something was written to `path`.
    pub(crate) fn write_count(&self, path: &str) -> usize {
        self.backend.received().iter().filter(|seen| seen.method != Method::GET && seen.uri.path() == path).count()
    }

    /// Deletes an object.
    pub(crate) fn delete(&self, path: &str) {
        self.shared.change(|store| store.remove(path));
    }

    /// So many objects are on a page.
    pub(crate) fn set_page_size(&self, most: usize) {
        self.shared.store.lock().unwrap().page_size = Some(most);
    }

    /// Answers paths that begin so with `status`; 0 for no more of it.
    pub(crate) fn fail_requests(&self, path: &str, status: u16) {
        let mut store = self.shared.store.lock().unwrap();
        match status {
            0 => store.failing_paths.remove(path),
            status => store.failing_paths.insert(path.to_owned(), status),
        };
    }

    /// Tells no watch of what is none of its concern: a real one does so once a minute.
    #[allow(dead_code, reason = "the bench of the registry wants that")]
    pub(crate) fn disable_bookmarks(&self) {
        self.shared.bookmarks.store(false, Ordering::Relaxed);
    }

    /// Ends all watches, as if they broke.
    pub(crate) fn break_watches(&self) {
        self.shared.changes.send_modify(|cuts| *cuts += 1);
    }

    /// Compacts the history: watches from older versions get 410.
    pub(crate) fn compact(&self) {
        let mut store = self.shared.store.lock().unwrap();
        store.history.clear();
        // A version beyond every watcher's.
        store.version += 1;
        store.compacted_version = store.version;
    }

    /// Goes away, and keeps what it holds.
    pub(crate) async fn stop(self) -> StoppedApiServer {
        let FakeApiServer { backend, shared } = self;
        StoppedApiServer { address: backend.stop().await, shared }
    }
}

/// A cluster that is away.
pub(crate) struct StoppedApiServer {
    address: SocketAddr,
    shared: Arc<FakeApiServerState>,
}

impl StoppedApiServer {
    /// Comes back where it was.
    pub(crate) async fn start(self, environment: &TestEnvironment) -> FakeApiServer {
        FakeApiServer::start_with(environment, self.shared, self.address).await
    }

    /// What happens meanwhile.
    pub(crate) fn apply(&self, documents: &str) {
        self.shared.apply(documents);
    }
}

fn object_path(object: &Value) -> String {
    let (version, plural) = match object["kind"].as_str().unwrap() {
        "APIService" => ("apis/apiregistration.k8s.io/v1", "apiservices"),
        "Service" => ("api/v1", "services"),
        "EndpointSlice" => ("apis/discovery.k8s.io/v1", "endpointslices"),
        other => panic!("{other}"),
    };
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("/{version}/namespaces/{namespace}/{plural}/{name}"),
        None => format!("/{version}/{plural}/{name}"),
    }
}

impl FakeApiServerState {
    fn apply(&self, documents: &str) {
        for document in documents.split("---\n") {
            let object: Value = serde_saphyr::from_str(document).unwrap();
            self.change(|store| store.put(&object_path(&object), object));
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut FakeObjectStore) -> T) -> T {
        let changed = change(&mut self.store.lock().unwrap());
        self.changes.send_modify(|_| {});
        changed
    }

    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> BackendResponse {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        let refused = {
            let store = self.store.lock().unwrap();
            store.failing_paths.iter().find(|(prefix, _)| path.starts_with(*prefix)).map(|(_, status)| *status)
        };
        if let Some(status) = refused {
            return failure_response(status, "as the test says");
        }
        match *request.method() {
            Method::GET if query.contains("watch=true") => self.watch(&path, &query),
            Method::GET => {
                let store = self.store.lock().unwrap();
                match store.objects.get(&path) {
                    Some(object) => response(200, &object.to_string()),
                    None if is_collection(&path) => store.list(&path, &query),
                    None => failure_response(404, "there is no such object"),
                }
            }
            ref method => {
                let method = method.clone();
                let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let object: Value = serde_json::from_slice(&body).unwrap();
                self.change(|store| store.write(&method, &path, object))
            }
        }
    }

    fn watch(self: Arc<Self>, path: &str, query: &str) -> BackendResponse {
        let mut error_text: u64 = query_parameter(query, "resourceVersion").unwrap().parse().unwrap();
        let prefix = format!("{path}/");
        let (writer, response) = streamed_response(200);
        let mut news = self.changes.subscribe();
        let cuts = *news.borrow();
        tokio::spawn(async move {
            loop {
                let changes = {
                    let store = self.store.lock().unwrap();
                    if error_text < store.compacted_version {
                        let status = json!({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"});
                        let _ = writer.send(data_frame(&format!("{}\n", json!({"type": "ERROR", "object": status}))));
                        return;
                    }
                    let from = store.history.partition_point(|change| change.version <= error_text);
                    store.history[from..].to_vec()
                };
                for change in changes {
                    error_text = change.version;
                    let event = json!({"type": change.kind, "object": change.object});
                    if change.path.starts_with(&prefix) && writer.send(data_frame(&format!("{event}\n"))).is_err() {
                        return;
                    }
                }
                let bookmark = json!({"metadata": {"resourceVersion": error_text.to_string()}});
                let bookmark = json!({"type": "BOOKMARK", "object": bookmark});
                if self.bookmarks.load(Ordering::Relaxed) && writer.send(data_frame(&format!("{bookmark}\n"))).is_err()
                {
                    return;
                }
                if news.changed().await.is_err() {
                    return;
                }
                if *news.borrow() != cuts {
                    let _ = writer.send(Err(std::io::Error::other("cut")));
                    return;
                }
            }
        });
        response
    }
}

impl FakeObjectStore {
    fn put(&mut self, path: &str, mut object: Value) {
        let kind = match self.objects.get(path) {
            Some(known) => {
                let mut known = known.clone();
                known["metadata"].as_object_mut().unwrap().remove("resourceVersion");
                if known == object {
                    return;
                }
                "MODIFIED"
            }
            None => "ADDED",
        };
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        self.history.push(FakeObjectChange { version: self.version, kind, path: path.to_owned(), object });
    }

    fn remove(&mut self, path: &str) {
        let mut object = self.objects.remove(path).unwrap();
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.history.push(FakeObjectChange { version: self.version, kind: "DELETED", path: path.to_owned(), object });
    }

    fn list(&self, path: &str, query: &str) -> BackendResponse {
        let prefix = format!("{path}/");
        let all: Vec<&Value> =
            self.objects.iter().filter(|(path, _)| path.starts_with(&prefix)).map(|(_, object)| object).collect();
        let recorded = query_parameter(query, "limit").map(|limit| limit.parse().unwrap());
        let from: usize = query_parameter(query, "continue").map_or(0, |from| from.parse().unwrap());
        let limit: usize = recorded.map_or(usize::MAX, |recorded: usize| self.page_size.unwrap_or(recorded));
        let rest = all.len().saturating_sub(from);
        let mut metadata = json!({"resourceVersion": self.version.to_string()});
        if rest > limit {
            metadata["continue"] = (from + limit).to_string().into();
        }
        // As a real one, which does not say the kind of each.
        let items: Vec<Value> = all
            .into_iter()
            .skip(from)
            .take(limit)
            .map(|object| {
                let mut object = object.clone();
                let fields = object.as_object_mut().unwrap();
                fields.remove("kind");
                fields.remove("apiVersion");
                object
            })
            .collect();
        response(200, &json!({"kind": "List", "metadata": metadata, "items": items}).to_string())
    }

    /// Creates or updates as a kube-apiserver does, as far as versions and the status go.
    fn write(&mut self, method: &Method, path: &str, mut object: Value) -> BackendResponse {
        let (path, status) = match path.strip_suffix("/status") {
            Some(of) => (of.to_owned(), true),
            None if *method == Method::POST => {
                (format!("{path}/{}", object["metadata"]["name"].as_str().unwrap()), false)
            }
            None => (path.to_owned(), false),
        };
        match (self.objects.get(&path), method) {
            (Some(_), &Method::POST) => return failure_response(409, "it exists already"),
            (None, &Method::PUT) => return failure_response(404, "there is no such object"),
            (Some(known), _) => {
                let (now, expected) = (&known["metadata"]["resourceVersion"], &object["metadata"]["resourceVersion"]);
                if now != expected {
                    return failure_response(409, "the object has been modified");
                }
                if status {
                    let mut next = known.clone();
                    next["status"] = object["status"].take();
                    object = next;
                }
            }
            (None, _) => {}
        }
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        self.put(&path, object);
        response(if *method == Method::POST { 201 } else { 200 }, &self.objects[&path].to_string())
    }
}

fn is_collection(path: &str) -> bool {
    ["/apiservices", "/services", "/endpointslices", "/leases"].iter().any(|end| path.ends_with(end))
}

fn query_parameter<'q>(query: &'q str, name: &str) -> Option<&'q str> {
    query.split('&').find_map(|one| one.strip_prefix(name)?.strip_prefix('='))
}

fn failure_response(status: u16, message: &str) -> BackendResponse {
    response(status, &json!({"kind": "Status", "code": status, "message": message}).to_string())
}
