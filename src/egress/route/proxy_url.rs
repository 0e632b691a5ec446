//! Proxy URLs.

use std::fmt;
use std::net::IpAddr;

use crate::egress::{Destination, Host, ProxyCredentials};

/// Protocol of a proxy, by the scheme of its URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ProxyScheme {
    /// `http`: HTTP without TLS.
    Http,
    /// `https`: HTTP over TLS.
    Https,
    /// `socks5` and `socks5h`: the proxy resolves names, as in Go for both.
    Socks5,
    /// `socks5-local`: the gateway resolves names, and the proxy gets addresses.
    Socks5Local,
}

impl ProxyScheme {
    /// The scheme as written.
    pub fn as_str(self) -> &'static str {
        match self {
            ProxyScheme::Http => "http",
            ProxyScheme::Https => "https",
            ProxyScheme::Socks5 => "socks5",
            ProxyScheme::Socks5Local => "socks5-local",
        }
    }

    fn parse(name: &str) -> Option<ProxyScheme> {
        match name {
            "http" => Some(ProxyScheme::Http),
            "https" => Some(ProxyScheme::Https),
            "socks5" | "socks5h" => Some(ProxyScheme::Socks5),
            "socks5-local" => Some(ProxyScheme::Socks5Local),
            _ => None,
        }
    }

    /// Port of a URL without one.
    fn default_port(self) -> u16 {
        match self {
            ProxyScheme::Http => 80,
            ProxyScheme::Https => 443,
            ProxyScheme::Socks5 | ProxyScheme::Socks5Local => 1080,
        }
    }
}

/// URL of a proxy. `Debug` and `Display` omit the credentials.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ProxyUrl {
    /// Protocol of the proxy.
    pub scheme: ProxyScheme,
    /// Host and port.
    pub destination: Destination,
    /// User info before the `@`, percent-decoded.
    pub credentials: Option<ProxyCredentials>,
}

/// Why a text is not a valid proxy URL. `Display` shows no password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProxyUrlError {
    /// No scheme, or not a URL for Go's `net/url`.
    NotParsed,
    /// Unsupported scheme.
    Scheme(String),
    /// Another problem.
    Invalid(&'static str),
}

impl ProxyUrl {
    /// Parses `scheme://[user:password@]host[:port][/]`.
    ///
    /// # Errors
    /// Any other text.
    pub fn parse(text: &str) -> Result<ProxyUrl, ProxyUrlError> {
        let (scheme, rest) = split_scheme(text)?;
        let scheme = ProxyScheme::parse(&scheme).ok_or(ProxyUrlError::Scheme(scheme))?;
        let rest = rest.strip_prefix("//").ok_or(ProxyUrlError::Invalid("two slashes must follow the scheme"))?;
        let (authority, path) = rest.find(['/', '?', '#']).map_or((rest, ""), |at| rest.split_at(at));
        if !matches!(path, "" | "/") {
            return Err(ProxyUrlError::Invalid("nothing may follow the host and port"));
        }
        let (credentials, host) = match authority.rsplit_once('@') {
            None => (None, authority),
            Some((user_info, host)) => {
                (Some(ProxyCredentials::from_user_info(user_info).map_err(ProxyUrlError::Invalid)?), host)
            }
        };
        let (host, port) = parse_host_port(host).map_err(ProxyUrlError::Invalid)?;
        let destination = Destination { host, port: port.unwrap_or(scheme.default_port()) };
        Ok(ProxyUrl { scheme, destination, credentials: credentials.filter(|it| !it.user().is_empty()) })
    }
}

impl ProxyUrl {
    /// As [`ProxyUrl::parse`], but ignores path, query and fragment, as Go does for proxies.
    ///
    /// # Errors
    /// As [`ProxyUrl::parse`].
    pub fn parse_host(text: &str) -> Result<ProxyUrl, ProxyUrlError> {
        let begin = text.find("://").map_or(text.len(), |at| at + 3);
        let end = text[begin..].find(['/', '?', '#']).map_or(text.len(), |at| begin + at);
        ProxyUrl::parse(&text[..end])
    }

