//! Certificates presented by servers in TLS handshakes: backends, egress proxies, API servers.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use parking_lot::Mutex;

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Maximum number of servers; certificates of further ones are not shown.
const MAX_SERVERS: usize = 16_384;

/// Subject and validity of a certificate presented by a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificateInfo {
    /// Subject of the certificate.
    pub subject: String,
    /// Start of the validity, in seconds since 1970.
    pub not_before: u64,
    /// End of the validity, in seconds since 1970.
    pub not_after: u64,
    /// Reason if the certificate was refused, for example `UnknownIssuer`; else empty.
    pub refused: &'static str,
}

/// The last certificate of each server, by address and requested server name.
#[derive(Default)]
pub struct PeerCertificates {
    hasher: RandomState,
    entries: Mutex<BTreeMap<(String, String), PeerCertificateEntry>>,
}

struct PeerCertificateEntry {
    digest: u64,
    certificate: PeerCertificateInfo,
}

impl PeerCertificates {
    /// Records the certificate `der` that the server at `address` presented for `name`, and why it was `refused` (empty
    /// if it was not); `read` parses it if it is new.
    pub fn record(
        &self,
        address: String,
        name: String,
        der: &[u8],
        refused: &'static str,
        read: impl FnOnce() -> Option<PeerCertificateInfo>,
    ) {
        let digest = self.hasher.hash_one((der, refused));
        let key = (address, name);
        let mut entries = self.entries.lock();
        if entries.get(&key).is_some_and(|before| before.digest == digest) {
            return;
        }
        if let Some(certificate) = read()
            && (entries.len() < MAX_SERVERS || entries.contains_key(&key))
        {
            entries.insert(key, PeerCertificateEntry { digest, certificate });
        }
    }

    /// Removes the servers for which `keep` is false.
    pub fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.entries.lock().retain(|(address, _), _| keep(address));
    }

    /// Address, name and certificate of servers with a certificate that expires until `until` (seconds since 1970).
    pub fn expiring(&self, until: u64) -> Vec<(String, String, PeerCertificateInfo)> {
        let entries = self.entries.lock();
        let ending = entries.iter().filter(|(_, entry)| entry.certificate.not_after <= until);
        ending.map(|((address, name), entry)| (address.clone(), name.clone(), entry.certificate.clone())).collect()
    }

    /// Family `narthex_peer_certificate_expiry_timestamp_seconds`.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        text.family(
            "narthex_peer_certificate_expiry_timestamp_seconds",
            MetricType::Gauge,
            "Expiry of the last certificate that a server presented, in seconds since 1970.",
        );
        for ((address, name), seen) in self.entries.lock().iter() {
            text.sample(&[("server", address), ("server_name", name)], seen.certificate.not_after);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_certificates_are_read_once_for_each_that_is_new() {
        let peers = PeerCertificates::default();
        let record_refused = |address: &str, der: &[u8], not_after, refused| {
            let mut read = false;
            peers.record(address.to_owned(), "name".to_owned(), der, refused, || {
                read = true;
                Some(PeerCertificateInfo { subject: "CN=a".to_owned(), not_before: 0, not_after, refused })
            });
            read
        };
        let record = |address: &str, der: &[u8], not_after| record_refused(address, der, not_after, "");
        assert_eq!(
            [record("a:1", b"one", 5), record("a:1", b"one", 5), record("b:1", b"one", 7), record("a:1", b"two", 9)],
            [true, false, true, true]
        );
        let until = |until| peers.expiring(until).into_iter().map(|(address, ..)| address).collect::<Vec<_>>();
        assert_eq!((until(6), until(7), until(9)), (vec![], vec!["b:1".to_owned()], vec!["a:1".into(), "b:1".into()]));
        assert!(
            record_refused("b:1", b"one", 7, "UnknownIssuer") && !record_refused("b:1", b"one", 7, "UnknownIssuer")
        );
        peers.retain(|address| address == "a:1");
        assert_eq!(until(u64::MAX), ["a:1"]);
    }
}
