//! Conversion of the configuration to the settings of other modules, where they differ.

use std::sync::Arc;

use crate::authenticate::{RequestHeaderNames, RequestHeaders};
use crate::authorize::rbac_proxy::Rules;
use crate::authorize::{self, AccessReviews, Authorizer, Link, Modes, Policy};
use crate::config::GatewayConfig;
use crate::config::gateway::{Mode, ProxyProtocol};
use crate::egress::{Cidr, Dialler, Resolver, Ways};
use crate::listen::{self, Limits};
use crate::process::{Problems, Published};

use crate::config::gateway::ResolverChoice;
use crate::observe::metrics::Metrics;

pub(super) fn limits(config: &GatewayConfig) -> Limits {
    let speaking = |required: bool, trusted: &[Cidr]| {
        let trusted = trusted.to_vec();
        let trusted = Arc::new(move |address| trusted.iter().any(|network| network.contains(address)));
        Some(listen::ProxyProtocol { required, trusted })
    };
    let proxy_protocol = match &config.serving.proxy_protocol {
        ProxyProtocol::Off => None,
        ProxyProtocol::Optional(trusted) => speaking(false, trusted),
        ProxyProtocol::Required(trusted) => speaking(true, trusted),
    };
    Limits { proxy_protocol, ..config.limits.clone() }
}

pub(super) fn request_headers(config: &GatewayConfig) -> Result<RequestHeaders, Problems> {
    let given = &config.who.request_header;
    let names = RequestHeaderNames::new(
        &given.username_headers,
        &given.uid_headers,
        &given.group_headers,
        &given.extra_prefixes,
    )?;
    Ok(RequestHeaders { names, allowed_names: given.allowed_names.clone() })
}

/// Builds the authorizer. `policy` and `access_reviews` are set if a mode needs them, `followed` if a configuration
/// file defines the authorizer chain.
pub(super) fn authorizer(
    config: &GatewayConfig,
    policy: Option<&Published<Policy>>,
    access_reviews: Option<&Arc<AccessReviews>>,
    followed: Option<Published<Vec<Link>>>,
    rules: Option<&Published<Rules>>,
) -> Authorizer {
    let modes = config.modes.iter().filter_map(|mode| match mode {
        Mode::AlwaysAllow => Some(authorize::Mode::AlwaysAllow),
        Mode::AlwaysDeny => Some(authorize::Mode::AlwaysDeny),
        Mode::Static(name) => policy.cloned().map(|policy| authorize::Mode::Static(policy, name)),
        Mode::Webhook => access_reviews.cloned().map(authorize::Mode::Webhook),
    });
    // First: what the file allows needs no review.
    let modes = rules.cloned().map(authorize::Mode::ConfigFile).into_iter().chain(modes);
    let always_allow_paths = config.delegated.always_allow_paths.clone();
    let modes = followed.map_or_else(|| modes.collect::<Vec<_>>().into(), Modes::Followed);
    Authorizer { modes, always_allow_paths, privileged_groups: config.guard.privileged_groups.clone() }
}

/// Inputs of the dialer of each thread.
#[derive(Clone)]
pub(in crate::roles) struct Egress {
    pub(in crate::roles) resolver: ResolverChoice,
    pub(in crate::roles) ways: Published<Ways>,
    pub(in crate::roles) metrics: Arc<Metrics>,
}

impl Egress {
    /// Creates the dialer of this thread.
    pub(in crate::roles) fn dialler(&self) -> Dialler {
        Dialler::new(resolver(self.resolver), self.ways.clone(), &self.metrics)
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
