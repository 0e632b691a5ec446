//! A server that no APIService names, as a backend like any other.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::annotations::{self, BackendSettings, Retry, UpgradeProtocols};
use super::api_service::{ApiService, Backend, ClientCertificate};
use super::service::Origin;
use super::snapshot::Settings;
use super::url_backend::UrlBackend;
use crate::egress::{Address, Protocol};
use crate::process::Problems;
use crate::tls::{Bundle, KeyPair};

/// Bytes of a Unix domain socket's path that the kernel takes (`sun_path`, without the NUL behind it).
const LONGEST_PATH: usize = 107;

/// Where an upstream is, and what is spoken there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl(UrlBackend);

impl UpstreamUrl {
    /// Reads `https://host[:port][/prefix]`, the same with `http`, or the absolute path of a socket as `unix:/path` or
    /// `unix:///path`. Without TLS HTTP/1.1 is spoken there, or HTTP/2 if `h2c`. The error says what is wrong.
    pub fn parse(url: &str, h2c: bool) -> Result<UpstreamUrl, String> {
        let plain = Some(if h2c { Protocol::Http2 } else { Protocol::Http1 });
        if let Some(rest) = url.strip_prefix("http://") {
            return UrlBackend::read(url, rest, plain).map(UpstreamUrl);
        }
        if let Some(rest) = url.strip_prefix("https://") {
            if h2c {
                return Err(format!(
                    "{url:?} is spoken to over TLS, and h2c is HTTP/2 without: leave one of them away"
                ));
            }
            return UrlBackend::read(url, rest, None).map(UpstreamUrl);
        }
        let Some(rest) = url.strip_prefix("unix:") else {
            return Err(format!("{url:?} must begin with https://, http:// or unix:/"));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(format!("{url:?} must name the absolute path of a socket, as in unix:/run/app.sock"));
        }
        if path.len() > LONGEST_PATH || path.contains('\0') {
            return Err(format!("{path:?} cannot be a socket's path: it has at most {LONGEST_PATH} bytes and no NUL"));
        }
        let address = Address::Unix(PathBuf::from(path));
        Ok(UpstreamUrl(UrlBackend { address, plain, prefix: String::new(), way: None }))
    }
}

/// Whom we believe to be a server.
pub(super) struct Trust {
    /// Who may vouch for it; the system's authorities when `None`.
    pub(super) authorities: Option<Bundle>,
    /// Whether any certificate will do.
    pub(super) insecure_skip_verify: bool,
}

/// The server at `url`, which a sidecar guards, by the `name` that logs and metrics know it by. Over TLS it must show a
/// certificate of `authorities` (of the system's if there are none), or any if `insecure_skip_verify`. We are who
/// `identity` says, or nobody: the pair by which aggregated API servers believe us is not for everybody to see.
///
/// Times and bounds are the defaults of `settings`. The origin is the server's own; it may be asked to upgrade to any
/// protocol, and what it may have begun is not sent again. What is to be otherwise, set in [`ApiService::settings`].
pub fn upstream(
    name: &str,
    url: UpstreamUrl,
    authorities: Option<Bundle>,
    insecure_skip_verify: bool,
    identity: Option<Arc<KeyPair>>,
    settings: &Settings,
) -> ApiService {
    let identity = identity.map_or(ClientCertificate::None, ClientCertificate::Own);
    let mut upstream = of(name, url.0, None, Trust { authorities, insecure_skip_verify }, identity, settings);
    let settings = &mut upstream.settings;
    settings.owns_origin = true;
    settings.retry = Retry::Unbegun;
    settings.upgrade_protocols = UpgradeProtocols::parse("*");
    upstream
}

