//! Conversion of the configuration to the settings of other modules, where they differ.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use crate::authenticate::{RequestHeaderConfig, RequestHeaderNames};
use crate::config::GatewayConfig;
use crate::config::gateway::{ProxyProtocolMode, ResolverChoice};
use crate::egress::{Dialer, EgressRoutes, Resolver};
use crate::listen::{self, ServerLimits};
use crate::observe::metrics::Metrics;
use crate::process::{Problems, Published};

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
