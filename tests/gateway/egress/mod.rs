//! Connections to backends: proxies, Konnectivity, TLS.

pub(crate) mod backend_tls_diagnostics;
pub(crate) mod backend_tls_errors;
pub(crate) mod client_certificate_rotation;
pub(crate) mod egress_errors;
pub(crate) mod egress_warnings;
pub(crate) mod environment_proxies;
pub(crate) mod konnectivity;
pub(crate) mod selections;
