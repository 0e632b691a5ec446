//! Which requests a control plane gets: those for its host names, or those below its path prefix.

use std::fmt;
use std::net::IpAddr;

use kubeapi::names;

use crate::process::{Problem, Problems};

/// First segments of paths that every API server has. A prefix of this name would hide them.
const API_SERVER_PATHS: [&str; 8] = ["api", "apis", "healthz", "livez", "metrics", "openapi", "readyz", "version"];

/// The requests of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlPlaneSelector {
    /// Those for these hosts, in lower case. The server name of the TLS handshake must select the same control plane.
    Hosts(Vec<String>),
    /// Those below this path, without a trailing slash; empty for all that no other control plane gets.
    PathPrefix(String),
}

impl ControlPlaneSelector {
    pub(super) fn parse(
        hosts: Option<Vec<String>>,
        path_prefix: Option<String>,
        location: &str,
        field: &str,
        problems: &mut Problems,
    ) -> Option<ControlPlaneSelector> {
        match (hosts, path_prefix) {
            (Some(hosts), None) if !hosts.is_empty() => {
                let hosts = hosts.into_iter().map(|host| host.to_ascii_lowercase());
                let hosts: Vec<String> = hosts.map(|host| host.trim_end_matches('.').to_owned()).collect();
                for (number, host) in hosts.iter().enumerate() {
                    let message = if hosts[..number].contains(host) {
                        format!("{host} is given twice")
                    } else if let Some(why) = host_problem(host) {
                        format!("{host:?} {why}")
                    } else {
                        continue;
                    };
                    problems.0.push(Problem::at_field(location, format_args!("{field}.hosts"), message));
                }
                Some(ControlPlaneSelector::Hosts(hosts))
            }
            (None, Some(prefix)) => match path_prefix_problem(&prefix) {
                None => Some(ControlPlaneSelector::PathPrefix(prefix)),
                Some(message) => {
                    problems.0.push(Problem::at_field(
                        location,
                        format_args!("{field}.pathPrefix"),
                        format_args!("{prefix:?}: {message}"),
                    ));
                    None
                }
            },
            (Some(_), Some(_)) => {
                problems.0.push(Problem::at_field(location, field, "give hosts or pathPrefix, not both"));
                None
            }
            (_, None) => {
                problems.0.push(Problem::at_field(location, field, "matches no request; give hosts or pathPrefix"));
                None
            }
        }
    }
}

impl fmt::Display for ControlPlaneSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ControlPlaneSelector::Hosts(hosts) => f.write_str(&hosts.join(", ")),
            ControlPlaneSelector::PathPrefix(prefix) => write!(f, "{prefix}/"),
        }
    }
}

fn host_problem(host: &str) -> Option<&'static str> {
    if host.parse::<IpAddr>().is_ok() {
        return Some("is an IP address, which no TLS client sends as server name; use a host name, or pathPrefix");
    }
    if host.contains('*') {
        return Some("is a wildcard; name each host");
    }
    (!names::is_dns_subdomain(host)).then_some("is not a host name without port")
}

fn path_prefix_problem(prefix: &str) -> Option<&'static str> {
    if let Some(problem) = path_problem(prefix) {
        return Some(problem);
    }
    let first = prefix[1..].split('/').next().unwrap_or_default();
    API_SERVER_PATHS
        .contains(&first)
        .then_some("is a path of the Kubernetes API itself; use another, such as /clusters/a")
}

/// Why `prefix` cannot be compared with the beginnings of paths.
pub(super) fn path_problem(prefix: &str) -> Option<&'static str> {
    let Some(rest) = prefix.strip_prefix('/') else { return Some("must begin with a slash") };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@".contains(&byte);
    if rest.split('/').any(|segment| matches!(segment, "" | "." | "..")) {
        return Some("must not have a trailing slash, an empty segment, . or ..");
    }
    rest.split('/')
        .flat_map(str::bytes)
        .any(|byte| !plain(byte))
        .then_some("is compared literally: use letters, digits and -._~:@ only")
}
