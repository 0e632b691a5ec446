//! The settings of `narthex proxy`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use regex::bytes::{Regex, RegexBuilder};

use super::arguments::{Arguments, Role};
use super::flag::{Flag, Group, Kind};
use super::gateway::flags;
use super::listening;
use super::person;
use super::reading::{Mistakes, Reading};
use super::seen;
use crate::kubeclient::Source;
use crate::observe::{access, log};

/// kubectl's default port, the only one allowed together with `--unix-socket`.
const PORT: u16 = 8001;

static DOOR: Group = Group {
    heading: "Listener",
    flags: &[
        Flag::new(
            "config",
            Kind::File,
            "",
            "YAML file with any of these flags in camelCase (apiVersion narthex.dev/v1alpha1, kind ProxyConfiguration)",
        ),
        Flag::new(
            "address",
            Kind::Text("HOST"),
            "127.0.0.1",
            "Address to listen on: an address or a name, with :port or without, or :port alone for every address of this machine. Every client that reaches it acts with the credentials of the kubeconfig",
        ),
        Flag::new("port", Kind::Count, "8001", "Port to listen on; 0 takes a free one and prints it").or('p'),
        Flag::new(
            "unix-socket",
            Kind::File,
            "",
            "Unix socket to listen on instead, accessible to its owner only. A stale one is replaced",
        )
        .or('u'),
        Flag::new("api-prefix", Kind::Text("PATH"), "/", "Path prefix of the API"),
        Flag::new(
            "www",
            Kind::Directory,
            "",
            "Directory of static files to serve; every client of the API may read all of them",
        )
        .or('w'),
        Flag::new("www-prefix", Kind::Text("PATH"), "/static/", "Path prefix of the static files").or('P'),
    ],
};

static FILTER: Group = Group {
    heading: "Filter",
    flags: &[
        Flag::new(
            "accept-hosts",
            Kind::Text("REGEX,…"),
            r"^localhost$,^127\.0\.0\.1$,^\[::1\]$",
            "Accepted values of the header Host. A web page may send requests only to the host and port it was loaded from",
        ),
        Flag::new("accept-paths", Kind::Text("REGEX,…"), "^.*", "Paths to serve"),
        Flag::new(
            "reject-paths",
            Kind::Text("REGEX,…"),
            "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach",
            "Paths to refuse, even if --accept-paths matches them",
        ),
        Flag::new("reject-methods", Kind::Text("REGEX,…"), "^$", "Methods to refuse, such as POST,PUT,PATCH"),
        Flag::new(
            "disable-filter",
            Kind::Switch,
            "false",
            "Serve all requests from all origins. Any web page open in a browser on this machine can then use the API",
        ),
    ],
};

static BEHIND: Group = Group {
    heading: "Backends",
    flags: &[
        Flag::new(
            "append-server-path",
            Kind::Switch,
            "false",
            "Prepend the path of the server's URL to every request path",
        ),
        Flag::new(
            "keepalive",
            Kind::Duration,
            "0s",
            "TCP keep-alive period of client connections; 0 for the default of 15s",
        ),
    ],
};

static SEEN: Group = Group {
    heading: "Observability",
    flags: &[
        Flag::new(
            "access-log",
            Kind::Choice(&["off", "errors", "all"]),
            "errors",
            "Requests to log: none; refused or failed ones; all",
        ),
        flags::ACCESS_LOG_FORMAT,
        flags::LOG_FORMAT,
        flags::LOG_LEVEL,
        flags::VERBOSITY,
    ],
};

/// The command `narthex proxy`: a local proxy to an API server, like `kubectl proxy`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proxy;

impl Role for Proxy {
    const FLAGS: &'static [&'static Group] = &[&DOOR, &FILTER, &person::GROUP, &BEHIND, &person::WITHOUT_EFFECT, &SEEN];
    const LATER: &'static [Flag] = &[];
    const KIND: &'static str = "ProxyConfiguration";
}

