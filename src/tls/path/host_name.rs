//! Whether a certificate is for a server's name, as in `VerifyHostname` of Go's crypto/x509: common names do not count, and
//! a wildcard is a whole first label.

use std::net::IpAddr;

use rustls::pki_types::ServerName;

use super::certificate::PathCertificate;
use super::path_error::{PathError, PathFault};

impl PathCertificate {
    /// Checks that the certificate is for `name`.
    pub(in crate::tls) fn check_host_name(&self, name: &ServerName<'_>) -> Result<(), PathError> {
        let is_valid = match name {
            ServerName::DnsName(name) => {
                let name = name.as_ref();
                self.names.dns.iter().any(|pattern| matches_host_name(pattern, name))
            }
            ServerName::IpAddress(address) => {
                let address = IpAddr::from(*address).to_canonical();
                self.names.addresses.iter().any(|it| it.to_canonical() == address)
            }
            _ => false,
        };
        if is_valid {
            return Ok(());
        }
        let addresses = self.names.addresses.iter().map(IpAddr::to_string);
        let presented = self.names.dns.iter().cloned().chain(addresses).collect();
        Err(PathError::of_leaf(PathFault::WrongName { expected: name.to_str().into_owned(), presented }))
    }
}

fn matches_host_name(pattern: &str, name: &str) -> bool {
    if !(is_host_name(name, false) && is_host_name(pattern, true)) {
        return !name.is_empty() && name != "." && pattern.eq_ignore_ascii_case(name);
    }
    let name = name.strip_suffix('.').unwrap_or(name);
    match pattern.strip_prefix('*') {
        Some(rest) => name.find('.').is_some_and(|at| name[at..].eq_ignore_ascii_case(rest)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// A host name as in Go's `validHostname`. A name may end with a period, and a pattern may begin with a wildcard label.
fn is_host_name(name: &str, is_pattern: bool) -> bool {
    let name = if is_pattern { name } else { name.strip_suffix('.').unwrap_or(name) };
    let is_label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    name != "*"
        && name
            .split('.')
            .enumerate()
            .all(|(position, label)| (is_pattern && position == 0 && label == "*") || is_label(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_name_patterns() {
        for (pattern, name, expected) in [
            ("a.example", "A.Example", true),
            ("a.example", "a.example.", true),
            ("a.example", "b.a.example", false),
            ("*.example", "a.example", true),
            ("*.example", "a.b.example", false),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("a*.example", "ab.example", false),
            ("*", "localhost", false),
            ("under_score.example", "under_score.example", true),
            ("", "", false),
        ] {
            assert_eq!(matches_host_name(pattern, name), expected, "{pattern} {name}");
        }
    }
}
