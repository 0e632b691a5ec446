//! A fake kube-apiserver for TokenReview and SubjectAccessReview, with scripted answers and faults.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use http_body_util::BodyExt;
use narthex::tls::Request as CertificateRequest;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::backend::{Answer, Backend, Settings, data, json as answer, streamed};
use crate::world::World;

/// What becomes of one review.
#[derive(Clone)]
pub(crate) enum Reply {
    /// This status and this document.
    Say(u16, Value),
    /// This status and these bytes, which need not be JSON.
    Text(u16, &'static str),
    /// No answer at all.
    Hang,
    /// The head of an answer, and then the end of the stream.
    Break,
    /// The reply, as soon as the other end of the channel is dropped.
    Wait(watch::Receiver<()>, Box<Reply>),
}

type Behaviour = Arc<dyn Fn(&Value) -> Reply + Send + Sync>;

/// A reviewer that runs; it stops when dropped.
pub(crate) struct Reviewer {
    backend: Backend,
    behaviour: Arc<Mutex<Behaviour>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    config_map: watch::Sender<(u64, ConfigMap)>,
}

/// What stands at `kube-system/extension-apiserver-authentication`.
#[derive(Clone)]
pub(crate) enum ConfigMap {
    /// These data.
    Says(Value),
    /// Nothing.
    Gone,
    /// Something that we may not read.
    Forbidden,
}

impl Reviewer {
    /// Listens, and writes `reviewer.kubeconfig`, which names it. Knows the token `good` as tina, and allows her and
    /// everybody else everything.
    pub(crate) async fn start(world: &World) -> Reviewer {
        Reviewer::start_at(world, "127.0.0.1:0".parse().unwrap()).await
    }

    pub(crate) async fn start_at(world: &World, address: SocketAddr) -> Reviewer {
        let behaviour: Arc<Mutex<Behaviour>> = Arc::new(Mutex::new(Arc::new(kindly)));
        let asked: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let (behaving, asking) = (behaviour.clone(), asked.clone());
        let (config_map, telling) = watch::channel((1, ConfigMap::Gone));
        let settings = Settings { names: vec!["127.0.0.1"], address, all: true, ..Settings::http2() };
        let backend = Backend::start(world, settings, move |request| {
            let (behaving, asking, telling) = (behaving.clone(), asking.clone(), telling.clone());
            async move {
                if request.method() == http::Method::GET {
                    return tell(request.uri(), telling);
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
                asking.lock().unwrap().push((target, question.clone()));
                let reply = behaving.lock().unwrap().clone()(&question);
                give(reply).await
            }
        })
        .await;
        let identity = CertificateRequest::client("narthex", &[]);
        world.keep("reviewer-client", &world.request_header.issue(&identity, SystemTime::now()).unwrap());
        std::fs::write(world.path("reviewer.token"), "first\n").unwrap();
        let reviewer = Reviewer { backend, behaviour, asked, config_map };
        reviewer.write_kubeconfig(world, "reviewer", "");
        reviewer
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.backend.address
    }

    /// Writes `NAME.kubeconfig`, which names the reviewer, with `path` behind its address; says where that file is.
    pub(crate) fn write_kubeconfig(&self, world: &World, name: &str, path: &str) -> String {
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
        let file = world.path(&format!("{name}.kubeconfig"));
        std::fs::write(&file, document.to_string()).unwrap();
        file.display().to_string()
    }

    /// Does as `behaviour` says from now on.
    pub(crate) fn behave(&self, behaviour: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        *self.behaviour.lock().unwrap() = Arc::new(behaviour);
    }

    /// Writes the ConfigMap.
    pub(crate) fn config_map(&self, now: ConfigMap) {
        self.config_map.send_modify(|(version, before)| {
            *version += 1;
            *before = now;
        });
    }

    /// The reviews of a kind so far.
    pub(crate) fn asked(&self, kind: &str) -> Vec<Value> {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|(_, question)| question["kind"] == kind).map(|(_, question)| question.clone()).collect()
    }

    /// Where the latest review was sent, and what it was.
    pub(crate) fn last(&self) -> (String, Value) {
        self.asked.lock().unwrap().last().unwrap().clone()
    }