/// Configuration of the local proxy.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Address to listen on.
    pub listen: Listen,
    /// Path prefix of the API; begins and ends with a slash.
    pub api_prefix: String,
    /// Directory and path prefix of the static files, if any.
    pub files: Option<(PathBuf, String)>,
    /// Filter of requests; none accepts all.
    pub filter: Option<Patterns>,
    /// The API server.
    pub source: Source,
    /// Whether the path of the server's URL is prepended to request paths.
    pub append_server_path: bool,
    /// TCP keep-alive period of client connections; zero for the default.
    pub keep_alive: Duration,
    /// The access log.
    pub access: access::Settings,
    /// The log.
    pub log: log::Settings,
}

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Patterns that accept or refuse requests; a list matches when any of its patterns finds a match.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
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
const ANYBODY_S: &[u8] = b"pages-of-others.invalid";

impl Patterns {
    /// Whether every host name is accepted.
    fn accept_any_host(&self) -> bool {
        self.accept_hosts.iter().any(|pattern| pattern.is_match(ANYBODY_S))
    }
}

impl Arguments<Proxy> {
    /// Reads command line, environment and configuration file.
    pub fn read(&self, environment: &dyn Fn(&str) -> Option<String>) -> (ProxyConfig, Mistakes) {
        let mut reading = Reading::new(&self.written, Proxy::FLAGS, Proxy::LATER, Proxy::KIND, environment);
        let listen = listen(&mut reading);
        let api_prefix = prefix(&mut reading, "api-prefix");
        let www_prefix = prefix(&mut reading, "www-prefix");
        let files = reading.path("www").map(|folder| (folder, www_prefix));
        if let Some((folder, www_prefix)) = &files {
            if *www_prefix == api_prefix {
                reading.problem("www-prefix", format_args!("{api_prefix} is the --api-prefix already"));
            }
            // In the words of kubectl.
            match std::fs::metadata(folder) {
                Ok(found) if found.is_dir() => {}
                Ok(_) => reading
                    .warning("www", format_args!("Static file directory {} is not a directory", folder.display())),
                Err(error) => reading
                    .warning("www", format_args!("Failed to stat static file directory {}: {error}", folder.display())),
            }
        }
        let patterns = Patterns {
            accept_hosts: patterns(&mut reading, "accept-hosts"),
            accept_paths: patterns(&mut reading, "accept-paths"),
            reject_paths: patterns(&mut reading, "reject-paths"),
            reject_methods: patterns(&mut reading, "reject-methods"),
        };
        let filter = (!reading.switch("disable-filter")).then_some(patterns);
        if filter.as_ref().is_some_and(Patterns::accept_any_host) {
            let message = "accepts every host name: any web page can use the API by DNS rebinding; list the host names, \
                           as in ^proxy\\.example\\.com$";
            reading.warning("accept-hosts", message);
        }
        if filter.is_none() && matches!(listen, Listen::Tcp(_)) {
            // In the words of kubectl.
            let message = "Request filter disabled, your proxy is vulnerable to XSRF attacks, please be cautious";
            reading.warning("disable-filter", message);
        }
        let config = ProxyConfig {
            listen,
            api_prefix,
            files,
            filter,
            source: person::source(&mut reading),
            append_server_path: reading.switch("append-server-path"),
            keep_alive: reading.duration("keepalive"),
            access: seen::access(&mut reading),
            log: seen::log_settings(&mut reading),
        };
        (config, reading.end())
    }
}

