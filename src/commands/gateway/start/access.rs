//! Authentication, authorization and audit: from their files to what requests use.

use std::sync::Arc;

use super::files::{AuthenticationFiles, AuthorizationFiles};
use crate::authenticate::{self, Authenticator, GroupFilter, RequestHeaderConfig, ServiceAccountAuthenticator};
use crate::authorize::configuration::{AuthorizationConfigWatcher, AuthorizationWebhookSettings};
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::authorize::{
    AccessReviewClient, AuthorizationMode, Authorizer, AuthorizerChain, ChainEntry, Impersonator, RbacPolicies,
    RbacPolicy,
};
use crate::commands::gateway::control::ControlTasks;
use crate::commands::gateway::review_thread::DelegatedAuth;
use crate::commands::gateway::state::AccessControl;
use crate::config::GatewayConfig;
use crate::config::gateway::{AttributeSource, AuthorizerMode};
use crate::observe::Auditor;
use crate::observe::metrics::Metrics;
use crate::process::{OnFailure, Problem, Published};
use crate::tls::server::ClientTrust;

/// What authorizers read from files.
pub(super) struct AuthorizationSources {
    policies: Option<RbacPolicies>,
    /// kube-rbac-proxy rules that define the attributes of requests.
    pub(super) rules: Option<Published<RbacProxyRules>>,
    /// The chain of `--authorization-config`.
    chain: Option<Published<Vec<ChainEntry>>>,
}

/// The watcher of `--authorization-config`, to run on the thread of reviews.
pub(super) type ChainWatcher = (AuthorizationConfigWatcher, OnFailure);

impl AuthorizationFiles {
    /// Publishes the contents. The policy of stored objects is added to that of the file.
    ///
    /// # Errors
    /// A client of a webhook cannot be created.
    pub(super) fn publish(
        self,
        config: &GatewayConfig,
        stored_policy: Option<&Published<RbacPolicy>>,
        metrics: &Arc<Metrics>,
        tasks: &mut ControlTasks,
    ) -> Result<(AuthorizationSources, Option<ChainWatcher>), Problem> {
        let policy = self.policy.map(|(file, policy)| {
            policy.log();
            tasks.follow("policy", (file, policy))
        });
        // Stored objects first: most requests are allowed by those.
        let policies = RbacPolicies::new(stored_policy.cloned().into_iter().chain(policy));
        let by_rules = config.sidecar.attribute_source != AttributeSource::Request;
        let rules = match self.rules {
            Some((file, rules)) => {
                rules.log();
                Some(tasks.follow("config-file", (file, rules)))
            }
            None => by_rules.then(|| Published::fixed(RbacProxyRules::default())),
        };
        let webhooks = AuthorizationWebhookSettings {
            stale_allow_ttl: config.delegated_auth.access_reviews.stale_allow_ttl,
            max_timeout: config.forwarding.request_timeout,
            probes: config.delegated_auth.readiness_requires_reviews,
        };
        let chain = self.chain.map(|file| file.start(webhooks, policies.clone(), metrics)).transpose()?;
        let (chain, watcher) = chain.unzip();
        let watcher = watcher.map(|watcher| (watcher, tasks.file_errors().reporter("authorization")));
        Ok((AuthorizationSources { policies, rules, chain }, watcher))
    }
}

/// Builds what requests are authenticated, authorized and audited with.
///
/// # Errors
/// Secrets of the token cache cannot be generated.
pub(super) fn access_control(
    config: &GatewayConfig,
    files: AuthenticationFiles,
    request_headers: RequestHeaderConfig,
    trust: &Published<ClientTrust>,
    (delegated, service_accounts): (&DelegatedAuth, Option<&Arc<ServiceAccountAuthenticator>>),
    authorization: AuthorizationSources,
    (auditor, metrics, tasks): (Option<Arc<Auditor>>, &Arc<Metrics>, &mut ControlTasks),
) -> Result<AccessControl, Problem> {
    let tokens = files.tokens.map(|(file, tokens)| {
        tracing::info!(tokens = tokens.len(), "tokens read");
        tasks.follow("tokens", (file, tokens))
    });
    let (jwt, watcher) = files.configuration.map(|file| file.start(metrics)).transpose()?.unzip();
    if let Some(watcher) = watcher {
        let on_failure = tasks.file_errors().reporter("authentication");
        tasks.add("authentication", move |context| watcher.run(context.dialer, on_failure, context.drain));
    }
    let authenticator = Authenticator::new(authenticate::Settings {
        trust: trust.clone(),
        request_headers,
        tokens,
        service_accounts: service_accounts.cloned(),
        jwt,
        group_filter: group_filter(config),
        token_reviews: delegated.token_reviews.clone(),
        audiences: service_accounts.map_or_else(
            || config.delegated_auth.token_reviews.audiences.clone(),
            |accounts| accounts.issuer().settings().audiences.clone(),
        ),
        anonymous: config.authentication.anonymous,
        auth_header_names: config.sidecar.identity_headers.custom_names(),
    });
    let authorizer = authorizer(config, authorization, delegated.access_reviews.as_ref());
    Ok(AccessControl { authenticator, impersonator: Impersonator::new(metrics), authorizer, auditor })
}

/// The filter of the groups that backends get.
pub(super) fn group_filter(config: &GatewayConfig) -> GroupFilter {
    GroupFilter::new(&config.authentication.pass_on_groups, &config.authentication.drop_groups)
}

/// Builds the authorizer. `access_reviews` is set if a mode needs it.
fn authorizer(
    config: &GatewayConfig,
    sources: AuthorizationSources,
    access_reviews: Option<&Arc<AccessReviewClient>>,
) -> Authorizer {
    let policies = sources.policies.as_ref();
    let modes = config.authorization_modes.iter().filter_map(|mode| match mode {
        AuthorizerMode::AlwaysAllow => Some(AuthorizationMode::AlwaysAllow),
        AuthorizerMode::AlwaysDeny => Some(AuthorizationMode::AlwaysDeny),
        AuthorizerMode::Static(name) => policies.cloned().map(|policies| AuthorizationMode::Static(policies, name)),
        AuthorizerMode::Webhook => access_reviews.cloned().map(AuthorizationMode::Webhook),
    });
    // First: what the file allows needs no review.
    let modes = sources.rules.clone().map(AuthorizationMode::ConfigFile).into_iter().chain(modes);
    let chain = sources.chain.map_or_else(|| modes.collect::<Vec<_>>().into(), AuthorizerChain::Reloaded);
    let always_allow_paths = config.delegated_auth.always_allow_paths.clone();
    Authorizer { chain, always_allow_paths, privileged_groups: config.sidecar.privileged_groups.clone() }
}
