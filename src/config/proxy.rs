//! The settings of `narthex proxy`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};

use super::arguments::{Arguments, CommandFlags};
use super::environment_proxies::environment_proxies;
use super::flag::{Flag, FlagGroup, FlagKind};
use super::host_port;
use super::kubeconfig_flags;
use super::observability;
use super::observability_flags;
use super::parser::{Diagnostics, FlagParser};
use crate::egress::ProxyEnvironment;
use crate::kubeclient::KubeconfigSource;
use crate::observe::{access, log};

/// kubectl's default port, the only one allowed together with `--unix-socket`.
const DEFAULT_PORT: u16 = 8001;

static LISTENER: FlagGroup = FlagGroup {
    heading: "Listener",
    flags: &[
        Flag::new(
            "config",
            FlagKind::File,
            "",
            "YAML file with any of these flags in camelCase (apiVersion narthex.dev/v1alpha1, kind ProxyConfiguration)",
        ),
        Flag::new(
            "address",
            FlagKind::Text("HOST"),
            "127.0.0.1",
            "Address to listen on: an address or a name, with :port or without, or :port alone for every address of this machine. Every client that reaches it acts with the credentials of the kubeconfig",
        ),
        Flag::new("port", FlagKind::Count, "8001", "Port to listen on; 0 takes a free one and prints it")
            .with_letter('p'),
        Flag::new(
            "unix-socket",
            FlagKind::File,
            "",
            "Unix socket to listen on instead, accessible to its owner only. A stale one is replaced",
        )
        .with_letter('u'),
        Flag::new("api-prefix", FlagKind::Text("PATH"), "/", "Path prefix of the API"),
        Flag::new(
            "www",
            FlagKind::Directory,
            "",
            "Directory of static files to serve; every client of the API may read all of them",
        )
        .with_letter('w'),
        Flag::new("www-prefix", FlagKind::Text("PATH"), "/static/", "Path prefix of the static files").with_letter('P'),
    ],
};

static FILTER: FlagGroup = FlagGroup {
    heading: "Filter",
    flags: &[
        Flag::new(
            "accept-hosts",
            FlagKind::Text("REGEX,…"),
            r"^localhost$,^127\.0\.0\.1$,^\[::1\]$",
            "Accepted values of the header Host. A web page may send requests only to the host and port it was loaded from",
        ),
        Flag::new("accept-paths", FlagKind::Text("REGEX,…"), "^.*", "Paths to serve"),
        Flag::new(
            "reject-paths",
            FlagKind::Text("REGEX,…"),
            "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach",
            "Paths to refuse, even if --accept-paths matches them",
        ),
        Flag::new("reject-methods", FlagKind::Text("REGEX,…"), "^$", "Methods to refuse, such as POST,PUT,PATCH"),
        Flag::new(
            "disable-filter",
            FlagKind::Switch,
            "false",
            "Serve all requests from all origins. Any web page open in a browser on this machine can then use the API",
        ),
    ],
};

static BACKENDS: FlagGroup = FlagGroup {
    heading: "Backends",
    flags: &[
        Flag::new(
            "append-server-path",
            FlagKind::Switch,
            "false",
            "Prepend the path of the server's URL to every request path",
        ),
        Flag::new(
            "keepalive",
            FlagKind::Duration,
            "0s",
            "TCP keep-alive period of client connections; 0 for the default of 15s",
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
            "Requests to log: none; refused or failed ones; all",
        ),
        observability_flags::ACCESS_LOG_FORMAT,
        observability_flags::LOG_FORMAT,
        observability_flags::LOG_LEVEL,
        observability_flags::VERBOSITY,
    ],
};

/// The command `narthex proxy`: a local proxy to an API server, like `kubectl proxy`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProxyCommand;

