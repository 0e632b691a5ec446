//! The API server of a Konnectivity server or agent.

use std::rc::Rc;
use std::sync::Arc;

use crate::commands::gateway::EgressSettings;
use crate::config::gateway::ResolverChoice;
use crate::egress::EgressRoutes;
use crate::kubeclient::{Client, Kubeconfig, KubeconfigSource};
use crate::observe::Metrics;
use crate::process::{Problems, Published};

/// A kubeconfig with its source.
pub(in crate::commands) struct ApiServerKubeconfig {
    pub(super) source: KubeconfigSource,
    pub(super) kubeconfig: Kubeconfig,
}

impl ApiServerKubeconfig {
    pub(super) fn load(source: KubeconfigSource) -> Result<ApiServerKubeconfig, Problems> {
        let kubeconfig = source.load()?;
        Ok(ApiServerKubeconfig { source, kubeconfig })
    }

    /// A client on this thread, which must have a `LocalSet`. It follows the kubeconfig.
    pub(super) fn client(self, metrics: Arc<Metrics>) -> Rc<Client> {
        let routes = Published::fixed(EgressRoutes::default());
        let egress = EgressSettings { resolver: ResolverChoice::System, routes, metrics };
        let client = Client::new(self.source, self.kubeconfig, egress.dialer());
        tokio::task::spawn_local(client.clone().follow());
        client
    }
}
