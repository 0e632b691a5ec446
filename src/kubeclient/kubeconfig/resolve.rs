//! Resolves a raw kubeconfig: the current context, and its cluster.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use http::Uri;

use super::raw::{AuthInfo, Context, FieldLocation, KubeconfigCluster, RawKubeconfig};
use super::{ConfigOverrides, Kubeconfig};
use crate::egress::{BackendTls, Destination, EgressRoute, Host, HttpVersion, ProxyUrl, TransportSecurity};
use crate::kubeclient::plugin::CredentialPlugin;
use crate::message::split_authority;
use crate::process::{Problem, Problems};
use crate::tls::Bundle;
use crate::tls::client::ClientSettings;

/// Name of a cluster's extension with configuration for exec plugins.
const EXEC_EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Purpose of a kubeconfig, which determines what it may contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kubeclient) enum KubeconfigPurpose {
    /// The server's responses decide authentication and authorization.
    AccessControl,
    /// The server is an event sink.
    EventSink,
    /// The server is used by a local user.
    LocalUser,
}

pub(in crate::kubeclient) struct KubeconfigResolver {
    pub(in crate::kubeclient) problems: Problems,
    pub(in crate::kubeclient) files: Vec<PathBuf>,
    pub(super) purpose: KubeconfigPurpose,
    pub(super) overrides: ConfigOverrides,
}

impl KubeconfigResolver {
    /// A resolver for a kubeconfig in `files`.
    pub(in crate::kubeclient) fn new(purpose: KubeconfigPurpose, files: &[PathBuf]) -> KubeconfigResolver {
        KubeconfigResolver {
            problems: Problems::default(),
            files: files.to_owned(),
            purpose,
            overrides: ConfigOverrides::default(),
        }
    }

    pub(super) fn resolve(mut self, raw: &RawKubeconfig) -> Result<Kubeconfig, Problems> {
        let read = self.resolve_current(raw);
        let KubeconfigResolver { problems, files, .. } = self;
        let read = problems.into_result(read)?;
        // Without a problem there is always a result.
        read.map(|read| Kubeconfig { files, ..read }).ok_or_else(Problems::default)
    }

    fn resolve_current(&mut self, raw: &RawKubeconfig) -> Option<Kubeconfig> {
        let none = Context::default();
        let (context_at, context) = match raw.current_context() {
            // As client-go: with a server, no context is required.
            (at, "") if self.overrides.context.is_none() && self.overrides.server.is_some() => (at, &none),
            _ => self.context(raw)?,
        };
        let cluster = self.cluster(raw, &context_at, context);
        let no_user = AuthInfo::default();
        let user_name = self.overrides.user.clone().unwrap_or_else(|| context.user.clone());
        let credentials = match raw.user(&user_name) {
            Some((at, user)) => {
                let user = self.overrides.apply_to_user(user);
                self.credentials(&at, &user_name, &user)
            }
            // As client-go: without a user, there are no credentials.
            None if user_name.is_empty() => {
                let user = self.overrides.apply_to_user(&no_user);
                self.credentials(&context_at, &user_name, &user)
            }
            None => self.report(&context_at.child("user"), format_args!("there is no single user {user_name:?}")),
        };
        let (at, cluster) = cluster?;
        let cluster = &*cluster;
        let server = self.parse_server(&at, cluster);
        let authorities = self.load_authorities(&at, cluster);
        let proxy = self.proxy(&at, cluster, authorities.as_ref());
        let ((destination, prefix, plain), authorities, mut credentials) = (server?, authorities?, credentials?);
        if plain && self.overrides.server.is_some() && credentials.has_secrets() && !self.overrides.has_credentials() {
            // As client-go: the credentials are for another server.
            tracing::warn!(server = cluster.server, "the credentials of the kubeconfig are not sent over http");
            credentials = credentials.without_secrets();
        }
        if plain && credentials.has_secrets() {
            let why = "must be https: the user's credentials are not sent unencrypted";
            return self.report(&at.child("server"), why);
        }
        let plugin = match credentials.plugin {
            Some(CredentialPlugin::Exec(exec)) if exec.provides_cluster_info => {
                let cluster_info = self.exec_cluster_info(&at, cluster);
                Some(CredentialPlugin::Exec(Arc::new(exec.with_cluster_info(cluster_info))))
            }
            plugin => plugin,
        };
        let certificates = (credentials.identity.clone(), authorities.clone());
        let settings = ClientSettings {
            ca_bundle: authorities,
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            identity: credentials.identity,
            alpn: Vec::new(),
        };
        let wire = if plain {
            TransportSecurity::Plaintext(HttpVersion::Http1)
        } else {
            match BackendTls::new(&cluster.server_name(&destination), settings) {
                Ok(tls) => TransportSecurity::Tls(Arc::new(tls)),
                Err(problem) => return self.report(&at, problem),
            }
        };
        Some(Kubeconfig {
            destination,
            prefix,
            wire,
            proxy: proxy?,
            authorization: credentials.authorization,
            impersonation: credentials.impersonation,
            plugin,
            certificates,
            files: Vec::new(),
        })
    }