impl CommandFlags for ProxyCommand {
    const FLAGS: &'static [&'static FlagGroup] =
        &[&LISTENER, &FILTER, &kubeconfig_flags::KUBECONFIG, &BACKENDS, &kubeconfig_flags::IGNORED, &OBSERVABILITY];
    const KIND: &'static str = "ProxyConfiguration";
}

/// Configuration of the local proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Address to listen on.
    pub listen: ProxyListenAddress,
    /// Path prefix of the API; begins and ends with a slash.
    pub api_prefix: String,
    /// Directory and path prefix of the static files, if any.
    pub files: Option<(PathBuf, String)>,
    /// Filter of requests; none accepts all.
    pub filter: Option<RequestFilter>,
    /// The API server.
    pub source: KubeconfigSource,
    /// Whether the path of the server's URL is prepended to request paths.
    pub append_server_path: bool,
    /// TCP keep-alive period of client connections; zero for the default.
    pub keep_alive: Duration,
    /// Proxies of the environment, on the way to the API server.
    pub environment_proxies: Option<ProxyEnvironment>,
    /// The access log.
    pub access: access::Settings,
    /// The log.
    pub log: log::Settings,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyListenAddress {
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Patterns that accept or refuse requests; a list matches when any of its patterns finds a match.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Accepted host names.
    pub accept_hosts: Vec<Regex>,
    /// Accepted paths, decoded.
    pub accept_paths: Vec<Regex>,
    /// Refused paths, decoded.
    pub reject_paths: Vec<Regex>,
    /// Refused methods.
    pub reject_methods: Vec<Regex>,
}

/// A host name that no sensible pattern accepts.
const UNRELATED_HOST: &[u8] = b"pages-of-others.invalid";

impl RequestFilter {
    /// Whether every host name is accepted.
    fn accepts_any_host(&self) -> bool {
        self.accept_hosts.iter().any(|pattern| pattern.is_match(UNRELATED_HOST))
    }
}

impl Arguments<ProxyCommand> {
    /// Reads command line, environment and configuration file.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (ProxyConfig, Diagnostics) {
        let mut parser = FlagParser::new(&self.raw, ProxyCommand::FLAGS, ProxyCommand::KIND, environment);
        let listen = listen(&mut parser);
        let api_prefix = path_prefix(&mut parser, "api-prefix");
        let www_prefix = path_prefix(&mut parser, "www-prefix");
        let files = parser.path("www").map(|folder| (folder, www_prefix));
        if let Some((folder, www_prefix)) = &files {
            if *www_prefix == api_prefix {
                parser.add_problem("www-prefix", format_args!("{api_prefix} is the --api-prefix already"));
            }
            // In the words of kubectl.
            match std::fs::metadata(folder) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => parser
                    .add_warning("www", format_args!("Static file directory {} is not a directory", folder.display())),
                Err(error) => parser.add_warning(
                    "www",
                    format_args!("Failed to stat static file directory {}: {error}", folder.display()),
                ),
            }
        }
        let patterns = RequestFilter {
            accept_hosts: patterns(&mut parser, "accept-hosts"),
            accept_paths: patterns(&mut parser, "accept-paths"),
            reject_paths: patterns(&mut parser, "reject-paths"),
            reject_methods: patterns(&mut parser, "reject-methods"),
        };
        let filter = (!parser.switch("disable-filter")).then_some(patterns);
        if filter.as_ref().is_some_and(RequestFilter::accepts_any_host) {
            let message = "accepts every host name: any web page can use the API by DNS rebinding; list the host names, \
                           as in ^proxy\\.example\\.com$";
            parser.add_warning("accept-hosts", message);
        }
        if filter.is_none() && matches!(listen, ProxyListenAddress::Tcp(_)) {
            // In the words of kubectl.
            let message = "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious";
            parser.add_warning("disable-filter", message);
        }
        let config = ProxyConfig {
            listen,
            api_prefix,
            files,
            filter,
            source: kubeconfig_flags::kubeconfig_source(&mut parser),
            append_server_path: parser.switch("append-server-path"),
            keep_alive: parser.duration("keepalive"),
            environment_proxies: environment_proxies(&mut parser),
            access: observability::access_log_settings(&mut parser),
            log: observability::log_settings(&mut parser),
        };
        (config, parser.finish())
    }
}

