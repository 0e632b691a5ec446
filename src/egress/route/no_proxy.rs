//! Destinations that bypass a proxy: `noProxy` of a selection, and `NO_PROXY` of the environment.

use crate::egress::Destination;
use crate::egress::route::destination_pattern::{BareName, DestinationPattern};

/// Patterns of destinations that bypass the proxy. The syntax is that of Go's `golang.org/x/net/http/httpproxy`; ports
/// are also allowed after networks. Names are not resolved.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoProxy {
    patterns: Vec<DestinationPattern>,
}

impl NoProxy {
    /// Parses a list of patterns.
    ///
    /// # Errors
    /// All invalid entries: index and problem.
    pub fn parse<'e>(entries: impl IntoIterator<Item = &'e str>) -> Result<NoProxy, Vec<(usize, &'static str)>> {
        let (mut patterns, mut mistakes) = (Vec::new(), Vec::new());
        for (number, entry) in entries.into_iter().enumerate() {
            match DestinationPattern::parse(entry.trim(), BareName::WithSubdomains) {
                Ok(pattern) => patterns.push(pattern),
                Err(mistake) => mistakes.push((number, mistake)),
            }
        }
        if mistakes.is_empty() { Ok(NoProxy { patterns }) } else { Err(mistakes) }
    }

    /// Parses the comma-separated list of the environment, which all programs of a machine share: invalid entries are
    /// ignored and returned.
    pub fn from_environment(text: &str) -> (NoProxy, Vec<&str>) {
        let (mut patterns, mut odd) = (Vec::new(), Vec::new());
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            match DestinationPattern::parse(entry, BareName::WithSubdomains) {
                Ok(pattern) => patterns.push(pattern),
                Err(_) => odd.push(entry),
            }
        }
        (NoProxy { patterns }, odd)
    }

    /// Whether `destination` bypasses the proxy.
    pub fn matches(&self, destination: &Destination) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(destination))
    }

    /// Whether no destination bypasses the proxy.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::Host;

    fn destination(host: &str) -> Destination {
        Destination { host: host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip), port: 443 }
    }

    #[test]
    fn no_proxy_matches_any_entry() {
        let list = NoProxy::parse(["10.0.0.0/8", " .svc ", "example.com:443", "other.example:80"]).unwrap();
        for (host, expected) in [
            ("10.1.2.3", true),
            ("a.b.svc", true),
            ("svc", false),
            ("www.example.com", true),
            ("other.example", false),
            ("192.0.2.1", false),
            // Never by what a name resolves to.
            ("localhost", false),
        ] {
            assert_eq!(list.matches(&destination(host)), expected, "{host}");
        }
        assert!(!NoProxy::default().matches(&destination("x")));
        assert!(NoProxy::parse(["*"]).unwrap().matches(&destination("x")));
    }

    #[test]
    fn no_proxy_parse_reports_every_invalid_entry() {
        let mistakes = NoProxy::parse(["a", "", "10.0.0.0/99", "b"]).unwrap_err();
        assert_eq!(mistakes.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn no_proxy_environment_ignores_invalid_entries() {
        let (list, odd) = NoProxy::from_environment("Example.com, 10.0.0.0/8,,a*b,:80 , [::1]:443");
        assert_eq!(odd, ["a*b", ":80"]);
        assert!(list.matches(&destination("a.example.com")) && list.matches(&destination("10.0.0.1")));
        assert!(list.matches(&destination("::1")) && !list.matches(&destination("a")));
    }
}
