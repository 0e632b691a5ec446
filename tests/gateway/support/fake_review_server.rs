//! A fake kube-apiserver for TokenReview and SubjectAccessReview, with scripted answers and faults.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http_body_util::BodyExt;
use narthex::tls::CertificateSpec as CertificateRequest;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::backend::{
    Backend, BackendResponse, BackendSettings, data_frame, json_response as response, streamed_response,
};
use crate::support::fixtures::TestEnvironment;

/// What becomes of one review.
#[derive(Clone)]
pub(crate) enum ReviewReply {
    /// This status and this document.
    Json(u16, Value),
    /// This status and these bytes, which need not be JSON.
    Text(u16, &'static str),
    /// No answer at all.
    Hang,
    /// The head of an answer, and then the end of the stream.
    Break,
    /// The reply, as soon as the other end of the channel is dropped.
    Delay(watch::Receiver<()>, Box<ReviewReply>),
}

type ReviewBehavior = Arc<dyn Fn(&Value) -> ReviewReply + Send + Sync>;

/// A reviewer that runs; it stops when dropped.
pub(crate) struct FakeReviewServer {
    backend: Backend,
    behavior: Arc<Mutex<ReviewBehavior>>,
    reviews: Arc<Mutex<Vec<(String, Value)>>>,
    config_map: watch::Sender<(u64, AuthConfigMapState)>,
}

/// What stands at `kube-system/extension-apiserver-authentication`.
#[derive(Clone)]
pub(crate) enum AuthConfigMapState {
    /// These data.
    Present(Value),
    /// Nothing.
    Absent,
    /// Something that we may not read.
    Forbidden,
}

impl FakeReviewServer {
    /// Listens, and writes `reviewer.kubeconfig`, which names it. Knows the token `good` as tina and allows all
    /// requests.
    pub(crate) async fn start(environment: &TestEnvironment) -> FakeReviewServer {
        FakeReviewServer::start_at(environment, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(environment: &TestEnvironment, address: SocketAddr) -> FakeReviewServer {
        let behavior: Arc<Mutex<ReviewBehavior>> = Arc::new(Mutex::new(Arc::new(default_reply)));
        let recorded: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (behaving, pending_request) = (behavior.clone(), recorded.clone());
        let (config_map, telling) = watch::channel((1, AuthConfigMapState::Absent));
        let settings =
            BackendSettings { names: vec!["127.0.0.1"], address, handles_probes: true, ..BackendSettings::http2() };
        let backend = Backend::start(environment, settings, move |request| {
            let (behaving, pending_request, telling) = (behaving.clone(), pending_request.clone(), telling.clone());
            async move {
                if request.method() == http::Method::GET {
                    return config_map_response(request.uri(), telling);
                }
                let target = request.uri().path_and_query().unwrap().to_string();
                let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let question: Value = serde_json::from_slice(&body).unwrap();
                let of = format!(
                    "/apis/{}/{}s",
                    question["apiVersion"].as_str().unwrap(),
                    question["kind"].as_str().unwrap()
                );
                // The API, or a webhook's own URL.
                assert!(target == of.to_ascii_lowercase() || !target.starts_with("/apis"), "{target}");
                pending_request.lock().unwrap().push((target, question.clone()));
                let reply = behaving.lock().unwrap().clone()(&question);
                send_reply(reply).await
            }
        })
        .await;
        let identity = CertificateRequest::client("narthex", &[]);
        environment
            .write_pair("reviewer-client", &environment.request_header_ca.issue(&identity, SystemTime::now()).unwrap());
        std::fs::write(environment.path("reviewer.token"), "first\n").unwrap();
        let reviewer = FakeReviewServer { backend, behavior, reviews: recorded, config_map };
        reviewer.write_kubeconfig(environment, "reviewer", "");
        reviewer
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.backend.address
    }

    /// Writes `NAME.kubeconfig`, which names the reviewer, with `path` behind its address; says where that file is.
    pub(crate) fn write_kubeconfig(&self, environment: &TestEnvironment, name: &str, path: &str) -> String {
        let document = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://{}{path}", self.backend.address),
                "certificate-authority": "backend-ca.crt",
            }}],
            "users": [{"name": "u", "user": {
                "client-certificate": "reviewer-client.crt",
                "client-key": "reviewer-client.key",
                "tokenFile": "reviewer.token",
            }}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        });
        let file = environment.path(&format!("{name}.kubeconfig"));
        std::fs::write(&file, document.to_string()).unwrap();
        file.display().to_string()
    }

    /// Does as `behavior` says from now on.
    pub(crate) fn set_behavior(&self, behavior: impl Fn(&Value) -> ReviewReply + Send + Sync + 'static) {
        *self.behavior.lock().unwrap() = Arc::new(behavior);
    }

    /// Writes the ConfigMap.
    pub(crate) fn set_config_map(&self, now: AuthConfigMapState) {
        self.config_map.send_modify(|(version, before)| {
            *version += 1;
            *before = now;
        });
    }

    /// The reviews of a kind so far.
    pub(crate) fn reviews(&self, kind: &str) -> Vec<Value> {
        let recorded = self.reviews.lock().unwrap();
        recorded.iter().filter(|(_, question)| question["kind"] == kind).map(|(_, question)| question.clone()).collect()
    }

    /// Where the latest review was sent, and what it was.
    pub(crate) fn last_review(&self) -> (String, Value) {
        self.reviews.lock().unwrap().last().unwrap().clone()
    }

    /// How many reviews there were.
    pub(crate) fn review_count(&self) -> usize {
        self.reviews.lock().unwrap().len()
    }

    /// The credentials that the latest review came with: common name, and token.
    pub(crate) fn credentials(&self) -> (String, String) {
        let last = self.backend.last_request();
        (last.peer.clone(), last.header_values("authorization").join(" and "))
    }

    pub(crate) fn connections(&self) -> usize {
        self.backend.connections()
    }

    /// Stops listening and cuts every connection.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.backend.stop().await
    }
}

