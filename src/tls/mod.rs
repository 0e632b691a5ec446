//! TLS: key pairs, CA bundles, certificate authorities, and verification of peer certificates.

mod asked_for;
mod authority;
mod bundle;
mod certificate;
pub mod client;
mod der;
mod explain;
mod failure;
#[cfg(test)]
mod handshakes;
mod identity;
mod judge;
mod key_pair;
mod peer_certificate;
mod self_made;
pub mod server;
mod signature;
mod store;

use std::sync::{Arc, LazyLock};

use rustls::crypto::CryptoProvider;

pub use asked_for::{AskedFor, Asking};
pub use authority::{AUTHORITY_DAYS, Authority, CERTIFICATE_DAYS, Issued, Purpose, Request};
pub use bundle::Bundle;
pub use certificate::Facts;
pub(crate) use certificate::date;
pub use failure::{Failure, classify, describe, refused_certificate, rustls_error};
pub(crate) use failure::{PeerAlert, without_manual};
pub use identity::Identity;
pub use judge::{Judged, Untrusted};
pub use key_pair::{KeyPair, PairFiles};
pub use peer_certificate::PeerCertificate;
pub use self_made::{FRONT_PROXY, SelfMade, Wanted, serving_names, unwritten_names, write_kubeconfig};
pub use server::Trust;
pub(crate) use store::exists;
pub use store::{Kind, Store};

/// The only cryptography provider of this process, aws-lc-rs. It is passed explicitly everywhere, so that no
/// process-wide default is needed.
pub fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}
