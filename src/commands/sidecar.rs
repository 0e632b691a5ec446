//! The sidecar: a gateway in front of servers that are configured one by one and need not be Kubernetes API servers.
//!
//! Authentication, authorization and forwarding are the gateway's code. Specific to the sidecar:
//!
//! * flags, including kube-rbac-proxy's: `config::sidecar`;
//! * routes, which are upstreams by path: `registry::SidecarUpstreams`;
//! * attributes from kube-rbac-proxy's authorization file, and open paths: `authorize::rbac_proxy`;
//! * differences in request handling: `gateway::request::policy`;
//! * readiness of the upstreams: `gateway::control::upstream_readiness`;
//! * a second port for health (`--proxy-endpoints-port`): `gateway::health_listener`;
//! * a serving certificate requested from the cluster: `kubeclient::certificate_request`.

use std::process::ExitCode;

use super::gateway;
use crate::config::{Diagnostics, GatewayConfig};

/// Runs the sidecar until a signal ends it; the exit status is the gateway's.
pub fn run(config: &GatewayConfig, mistakes: Diagnostics) -> ExitCode {
    gateway::run(config, mistakes, "sidecar")
}
