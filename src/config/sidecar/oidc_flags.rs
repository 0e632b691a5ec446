//! `--oidc-*`: tokens of one OpenID Connect issuer, instead of client certificates and TokenReview.

use crate::authenticate::jwt::OidcFlags;
use crate::config::flag::{Flag, FlagGroup, FlagKind};
use crate::config::gateway::GatewayConfig;
use crate::config::parser::FlagParser;

const ISSUER: &str = "oidc-issuer";

/// Flags of the issuer. For several issuers, or further settings, there is `--authentication-config`.
pub(super) static OIDC: FlagGroup = FlagGroup {
    heading: "OpenID Connect",
    flags: &[
        Flag::new(
            ISSUER,
            FlagKind::Text("URL"),
            "",
            "Accept tokens (JWT) of this issuer only; client certificates and TokenReview are not used. Users are in the groups of their token, and not in system:authenticated. --authentication-config adds issuers to the other authenticators, with claim expressions",
        ),
        Flag::new(
            "oidc-clientID",
            FlagKind::Text("ID"),
            "",
            "Audience (claim aud) that tokens of --oidc-issuer must have",
        ),
        Flag::new("oidc-username-claim", FlagKind::Text("CLAIM"), "email", "Claim with the user's name"),
        Flag::new("oidc-username-prefix", FlagKind::Text("TEXT"), "", "Prefix of the user's name"),
        Flag::new("oidc-groups-claim", FlagKind::Text("CLAIM"), "groups", "Claim with the user's groups"),
        Flag::new("oidc-groups-prefix", FlagKind::Text("TEXT"), "", "Prefix of each group"),
        Flag::new(
            "oidc-sign-alg",
            FlagKind::Repeated("ALGORITHM"),
            "RS256",
            "Allowed signature algorithms: RS256 to 512, PS256 to 512, ES256 to 512, EdDSA",
        ),
        Flag::new(
            "oidc-ca-file",
            FlagKind::File,
            "",
            "CA bundle for the issuer's certificate (default: the system's). Followed on disk",
        ),
    ],
};

/// Whether `--oidc-issuer` is given.
pub(super) fn is_given(parser: &mut FlagParser<'_>) -> bool {
    !parser.text(ISSUER).is_empty()
}

/// Replaces the other authenticators in `config` with the issuer, if it is given.
pub(super) fn read(parser: &mut FlagParser<'_>, config: &mut GatewayConfig) {
    let issuer = OidcFlags {
        issuer: parser.text(ISSUER),
        client_id: parser.text("oidc-clientID"),
        authorities: parser.path("oidc-ca-file"),
        username_claim: parser.text("oidc-username-claim"),
        username_prefix: parser.text("oidc-username-prefix"),
        groups_claim: parser.text("oidc-groups-claim"),
        groups_prefix: parser.text("oidc-groups-prefix"),
        algorithms: parser.list("oidc-sign-alg"),
    };
    if issuer.issuer.is_empty() {
        for flag in OIDC.flags.iter().filter(|flag| flag.name != ISSUER) {
            if parser.is_given(flag.name) {
                parser.add_warning(flag.name, "not used without --oidc-issuer");
            }
        }
        return;
    }
    for other in [
        "authentication-config",
        "authentication-kubeconfig",
        "authentication-token-webhook-config-file",
        "token-auth-file",
    ] {
        if parser.is_given(other) {
            let message =
                format_args!("cannot be given together with --{ISSUER}, which is the only authenticator then");
            parser.add_problem(other, message);
        }
    }
    for other in ["client-ca-file", "auth-token-audiences", "api-audiences"] {
        if parser.is_given(other) {
            parser.add_warning(other, format_args!("not used with --{ISSUER}, which is the only authenticator then"));
        }
    }
    (config.authentication.client_ca_file, config.serving.tls.client_ca) = (None, None);
    (config.delegated_auth.authentication_kubeconfig, config.delegated_auth.lookup_auth_configmap) = (None, false);
    config.authentication.open_id_connect = Some(issuer);
}
