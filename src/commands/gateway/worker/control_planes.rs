//! The control planes on one worker thread: each has a worker of its own, with its own pools and caches, from its first
//! request on this thread to its end.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::task::{JoinHandle, spawn_local};

use super::{ConnectionLimits, GatewayWorker};
use crate::commands::gateway::control_planes::{ControlPlaneInstance, ControlPlaneTable};
use crate::commands::gateway::settings::EgressSettings;
use crate::commands::gateway::state::GatewayState;
use crate::listen::TlsConfigSource;
use crate::process::{Published, ShutdownPhase};

/// The workers of a thread: that of the gateway itself, and those of control planes.
pub(in crate::commands::gateway) struct GatewayWorkers {
    pub(in crate::commands::gateway) gateway: Rc<GatewayWorker>,
    control_planes: Option<ControlPlaneWorkers>,
}

/// The workers of control planes on a thread.
pub(super) struct ControlPlaneWorkers {
    pub(super) table: Published<ControlPlaneTable>,
    egress: EgressSettings,
    limits: ConnectionLimits,
    /// By the address of the state, which the worker holds.
    by_state: RefCell<HashMap<*const GatewayState, ControlPlaneWorker>>,
}

struct ControlPlaneWorker {
    worker: Rc<GatewayWorker>,
    /// The phase that the worker follows already.
    phase: ShutdownPhase,
    /// Wakes the watches of its objects.
    notifying: JoinHandle<()>,
}

impl Drop for ControlPlaneWorker {
    fn drop(&mut self) {
        self.notifying.abort();
    }
}

impl GatewayWorkers {
    pub(in crate::commands::gateway) fn new(
        gateway: Rc<GatewayWorker>,
        table: Option<Published<ControlPlaneTable>>,
        egress: EgressSettings,
        limits: ConnectionLimits,
    ) -> GatewayWorkers {
        let workers = |table| ControlPlaneWorkers { table, egress, limits, by_state: RefCell::default() };
        GatewayWorkers { gateway, control_planes: table.map(workers) }
    }

    pub(super) fn control_planes(&self) -> Option<&ControlPlaneWorkers> {
        self.control_planes.as_ref()
    }

    /// The TLS configuration of the next handshake: that of the control plane of the server name, else the gateway's.
    pub(in crate::commands::gateway) fn tls(&self) -> TlsConfigSource {
        let gateway = self.gateway.shared.serving.config.load().as_ref().clone();
        match &self.control_planes {
            None => TlsConfigSource::Fixed(gateway),
            Some(control_planes) => {
                let table = control_planes.table.clone();
                let select = move |name: Option<&str>| {
                    name.and_then(|name| tls_of_host(&table, name)).unwrap_or(gateway.clone())
                };
                TlsConfigSource::ByServerName(Rc::new(select))
            }
        }
    }

    /// Sweeps the workers, and lets those of ended control planes drain.
    pub(in crate::commands::gateway) fn sweep(&self) {
        self.gateway.sweep();
        let Some(control_planes) = &self.control_planes else { return };
        control_planes.by_state.borrow_mut().retain(|_, of| {
            of.worker.sweep();
            of.follow(of.worker.shared.drain.phase());
            // A connection that was used holds it, too.
            of.phase < ShutdownPhase::Ending || !of.worker.streams.is_empty() || Rc::strong_count(&of.worker) > 1
        });
    }

    /// Lets all workers follow the shutdown of the process.
    pub(in crate::commands::gateway) fn follow(&self, phase: ShutdownPhase) {
        self.gateway.follow(phase);
        if let Some(control_planes) = &self.control_planes {
            control_planes.by_state.borrow_mut().values_mut().for_each(|of| of.follow(phase));
        }
    }

    /// Whether no long-running response is left.
    pub(in crate::commands::gateway) fn is_idle(&self) -> bool {
        let others = self.control_planes.as_ref();
        self.gateway.streams.is_empty()
            && others.is_none_or(|of| of.by_state.borrow().values().all(|of| of.worker.streams.is_empty()))
    }
}

impl ControlPlaneWorkers {
    /// The worker of `instance` on this thread.
    pub(super) fn worker(&self, gateway: &GatewayWorker, instance: &ControlPlaneInstance) -> Rc<GatewayWorker> {
        let shared = &instance.parts.shared;
        if let Some(of) = self.by_state.borrow().get(&Arc::as_ptr(shared)) {
            return of.worker.clone();
        }
        let reports = gateway.reports.for_control_plane(&shared.metrics, &instance.name);
        let egress = EgressSettings { metrics: shared.metrics.clone(), ..self.egress.clone() };
        let worker = GatewayWorker::new(shared.clone(), reports, egress.dialer(), self.limits);
        let notifier = worker.notifier.clone();
        let notifying = spawn_local(async move { notifier.run().await });
        let of = ControlPlaneWorker { worker: worker.clone(), phase: ShutdownPhase::Serving, notifying };
        self.by_state.borrow_mut().insert(Arc::as_ptr(shared), of);
        worker
    }
}

impl ControlPlaneWorker {
    fn follow(&mut self, phase: ShutdownPhase) {
        if phase <= self.phase {
            return;
        }
        self.phase = phase;
        self.worker.follow(phase);
        if phase == ShutdownPhase::Draining {
            self.worker.close_connections();
        }
    }
}

fn tls_of_host(table: &Published<ControlPlaneTable>, host: &str) -> Option<Arc<ServerConfig>> {
    let instance = table.load().by_host(host)?.instance()?;
    let config = instance.parts.shared.serving.config.load();
    Some(config.as_ref().clone())
}
