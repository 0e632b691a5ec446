//! Builds egress routes from their settings and reads the referenced files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{
    Address, Credentials, DIAL_TIMEOUT, Dialect, Host, Kind, Names, Proxy, ProxyAddress, ProxyEnvironment, ProxyKind,
    ProxyScheme, ProxySettings, ProxyTls, ProxyUrl, Selection, SelectionSettings, Way, WaySettings,
};
use crate::process::{Problem, Problems};
use crate::tls::client::ClientSettings;
use crate::tls::{Bundle, KeyPair};

/// Limit of a SOCKS5 user name or password, in bytes (RFC 1929).
const LONGEST: usize = 255;

/// Routes for `settings`, by selection name. Problems name the field of the configuration file `place` that references
/// a file.
///
/// # Errors
/// All problems of the referenced files.
pub(super) fn make(settings: &[SelectionSettings], place: &str) -> Result<Vec<(String, Way)>, Problems> {
    let mut problems = Problems::default();
    let made = settings.iter().filter_map(|one| {
        let way = match &one.way {
            WaySettings::Direct => Some(Way::Direct),
            WaySettings::Proxy(proxy) => {
                selection(one, proxy, place, &mut problems).map(|it| Way::Through(Arc::new(it)))
            }
        };
        way.map(|way| (one.name.clone(), way))
    });
    let made = made.collect();
    problems.or(made)
}

impl Way {
    /// A route through the proxy at `url`; `settings` are for TLS to it, except its ALPN protocols.
    ///
    /// # Errors
    /// TLS to it cannot be configured.
    pub fn by_url(name: &str, url: &ProxyUrl, settings: ClientSettings) -> Result<Way, Problem> {
        Ok(Way::Through(Arc::new(by_url(name, url, settings)?)))
    }

    /// The route given by the environment, for destinations with TLS (`secure`) or without.
    pub(super) fn of_environment(environment: &ProxyEnvironment, secure: bool) -> Result<Way, Problem> {
        let (Some(url), no_proxy) = environment.proxy(secure) else { return Ok(Way::Direct) };
        let settings =
            ClientSettings { authorities: None, insecure_skip_verify: false, identity: None, alpn: Vec::new() };
        let mut selection = by_url("environment", url, settings)?;
        selection.no_proxy = no_proxy.clone();
        selection.spares_this_machine = true;
        Ok(Way::Through(Arc::new(selection)))
    }
}

fn by_url(name: &str, url: &ProxyUrl, settings: ClientSettings) -> Result<Selection, Problem> {
    let kind = match url.scheme {
        ProxyScheme::Socks5 | ProxyScheme::Socks5Local => Kind::Socks5,
        ProxyScheme::Http | ProxyScheme::Https => Kind::Connect(Dialect::Ordinary),
    };
    let settings = ClientSettings { alpn: kind.alpn(), ..settings };
    let proxy = by_tcp(url, None, &settings, None)?;
    Ok(Selection::new(name, kind, vec![proxy], DIAL_TIMEOUT))
}

/// All files referenced by `settings`, existing or not.
pub(super) fn files(settings: &[SelectionSettings]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for one in settings {
        let WaySettings::Proxy(proxy) = &one.way else { continue };
        files.extend(proxy.tls.authorities.clone());
        files.extend(proxy.tls.identity.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]));
        files.extend(proxy.credentials_file.clone());
    }
    files
}

