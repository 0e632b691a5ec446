//! A URL instead of a Service: the annotation `narthex.dev/url`.

use std::fmt;
use std::net::IpAddr;

use super::names;
use crate::egress::{Destination, Host, Way};

/// `https://host[:port][/prefix]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UrlBackend {
    /// Name or address.
    pub host: Host,
    /// 443 when the URL has none.
    pub port: u16,
    /// Stands before every path; begins with `/`, does not end with one; empty for none.
    pub prefix: String,
    /// The one way there, whatever selections say; none where they do.
    pub way: Option<Way>,
}

impl fmt::Display for UrlBackend {
    /// As it was written, with the port only where it is not 443.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let destination = Destination { host: self.host.clone(), port: self.port }.to_string();
        let authority = if self.port == 443 { destination.trim_end_matches(":443") } else { &destination };
        write!(f, "https://{authority}{}", self.prefix)
    }
}

impl UrlBackend {
    /// Reads `https://host[:port][/prefix]`; the error says what is wrong with it.
    pub fn parse(url: &str) -> Result<UrlBackend, String> {
        let rest = url.strip_prefix("https://").ok_or_else(|| format!("{url:?} must begin with https://"))?;
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("a URL with a user or password in it is not accepted".to_owned());
        }
        if url.contains(['?', '#']) {
            return Err(format!("{url:?} has a query or fragment: only https://host[:port][/prefix]"));
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
            ("", false) => 443,
            (digits, true) => digits
                .parse::<u16>()
                .ok()
                .filter(|port| *port != 0 && digits.bytes().all(|b| b.is_ascii_digit()))
                .ok_or_else(|| format!("{digits:?} is not a port: from 1 to 65535"))?,
            (other, false) => return Err(format!("{other:?} after the address is no port")),
        };
        let host = match (host.parse::<IpAddr>(), bracketed.is_some()) {
            (Ok(ip), brackets) if ip.is_ipv6() == brackets => Host::Ip(ip),
            (Err(_), false) if names::is_host_name(host) => Host::Name(host.to_ascii_lowercase()),
            _ => return Err(format!("{host:?} is neither a DNS name nor an IP address")),
        };
        let prefix = prefix.trim_end_matches('/');
        let plain = |segment: &str| {
            !segment.is_empty()
                && segment != "."
                && segment != ".."
                && segment.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&b))
        };
        if !prefix.is_empty() && !prefix[1..].split('/').all(plain) {
            return Err(format!("{prefix:?} must be a plain path: no empty or dot segments, nothing percent-encoded"));
        }
        Ok(UrlBackend { host, port, prefix: prefix.to_owned(), way: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::resolve::host_text;

    #[test]
    fn urls() {
        let read = |url| UrlBackend::parse(url).map(|url| (host_text(&url.host), url.port, url.prefix));
        assert_eq!(read("https://Example.com:8443/a/b/"), Ok(("example.com".into(), 8443, "/a/b".into())));
        assert_eq!(read("https://[::1]:1"), Ok(("::1".into(), 1, String::new())));
        assert_eq!(read("https://10.0.0.1/"), Ok(("10.0.0.1".into(), 443, String::new())));
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
