//! What the command line says instead of a kubeconfig: kubectl's global flags, as `clientcmd.ConfigOverrides` of
//! client-go lays them over what is written.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::written::{Cluster, User};

/// What of a kubeconfig is used instead of what its current context says, and what instead of what stands there. Paths
/// are absolute. Its `Debug` shows no secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// The context.
    pub context: Option<String>,
    /// The cluster, whatever the context says.
    pub cluster: Option<String>,
    /// The user, whatever the context says.
    pub user: Option<String>,
    /// The URL of the API server; then there need be neither context nor cluster.
    pub server: Option<String>,
    /// The name that its certificate must have.
    pub tls_server_name: Option<String>,
    /// Whether its certificate is not looked at.
    pub insecure_skip_tls_verify: bool,
    /// Who vouches for it.
    pub certificate_authority: Option<PathBuf>,
    /// Our certificate.
    pub client_certificate: Option<PathBuf>,
    /// Its private key.
    pub client_key: Option<PathBuf>,
    /// Our token.
    pub token: Option<String>,
    /// Our name, for basic authentication.
    pub username: Option<String>,
    /// Our password.
    pub password: Option<String>,
    /// Whom we act for.
    pub r#as: Option<String>,
    /// Their UID.
    pub as_uid: Option<String>,
    /// Their groups.
    pub as_groups: Vec<String>,
    /// What else is known of them.
    pub as_user_extra: BTreeMap<String, Vec<String>>,
    /// Whether it is no mistake that none of the files is there.
    pub without_files: bool,
}

impl Chosen {
    /// Whether credentials are among it.
    pub(super) fn has_credentials(&self) -> bool {
        self.token.is_some() || self.client_certificate.is_some() || self.username.is_some() || self.password.is_some()
    }

    /// What is used of a cluster.
    pub(super) fn over_cluster<'w>(&self, written: &'w Cluster) -> Cow<'w, Cluster> {
        let trusted = self.insecure_skip_tls_verify || self.certificate_authority.is_some();
        if !trusted && self.server.is_none() && self.tls_server_name.is_none() {
            return Cow::Borrowed(written);
        }
        let mut cluster = written.clone();
        put(&mut cluster.server, self.server.as_ref());
        if trusted {
            cluster.insecure_skip_tls_verify = self.insecure_skip_tls_verify;
            cluster.certificate_authority = text(self.certificate_authority.as_deref());
            cluster.certificate_authority_data.clear();
        }
        // The name in the kubeconfig is that of the server in the kubeconfig.
        cluster.tls_server_name = self.tls_server_name.clone().unwrap_or(if self.server.is_some() {
            String::new()
        } else {
            cluster.tls_server_name
        });
        Cow::Owned(cluster)
    }

    /// What is used of a user.
    pub(super) fn over_user<'w>(&self, written: &'w User) -> Cow<'w, User> {
        let acts = self.r#as.is_some()
            || self.as_uid.is_some()
            || !self.as_groups.is_empty()
            || !self.as_user_extra.is_empty();
        if !acts && !self.has_credentials() && self.client_key.is_none() {
            return Cow::Borrowed(written);
        }
        let mut user = written.clone();
        if self.client_certificate.is_some() {
            user.client_certificate = text(self.client_certificate.as_deref());
            user.client_certificate_data.clear();
        }
        if self.client_key.is_some() {
            user.client_key = text(self.client_key.as_deref());
            user.client_key_data.clear();
        }
        if let Some(token) = &self.token {
            user.token.clone_from(token);
            user.token_file.clear();
        }
        put(&mut user.username, self.username.as_ref());
        put(&mut user.password, self.password.as_ref());
        put(&mut user.r#as, self.r#as.as_ref());
        put(&mut user.as_uid, self.as_uid.as_ref());
        if !self.as_groups.is_empty() {
            user.as_groups.clone_from(&self.as_groups);
        }
        user.as_user_extra.extend(self.as_user_extra.clone());
        Cow::Owned(user)
    }

    /// The flag that said what is used in the place of `field`, if one did.
    pub(super) fn flag(&self, field: &str) -> Option<&'static str> {
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

fn put(field: &mut String, chosen: Option<&String>) {
    if let Some(chosen) = chosen {
        field.clone_from(chosen);
    }
}

fn text(path: Option<&Path>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

impl fmt::Debug for Chosen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chosen")
            .field("context", &self.context)
            .field("cluster", &self.cluster)
            .field("user", &self.user)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}