fn selection(
    one: &SelectionSettings,
    written: &ProxySettings,
    place: &str,
    problems: &mut Problems,
) -> Option<Selection> {
    let at = |field: &str, problem: Problem| {
        let field = format!("egressSelections[{}].connection.transport.tcp.{field}", one.name);
        Problem::field(place, field, problem)
    };
    let kind = match written.kind {
        ProxyKind::Socks5 => Kind::Socks5,
        // A proxy on a Unix socket is a Konnectivity server.
        ProxyKind::HttpConnect(_) if matches!(&written.addresses[..], [ProxyAddress::Unix(_), ..]) => {
            Kind::Connect(Dialect::Konnectivity)
        }
        ProxyKind::HttpConnect(dialect) => Kind::Connect(dialect),
        ProxyKind::Grpc => Kind::Konnectivity,
    };
    let settings = client_settings(written, kind, at, problems);
    let credentials = match &written.credentials_file {
        None => Some(None),
        Some(file) => {
            let credentials = credentials(file, kind).map_err(|problem| at("credentialsFile", problem));
            problems.keep(credentials).map(Some)
        }
    };
    let (settings, credentials) = (settings?, credentials?);
    let proxies = written.addresses.iter().filter_map(|address| {
        problems.keep(proxy(address, written, &settings, credentials.as_ref()).map_err(|mut problem| {
            problem.place = format!("egress selection {}, {}", one.name, problem.place);
            problem
        }))
    });
    let proxies: Vec<Proxy> = proxies.collect();
    let mut selection = Selection::new(&*one.name, kind, proxies, one.dial_timeout);
    selection.no_proxy = one.no_proxy.clone();
    Some(selection)
}

fn client_settings(
    written: &ProxySettings,
    kind: Kind,
    at: impl Fn(&str, Problem) -> Problem,
    problems: &mut Problems,
) -> Option<ClientSettings> {
    let authorities = match &written.tls.authorities {
        None => Some(None),
        Some(file) => problems.keep(bundle(file).map_err(|problem| at("tlsConfig.caBundle", problem))).map(Some),
    };
    let identity = match &written.tls.identity {
        None => Some(None),
        Some(files) => {
            let pair = KeyPair::load(files).map_err(|problem| at("tlsConfig.clientCert", problem));
            problems.keep(pair).map(|pair| Some(Arc::new(pair)))
        }
    };
    let (authorities, identity) = (authorities?, identity?);
    Some(ClientSettings { authorities, insecure_skip_verify: false, identity, alpn: kind.alpn() })
}

fn proxy(
    address: &ProxyAddress,
    written: &ProxySettings,
    settings: &ClientSettings,
    credentials: Option<&Credentials>,
) -> Result<Proxy, Problem> {
    let url = match address {
        ProxyAddress::Unix(path) => {
            let address = Address::Unix(path.clone());
            return Ok(Proxy { address, tls: None, credentials: credentials.cloned(), names: Names::ByProxy });
        }
        ProxyAddress::Url(url) => url,
    };
    by_tcp(url, written.tls.server_name.as_deref(), settings, credentials)
}

fn by_tcp(
    url: &ProxyUrl,
    server_name: Option<&str>,
    settings: &ClientSettings,
    credentials: Option<&Credentials>,
) -> Result<Proxy, Problem> {
    let tls = if url.scheme == ProxyScheme::Https {
        let host = match (server_name, &url.destination.host) {
            (Some(name), _) => name.to_owned(),
            (None, Host::Name(name)) => name.clone(),
            (None, Host::Ip(ip)) => ip.to_string(),
        };
        Some(Arc::new(ProxyTls::new(&host, settings.clone())?))
    } else {
        None
    };
    Ok(Proxy {
        address: Address::Tcp(url.destination.clone()),
        tls,
        credentials: credentials.or(url.credentials.as_ref()).cloned(),
        names: if url.scheme == ProxyScheme::Socks5Local { Names::ByUs } else { Names::ByProxy },
    })
}

fn bundle(file: &Path) -> Result<Bundle, Problem> {
    let pem = fs::read(file).map_err(|error| unreadable(file, &error))?;
    Bundle::from_pem(&pem, file.display())
}

fn credentials(file: &Path, kind: Kind) -> Result<Credentials, Problem> {
    let problem = |why| Problem::new(file.display(), why);
    let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    let credentials = Credentials::from_file_text(&text).map_err(problem)?;
    if kind == Kind::Socks5 && credentials.user().len().max(credentials.password().len()) > LONGEST {
        return Err(problem("SOCKS5 takes a user and a password of at most 255 bytes each"));
    }
    Ok(credentials)
}

