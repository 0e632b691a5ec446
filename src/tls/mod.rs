//! TLS: key pairs, CA bundles, certificate authorities, and verification of peer certificates.

mod bundle;
mod certificate;
mod certificate_in_use;
mod certificate_report;
pub mod client;
mod client_identity;
mod connection_failure;
mod der;
mod expiry_log;
mod expiry_warning;
mod generate;
mod key_pair;
mod path;
mod peer_certificate;
pub mod server;
mod signature;
mod stream;
#[cfg(test)]
mod tests;
mod verify;
mod verify_error;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub use bundle::Bundle;
pub use certificate::CertificateInfo;
pub(crate) use certificate::format_date;
pub use certificate_in_use::CertificateInUse;
pub use certificate_report::CertificateReport;
pub use client_identity::ClientIdentity;
pub(crate) use connection_failure::PeerAlert;
pub use connection_failure::{ConnectionFailure, describe_error, failure_reason, refused_certificate, rustls_error};
pub use expiry_log::ExpiryLog;
pub(crate) use expiry_warning::describe_time_left;
pub use expiry_warning::{EARLIEST_EXPIRY_WARNING, ExpiringCertificate, ExpiryWarning};
pub use generate::authority::{
    AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, CertificateSpec, CertificateUsage, Issued, KeyType,
};
pub(crate) use generate::certificate_store::already_exists;
pub use generate::certificate_store::{CertificateKind, CertificateStore};
pub use generate::csr::{PendingCertificate, RequestedCertificate};
pub use generate::generated_certs::{
    FRONT_PROXY, GeneratedCertificates, ManagedCertificate, in_memory_serving_names, kubeconfig_text, serving_names,
    write_kubeconfig,
};
pub use key_pair::{KeyPair, PairFiles};
pub use peer_certificate::PeerCertificate;
pub use server::ClientTrust;
pub(crate) use stream::StreamBuffer;
pub use stream::{ClientTlsStream, ServerTlsStream, TlsStream};
pub use verify::{UntrustedChain, VerifiedChain};

/// The only cryptography provider of this process, aws-lc-rs. It is passed explicitly everywhere, so that no
/// process-wide default is needed.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}
