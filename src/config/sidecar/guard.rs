//! Authorization and identity headers of a sidecar: kube-rbac-proxy's flags, and the defaults under its name.

use std::path::PathBuf;

use http::HeaderName;

use crate::authorize::rbac_proxy::Paths;
use crate::config::reading::Reading;
use crate::forward::{Joined, Wording};
use crate::message::hop_by_hop;

/// Settings of a sidecar that are fixed for a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Source of the attributes to authorize.
    pub asks: Asks,
    /// Allowed and ignored paths.
    pub paths: Paths,
    /// Identity headers sent to the upstream.
    pub wording: Wording,
    /// Whether `/livez`, `/readyz` and `/healthz` are served here rather than relayed to the upstream.
    pub says_health: bool,
    /// Groups with all permissions.
    pub privileged_groups: Vec<String>,
}

/// Source of the attributes to authorize (`--authorization-attributes`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// The request, as k8s.io/apiserver reads it: verb, group, resource, namespace, name.
    #[default]
    Request,
    /// kube-rbac-proxy's file, or the request's path without a file.
    RbacProxy(Option<PathBuf>),
}

impl Guard {
    /// The settings of a gateway.
    pub fn of_gateway(forward_uid: bool) -> Guard {
        Guard {
            wording: Wording { remote: true, uid: forward_uid, joined: None },
            says_health: true,
            privileged_groups: vec!["system:masters".to_owned()],
            ..Guard::default()
        }
    }
}

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

pub(super) fn guard(reading: &mut Reading<'_>, as_rbac_proxy: bool) -> Guard {
    let asks = asks(reading);
    let (allowed, ignored) = (reading.list("allow-paths"), reading.list("ignore-paths"));
    let paths = Paths::new(&allowed, &ignored).unwrap_or_else(|problems| {
        for problem in problems.0 {
            let name = if problem.place.contains("ignore") { "ignore-paths" } else { "allow-paths" };
            reading.problem(name, problem.message);
        }
        Paths::default()
    });
    for (name, patterns) in [("allow-paths", &allowed), ("ignore-paths", &ignored)] {
        // A star does not match a slash.
        for pattern in patterns.iter().filter(|pattern| !pattern.starts_with(['/', '[', '\\'])) {
            reading.warning(name, format_args!("{pattern:?} matches no path; write \"/{pattern}\""));
        }
    }
    let joined = joined(reading);
    let gateway_s = Guard::of_gateway(reading.switch("forward-uid"));
    let wording =
        if as_rbac_proxy { Wording { joined, ..Wording::default() } } else { Wording { joined, ..gateway_s.wording } };
    let privileged_groups = if as_rbac_proxy { Vec::new() } else { gateway_s.privileged_groups };
    Guard { asks, paths, wording, says_health: !as_rbac_proxy, privileged_groups }
}

fn asks(reading: &mut Reading<'_>) -> Asks {
    const ATTRIBUTES: &str = "authorization-attributes";
    // Its static rules are an authorization mode, which --authorization-config excludes.
    if reading.given("config-file") && reading.given("authorization-config") {
        reading.problem("config-file", "cannot be given together with --authorization-config");
    }
    let (attributes, file) = (reading.choice(ATTRIBUTES), reading.path("config-file"));
    if attributes == "kube-rbac-proxy" {
        return Asks::RbacProxy(file);
    }
    match file {
        None => Asks::Request,
        // A file implies kube-rbac-proxy's attributes.
        Some(file) => {
            if reading.given(ATTRIBUTES) {
                reading.problem("config-file", "not used with --authorization-attributes=request");
            }
            Asks::RbacProxy(Some(file))
        }
    }
}

/// Identity headers of kube-rbac-proxy. Read even when disabled, because clients must not send headers of these names.
fn joined(reading: &mut Reading<'_>) -> Option<Joined> {
    const USER: &str = "auth-header-user-field-name";
    const GROUPS: &str = "auth-header-groups-field-name";
    const SEPARATOR: &str = "auth-header-groups-field-separator";
    let enabled = reading.switch("auth-header-fields-enabled");
    let mut name = |flag: &str| reading.parse(flag, header_to_tell_in);
    let (user, groups) = (name(USER)?, name(GROUPS)?);
    if user == groups {
        reading.problem(GROUPS, format_args!("must differ from --{USER}"));
    }
    let separator = reading.text(SEPARATOR);
    if separator.is_empty() || http::HeaderValue::from_str(&separator).is_err() {
        reading.problem(SEPARATOR, "must be a non-empty text that a header may hold");
    }
    Some(Joined { enabled, user, groups, separator })
}

/// Parses the name of an identity header for the upstream.
fn header_to_tell_in(text: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| "not a valid header name")?;
    if hop_by_hop::is_reserved(name.as_str()) || hop_by_hop::is_untrusted_in_request(name.as_str()) {
        return Err("has another meaning to servers; use one such as X-Remote-User");
    }
    Ok(name)
}
