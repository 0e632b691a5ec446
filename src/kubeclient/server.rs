//! Address and trust of an API server: a kubeconfig without its user.

use std::path::{Path, PathBuf};

use super::kubeconfig::{Purpose, Reading, Written};
use super::source::{SERVICE_ACCOUNT, Source};
use crate::egress::{BackendTls, Destination, Way};
use crate::process::Problems;
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// An API server, used with credentials other than those of its kubeconfig.
pub struct Server {
    /// Host and port.
    pub destination: Destination,
    /// Path prefix; empty, or `/prefix`.
    pub prefix: String,
    /// Name that its certificate must have.
    pub name: String,
    /// CA certificates that verify it; the system's when `None`.
    pub authorities: Option<Bundle>,
    /// Whether any certificate is accepted.
    pub insecure_skip_verify: bool,
    /// The `proxy-url` of the kubeconfig. It takes precedence over any other egress route.
    pub proxy: Option<Way>,
    /// The kubeconfig and the files it refers to.
    pub files: Vec<PathBuf>,
}

impl Server {
    /// Reads the server of the current context of a kubeconfig, or of the pod's cluster. Its user is not read: the
    /// credentials must not be sent to this server.
    ///
    /// # Errors
    /// All problems in what is read.
    pub fn load(source: &Source) -> Result<Server, Problems> {
        match source {
            Source::InCluster => Server::of_pod(Path::new(SERVICE_ACCOUNT), &Source::variable),
            source => Server::current(&Written::read(source.files())?, source.files()),
        }
    }

    fn of_pod(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<Server, Problems> {
        Server::current(&Written::of_pod(folder, environment)?, &[])
    }

    fn current(written: &Written, files: &[PathBuf]) -> Result<Server, Problems> {
        let mut reading = Reading::new(Purpose::Decisions, files);
        let server = reading.current_server(written);
        let Reading { problems, files, .. } = reading;
        let server = problems.or(server)?;
        server.map(|server| Server { files, ..server }).ok_or_else(Problems::default)
    }
}

impl Reading {
    fn current_server(&mut self, written: &Written) -> Option<Server> {
        let (at, context) = self.context(written)?;
        let (at, cluster) = self.cluster(written, &at, context)?;
        let cluster = &*cluster;
        let (server, authorities) = (self.server(&at, cluster), self.authorities(&at, cluster));
        let proxy = self.proxy(&at, cluster, authorities.as_ref());
        let ((destination, prefix, _), authorities) = (server?, authorities?);
        let (name, insecure_skip_verify) = (cluster.name_at(&destination), cluster.insecure_skip_tls_verify);
        // Validates the TLS settings now, not with the first request.
        let alpn = Vec::new();
        let settings = ClientSettings { authorities: authorities.clone(), insecure_skip_verify, identity: None, alpn };
        if let Err(problem) = BackendTls::new(&name, settings) {
            return self.wrong(&at, problem);
        }
        Some(Server { destination, prefix, name, authorities, insecure_skip_verify, proxy: proxy?, files: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::Authority;

    #[test]
    fn that_of_a_pod_needs_no_account() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("ca.crt"), Authority::made("cluster").pem()).unwrap();
        let load = |host: &str| {
            let value = |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => host.to_owned(),
                "KUBERNETES_SERVICE_PORT" => "6443".to_owned(),
                _ => String::new(),
            };
            Server::of_pod(folder.path(), &value)
        };
        // Without a token file, which is not read.
        let server = load("10.0.0.1").ok().unwrap();
        assert_eq!((server.destination.to_string().as_str(), server.name.as_str()), ("10.0.0.1:6443", "10.0.0.1"));
        assert_eq!(server.files, [folder.path().join("ca.crt")]);
        assert!(server.authorities.is_some() && !server.insecure_skip_verify);
        let why = load("").err().unwrap().to_string();
        assert!(why.contains("KUBERNETES_SERVICE_HOST"), "{why}");
    }
}
