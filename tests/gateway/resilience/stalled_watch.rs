//! A watch on which the kube-apiserver sends nothing more without closing it.

use std::time::Duration;

use narthex::egress::Resolver;
use narthex::kubeclient::watch::{ReflectorHandler, WatchFailure, list_and_watch};
use narthex::kubeclient::{Client, Kubeconfig};
use serde_json::json;
use serde_json::value::RawValue;

use crate::support::backend::{Backend, BackendSettings, data_frame, json_response as response, streamed_response};
use crate::support::fixtures::{TEST_TIMEOUT, TestEnvironment, eventually};

/// A watch on which nothing comes, not even a bookmark, is given up; the next one goes on where it stood.
#[tokio::test]
async fn reflector_silent_watch_restarted_from_last_resource_version() {
    /// Told of what came; nothing else matters here.
    struct WatchRecorder(tokio::sync::mpsc::UnboundedSender<String>);
    impl ReflectorHandler for WatchRecorder {
        fn on_list_start(&self) {}
        fn on_item(&self, _: &RawValue) {}
        fn on_synced(&self) {}
        fn on_apply(&self, object: &RawValue) {
            self.0.send(object.get().to_owned()).unwrap();
        }
        fn on_delete(&self, _: &RawValue) {}
        fn on_healthy(&self, _: Duration) {}
        fn on_error(&self, why: &WatchFailure) {
            panic!("{why:?}");
        }
    }
    let environment = TestEnvironment::new();
    let (send, mut watches) = tokio::sync::mpsc::unbounded_channel();
    let settings = BackendSettings { handles_probes: true, ..BackendSettings::http2() };
    let server = Backend::start(&environment, settings, move |request| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let response = if query.contains("watch=true") {
            let (writer, response) = streamed_response(200);
            send.send((query, writer)).unwrap();
            response
        } else {
            response(200, r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#)
        };
        async { response }
    })
    .await;
    let file = |name: &str| environment.path(name).display().to_string();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {
            "server": format!("https://{}", server.address),
            "certificate-authority": file("backend-ca.crt"),
            "tls-server-name": "things-v1.things.svc",
        }}],
        "users": [{"name": "it", "user": {
            "client-certificate": file("front-proxy.crt"),
            "client-key": file("front-proxy.key"),
        }}],
    });
    let path = environment.path("it.kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    let scenario = async {
        let client = Client::new(path.clone(), Kubeconfig::load(&path).unwrap(), Resolver::System.into());
        let (tell, mut message) = tokio::sync::mpsc::unbounded_channel();
        tokio::task::spawn_local(async move { list_and_watch(client, "/api/v1/things", &WatchRecorder(tell)).await });
        let (query, silent) = watches.recv().await.unwrap();
        assert!(query.contains("resourceVersion=5&"), "{query}");
        let event = r#"{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"7"}}}"#;
        silent.send(data_frame(&format!("{event}\n"))).unwrap();
        assert!(message.recv().await.unwrap().contains("\"a\""));
        // Its two minutes and a half go by.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(151)).await;
        tokio::time::resume();
        let (query, _next) =
            tokio::time::timeout(TEST_TIMEOUT, watches.recv()).await.expect("it to be given up").unwrap();
        assert!(query.contains("resourceVersion=7&"), "{query}");
        eventually("the first to be let go", async || silent.is_closed().then_some(())).await;
    };
    tokio::task::LocalSet::new().run_until(scenario).await;
}