    /// Parses `proxy-url` of a kubeconfig: http, https, socks5 and, beyond client-go, socks5h.
    ///
    /// # Errors
    /// The messages of `parseProxyURL` in `k8s.io/client-go/tools/clientcmd/client_config.go`, without the password.
    pub fn from_kubeconfig(text: &str) -> Result<ProxyUrl, String> {
        let unsupported = |scheme: &str| format!("unsupported scheme {scheme:?}, must be http, https, or socks5");
        match ProxyUrl::parse_host(text) {
            Ok(url) if url.scheme == ProxyScheme::Socks5Local => Err(unsupported(url.scheme.as_str())),
            Ok(url) => Ok(url),
            Err(ProxyUrlError::Scheme(scheme)) => Err(unsupported(&scheme)),
            Err(ProxyUrlError::NotParsed) => Err(format!("could not parse: {}", without_credentials(text))),
            Err(ProxyUrlError::Invalid(why)) => Err(format!("could not parse: {}: {why}", without_credentials(text))),
        }
    }
}

/// Splits off the scheme as Go's `net/url` does: a malformed one is an error of its own.
fn split_scheme(text: &str) -> Result<(String, &str), ProxyUrlError> {
    if text.bytes().any(|byte| byte < b' ' || byte == 0x7f) {
        return Err(ProxyUrlError::NotParsed);
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+-.".contains(c)).unwrap_or(text.len());
    let (scheme, rest) = text.split_at(end);
    match rest.strip_prefix(':') {
        Some(rest) if scheme.starts_with(|c: char| c.is_ascii_alphabetic()) => Ok((scheme.to_ascii_lowercase(), rest)),
        // A colon in the first path segment: Go requires a scheme.
        Some(_) => Err(ProxyUrlError::NotParsed),
        None if text.split('/').next().is_some_and(|first| first.contains(':')) => Err(ProxyUrlError::NotParsed),
        None => Err(ProxyUrlError::Scheme(String::new())),
    }
}

/// Parses `host`, `host:port`, `[address]` or `[address]:port`.
pub(crate) fn parse_host_port(text: &str) -> Result<(Host, Option<u16>), &'static str> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (address, port) = rest.split_once(']').ok_or("a bracket is not closed")?;
        if address.contains('%') {
            return Err("an IPv6 address with a zone is not supported");
        }
        let address = address.parse().map_err(|_| "the text in brackets is not an IPv6 address")?;
        (Host::Ip(IpAddr::V6(address)), port)
    } else {
        let (host, port) = text.find(':').map_or((text, ""), |at| text.split_at(at));
        if port.matches(':').count() > 1 {
            return Err("an IPv6 address must be in brackets");
        }
        (parse_host_name(host)?, port)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        None => return Err("only a port may follow the brackets"),
        // As in Go, a colon without a number means no port.
        Some("") => None,
        Some(port) if !port.bytes().all(|byte| byte.is_ascii_digit()) => return Err("the port is not a number"),
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => Some(port),
            _ => return Err("the port must be from 1 to 65535"),
        },
    };
    Ok((host, port))
}

/// Parses an address or a host name.
fn parse_host_name(text: &str) -> Result<Host, &'static str> {
    if let Ok(ip) = text.parse() {
        return Ok(Host::Ip(ip));
    }
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match text.strip_suffix('.').unwrap_or(text) {
        "" => Err("the host is missing"),
        name if name.len() > 253 => Err("the host is longer than the 253 characters that a name can have"),
        name if !name.bytes().all(fits) => Err("the host is neither an address nor a name"),
        name if name.split('.').any(str::is_empty) => Err("the host is neither an address nor a name"),
        _ => Ok(Host::Name(text.to_ascii_lowercase())),
    }
}

impl fmt::Display for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.as_str(), self.destination)
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", if self.credentials.is_some() { " with credentials" } else { "" })
    }
}

