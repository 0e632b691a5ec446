//! `--oidc-*`: tokens of one OpenID Connect issuer, instead of client certificates and TokenReview.

use crate::authenticate::jwt::OpenIdConnect;
use crate::config::flag::{Flag, Group, Kind};
use crate::config::gateway::GatewayConfig;
use crate::config::reading::Reading;

const ISSUER: &str = "oidc-issuer";

/// Flags of the issuer. For several issuers, or further settings, there is `--authentication-config`.
pub(super) static GROUP: Group = Group {
    heading: "OpenID Connect",
    flags: &[
        Flag::new(
            ISSUER,
            Kind::Text("URL"),
            "",
            "Accept tokens (JWT) of this issuer only; client certificates and TokenReview are not used. Users are in the groups of their token, and not in system:authenticated. --authentication-config adds issuers to the other authenticators, with claim expressions",
        ),
        Flag::new("oidc-clientID", Kind::Text("ID"), "", "Audience (claim aud) that tokens of --oidc-issuer must have"),
        Flag::new("oidc-username-claim", Kind::Text("CLAIM"), "email", "Claim with the user's name"),
        Flag::new("oidc-username-prefix", Kind::Text("TEXT"), "", "Prefix of the user's name"),
        Flag::new("oidc-groups-claim", Kind::Text("CLAIM"), "groups", "Claim with the user's groups"),
        Flag::new("oidc-groups-prefix", Kind::Text("TEXT"), "", "Prefix of each group"),
        Flag::new(
            "oidc-sign-alg",
            Kind::Repeated("ALGORITHM"),
            "RS256",
            "Allowed signature algorithms: RS256 to 512, PS256 to 512, ES256 to 512, EdDSA",
        ),
        Flag::new(
            "oidc-ca-file",
            Kind::File,
            "",
            "CA bundle for the issuer's certificate (default: the system's). Followed on disk",
        ),
    ],
};

/// Whether `--oidc-issuer` is given.
pub(super) fn is_given(reading: &mut Reading<'_>) -> bool {
    !reading.text(ISSUER).is_empty()
}

/// Replaces the other authenticators in `config` with the issuer, if it is given.
pub(super) fn read(reading: &mut Reading<'_>, config: &mut GatewayConfig) {
    let issuer = OpenIdConnect {
        issuer: reading.text(ISSUER),
        client_id: reading.text("oidc-clientID"),
        authorities: reading.path("oidc-ca-file"),
        username_claim: reading.text("oidc-username-claim"),
        username_prefix: reading.text("oidc-username-prefix"),
        groups_claim: reading.text("oidc-groups-claim"),
        groups_prefix: reading.text("oidc-groups-prefix"),
        algorithms: reading.list("oidc-sign-alg"),
    };
    if issuer.issuer.is_empty() {
        for flag in GROUP.flags.iter().filter(|flag| flag.name != ISSUER) {
            if reading.given(flag.name) {
                reading.warning(flag.name, "not used without --oidc-issuer");
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
        if reading.given(other) {
            let message =
                format_args!("cannot be given together with --{ISSUER}, which is the only authenticator then");
            reading.problem(other, message);
        }
    }
    for other in ["client-ca-file", "auth-token-audiences", "api-audiences"] {
        if reading.given(other) {
            reading.warning(other, format_args!("not used with --{ISSUER}, which is the only authenticator then"));
        }
    }
    (config.who.client_ca_file, config.serving.tls.client_ca) = (None, None);
    (config.delegated.authentication_kubeconfig, config.delegated.look_up) = (None, false);
    config.who.open_id_connect = Some(issuer);
}
