//! Address and trust of an API server: a kubeconfig without its user.

use std::path::{Path, PathBuf};

use super::kubeconfig::{KubeconfigPurpose, KubeconfigResolver, RawKubeconfig};
use super::kubeconfig_source::{KubeconfigSource, SERVICE_ACCOUNT};
use crate::egress::{BackendTls, Destination, EgressRoute};
use crate::process::Problems;
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// An API server, used with credentials other than those of its kubeconfig.
pub struct KubeconfigServer {
    /// Host and port.
    pub destination: Destination,
    /// Path prefix; empty, or `/prefix`.
    pub prefix: String,
    /// Name that its certificate must have.
    pub server_name: String,
    /// CA certificates that verify it; the system's when `None`.
    pub authorities: Option<Bundle>,
    /// Whether any certificate is accepted.
    pub insecure_skip_verify: bool,
    /// The `proxy-url` of the kubeconfig. It takes precedence over any other egress route.
    pub proxy: Option<EgressRoute>,
    /// The kubeconfig and the files it refers to.
    pub files: Vec<PathBuf>,
}

impl KubeconfigServer {
    /// Reads the server of the current context of a kubeconfig, or of the pod's cluster. Its user is not read: the
    /// credentials must not be sent to this server.
    ///
    /// # Errors
    /// All problems in what is read.
    pub fn load(source: &KubeconfigSource) -> Result<KubeconfigServer, Problems> {
        match source {
            KubeconfigSource::InCluster => {
                KubeconfigServer::in_cluster(Path::new(SERVICE_ACCOUNT), &KubeconfigSource::environment_variable)
            }
            source => KubeconfigServer::from_current_context(&RawKubeconfig::load(source.files())?, source.files()),
        }
    }

    fn in_cluster(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<KubeconfigServer, Problems> {
        KubeconfigServer::from_current_context(&RawKubeconfig::in_cluster(folder, environment)?, &[])
    }

    fn from_current_context(raw: &RawKubeconfig, files: &[PathBuf]) -> Result<KubeconfigServer, Problems> {
        let mut reading = KubeconfigResolver::new(KubeconfigPurpose::AccessControl, files);
        let server = reading.resolve_server(raw);
        let KubeconfigResolver { problems, files, .. } = reading;
        let server = problems.into_result(server)?;
        server.map(|server| KubeconfigServer { files, ..server }).ok_or_else(Problems::default)
    }
}

impl KubeconfigResolver {
    fn resolve_server(&mut self, raw: &RawKubeconfig) -> Option<KubeconfigServer> {
        let (at, context) = self.context(raw)?;
        let (at, cluster) = self.cluster(raw, &at, context)?;
        let cluster = &*cluster;
        let (server, authorities) = (self.parse_server(&at, cluster), self.load_authorities(&at, cluster));
        let proxy = self.proxy(&at, cluster, authorities.as_ref());
        let ((destination, prefix, _), authorities) = (server?, authorities?);
        let (name, insecure_skip_verify) = (cluster.server_name(&destination), cluster.insecure_skip_tls_verify);
        // Validates the TLS settings now, not with the first request.
        let alpn = Vec::new();
        let settings = ClientSettings { ca_bundle: authorities.clone(), insecure_skip_verify, identity: None, alpn };
        if let Err(problem) = BackendTls::new(&name, settings) {
            return self.report(&at, problem);
        }
        Some(KubeconfigServer {
            destination,
            prefix,
            server_name: name,
            authorities,
            insecure_skip_verify,
            proxy: proxy?,
            files: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authority;

    #[test]
    fn kubeconfig_server_in_cluster_needs_no_token() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.crt"), Authority::generate("cluster").pem()).unwrap();
        let load = |host: &str| {
            let value = |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => host.to_owned(),
                "KUBERNETES_SERVICE_PORT" => "6443".to_owned(),
                _ => String::new(),
            };
            KubeconfigServer::in_cluster(folder.path(), &value)
        };
        // Without a token file, which is not read.
        let server = load("10.0.0.1").ok().unwrap();
        assert_eq!(
            (server.destination.to_string().as_str(), server.server_name.as_str()),
            ("10.0.0.1:6443", "10.0.0.1")
        );
        assert_eq!(server.files, [folder.path().join("ca.crt")]);
        assert!(server.authorities.is_some() && !server.insecure_skip_verify);
        let why = load("").err().unwrap().to_string();
        assert!(why.contains("KUBERNETES_SERVICE_HOST"), "{why}");
    }
}
