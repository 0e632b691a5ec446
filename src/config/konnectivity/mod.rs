//! Configuration of the Konnectivity server and agent: the flags of the reference
//! (`apiserver-network-proxy/cmd/server/app/options`, `cmd/agent/app/options`).

mod agent;
mod server;

pub use agent::{KonnectivityAgentCommand, KonnectivityAgentConfig};
pub use server::{
    AgentTokenConfig, FrontendAddress, FrontendMode, KonnectivityServerCommand, KonnectivityServerConfig,
};

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::flag::{Flag, FlagGroup, FlagKind};
use super::observability_flags::{LOG_FORMAT, LOG_LEVEL, VERBOSITY};
use super::parser::FlagParser;
use crate::egress::{BareName, DestinationPattern};
use crate::konnectivity::leases::LeaseSettings;
use crate::kubeclient::{IN_CLUSTER, KubeconfigSource};

const LEASE_NAMESPACE: Flag =
    Flag::new("lease-namespace", FlagKind::Text("NAME"), "kube-system", "Namespace of the Leases of servers");
const LEASE_LABEL: Flag = Flag::new(
    "lease-label",
    FlagKind::Text("LABEL"),
    "k8s-app=konnectivity-server",
    "Label of the Leases of servers, as key=value; several are separated by commas",
);

/// Leases of servers in an API server.
#[derive(Clone, Debug)]
pub struct LeaseConfig {
    /// Which they are.
    pub settings: LeaseSettings,
    /// `--kubeconfig`, or that of the pod's cluster.
    pub kubeconfig: KubeconfigSource,
}

/// Reads the flags of Leases, if they are turned on.
fn leases(parser: &mut FlagParser<'_>, switch: &str) -> Option<LeaseConfig> {
    let (namespace, labels) = (parser.text("lease-namespace"), parser.text("lease-label"));
    let kubeconfig = kubeconfig(parser);
    if !parser.switch(switch) {
        return None;
    }
    if namespace.is_empty() {
        parser.add_problem("lease-namespace", "is empty: name a namespace");
    }
    let labels = LeaseSettings::parse_labels(&labels).unwrap_or_else(|why| {
        parser.add_problem("lease-label", why);
        Vec::new()
    });
    let settings = LeaseSettings { namespace, labels };
    Some(LeaseConfig { settings, kubeconfig })
}

/// Reads `--kubeconfig`. Without it, the API server is that of the pod's cluster.
fn kubeconfig(parser: &mut FlagParser<'_>) -> KubeconfigSource {
    KubeconfigSource::from_flag(parser.path("kubeconfig").unwrap_or_else(|| IN_CLUSTER.into()))
}

/// Reads `--allow-destinations`.
fn allowed_destinations(parser: &mut FlagParser<'_>) -> Vec<DestinationPattern> {
    const FLAG: &str = "allow-destinations";
    let patterns = parser.list(FLAG);
    if patterns.is_empty() && parser.is_given(FLAG) {
        parser.add_problem(FLAG, "is empty: no destination would be allowed");
    }
    let mut allow = Vec::new();
    for text in patterns {
        match DestinationPattern::parse(text.trim(), BareName::Exact) {
            Ok(pattern) => allow.push(pattern),
            Err(why) => parser.add_problem(FLAG, format_args!("{text:?}: {why}")),
        }
    }
    allow
}

const IGNORED_HELP: &str = "Accepted, without effect";

/// Log flags, with those of klog.
static LOG: FlagGroup = FlagGroup {
    heading: "Log",
    flags: &[
        LOG_FORMAT,
        LOG_LEVEL,
        VERBOSITY,
        Flag::new("logtostderr", FlagKind::Switch, "true", IGNORED_HELP),
        Flag::new("alsologtostderr", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("add-dir-header", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("one-output", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("skip-headers", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("skip-log-headers", FlagKind::Switch, "false", IGNORED_HELP),
        Flag::new("alsologtostderrthreshold", FlagKind::Text("LEVEL"), "", IGNORED_HELP),
        Flag::new("legacy-stderr-threshold-behavior", FlagKind::Switch, "true", IGNORED_HELP),
        Flag::new("stderrthreshold", FlagKind::Text("LEVEL"), "", IGNORED_HELP),
        Flag::new("log-backtrace-at", FlagKind::Text("PLACE"), "", IGNORED_HELP),
        Flag::new("log-dir", FlagKind::Text("DIR"), "", IGNORED_HELP),
        Flag::new("log-file", FlagKind::Text("FILE"), "", IGNORED_HELP),
        Flag::new("log-file-max-size", FlagKind::Count, "0", IGNORED_HELP),
        Flag::new("vmodule", FlagKind::Text("PATTERN=LEVEL,…"), "", IGNORED_HELP),
    ],
};

/// Reads a port as the reference does: no ephemeral and no reserved one. 0 is allowed where it means none or a free one.
fn port(parser: &mut FlagParser<'_>, name: &str, listener: &str) -> u16 {
    let port = parser.count(name, u64::from(u16::MAX));
    if port > 49_151 {
        parser
            .add_problem(name, format_args!("please do not try to use ephemeral port {port} for the {listener} port"));
    } else if port != 0 && port < 1024 {
        parser.add_problem(name, format_args!("please do not try to use reserved port {port} for the {listener} port"));
    }
    u16::try_from(port).unwrap_or(0)
}

/// Reads an address and a port. An empty address is every address.
fn address(parser: &mut FlagParser<'_>, address: &str, port_flag: &str, listener: &str) -> SocketAddr {
    let port = port(parser, port_flag, listener);
    let ip = parser.parse(address, |text| match text {
        "" => Ok(IpAddr::from(Ipv6Addr::UNSPECIFIED)),
        "localhost" => Ok(IpAddr::from([127, 0, 0, 1])),
        text => text.parse::<IpAddr>().map_err(|_| "use an IP address"),
    });
    SocketAddr::new(ip.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port)
}

/// Checks the values of flags without effect.
fn check_ignored(parser: &mut FlagParser<'_>, groups: &'static [&'static FlagGroup]) {
    let ignored = groups.iter().flat_map(|group| group.flags).filter(|flag| flag.help.starts_with(IGNORED_HELP));
    parser.check_ignored(ignored);
}

/// The id of a flag, else of an environment variable, else a random one.
fn instance_id(parser: &mut FlagParser<'_>, flag: &str, variable: &str) -> String {
    let id = parser.text(flag);
    let id = Some(id).filter(|id| !id.is_empty()).or_else(|| parser.environment(variable));
    id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::arguments::CommandFlags;

    #[test]
    fn konnectivity_flags_without_effect_are_documented() {
        let page = include_str!("../../../docs/reference/konnectivity-differences.md");
        let section = page.split("\n## ").find(|section| section.starts_with("Flags without effect\n")).unwrap();
        let table = section.split("\nDefaults that differ:").next().unwrap();
        let rows = table.lines().filter_map(|line| line.strip_prefix("| `--"));
        let names = rows.flat_map(|row| row.split(" | ").next().unwrap_or_default().split(", "));
        let documented: BTreeSet<&str> = names.map(|name| name.trim_matches(['`', '-'])).collect();
        let groups = KonnectivityServerCommand::FLAGS.iter().chain(KonnectivityAgentCommand::FLAGS);
        let ignored = groups.flat_map(|group| group.flags).filter(|flag| flag.help.starts_with(IGNORED_HELP));
        assert_eq!(documented, ignored.map(|flag| flag.name).collect());
    }
}
