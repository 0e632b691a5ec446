//! Authorization and identity headers of a sidecar: kube-rbac-proxy's flags, and the defaults under its name.

use http::HeaderName;

use crate::authorize::rbac_proxy::PathFilter;
use crate::config::gateway::{AttributeSource, SidecarAuth};
use crate::config::parser::FlagParser;
use crate::forward::{IdentityHeaderFormat, JoinedHeaders};
use crate::message::hop_by_hop;

/// Defaults of flags under the name kube-rbac-proxy, as in that program.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("authorization-attributes", "kube-rbac-proxy"),
    ("error-format", "kube-rbac-proxy"),
    // Only TokenReview and SubjectAccessReview are sent to the kube-apiserver of --kubeconfig.
    ("authentication-skip-lookup", "true"),
    ("authorization-always-allow-paths", ""),
    ("authentication-token-webhook-cache-ttl", "2m"),
    ("authorization-webhook-cache-authorized-ttl", "5m"),
    ("authorization-webhook-cache-unauthorized-ttl", "30s"),
    ("http2-max-streams-per-connection", "100"),
    // That program has no timeouts and limits.
    ("upstream-timeout", "0s"),
    ("max-requests-inflight", "0"),
    ("max-mutating-requests-inflight", "0"),
    // No admin listener.
    ("admin-address", ""),
];

pub(super) fn sidecar_auth(parser: &mut FlagParser<'_>, as_rbac_proxy: bool) -> SidecarAuth {
    let asks = attribute_source(parser);
    let (allowed, ignored) = (parser.list("allow-paths"), parser.list("ignore-paths"));
    let paths = PathFilter::new(&allowed, &ignored).unwrap_or_else(|problems| {
        for problem in problems.0 {
            let name = if problem.location.contains("ignore") { "ignore-paths" } else { "allow-paths" };
            parser.add_problem(name, problem.message);
        }
        PathFilter::default()
    });
    for (name, patterns) in [("allow-paths", &allowed), ("ignore-paths", &ignored)] {
        // A star does not match a slash.
        for pattern in patterns.iter().filter(|pattern| !pattern.starts_with(['/', '[', '\\'])) {
            parser.add_warning(name, format_args!("{pattern:?} matches no path; write \"/{pattern}\""));
        }
    }
    let joined = joined_headers(parser);
    let gateway_s = SidecarAuth::for_gateway(parser.switch("forward-uid"));
    let wording = if as_rbac_proxy {
        IdentityHeaderFormat { joined, ..IdentityHeaderFormat::default() }
    } else {
        IdentityHeaderFormat { joined, ..gateway_s.identity_headers }
    };
    let privileged_groups = if as_rbac_proxy { Vec::new() } else { gateway_s.privileged_groups };
    SidecarAuth {
        attribute_source: asks,
        path_filter: paths,
        keeps_escaped_slashes: parser.choice("path-with-escaped-slashes-action") == "keep-unchanged",
        identity_headers: wording,
        serves_health: !as_rbac_proxy,
        privileged_groups,
    }
}

fn attribute_source(parser: &mut FlagParser<'_>) -> AttributeSource {
    const ATTRIBUTES: &str = "authorization-attributes";
    // Its static rules are an authorization mode, which --authorization-config excludes.
    if parser.is_given("config-file") && parser.is_given("authorization-config") {
        parser.add_problem("config-file", "cannot be given together with --authorization-config");
    }
    let (attributes, file) = (parser.choice(ATTRIBUTES), parser.path("config-file"));
    if attributes == "kube-rbac-proxy" {
        return AttributeSource::RbacProxy(file);
    }
    match file {
        None => AttributeSource::Request,
        // A file implies kube-rbac-proxy's attributes.
        Some(file) => {
            if parser.is_given(ATTRIBUTES) {
                parser.add_problem("config-file", "not used with --authorization-attributes=request");
            }
            AttributeSource::RbacProxy(Some(file))
        }
    }
}

/// Identity headers of kube-rbac-proxy. Read even when disabled, because clients must not send headers of these names.
fn joined_headers(parser: &mut FlagParser<'_>) -> Option<JoinedHeaders> {
    const USER: &str = "auth-header-user-field-name";
    const GROUPS: &str = "auth-header-groups-field-name";
    const SEPARATOR: &str = "auth-header-groups-field-separator";
    let enabled = parser.switch("auth-header-fields-enabled");
    let mut name = |flag: &str| parser.parse(flag, identity_header_name);
    let (user, groups) = (name(USER)?, name(GROUPS)?);
    if user == groups {
        parser.add_problem(GROUPS, format_args!("must differ from --{USER}"));
    }
    let separator = parser.text(SEPARATOR);
    if separator.is_empty() || http::HeaderValue::from_str(&separator).is_err() {
        parser.add_problem(SEPARATOR, "must be a non-empty text that a header may hold");
    }
    Some(JoinedHeaders { enabled, user, groups, separator })
}

/// Parses the name of an identity header for the upstream.
fn identity_header_name(text: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| "not a valid header name")?;
    if hop_by_hop::is_reserved(name.as_str()) || hop_by_hop::is_untrusted_request_header(name.as_str()) {
        return Err("has another meaning to servers; use one such as X-Remote-User");
    }
    Ok(name)
}
