//! URLs of an issuer's documents, `https` only.

use std::fmt;

use crate::egress::{Destination, Host};

/// An `https` URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HttpsUrl {
    pub(super) destination: Destination,
    /// The host as written in the URL, with the port if there is one.
    pub(super) authority: String,
    /// Begins with a slash, or is empty.
    pub(super) path: String,
}

impl HttpsUrl {
    /// Parses a URL like Kubernetes' `validateURL`, and returns all its errors.
    pub(super) fn parse(url: &str) -> Result<HttpsUrl, Vec<String>> {
        let mut mistakes = Vec::new();
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        if !scheme.eq_ignore_ascii_case("https") {
            mistakes.push("URL scheme must be https".to_owned());
        }
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        if !fragment.is_empty() {
            mistakes.push("URL must not contain a fragment".to_owned());
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        if !query.is_empty() {
            mistakes.push("URL must not contain a query".to_owned());
        }
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let authority = match authority.rsplit_once('@') {
            Some((_, authority)) => {
                mistakes.push("URL must not contain a username or password".to_owned());
                authority
            }
            None => authority,
        };
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        let not = || vec!["not a valid URL of a host and a path".to_owned()];
        let parsed: http::Uri = format!("https://{authority}{path}").parse().map_err(|_| not())?;
        let host = parsed.host().filter(|host| !host.is_empty()).ok_or_else(not)?;
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = bare.parse().map_or_else(|_| Host::Name(bare.to_ascii_lowercase()), Host::Ip);
        let port = match parsed.authority().and_then(http::uri::Authority::port) {
            Some(port) => port.as_u16(),
            // A colon without a number, or with a number that is too large, is an error.
            None if authority.rsplit(']').next().is_some_and(|end| end.contains(':')) => return Err(not()),
            None => 443,
        };
        Ok(HttpsUrl { destination: Destination { host, port }, authority: authority.to_owned(), path: path.to_owned() })
    }

    /// Parses a URL that may have a query.
    pub(super) fn parse_with_query(url: &str) -> Result<HttpsUrl, Vec<String>> {
        let (bare, query) = url.split_once('?').unwrap_or((url, ""));
        let mut parsed = HttpsUrl::parse(bare)?;
        if !query.is_empty() {
            let path = if parsed.path.is_empty() { "/" } else { &parsed.path };
            parsed.path = format!("{path}?{query}");
        }
        Ok(parsed)
    }

    /// The target of a redirection to `location`, which may be relative; `https` only.
    pub(super) fn resolve(&self, location: &str) -> Result<HttpsUrl, Vec<String>> {
        let location = location.split('#').next().unwrap_or_default();
        // A scheme ends before any slash, query or period of a path.
        let has_scheme = location.split(['/', '?', '.']).next().is_some_and(|start| start.contains(':'));
        if has_scheme {
            return HttpsUrl::parse_with_query(location);
        }
        if location.starts_with("//") {
            return HttpsUrl::parse_with_query(&format!("https:{location}"));
        }
        let own_path = self.path.split('?').next().unwrap_or_default();
        let target = match location.chars().next() {
            None => self.path.clone(),
            Some('/') => location.to_owned(),
            Some('?') => format!("{own_path}{location}"),
            Some(_) => format!("{}/{location}", own_path.rsplit_once('/').map_or("", |(folder, _)| folder)),
        };
        HttpsUrl::parse_with_query(&format!("https://{}{target}", self.authority))
    }

    /// Appends `more` to the path.
    pub(super) fn join(&self, more: &str) -> HttpsUrl {
        HttpsUrl { path: format!("{}{more}", self.path.trim_end_matches('/')), ..self.clone() }
    }

    /// Returns the name that the server's certificate must have.
    pub(super) fn server_name(&self) -> String {
        match &self.destination.host {
            Host::Ip(ip) => ip.to_string(),
            Host::Name(name) => name.clone(),
        }
    }
}

impl fmt::Display for HttpsUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}{}", self.authority, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn https_url_rejects_other_schemes() {
        for (url, destination, path) in [
            ("https://a.example", "a.example:443", ""),
            ("https://A.example:8443/x/y", "a.example:8443", "/x/y"),
            ("HTTPS://[::1]:1/", "[::1]:1", "/"),
            ("https://127.0.0.1", "127.0.0.1:443", ""),
        ] {
            let parsed = HttpsUrl::parse(url).unwrap();
            assert_eq!((&*parsed.destination.to_string(), &*parsed.path), (destination, path), "{url}");
        }
        for (url, mistakes) in [
            ("http://a", &["URL scheme must be https"][..]),
            ("a.example", &["URL scheme must be https"]),
            ("", &["URL scheme must be https"]),
            (
                "http://u:p@a/?b#c",
                &[
                    "URL scheme must be https",
                    "URL must not contain a fragment",
                    "URL must not contain a query",
                    "URL must not contain a username or password",
                ],
            ),
            ("https://", &["not a valid URL of a host and a path"]),
            ("https://a b", &["not a valid URL of a host and a path"]),
            ("https://a:x", &["not a valid URL of a host and a path"]),
            ("https://a:", &["not a valid URL of a host and a path"]),
            ("https://a:99999", &["not a valid URL of a host and a path"]),
            ("https://a/\r\nx", &["not a valid URL of a host and a path"]),
        ] {
            assert_eq!(HttpsUrl::parse(url).unwrap_err(), mistakes, "{url}");
        }
        let from = HttpsUrl::parse_with_query("https://a.example:1/b/c?d").unwrap();
        for (location, expected) in [
            ("https://b.example/x?y", Ok("https://b.example/x?y")),
            ("HTTPS://b.example", Ok("https://b.example")),
            ("//b.example/x", Ok("https://b.example/x")),
            ("/x#y", Ok("https://a.example:1/x")),
            ("x", Ok("https://a.example:1/b/x")),
            ("?x", Ok("https://a.example:1/b/c?x")),
            ("http://b.example/x", Err("URL scheme must be https")),
            ("file:///etc/passwd", Err("URL scheme must be https")),
            ("javascript:x", Err("URL scheme must be https")),
            ("https://u:p@b.example/", Err("URL must not contain a username or password")),
        ] {
            let target = from.resolve(location).map(|url| url.to_string()).map_err(|mistakes| mistakes.join(" "));
            assert_eq!(target, expected.map(str::to_owned).map_err(str::to_owned), "{location}");
        }
        let joined = HttpsUrl::parse("https://a/b/").unwrap().join("/.well-known/x");
        assert_eq!(joined.to_string(), "https://a/b/.well-known/x");
    }
}
