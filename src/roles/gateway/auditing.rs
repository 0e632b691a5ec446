//! The audit of the gateway: its files, its threads, and the way to a webhook.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use rustls_pki_types::UnixTime;

use super::settings::Egress;
use crate::kubeclient::{Client, Kubeconfig, Patience, Source};
use crate::observe::audit::{Auditor, Deliver, Ending, Policy, PolicyFile, Settings};
use crate::observe::metrics::{CallHealth, CallKind, Metrics};
use crate::process::{Problem, Problems, Published, Publisher};
use crate::roles::threads::thread;

/// For one attempt to deliver a batch (`defaultRequestTimeout` in `k8s.io/apiserver/pkg/util/webhook`).
const ATTEMPT: Duration = Duration::from_secs(30);
/// Who is spoken of when it fails.
const WEBHOOK: &str = "the audit webhook";

/// The files of the audit, read and right.
pub(super) struct AuditFiles {
    settings: Settings,
    file: PolicyFile,
    policy: Policy,
    webhook: Option<(Source, Kubeconfig)>,
}

/// An audit that runs.
pub(super) struct Auditing {
    pub(super) auditor: Arc<Auditor>,
    /// For the end of the process.
    pub(super) ending: Ending,
    /// To be followed.
    pub(super) following: (PolicyFile, Publisher<Policy>),
}

impl AuditFiles {
    /// Reads them.
    ///
    /// # Errors
    /// Every mistake in them.
    pub(super) fn read(settings: &Settings) -> Result<AuditFiles, Problems> {
        let mut problems = Problems::default();
        let policy = PolicyFile::open(&settings.policy_file).map_err(|more| problems.0.extend(more.0)).ok();
        let read = |source: Source| source.load().map(|kubeconfig| (source, kubeconfig));
        let webhook = settings.webhook.as_ref().map(|webhook| Source::Collector(webhook.config_file.clone()));
        let webhook = webhook.map(read).transpose().map_err(|more| problems.0.extend(more.0)).ok();
        match (policy, webhook) {
            (Some((file, policy)), Some(webhook)) => {
                Ok(AuditFiles { settings: settings.clone(), file, policy, webhook })
            }
            _ => Err(problems),
        }
    }

    /// Certificates of the webhook's kubeconfig that are not valid `now`.
    pub(super) fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.webhook.iter().flat_map(move |(_, kubeconfig)| kubeconfig.untimely(now))
    }

    /// Opens the log and starts the threads of the sinks.
    ///
    /// # Errors
    /// When the log cannot be opened.
    pub(super) fn start(self, egress: Egress, metrics: &Arc<Metrics>) -> Result<Auditing, Problem> {
        let AuditFiles { settings, file, policy, webhook } = self;
        tracing::info!(
            rules = policy.rules(),
            file = %settings.policy_file.display(),
            "requests are audited"
        );
        let (publisher, published) = Published::new(policy);
        let (auditor, ending, sending) = Auditor::start(&settings, published, metrics)?;
        if let (Some(sending), Some((source, kubeconfig))) = (sending, webhook) {
            let health = metrics.calls().register(CallKind::AuditWebhook, "");
            thread("audit-webhook", async move || {
                tracing::info!(file = %source, server = %kubeconfig.server(), "audit events go to a webhook");
                let client = Client::new(source, kubeconfig, egress.dialler());
                tokio::task::spawn_local(Rc::clone(&client).follow());
                sending.run(Receiver { client, health }).await;
            })?;
        }
        Ok(Auditing { auditor, ending, following: (file, publisher) })
    }
}

/// A webhook, as its kubeconfig names it: the path of its URL is where events are posted.
struct Receiver {
    client: Rc<Client>,
    health: Arc<CallHealth>,
}

impl Deliver for Receiver {
    async fn deliver(&self, list: Bytes) -> Result<(), String> {
        // Whatever comes of it, whether to try again is not the client's to say.
        let once = Patience { attempt: ATTEMPT, whole: ATTEMPT, attempts: 1, pause: Duration::ZERO };
        let began = Instant::now();
        let result = match self.client.call(Method::POST, "", Some(list), once, |_, _| {}).await {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(answer.describe_of(WEBHOOK)),
            Err(error) => Err(error.describe_of(WEBHOOK)),
        };
        self.health.record(self.client.server(), result.as_ref().map(drop).map_err(String::as_str), began.elapsed());
        result
    }
}
