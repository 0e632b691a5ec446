//! Starts the instance of a control plane. Its tasks run on threads that all control planes share.

use std::net::SocketAddr;
use std::sync::Arc;

use super::certificates::Certificates;
use super::files::GatewayFiles;
use super::instance::{Instance, InstanceInputs};
use crate::commands::gateway::control::ControlTasks;
use crate::commands::gateway::control_planes::ControlPlaneParts;
use crate::commands::gateway::settings::EgressSettings;
use crate::commands::threads::{SharedThreads, TaskThreads};
use crate::config::control_planes::{ControlPlaneConfig, ControlPlaneSelector};
use crate::observe::Auditor;
use crate::observe::access::AccessLog;
use crate::observe::trace::Tracer;
use crate::process::{Drain, Problems};
use crate::tls::server::ServingReaders;

/// Threads of each kind for the tasks of all control planes.
const MAX_SHARED_THREADS: usize = 4;

/// What control planes get from the gateway.
pub(super) struct ControlPlaneBuilder {
    /// With the front-proxy certificate of the gateway, for those that have none.
    pub(super) certificates: Certificates,
    /// The certificates and client CAs of the gateway.
    pub(super) serving: ServingReaders,
    pub(super) auditor: Option<Arc<Auditor>>,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) access_log: Arc<AccessLog>,
    /// With the metrics of the gateway.
    pub(super) egress: EgressSettings,
    pub(super) address: SocketAddr,
    pub(super) threads: Arc<SharedThreads>,
}

impl ControlPlaneBuilder {
    /// Starts a control plane that ends with `drain`. `number` distributes control planes over threads.
    ///
    /// # Errors
    /// Mistakes in the files that its configuration names, and other failures.
    pub(super) fn start(
        &self,
        control_plane: &ControlPlaneConfig,
        name: &Arc<str>,
        number: usize,
        drain: Drain,
    ) -> Result<ControlPlaneParts, Problems> {
        let config = &control_plane.gateway;
        let read = GatewayFiles::read(config).map_err(|problems| control_plane.locate(problems))?;
        let mut files = read.instance;
        let mut tasks = ControlTasks::default();
        let own = files.backends.identity.take();
        let certificates = self.certificates.for_control_plane(config, own, &mut tasks);
        let egress = EgressSettings { metrics: self.egress.metrics.for_control_plane(name), ..self.egress.clone() };
        files.serving.serve_certificates_of(self.serving.config.clone());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let inputs = InstanceInputs {
            files,
            certificates,
            // A relay of kcp's path mapping authenticates with the flags of the gateway.
            shared_trust: config.is_sidecar().then(|| self.serving.trust.clone()),
            auditor: self.auditor.clone(),
            tracer: self.tracer.clone(),
            access_log: self.access_log.clone(),
            egress,
            address: self.address,
            path_prefix: match &control_plane.selector {
                ControlPlaneSelector::Hosts(_) => None,
                ControlPlaneSelector::PathPrefix(prefix) => Some(prefix.as_str().into()),
            },
            store: None,
            tasks,
            threads: TaskThreads::Shared(self.threads.clone(), number % cores.min(MAX_SHARED_THREADS)),
            drain,
        };
        let Instance { shared, routing, file_errors, .. } = Instance::start(config, inputs)?;
        let (registry, availability) = (routing.registry, routing.availability);
        Ok(ControlPlaneParts { shared, registry, availability, file_errors })
    }
}
