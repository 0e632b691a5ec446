//! How a webhook is reached (`WebhookClientConfig` of `apiextensions.k8s.io/v1` and `admissionregistration.k8s.io/v1`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;

use crate::tls::CertificateInfo;

/// Port of a webhook's Service without one.
const DEFAULT_PORT: u16 = 443;

/// How a webhook is reached: by its URL or its Service.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Hash)]
#[serde(default, rename_all = "camelCase")]
pub struct WebhookClientConfig {
    /// The URL, with the scheme `https`.
    pub url: Option<String>,
    /// The Service, if there is no URL.
    pub service: Option<WebhookService>,
    /// PEM of the authorities of its certificate, in base64; empty for the system's roots.
    pub ca_bundle: Option<String>,
}

/// The Service of a webhook.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Hash)]
pub struct WebhookService {
    /// Namespace of the Service.
    pub namespace: String,
    /// Name of the Service.
    pub name: String,
    /// Path of the requests.
    pub path: Option<String>,
    /// Number of the Service's port.
    #[serde(default = "default_port")]
    pub port: u16,
}

fn default_port() -> u16 {
    DEFAULT_PORT
}

impl WebhookClientConfig {
    /// PEM of the authorities; none for the system's roots.
    ///
    /// # Errors
    /// It is not base64.
    pub fn ca_bundle_pem(&self) -> Result<Option<Vec<u8>>, base64::DecodeError> {
        let pem = self.ca_bundle.as_deref().filter(|text| !text.is_empty()).map(|text| STANDARD.decode(text));
        pem.transpose()
    }
}

/// Why a bundle has no certificate that can be used (`rootCertPool` in `k8s.io/client-go/transport`); none if it has one.
pub fn ca_bundle_error(pem: &[u8]) -> Option<String> {
    let mut first = None;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let parsed = certificate.map_err(|error| error.to_string()).and_then(|der| CertificateInfo::parse(&der));
        match parsed {
            Ok(_) => return None,
            Err(error) => first = first.or_else(|| Some(format!("failed to parse certificate: {error}"))),
        }
    }
    Some(first.unwrap_or_else(|| "unable to parse bytes as PEM block".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca_bundle_needs_one_certificate() {
        let block =
            |der: &[u8]| format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", STANDARD.encode(der));
        let valid = rcgen::generate_simple_self_signed(Vec::new()).unwrap().cert;
        let (valid, invalid) = (block(valid.der()), block(b"abc"));
        assert_eq!(ca_bundle_error(format!("{invalid}{valid}").as_bytes()), None);
        assert_eq!(ca_bundle_error(b"abc").unwrap(), "unable to parse bytes as PEM block");
        assert!(ca_bundle_error(invalid.as_bytes()).unwrap().starts_with("failed to parse certificate: "));
    }

    #[test]
    fn webhook_config_is_read_with_defaults() {
        let config: WebhookClientConfig =
            serde_json::from_str(r#"{"service":{"namespace":"n","name":"s"},"caBundle":"YQ==","unknown":1}"#).unwrap();
        assert_eq!(config.service.as_ref().map(|service| service.port), Some(443));
        assert_eq!(config.ca_bundle_pem(), Ok(Some(b"a".to_vec())));
        assert_eq!(WebhookClientConfig::default().ca_bundle_pem(), Ok(None));
        let wrong = WebhookClientConfig { ca_bundle: Some("?".to_owned()), ..WebhookClientConfig::default() };
        assert!(wrong.ca_bundle_pem().is_err());
    }
}
