//! Where a webhook is: the parts of its URL, and the addresses that are refused.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use http::Uri;

use crate::egress::{Destination, Host};
use crate::message::split_authority;
use crate::registry::ServiceReference;
use crate::resources::webhook_config::WebhookClientConfig;

/// Where the requests for a webhook go.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WebhookDestination {
    pub(super) place: WebhookPlace,
    /// The header Host, as kube-apiserver sends it.
    pub(super) host: String,
    /// Name or address in its certificate.
    pub(super) server_name: String,
    /// Begins with `/`.
    pub(super) path: String,
}

/// What is to be resolved.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum WebhookPlace {
    /// The address or name of a URL.
    Url(Destination),
    /// A Service of the store.
    Service(ServiceReference),
}

impl WebhookDestination {
    /// Reads the configuration of a webhook.
    ///
    /// # Errors
    /// Neither URL nor Service, or a URL that cannot be read.
    pub(super) fn read(config: &WebhookClientConfig) -> Result<WebhookDestination, String> {
        if let Some(service) = &config.service {
            let (namespace, name) = (service.namespace.clone(), service.name.clone());
            let server_name = format!("{name}.{namespace}.svc");
            return Ok(WebhookDestination {
                host: format!("{server_name}:{}", service.port),
                server_name,
                path: cleaned(service.path.as_deref().unwrap_or_default()),
                place: WebhookPlace::Service(ServiceReference { namespace, name, port: service.port }),
            });
        }
        let url = config.url.as_deref().ok_or("webhook configuration must have either service or URL")?;
        let unreadable = || format!("Unparsable URL: {url:?}");
        let uri: Uri = url.parse().map_err(|_| unreadable())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(unreadable)?;
        if uri.scheme_str() != Some("https") {
            return Err(unreadable());
        }
        // kube-apiserver stores a port over 65535, too, and fails to dial it.
        let (bare, port) = split_authority(authority.as_str()).ok_or_else(unreadable)?;
        let host = bare.parse().map_or_else(|_| Host::Name(bare.to_ascii_lowercase()), Host::Ip);
        Ok(WebhookDestination {
            place: WebhookPlace::Url(Destination { host, port: port.unwrap_or(443) }),
            host: authority.as_str().to_owned(),
            server_name: bare.to_owned(),
            path: cleaned(uri.path()),
        })
    }

    /// The URL in errors and of requests: with the time limit, as client-go sends it.
    pub(super) fn url(&self, timeout_seconds: u64) -> String {
        format!("https://{}{}", self.host, self.path_and_query(timeout_seconds))
    }

    /// Path and query of a request.
    pub(super) fn path_and_query(&self, timeout_seconds: u64) -> String {
        format!("{}?timeout={timeout_seconds}s", self.path)
    }
}

/// A path that begins with a slash and does not end with one (`path.Join` in client-go).
fn cleaned(path: &str) -> String {
    format!("/{}", path.trim_matches('/'))
}

/// Why an address is refused: link-local addresses have the credentials of machines, and this server's own port would call
/// itself.
pub(super) fn refusal(address: IpAddr, port: u16, own: SocketAddr) -> Option<&'static str> {
    let address = address.to_canonical();
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    if is_link_local {
        return Some("link-local addresses are refused for webhooks");
    }
    let own_address = own.ip().to_canonical();
    let is_wildcard = own_address.is_unspecified() || address.is_unspecified();
    let is_own = port == own.port() && (address == own_address || is_wildcard && is_of_this_machine(address));
    is_own.then_some("the address is that of this server, which is refused for webhooks")
}

/// Whether an address is one of this machine: only these can be bound.
fn is_of_this_machine(address: IpAddr) -> bool {
    address.is_loopback() || address.is_unspecified() || UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::webhook_config::WebhookService;

    fn of_url(url: &str) -> Result<WebhookDestination, String> {
        WebhookDestination::read(&WebhookClientConfig { url: Some(url.to_owned()), ..WebhookClientConfig::default() })
    }

    #[test]
    fn webhook_url_is_split_with_defaults() {
        let read = of_url("https://Example.com/a/b/").unwrap();
        let destination = Destination { host: Host::Name("example.com".to_owned()), port: 443 };
        assert_eq!((&read.place, &*read.path), (&WebhookPlace::Url(destination), "/a/b"));
        assert_eq!(read.url(30), "https://Example.com/a/b?timeout=30s");
        let six = of_url("https://[::1]:8443").unwrap();
        assert_eq!((&*six.server_name, six.url(30).as_str()), ("::1", "https://[::1]:8443/?timeout=30s"));
        for wrong in
            ["http://a", "https://u@a", "a", "/a", "https://", "https://a:99999", "https://a:443x", "https://[::1].a"]
        {
            assert!(of_url(wrong).unwrap_err().starts_with("Unparsable URL"), "{wrong}");
        }
    }

    #[test]
    fn webhook_service_has_name_of_cluster_dns() {
        let service = WebhookService { namespace: "n".into(), name: "s".into(), path: Some("x".into()), port: 1 };
        let config = WebhookClientConfig { service: Some(service), ..WebhookClientConfig::default() };
        let read = WebhookDestination::read(&config).unwrap();
        assert_eq!((&*read.server_name, read.url(30).as_str()), ("s.n.svc", "https://s.n.svc:1/x?timeout=30s"));
        let neither = WebhookDestination::read(&WebhookClientConfig::default()).unwrap_err();
        assert_eq!(neither, "webhook configuration must have either service or URL");
    }

    #[test]
    fn webhook_address_refused_if_link_local_or_own() {
        let refused = |address: &str, port, own: &str| refusal(address.parse().unwrap(), port, own.parse().unwrap());
        for address in ["169.254.169.254", "fe80::1", "::ffff:169.254.0.1"] {
            assert!(
                refused(address, 443, "0.0.0.0:6443").is_some_and(|why| why.starts_with("link-local")),
                "{address}"
            );
        }
        for own in ["0.0.0.0:6443", "127.0.0.1:6443", "[::]:6443"] {
            assert!(refused("127.0.0.1", 6443, own).is_some(), "{own}");
            assert!(refused("0.0.0.0", 6443, own).is_some(), "{own}");
            assert_eq!(refused("127.0.0.1", 6444, own), None);
        }
        assert_eq!(refused("192.0.2.1", 6443, "0.0.0.0:6443"), None);
    }
}
