//! A conversion webhook: `spec.hostPort` in v1 is `spec.host` and `spec.port` in v2.

use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockWriteGuard};

use crate::support::backend::{Backend, BackendResponse, BackendSettings, json_response};
use crate::support::fixtures::TestEnvironment;

/// Makes a response of the right one.
pub(crate) type ConversionAnswer = fn(&mut Value) -> BackendResponse;

/// A webhook that listens. It stops when dropped.
pub(crate) struct ConversionWebhook {
    pub(crate) backend: Backend,
    /// The reviews that it received.
    reviews: Arc<Mutex<Vec<Value>>>,
    answer: Arc<Mutex<ConversionAnswer>>,
    /// Held for writing, no review is answered.
    gate: Arc<RwLock<()>>,
    ca_bundle: String,
}

impl ConversionWebhook {
    pub(crate) async fn start(environment: &TestEnvironment) -> ConversionWebhook {
        let settings = BackendSettings {
            names: vec!["127.0.0.1", "converter.default.svc"],
            allows_anonymous: true,
            ..BackendSettings::default()
        };
        let reviews: Arc<Mutex<Vec<Value>>> = Arc::default();
        let answer: Arc<Mutex<ConversionAnswer>> = Arc::new(Mutex::new(right_answer));
        let gate: Arc<RwLock<()>> = Arc::default();
        let (received, current, open) = (reviews.clone(), answer.clone(), gate.clone());
        let backend = Backend::start(environment, settings, move |request| {
            let (received, current, open) = (received.clone(), current.clone(), open.clone());
            async move {
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let review: Value = serde_json::from_slice(&body).unwrap();
                received.lock().unwrap().push(review.clone());
                let _open = open.read().await;
                let answer = *current.lock().unwrap();
                answer(&mut converted_review(&review))
            }
        })
        .await;
        let ca_bundle = STANDARD.encode(environment.read_file("backend-ca.crt"));
        ConversionWebhook { backend, reviews, answer, gate, ca_bundle }
    }

    /// `spec.conversion` with the webhook's URL.
    pub(crate) fn conversion_by_url(&self) -> Value {
        self.conversion(
            &json!({"url": format!("https://{}/convert", self.backend.address), "caBundle": self.ca_bundle}),
        )
    }

    /// `spec.conversion` with the Service `converter`.
    pub(crate) fn conversion_by_service(&self) -> Value {
        let port = self.backend.address.port();
        let service = json!({"namespace": "default", "name": "converter", "path": "/convert", "port": port});
        self.conversion(&json!({"service": service, "caBundle": self.ca_bundle}))
    }

    /// `spec.conversion` with another configuration of the client.
    pub(crate) fn conversion(&self, client_config: &Value) -> Value {
        json!({"strategy": "Webhook", "webhook": {
            "clientConfig": client_config, "conversionReviewVersions": ["v1", "v1beta1"]}})
    }

    /// Changes how the webhook answers.
    pub(crate) fn set_answer(&self, answer: ConversionAnswer) {
        *self.answer.lock().unwrap() = answer;
    }

    /// Lets reviews wait until the value is dropped.
    pub(crate) async fn hold(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    /// The number of objects in each call since the last time.
    pub(crate) fn take_calls(&self) -> Vec<usize> {
        let reviews = std::mem::take(&mut *self.reviews.lock().unwrap());
        reviews.iter().map(|review| review["request"]["objects"].as_array().unwrap().len()).collect()
    }

    /// The reviews since the last time.
    pub(crate) fn take_reviews(&self) -> Vec<Value> {
        std::mem::take(&mut *self.reviews.lock().unwrap())
    }
}

/// The right response as it is.
pub(crate) fn right_answer(right: &mut Value) -> BackendResponse {
    json_response(200, &right.to_string())
}

fn converted_review(review: &Value) -> Value {
    let (request, version) = (&review["request"], &review["apiVersion"]);
    let desired = request["desiredAPIVersion"].as_str().unwrap();
    let objects: Vec<Value> =
        request["objects"].as_array().unwrap().iter().map(|object| converted(object, desired)).collect();
    json!({"apiVersion": version, "kind": "ConversionReview", "response": {
        "uid": request["uid"], "result": {"status": "Success"}, "convertedObjects": objects}})
}

fn converted(object: &Value, desired: &str) -> Value {
    let mut converted = object.clone();
    let spec = &object["spec"];
    converted["spec"] = if desired.ends_with("/v2") {
        let (host, port) = spec["hostPort"].as_str().unwrap().split_once(':').unwrap();
        json!({"host": host, "port": port})
    } else {
        json!({"hostPort": format!("{}:{}", spec["host"].as_str().unwrap(), spec["port"].as_str().unwrap())})
    };
    if let Some(replicas) = spec.get("replicas") {
        converted["spec"]["replicas"] = replicas.clone();
    }
    converted["spec"]["unknown"] = json!(true);
    converted["apiVersion"] = json!(desired);
    converted["metadata"]["annotations"]["converted-to"] = json!(desired);
    // Ignored.
    converted["metadata"]["generation"] = json!(77);
    converted
}
