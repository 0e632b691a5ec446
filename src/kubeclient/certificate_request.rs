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

use super::{ApiResponse, CallError, CallPolicy, Client};
use crate::observe::metrics::CallHealth;
use crate::process::{Drain, Publisher, ShutdownPhase};
use crate::tls::{PendingCertificate, RequestedCertificate};

/// First and longest interval of polling a pending request.
const POLL_INTERVAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// Pause before the next request after a failed one.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Longest sleep between checks of the expiry: the clock may be set.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The certificate to request, and its signer.
pub struct SigningRequest {
    /// The key pair.
    pub pending: RequestedCertificate,
    /// `signerName` of the request.
    pub signer: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CsrObject {
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
    conditions: Vec<CsrCondition>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct CsrCondition {
    r#type: String,
    reason: String,
    message: String,
}

/// Requests the certificate whenever it is due, until the process ends.
///
/// Publishes what it waits for, `None` while there is a valid certificate. `health` records the result of each call.
pub async fn run(
    client: Rc<Client>,
    signing_request: SigningRequest,
    waits: Publisher<Option<String>>,
    health: Arc<CallHealth>,
    mut drain: Drain,
) {
    let server = CsrClient { client, health };
    tokio::select! {
        () = renew_when_due(&server, &signing_request, &waits) => {}
        () = drain.wait_for(ShutdownPhase::Ending) => {}
    }
}

/// Client that records its results.
struct CsrClient {
    client: Rc<Client>,
    health: Arc<CallHealth>,
}

impl CsrClient {
    /// Calls the API server and records the result. The caller logs failures.
    async fn call(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<ApiResponse, CallError> {
        let began = Instant::now();
        let answer = self.client.call(method, path, body, CallPolicy::default(), |_, _| {}).await;
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

async fn renew_when_due(client: &CsrClient, signing_request: &SigningRequest, waits: &Publisher<Option<String>>) {
    let mut reported = String::new();
    loop {
        let now = SystemTime::now();
        let left = signing_request.pending.renewal_due(now).duration_since(now).unwrap_or_default();
        if !left.is_zero() {
            tokio::time::sleep(left.min(MAX_SLEEP)).await;
            continue;
        }
        match request_certificate(client, signing_request, waits).await {
            Ok(()) => {
                reported.clear();
                waits.publish(Arc::new(None));
                tracing::info!(
                    files = signing_request.pending.files().location(),
                    signer = signing_request.signer,
                    "requested serving certificate issued"
                );
            }
            Err(why) => {
                if reported != why {
                    tracing::error!(
                        "no serving certificate from signer {}: {why}; retried in 1m",
                        signing_request.signer
                    );
                }
                publish_waiting(signing_request, waits, why.clone());
                reported = why;
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Publishes what is waited for, unless an earlier certificate is still valid.
fn publish_waiting(signing_request: &SigningRequest, waits: &Publisher<Option<String>>, why: String) {
    waits.publish(Arc::new(Some(why).filter(|_| !signing_request.pending.is_issued(SystemTime::now()))));
}

async fn request_certificate(
    client: &CsrClient,
    signing_request: &SigningRequest,
    waits: &Publisher<Option<String>>,
) -> Result<(), String> {
    let pending_certificate = signing_request.pending.create_request().map_err(|problem| problem.to_string())?;
    let name = create_request(client, signing_request, &pending_certificate).await?;
    tracing::info!(
        signer = signing_request.signer,
        "serving certificate requested; to approve it: kubectl certificate approve {name}"
    );
    publish_waiting(signing_request, waits, format!("CertificateSigningRequest {name} is not approved and signed yet"));
    let mut pause = POLL_INTERVAL.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(POLL_INTERVAL.1);
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
        let document: CsrObject = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
        let refused = |condition: &&CsrCondition| matches!(&*condition.r#type, "Denied" | "Failed");
        if let Some(condition) = document.status.conditions.iter().find(refused) {
            let CsrCondition { r#type, reason, message } = condition;
            return Err(format!("CertificateSigningRequest {name} is {type}: {reason}: {message}"));
        }
        if document.status.certificate.is_empty() {
            continue;
        }
        let certificate = STANDARD.decode(document.status.certificate).map_err(|error| error.to_string())?;
        return signing_request
            .pending
            .install(&pending_certificate, &certificate)
            .map_err(|problem| problem.to_string());
    }
}

/// Creates the CertificateSigningRequest. Returns its name.
async fn create_request(
    client: &CsrClient,
    signing_request: &SigningRequest,
    pending_certificate: &PendingCertificate,
) -> Result<String, String> {
    let document = json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": "narthex-serving-"},
        "spec": {
            "request": STANDARD.encode(&pending_certificate.request),
            "signerName": signing_request.signer,
            "usages": ["digital signature", "server auth"],
        },
    });
    let body = Some(Bytes::from(document.to_string()));
    let answer = client.call(Method::POST, PATH, body).await.map_err(|error| error.to_string())?;
    if !answer.is_success() {
        return Err(answer.describe());
    }
    let document: CsrObject = serde_json::from_slice(&answer.body).map_err(|error| error.to_string())?;
    Ok(document.metadata.name)
}
