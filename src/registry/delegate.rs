//! The delegate: the server for every path that no APIService serves (`--delegate-kubeconfig`), as a backend like any
//! other.

use std::path::PathBuf;
use std::sync::Arc;

use super::objects::api_service::{ApiService, ClientCertificate};
use super::objects::url_backend::UrlBackend;
use super::settings::Settings;
use super::static_backend::{self, BackendTrust};
use crate::egress::{Address, CONTROL_PLANE};
use crate::kubeclient::{KubeconfigServer, KubeconfigSource};
use crate::message::AllowedHeaders;
use crate::process::{Drain, FileWatcher, OnFailure, Problems, Publisher, ReloadReporter};

/// Name of the delegate in logs and metrics. No APIService can have it: all their names contain a dot.
pub const DELEGATE: &str = "delegate";

/// The delegate's kubeconfig, watched for changes. It was valid when opened.
pub struct Delegate {
    source: KubeconfigSource,
    settings: Settings,
    files: Vec<PathBuf>,
    follower: FileWatcher,
}

impl Delegate {
    /// Reads the server of the kubeconfig's current context, or of the pod's cluster. Its user is ignored: the gateway
    /// authenticates as a front proxy.
    ///
    /// # Errors
    /// All problems in what is read.
    pub fn open((source, settings): (KubeconfigSource, Settings)) -> Result<(Delegate, ApiService), Problems> {
        // Watched before the first read, so that no change is missed between them.
        let mut follower = FileWatcher::new(source.files());
        let server = KubeconfigServer::load(&source)?;
        follower.add(&server.files);
        let files = server.files.clone();
        let delegate = delegate_api_service(server, &settings);
        Ok((Delegate { source, settings, files, follower }, delegate))
    }

    /// Publishes the delegate whenever its kubeconfig changes, until the process ends. While it is invalid, the last
    /// valid one stays in use.
    pub async fn follow(mut self, publisher: Publisher<ApiService>, on_failure: OnFailure, mut drain: Drain) {
        let reader = publisher.reader();
        const UNUSABLE: &str = "the delegate's kubeconfig changed and is invalid; the last good one stays in use";
        let mut readings = ReloadReporter::new(UNUSABLE, on_failure);
        while self.follower.changed_before_end(&mut drain).await {
            let Some(server) = readings.report(KubeconfigServer::load(&self.source)) else { continue };
            if server.files != self.files {
                self.files.clone_from(&server.files);
                self.follower.add(&server.files);
            }
            let delegate = delegate_api_service(server, &self.settings);
            let before = reader.get();
            if delegate.manifest != before.manifest || delegate.backend != before.backend {
                tracing::info!(file = %self.source, "the delegate's kubeconfig changed and was reloaded");
                publisher.publish(Arc::new(delegate));
            }
        }
    }
}

/// The delegate as an APIService that serves no group.
fn delegate_api_service(server: KubeconfigServer, settings: &Settings) -> ApiService {
    let url = UrlBackend {
        address: Address::Tcp(server.destination.clone()),
        plaintext_protocol: None,
        prefix: server.prefix.clone(),
        egress_route: server.proxy.clone(),
    };
    // No limit per APIService: the delegate has its own limits, and serves nearly all requests. Half of the
    // gateway's limit (`--max-requests-inflight`) would only halve the throughput.
    let unbounded = Settings { default_max_inflight: 0, ..settings.clone() };
    let trust = BackendTrust { authorities: server.authorities, insecure_skip_verify: server.insecure_skip_verify };
    let mut delegate = static_backend::static_api_service(
        DELEGATE,
        url,
        Some(server.server_name),
        trust,
        ClientCertificate::Shared,
        &unbounded,
    );
    delegate.settings.egress = CONTROL_PLANE.to_owned();
    // The rules for extension API servers, no redirects and no cookies, are not for the cluster's own.
    delegate.settings.owns_origin = true;
    // Servers behind the delegate's proxy subresources may need these headers.
    delegate.settings.allowed_request_headers = AllowedHeaders::All;
    delegate
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Published;
    use crate::process::ShutdownPhase;
    use crate::registry::ApiServiceBackend;
    use crate::tls::Authority;

    fn kubeconfig(server: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: {server:?}, certificate-authority: ca.crt}}}}]\n\
             users: [{{name: u, user: {{exec: {{command: aws}}, client-key: missing}}}}]\n"
        )
    }

    #[test]
    fn delegate_reads_server_without_user() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(dir.path().join("ca.crt"), Authority::generate("api").pem()).unwrap();
        std::fs::write(&path, kubeconfig("https://api.example:6443/tenant/")).unwrap();
        let (_, delegate) = Delegate::open((path.clone().into(), Settings::default())).unwrap();
        let ApiServiceBackend::Url(url) = &delegate.backend else { panic!("no URL") };
        assert_eq!(url.to_string(), "https://api.example:6443/tenant");
        assert_eq!(delegate.settings.server_name.as_deref(), Some("api.example"));
        assert_eq!((delegate.settings.max_inflight, delegate.insecure_skip_tls_verify), (0, false));
        assert!(delegate.ca_bundle.is_some());
        assert_eq!(delegate.discovery_path(), "/api/");

        for (server, field) in [("http://a", "clusters[0].cluster.server"), ("", "clusters[0].cluster.server")] {
            std::fs::write(&path, kubeconfig(server)).unwrap();
            let problems = Delegate::open((path.clone().into(), Settings::default())).err().unwrap();
            assert_eq!(problems.0.len(), 1, "{problems}");
            assert!(problems.0[0].to_string().contains(field), "{problems}");
        }
    }

    #[tokio::test]
    async fn delegate_reload_takes_new_ca_and_ignores_invalid_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(dir.path().join("ca.crt"), Authority::generate("api").pem()).unwrap();
        std::fs::write(&path, kubeconfig("https://a")).unwrap();
        let (delegate, first) = Delegate::open((path.clone().into(), Settings::default())).unwrap();
        let before = first.manifest.clone();
        let (publisher, mut published) = Published::new(first);
        let (drainer, drain) = Drain::new();
        let (wrong, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let on_failure: OnFailure = Box::new(move |problems| {
            let _ = wrong.send(problems.0.len());
        });
        let scenario = async {
            std::fs::write(dir.path().join("ca.crt"), "nonsense").unwrap();
            assert_eq!(heard.recv().await, Some(1));
            assert_eq!(published.get().manifest, before);
            std::fs::write(dir.path().join("ca.crt"), Authority::generate("other").pem()).unwrap();
            assert_eq!(heard.recv().await, Some(0));
            while published.get().manifest == before {
                published.changed().await;
            }
            drainer.advance(ShutdownPhase::Ending);
        };
        tokio::join!(delegate.follow(publisher, on_failure, drain), scenario);
    }
}
