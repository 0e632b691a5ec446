//! One issuer configured by flags, like kube-rbac-proxy's `--oidc-*`; verified like one of an
//! `AuthenticationConfiguration`.

use std::path::PathBuf;

use super::configuration::{AuthenticationConfiguration, ClaimSource, JwtIssuer};
use super::token::Algorithm;
use super::url::HttpsUrl;
use crate::process::{Problem, Problems};
use crate::tls::Bundle;

/// The `--oidc-*` flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcFlags {
    /// `--oidc-issuer`: the issuer URL, as in the claim `iss`.
    pub issuer: String,
    /// `--oidc-clientID`: the accepted audience, as in the claim `aud`.
    pub client_id: String,
    /// `--oidc-ca-file`: the CAs for the issuer's servers; none for the system's roots.
    pub authorities: Option<PathBuf>,
    /// Value of `--oidc-username-claim`.
    pub username_claim: String,
    /// Value of `--oidc-username-prefix`.
    pub username_prefix: String,
    /// `--oidc-groups-claim`; empty for none.
    pub groups_claim: String,
    /// Value of `--oidc-groups-prefix`.
    pub groups_prefix: String,
    /// `--oidc-sign-alg`: allowed signing algorithms; at least one.
    pub algorithms: Vec<String>,
}

impl OidcFlags {
    /// Returns the equivalent configuration file.
    ///
    /// # Errors
    /// All errors, by flag or file.
    pub(super) fn configuration(&self) -> Result<AuthenticationConfiguration, Problems> {
        let mut problems = Problems::default();
        let url = HttpsUrl::parse(&self.issuer).map_err(|mistakes| {
            problems.0.extend(mistakes.into_iter().map(|mistake| Problem::new("--oidc-issuer", mistake)));
        });
        let mut need = |flag: &str, text: &str| {
            if text.is_empty() {
                problems.0.push(Problem::new(flag, "required with --oidc-issuer"));
            }
        };
        need("--oidc-clientID", &self.client_id);
        need("--oidc-username-claim", &self.username_claim);
        if self.algorithms.is_empty() {
            need("--oidc-sign-alg", "");
        }
        let mut algorithms = Vec::new();
        for name in &self.algorithms {
            let algorithm = Algorithm::parse(name).ok_or_else(|| {
                Problem::new("--oidc-sign-alg", format_args!("{name:?} is not an asymmetric algorithm, such as RS256"))
            });
            algorithms.extend(problems.collect(algorithm));
        }
        let authorities = self.authorities.as_ref().map(|path| {
            let pem = std::fs::read(path).map_err(|error| Problem::new(path.display(), error))?;
            Bundle::from_pem(&pem, path.display())
        });
        let authorities = problems.collect(authorities.transpose()).flatten();
        let Ok(url) = url else { return Err(problems) };
        let claim = |name: &str, prefix: &str| ClaimSource::Claim { name: name.to_owned(), prefix: prefix.to_owned() };
        let issuer = JwtIssuer {
            url: self.issuer.clone(),
            discovery_url: url.join("/.well-known/openid-configuration"),
            authorities,
            egress: String::new(),
            audiences: vec![self.client_id.clone()],
            algorithms,
            // kube-rbac-proxy does not add the group to users of tokens that it verifies itself.
            adds_authenticated_group: false,
            username: claim(&self.username_claim, &self.username_prefix),
            groups: Some(claim(&self.groups_claim, &self.groups_prefix)).filter(|_| !self.groups_claim.is_empty()),
            uid: None,
            extra: Vec::new(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
        };
        problems.into_result(AuthenticationConfiguration { issuers: vec![issuer], anonymous: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> OidcFlags {
        OidcFlags {
            issuer: "https://issuer.example/realm".to_owned(),
            client_id: "client".to_owned(),
            authorities: None,
            username_claim: "email".to_owned(),
            username_prefix: String::new(),
            groups_claim: "groups".to_owned(),
            groups_prefix: "oidc:".to_owned(),
            algorithms: vec!["RS256".to_owned(), "ES256".to_owned()],
        }
    }

    #[test]
    fn oidc_flags_configure_one_issuer() {
        let configuration = flags().configuration().unwrap();
        let [issuer] = &configuration.issuers[..] else { panic!("{configuration:?}") };
        assert_eq!(issuer.discovery_url.path, "/realm/.well-known/openid-configuration");
        assert_eq!(issuer.audiences, ["client"]);
        assert_eq!(issuer.algorithms, [Algorithm::RS256, Algorithm::ES256]);
        let groups = OidcFlags { groups_claim: String::new(), ..flags() }.configuration().unwrap();
        assert!(groups.issuers[0].groups.is_none());
    }

    #[test]
    fn oidc_flag_errors_reported_together() {
        let wrong = OidcFlags {
            issuer: "http://issuer.example".to_owned(),
            client_id: String::new(),
            authorities: Some("/nonexistent".into()),
            username_claim: String::new(),
            algorithms: vec!["HS256".to_owned(), "none".to_owned()],
            ..flags()
        };
        assert_eq!(
            wrong.configuration().unwrap_err().to_string(),
            "--oidc-issuer: URL scheme must be https\n\
             --oidc-clientID: required with --oidc-issuer\n\
             --oidc-username-claim: required with --oidc-issuer\n\
             --oidc-sign-alg: \"HS256\" is not an asymmetric algorithm, such as RS256\n\
             --oidc-sign-alg: \"none\" is not an asymmetric algorithm, such as RS256\n\
             /nonexistent: No such file or directory (os error 2)"
        );
    }
}