fn listen(parser: &mut FlagParser<'_>) -> ProxyListenAddress {
    let port = u16::try_from(parser.count("port", u64::from(u16::MAX))).unwrap_or(DEFAULT_PORT);
    let address = parser.parse("address", |text| host_port::host_address(text, port));
    if parser.is_given("port") && address.is_some_and(|address| address.port() != port) {
        parser.add_problem("address", "names another port than --port");
    }
    let address = address.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    match parser.path("unix-socket") {
        Some(path) => {
            if address.port() != DEFAULT_PORT {
                // In the words of kubectl.
                parser.add_problem("unix-socket", "cannot set --unix-socket and --port at the same time");
            }
            ProxyListenAddress::Unix(path)
        }
        None => ProxyListenAddress::Tcp(address),
    }
}

/// Reads a path that begins and ends with a slash.
fn path_prefix(parser: &mut FlagParser<'_>, name: &str) -> String {
    let mut prefix = parser.text(name);
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    let segments = prefix.trim_matches('/');
    let odd = segments.split('/').any(|segment| matches!(segment, "" | "." | "..")) && !segments.is_empty();
    if !prefix.starts_with('/') || prefix.starts_with("//") || prefix.ends_with("//") || odd {
        parser.add_problem(name, format_args!("{prefix:?}: use a path such as /custom/"));
    }
    prefix
}

