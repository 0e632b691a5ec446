//! A server that no APIService references, as a backend like any other: a sidecar's upstream, or the delegate.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::json;

use super::objects::annotations::{self, BackendSettings, RetryMode, UpgradeProtocols};
use super::objects::api_service::{ApiService, ApiServiceBackend, ClientCertificate};
use super::objects::service::ObjectSource;
use super::objects::url_backend::UrlBackend;
use super::settings::Settings;
use crate::egress::{Address, HttpVersion};
use crate::process::Problems;
use crate::tls::{Bundle, KeyPair};

/// Maximum bytes of the path of a Unix domain socket (`sun_path`, without its NUL).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Address and protocol of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamUrl(UrlBackend);

impl UpstreamUrl {
    /// Reads `https://host[:port][/prefix]`, the same with `http`, or the absolute path of a socket as `unix:/path` or
    /// `unix:///path`. The protocol without TLS is HTTP/1.1, or HTTP/2 if `h2c`.
    pub fn parse(url: &str, h2c: bool) -> Result<UpstreamUrl, String> {
        let plain = Some(if h2c { HttpVersion::Http2 } else { HttpVersion::Http1 });
        if let Some(rest) = url.strip_prefix("http://") {
            return UrlBackend::parse_after_scheme(url, rest, plain).map(UpstreamUrl);
        }
        if let Some(rest) = url.strip_prefix("https://") {
            if h2c {
                return Err(format!("{url:?} uses TLS, and h2c is HTTP/2 without TLS: remove one of them"));
            }
            return UrlBackend::parse_after_scheme(url, rest, None).map(UpstreamUrl);
        }
        let Some(rest) = url.strip_prefix("unix:") else {
            return Err(format!("{url:?} must begin with https://, http:// or unix:/"));
        };
        let path = rest.strip_prefix("//").unwrap_or(rest);
        if !path.starts_with('/') || path.ends_with('/') {
            return Err(format!("{url:?} must name the absolute path of a socket, as in unix:/run/app.sock"));
        }
        if path.len() > MAX_SOCKET_PATH_BYTES || path.contains('\0') {
            return Err(format!(
                "{path:?} is not a valid socket path: at most {MAX_SOCKET_PATH_BYTES} bytes, without NUL"
            ));
        }
        let address = Address::Unix(PathBuf::from(path));
        Ok(UpstreamUrl(UrlBackend { address, plaintext_protocol: plain, prefix: String::new(), egress_route: None }))
    }
}

/// Verification of a backend's certificate.
pub(super) struct BackendTrust {
    /// CA certificates that may have issued it; the system's when `None`.
    pub(super) authorities: Option<Bundle>,
    /// Whether any certificate is accepted.
    pub(super) insecure_skip_verify: bool,
}

/// The upstream of a sidecar at `url`. `name` is its name in logs and metrics.
///
/// Over TLS its certificate must be issued by `authorities` (by the system's if `None`), unless
/// `insecure_skip_verify`. `identity` is our client certificate. Without one, none is sent: the front-proxy
/// certificate is for aggregated API servers only.
///
/// Timeouts and limits are the defaults of `settings`. The upstream owns its web origin and may upgrade to any
/// protocol. A request that it may have started is not retried. Callers change [`ApiService::settings`] for the rest.
pub fn sidecar_upstream(
    name: &str,
    url: UpstreamUrl,
    authorities: Option<Bundle>,
    insecure_skip_verify: bool,
    identity: Option<Arc<KeyPair>>,
    settings: &Settings,
) -> ApiService {
    let identity = identity.map_or(ClientCertificate::None, ClientCertificate::Dedicated);
    let mut upstream =
        static_api_service(name, url.0, None, BackendTrust { authorities, insecure_skip_verify }, identity, settings);
    let settings = &mut upstream.settings;
    settings.owns_origin = true;
    settings.retry = RetryMode::NotStarted;
    settings.upgrade_protocols = UpgradeProtocols::parse("*");
    upstream
}

