//! The settings of `narthex socks5`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::arguments::{Arguments, CommandFlags};
use super::flag::{Flag, FlagGroup, FlagKind};
use super::gateway::ResolverChoice;
use super::parser::{Diagnostics, FlagParser};
use super::{host_port, observability, observability_flags};
use crate::egress::{BareName, CLUSTER, DestinationPattern};
use crate::observe::{access, log};

static LISTENER: FlagGroup = FlagGroup {
    heading: "Listener",
    flags: &[
        Flag::new(
            "listen",
            FlagKind::Text("HOST:PORT"),
            "127.0.0.1:1080",
            "Address to listen on: an address or a name, or :PORT for every address of this machine; port 0 takes a free one and prints it",
        ),
        Flag::new(
            "credentials-file",
            FlagKind::File,
            "",
            "Users allowed to connect: lines of user:password. Required when --listen is not a loopback address. Followed on disk",
        ),
        Flag::new(
            "allow-destinations",
            FlagKind::List("DESTINATION"),
            "",
            "Allowed destinations: names (a.example), subdomains (*.a.example), addresses and networks (10.0.0.0/8), each with :port or for every port; * for all, the default when --listen is a loopback address. A name is compared as the client sends it, before DNS resolution",
        ),
        Flag::new(
            "max-connections",
            FlagKind::Count,
            "0",
            "Client connections at the same time; 0 for as many as the limit on open files allows",
        ),
        Flag::new(
            "handshake-timeout",
            FlagKind::Duration,
            "10s",
            "Time a client has to authenticate and send its destination",
        ),
        Flag::new(
            "drain-timeout",
            FlagKind::Duration,
            "30s",
            "After SIGTERM no new connections are accepted, and open ones have this time to finish",
        ),
    ],
};

static BACKENDS: FlagGroup = FlagGroup {
    heading: "Backends",
    flags: &[
        Flag::new(
            "egress-selector-config-file",
            FlagKind::File,
            "",
            "Egress routes to destinations: kube-apiserver's EgressSelectorConfiguration (apiserver.k8s.io/v1beta1), or EgressConfiguration (narthex.dev/v1alpha1). Followed on disk",
        ),
        Flag::new("egress", FlagKind::Text("NAME"), "cluster", "Selection of that file for all connections"),
        Flag::new(
            "resolver",
            FlagKind::Choice(&["system", "hickory"]),
            "system",
            "DNS resolver where no proxy resolves names: the system's, or hickory-resolver within this process",
        ),
    ],
};

static OBSERVABILITY: FlagGroup = FlagGroup {
    heading: "Observability",
    flags: &[
        Flag::new(
            "access-log",
            FlagKind::Choice(&["off", "errors", "all"]),
            "errors",
            "Connections to log when they end: none; refused or failed ones; all",
        ),
        observability_flags::ACCESS_LOG_FORMAT,
        Flag::new(
            "admin-address",
            FlagKind::Text("HOST:PORT"),
            "",
            "Admin listener (plain HTTP: status page, metrics, health), such as 127.0.0.1:6481 (default: none)",
        ),
        observability_flags::ADMIN_TOKEN_FILE,
        observability_flags::LOG_FORMAT,
        observability_flags::LOG_LEVEL,
        observability_flags::VERBOSITY,
    ],
};

/// The command `narthex socks5`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Socks5Command;

impl CommandFlags for Socks5Command {
    const FLAGS: &'static [&'static FlagGroup] = &[&LISTENER, &BACKENDS, &OBSERVABILITY];
    const KIND: &'static str = "";
}

/// Configuration of the SOCKS5 proxy.
#[derive(Clone, Debug)]
pub struct Socks5Config {
    /// Address to listen on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Users allowed to connect; no authentication without it.
    pub credentials_file: Option<PathBuf>,
    /// Allowed destinations; one of these must match.
    pub allow: Vec<DestinationPattern>,
    /// Maximum client connections; 0 for as many as descriptors allow.
    pub max_connections: usize,
    /// Timeout of the SOCKS5 handshake.
    pub handshake_timeout: Duration,
    /// Timeout of the drain at shutdown.
    pub drain_timeout: Duration,
    /// The egress file and the selection for all connections; none for direct connections.
    pub egress: Option<(PathBuf, String)>,
    /// DNS resolver.
    pub resolver: ResolverChoice,
    /// The access log.
    pub access: access::Settings,
    /// Address of the admin listener; none disables it.
    pub admin_address: Option<SocketAddr>,
    /// File with the token that the admin listener requires, if any.
    pub admin_token_file: Option<PathBuf>,
    /// The log.
    pub log: log::Settings,
}

