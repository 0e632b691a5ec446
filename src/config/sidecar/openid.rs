//! `--oidc-*`: tokens of one issuer, instead of client certificates and reviews of tokens.

use crate::authenticate::jwt::OpenIdConnect;
use crate::config::flag::{Flag, Group, Kind};
use crate::config::gateway::GatewayConfig;
use crate::config::reading::Reading;

const ISSUER: &str = "oidc-issuer";

/// Of the issuer; with more than one, or more to say of one, there is `--authentication-config`.
pub(super) static GROUP: Group = Group {
    heading: "OpenID Connect",
    flags: &[
        Flag::new(
            ISSUER,
            Kind::Text("URL"),
            "",
            "Believe tokens (JWT) of this issuer, and neither client certificates nor tokens that a kube-apiserver knows. Its holders are in the groups that their tokens name, and not in system:authenticated. --authentication-config does the same beside these, for more than one issuer, with claims in any form",
        ),
        Flag::new("oidc-clientID", Kind::Text("ID"), "", "Whom tokens of --oidc-issuer must be for: their claim aud"),
        Flag::new("oidc-username-claim", Kind::Text("CLAIM"), "email", "Claim that is the user's name"),
        Flag::new("oidc-username-prefix", Kind::Text("TEXT"), "", "What is put before it"),
        Flag::new("oidc-groups-claim", Kind::Text("CLAIM"), "groups", "Claim that has the user's groups"),
        Flag::new("oidc-groups-prefix", Kind::Text("TEXT"), "", "What is put before each of them"),
        Flag::new(
            "oidc-sign-alg",
            Kind::Repeated("ALGORITHM"),
            "RS256",
            "How tokens may be signed: RS256 to 512, PS256 to 512, ES256 to 512, EdDSA",
        ),
        Flag::new(
            "oidc-ca-file",
            Kind::File,
            "",
            "Authorities of the issuer's certificate (default: the system's). Followed on disk",
        ),
    ],
};

/// Whether it is this issuer that says who asks.
pub(super) fn is_given(reading: &mut Reading<'_>) -> bool {
    !reading.text(ISSUER).is_empty()
}

/// Puts it in the place of those who say it otherwise.
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
            let message = format_args!("cannot be given together with --{ISSUER}, which alone says who asks");
            reading.problem(other, message);
        }
    }
    for other in ["client-ca-file", "auth-token-audiences", "api-audiences"] {
        if reading.given(other) {
            reading.warning(other, format_args!("not used with --{ISSUER}, which alone says who asks"));
        }
    }
    (config.who.client_ca_file, config.serving.tls.client_ca) = (None, None);
    (config.delegated.authentication_kubeconfig, config.delegated.look_up) = (None, false);
    config.who.open_id_connect = Some(issuer);
}
