//! The API server of a Konnectivity server or agent.

use std::rc::Rc;
use std::sync::Arc;

use crate::commands::gateway::EgressSettings;
use crate::config::gateway::ResolverChoice;
use crate::egress::{EgressRoutes, ProxyEnvironment};
use crate::kubeclient::{Client, Kubeconfig, KubeconfigSource};
use crate::observe::Metrics;
use crate::process::{Problem, Problems, Published, Publisher};
use crate::tls::CertificateInUse;

/// The flag of the kubeconfig.
const FLAG: &str = "--kubeconfig";

/// A kubeconfig with its source.
pub(in crate::commands) struct ApiServerKubeconfig {
    pub(super) source: KubeconfigSource,
    pub(super) kubeconfig: Kubeconfig,
    in_use: Publisher<Vec<CertificateInUse>>,
    routes: EgressRoutes,
}

impl ApiServerKubeconfig {
    /// Reads `source`. As in client-go, a proxy of the `environment` is on the way unless the kubeconfig names one.
    pub(super) fn load(
        source: KubeconfigSource,
        environment: Option<&ProxyEnvironment>,
    ) -> Result<ApiServerKubeconfig, Problems> {
        let kubeconfig = source.load().map_err(|mut problems| {
            if matches!(source, KubeconfigSource::InCluster) {
                let message =
                    "the API server is that of this pod's cluster, as no file is named; outside of a pod, name a kubeconfig";
                problems.0.push(Problem::new(FLAG, message));
            }
            problems
        })?;
        let (in_use, _) = Published::new(kubeconfig.certificates_in_use(FLAG));
        let routes = EgressRoutes::from_environment(environment)?;
        Ok(ApiServerKubeconfig { source, kubeconfig, in_use, routes })
    }

    /// The certificates in the kubeconfig, also when it changes.
    pub(super) fn certificates(&self) -> Published<Vec<CertificateInUse>> {
        self.in_use.reader()
    }

    /// A client on this thread, which must have a `LocalSet`. It follows the kubeconfig.
    pub(super) fn client(self, metrics: Arc<Metrics>) -> Rc<Client> {
        let routes = Published::fixed(self.routes);
        let egress = EgressSettings { resolver: ResolverChoice::System, routes, metrics };
        let client = Client::new(self.source, self.kubeconfig, egress.dialer());
        let in_use = self.in_use;
        let publish = move |kubeconfig: &Kubeconfig| in_use.publish(kubeconfig.certificates_in_use(FLAG).into());
        tokio::task::spawn_local(client.clone().follow_with(publish));
        client
    }
}