impl Arguments<Socks5Command> {
    /// Reads command line and environment.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (Socks5Config, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, Socks5Command::FLAGS, Socks5Command::KIND, environment);
        let listen = parser.parse("listen", host_port::listen_address).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 0)));
        let credentials_file = parser.path("credentials-file");
        let only_this_machine = listen.ip().to_canonical().is_loopback();
        if !only_this_machine && credentials_file.is_none() {
            let message = "required: --listen is not a loopback address, and every client that reaches it could connect through it";
            parser.add_problem("credentials-file", message);
        }
        let config = Socks5Config {
            listen,
            credentials_file,
            allow: allowed_destinations(&mut parser, only_this_machine),
            max_connections: parser.memory_count("max-connections"),
            handshake_timeout: parser.positive_duration("handshake-timeout"),
            drain_timeout: parser.duration("drain-timeout"),
            egress: egress_selection(&mut parser),
            resolver: match parser.choice("resolver").as_str() {
                "hickory" => ResolverChoice::Hickory,
                _ => ResolverChoice::System,
            },
            access: observability::access_log_settings(&mut parser),
            admin_address: observability::admin_address(&mut parser),
            admin_token_file: parser.path("admin-token-file"),
            log: observability::log_settings(&mut parser),
        };
        (config, parser.finish())
    }
}

fn allowed_destinations(parser: &mut FlagParser<'_>, only_this_machine: bool) -> Vec<DestinationPattern> {
    const FLAG: &str = "allow-destinations";
    let patterns = parser.list(FLAG);
    if patterns.is_empty() && parser.is_given(FLAG) {
        parser.add_problem(FLAG, "is empty: no destination would be allowed");
    } else if patterns.is_empty() && !only_this_machine {
        let message = "required: --listen is not a loopback address; give the allowed destinations, or * for all";
        parser.add_problem(FLAG, message);
    }
    let everything = patterns.is_empty().then(|| "*".to_owned());
    let mut allow = Vec::new();
    for text in patterns.into_iter().chain(everything) {
        match DestinationPattern::parse(text.trim(), BareName::Exact) {
            Ok(pattern) => allow.push(pattern),
            Err(why) => parser.add_problem(FLAG, format_args!("{text:?}: {why}")),
        }
    }
    allow
}

fn egress_selection(parser: &mut FlagParser<'_>) -> Option<(PathBuf, String)> {
    let file = parser.path("egress-selector-config-file");
    let given = parser.is_given("egress");
    let name = parser.text("egress").to_lowercase();
    match file {
        None if given => {
            parser.add_problem(
                "egress",
                "not used without --egress-selector-config-file: all connections would go directly",
            );
            None
        }
        None => None,
        Some(_) if name.is_empty() => {
            parser.add_problem("egress", format_args!("must name a selection, such as {CLUSTER}"));
            None
        }
        Some(file) => Some((file, name)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn read(line: &[&str]) -> Result<Socks5Config, String> {
        let command = Arguments::<Socks5Command>::augment_args(Command::new("socks5"));
        let matches = command.try_get_matches_from(std::iter::once(&"socks5").chain(line)).unwrap();
        let arguments = Arguments::<Socks5Command>::from_arg_matches(&matches).unwrap();
        let (config, mistakes) = arguments.read(&|_| None);
        match mistakes.problems.0.is_empty() {
            true => Ok(config),
            false => Err(mistakes.problems.to_string()),
        }
    }

    #[test]
    fn socks5_defaults_loopback_only() {
        let config = read(&[]).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:1080");
        assert_eq!((config.egress, config.credentials_file, config.admin_address), (None, None, None));
        assert_eq!(config.allow, [DestinationPattern::parse("*", BareName::Exact).unwrap()]);
        assert_eq!((config.handshake_timeout.as_secs(), config.drain_timeout.as_secs()), (10, 30));
    }

    #[test]
    fn socks5_non_loopback_requires_credentials_and_destinations() {
        for address in ["0.0.0.0:1080", "[::]:1080", "10.0.0.1:1080"] {
            let listen = format!("--listen={address}");
            let problems = read(&[&listen]).unwrap_err();
            let places: Vec<_> = problems.lines().map(|line| line.split(':').next().unwrap()).collect();
            assert_eq!(places, ["--credentials-file", "--allow-destinations"], "{problems}");
            assert!(read(&[&listen, "--credentials-file=c", "--allow-destinations=*"]).is_ok());
        }
        for address in ["localhost:0", "127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(read(&[&format!("--listen={address}")]).is_ok(), "{address}");
        }
    }

    #[test]
    fn socks5_flag_error_messages() {
        for (line, expected) in [
            (
                &["--listen=1080"][..],
                "--listen: \"1080\": missing port in address; use HOST:PORT, such as 127.0.0.1:8443 or :8443",
            ),
            (&["--allow-destinations="], "--allow-destinations: is empty: no destination would be allowed"),
            (
                &["--allow-destinations=a.example,10.0.0.0/99"],
                "--allow-destinations: \"10.0.0.0/99\": use a network such as 10.0.0.0/8 or [fd00::/8], optionally followed by a port",
            ),
            (
                &["--egress=dmz"],
                "--egress: not used without --egress-selector-config-file: all connections would go directly",
            ),
            (&["--egress=", "--egress-selector-config-file=f"], "--egress: must name a selection, such as cluster"),
            (&["--handshake-timeout=0s"], "--handshake-timeout: must be greater than 0"),
        ] {
            assert_eq!(read(line).unwrap_err(), expected, "{line:?}");
        }
        let both = read(&["--egress=DMZ", "--egress-selector-config-file=f"]).unwrap();
        assert_eq!(both.egress, Some((PathBuf::from("f"), "dmz".to_owned())));
    }
}
