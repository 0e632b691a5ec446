//! Settings of the embedded API server (`--embedded-api` and its flags).

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::backends::{ForwardingConfig, registry_settings};
use super::object_store::{self, ObjectStoreConfig, object_store};
use super::service_accounts::{self, ServiceAccountConfig, service_accounts};
use crate::config::parser::FlagParser;
use crate::controllers::EnabledControllers;
use crate::kinds::ValidationSettings;
use crate::resources::runtime_config::RuntimeConfig;
use crate::rest::{
    ApiServerSettings, DEFAULT_KEY_ROOT, DisabledPlugins, ServiceSettings, parse_port_range, parse_service_ranges,
};

/// The embedded API server and its store.
#[derive(Clone, Debug)]
pub struct EmbeddedApiConfig {
    /// Where its objects are.
    pub store: ObjectStoreConfig,
    /// Settings of the embedded API server.
    pub settings: ApiServerSettings,
    /// The controllers that run.
    pub controllers: EnabledControllers,
    /// Tokens of ServiceAccounts.
    pub service_accounts: ServiceAccountConfig,
}

const NAME: &str = "embedded-api";

/// Whether the embedded API server runs: by default if nothing else says what lies behind the gateway.
pub(in crate::config) fn is_enabled(parser: &mut FlagParser<'_>) -> bool {
    let others = ["registry-dir", "kubeconfig", "delegate-kubeconfig"];
    parser.optional_switch(NAME).unwrap_or_else(|| !others.iter().any(|flag| parser.is_given(flag)))
}

/// Reads the flags; none if the embedded API server does not run.
pub(in crate::config) fn embedded_api(
    parser: &mut FlagParser<'_>,
    is_enabled: bool,
    data_dir: &Path,
    forwarding: &ForwardingConfig,
) -> Option<EmbeddedApiConfig> {
    let store = object_store(parser, data_dir);
    let event_ttl = parser.positive_duration("event-ttl");
    let min_request_timeout = Duration::from_secs(parser.count("min-request-timeout", u64::from(u32::MAX)));
    let runtime_config = parser.list("runtime-config");
    let controllers = EnabledControllers::parse(&parser.list("controllers"));
    let has_collector = parser.switch("enable-garbage-collector");
    let warns_unenforced = parser.switch("unenforced-warnings");
    let disabled_plugins = DisabledPlugins::parse(&parser.list("disable-admission-plugins")).unwrap_or_else(|why| {
        parser.add_problem("disable-admission-plugins", why);
        DisabledPlugins::default()
    });
    let services = service_settings(parser);
    let service_accounts = service_accounts(parser, data_dir);
    let validation = ValidationSettings {
        registry: registry_settings(parser, data_dir, forwarding),
        allows_unenforced_rules: parser.switch("allow-unenforced-rules"),
        service_families: services.families(),
    };
    if !is_enabled {
        let own = [
            "store-file",
            "runtime-config",
            "event-ttl",
            "enable-garbage-collector",
            "controllers",
            "allow-unenforced-rules",
            "unenforced-warnings",
            "disable-admission-plugins",
            "unsafe-no-fsync",
            "service-cluster-ip-range",
            "service-node-port-range",
            "kubernetes-service-node-port",
            "advertise-address",
        ];
        for flag in own.into_iter().chain(object_store::ETCD_FLAGS).chain(service_accounts::FLAGS) {
            if parser.is_given(flag) {
                parser.add_problem(flag, "needs --embedded-api");
            }
        }
        return None;
    }
    for flag in ["kubeconfig", "delegate-kubeconfig"] {
        if parser.is_given(flag) {
            parser.add_problem(NAME, format_args!("cannot be given together with --{flag}"));
        }
    }
    if parser.is_given("registry-dir") {
        parser.add_warning(
            "registry-dir",
            "kubectl get apiservices lists only the APIServices that --embedded-api stores; those of the directory are \
             served, and listed by narthex status",
        );
    }
    let runtime_config = RuntimeConfig::parse(&runtime_config).unwrap_or_else(|why| {
        parser.add_problem("runtime-config", why);
        RuntimeConfig::default()
    });
    let controllers = controllers.unwrap_or_else(|why| {
        parser.add_problem("controllers", why);
        EnabledControllers::default()
    });
    let catalog = Arc::new(runtime_config.catalog());
    let request_timeout = forwarding.request_timeout;
    let etcd = store.etcd();
    let settings = ApiServerSettings {
        key_root: etcd.map_or_else(|| DEFAULT_KEY_ROOT.into(), |etcd| etcd.prefix.as_str().into()),
        shares_store: etcd.is_some(),
        is_read_only: etcd.is_some_and(|etcd| etcd.is_read_only),
        event_ttl,
        min_request_timeout,
        catalog,
        request_timeout,
        validation,
        has_collector,
        warns_unenforced,
        disabled_plugins,
        services,
    };
    Some(EmbeddedApiConfig { store, settings, controllers, service_accounts })
}

/// Reads the flags of what is made for Services.
fn service_settings(parser: &mut FlagParser<'_>) -> ServiceSettings {
    const NODE_PORT: &str = "kubernetes-service-node-port";
    let mut settings = ServiceSettings::default();
    if let Some(ranges) = parser.parse("service-cluster-ip-range", parse_service_ranges) {
        (settings.primary_range, settings.secondary_range) = ranges;
    }
    if let Some(ports) = parser.parse("service-node-port-range", parse_port_range) {
        settings.node_ports = ports;
    }
    let node_port = u16::try_from(parser.count(NODE_PORT, u64::from(u16::MAX))).unwrap_or_default();
    settings.kubernetes_node_port = Some(node_port).filter(|port| *port > 0);
    if node_port > 0 && !settings.node_ports.contains(&node_port) {
        let (first, last) = (settings.node_ports.start(), settings.node_ports.end());
        let why = format!("kubernetes service node port range {first}-{last} doesn't contain {node_port}");
        parser.add_problem(NODE_PORT, why);
    }
    if !parser.text("advertise-address").is_empty() {
        let address = parser.parse("advertise-address", |text| text.parse::<IpAddr>().map_err(|_| "not an IP address"));
        settings.advertise_address = address.filter(|address| !address.is_unspecified());
    }
    if let Some(address) = settings.advertise_address
        && address.is_ipv6() != settings.primary_range.addr().is_ipv6()
    {
        let range = settings.primary_range;
        let why = format!("service IP family \"{range}\" must match public address family \"{address}\"");
        parser.add_problem("advertise-address", why);
    }
    settings
}