fn listen(reading: &mut Reading<'_>) -> Listen {
    let port = u16::try_from(reading.count("port", u64::from(u16::MAX))).unwrap_or(PORT);
    let address = reading.parse("address", |text| listening::host_address(text, port));
    if reading.given("port") && address.is_some_and(|address| address.port() != port) {
        reading.problem("address", "names another port than --port");
    }
    let address = address.unwrap_or(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    match reading.path("unix-socket") {
        Some(path) => {
            if address.port() != PORT {
                // In the words of kubectl.
                reading.problem("unix-socket", "cannot set --unix-socket and --port at the same time");
            }
            Listen::Unix(path)
        }
        None => Listen::Tcp(address),
    }
}

/// Reads a path that begins and ends with a slash.
fn prefix(reading: &mut Reading<'_>, name: &str) -> String {
    let mut prefix = reading.text(name);
    if !prefix.ends_with('/') {
        prefix.push('/');
    }
    let segments = prefix.trim_matches('/');
    let odd = segments.split('/').any(|segment| matches!(segment, "" | "." | "..")) && !segments.is_empty();
    if !prefix.starts_with('/') || prefix.starts_with("//") || prefix.ends_with("//") || odd {
        reading.problem(name, format_args!("{prefix:?}: use a path such as /custom/"));
    }
    prefix
}

/// Compiles a comma list of patterns. As with kubectl, a pattern cannot hold a comma, and an empty one matches all.
fn patterns(reading: &mut Reading<'_>, name: &str) -> Vec<Regex> {
    let text = reading.text(name);
    let mut patterns = Vec::new();
    for pattern in text.split(',') {
        // As Go's: classes such as \d are ASCII, and bytes that are not UTF-8 can be matched.
        match RegexBuilder::new(pattern).unicode(false).size_limit(1 << 20).build() {
            Ok(pattern) => patterns.push(pattern),
            Err(regex::Error::Syntax(_)) => {
                reading.problem(name, format_args!("{pattern:?} is not a regular expression"))
            }
            Err(error) => reading.problem(name, format_args!("{pattern:?}: {error}")),
        }
    }
    patterns
}

#[cfg(test)]
mod tests {
    use clap::{Args, Command, FromArgMatches};

    use super::*;

    fn read(line: &[&str]) -> Result<ProxyConfig, String> {
        let command = Arguments::<Proxy>::augment_args(Command::new("proxy"));
        let matches = command.try_get_matches_from(std::iter::once(&"proxy").chain(line)).unwrap();
        let arguments = Arguments::<Proxy>::from_arg_matches(&matches).unwrap();
        let (config, mistakes) = arguments.read(&|name| (name == "HOME").then(|| "/home/jane".to_owned()));
        if mistakes.problems.0.is_empty() { Ok(config) } else { Err(mistakes.problems.to_string()) }
    }

    #[test]
    fn without_any_flag_it_is_as_kubectl_s() {
        let config = read(&[]).unwrap();
        assert_eq!(config.listen, Listen::Tcp("127.0.0.1:8001".parse().unwrap()));
        assert_eq!((config.api_prefix.as_str(), config.files), ("/", None));
        assert_eq!(config.source, Source::Person(vec!["/home/jane/.kube/config".into()], Box::default()));
        let short = read(&["-p0", "-w", "/tmp", "-P", "/files", "--api-prefix=/custom"]).unwrap();
        assert_eq!(short.listen, Listen::Tcp("127.0.0.1:0".parse().unwrap()));
        assert_eq!((short.api_prefix.as_str(), short.files), ("/custom/", Some(("/tmp".into(), "/files/".to_owned()))));
        assert_eq!(read(&["-u", "/run/s", "--port=8001"]).unwrap().listen, Listen::Unix("/run/s".into()));
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
            assert_eq!(config.listen, Listen::Tcp(listen.parse().unwrap()), "{address}");
        }
    }

    #[test]
    fn every_mistake_is_told_and_all_at_once() {
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
    fn to_be_called_by_any_name_is_told() {
        for (hosts, told) in [
            (".*", 1),
            ("", 1),
            ("^*$", 1),
            ("^localhost$,.", 1),
            (r"^proxy\.example$", 0),
            (r"^.*\.corp\.example$", 0),
        ] {
            let command = Arguments::<Proxy>::augment_args(Command::new("proxy"));
            let matches = command.try_get_matches_from(["proxy", &format!("--accept-hosts={hosts}")]).unwrap();
            let (_, mistakes) = Arguments::<Proxy>::from_arg_matches(&matches)
                .unwrap()
                .read(&|name| (name == "HOME").then(|| "/home/jane".to_owned()));
            assert!(mistakes.problems.0.is_empty(), "{hosts}: {}", mistakes.problems);
            assert_eq!(mistakes.warnings.len(), told, "{hosts}");
        }
    }

    #[test]
    fn patterns_are_go_s() {
        let patterns = read(&[r"--accept-paths=^/\d+$,é"]).unwrap().filter.unwrap().accept_paths;
        let finds = |path: &[u8]| patterns.iter().any(|pattern| pattern.is_match(path));
        assert!(finds(b"/12") && !finds("/\u{663}".as_bytes()) && finds("/é".as_bytes()) && !finds(b"/\xff"));
    }
}