fn unreadable(file: &Path, error: &std::io::Error) -> Problem {
    Problem::new(file.display(), format_args!("cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::egress::{NoProxy, ProxyTlsFiles, ProxyUrl};

    fn written(kind: ProxyKind, urls: &[&str]) -> (SelectionSettings, ProxySettings) {
        let addresses = urls.iter().map(|url| ProxyAddress::Url(ProxyUrl::parse(url).unwrap())).collect();
        let proxy = ProxySettings { kind, addresses, tls: ProxyTlsFiles::default(), credentials_file: None };
        let way = WaySettings::Proxy(proxy.clone());
        let no_proxy = NoProxy::parse([".svc"]).unwrap();
        (SelectionSettings { name: "a".to_owned(), way, no_proxy, dial_timeout: Duration::from_secs(3) }, proxy)
    }

    fn made(one: &SelectionSettings, proxy: ProxySettings) -> Result<Arc<Selection>, Problems> {
        let one = SelectionSettings { way: WaySettings::Proxy(proxy), ..one.clone() };
        match make(&[one], "egress.yaml")?.remove(0).1 {
            Way::Through(selection) => Ok(selection),
            Way::Direct => panic!("direct"),
        }
    }

    #[test]
    fn what_is_written_becomes_a_selection() {
        let (one, proxy) = written(ProxyKind::Socks5, &["socks5://u:p@a:1", "socks5-local://[::1]"]);
        let selection = made(&one, proxy).unwrap();
        assert_eq!((selection.name.as_str(), selection.kind, selection.dial_timeout.as_secs()), ("a", Kind::Socks5, 3));
        let [first, second] = &selection.proxies[..] else { panic!("{selection:?}") };
        assert_eq!((first.address.to_string(), first.names), ("a:1".to_owned(), Names::ByProxy));
        assert_eq!(first.credentials, Some(Credentials::new("u", "p")));
        assert_eq!((second.address.to_string(), second.names), ("[::1]:1080".to_owned(), Names::ByUs));
        let service = crate::egress::Destination { host: Host::Name("a.b.svc".to_owned()), port: 1 };
        assert_eq!(Way::Through(selection).selection_for(&service), None);
    }

    #[test]
    fn a_socket_is_a_konnectivity_servers_and_an_url_anybodys() {
        let (one, mut proxy) = written(ProxyKind::HttpConnect(Dialect::Ordinary), &["http://a"]);
        assert_eq!(made(&one, proxy.clone()).unwrap().kind, Kind::Connect(Dialect::Ordinary));
        proxy.addresses = vec![ProxyAddress::Unix("/run/k.sock".into())];
        assert_eq!(made(&one, proxy).unwrap().kind, Kind::Connect(Dialect::Konnectivity));
    }

    #[test]
    fn files_are_read_and_every_one_that_is_wrong_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (one, mut proxy) = written(ProxyKind::HttpConnect(Dialect::Ordinary), &["https://a"]);
        proxy.tls.authorities = Some(file("ca", "no PEM"));
        proxy.tls.identity = Some(crate::tls::PairFiles::new(folder.path().join("x.crt"), folder.path().join("x.key")));
        proxy.credentials_file = Some(file("creds", "secret"));
        let way = WaySettings::Proxy(proxy.clone());
        assert_eq!(files(&[SelectionSettings { way, ..one.clone() }]).len(), 4);
        let problems = made(&one, proxy).unwrap_err();
        assert_eq!(problems.0.len(), 3, "{problems}");
        let field = "egress.yaml: egressSelections[a].connection.transport.tcp.tlsConfig.caBundle: ";
        let ca = folder.path().join("ca");
        assert!(problems.to_string().contains(&format!("{field}{}: ", ca.display())), "{problems}");
        assert!(!problems.to_string().contains("secret"), "{problems}");
        let (socks, mut with) = written(ProxyKind::Socks5, &["socks5://a"]);
        with.credentials_file = Some(file("empty", "jane:"));
        assert_eq!(made(&socks, with.clone()).unwrap().proxies[0].credentials, Some(Credentials::new("jane", "")));
        with.credentials_file = Some(file("long", &format!("jane:{}", "x".repeat(256))));
        assert!(made(&socks, with).unwrap_err().to_string().contains("at most 255 bytes"));
    }
}
