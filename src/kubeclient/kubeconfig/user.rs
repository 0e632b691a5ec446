//! Credentials of a user of a kubeconfig.

use std::sync::Arc;

use base64::Engine as _;
use http::{HeaderName, HeaderValue};
use kubeapi::extra_key;

use super::raw::{AuthInfo, AuthProviderConfig, FieldLocation};
use super::resolve::{KubeconfigPurpose, KubeconfigResolver};
use crate::kubeclient::plugin::{CredentialPlugin, ExecPlugin, OidcPlugin};
use crate::tls::KeyPair;

/// Credentials of a user of a kubeconfig.
pub(super) struct UserCredentials {
    pub(super) identity: Option<Arc<KeyPair>>,
    pub(super) authorization: Option<HeaderValue>,
    pub(super) impersonation: Vec<(HeaderName, HeaderValue)>,
    pub(super) plugin: Option<CredentialPlugin>,
}

impl UserCredentials {
    /// Whether an eavesdropper could use them.
    pub(super) fn has_secrets(&self) -> bool {
        self.identity.is_some() || self.authorization.is_some() || self.plugin.is_some()
    }

    /// The part that may be sent unencrypted: impersonation.
    pub(super) fn without_secrets(self) -> UserCredentials {
        UserCredentials { identity: None, authorization: None, plugin: None, impersonation: self.impersonation }
    }
}

impl KubeconfigResolver {
    /// Resolves the credentials of the user `name`.
    pub(super) fn credentials(
        &mut self,
        at: &FieldLocation<'_>,
        name: &str,
        user: &AuthInfo,
    ) -> Option<UserCredentials> {
        let plugin = self.plugin(at, name, user);
        let (identity, token) = (self.identity(at, user), self.token(at, user));
        let (password, impersonation) = (self.password(at, user), self.impersonation(at, user));
        let (token, password) = (token?, password?);
        if token.is_some() && password.is_some() {
            // client-go's message.
            let why = format!(
                "more than one authentication method found for {name}; found [token basicAuth], only one is allowed"
            );
            return self.report(at, why);
        }
        let authorization = token.or(password);
        // As in client-go, credentials in the file take precedence over a plugin.
        let plugin = plugin?.filter(|_| authorization.is_none());
        Some(UserCredentials { identity: identity?, authorization, impersonation: impersonation?, plugin })
    }

    /// The credential plugin. Inner `None`: there is none.
    fn plugin(&mut self, at: &FieldLocation<'_>, name: &str, user: &AuthInfo) -> Option<Option<CredentialPlugin>> {
        if self.purpose != KubeconfigPurpose::LocalUser {
            for (field, given) in [("exec", user.exec.is_some()), ("auth-provider", user.auth_provider.is_some())] {
                if given {
                    let why = "is not supported here; use a client certificate, token or tokenFile";
                    return self.report(&at.child(field), why);
                }
            }
        }
        match (&user.exec, &user.auth_provider) {
            (None, None) => Some(None),
            (Some(_), Some(_)) => {
                // client-go's message.
                let why = format!("authProvider cannot be provided in combination with an exec plugin for {name}");
                self.report(at, why)
            }
            (Some(written), None) => {
                let at = at.child("exec");
                match ExecPlugin::new(name, &at.location.folder, &at.location.display_name, written) {
                    Ok(exec) => Some(Some(CredentialPlugin::Exec(Arc::new(exec)))),
                    Err(mistakes) => {
                        for (field, why) in mistakes {
                            self.report::<()>(&at.child(field), why);
                        }
                        None
                    }
                }
            }
            (None, Some(written)) => self.auth_provider(&at.child("auth-provider"), name, written).map(Some),
        }
    }

    fn auth_provider(
        &mut self,
        at: &FieldLocation<'_>,
        name: &str,
        provider: &AuthProviderConfig,
    ) -> Option<CredentialPlugin> {
        match provider.name.as_str() {
            "oidc" => {}
            "gcp" | "azure" => {
                let instead = if provider.name == "gcp" { "gke-gcloud-auth-plugin" } else { "kubelogin" };
                let why = format!("client-go has removed {:?}; use exec with {instead}", provider.name);
                return self.report(&at.child("name"), why);
            }
            // client-go's message.
            other => return self.report(&at.child("name"), format_args!("no Auth Provider found for name {other:?}")),
        }
        let at = at.child("config");
        let value = |field: &str| provider.config.get(field).map_or("", String::as_str);
        let (file, data) = (value("idp-certificate-authority"), value("idp-certificate-authority-data"));
        let authorities = self.load_content(&at.child("idp-certificate-authority"), file, data)?;
        match OidcPlugin::new(name, at.location.file.as_deref(), &provider.config, authorities) {
            Ok(oidc) => Some(CredentialPlugin::Oidc(Arc::new(oidc))),
            Err(mistakes) => {
                for (field, why) in mistakes {
                    self.report::<()>(&at.child(field), why);
                }
                None
            }
        }
    }

