//! `--control-planes-config`: the control planes behind one gateway, each with the configuration of a gateway of its own.
//!
//! A control plane inherits no credential, CA or policy of the gateway: a field that is not given has its default.

mod document;
mod kcp_mapping;
mod selector;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use self::document::{ControlPlaneFields, ControlPlanesDocument};
pub use self::selector::ControlPlaneSelector;

use kubeapi::names;

use super::file::{Entry, YamlValue, flag_values, unknown_entry_field};
use super::flag::{Flag, flags};
use super::gateway::flags::GATEWAY;
use super::gateway::gateway_config;
use super::parser::{Diagnostics, FlagParser};
use super::raw::RawFlags;
use super::value::{FlagValue, ValueSource};
use super::{API_VERSION, GatewayConfig};
use crate::process::{Problem, Problems};

/// `kind` of the file.
const KIND: &str = "ControlPlanes";

/// Largest accepted file, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The flags of a gateway that are fields of a control plane, by their names in camelCase. All others are the process's.
const FIELDS: &[&str] = &[
    "aggregator-reject-forwarding-redirect",
    "allow-external-name",
    "allow-url-backends",
    "anonymous-auth",
    "api-audiences",
    "authentication-config",
    "authentication-drop-groups",
    "authentication-kubeconfig",
    "authentication-pass-on-groups",
    "authentication-skip-lookup",
    "authentication-token-webhook-cache-ttl",
    "authentication-token-webhook-config-file",
    "authentication-token-webhook-version",
    "authentication-tolerate-lookup-failure",
    "authorization-always-allow-paths",
    "authorization-config",
    "authorization-kubeconfig",
    "authorization-mode",
    "authorization-policy-file",
    "authorization-stale-allow-ttl",
    "authorization-webhook-cache-authorized-ttl",
    "authorization-webhook-cache-unauthorized-ttl",
    "authorization-webhook-config-file",
    "authorization-webhook-version",
    "client-ca-file",
    "cors-allowed-origins",
    "delegate-kubeconfig",
    "enable-aggregator-routing",
    "error-format",
    "forward-uid",
    "kubeconfig",
    "leader-elect",
    "leader-elect-resource-name",
    "leader-elect-resource-namespace",
    "max-mutating-requests-inflight",
    "max-requests-inflight",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "readiness-requires-reviews",
    "registry-dir",
    "registry-strict",
    "request-timeout",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-uid-headers",
    "requestheader-username-headers",
    "serve-delegation",
    "serving-metrics",
    "strict-transport-security-directives",
    "tls-cert-file",
    "tls-private-key-file",
    "token-auth-file",
    "zone",
];

/// The flags of which a control plane needs at least one.
const BACKENDS: [&str; 3] = ["registry-dir", "kubeconfig", "delegate-kubeconfig"];

/// One control plane.
#[derive(Clone, Debug)]
pub struct ControlPlaneConfig {
    /// Its name in logs, metrics, audit events and the data directory: a DNS label.
    pub name: String,
    /// The requests that it gets.
    pub selector: ControlPlaneSelector,
    /// The configuration of its gateway.
    pub gateway: GatewayConfig,
    /// Where the fields that name files are, for [`ControlPlaneConfig::locate`].
    diagnostics: Diagnostics,
    /// Its fields as written.
    fields: BTreeMap<String, Vec<String>>,
}

impl ControlPlaneConfig {
    /// Whether both are written in the same way, so that a running control plane stays as it is.
    pub fn is_same(&self, other: &ControlPlaneConfig) -> bool {
        (&self.name, &self.selector, &self.fields) == (&other.name, &other.selector, &other.fields)
    }

    /// Problems of the files that its fields name, each with the place of the field.
    pub fn locate(&self, problems: Problems) -> Problems {
        let mut located = self.diagnostics.clone();
        located.add_file_problems(problems);
        located.problems
    }

    /// Warnings about its fields.
    pub fn warnings(&self) -> &[Problem] {
        &self.diagnostics.warnings
    }
}

/// Reads the file at `path` of a gateway with the configuration `gateway`. The files that it names are not read.
///
/// # Errors
/// All mistakes in the file, each with its line and field.
pub fn load(path: &Path, gateway: &GatewayConfig) -> Result<Vec<ControlPlaneConfig>, Problems> {
    let text = crate::process::read_text_file(path, MAX_FILE_BYTES)?;
    parse(path, &text, gateway)
}