/// Token `good` is tina's; all requests are allowed.
pub(crate) fn default_reply(question: &Value) -> ReviewReply {
    if question["kind"] == "SubjectAccessReview" {
        return access_review_reply(json!({"allowed": true}));
    }
    if question["spec"]["token"] == "good" { tina_reply() } else { token_review_reply(json!({"authenticated": false})) }
}

pub(crate) fn tina_reply() -> ReviewReply {
    let user =
        json!({"username": "tina", "uid": "t-1", "groups": ["devs"], "extra": {"example.com/scopes": ["a", "b"]}});
    token_review_reply(json!({"authenticated": true, "user": user}))
}

/// The answer to a token review.
pub(crate) fn token_review_reply(status: Value) -> ReviewReply {
    review_reply(json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}), status)
}

/// The answer to an access review.
pub(crate) fn access_review_reply(status: Value) -> ReviewReply {
    review_reply(json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}), status)
}

fn review_reply(mut review: Value, status: Value) -> ReviewReply {
    review["status"] = status;
    ReviewReply::Json(201, review)
}

/// A failure as an API server words it.
pub(crate) fn failure_reply(code: u16, reason: &str) -> ReviewReply {
    let message = format!("secret words of {reason}");
    ReviewReply::Json(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code}),
    )
}

/// A list of the one ConfigMap, or a watch of it.
fn config_map_response(uri: &http::Uri, mut telling: watch::Receiver<(u64, AuthConfigMapState)>) -> BackendResponse {
    assert_eq!(uri.path(), "/api/v1/namespaces/kube-system/configmaps");
    let query = uri.query().unwrap_or_default();
    assert!(query.contains("fieldSelector=metadata.name%3Dextension-apiserver-authentication"), "{query}");
    let (version, now) = telling.borrow_and_update().clone();
    if matches!(now, AuthConfigMapState::Forbidden) {
        return response(403, r#"{"kind":"Status","message":"secret words"}"#);
    }
    let document =
        |version: u64, data: Value| json!({"metadata": {"resourceVersion": version.to_string()}, "data": data});
    if !query.contains("watch=true") {
        let items: Vec<Value> = match now {
            AuthConfigMapState::Present(data) => vec![document(version, data)],
            AuthConfigMapState::Absent | AuthConfigMapState::Forbidden => Vec::new(),
        };
        let list =
            json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": version.to_string()}, "items": items});
        return response(200, &list.to_string());
    }
    let from: u64 = query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
    let (writer, response) = streamed_response(200);
    tokio::spawn(async move {
        let mut error_text = from;
        loop {
            let (version, now) = telling.borrow_and_update().clone();
            if version > error_text {
                error_text = version;
                let event = match now {
                    AuthConfigMapState::Present(data) => json!({"type": "MODIFIED", "object": document(version, data)}),
                    AuthConfigMapState::Absent | AuthConfigMapState::Forbidden => {
                        json!({"type": "DELETED", "object": document(version, json!({}))})
                    }
                };
                if writer.send(data_frame(&format!("{event}\n"))).is_err() {
                    return;
                }
            }
            if telling.changed().await.is_err() {
                return;
            }
        }
    });
    response
}

async fn send_reply(mut reply: ReviewReply) -> BackendResponse {
    loop {
        reply = match reply {
            ReviewReply::Json(status, document) => return response(status, &document.to_string()),
            ReviewReply::Text(status, text) => return response(status, text),
            ReviewReply::Hang => std::future::pending().await,
            ReviewReply::Break => {
                let (writer, response) = streamed_response(201);
                writer.send(data_frame("{\"kind\":")).unwrap();
                writer.send(Err(std::io::Error::other("broken"))).unwrap();
                return response;
            }
            ReviewReply::Delay(mut until, then) => {
                while until.changed().await.is_ok() {}
                *then
            }
        }
    }
}