impl fmt::Display for ProxyUrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProxyUrlError::NotParsed => f.write_str("not a URL such as socks5://127.0.0.1:1080"),
            ProxyUrlError::Scheme(scheme) => write!(f, "unsupported scheme {scheme:?}"),
            ProxyUrlError::Invalid(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for ProxyUrlError {}

/// Removes the user info before the last `@`, for messages about invalid URLs.
pub fn without_credentials(text: &str) -> String {
    let begin = text.find("://").map_or(0, |at| at + 3);
    match text.rfind('@') {
        Some(at) if at >= begin => format!("{}…{}", &text[..begin], &text[at..]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<String, String> {
        ProxyUrl::parse(text).map(|url| url.to_string()).map_err(|error| error.to_string())
    }

    #[test]
    fn proxy_url_schemes_and_default_ports() {
        for (text, expected) in [
            ("http://proxy", "http://proxy:80"),
            ("HTTPS://Proxy.Example.:8443/", "https://proxy.example.:8443"),
            ("https://10.0.0.1", "https://10.0.0.1:443"),
            ("socks5://[::1]", "socks5://[::1]:1080"),
            ("socks5h://[2001:db8::1]:9", "socks5://[2001:db8::1]:9"),
            ("socks5-local://a_b:1", "socks5-local://a_b:1"),
            ("http://proxy:", "http://proxy:80"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn proxy_url_credentials_are_hidden() {
        let url = ProxyUrl::parse("socks5://al%20ice:p%40s%3As@h:1").unwrap();
        let credentials = url.credentials.as_ref().unwrap();
        assert_eq!((credentials.user(), credentials.password()), ("al ice", "p@s:s"));
        assert_eq!(format!("{url} {url:?}"), "socks5://h:1 socks5://h:1 with credentials");
        assert_eq!(ProxyUrl::parse("http://@h").unwrap().credentials, None);
        assert_eq!(without_credentials("htp://a:b@c@h:1"), "htp://…@h:1");
        assert_eq!(without_credentials("a:b@h"), "…@h");
        assert_eq!(without_credentials("http://h/x"), "http://h/x");
    }

    #[test]
    fn proxy_url_rejects_invalid_text() {
        for (text, expected) in [
            ("", "unsupported scheme \"\""),
            ("proxy", "unsupported scheme \"\""),
            ("//proxy:1", "unsupported scheme \"\""),
            ("localhost:1080", "unsupported scheme \"localhost\""),
            ("ftp://proxy", "unsupported scheme \"ftp\""),
            ("127.0.0.1:1080", "not a URL such as socks5://127.0.0.1:1080"),
            ("http://a\nb", "not a URL such as socks5://127.0.0.1:1080"),
            ("http:proxy", "two slashes must follow the scheme"),
            ("http://", "the host is missing"),
            ("http://:80", "the host is missing"),
            ("http://.", "the host is missing"),
            ("http://a..b", "the host is neither an address nor a name"),
            ("http://a b", "the host is neither an address nor a name"),
            ("http://h:x", "the port is not a number"),
            ("http://h:+1", "the port is not a number"),
            ("http://h:0", "the port must be from 1 to 65535"),
            ("http://h:65536", "the port must be from 1 to 65535"),
            ("http://::1:80", "an IPv6 address must be in brackets"),
            ("http://[::1", "a bracket is not closed"),
            ("http://[::1]80", "only a port may follow the brackets"),
            ("http://[10.0.0.1]:80", "the text in brackets is not an IPv6 address"),
            ("http://[fe80::1%25eth0]:80", "an IPv6 address with a zone is not supported"),
            ("http://h/x", "nothing may follow the host and port"),
            ("http://h?x", "nothing may follow the host and port"),
            ("http://a%:b@h", "the user or password has a malformed escape; write a percent sign as %25"),
        ] {
            assert_eq!(read(text), Err(expected.to_owned()), "{text}");
        }
        let long = format!("http://{}", "a.".repeat(128));
        assert_eq!(read(&long), Err("the host is longer than the 253 characters that a name can have".to_owned()));
    }

    #[test]
    fn proxy_url_of_kubeconfig_has_errors_of_client_go() {
        let read = |text| ProxyUrl::from_kubeconfig(text).map(|url| url.to_string());
        for (text, expected) in [
            ("http://proxy:3128/x?y", "http://proxy:3128"),
            ("https://u:p@proxy", "https://proxy:443"),
            ("socks5://127.0.0.1:1080", "socks5://127.0.0.1:1080"),
            ("socks5h://127.0.0.1", "socks5://127.0.0.1:1080"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("127.0.0.1:18802", "could not parse: 127.0.0.1:18802"),
            ("socks4://h", "unsupported scheme \"socks4\", must be http, https, or socks5"),
            ("socks5-local://h", "unsupported scheme \"socks5-local\", must be http, https, or socks5"),
            ("localhost:1080", "unsupported scheme \"localhost\", must be http, https, or socks5"),
            ("proxy", "unsupported scheme \"\", must be http, https, or socks5"),
            ("http://u:p@h:x", "could not parse: http://…@h:x: the port is not a number"),
            ("socks5:h", "could not parse: socks5:h: two slashes must follow the scheme"),
        ] {
            assert_eq!(read(text), Err(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn proxy_url_parse_never_panics() {
        bolero::check!().with_type::<String>().with_iterations(2000).for_each(|text| {
            let _ = (without_credentials(text), ProxyUrl::from_kubeconfig(text));
            if let Ok(url) = ProxyUrl::parse(text) {
                assert_eq!(ProxyUrl::parse(&url.to_string()).map(|it| it.destination), Ok(url.destination));
            }
        });
    }
}
