//! TLS versions, cipher suites and ALPN of the listener.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ResolvesServerCert};
use rustls::{ServerConfig, SupportedCipherSuite, SupportedProtocolVersion};

use super::ServingSettings;
use crate::process::{Problem, Problems};
use crate::tls::provider;

/// Checked TLS parameters.
pub(super) struct TlsParameters {
    versions: &'static [&'static SupportedProtocolVersion],
    suites: Vec<SupportedCipherSuite>,
    http2: bool,
}

impl TlsParameters {
    pub(super) fn parse(settings: &ServingSettings) -> Result<TlsParameters, Problems> {
        let mut problems = Problems::default();
        let versions = problems.collect(protocol_versions(&settings.min_version));
        let mut allowed = Vec::new();
        for name in &settings.cipher_suites {
            allowed.extend(problems.collect(parse_cipher_suite(name)));
        }
        // As in Go, the suites of TLS 1.3 are fixed; the flag selects among those of TLS 1.2.
        let provider = provider();
        let suites = provider.cipher_suites.iter().copied();
        let suites = suites
            .filter(|it| settings.cipher_suites.is_empty() || it.tls13().is_some() || allowed.contains(&it.suite()))
            .collect();
        let protocol = TlsParameters { versions: versions.unwrap_or_default(), suites, http2: settings.http2 };
        problems.into_result(protocol)
    }

    pub(super) fn into_config(
        self,
        verifier: Arc<dyn ClientCertVerifier>,
        resolver: Arc<dyn ResolvesServerCert>,
    ) -> Result<ServerConfig, Problem> {
        let provider = CryptoProvider { cipher_suites: self.suites, ..provider().as_ref().clone() };
        let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(self.versions)
            .map_err(|error| Problem::new("--tls-cipher-suites", format!("cannot be combined: {error}")))?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(resolver);
        // A resumed session would restore a client certificate that was not verified again: rustls
        // copies it from the ticket. So resumption is disabled.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        if self.http2 {
            config.alpn_protocols.insert(0, b"h2".to_vec());
        }
        Ok(config)
    }
}

static FROM_TLS12: [&SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
static FROM_TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

fn protocol_versions(min: &str) -> Result<&'static [&'static SupportedProtocolVersion], Problem> {
    match min {
        "" | "VersionTLS12" => Ok(&FROM_TLS12),
        "VersionTLS13" => Ok(&FROM_TLS13),
        other => {
            let message = format!("{other} is not supported; supported are VersionTLS12 and VersionTLS13");
            Err(Problem::new("--tls-min-version", message))
        }
    }
}

fn parse_cipher_suite(name: &str) -> Result<rustls::CipherSuite, Problem> {
    // Go has an older name for each of these.
    let standard_name = match name.trim() {
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305" => "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        other => other,
    };
    let provider = provider();
    let found = provider.cipher_suites.iter().find(|it| iana_name(it) == standard_name);
    found.map(SupportedCipherSuite::suite).ok_or_else(|| {
        let names = provider.cipher_suites.iter().map(iana_name).collect::<Vec<_>>().join(", ");
        Problem::new("--tls-cipher-suites", format!("{name} is not supported; supported are {names}"))
    })
}

/// rustls writes `TLS13_AES_…` where IANA and Go write `TLS_AES_…`.
fn iana_name(suite: &SupportedCipherSuite) -> String {
    suite.suite().as_str().map_or_else(String::new, |name| name.replacen("TLS13_", "TLS_", 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(min: &str, suites: &[&str]) -> ServingSettings {
        ServingSettings {
            min_version: min.to_owned(),
            cipher_suites: suites.iter().map(|&name| name.to_owned()).collect(),
            http2: true,
            ..ServingSettings::default()
        }
    }

    #[test]
    fn tls_parameters_unsupported_values_reported_together() {
        let problems =
            TlsParameters::parse(&settings("VersionTLS10", &["TLS_RSA_WITH_AES_128_CBC_SHA", "x"])).err().unwrap();
        let text = problems.to_string();
        assert_eq!(problems.0.len(), 3, "{text}");
        assert!(
            text.contains("--tls-min-version: VersionTLS10 is not supported; supported are VersionTLS12"),
            "{text}"
        );
        assert!(text.contains("TLS_AES_128_GCM_SHA256") && text.contains("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"));
    }

    #[test]
    fn tls_parameters_keep_tls_1_3_suites() {
        let protocol =
            TlsParameters::parse(&settings("", &["TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "TLS_AES_128_GCM_SHA256"]))
                .ok()
                .unwrap();
        let names: Vec<_> = protocol.suites.iter().map(iana_name).collect();
        assert_eq!(names.iter().filter(|it| it.starts_with("TLS_ECDHE")).count(), 1, "{names:?}");
        assert_eq!(names.iter().filter(|it| !it.starts_with("TLS_ECDHE")).count(), 3, "{names:?}");
        assert!(TlsParameters::parse(&settings("VersionTLS13", &["TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"])).is_ok());
    }
}
