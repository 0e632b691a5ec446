//! A kubeconfig: which API server, whom to expect there, and who we are to it.
//!
//! Read as `k8s.io/client-go/tools/clientcmd` reads it: unknown fields say nothing, relative paths are relative
//! to the file, data stands over a file, `tokenFile` over `token`. What we cannot do is an error that says so,
//! instead of a request without credentials.

mod chosen;
mod reading;
#[cfg(test)]
mod tests;
mod user;
mod written;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rustls_pki_types::UnixTime;

pub use chosen::Chosen;
pub(super) use reading::{Purpose, Reading};
use written::{Cluster, Content, Context, NamedCluster, NamedContext, NamedUser, User};
pub(super) use written::{Exec as ExecWritten, Written};

use super::plugin::{Granted, Plugin};
use crate::egress::{Destination, Way, Wire};
use crate::process::{Problem, Problems};
use crate::tls::{Bundle, KeyPair};

/// An API server and our credentials for it, checked and ready to use. Has no `Debug`: it holds a token.
#[derive(Clone)]
pub struct Kubeconfig {
    pub(super) destination: Destination,
    /// What stands before every path; empty, or `/prefix`.
    pub(super) prefix: String,
    pub(super) wire: Wire,
    /// The proxy it is reached by, if it names one; then no other way counts.
    pub(super) proxy: Option<Way>,
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    /// Whom we act for (`as` and what belongs to it), as headers.
    pub(super) impersonation: Vec<(HeaderName, HeaderValue)>,
    /// Who gives the credentials that are not written here.
    pub(super) plugin: Option<Plugin>,
    /// Our certificate, and who vouches for the API server: both are in `wire`, too.
    certificates: (Option<Arc<KeyPair>>, Option<Bundle>),
    /// The file itself and every file it names.
    pub(super) files: Vec<PathBuf>,
}

impl Kubeconfig {
    /// Reads the file's current context and every file that it names; all mistakes at once.
    pub fn load(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::read(&[path.to_owned()], Purpose::Decisions, &Chosen::default())
    }

    /// The same of somebody whose answers decide nothing: it may be `http`, if no credentials go there.
    pub(super) fn of_collector(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::read(&[path.to_owned()], Purpose::Collector, &Chosen::default())
    }

    /// What somebody uses on a machine of their own, whose requests decide nothing: it may be `http`, if no credentials
    /// go there, and programs and issuers may give the credentials.
    pub(super) fn of_person(paths: &[PathBuf], chosen: &Chosen) -> Result<Kubeconfig, Problems> {
        Kubeconfig::read(paths, Purpose::Person, chosen)
    }

    fn read(paths: &[PathBuf], purpose: Purpose, chosen: &Chosen) -> Result<Kubeconfig, Problems> {
        let written = if chosen.without_files { Written::read_if_any(paths) } else { Written::read(paths) }?;
        let reading = Reading { chosen: chosen.clone(), ..Reading::new(purpose, paths) };
        reading.all(&written)
    }

    /// What a pod knows of its cluster: the service account in `folder`, and variables of its `environment`.
    pub(super) fn in_cluster(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<Kubeconfig, Problems> {
        let written = Written::of_pod(folder, environment)?;
        Reading::new(Purpose::Decisions, &[]).all(&written)
    }

    /// The API server, as `host:port`.
    pub fn server(&self) -> &Destination {
        &self.destination
    }

    /// The path of the API server's URL; empty, or `/prefix`.
    pub fn path(&self) -> &str {
        &self.prefix
    }

    /// Certificates in it that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        let (identity, authorities) = &self.certificates;
        let ours = identity.as_ref().and_then(|pair| pair.untimely(now));
        let ours = ours.map(|problem| self.names(problem, "client-certificate"));
        let theirs = authorities.iter().flat_map(move |bundle| bundle.untimely(now));
        ours.into_iter().chain(theirs.map(|problem| self.names(problem, "certificate-authority")))
    }

    /// `problem` of a file, with the kubeconfig and the field that name it.
    fn names(&self, problem: Problem, field: &str) -> Problem {
        match self.files.first().map(|file| file.display().to_string()) {
            Some(file) if !problem.place.starts_with(&file) => {
                Problem { message: format!("{} ({field} in {file})", problem.message), ..problem }
            }
            _ => problem,
        }
    }

    /// What a person should know of who is to give our credentials, before they are needed.
    pub fn warning(&self) -> Option<Problem> {
        self.plugin.as_ref()?.warning()
    }

    /// The same with the credentials that its plugin gave. Those written in the file stand over them, as with client-go.
    pub(super) fn with(&self, granted: &Granted) -> Result<Kubeconfig, Problem> {
        let mut with = self.clone();
        if with.authorization.is_none() {
            with.authorization = granted.authorization.clone();
        }
        if let (Some(identity), Wire::Tls(tls)) = (&granted.identity, &self.wire) {
            with.wire = Wire::Tls(Arc::new(tls.or_as(identity)?));
        }
        Ok(with)
    }
}

impl Written {
    /// Makes what a pod knows of its cluster into a kubeconfig.
    pub(super) fn of_pod(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<Written, Problems> {
        const PLACE: &str = "in-cluster configuration";
        let (host, port) = (environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT"));
        if host.is_empty() || port.is_empty() {
            // In the words of client-go, which people search for.
            let message = "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT \
                           must be defined";
            return Err(Problem::new(PLACE, message).into());
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let name = || PLACE.to_owned();
        let cluster = Cluster {
            server: format!("https://{host}:{port}"),
            certificate_authority: "ca.crt".to_owned(),
            ..Cluster::default()
        };
        let context = Context { cluster: name(), user: name() };
        let content = Content {
            clusters: vec![NamedCluster { name: name(), cluster: Some(cluster) }],
            users: vec![NamedUser { name: name(), user: User { token_file: "token".to_owned(), ..User::default() } }],
            contexts: vec![NamedContext { name: name(), context: Some(context) }],
            current_context: name(),
        };
        Ok(Written::of(PLACE, folder, content))
    }
}
