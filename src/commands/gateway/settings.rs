//! Conversion of the configuration to the settings of other modules, where they differ.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::authenticate::{RequestHeaderConfig, RequestHeaderNames};
use crate::authorize::rbac_proxy::RbacProxyRules;
use crate::authorize::{self, AccessReviewClient, Authorizer, AuthorizerChain, ChainEntry, RbacPolicy};
use crate::config::GatewayConfig;
use crate::config::gateway::{AuthorizerMode, ProxyProtocolMode};
use crate::egress::{Dialer, EgressRoutes, Resolver};
use crate::listen::{self, ServerLimits};
use crate::process::{Problems, Published};

use crate::config::gateway::ResolverChoice;
use crate::observe::metrics::Metrics;

pub(super) fn limits(config: &GatewayConfig) -> ServerLimits {
    let speaking = |required: bool, trusted: &[IpNet]| {
        let trusted = trusted.to_vec();
        let trusted =
            Arc::new(move |address: IpAddr| trusted.iter().any(|network| network.contains(&address.to_canonical())));
        Some(listen::ProxyProtocol { required, trusted })
    };
    let proxy_protocol = match &config.serving.proxy_protocol {
        ProxyProtocolMode::Off => None,
        ProxyProtocolMode::Optional(trusted) => speaking(false, trusted),
        ProxyProtocolMode::Required(trusted) => speaking(true, trusted),
    };
    ServerLimits { proxy_protocol, ..config.limits.clone() }
}

pub(super) fn request_headers(config: &GatewayConfig) -> Result<RequestHeaderConfig, Problems> {
    let given = &config.authentication.request_header;
    let names = RequestHeaderNames::new(
        &given.username_headers,
        &given.uid_headers,
        &given.group_headers,
        &given.extra_prefixes,
    )?;
    Ok(RequestHeaderConfig { names, allowed_names: given.allowed_names.clone() })
}

/// Builds the authorizer. `policy` and `access_reviews` are set if a mode needs them, `followed` if a configuration
/// file defines the authorizer chain.
pub(super) fn authorizer(
    config: &GatewayConfig,
    policy: Option<&Published<RbacPolicy>>,
    access_reviews: Option<&Arc<AccessReviewClient>>,
    followed: Option<Published<Vec<ChainEntry>>>,
    rules: Option<&Published<RbacProxyRules>>,
) -> Authorizer {
    let modes = config.authorization_modes.iter().filter_map(|mode| match mode {
        AuthorizerMode::AlwaysAllow => Some(authorize::AuthorizationMode::AlwaysAllow),
        AuthorizerMode::AlwaysDeny => Some(authorize::AuthorizationMode::AlwaysDeny),
        AuthorizerMode::Static(name) => {
            policy.cloned().map(|policy| authorize::AuthorizationMode::Static(policy, name))
        }
        AuthorizerMode::Webhook => access_reviews.cloned().map(authorize::AuthorizationMode::Webhook),
    });
    // First: what the file allows needs no review.
    let modes = rules.cloned().map(authorize::AuthorizationMode::ConfigFile).into_iter().chain(modes);
    let always_allow_paths = config.delegated_auth.always_allow_paths.clone();
    let modes = followed.map_or_else(|| modes.collect::<Vec<_>>().into(), AuthorizerChain::Reloaded);
    Authorizer { chain: modes, always_allow_paths, privileged_groups: config.sidecar.privileged_groups.clone() }
}

/// Inputs of the dialer of each thread.
#[derive(Clone)]
pub(in crate::commands) struct EgressSettings {
    pub(in crate::commands) resolver: ResolverChoice,
    pub(in crate::commands) routes: Published<EgressRoutes>,
    pub(in crate::commands) metrics: Arc<Metrics>,
}

impl EgressSettings {
    /// Creates the dialer of this thread.
    pub(in crate::commands) fn dialer(&self) -> Dialer {
        Dialer::new(resolver(self.resolver), self.routes.clone(), &self.metrics)
    }
}

/// Creates the resolver of this thread; hickory needs one per thread.
fn resolver(choice: ResolverChoice) -> Resolver {
    match choice {
        ResolverChoice::System => Resolver::System,
        ResolverChoice::Hickory => Resolver::hickory().unwrap_or_else(|problem| {
            tracing::warn!(%problem, "hickory resolver unavailable; using the system resolver");
            Resolver::System
        }),
    }
}
