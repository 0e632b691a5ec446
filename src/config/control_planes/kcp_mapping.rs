//! The path mapping of kcp-front-proxy (`--mapping-file`, `pkg/proxy/mapping.go` and `pkg/server/proxy/types` of kcp):
//! a list of `path`, `backend`, the CA that verifies it, the certificate presented to it, and the identity headers.
//!
//! As there, clients are authenticated with the flags of the gateway, all paths below `path` are relayed with that
//! prefix, and the longest prefix wins. Other than there, a prefix ends at a slash: `/a` does not match `/ab`.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use http::HeaderName;

use super::document::ControlPlaneFields;
use super::selector::path_problem;
use super::{ControlPlaneConfig, ControlPlaneSelector};
use crate::config::GatewayConfig;
use crate::config::file::{Entry, YamlValue};
use crate::config::gateway::BackendsConfig;
use crate::config::parser::Diagnostics;
use crate::forward::RemoteHeaderNames;
use crate::message::AllowedHeaders;
use crate::process::{Problem, Problems};
use crate::registry::{LongRunning, UpstreamSettings, UpstreamUrl};
use crate::tls::PairFiles;

const FIELDS: [&str; 8] = [
    "path",
    "backend",
    "backend_server_ca",
    "proxy_client_cert",
    "proxy_client_key",
    "user_header",
    "group_header",
    "extra_header_prefix",
];

/// The values of a mapping, each with its line.
struct PathMapping<'p> {
    file: &'p Path,
    /// The entry in messages.
    entry: String,
    line: u64,
    values: BTreeMap<String, (u64, String)>,
}

impl PathMapping<'_> {
    fn get(&self, field: &str) -> Option<&str> {
        self.values.get(field).map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    }

    fn problem(&self, field: &str, message: impl std::fmt::Display) -> Problem {
        let line = self.values.get(field).map_or(self.line, |(line, _)| *line);
        Problem::at_field(
            format_args!("{} line {line}", self.file.display()),
            format_args!("{}.{field}", self.entry),
            message,
        )
    }

    fn header_name(&self, field: &str, default: &str, problems: &mut Problems) -> Option<HeaderName> {
        let name = HeaderName::from_str(self.get(field).unwrap_or(default));
        problems.collect(name.map_err(|_| self.problem(field, "not a valid header name")))
    }
}

