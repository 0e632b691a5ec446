//! Builds egress routes from their settings and reads the referenced files.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::egress::{
    Address, ConnectDialect, DIAL_TIMEOUT, EgressProtocol, EgressProxy, EgressRoute, EgressRouteSettings,
    EgressSelection, EgressSelectionSettings, Host, NameResolution, ProxyAddress, ProxyCredentials, ProxyEnvironment,
    ProxyKind, ProxyScheme, ProxySettings, ProxyTls, ProxyUrl,
};
use crate::process::{Problem, Problems};
use crate::tls::client::ClientSettings;
use crate::tls::{Bundle, KeyPair};

/// Limit of a SOCKS5 user name or password, in bytes (RFC 1929).
const MAX_SOCKS5_CREDENTIAL_BYTES: usize = 255;

/// Routes for `settings`, by selection name. Problems name the field of the configuration file `location`
/// that references a file.
///
/// # Errors
/// All problems of the referenced files.
pub(in crate::egress) fn build_routes(
    settings: &[EgressSelectionSettings],
    location: &str,
) -> Result<Vec<(String, EgressRoute)>, Problems> {
    let mut problems = Problems::default();
    let made = settings.iter().filter_map(|one| {
        let route = match &one.route {
            EgressRouteSettings::Direct => Some(EgressRoute::Direct),
            EgressRouteSettings::Proxy(proxy) => {
                build_selection(one, proxy, location, &mut problems).map(|it| EgressRoute::Proxied(Arc::new(it)))
            }
        };
        route.map(|route| (one.name.clone(), route))
    });
    let made = made.collect();
    problems.into_result(made)
}

impl EgressRoute {
    /// A route through the proxy at `url`; `settings` are for TLS to it, except its ALPN protocols.
    ///
    /// # Errors
    /// TLS to it cannot be configured.
    pub fn from_proxy_url(name: &str, url: &ProxyUrl, settings: ClientSettings) -> Result<EgressRoute, Problem> {
        Ok(EgressRoute::Proxied(Arc::new(by_url(name, url, settings)?)))
    }

    /// The route given by the environment, for destinations with TLS (`secure`) or without.
    pub(in crate::egress) fn from_environment(
        environment: &ProxyEnvironment,
        secure: bool,
    ) -> Result<EgressRoute, Problem> {
        let (Some(url), no_proxy) = environment.proxy(secure) else { return Ok(EgressRoute::Direct) };
        let settings =
            ClientSettings { ca_bundle: None, insecure_skip_verify: false, identity: None, alpn: Vec::new() };
        let mut selection = by_url("environment", url, settings)?;
        selection.no_proxy = no_proxy.clone();
        selection.bypass_loopback = true;
        Ok(EgressRoute::Proxied(Arc::new(selection)))
    }
}

fn by_url(name: &str, url: &ProxyUrl, settings: ClientSettings) -> Result<EgressSelection, Problem> {
    let kind = match url.scheme {
        ProxyScheme::Socks5 | ProxyScheme::Socks5Local => EgressProtocol::Socks5,
        ProxyScheme::Http | ProxyScheme::Https => EgressProtocol::HttpConnect(ConnectDialect::Ordinary),
    };
    let settings = ClientSettings { alpn: kind.alpn(), ..settings };
    let proxy = proxy_from_url(url, None, &settings, None)?;
    Ok(EgressSelection::new(name, kind, vec![proxy], DIAL_TIMEOUT))
}

/// All files referenced by `settings`, existing or not.
pub(in crate::egress) fn referenced_files(settings: &[EgressSelectionSettings]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for one in settings {
        let EgressRouteSettings::Proxy(proxy) = &one.route else { continue };
        files.extend(proxy.tls.authorities.clone());
        files.extend(proxy.tls.identity.iter().flat_map(|pair| [pair.certificate.clone(), pair.key.clone()]));
        files.extend(proxy.credentials_file.clone());
    }
    files
}