/// Compiles a comma list of patterns. As with kubectl, a pattern cannot hold a comma, and an empty one matches all.
fn patterns(parser: &mut FlagParser<'_>, name: &str) -> Vec<Regex> {
    let text = parser.text(name);
    let mut patterns = Vec::new();
    for pattern in text.split(',') {
        // As Go's: classes such as \d are ASCII, and bytes that are not UTF-8 can be matched.
        match RegexBuilder::new(pattern).unicode(false).size_limit(1 << 20).build() {
            Ok(pattern) => patterns.push(pattern),
            Err(regex::Error::Syntax(_)) => {
                parser.add_problem(name, format_args!("{pattern:?} is not a regular expression"))
            }
            Err(error) => parser.add_problem(name, format_args!("{pattern:?}: {error}")),
        }
    }
    patterns
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn read(line: &[&str]) -> Result<ProxyConfig, String> {
        let command = Arguments::<ProxyCommand>::augment_args(Command::new("proxy"));
        let matches = command.try_get_matches_from(std::iter::once(&"proxy").chain(line)).unwrap();
        let arguments = Arguments::<ProxyCommand>::from_arg_matches(&matches).unwrap();
        let (config, mistakes) = arguments.read(&|name| (name == "HOME").then(|| "/home/jane".to_owned()));
        if mistakes.problems.0.is_empty() { Ok(config) } else { Err(mistakes.problems.to_string()) }
    }

    #[test]
    fn proxy_defaults_as_kubectl() {
        let config = read(&[]).unwrap();
        assert_eq!(config.listen, ProxyListenAddress::Tcp("127.0.0.1:8001".parse().unwrap()));
        assert_eq!((config.api_prefix.as_str(), config.files), ("/", None));
        assert_eq!(config.source, KubeconfigSource::LocalUser(vec!["/home/jane/.kube/config".into()], Box::default()));
        let short = read(&["-p0", "-w", "/tmp", "-P", "/files", "--api-prefix=/custom"]).unwrap();
        assert_eq!(short.listen, ProxyListenAddress::Tcp("127.0.0.1:0".parse().unwrap()));
        assert_eq!((short.api_prefix.as_str(), short.files), ("/custom/", Some(("/tmp".into(), "/files/".to_owned()))));
        assert_eq!(read(&["-u", "/run/s", "--port=8001"]).unwrap().listen, ProxyListenAddress::Unix("/run/s".into()));
        assert!(read(&["--disable-filter"]).unwrap().filter.is_none());
        for timeout in ["0", "8", "8s", "1m30s", "-2s", "+3", ""] {
            assert!(read(&[&format!("--request-timeout={timeout}")]).is_ok(), "{timeout}");
        }
        for (address, listen) in [
            ("localhost", "127.0.0.1:8001"),
            ("[::1]", "[::1]:8001"),
            ("::1", "[::1]:8001"),
            ("localhost:8002", "127.0.0.1:8002"),
            ("[::1]:8002", "[::1]:8002"),
            (":8002", "0.0.0.0:8002"),
        ] {
            let config = read(&[&format!("--address={address}")]).unwrap();
            assert_eq!(config.listen, ProxyListenAddress::Tcp(listen.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn proxy_flag_error_messages() {
        for (line, expected) in [
            (
                &["--unix-socket=s", "--port=1"][..],
                "--unix-socket: cannot set --unix-socket and --port at the same time",
            ),
            (&["--www=/tmp", "--www-prefix=/", "--api-prefix=/"], "--www-prefix: / is the --api-prefix already"),
            (&["--api-prefix=custom"], "--api-prefix: \"custom/\": use a path such as /custom/"),
            (&["--api-prefix=/a/../b"], "--api-prefix: \"/a/../b/\": use a path such as /custom/"),
            (&["--accept-paths=^/a,(b"], "--accept-paths: \"(b\" is not a regular expression"),
            (
                &["--address=nowhere.invalid", "--www=/tmp", "--www-prefix=/"],
                "--address: \"nowhere.invalid\": no such host: failed to lookup address information: Name or service not \
                 known\n--www-prefix: / is the --api-prefix already",
            ),
            (&["--address=:8002", "--port=8003"], "--address: names another port than --port"),
            (
                &["--request-timeout=soon"],
                "--request-timeout: \"soon\": Invalid timeout value. Timeout must be a single integer in seconds, or an \
                 integer followed by a corresponding time unit (e.g. 1s | 2m | 3h)",
            ),
        ] {
            assert_eq!(read(line).unwrap_err(), expected, "{line:?}");
        }
        let all = read(&["--reject-methods=[", "--reject-paths=)", "--keepalive=soon"]).unwrap_err();
        assert_eq!(all.lines().count(), 3, "{all}");
    }

    #[test]
    fn proxy_accept_hosts_any_name_warns() {
        for (hosts, told) in [
            (".*", 1),
            ("", 1),
            ("^*$", 1),
            ("^localhost$,.", 1),
            (r"^proxy\.example$", 0),
            (r"^.*\.corp\.example$", 0),
        ] {
            let command = Arguments::<ProxyCommand>::augment_args(Command::new("proxy"));
            let matches = command.try_get_matches_from(["proxy", &format!("--accept-hosts={hosts}")]).unwrap();
            let (_, mistakes) = Arguments::<ProxyCommand>::from_arg_matches(&matches)
                .unwrap()
                .read(&|name| (name == "HOME").then(|| "/home/jane".to_owned()));
            assert!(mistakes.problems.0.is_empty(), "{hosts}: {}", mistakes.problems);
            assert_eq!(mistakes.warnings.len(), told, "{hosts}");
        }
    }

    #[test]
    fn proxy_patterns_match_as_go() {
        let patterns = read(&[r"--accept-paths=^/\d+$,é"]).unwrap().filter.unwrap().accept_paths;
        let finds = |path: &[u8]| patterns.iter().any(|pattern| pattern.is_match(path));
        assert!(finds(b"/12") && !finds("/\u{663}".as_bytes()) && finds("/é".as_bytes()) && !finds(b"/\xff"));
    }
}
