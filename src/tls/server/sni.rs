//! Selection of the serving certificate by the client's server name (SNI).
//!
//! As k8s.io/apiserver's `--tls-sni-cert-key`: exact names before wildcards, names on the command line
//! before names in certificates, earlier flags before later ones, else the default.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::process::Problem;
use crate::tls::key_pair::{KeyPair, PairFiles};

/// One `--tls-sni-cert-key`: `certificate,key` or `certificate,key:distinguished_name,distinguished_name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedCertKey {
    /// The files of the pair.
    pub files: PairFiles,
    /// The names it is served for, `*.` allowed; empty for those in the certificate.
    pub names: Vec<String>,
}

impl NamedCertKey {
    /// Parses the flag's value.
    pub fn parse(value: &str) -> Result<NamedCertKey, Problem> {
        let problem = |message: &str| Problem::new("--tls-sni-cert-key", format!("\"{value}\": {message}"));
        let (files, names) = match value.split_once(':') {
            Some((files, names)) => (files, Some(names)),
            None => (value, None),
        };
        let (certificate, key) = files
            .split_once(',')
            .map(|(certificate, key)| (certificate.trim(), key.trim()))
            .filter(|(certificate, key)| !certificate.is_empty() && !key.is_empty() && !key.contains(','))
            .ok_or_else(|| problem("expected certificate and key separated by a comma: server.crt,server.key"))?;
        let names: Vec<String> =
            names.into_iter().flat_map(|names| names.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect();
        if names.iter().any(String::is_empty) {
            return Err(problem("a name after the colon is empty"));
        }
        Ok(NamedCertKey { files: PairFiles::new(certificate, key), names })
    }
}

pub(super) struct SniResolver {
    default: Arc<CertifiedKey>,
    by_name: HashMap<String, Arc<CertifiedKey>>,
}

impl SniResolver {
    pub(super) fn new<'a>(
        default: &KeyPair,
        named: impl Iterator<Item = (&'a NamedCertKey, &'a Arc<KeyPair>)> + Clone,
    ) -> SniResolver {
        let mut by_name = HashMap::new();
        let (with_names, taken) = (named.clone(), named.filter(|(it, _)| it.names.is_empty()));
        for (it, pair) in with_names {
            for name in &it.names {
                by_name.entry(name.clone()).or_insert_with(|| pair.certified().clone());
            }
        }
        for (_, pair) in taken {
            for name in &pair.info().names {
                by_name.entry(name.to_ascii_lowercase()).or_insert_with(|| pair.certified().clone());
            }
        }
        SniResolver { default: default.certified().clone(), by_name }
    }

    fn select(&self, name: Option<&str>) -> &Arc<CertifiedKey> {
        let Some(name) = name.filter(|_| !self.by_name.is_empty()) else { return &self.default };
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        if let Some(exact) = self.by_name.get(&name) {
            return exact;
        }
        let wildcard = name.split_once('.').and_then(|(_, rest)| self.by_name.get(&format!("*.{rest}")));
        wildcard.unwrap_or(&self.default)
    }
}

impl ResolvesServerCert for SniResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.select(hello.server_name()).clone())
    }
}

impl fmt::Debug for SniResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByName").field("names", &self.by_name.keys()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::tls::{Authority, CertificateSpec};

    fn pair(authority: &Authority, names: &[&str]) -> Arc<KeyPair> {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let issued = authority.issue(&CertificateSpec::serving(&names), SystemTime::now()).unwrap();
        Arc::new(KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "test").unwrap())
    }

    #[test]
    fn sni_flag_parses() {
        let named = NamedCertKey::parse("foo.crt,foo.key:*.Foo.com, foo.com").unwrap();
        assert_eq!(named.files, PairFiles::new("foo.crt", "foo.key"));
        assert_eq!(named.names, ["*.foo.com", "foo.com"]);
        assert!(NamedCertKey::parse("foo.crt,foo.key").unwrap().names.is_empty());
        for wrong in ["foo.crt", "foo.crt,", ",foo.key", "a,b,c", "foo.crt,foo.key:", "foo.crt,foo.key:a,,b", ""] {
            assert!(NamedCertKey::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sni_selection_order_as_upstream() {
        let authority = Authority::new("test", SystemTime::now()).unwrap().0;
        let default = pair(&authority, &["default"]);
        let taken = pair(&authority, &["a.example.com", "*.example.com"]);
        let written = pair(&authority, &["other"]);
        let flags = [
            (NamedCertKey { files: PairFiles::new("1", "1"), names: vec![] }, taken.clone()),
            (
                NamedCertKey { files: PairFiles::new("2", "2"), names: vec!["a.example.com".into(), "*.test".into()] },
                written.clone(),
            ),
        ];
        let by_name = SniResolver::new(&default, flags.iter().map(|(flag, pair)| (flag, pair)));
        for (name, expected) in [
            (Some("a.example.com"), &written),
            (Some("A.Example.com"), &written),
            (Some("b.example.com"), &taken),
            (Some("x.b.example.com"), &default),
            (Some("x.test"), &written),
            (Some("other"), &default),
            (None, &default),
        ] {
            assert!(Arc::ptr_eq(by_name.select(name), expected.certified()), "{name:?}");
        }
    }
}