    /// How many reviews there were.
    pub(crate) fn count(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    /// The credentials that the latest review came with: common name, and token.
    pub(crate) fn credentials(&self) -> (String, String) {
        let last = self.backend.last();
        (last.peer.clone(), last.all("authorization").join(" and "))
    }

    pub(crate) fn connections(&self) -> usize {
        self.backend.connections()
    }

    /// Stops listening and cuts every connection.
    pub(crate) async fn stop(self) -> SocketAddr {
        self.backend.stop().await
    }
}

/// `good` is tina's; everybody may everything.
pub(crate) fn kindly(question: &Value) -> Reply {
    if question["kind"] == "SubjectAccessReview" {
        return access(json!({"allowed": true}));
    }
    if question["spec"]["token"] == "good" { tina() } else { token(json!({"authenticated": false})) }
}

pub(crate) fn tina() -> Reply {
    let user =
        json!({"username": "tina", "uid": "t-1", "groups": ["devs"], "extra": {"example.com/scopes": ["a", "b"]}});
    token(json!({"authenticated": true, "user": user}))
}

/// The answer to a token review.
pub(crate) fn token(status: Value) -> Reply {
    reviewed(json!({"kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}), status)
}

/// The answer to an access review.
pub(crate) fn access(status: Value) -> Reply {
    reviewed(json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1"}), status)
}

fn reviewed(mut review: Value, status: Value) -> Reply {
    review["status"] = status;
    Reply::Say(201, review)
}

/// A failure as an API server words it.
pub(crate) fn failure(code: u16, reason: &str) -> Reply {
    let message = format!("secret words of {reason}");
    Reply::Say(
        code,
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": code}),
    )
}

/// A list of the one ConfigMap, or a watch of it.
fn tell(uri: &http::Uri, mut telling: watch::Receiver<(u64, ConfigMap)>) -> Answer {
    assert_eq!(uri.path(), "/api/v1/namespaces/kube-system/configmaps");
    let query = uri.query().unwrap_or_default();
    assert!(query.contains("fieldSelector=metadata.name%3Dextension-apiserver-authentication"), "{query}");
    let (version, now) = telling.borrow_and_update().clone();
    if matches!(now, ConfigMap::Forbidden) {
        return answer(403, r#"{"kind":"Status","message":"secret words"}"#);
    }
    let document =
        |version: u64, data: Value| json!({"metadata": {"resourceVersion": version.to_string()}, "data": data});
    if !query.contains("watch=true") {
        let items: Vec<Value> = match now {
            ConfigMap::Says(data) => vec![document(version, data)],
            ConfigMap::Gone | ConfigMap::Forbidden => Vec::new(),
        };
        let list =
            json!({"kind": "ConfigMapList", "metadata": {"resourceVersion": version.to_string()}, "items": items});
        return answer(200, &list.to_string());
    }
    let from: u64 = query.split("resourceVersion=").nth(1).unwrap().split('&').next().unwrap().parse().unwrap();
    let (writer, answer) = streamed(200);
    tokio::spawn(async move {
        let mut told = from;
        loop {
            let (version, now) = telling.borrow_and_update().clone();
            if version > told {
                told = version;
                let event = match now {
                    ConfigMap::Says(data) => json!({"type": "MODIFIED", "object": document(version, data)}),
                    ConfigMap::Gone | ConfigMap::Forbidden => {
                        json!({"type": "DELETED", "object": document(version, json!({}))})
                    }
                };
                if writer.send(data(&format!("{event}\n"))).is_err() {
                    return;
                }
            }
            if telling.changed().await.is_err() {
                return;
            }
        }
    });
    answer
}

async fn give(mut reply: Reply) -> Answer {
    loop {
        reply = match reply {
            Reply::Say(status, document) => return answer(status, &document.to_string()),
            Reply::Text(status, text) => return answer(status, text),
            Reply::Hang => std::future::pending().await,
            Reply::Break => {
                let (writer, answer) = streamed(201);
                writer.send(data("{\"kind\":")).unwrap();
                writer.send(Err(std::io::Error::other("broken"))).unwrap();
                return answer;
            }
            Reply::Wait(mut until, then) => {
                while until.changed().await.is_ok() {}
                *then
            }
        }
    }
}