fn build_selection(
    one: &EgressSelectionSettings,
    proxy_settings: &ProxySettings,
    location: &str,
    problems: &mut Problems,
) -> Option<EgressSelection> {
    let at = |field: &str, problem: Problem| {
        let field = format!("egressSelections[{}].connection.transport.tcp.{field}", one.name);
        Problem::at_field(location, field, problem)
    };
    let kind = match proxy_settings.kind {
        ProxyKind::Socks5 => EgressProtocol::Socks5,
        // A proxy on a Unix socket is a Konnectivity server.
        ProxyKind::HttpConnect(_) if matches!(&proxy_settings.addresses[..], [ProxyAddress::Unix(_), ..]) => {
            EgressProtocol::HttpConnect(ConnectDialect::Konnectivity)
        }
        ProxyKind::HttpConnect(dialect) => EgressProtocol::HttpConnect(dialect),
        ProxyKind::Grpc => EgressProtocol::Konnectivity,
    };
    let settings = client_settings(proxy_settings, kind, at, problems);
    let credentials = match &proxy_settings.credentials_file {
        None => Some(None),
        Some(file) => {
            let credentials = load_credentials(file, kind).map_err(|problem| at("credentialsFile", problem));
            problems.collect(credentials).map(Some)
        }
    };
    let (settings, credentials) = (settings?, credentials?);
    let proxies = proxy_settings.addresses.iter().filter_map(|address| {
        problems.collect(build_proxy(address, proxy_settings, &settings, credentials.as_ref()).map_err(
            |mut problem| {
                problem.location = format!("egress selection {}, {}", one.name, problem.location);
                problem
            },
        ))
    });
    let proxies: Vec<EgressProxy> = proxies.collect();
    let mut selection = EgressSelection::new(&*one.name, kind, proxies, one.dial_timeout);
    selection.no_proxy = one.no_proxy.clone();
    Some(selection)
}

fn client_settings(
    settings: &ProxySettings,
    kind: EgressProtocol,
    at: impl Fn(&str, Problem) -> Problem,
    problems: &mut Problems,
) -> Option<ClientSettings> {
    let authorities = match &settings.tls.authorities {
        None => Some(None),
        Some(file) => {
            problems.collect(load_ca_bundle(file).map_err(|problem| at("tlsConfig.caBundle", problem))).map(Some)
        }
    };
    let identity = match &settings.tls.identity {
        None => Some(None),
        Some(files) => {
            let pair = KeyPair::load(files).map_err(|problem| at("tlsConfig.clientCert", problem));
            problems.collect(pair).map(|pair| Some(Arc::new(pair)))
        }
    };
    let (authorities, identity) = (authorities?, identity?);
    Some(ClientSettings { ca_bundle: authorities, insecure_skip_verify: false, identity, alpn: kind.alpn() })
}

fn build_proxy(
    address: &ProxyAddress,
    proxy_settings: &ProxySettings,
    settings: &ClientSettings,
    credentials: Option<&ProxyCredentials>,
) -> Result<EgressProxy, Problem> {
    let url = match address {
        ProxyAddress::Unix(path) => {
            let address = Address::Unix(path.clone());
            return Ok(EgressProxy {
                address,
                tls: None,
                credentials: credentials.cloned(),
                name_resolution: NameResolution::Remote,
            });
        }
        ProxyAddress::Url(url) => url,
    };
    proxy_from_url(url, proxy_settings.tls.server_name.as_deref(), settings, credentials)
}

fn proxy_from_url(
    url: &ProxyUrl,
    server_name: Option<&str>,
    settings: &ClientSettings,
    credentials: Option<&ProxyCredentials>,
) -> Result<EgressProxy, Problem> {
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
    Ok(EgressProxy {
        address: Address::Tcp(url.destination.clone()),
        tls,
        credentials: credentials.or(url.credentials.as_ref()).cloned(),
        name_resolution: if url.scheme == ProxyScheme::Socks5Local {
            NameResolution::Local
        } else {
            NameResolution::Remote
        },
    })
}

fn load_ca_bundle(file: &Path) -> Result<Bundle, Problem> {
    let pem = fs::read(file).map_err(|error| unreadable(file, &error))?;
    Bundle::from_pem(&pem, file.display())
}

