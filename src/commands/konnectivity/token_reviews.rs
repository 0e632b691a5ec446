//! The thread that reviews the tokens of agents.

use std::sync::Arc;
use std::time::Duration;

use super::api_server::ApiServerKubeconfig;
use crate::authenticate::{TokenReviewClient, TokenReviewSettings};
use crate::commands::threads::spawn_thread;
use crate::config::konnectivity::AgentTokenConfig;
use crate::konnectivity::server::AgentTokens;
use crate::kubeclient::{CallPolicy, ClientHandle};
use crate::observe::Metrics;
use crate::process::Problem;

/// How long a review is valid: agents that reconnect often cost one review in this time.
const CACHE_TTL: Duration = Duration::from_secs(10);
/// Time for a review.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts the thread.
pub(super) fn start(api_server: ApiServerKubeconfig, config: &AgentTokenConfig) -> Result<AgentTokens, Problem> {
    let metrics = Metrics::new();
    let (remote, jobs) = ClientHandle::new();
    let settings = TokenReviewSettings {
        audiences: vec![config.audience.clone()],
        cache_ttl: CACHE_TTL,
        patience: CallPolicy::within(REVIEW_TIMEOUT),
        ..TokenReviewSettings::default()
    };
    let reviews = TokenReviewClient::new(remote, settings, &metrics)?;
    let sweeping = Arc::downgrade(&reviews);
    let ApiServerKubeconfig { source, kubeconfig, .. } = &api_server;
    tracing::info!(file = %source, server = %kubeconfig.server(), "tokens of agents are reviewed by an API server");
    spawn_thread("reviews", async move || {
        let client = api_server.client(metrics);
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
