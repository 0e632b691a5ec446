//! Overrides of a kubeconfig by the command line: kubectl's global flags, applied as `clientcmd.ConfigOverrides` of
//! client-go.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::raw::{AuthInfo, KubeconfigCluster};

/// Overrides of a kubeconfig. Paths are absolute. `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ConfigOverrides {
    /// Name of the context.
    pub context: Option<String>,
    /// Name of the cluster, instead of the context's.
    pub cluster: Option<String>,
    /// Name of the user, instead of the context's.
    pub user: Option<String>,
    /// URL of the API server. With it, neither context nor cluster is required.
    pub server: Option<String>,
    /// Name that the API server's certificate must have.
    pub tls_server_name: Option<String>,
    /// Whether the API server's certificate is not verified.
    pub insecure_skip_tls_verify: bool,
    /// File of the CA certificates that verify the API server.
    pub certificate_authority: Option<PathBuf>,
    /// File of the client certificate.
    pub client_certificate: Option<PathBuf>,
    /// File of its private key.
    pub client_key: Option<PathBuf>,
    /// Bearer token.
    pub token: Option<String>,
    /// User name for basic authentication.
    pub username: Option<String>,
    /// Password for basic authentication.
    pub password: Option<String>,
    /// Impersonated user.
    pub r#as: Option<String>,
    /// UID of the impersonated user.
    pub as_uid: Option<String>,
    /// Groups of the impersonated user.
    pub as_groups: Vec<String>,
    /// Extra values of the impersonated user.
    pub as_user_extra: BTreeMap<String, Vec<String>>,
    /// Whether all kubeconfig files may be missing.
    pub allows_missing_files: bool,
}

impl ConfigOverrides {
    /// Whether the overrides contain credentials.
    pub(super) fn has_credentials(&self) -> bool {
        self.token.is_some() || self.client_certificate.is_some() || self.username.is_some() || self.password.is_some()
    }

    /// Applies the overrides to a cluster.
    pub(super) fn apply_to_cluster<'w>(&self, configured: &'w KubeconfigCluster) -> Cow<'w, KubeconfigCluster> {
        let trusted = self.insecure_skip_tls_verify || self.certificate_authority.is_some();
        if !trusted && self.server.is_none() && self.tls_server_name.is_none() {
            return Cow::Borrowed(configured);
        }
        let mut cluster = configured.clone();
        set_if_given(&mut cluster.server, self.server.as_ref());
        if trusted {
            cluster.insecure_skip_tls_verify = self.insecure_skip_tls_verify;
            cluster.certificate_authority = path_text(self.certificate_authority.as_deref());
            cluster.certificate_authority_data.clear();
        }
        // The kubeconfig's name belongs to the kubeconfig's server.
        cluster.tls_server_name = self.tls_server_name.clone().unwrap_or(if self.server.is_some() {
            String::new()
        } else {
            cluster.tls_server_name
        });
        Cow::Owned(cluster)
    }

    /// Applies the overrides to a user.
    pub(super) fn apply_to_user<'w>(&self, configured: &'w AuthInfo) -> Cow<'w, AuthInfo> {
        let acts = self.r#as.is_some()
            || self.as_uid.is_some()
            || !self.as_groups.is_empty()
            || !self.as_user_extra.is_empty();
        if !acts && !self.has_credentials() && self.client_key.is_none() {
            return Cow::Borrowed(configured);
        }
        let mut user = configured.clone();
        if self.client_certificate.is_some() {
            user.client_certificate = path_text(self.client_certificate.as_deref());
            user.client_certificate_data.clear();
        }
        if self.client_key.is_some() {
            user.client_key = path_text(self.client_key.as_deref());
            user.client_key_data.clear();
        }
        if let Some(token) = &self.token {
            user.token.clone_from(token);
            user.token_file.clear();
        }
        set_if_given(&mut user.username, self.username.as_ref());
        set_if_given(&mut user.password, self.password.as_ref());
        set_if_given(&mut user.r#as, self.r#as.as_ref());
        set_if_given(&mut user.as_uid, self.as_uid.as_ref());
        if !self.as_groups.is_empty() {
            user.as_groups.clone_from(&self.as_groups);
        }
        user.as_user_extra.extend(self.as_user_extra.clone());
        Cow::Owned(user)
    }

    /// The flag that overrides `field`, if one does.
    pub(super) fn flag_for(&self, field: &str) -> Option<&'static str> {
        let acts = self.as_uid.is_some() || !self.as_groups.is_empty() || !self.as_user_extra.is_empty();
        let named = field.starts_with("contexts[") || field.starts_with("current-context");
        let last = field.rsplit('.').next().unwrap_or(field);
        let (flag, given) = match last {
            "current-context" => ("--context", self.context.is_some()),
            "cluster" => ("--cluster", named && self.cluster.is_some()),
            "user" => ("--user", named && self.user.is_some()),
            "server" => ("--server", self.server.is_some()),
            "tls-server-name" => ("--tls-server-name", self.tls_server_name.is_some()),
            "insecure-skip-tls-verify" => ("--insecure-skip-tls-verify", self.insecure_skip_tls_verify),
            "certificate-authority" => ("--certificate-authority", self.certificate_authority.is_some()),
            "client-certificate" => ("--client-certificate", self.client_certificate.is_some()),
            "client-key" => ("--client-key", self.client_key.is_some() || self.client_certificate.is_some()),
            "token" => ("--token", self.token.is_some()),
            "username" => ("--username", self.username.is_some() || self.password.is_some()),
            "as" => ("--as", self.r#as.is_some() || acts),
            "as-uid" => ("--as-uid", self.as_uid.is_some()),
            "as-groups" => ("--as-group", !self.as_groups.is_empty()),
            "as-user-extra" => ("--as-user-extra", !self.as_user_extra.is_empty()),
            _ => return None,
        };
        given.then_some(flag)
    }
}

fn set_if_given(field: &mut String, chosen: Option<&String>) {
    if let Some(chosen) = chosen {
        field.clone_from(chosen);
    }
}

fn path_text(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

impl fmt::Debug for ConfigOverrides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigOverrides")
            .field("context", &self.context)
            .field("cluster", &self.cluster)
            .field("user", &self.user)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
