//! Proxy settings from the environment, by the rules of Go's `golang.org/x/net/http/httpproxy`.

use crate::egress::{NoProxy, ProxyUrl, without_credentials};
use crate::process::{Problem, Problems};

/// `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` at process start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyEnvironment {
    https: Option<ProxyUrl>,
    http: Option<ProxyUrl>,
    no_proxy: NoProxy,
}

impl ProxyEnvironment {
    /// Reads the variables. Upper case takes precedence; `ALL_PROXY` is ignored. Invalid entries of `NO_PROXY` are
    /// returned as warnings.
    ///
    /// # Errors
    /// All variables with an invalid proxy URL.
    pub fn read(variable: &dyn Fn(&str) -> Option<String>) -> Result<(ProxyEnvironment, Vec<Problem>), Problems> {
        let either = |name: &'static str| {
            let value = |name: &str| variable(name).filter(|value| !value.is_empty()).map(|it| (name.to_owned(), it));
            value(name).or_else(|| value(&name.to_ascii_lowercase()))
        };
        let mut problems = Problems::default();
        let mut proxy = |name| {
            let (name, value) = either(name)?;
            let url = proxy_url(&value)
                .map_err(|why| Problem::new(name, format_args!("{:?}: {why}", without_credentials(&value))));
            problems.collect(url)
        };
        let https = proxy("HTTPS_PROXY");
        // In a CGI program that variable is a request header of the client.
        let http = if variable("REQUEST_METHOD").is_some() { None } else { proxy("HTTP_PROXY") };
        let (no_proxy, odd) = match either("NO_PROXY") {
            None => (NoProxy::default(), Vec::new()),
            Some((name, value)) => {
                let (no_proxy, odd) = NoProxy::from_environment(&value);
                let tell = |entry| Problem::new(&name, format_args!("invalid entry {entry:?} ignored"));
                (no_proxy, odd.into_iter().map(tell).collect())
            }
        };
        problems.into_result((ProxyEnvironment { https, http, no_proxy }, odd))
    }

    /// The proxy for destinations with TLS (`secure`) or without, and the destinations that bypass it besides loopback.
    pub(in crate::egress) fn proxy(&self, secure: bool) -> (Option<&ProxyUrl>, &NoProxy) {
        let proxy = if secure { &self.https } else { &self.http };
        (proxy.as_ref(), &self.no_proxy)
    }

    /// Logs that connections use these proxies. Call once, at the start.
    pub fn log_use(&self) {
        let shown = |proxy: &Option<ProxyUrl>| proxy.as_ref().map_or("none".to_owned(), ProxyUrl::to_string);
        tracing::info!(
            https = shown(&self.https),
            http = shown(&self.http),
            "connections use the proxies of HTTPS_PROXY and HTTP_PROXY, except those that NO_PROXY names"
        );
    }

    /// Whether no proxy is configured.
    pub fn is_empty(&self) -> bool {
        self.https.is_none() && self.http.is_none()
    }
}

/// Parses a proxy URL; the default scheme is http.
fn proxy_url(text: &str) -> Result<ProxyUrl, String> {
    let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    ProxyUrl::parse_host(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::{Destination, EgressRoute, Host};

    fn read(variables: &[(&str, &str)]) -> Result<(ProxyEnvironment, Vec<Problem>), Problems> {
        ProxyEnvironment::read(&|name| {
            variables.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn proxy(variables: &[(&str, &str)], host: &str, secure: bool) -> Option<String> {
        let host = host.parse().map_or_else(|_| Host::Name(host.to_owned()), Host::Ip);
        let (environment, _) = read(variables).unwrap();
        let way = EgressRoute::from_environment(&environment, secure).unwrap();
        let selection = way.selection_for(&Destination { host, port: 6443 })?;
        Some(format!("{} {}", selection.protocol.as_str(), selection.proxies[0].address))
    }

    #[test]
    fn proxy_environment_prefers_capitals_and_defaults_scheme() {
        let both = [("HTTPS_PROXY", "upper:3128"), ("https_proxy", "lower:1"), ("http_proxy", "socks5h://plain")];
        assert_eq!(proxy(&both, "a.example", true).as_deref(), Some("http_connect upper:3128"));
        assert_eq!(proxy(&both[1..], "a.example", true).as_deref(), Some("http_connect lower:1"));
        assert_eq!(proxy(&both, "a.example", false).as_deref(), Some("socks5 plain:1080"));
        assert_eq!(
            proxy(&[("HTTPS_PROXY", ""), ("https_proxy", "lower:1")], "a", true).as_deref(),
            Some("http_connect lower:1")
        );
        assert_eq!(proxy(&[("ALL_PROXY", "all:1")], "a", true), None);
        assert_eq!(proxy(&[("HTTP_PROXY", "a:1"), ("REQUEST_METHOD", "GET")], "a", false), None);
    }

    #[test]
    fn proxy_environment_bypasses_loopback_and_no_proxy() {
        let variables = [("HTTPS_PROXY", "proxy:1"), ("NO_PROXY", ".svc,10.0.0.0/8, b.example:6443,c.example:1")];
        for direct in ["localhost", "127.0.0.1", "::1", "a.svc", "10.9.8.7", "x.b.example"] {
            assert_eq!(proxy(&variables, direct, true), None, "{direct}");
        }
        for proxied in ["svc", "11.0.0.1", "c.example", "localhost.example"] {
            assert!(proxy(&variables, proxied, true).is_some(), "{proxied}");
        }
    }

    #[test]
    fn proxy_environment_errors_hide_password() {
        let variables = [("HTTPS_PROXY", "ftp://u:secret@h"), ("http_proxy", "h:port"), ("no_proxy", "a,b*")];
        let problems = read(&variables).unwrap_err().to_string();
        assert_eq!(
            problems,
            "HTTPS_PROXY: \"ftp://…@h\": unsupported scheme \"ftp\"\nhttp_proxy: \"h:port\": the port is not a number"
        );
        let (environment, odd) = read(&variables[2..]).unwrap();
        assert!(environment.is_empty());
        assert_eq!(odd[0].to_string(), "no_proxy: invalid entry \"b*\" ignored");
    }
}
