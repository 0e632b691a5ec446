//! A backend with a URL instead of a Service: the annotation `narthex.dev/url`, and upstreams of a sidecar.

use std::fmt;
use std::net::IpAddr;

use kubeapi::names;

use crate::egress::{Address, Destination, EgressRoute, Host, HttpVersion};

/// `https://host[:port][/prefix]`, the same with `http`, or `unix:/path`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlBackend {
    /// Address of the backend. The default port is 443, or 80 for `http`.
    pub address: Address,
    /// The HTTP version without TLS; `None` with TLS.
    pub plaintext_protocol: Option<HttpVersion>,
    /// Path prefix. Begins with `/` and does not end with it; empty for none.
    pub prefix: String,
    /// Egress route to it. `None`: the egress selection determines the route.
    pub egress_route: Option<EgressRoute>,
}

impl fmt::Display for UrlBackend {
    /// The URL, without the scheme's default port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, own) = scheme_and_port(self.plaintext_protocol.is_some());
        match &self.address {
            Address::Unix(_) => write!(f, "{}", self.address),
            Address::Tcp(destination) => {
                let text = destination.to_string();
                let authority =
                    if destination.port == own { &text[..text.len() - 1 - own.to_string().len()] } else { &text };
                write!(f, "{scheme}{authority}{}", self.prefix)
            }
        }
    }
}

/// Scheme of a URL, and its default port.
fn scheme_and_port(plain: bool) -> (&'static str, u16) {
    if plain { ("http://", 80) } else { ("https://", 443) }
}

impl UrlBackend {
    /// Parses `https://host[:port][/prefix]`.
    pub fn parse(url: &str) -> Result<UrlBackend, String> {
        let rest = url.strip_prefix("https://").ok_or_else(|| format!("{url:?} must begin with https://"))?;
        UrlBackend::parse_after_scheme(url, rest, None)
    }

    /// The URL's host as in a certificate, without brackets.
    pub(in crate::registry) fn certificate_host(&self) -> String {
        match &self.address {
            Address::Tcp(Destination { host: Host::Ip(ip), .. }) => ip.to_string(),
            Address::Tcp(Destination { host: Host::Name(name), .. }) => name.clone(),
            Address::Unix(_) => "localhost".to_owned(),
        }
    }

    /// Parses `rest`, the part of `url` after the scheme: `http://` if `plain`, else `https://`.
    pub(in crate::registry) fn parse_after_scheme(
        url: &str,
        rest: &str,
        plain: Option<HttpVersion>,
    ) -> Result<UrlBackend, String> {
        let (scheme, own) = scheme_and_port(plain.is_some());
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("a URL with a user or password in it is not accepted".to_owned());
        }
        if url.contains(['?', '#']) {
            return Err(format!("{url:?} has a query or fragment: only {scheme}host[:port][/prefix]"));
        }
        let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, port)) => (host, port.strip_prefix(':').map_or((port, false), |port| (port, true))),
            None => match authority.rsplit_once(':') {
                Some((host, port)) => (host, (port, true)),
                None => (authority, ("", false)),
            },
        };
        let port = match port {
            ("", false) => own,
            (digits, true) => digits
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0 && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| format!("{digits:?} is not a port: from 1 to 65535"))?,
            (other, false) => return Err(format!("{other:?} after the address is not a port")),
        };
        let host = match (host.parse::<IpAddr>(), bracketed.is_some()) {
            (Ok(ip), brackets) if ip.is_ipv6() == brackets => Host::Ip(ip),
            (Err(_), false) if names::is_host_name(host) => Host::Name(host.to_ascii_lowercase()),
            _ => return Err(format!("{host:?} is neither a DNS name nor an IP address")),
        };
        let prefix = prefix.trim_end_matches('/');
        let is_plain = |segment: &str| {
            !segment.is_empty()
                && segment != "."
                && segment != ".."
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b))
        };
        if !prefix.is_empty() && !prefix[1..].split('/').all(is_plain) {
            return Err(format!("{prefix:?} must be a plain path: no empty or dot segments, nothing percent-encoded"));
        }
        Ok(UrlBackend {
            address: Address::tcp(host, port),
            plaintext_protocol: plain,
            prefix: prefix.to_owned(),
            egress_route: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_backend_urls_parsed() {
        let read =
            |url| UrlBackend::parse(url).map(|url| (url.certificate_host(), url.address.to_string(), url.prefix));
        let is = |name: &str, address: &str, prefix: &str| Ok((name.into(), address.into(), prefix.into()));
        assert_eq!(read("https://Example.com:8443/a/b/"), is("example.com", "example.com:8443", "/a/b"));
        assert_eq!(read("https://[::1]:1"), is("::1", "[::1]:1", ""));
        assert_eq!(read("https://10.0.0.1/"), is("10.0.0.1", "10.0.0.1:443", ""));
        for wrong in [
            "http://a",
            "https://",
            "https://a:0",
            "https://a:+1",
            "https://u:p@a",
            "https://a/../b",
            "https://a//b",
            "https://a/%2e",
            "https://a?x",
            "https://a#x",
            "https://[::1]x",
            "https://::1",
            "https://[a]",
            "https://a b",
            "https://[10.0.0.1]",
        ] {
            assert!(UrlBackend::parse(wrong).is_err(), "{wrong}");
        }
    }
}
