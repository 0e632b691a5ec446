//! The thread that reviews the tokens of agents.

use std::sync::Arc;
use std::time::Duration;

use crate::authenticate::{TokenReviewClient, TokenReviewSettings};
use crate::commands::gateway::EgressSettings;
use crate::commands::threads::spawn_thread;
use crate::config::gateway::ResolverChoice;
use crate::config::konnectivity::AgentTokenConfig;
use crate::egress::EgressRoutes;
use crate::konnectivity::server::AgentTokens;
use crate::kubeclient::{CallPolicy, Client, ClientHandle, Kubeconfig, KubeconfigSource};
use crate::observe::Metrics;
use crate::process::{Problem, Problems, Published};

/// How long a review is valid: agents that reconnect often cost one review in this time.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Time for a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// A kubeconfig with its source.
pub(super) struct TokenReviewKubeconfig {
    source: KubeconfigSource,
    kubeconfig: Kubeconfig,
}

impl TokenReviewKubeconfig {
    pub(super) fn load(config: &AgentTokenConfig) -> Result<TokenReviewKubeconfig, Problems> {
        let source = KubeconfigSource::from_flag(config.kubeconfig.clone());
        let kubeconfig = source.load()?;
        Ok(TokenReviewKubeconfig { source, kubeconfig })
    }

    /// Starts the thread.
    pub(super) fn start(self, config: &AgentTokenConfig) -> Result<AgentTokens, Problem> {
        let metrics = Metrics::new();
        let (remote, jobs) = ClientHandle::new();
        let settings = TokenReviewSettings {
            audiences: vec![config.audience.clone()],
            cache_ttl: CACHE_TTL,
            patience: CallPolicy::within(REVIEW_TIMEOUT),
            ..TokenReviewSettings::default()
        };
        let reviews = TokenReviewClient::new(remote, settings, &metrics)?;
        let (sweeping, TokenReviewKubeconfig { source, kubeconfig }) = (Arc::downgrade(&reviews), self);
        tracing::info!(file = %source, server = %kubeconfig.server(), "tokens of agents are reviewed by an API server");
        spawn_thread("reviews", async move || {
            let routes = Published::fixed(EgressRoutes::default());
            let egress = EgressSettings { resolver: ResolverChoice::System, routes, metrics };
            let client = Client::new(source, kubeconfig, egress.dialer());
            tokio::task::spawn_local(client.clone().follow());
            let sweep = async {
                while let Some(reviews) = sweeping.upgrade() {
                    reviews.remove_expired();
                    drop(reviews);
                    tokio::time::sleep(CACHE_TTL).await;
                }
            };
            tokio::join!(jobs.serve(client), sweep);
        })?;
        let (namespace, service_account) = (config.namespace.clone(), config.service_account.clone());
        Ok(AgentTokens { reviews, namespace, service_account })
    }
}