fn parse(path: &Path, text: &str, gateway: &GatewayConfig) -> Result<Vec<ControlPlaneConfig>, Problems> {
    let mut problems = Problems::default();
    let document = document::parse(path, text)?;
    let control_planes: Vec<ControlPlaneConfig> = match document {
        ControlPlanesDocument::PathMappings(mappings) => mappings
            .into_iter()
            .filter_map(|fields| kcp_mapping::control_plane(path, fields, gateway, &mut problems))
            .collect(),
        ControlPlanesDocument::ControlPlanes { header, entries } => {
            check_header(path, header, &mut problems);
            entries.into_iter().filter_map(|fields| control_plane(path, fields, gateway, &mut problems)).collect()
        }
    };
    check_unique(path, &control_planes, &mut problems);
    problems.into_result(control_planes)
}

fn check_header(path: &Path, header: Vec<Entry>, problems: &mut Problems) {
    let mut missing = BTreeMap::from([("apiVersion", API_VERSION), ("kind", KIND)]);
    for Entry { name, line, value } in header {
        let location = format!("{} line {line}", path.display());
        match (missing.remove(name.as_str()), value) {
            (Some(expected), YamlValue::One(value)) if value == expected => {}
            (Some(expected), value) => {
                problems.0.push(Problem::at_field(
                    location,
                    name,
                    format_args!("{value} is not known here; use {expected}"),
                ));
            }
            (None, _) => {
                let message = "unknown field; the fields are apiVersion, kind and controlPlanes";
                problems.0.push(Problem::at_field(location, name, message));
            }
        }
    }
    for (field, expected) in missing {
        problems.0.push(Problem::at_field(path.display(), field, format_args!("missing; use {expected}")));
    }
}

/// Reads an entry of `controlPlanes`.
fn control_plane(
    path: &Path,
    fields: ControlPlaneFields,
    gateway: &GatewayConfig,
    problems: &mut Problems,
) -> Option<ControlPlaneConfig> {
    let ControlPlaneFields { position, line, entries } = fields;
    let before = problems.0.len();
    let own = entries.iter().find(|entry| entry.name == "name");
    let prefix = match own.map(|entry| &entry.value) {
        Some(YamlValue::One(name)) => format!("controlPlanes[{name}]"),
        _ => format!("controlPlanes[{position}]"),
    };
    let location_at = |line: u64| format!("{} line {line}", path.display());
    let (mut name, mut hosts, mut path_prefix) = (None, None, None);
    let (mut values, mut written) = (BTreeMap::new(), BTreeMap::new());
    for Entry { name: field, line, value } in entries {
        let (location, at) = (location_at(line), format!("{prefix}.{field}"));
        let target = match field.as_str() {
            "name" => &mut name,
            "pathPrefix" => &mut path_prefix,
            "hosts" => {
                match value {
                    YamlValue::One(host) => hosts = Some(vec![host]),
                    YamlValue::Many(several) => hosts = Some(several),
                    YamlValue::Null => {}
                    value @ YamlValue::Map => {
                        problems.0.push(Problem::at_field(
                            location,
                            at,
                            format_args!("{value} does not fit; a list of host names is needed"),
                        ));
                    }
                }
                continue;
            }
            _ => {
                let Some(flag) = field_flag(&field) else {
                    problems.0.push(Problem::at_field(
                        location,
                        at,
                        unknown_entry_field(&field, FIELDS.iter().filter_map(|name| find_flag(name))),
                    ));
                    continue;
                };
                match flag_values(flag, value) {
                    Ok(None) => {}
                    Ok(Some(given)) => {
                        written.insert(flag.field_name(), given.clone());
                        let value = FlagValue {
                            values: given,
                            source: ValueSource::File { location: location.clone(), field: at.clone() },
                        };
                        if values.insert(flag.name, value).is_some() {
                            problems.0.push(Problem::at_field(location, at, "given twice, in two spellings"));
                        }
                    }
                    Err(message) => problems.0.push(Problem::at_field(location, at, message)),
                }
                continue;
            }
        };
        match value {
            YamlValue::One(value) => *target = Some(value),
            YamlValue::Null => {}
            value => problems.0.push(Problem::at_field(
                location,
                at,
                format_args!("{value} does not fit; one text is needed"),
            )),
        }
    }
    let location = location_at(line);
    let name = match name {
        Some(name) if names::is_dns_label(&name) => name,
        Some(name) => {
            let message = format_args!("{name:?} is not a DNS label: at most 63 lower-case letters, digits and -");
            problems.0.push(Problem::at_field(&location, format_args!("{prefix}.name"), message));
            String::new()
        }
        None => {
            problems.0.push(Problem::at_field(&location, format_args!("{prefix}.name"), "required"));
            String::new()
        }
    };
    let selector = ControlPlaneSelector::parse(hosts, path_prefix, &location, &prefix, problems);
    if BACKENDS.iter().all(|backend| !values.contains_key(backend)) {
        let message = "has no backend; give registryDir, kubeconfig or delegateKubeconfig";
        problems.0.push(Problem::at_field(&location, &prefix, message));
    }
    let (config, diagnostics) = entry_config(path, &name, values, gateway);
    problems.0.extend(diagnostics.problems.0.iter().cloned());
    let diagnostics = Diagnostics { problems: Problems::default(), ..diagnostics };
    let selector = selector.filter(|_| problems.0.len() == before)?;
    Some(ControlPlaneConfig { name, selector, gateway: config, diagnostics, fields: written })
}