fn load_credentials(file: &Path, kind: EgressProtocol) -> Result<ProxyCredentials, Problem> {
    let problem = |why| Problem::new(file.display(), why);
    let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    let credentials = ProxyCredentials::from_file_text(&text).map_err(problem)?;
    if kind == EgressProtocol::Socks5
        && credentials.user().len().max(credentials.password().len()) > MAX_SOCKS5_CREDENTIAL_BYTES
    {
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

    fn written(kind: ProxyKind, urls: &[&str]) -> (EgressSelectionSettings, ProxySettings) {
        let addresses = urls.iter().map(|url| ProxyAddress::Url(ProxyUrl::parse(url).unwrap())).collect();
        let proxy = ProxySettings { kind, addresses, tls: ProxyTlsFiles::default(), credentials_file: None };
        let way = EgressRouteSettings::Proxy(proxy.clone());
        let no_proxy = NoProxy::parse([".svc"]).unwrap();
        (
            EgressSelectionSettings {
                name: "a".to_owned(),
                route: way,
                no_proxy,
                dial_timeout: Duration::from_secs(3),
            },
            proxy,
        )
    }

    fn made(one: &EgressSelectionSettings, proxy: ProxySettings) -> Result<Arc<EgressSelection>, Problems> {
        let one = EgressSelectionSettings { route: EgressRouteSettings::Proxy(proxy), ..one.clone() };
        match build_routes(&[one], "egress.yaml")?.remove(0).1 {
            EgressRoute::Proxied(selection) => Ok(selection),
            EgressRoute::Direct => panic!("direct"),
        }
    }

    #[test]
    fn egress_selection_is_built_from_settings() {
        let (one, proxy) = written(ProxyKind::Socks5, &["socks5://u:p@a:1", "socks5-local://[::1]"]);
        let selection = made(&one, proxy).unwrap();
        assert_eq!(
            (selection.name.as_str(), selection.protocol, selection.dial_timeout.as_secs()),
            ("a", EgressProtocol::Socks5, 3)
        );
        let [first, second] = &selection.proxies[..] else { panic!("{selection:?}") };
        assert_eq!((first.address.to_string(), first.name_resolution), ("a:1".to_owned(), NameResolution::Remote));
        assert_eq!(first.credentials, Some(ProxyCredentials::new("u", "p")));
        assert_eq!(
            (second.address.to_string(), second.name_resolution),
            ("[::1]:1080".to_owned(), NameResolution::Local)
        );
        let service = crate::egress::Destination { host: Host::Name("a.b.svc".to_owned()), port: 1 };
        assert_eq!(EgressRoute::Proxied(selection).selection_for(&service), None);
    }

    #[test]
    fn egress_http_connect_dialect_depends_on_address() {
        let (one, mut proxy) = written(ProxyKind::HttpConnect(ConnectDialect::Ordinary), &["http://a"]);
        assert_eq!(made(&one, proxy.clone()).unwrap().protocol, EgressProtocol::HttpConnect(ConnectDialect::Ordinary));
        proxy.addresses = vec![ProxyAddress::Unix("/run/k.sock".into())];
        assert_eq!(made(&one, proxy).unwrap().protocol, EgressProtocol::HttpConnect(ConnectDialect::Konnectivity));
    }

    #[test]
    fn egress_selection_reports_every_invalid_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let (one, mut proxy) = written(ProxyKind::HttpConnect(ConnectDialect::Ordinary), &["https://a"]);
        proxy.tls.authorities = Some(file("ca", "no PEM"));
        proxy.tls.identity = Some(crate::tls::PairFiles::new(folder.path().join("x.crt"), folder.path().join("x.key")));
        proxy.credentials_file = Some(file("creds", "secret"));
        let way = EgressRouteSettings::Proxy(proxy.clone());
        assert_eq!(referenced_files(&[EgressSelectionSettings { route: way, ..one.clone() }]).len(), 4);
        let problems = made(&one, proxy).unwrap_err();
        assert_eq!(problems.0.len(), 3, "{problems}");
        let field = "egress.yaml: egressSelections[a].connection.transport.tcp.tlsConfig.caBundle: ";
        let ca = folder.path().join("ca");
        assert!(problems.to_string().contains(&format!("{field}{}: ", ca.display())), "{problems}");
        assert!(!problems.to_string().contains("secret"), "{problems}");
        let (socks, mut with) = written(ProxyKind::Socks5, &["socks5://a"]);
        with.credentials_file = Some(file("empty", "jane:"));
        assert_eq!(made(&socks, with.clone()).unwrap().proxies[0].credentials, Some(ProxyCredentials::new("jane", "")));
        with.credentials_file = Some(file("long", &format!("jane:{}", "x".repeat(256))));
        assert!(made(&socks, with).unwrap_err().to_string().contains("at most 255 bytes"));
    }
}
