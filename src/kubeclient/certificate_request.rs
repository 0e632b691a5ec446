//! Requests a serving certificate by a CertificateSigningRequest (`certificates.k8s.io/v1`), and renews it before it
//! expires, as `k8s.io/client-go/util/certificate` does for kubelets.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::json;

use super::{Answer, CallError, Client, Patience};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Phase, Publisher};
use crate::tls::{AskedFor, Asking};

/// First and longest interval of polling a pending request.
const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// Pause before the next request after a failed one.
const PAUSE: Duration = Duration::from_secs(60);
/// Longest sleep between checks of the expiry: the clock may be set.
const ROUND: Duration = Duration::from_secs(3600);
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The certificate to request, and its signer.
pub struct Wanted {
    /// The key pair.
    pub asked: AskedFor,
    /// `signerName` of the request.
    pub signer: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Document {
    metadata: Metadata,
    status: Status,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Metadata {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Status {
    certificate: String,
    conditions: Vec<Condition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Condition {
    r#type: String,
    reason: String,
    message: String,
}

/// Requests the certificate whenever it is due, until the process ends.
///
/// Publishes what it waits for, `None` while there is a valid certificate. `health` records the result of each call.
pub async fn keep(
    client: Rc<Client>,
    wanted: Wanted,
    waits: Publisher<Option<String>>,
    health: Arc<CallHealth>,
    mut drain: Drain,
) {
    let server = ApiServer { client, health };
    tokio::select! {
        () = keep_on(&server, &wanted, &waits) => {}
        () = drain.reached(Phase::Ending) => {}
    }
}

/// Client that records its results.
struct ApiServer {
    client: Rc<Client>,
    health: Arc<CallHealth>,
}

impl ApiServer {
    /// Calls the API server and records the result. The caller logs failures.
    async fn call(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Answer, CallError> {
        let began = Instant::now();
        let answer = self.client.call(method, path, body, Patience::default(), |_, _| {}).await;
        let result = match &answer {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(answer.describe()),
            Err(error) => Err(error.to_string()),
        };
        self.health.record_quietly(
            self.client.server(),
            result.as_ref().copied().map_err(String::as_str),
            began.elapsed(),
        );
        answer
    }
}

async fn keep_on(client: &ApiServer, wanted: &Wanted, waits: &Publisher<Option<String>>) {
    let mut told = String::new();
    loop {
        let now = SystemTime::now();
        let left = wanted.asked.due(now).duration_since(now).unwrap_or_default();
        if !left.is_zero() {
            tokio::time::sleep(left.min(ROUND)).await;
            continue;
        }
        match request(client, wanted, waits).await {
            Ok(()) => {
                told.clear();
                waits.publish(Arc::new(None));
                tracing::info!(
                    files = wanted.asked.files().place(),
                    signer = wanted.signer,
                    "requested serving certificate issued"
                );
            }
            Err(why) => {
                if told != why {
                    tracing::error!("no serving certificate from signer {}: {why}; retried in 1m", wanted.signer);
                }
                publish(wanted, waits, why.clone());
                told = why;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Publishes what is waited for, unless an earlier certificate is still valid.
fn publish(wanted: &Wanted, waits: &Publisher<Option<String>>, why: String) {
    waits.publish(Arc::new(Some(why).filter(|_| !wanted.asked.is_there(SystemTime::now()))));
}

async fn request(client: &ApiServer, wanted: &Wanted, waits: &Publisher<Option<String>>) -> Result<(), String> {
    let asking = wanted.asked.ask().map_err(|problem| problem.to_string())?;
    let name = create(client, wanted, &asking).await?;
    tracing::info!(
        signer = wanted.signer,
        "serving certificate requested; to approve it: kubectl certificate approve {name}"
    );
    publish(wanted, waits, format!("CertificateSigningRequest {name} is not approved and signed yet"));
    let mut pause = LOOKS.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(LOOKS.1);
        let answer = match client.call(Method::GET, &format!("{PATH}/{name}"), None).await {
            Ok(answer) => answer,
            // A failed call does not change the request.
            Err(error) => {
                tracing::debug!(%error, name, "the CertificateSigningRequest cannot be read");
                continue;
            }
        };
        match answer.status {
            200 => {}
            404 => return Err(format!("CertificateSigningRequest {name} was deleted before it was signed")),
            500.. => continue,
            _ => return Err(answer.describe()),
        }
        let document: Document = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        let refused = |condition: &&Condition| matches!(&*condition.r#type, "Denied" | "Failed");
        if let Some(condition) = document.status.conditions.iter().find(refused) {
            let Condition { r#type, reason, message } = condition;
            return Err(format!("CertificateSigningRequest {name} is {type}: {reason}: {message}"));
        }
        if document.status.certificate.is_empty() {
            continue;
        }
        let certificate = STANDARD.decode(document.status.certificate).map_err(|error| error.to_string())?;
        return wanted.asked.keep(&asking, &certificate).map_err(|problem| problem.to_string());
    }
}

/// Creates the CertificateSigningRequest. Returns its name.
async fn create(client: &ApiServer, wanted: &Wanted, asking: &Asking) -> Result<String, String> {
    let document = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "narthex-serving-"},
        "spec": {
            "request": STANDARD.encode(&asking.request),
            "signerName": wanted.signer,
            "usages": ["digital signature", "server auth"],
        },
    });
    let body = Some(Bytes::from(document.to_string()));
    let answer = client.call(Method::POST, PATH, body).await.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        return Err(answer.describe());
    }
    let document: Document = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    Ok(document.metadata.name)
}
