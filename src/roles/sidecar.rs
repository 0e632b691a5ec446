//! The sidecar: a gateway in front of servers that are named one by one, and that need not be Kubernetes'.
//!
//! It is the gateway's machinery with another table: who asks, whether they may, and how it is relayed is the same code.
//! What is its own:
//!
//! * its flags and what they mean, kube-rbac-proxy's among them: `config::sidecar`;
//! * the routes, which are upstreams by path: `registry::upstreams`;
//! * what is asked about a request by kube-rbac-proxy's file, and which paths are open: `authorize::rbac_proxy`;
//! * where the way of a request is another: `gateway::guarding`;
//! * whether the upstreams can be reached: `gateway::reached`;
//! * a second port for health (`--proxy-endpoints-port`): `gateway::endpoints`;
//! * a serving certificate that is asked of the cluster: `kubeclient::certificate_request`.

use std::process::ExitCode;

use super::gateway;
use crate::config::{GatewayConfig, Mistakes};

/// Runs the sidecar until a signal ends it; exit statuses are the gateway's.
pub fn run(config: &GatewayConfig, mistakes: Mistakes) -> ExitCode {
    gateway::run(config, mistakes, "sidecar")
}
