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

/// kubectl's default, which alone goes together with a Unix socket.
const PORT: u16 = 8001;

static DOOR: Group = Group {
    heading: "Door",
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
            "Where clients connect: an address or a name, with :port or without, or :port alone for every address of this machine. Whoever can reach it acts with the credentials of the kubeconfig",
        ),
        Flag::new("port", Kind::Count, "8001", "The port there; 0 takes a free one and says which").or('p'),
        Flag::new(
            "unix-socket",
            Kind::File,
            "",
            "Where clients connect instead: a Unix socket that only its owner can use. One that was left behind is replaced",
        )
        .or('u'),
        Flag::new("api-prefix", Kind::Text("PATH"), "/", "Below which path the API is served"),
        Flag::new(
            "www",
            Kind::Directory,
            "",
            "Static files to serve, too; whoever may use the API may read all of them",
        )
        .or('w'),
        Flag::new("www-prefix", Kind::Text("PATH"), "/static/", "Below which path they are served").or('P'),
    ],
};

static FILTER: Group = Group {
    heading: "Filter",
    flags: &[
        Flag::new(
            "accept-hosts",
            Kind::Text("REGEX,…"),
            r"^localhost$,^127\.0\.0\.1$,^\[::1\]$",
            "Hosts that clients may call us by. A web page may ask only the very host and port that it came from",
        ),
        Flag::new("accept-paths", Kind::Text("REGEX,…"), "^.*", "Paths that are served"),
        Flag::new(
            "reject-paths",
            Kind::Text("REGEX,…"),
            "^/api/.*/pods/.*/exec,^/api/.*/pods/.*/attach",
            "Paths that are not served, even if --accept-paths has them",
        ),
        Flag::new("reject-methods", Kind::Text("REGEX,…"), "^$", "Methods that are not served, such as POST,PUT,PATCH"),
        Flag::new(
            "disable-filter",
            Kind::Switch,
            "false",
            "Serve whatever is asked, whoever asks. Any web page that a browser on this machine shows can then use the API",
        ),
    ],
};

static BEHIND: Group = Group {
    heading: "What lies behind",
    flags: &[
        Flag::new(
            "append-server-path",
            Kind::Switch,
            "false",
            "Put the path of the server's URL before every path that is asked for",
        ),
        Flag::new(
            "keepalive",
            Kind::Duration,
            "0s",
            "How long a client's connection may be silent before it is asked for a sign of life; 0 for the usual 15s",
        ),
    ],
};

static SEEN: Group = Group {
    heading: "Seen by the operator",
    flags: &[
        Flag::new(
            "access-log",
            Kind::Choice(&["off", "errors", "all"]),
            "errors",
            "Which requests get a log line: none; those that a filter refused or that failed; all",
        ),
        flags::ACCESS_LOG_FORMAT,
        flags::LOG_FORMAT,
        flags::LOG_LEVEL,
        flags::VERBOSITY,
    ],
};

/// The local door to an API server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Proxy;

impl Role for Proxy {
    const FLAGS: &'static [&'static Group] = &[&DOOR, &FILTER, &person::GROUP, &BEHIND, &person::WITHOUT_EFFECT, &SEEN];
    const LATER: &'static [Flag] = &[];
    const KIND: &'static str = "ProxyConfiguration";
}

/// What the local door needs to know.
#[derive(Clone, Debug)]
pub struct ProxyConfig {
    /// Where clients connect.
    pub listen: Listen,
    /// Below which path the API is served; begins and ends with a slash.
    pub api_prefix: String,
    /// The folder of static files and below which path they are served, if there are any.
    pub files: Option<(PathBuf, String)>,
    /// What is served; everything when none.
    pub filter: Option<Patterns>,
    /// Which API server.
    pub source: Source,
    /// Whether the path of the server's URL stands before all others.
    pub append_server_path: bool,
    /// How long a client's connection may be silent before it is asked for a sign of life; zero for the usual time.
    pub keep_alive: Duration,
    /// Records of requests.
    pub access: access::Settings,
    /// The log.
    pub log: log::Settings,
}

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// TCP; port 0 takes a free one.
    Tcp(SocketAddr),
    /// A Unix socket.
    Unix(PathBuf),
}

/// Lists of patterns; each list matches what any of its patterns finds something in.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    /// Of host names.
    pub accept_hosts: Vec<Regex>,
    /// Of decoded paths.
    pub accept_paths: Vec<Regex>,
    /// Of decoded paths.
    pub reject_paths: Vec<Regex>,
    /// Of methods.
    pub reject_methods: Vec<Regex>,
}

/// A name that nobody means to be called by.
const ANYBODY_S: &[u8] = b"pages-of-others.invalid";

impl Patterns {
    /// Whether clients may call us by any name.
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
            let message = "every name is one of ours: any web page whose name is made to lead here can use the API; \
                           name the hosts, as in ^proxy\\.example\\.com$";
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

/// A path that begins and ends with a slash.
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

/// A comma ends a pattern, as with kubectl: none can hold one. An empty one finds something everywhere.
fn patterns(reading: &mut Reading<'_>, name: &str) -> Vec<Regex> {
    let text = reading.text(name);
    let mut patterns = Vec::new();
    for pattern in text.split(',') {
        // As Go's: classes such as \d are ASCII, and what is no UTF-8 can be matched.
        match RegexBuilder::new(pattern).unicode(false).size_limit(1 << 20).build() {
            Ok(pattern) => patterns.push(pattern),
            Err(regex::Error::Syntax(_)) => reading.problem(name, format_args!("{pattern:?} is no regular expression")),
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
            (&["--accept-paths=^/a,(b"], "--accept-paths: \"(b\" is no regular expression"),
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