/// The configuration of a gateway with these flags, which serves no port of its own.
fn entry_config(
    path: &Path,
    name: &str,
    mut values: BTreeMap<&'static str, FlagValue>,
    gateway: &GatewayConfig,
) -> (GatewayConfig, Diagnostics) {
    let data_dir = data_dir(name, gateway).display().to_string();
    values.insert("data-dir", FlagValue { values: vec![data_dir], source: ValueSource::CommandLine });
    let folder = path.parent().map(Path::to_owned).unwrap_or_default();
    let raw = RawFlags::from_entry(folder, values);
    let mut parser = FlagParser::new(&raw, GATEWAY, "", &|_| None);
    let mut config = gateway_config(&mut parser);
    let diagnostics = parser.finish();
    share_process_settings(&mut config, gateway);
    (config, diagnostics)
}

/// Sets what is the same for all control planes, because it belongs to the process.
fn share_process_settings(config: &mut GatewayConfig, gateway: &GatewayConfig) {
    let tls = &mut config.serving.tls;
    tls.min_version.clone_from(&gateway.serving.tls.min_version);
    tls.cipher_suites.clone_from(&gateway.serving.tls.cipher_suites);
    tls.http2 = gateway.serving.tls.http2;
    config.serving.address = gateway.serving.address;
    config.serving.goaway_chance = gateway.serving.goaway_chance;
    config.shutdown = gateway.shutdown.clone();
    config.backends.resolver = gateway.backends.resolver;
    config.observability = gateway.observability.clone();
    without_observers(config);
}

/// The gateway's audit log and traces have the requests of all control planes.
fn without_observers(config: &mut GatewayConfig) {
    config.observability.audit = None;
    config.observability.tracing_config_file = None;
    config.observability.admin_token_file = None;
}

/// The directory of the last good state of the control plane `name`.
fn data_dir(name: &str, gateway: &GatewayConfig) -> PathBuf {
    gateway.data_dir.join("control-planes").join(name)
}

/// The flag of a field. Letter case is ignored: Kubernetes' own files have `clientCAFile`.
fn field_flag(field: &str) -> Option<&'static Flag> {
    FIELDS.iter().filter_map(|name| find_flag(name)).find(|flag| flag.field_name().eq_ignore_ascii_case(field))
}

fn find_flag(name: &str) -> Option<&'static Flag> {
    flags(GATEWAY).find(|flag| flag.name == name)
}

/// Checks that no two control planes have a name, a host or a path prefix in common.
fn check_unique(path: &Path, control_planes: &[ControlPlaneConfig], problems: &mut Problems) {
    let mut used: BTreeSet<(&str, &str)> = BTreeSet::new();
    for control_plane in control_planes {
        let prefix = format!("controlPlanes[{}]", control_plane.name);
        let mut check = |field: &'static str, value| {
            if !used.insert((field, value)) {
                let message = format_args!("{value} belongs to two control planes");
                problems.0.push(Problem::at_field(path.display(), format_args!("{prefix}.{field}"), message));
            }
        };
        check("name", control_plane.name.as_str());
        match &control_plane.selector {
            ControlPlaneSelector::Hosts(hosts) => hosts.iter().for_each(|host| check("hosts", host)),
            ControlPlaneSelector::PathPrefix(prefix) => check("pathPrefix", prefix),
        }
    }
}
