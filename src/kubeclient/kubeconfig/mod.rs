//! Kubeconfigs: API server, trust and credentials.
//!
//! Read as by `k8s.io/client-go/tools/clientcmd`: unknown fields are ignored, relative paths are relative to the file,
//! data takes precedence over a file, `tokenFile` over `token`. Unsupported credentials are an error, not a request
//! without credentials.

mod overrides;
mod raw;
mod resolve;
#[cfg(test)]
mod tests;
mod user;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use rustls_pki_types::UnixTime;

pub use overrides::ConfigOverrides;
pub(super) use raw::RawKubeconfig;
use raw::{AuthInfo, Context, KubeconfigCluster, KubeconfigContent, NamedCluster, NamedContext, NamedUser};
pub(super) use resolve::{KubeconfigPurpose, KubeconfigResolver};

use super::plugin::{CredentialPlugin, PluginCredentials};
use crate::egress::{Destination, EgressRoute, TransportSecurity};
use crate::process::{Problem, Problems};
use crate::tls::{Bundle, CertificateInUse, KeyPair};

/// A validated kubeconfig: an API server and credentials for it. Has no `Debug`: it holds a token.
#[derive(Clone)]
pub struct Kubeconfig {
    pub(super) destination: Destination,
    /// Path prefix; empty, or `/prefix`.
    pub(super) prefix: String,
    pub(super) wire: TransportSecurity,
    /// Its `proxy-url`. It takes precedence over any other egress route.
    pub(super) proxy: Option<EgressRoute>,
    /// Marked as sensitive.
    pub(super) authorization: Option<HeaderValue>,
    /// Impersonation headers (`as`, `as-uid`, `as-groups`, `as-user-extra`).
    pub(super) impersonation: Vec<(HeaderName, HeaderValue)>,
    /// Plugin for credentials that are not in the file.
    pub(super) plugin: Option<CredentialPlugin>,
    /// The client certificate and the CA certificates. Both are in `wire`, too.
    certificates: (Option<Arc<KeyPair>>, Option<Bundle>),
    /// The file itself and the files it refers to.
    pub(super) files: Vec<PathBuf>,
}

impl Kubeconfig {
    /// Reads the file's current context and the files it refers to. The error holds all problems.
    pub fn load(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::load_for(&[path.to_owned()], KubeconfigPurpose::AccessControl, &ConfigOverrides::default())
    }

    /// Reads the kubeconfig of an event sink. It may use `http`, if no credentials are sent.
    pub(super) fn load_event_sink(path: &Path) -> Result<Kubeconfig, Problems> {
        Kubeconfig::load_for(&[path.to_owned()], KubeconfigPurpose::EventSink, &ConfigOverrides::default())
    }

    /// Reads the kubeconfig of a local user, as kubectl. It may use credential plugins, and `http` if no credentials
    /// are sent.
    pub(super) fn load_for_local_user(paths: &[PathBuf], chosen: &ConfigOverrides) -> Result<Kubeconfig, Problems> {
        Kubeconfig::load_for(paths, KubeconfigPurpose::LocalUser, chosen)
    }

    fn load_for(
        paths: &[PathBuf],
        purpose: KubeconfigPurpose,
        chosen: &ConfigOverrides,
    ) -> Result<Kubeconfig, Problems> {
        let raw =
            if chosen.allows_missing_files { RawKubeconfig::load_if_any(paths) } else { RawKubeconfig::load(paths) }?;
        let reading = KubeconfigResolver { overrides: chosen.clone(), ..KubeconfigResolver::new(purpose, paths) };
        reading.resolve(&raw)
    }

