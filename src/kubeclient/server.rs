//! Where an API server is and whom to expect there: a kubeconfig without its user.

use std::path::{Path, PathBuf};

use super::kubeconfig::{Reading, Written};
use crate::egress::{BackendTls, Destination, Way};
use crate::process::Problems;
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// An API server that is spoken to as somebody its kubeconfig does not know.
pub struct Server {
    /// Name or address, and port.
    pub destination: Destination,
    /// What stands before every path; empty, or `/prefix`.
    pub prefix: String,
    /// The name its certificate must have.
    pub name: String,
    /// Who may vouch for it; the system's authorities when `None`.
    pub authorities: Option<Bundle>,
    /// Whether any certificate will do.
    pub insecure_skip_verify: bool,
    /// The proxy it is reached by, if the kubeconfig names one; then no other way counts.
    pub proxy: Option<Way>,
    /// The kubeconfig and every file of it that was read.
    pub files: Vec<PathBuf>,
}

impl Server {
    /// Reads the server of the current context of a kubeconfig. The user in it is not looked at: none of their
    /// credentials is to go there.
    ///
    /// # Errors
    /// All mistakes in what is read.
    pub fn load(path: &Path) -> Result<Server, Problems> {
        Written::read(path, false, |mut reading, written| {
            let server = reading.current_server(written);
            let Reading { problems, files, .. } = reading;
            let server = problems.or(server)?;
            server.map(|server| Server { files, ..server }).ok_or_else(Problems::default)
        })
    }
}

impl Reading<'_> {
    fn current_server(&mut self, written: &Written) -> Option<Server> {
        let (field, context) = self.context(written)?;
        let (field, cluster) = self.cluster(written, &field, context)?;
        let (server, authorities) = (self.server(&field, cluster), self.authorities(&field, cluster));
        let proxy = self.proxy(&field, cluster, authorities.as_ref());
        let ((destination, prefix, _), authorities) = (server?, authorities?);
        let (name, insecure_skip_verify) = (cluster.name_at(&destination), cluster.insecure_skip_tls_verify);
        // Only to learn now, not with the first request, whether it can be used.
        let alpn = Vec::new();
        let settings = ClientSettings { authorities: authorities.clone(), insecure_skip_verify, identity: None, alpn };
        if let Err(problem) = BackendTls::new(&name, settings) {
            return self.wrong(&field, problem);
        }
        Some(Server { destination, prefix, name, authorities, insecure_skip_verify, proxy: proxy?, files: Vec::new() })
    }
}