/// As an APIService that claims no group.
pub(super) fn of(
    name: &str,
    url: UrlBackend,
    server_name: Option<String>,
    trust: Trust,
    client_certificate: ClientCertificate,
    settings: &Settings,
) -> ApiService {
    let defaults = annotations::read(name, &BTreeMap::new(), settings, &mut Problems::default());
    ApiService {
        name: name.to_owned(),
        group: String::new(),
        version: String::new(),
        group_priority_minimum: 0,
        version_priority: 0,
        uid: String::new(),
        created: SystemTime::UNIX_EPOCH,
        labels: BTreeMap::new(),
        // What it takes to tell whether two are the same.
        manifest: json!({ "spec": {
            "server": url.to_string(),
            "tlsServerName": server_name,
            "insecureSkipTLSVerify": trust.insecure_skip_verify,
            "caBundle": trust.authorities.as_ref().map(Bundle::to_pem),
        }}),
        backend: Backend::Url(url),
        ca_bundle: trust.authorities,
        insecure_skip_tls_verify: trust.insecure_skip_verify,
        client_certificate,
        settings: BackendSettings { server_name, ..defaults },
        origin: Origin::Directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{Way, Ways};
    use crate::registry::snapshot::tests::registry;
    use crate::registry::{Resolved, Rules, resolve};
    use crate::tls::{Authority, Request};

    fn resolved(one: &ApiService, ways: &Ways) -> Resolved {
        resolve(one, &registry(""), Rules::default(), ways).unwrap()
    }

    fn made(url: &str, h2c: bool) -> ApiService {
        let url = UpstreamUrl::parse(url, h2c).unwrap();
        upstream("app", url, None, false, None, &Settings::default())
    }

    #[test]
    fn it_leads_where_its_url_says() {
        let ways = Ways::default();
        let plain = resolved(&made("http://127.0.0.1:8080/base", true), &ways);
        assert_eq!((plain.endpoints[0].to_string().as_str(), plain.prefix.as_str()), ("127.0.0.1:8080", "/base"));
        assert_eq!((plain.plain, plain.endpoints.len(), plain.preferred), (Some(Protocol::Http2), 1, 1));
        let tls = resolved(&made("https://app.example", false), &ways);
        assert_eq!((tls.plain, tls.server_name.as_str()), (None, "app.example"));
        let unix = resolved(&made("unix:/run/app.sock", false), &ways);
        assert_eq!(unix.endpoints, [Address::Unix("/run/app.sock".into())]);
    }

    #[test]
    fn proxies_are_for_what_is_elsewhere_and_as_the_environment_has_them() {
        let through = |name: &str| {
            let url = crate::egress::ProxyUrl::parse(&format!("http://{name}:3128")).unwrap();
            let settings = crate::tls::client::ClientSettings {
                authorities: None,
                insecure_skip_verify: false,
                identity: None,
                alpn: Vec::new(),
            };
            Way::by_url(name, &url, settings).unwrap()
        };
        let ways = Ways::new([], through("secure")).with_plain(through("plain"));
        assert_eq!(resolved(&made("http://elsewhere", false), &ways).way, through("plain"));
        assert_eq!(resolved(&made("https://elsewhere", false), &ways).way, through("secure"));
        assert_eq!(resolved(&made("unix:/run/app.sock", false), &ways).way, Way::Direct);
    }

    #[test]
    fn it_is_shown_our_pair_only_if_one_is_for_it() {
        assert!(made("https://a", false).client_certificate == ClientCertificate::None);
        let pair = Arc::new(Authority::made("us").pair(&Request::client("proxy", &[])));
        let url = UpstreamUrl::parse("https://a", false).unwrap();
        let own = upstream("app", url, None, false, Some(pair.clone()), &Settings::default());
        assert!(own.client_certificate == ClientCertificate::Own(pair));
    }

    #[test]
    fn urls_with_and_without_tls() {
        let read = |url: &str, h2c| UpstreamUrl::parse(url, h2c).map(|it| (it.0.to_string(), it.0.plain));
        let one = Some(Protocol::Http1);
        for (url, shown, plain) in [
            ("http://127.0.0.1:8080/base/", "http://127.0.0.1:8080/base", one),
            ("http://localhost:80", "http://localhost", one),
            ("http://[::1]", "http://[::1]", one),
            ("http://a:443", "http://a:443", one),
            ("https://a:443", "https://a", None),
            ("https://a:1443", "https://a:1443", None),
            ("unix:/run/app.sock", "unix:/run/app.sock", one),
            ("unix:///run/app.sock", "unix:/run/app.sock", one),
        ] {
            assert_eq!(read(url, false), Ok((shown.to_owned(), plain)), "{url}");
        }
        for url in ["http://a", "unix:/a"] {
            assert_eq!(read(url, true), Ok((url.to_owned(), Some(Protocol::Http2))), "{url}");
        }
        for (url, h2c, why) in [
            ("ftp://a", false, "must begin with https://, http:// or unix:/"),
            ("127.0.0.1:8080", false, "must begin with https://, http:// or unix:/"),
            ("https://a", true, "h2c is HTTP/2 without"),
            ("http://u:p@a", false, "user or password"),
            ("http://a?b", false, "only http://host[:port][/prefix]"),
            ("unix:run/app.sock", false, "must name the absolute path of a socket"),
            ("unix://run/app.sock", false, "must name the absolute path of a socket"),
            ("unix:/run/", false, "must name the absolute path of a socket"),
            (&format!("unix:/{}", "a".repeat(107)), false, "at most 107 bytes"),
        ] {
            let error = read(url, h2c).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
