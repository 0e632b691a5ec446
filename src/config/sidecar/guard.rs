//! How a sidecar judges and what it tells the server behind: kube-rbac-proxy's flags, and the defaults under its name.

use std::path::PathBuf;

use http::HeaderName;

use crate::authorize::rbac_proxy::Paths;
use crate::config::reading::Reading;
use crate::forward::{Joined, Wording};
use crate::message::hop_by_hop;

/// What a gateway does in one way only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// What is asked about a request.
    pub asks: Asks,
    /// Which paths are there, and which are open to everybody.
    pub paths: Paths,
    /// In which headers the server behind is told who asks.
    pub wording: Wording,
    /// Whether we say how we are at `/livez`, `/readyz` and `/healthz`, rather than the server behind.
    pub says_health: bool,
    /// Groups whose members may everything.
    pub privileged_groups: Vec<String>,
}

/// What is asked about a request (`--authorization-attributes`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// What k8s.io/apiserver reads in it: verb, group, resource, namespace, name.
    #[default]
    Request,
    /// What kube-rbac-proxy's file says, or its path without a file.
    RbacProxy(Option<PathBuf>),
}

impl Guard {
    /// A gateway's.
    pub fn of_gateway(forward_uid: bool) -> Guard {
        Guard {
            wording: Wording { remote: true, uid: forward_uid, joined: None },
            says_health: true,
            privileged_groups: vec!["system:masters".to_owned()],
            ..Guard::default()
        }
    }
}

/// Values that flags have under the name of kube-rbac-proxy: what that program does without them.
pub(super) const DEFAULTS: &[(&str, &str)] = &[
    ("authorization-attributes", "kube-rbac-proxy"),
    ("error-format", "kube-rbac-proxy"),
    // Only the kube-apiserver of --kubeconfig is asked, and only about tokens and permissions.
    ("authentication-skip-lookup", "true"),
    ("authorization-always-allow-paths", ""),
    ("authentication-token-webhook-cache-ttl", "2m"),
    ("authorization-webhook-cache-authorized-ttl", "5m"),
    ("authorization-webhook-cache-unauthorized-ttl", "30s"),
    ("http2-max-streams-per-connection", "100"),
    // Nothing is bounded or ended there.
    ("upstream-timeout", "0s"),
    ("max-requests-inflight", "0"),
    ("max-mutating-requests-inflight", "0"),
    // No listener but those that are named.
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
        // A star stands for no slash.
        for pattern in patterns.iter().filter(|pattern| !pattern.starts_with(['/', '[', '\\'])) {
            reading.warning(name, format_args!("{pattern:?} fits no path; write \"/{pattern}\""));
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
    // Its static rules would be a mode, and there are none beside a chain of authorizers.
    if reading.given("config-file") && reading.given("authorization-config") {
        reading.problem("config-file", "cannot be given together with --authorization-config");
    }
    let (attributes, file) = (reading.choice(ATTRIBUTES), reading.path("config-file"));
    if attributes == "kube-rbac-proxy" {
        return Asks::RbacProxy(file);
    }
    match file {
        None => Asks::Request,
        // A file says how to ask.
        Some(file) => {
            if reading.given(ATTRIBUTES) {
                reading.problem("config-file", "not used with --authorization-attributes=request");
            }
            Asks::RbacProxy(Some(file))
        }
    }
}

/// Read also when they are off: no client says anything under these names.
fn joined(reading: &mut Reading<'_>) -> Option<Joined> {
    const USER: &str = "auth-header-user-field-name";
    const GROUPS: &str = "auth-header-groups-field-name";
    const SEPARATOR: &str = "auth-header-groups-field-separator";
    let enabled = reading.switch("auth-header-fields-enabled");
    let mut name = |flag: &str| reading.parse(flag, header_to_tell_in);
    let (user, groups) = (name(USER)?, name(GROUPS)?);
    if user == groups {
        reading.problem(GROUPS, format_args!("must not be that of --{USER}"));
    }
    let separator = reading.text(SEPARATOR);
    if separator.is_empty() || http::HeaderValue::from_str(&separator).is_err() {
        reading.problem(SEPARATOR, "must be a text that a header may hold: groups could not be told apart");
    }
    Some(Joined { enabled, user, groups, separator })
}

/// The name of a header in which the server behind is told who asks.
fn header_to_tell_in(text: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(text.as_bytes()).map_err(|_| "no name of a header")?;
    if hop_by_hop::is_reserved(name.as_str()) || hop_by_hop::is_untrusted_in_request(name.as_str()) {
        return Err("has a meaning of its own to servers; use one such as X-Remote-User");
    }
    Ok(name)
}