    pub(in crate::kubeclient) fn context<'w>(
        &mut self,
        raw: &'w RawKubeconfig,
    ) -> Option<(FieldLocation<'w>, &'w Context)> {
        let (at, current) = raw.current_context();
        let name = self.overrides.context.clone().unwrap_or_else(|| current.to_owned());
        if name.is_empty() {
            return self.report(&at, "is not set; it must name one of the contexts");
        }
        match raw.context(&name) {
            Some((at, Some(context))) => Some((at, context)),
            Some((at, None)) => self.report(&at, "is missing"),
            None => self.report(&at, format_args!("there is no single context {name:?}{}", raw.describe_contexts())),
        }
    }

    pub(in crate::kubeclient) fn cluster<'w>(
        &mut self,
        raw: &'w RawKubeconfig,
        at: &FieldLocation<'w>,
        context: &Context,
    ) -> Option<(FieldLocation<'w>, Cow<'w, KubeconfigCluster>)> {
        let name = self.overrides.cluster.clone().unwrap_or_else(|| context.cluster.clone());
        match raw.cluster(&name) {
            Some((at, Some(cluster))) => Some((at, self.overrides.apply_to_cluster(cluster))),
            None if name.is_empty() && self.overrides.server.is_some() => {
                let cluster = self.overrides.apply_to_cluster(&KubeconfigCluster::default()).into_owned();
                Some((at.clone(), Cow::Owned(cluster)))
            }
            _ => self.report(&at.child("cluster"), format_args!("there is no single cluster {name:?}")),
        }
    }

    /// Parses the server's URL into destination, path prefix, and whether it is without TLS.
    pub(in crate::kubeclient) fn parse_server(
        &mut self,
        at: &FieldLocation<'_>,
        cluster: &KubeconfigCluster,
    ) -> Option<(Destination, String, bool)> {
        let at = at.child("server");
        let uri: Uri = match cluster.server.parse() {
            Ok(uri) => uri,
            Err(_) => {
                return self.report(&at, format_args!("{:?}: use a URL such as https://host:6443", cluster.server));
            }
        };
        let plain = uri.scheme_str() == Some("http");
        match uri.scheme_str() {
            Some("https") => {}
            Some("http") if self.purpose != KubeconfigPurpose::AccessControl => {}
            Some("http") => return self.report(&at, "must be https: its responses decide authorization"),
            _ => return self.report(&at, format_args!("{:?}: use a URL such as https://host:6443", cluster.server)),
        }
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return self.report(&at, "must be a host with an optional port and path");
        }
        let Some((host, port)) = uri.authority().and_then(|authority| split_authority(authority.as_str())) else {
            return self.report(&at, format_args!("{:?}: its host or port is not valid", cluster.server));
        };
        let host = host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
        let destination = Destination { host, port: port.unwrap_or(if plain { 80 } else { 443 }) };
        Some((destination, uri.path().trim_end_matches('/').to_owned(), plain))
    }

    /// The CA certificates that verify the API server. Inner `None`: the system's.
    pub(in crate::kubeclient) fn load_authorities(
        &mut self,
        at: &FieldLocation<'_>,
        cluster: &KubeconfigCluster,
    ) -> Option<Option<Bundle>> {
        let given = self.authority_pem(at, cluster)?;
        if cluster.insecure_skip_tls_verify {
            if given.is_some() {
                // client-go's message.
                let why = "specifying a root certificates file with the insecure flag is not allowed";
                return self.report(&at.child("insecure-skip-tls-verify"), why);
            }
            let consequence = match self.purpose {
                KubeconfigPurpose::LocalUser => "can read and change all requests and responses",
                KubeconfigPurpose::AccessControl | KubeconfigPurpose::EventSink => "can forge its responses",
            };
            tracing::warn!(
                file = at.location.display_name,
                "insecure-skip-tls-verify: the API server's certificate is not verified; an impostor {consequence}"
            );
        }
        let Some((origin, pem)) = given else { return Some(None) };
        self.problems.collect(Bundle::from_partial_pem(&pem, origin)).map(Some)
    }

    fn authority_pem(
        &mut self,
        at: &FieldLocation<'_>,
        cluster: &KubeconfigCluster,
    ) -> Option<Option<(String, Vec<u8>)>> {
        let at = at.child("certificate-authority");
        self.load_content(&at, &cluster.certificate_authority, &cluster.certificate_authority_data)
    }

    /// Information about the cluster for exec plugins (`k8s.io/client-go/pkg/apis/clientauthentication/v1`,
    /// `KubeconfigCluster`).
    fn exec_cluster_info(&mut self, at: &FieldLocation<'_>, cluster: &KubeconfigCluster) -> serde_json::Value {
        let mut info = serde_json::Map::new();
        let mut tell = |name: &str, value: serde_json::Value| info.insert(name.to_owned(), value);
        tell("server", cluster.server.clone().into());
        if !cluster.tls_server_name.is_empty() {
            tell("tls-server-name", cluster.tls_server_name.clone().into());
        }
        if cluster.insecure_skip_tls_verify {
            tell("insecure-skip-tls-verify", true.into());
        }
        if let Some(Some((_, pem))) = self.authority_pem(at, cluster) {
            tell("certificate-authority-data", base64::engine::general_purpose::STANDARD.encode(pem).into());
        }
        if !cluster.proxy_url.is_empty() {
            tell("proxy-url", cluster.proxy_url.clone().into());
        }
        if cluster.disable_compression {
            tell("disable-compression", true.into());
        }
        if let Some(more) = cluster.extensions.iter().find(|extension| extension.name == EXEC_EXTENSION) {
            tell("config", more.extension.clone());
        }
        info.into()
    }

    /// The egress route by `proxy-url`. Inner `None`: no proxy is configured.
    ///
    /// As in client-go, the TLS settings for the API server also apply to an https proxy. Other than there, the proxy
    /// does not get the user's client certificate.
    pub(in crate::kubeclient) fn proxy(
        &mut self,
        at: &FieldLocation<'_>,
        cluster: &KubeconfigCluster,
        authorities: Option<&Option<Bundle>>,
    ) -> Option<Option<EgressRoute>> {
        if cluster.proxy_url.is_empty() {
            return Some(None);
        }
        let at = at.child("proxy-url");
        let url = match ProxyUrl::from_kubeconfig(&cluster.proxy_url) {
            Ok(url) => url,
            Err(why) => return self.report(&at, why),
        };
        let settings = ClientSettings {
            ca_bundle: authorities?.clone(),
            insecure_skip_verify: cluster.insecure_skip_tls_verify,
            identity: None,
            alpn: Vec::new(),
        };
        match EgressRoute::from_proxy_url("proxy-url", &url, settings) {
            Ok(way) => Some(Some(way)),
            Err(problem) => self.report(&at, problem),
        }
    }

    /// Loads a field given as base64 or as a file, with its name for messages. Inner `None`: neither is given.
    pub(super) fn load_content(
        &mut self,
        at: &FieldLocation<'_>,
        file: &str,
        data: &str,
    ) -> Option<Option<(String, Vec<u8>)>> {
        if !data.is_empty() {
            let at = FieldLocation { location: at.location, field: format!("{}-data", at.field) };
            let data: String = data.split_ascii_whitespace().collect();
            return match base64::engine::general_purpose::STANDARD.decode(data) {
                Ok(content) => Some(Some((format!("{}: {}", at.location.display_name, at.field), content))),
                Err(_) => self.report(&at, "is not valid base64"),
            };
        }
        if file.is_empty() {
            return Some(None);
        }
        let path = self.follow_path(at, file);
        match std::fs::read(&path) {
            Ok(content) => Some(Some((path.display().to_string(), content))),
            Err(error) => self.report(at, format_args!("{} cannot be read: {error}", path.display())),
        }
    }

    /// Path of a file that the kubeconfig refers to. Adds it to the watched files.
    pub(super) fn follow_path(&mut self, at: &FieldLocation<'_>, named: &str) -> PathBuf {
        let path = at.location.folder.join(Path::new(named));
        if !self.files.contains(&path) {
            self.files.push(path.clone());
        }
        path
    }

    pub(in crate::kubeclient) fn report<T>(
        &mut self,
        at: &FieldLocation<'_>,
        why: impl std::fmt::Display,
    ) -> Option<T> {
        // A problem of an override names the flag, not the file.
        self.problems.0.push(match self.overrides.flag_for(&at.field) {
            Some(flag) => Problem::new(flag, why),
            None => at.problem(why),
        });
        None
    }
}

impl KubeconfigCluster {
    /// Name that the server's certificate must have.
    pub(in crate::kubeclient) fn server_name(&self, destination: &Destination) -> String {
        match &destination.host {
            _ if !self.tls_server_name.is_empty() => self.tls_server_name.clone(),
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        }
    }
}
