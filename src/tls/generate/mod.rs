//! Certificates that this process makes or requests.

pub(super) mod authority;
pub(super) mod certificate_store;
pub(super) mod csr;
pub(super) mod generated_certs;
