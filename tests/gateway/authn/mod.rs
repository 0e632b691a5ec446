//! Authentication: certificates, tokens, front proxies, and the certificates the gateway serves.

pub(crate) mod auth_configmap;
pub(crate) mod certificate_expiry;
pub(crate) mod certificate_trust;
pub(crate) mod client_tls_errors;
pub(crate) mod identity;
pub(crate) mod jwt_authentication;
pub(crate) mod oidc_flags;
pub(crate) mod token_webhook;
