//! The sidecar.

pub(crate) mod bypass;
pub(crate) mod delegated_auth;
pub(crate) mod in_memory_cert;
pub(crate) mod manifest;
pub(crate) mod rbac_proxy;
pub(crate) mod upgrade_shutdown;
pub(crate) mod upstream_relay;