/// The backend at `url` as an APIService that serves no group.
pub(super) fn static_api_service(
    name: &str,
    url: UrlBackend,
    server_name: Option<String>,
    trust: BackendTrust,
    client_certificate: ClientCertificate,
    settings: &Settings,
) -> ApiService {
    let defaults = annotations::parse_annotations(name, &BTreeMap::new(), settings, &mut Problems::default());
    ApiService {
        name: name.to_owned(),
        group: String::new(),
        version: String::new(),
        group_priority_minimum: 0,
        version_priority: 0,
        uid: String::new(),
        created: SystemTime::UNIX_EPOCH,
        labels: BTreeMap::new(),
        // All that is compared to detect a change.
        manifest: json!({ "spec": {
            "server": url.to_string(),
            "tlsServerName": server_name,
            "insecureSkipTLSVerify": trust.insecure_skip_verify,
            "caBundle": trust.authorities.as_ref().map(Bundle::to_pem),
        }}),
        backend: ApiServiceBackend::Url(url),
        ca_bundle: trust.authorities,
        insecure_skip_tls_verify: trust.insecure_skip_verify,
        client_certificate,
        settings: BackendSettings { server_name, ..defaults },
        source: ObjectSource::Directory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{EgressRoute, EgressRoutes};
    use crate::registry::snapshot::tests::registry;
    use crate::registry::{ResolveRules, ResolvedBackend, resolve};
    use crate::tls::{Authority, CertificateSpec};

    fn resolved(one: &ApiService, ways: &EgressRoutes) -> ResolvedBackend {
        resolve(one, &registry(""), ResolveRules::default(), ways).unwrap()
    }

    fn test_upstream(url: &str, h2c: bool) -> ApiService {
        let url = UpstreamUrl::parse(url, h2c).unwrap();
        sidecar_upstream("app", url, None, false, None, &Settings::default())
    }

    #[test]
    fn upstream_resolves_to_its_url() {
        let ways = EgressRoutes::default();
        let plain = resolved(&test_upstream("http://127.0.0.1:8080/base", true), &ways);
        assert_eq!((plain.endpoints[0].to_string().as_str(), plain.prefix.as_str()), ("127.0.0.1:8080", "/base"));
        assert_eq!(
            (plain.plaintext_protocol, plain.endpoints.len(), plain.preferred_count),
            (Some(HttpVersion::Http2), 1, 1)
        );
        let tls = resolved(&test_upstream("https://app.example", false), &ways);
        assert_eq!((tls.plaintext_protocol, tls.server_name.as_str()), (None, "app.example"));
        let unix = resolved(&test_upstream("unix:/run/app.sock", false), &ways);
        assert_eq!(unix.endpoints, [Address::Unix("/run/app.sock".into())]);
    }

    #[test]
    fn upstream_proxy_from_environment_except_for_sockets() {
        let through = |name: &str| {
            let url = crate::egress::ProxyUrl::parse(&format!("http://{name}:3128")).unwrap();
            let settings = crate::tls::client::ClientSettings {
                ca_bundle: None,
                insecure_skip_verify: false,
                identity: None,
                alpn: Vec::new(),
            };
            EgressRoute::from_proxy_url(name, &url, settings).unwrap()
        };
        let ways = EgressRoutes::new([], through("secure")).with_plaintext_default(through("plain"));
        assert_eq!(resolved(&test_upstream("http://elsewhere", false), &ways).egress_route, through("plain"));
        assert_eq!(resolved(&test_upstream("https://elsewhere", false), &ways).egress_route, through("secure"));
        assert_eq!(resolved(&test_upstream("unix:/run/app.sock", false), &ways).egress_route, EgressRoute::Direct);
    }

    #[test]
    fn upstream_client_certificate_only_when_configured() {
        assert!(test_upstream("https://a", false).client_certificate == ClientCertificate::None);
        let pair = Arc::new(Authority::generate("us").pair(&CertificateSpec::client("proxy", &[])));
        let url = UpstreamUrl::parse("https://a", false).unwrap();
        let own = sidecar_upstream("app", url, None, false, Some(pair.clone()), &Settings::default());
        assert!(own.client_certificate == ClientCertificate::Dedicated(pair));
    }

    #[test]
    fn upstream_urls_with_and_without_tls() {
        let read = |url: &str, h2c| UpstreamUrl::parse(url, h2c).map(|it| (it.0.to_string(), it.0.plaintext_protocol));
        let one = Some(HttpVersion::Http1);
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
            assert_eq!(read(url, true), Ok((url.to_owned(), Some(HttpVersion::Http2))), "{url}");
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
