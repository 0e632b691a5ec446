//! A serving certificate asked for by a CertificateSigningRequest (`certificates.k8s.io/v1`), and asked for again before
//! it ends, as `k8s.io/client-go/util/certificate` does for kubelets.

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

/// Between looks at a request that is not decided, at first and at most.
const LOOKS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(15));
/// Before another request is made when one came to nothing.
const PAUSE: Duration = Duration::from_secs(60);
/// The longest sleep before the certificate's life is looked at again: clocks are set.
const ROUND: Duration = Duration::from_secs(3600);
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// What is to be signed, and by whom.
pub struct Wanted {
    /// The pair.
    pub asked: AskedFor,
    /// `signerName` of the request: who signs it, once somebody approves it.
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

/// Asks for the certificate whenever it is due, until the process ends. Publishes what it waits for; nothing while the
/// certificate is there. `health` gets the result of each call.
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

/// Whom requests are sent to.
struct ApiServer {
    client: Rc<Client>,
    health: Arc<CallHealth>,
}

impl ApiServer {
    /// One call. Its failures are logged by who makes it.
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
                    "the serving certificate that was asked for is there"
                );
            }
            Err(why) => {
                if told != why {
                    tracing::error!("no serving certificate by {}: {why}; asked for again in a minute", wanted.signer);
                }
                publish(wanted, waits, why.clone());
                told = why;
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// An earlier one that is good still serves on.
fn publish(wanted: &Wanted, waits: &Publisher<Option<String>>, why: String) {
    waits.publish(Arc::new(Some(why).filter(|_| !wanted.asked.is_there(SystemTime::now()))));
}

async fn request(client: &ApiServer, wanted: &Wanted, waits: &Publisher<Option<String>>) -> Result<(), String> {
    let asking = wanted.asked.ask().map_err(|problem| problem.to_string())?;
    let name = create(client, wanted, &asking).await?;
    tracing::info!(
        signer = wanted.signer,
        "a serving certificate is asked for; unless somebody else approves it: kubectl certificate approve {name}"
    );
    publish(wanted, waits, format!("CertificateSigningRequest {name} is not approved and signed yet"));
    let mut pause = LOOKS.0;
    loop {
        tokio::time::sleep(pause).await;
        pause = pause.mul_f64(1.5).min(LOOKS.1);
        let answer = match client.call(Method::GET, &format!("{PATH}/{name}"), None).await {
            Ok(answer) => answer,
            // It is still there, whoever answers for it.
            Err(error) => {
                tracing::debug!(%error, name, "the request cannot be looked at");
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

/// The name of the request that was made.
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
