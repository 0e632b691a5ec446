//! How a webhook is reached (`WebhookClientConfig` of `apiextensions.k8s.io/v1` and `admissionregistration.k8s.io/v1`).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

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

#[cfg(test)]
mod tests {
    use super::*;

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