    /// The kubeconfig of a pod: the service account in `folder`, and variables of `environment`.
    pub(super) fn in_cluster(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<Kubeconfig, Problems> {
        let raw = RawKubeconfig::in_cluster(folder, environment)?;
        KubeconfigResolver::new(KubeconfigPurpose::AccessControl, &[]).resolve(&raw)
    }

    /// The API server, as `host:port`.
    pub fn server(&self) -> &Destination {
        &self.destination
    }

    /// The path of the API server's URL; empty, or `/prefix`.
    pub fn path(&self) -> &str {
        &self.prefix
    }

    /// The client certificate and the CA bundle in it, which `flag` names.
    pub fn certificates_in_use(&self, flag: &'static str) -> Vec<CertificateInUse> {
        let (identity, authorities) = &self.certificates;
        let identity = identity.as_ref().map(|pair| CertificateInUse::new(pair.location().into(), flag, pair.info()));
        let authorities =
            authorities.as_ref().and_then(|bundle| CertificateInUse::from_bundle(bundle.source(), flag, bundle));
        identity.into_iter().chain(authorities).collect()
    }

    /// Problems of certificates in it that are not valid `now`.
    pub fn untimely(&self, now: UnixTime) -> impl Iterator<Item = Problem> {
        let (identity, authorities) = &self.certificates;
        let own_problem = identity.as_ref().and_then(|pair| pair.validity_problem(now));
        let own_problem = own_problem.map(|problem| self.names(problem, "client-certificate"));
        let ca_problems = authorities.iter().flat_map(move |bundle| bundle.validity_problems(now));
        own_problem.into_iter().chain(ca_problems.map(|problem| self.names(problem, "certificate-authority")))
    }

    /// `problem` of a file, with the kubeconfig and the field that name it.
    fn names(&self, problem: Problem, field: &str) -> Problem {
        match self.files.first().map(|file| file.display().to_string()) {
            Some(file) if !problem.location.starts_with(&file) => {
                Problem { message: format!("{} ({field} in {file})", problem.message), ..problem }
            }
            _ => problem,
        }
    }

    /// A warning of the credential plugin, before it is needed.
    pub fn warning(&self) -> Option<Problem> {
        self.plugin.as_ref()?.warning()
    }

    /// The kubeconfig with credentials of its plugin. Those in the file take precedence, as in client-go.
    pub(super) fn with_credentials(&self, granted: &PluginCredentials) -> Result<Kubeconfig, Problem> {
        let mut with = self.clone();
        if with.authorization.is_none() {
            with.authorization = granted.authorization.clone();
        }
        if let (Some(identity), TransportSecurity::Tls(tls)) = (&granted.identity, &self.wire) {
            with.wire = TransportSecurity::Tls(Arc::new(tls.with_default_identity(identity)?));
        }
        Ok(with)
    }
}

impl RawKubeconfig {
    /// Builds a kubeconfig of the service account and environment of a pod.
    pub(super) fn in_cluster(folder: &Path, environment: &dyn Fn(&str) -> String) -> Result<RawKubeconfig, Problems> {
        const PLACE: &str = "in-cluster configuration";
        let (host, port) = (environment("KUBERNETES_SERVICE_HOST"), environment("KUBERNETES_SERVICE_PORT"));
        if host.is_empty() || port.is_empty() {
            // client-go's message.
            let message = "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT \
                           must be defined";
            return Err(Problem::new(PLACE, message).into());
        }
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let name = || PLACE.to_owned();
        let cluster = KubeconfigCluster {
            server: format!("https://{host}:{port}"),
            certificate_authority: "ca.crt".to_owned(),
            ..KubeconfigCluster::default()
        };
        let context = Context { cluster: name(), user: name() };
        let content = KubeconfigContent {
            clusters: vec![NamedCluster { name: name(), cluster: Some(cluster) }],
            users: vec![NamedUser {
                name: name(),
                user: AuthInfo { token_file: "token".to_owned(), ..AuthInfo::default() },
            }],
            contexts: vec![NamedContext { name: name(), context: Some(context) }],
            current_context: name(),
        };
        Ok(RawKubeconfig::from_content(PLACE, folder, content))
    }
}