    /// The client certificate. Inner `None`: there is none.
    fn identity(&mut self, at: &FieldLocation<'_>, user: &AuthInfo) -> Option<Option<Arc<KeyPair>>> {
        let (certificate, key) = (at.child("client-certificate"), at.child("client-key"));
        let chain = self.load_content(&certificate, &user.client_certificate, &user.client_certificate_data);
        let private = self.load_content(&key, &user.client_key, &user.client_key_data);
        match (chain?, private?) {
            (None, None) => Some(None),
            (Some((chain_of, chain)), Some((key_of, private))) => {
                let location = if chain_of == key_of { chain_of } else { format!("{chain_of} with {key_of}") };
                self.problems.collect(KeyPair::from_pem(&chain, &private, &location)).map(|pair| Some(Arc::new(pair)))
            }
            (Some(_), None) => self.report(&key, "is missing; client-certificate needs it"),
            (None, Some(_)) => self.report(&certificate, "is missing; client-key needs it"),
        }
    }

    /// The bearer token as a header value. Inner `None`: there is none.
    fn token(&mut self, at: &FieldLocation<'_>, user: &AuthInfo) -> Option<Option<HeaderValue>> {
        let (field, token) = if user.token_file.is_empty() {
            ("token", user.token.clone())
        } else {
            let path = self.follow_path(at, &user.token_file);
            match std::fs::read_to_string(&path) {
                Ok(token) if !token.trim().is_empty() => ("tokenFile", token),
                // client-go uses `token` until the file can be read.
                _ if !user.token.is_empty() => ("token", user.token.clone()),
                Ok(_) => return self.report(&at.child("tokenFile"), format_args!("{} is empty", path.display())),
                Err(error) => {
                    let why = format!("{} cannot be read: {error}", path.display());
                    return self.report(&at.child("tokenFile"), why);
                }
            }
        };
        let token = token.trim();
        if token.is_empty() {
            return Some(None);
        }
        match sensitive_header(format!("Bearer {token}")) {
            Some(value) => Some(Some(value)),
            None => self.report(&at.child(field), "has bytes that are not allowed in a token"),
        }
    }

    /// Basic authentication as a header value. Inner `None`: there is none.
    fn password(&mut self, at: &FieldLocation<'_>, user: &AuthInfo) -> Option<Option<HeaderValue>> {
        match (user.username.as_str(), user.password.as_str()) {
            ("", "") => Some(None),
            ("", _) => self.report(&at.child("username"), "is missing; password needs it"),
            // The server would take the part after the colon for the password.
            (name, _) if name.contains(':') => self.report(&at.child("username"), "must not contain a colon"),
            (name, password) => {
                let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
                Some(sensitive_header(format!("Basic {encoded}")))
            }
        }
    }

    /// Impersonation headers (`impersonatingRoundTripper` of client-go).
    fn impersonation(&mut self, at: &FieldLocation<'_>, user: &AuthInfo) -> Option<Vec<(HeaderName, HeaderValue)>> {
        if user.r#as.is_empty() {
            let more = !user.as_uid.is_empty() || !user.as_groups.is_empty() || !user.as_user_extra.is_empty();
            // Also refused by client-go.
            let why = "is missing: as-uid, as-groups and as-user-extra need it";
            return if more { self.report(&at.child("as"), why) } else { Some(Vec::new()) };
        }
        let fixed = [("as", "impersonate-user", &user.r#as), ("as-uid", "impersonate-uid", &user.as_uid)];
        let fixed = fixed.into_iter().filter(|(_, _, value)| !value.is_empty());
        let groups = user.as_groups.iter().map(|group| ("as-groups", "impersonate-group", group));
        let extra = user.as_user_extra.iter().flat_map(|(key, values)| {
            let name = format!("impersonate-extra-{}", extra_key::escape(key));
            values.iter().map(move |value| ("as-user-extra", name.clone(), value))
        });
        let plain = fixed.chain(groups).map(|(field, name, value)| (field, name.to_owned(), value));
        let mut headers = Vec::new();
        for (field, name, value) in plain.chain(extra) {
            match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                (Ok(name), Ok(value)) => headers.push((name, value)),
                _ => return self.report(&at.child(field), "has bytes that are not allowed in a header"),
            }
        }
        Some(headers)
    }
}

/// A header value marked as sensitive.
fn sensitive_header(text: String) -> Option<HeaderValue> {
    let mut value = HeaderValue::try_from(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}
