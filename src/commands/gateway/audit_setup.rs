//! Setup of the gateway's audit: files, sink threads, webhook.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Method;
use rustls_pki_types::UnixTime;

use super::control::ControlTasks;
use super::settings::EgressSettings;
use crate::commands::threads::spawn_thread;
use crate::kubeclient::{CallPolicy, Client, Kubeconfig, KubeconfigSource};
use crate::observe::audit::{AuditEventSender, AuditPolicy, AuditPolicyFile, AuditShutdown, Auditor, Settings};
use crate::observe::metrics::{CallHealth, CallKind, Metrics};
use crate::process::{Problem, Problems};

/// Timeout of one attempt to deliver a batch (`defaultRequestTimeout` in `k8s.io/apiserver/pkg/util/webhook`).
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// Name of the webhook in error texts.
const WEBHOOK: &str = "the audit webhook";

/// The validated files of the audit.
pub(super) struct AuditFiles {
    settings: Settings,
    file: AuditPolicyFile,
    policy: AuditPolicy,
    webhook: Option<(KubeconfigSource, Kubeconfig)>,
}

impl AuditFiles {
    /// Reads the policy and the webhook's kubeconfig.
    ///
    /// # Errors
    /// All errors in these files.
    pub(super) fn read(settings: &Settings) -> Result<AuditFiles, Problems> {
        let mut problems = Problems::default();
        let policy = problems.collect(AuditPolicyFile::open(&settings.policy_file));
        let read = |source: KubeconfigSource| source.load().map(|kubeconfig| (source, kubeconfig));
        let webhook = settings.webhook.as_ref().map(|webhook| KubeconfigSource::EventSink(webhook.config_file.clone()));
        let webhook = problems.collect(webhook.map(read).transpose());
        match (policy, webhook) {
            (Some((file, policy)), Some(webhook)) => {
                Ok(AuditFiles { settings: settings.clone(), file, policy, webhook })
            }
            _ => Err(problems),
        }
    }

    /// Certificates of the webhook's kubeconfig that are not valid `now`.
    pub(super) fn invalid_certificates(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        self.webhook.iter().flat_map(move |(_, kubeconfig)| kubeconfig.untimely(now))
    }

    /// Opens the log and starts the threads of the sinks, which are flushed at shutdown.
    ///
    /// # Errors
    /// The log cannot be opened or a thread cannot be spawned.
    pub(super) fn start(
        self,
        egress: EgressSettings,
        metrics: &Arc<Metrics>,
        tasks: &mut ControlTasks,
    ) -> Result<(Arc<Auditor>, AuditShutdown), Problem> {
        let AuditFiles { settings, file, policy, webhook } = self;
        tracing::info!(
            rules = policy.rule_count(),
            file = %settings.policy_file.display(),
            "audit enabled"
        );
        let policy = tasks.follow("audit", (file, policy));
        let (auditor, shutdown, sending) = Auditor::start(&settings, policy, metrics)?;
        if let (Some(sending), Some((source, kubeconfig))) = (sending, webhook) {
            let health = metrics.calls().register(CallKind::AuditWebhook, "");
            spawn_thread("audit-webhook", async move || {
                tracing::info!(file = %source, server = %kubeconfig.server(), "audit webhook enabled");
                let client = Client::new(source, kubeconfig, egress.dialer());
                tokio::task::spawn_local(Rc::clone(&client).follow());
                sending.run(AuditWebhookClient { client, health }).await;
            })?;
        }
        Ok((auditor, shutdown))
    }
}

/// The webhook of the kubeconfig; events are posted to the path of its URL.
struct AuditWebhookClient {
    client: Rc<Client>,
    health: Arc<CallHealth>,
}

impl AuditEventSender for AuditWebhookClient {
    async fn deliver(&self, list: Bytes) -> Result<(), String> {
        // One attempt only: retrying is up to the batch backend.
        let once = CallPolicy {
            attempt_timeout: ATTEMPT_TIMEOUT,
            total_timeout: ATTEMPT_TIMEOUT,
            max_attempts: 1,
            initial_backoff: Duration::ZERO,
        };
        let began = Instant::now();
        let result = match self.client.call(Method::POST, "", Some(list), once, |_, _| {}).await {
            Ok(answer) if answer.is_success() => Ok(()),
            Ok(answer) => Err(answer.describe_as(WEBHOOK)),
            Err(error) => Err(error.describe_as(WEBHOOK)),
        };
        self.health.record(self.client.server(), result.as_ref().map(drop).map_err(String::as_str), began.elapsed());
        result
    }
}