/// Reads one mapping.
pub(super) fn control_plane(
    file: &Path,
    fields: ControlPlaneFields,
    gateway: &GatewayConfig,
    problems: &mut Problems,
) -> Option<ControlPlaneConfig> {
    let before = problems.0.len();
    let ControlPlaneFields { position, line, entries } = fields;
    let mut mapping = PathMapping { file, entry: format!("[{position}]"), line, values: BTreeMap::new() };
    for Entry { name, line, value } in entries {
        match value {
            _ if !FIELDS.contains(&name.as_str()) => {
                mapping.values.insert(name.clone(), (line, String::new()));
                let supported = FIELDS.join(", ");
                problems.0.push(mapping.problem(&name, format_args!("unknown field; the fields are {supported}")));
            }
            YamlValue::One(value) => drop(mapping.values.insert(name, (line, value))),
            YamlValue::Null => {}
            value => {
                mapping.values.insert(name.clone(), (line, String::new()));
                problems.0.push(mapping.problem(&name, format_args!("{value} does not fit; one text is needed")));
            }
        }
    }
    let path = mapping.get("path").unwrap_or_default().trim_end_matches('/').to_owned();
    if mapping.get("path").is_none() {
        problems.0.push(mapping.problem("path", "required"));
    } else if let Some(message) = path_problem(&path).filter(|_| !path.is_empty()) {
        problems.0.push(mapping.problem("path", message));
    }
    let url = match mapping.get("backend") {
        None => {
            problems
                .0
                .push(mapping.problem("backend", "required: the URL of the server, such as https://localhost:6443"));
            None
        }
        // The prefix is removed before the request is authorized, and is a part of the backend's URL instead.
        Some(url) => {
            let url = UpstreamUrl::parse(&format!("{}{path}", url.trim_end_matches('/')), false);
            problems.collect(url.map_err(|message| mapping.problem("backend", message)))
        }
    };
    let names = RemoteHeaderNames {
        user: mapping.header_name("user_header", "x-remote-user", problems)?,
        group: mapping.header_name("group_header", "x-remote-group", problems)?,
        extra_prefix: mapping.header_name("extra_header_prefix", "x-remote-extra-", problems)?.as_str().to_owned(),
    };
    let resolve = |field: &str| mapping.get(field).map(|path| file.parent().unwrap_or(Path::new("")).join(path));
    let identity = match (resolve("proxy_client_cert"), resolve("proxy_client_key")) {
        (Some(certificate), Some(key)) => Some(PairFiles::new(certificate, key)),
        (None, None) => None,
        _ => {
            problems
                .0
                .push(mapping.problem("proxy_client_cert", "give proxy_client_cert and proxy_client_key together"));
            None
        }
    };
    let (authorities, url) = (resolve("backend_server_ca"), url?);
    if problems.0.len() != before {
        return None;
    }
    let upstream = UpstreamSettings {
        path: "/".to_owned(),
        url,
        authorities,
        identity,
        // kcp has no timeout here: watches below a workspace's path are not recognized as such.
        timeout: Duration::ZERO,
        keeps_host: false,
        allowed_request_headers: AllowedHeaders::default(),
        long_running: LongRunning::default(),
    };
    let name = control_plane_name(&path);
    let given = mapping.values.iter().map(|(field, (_, value))| (field.clone(), vec![value.clone()])).collect();
    let config = relay_config(&name, upstream, names, path.is_empty(), gateway);
    let selector = ControlPlaneSelector::PathPrefix(path);
    Some(ControlPlaneConfig { name, selector, gateway: config, diagnostics: Diagnostics::default(), fields: given })
}

/// The configuration of a relay of all paths to `upstream`, with the authentication and authorization of `gateway`.
fn relay_config(
    name: &str,
    upstream: UpstreamSettings,
    names: RemoteHeaderNames,
    serves_health: bool,
    gateway: &GatewayConfig,
) -> GatewayConfig {
    let mut config = gateway.clone();
    config.data_dir = super::data_dir(name, gateway);
    config.control_planes = None;
    config.embedded_api = None;
    config.serve_delegation = false;
    config.serving.tls.pair = None;
    config.serving.tls.named = Vec::new();
    super::without_observers(&mut config);
    config.backends = BackendsConfig {
        upstreams: vec![upstream],
        registry: None,
        delegate: None,
        delegates_unclaimed_paths: false,
        delegates_metrics: false,
        cluster: None,
        election: None,
        proxy_client: None,
        egress: None,
        environment_proxies: None,
        ..gateway.backends.clone()
    };
    // A client must not send them itself.
    let headers = &mut config.authentication.request_header;
    let add = |list: &mut Vec<String>, name: &str| {
        if list.iter().all(|listed| !listed.eq_ignore_ascii_case(name)) {
            list.push(name.to_owned());
        }
    };
    add(&mut headers.username_headers, names.user.as_str());
    add(&mut headers.group_headers, names.group.as_str());
    add(&mut headers.extra_prefixes, &names.extra_prefix);
    config.sidecar.identity_headers.names = Some(names);
    // Below a path, health checks are the backend's.
    config.sidecar.serves_health = serves_health;
    config
}

/// A name from the path: letters and digits, and dashes between them.
fn control_plane_name(path: &str) -> String {
    let plain = |character: char| if character.is_ascii_alphanumeric() { character.to_ascii_lowercase() } else { '-' };
    let text: String = path.chars().map(plain).collect();
    // A label has at most 63 characters.
    let text: String = text.trim_matches('-').chars().take(63).collect();
    match text.trim_end_matches('-') {
        "" => "default".to_owned(),
        text => text.to_owned(),
    }
}
