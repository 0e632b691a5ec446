//! Expiry of the certificates of a process.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::observe::metrics::exposition::{MetricType, MetricsText};

/// Expiry of configured certificates, and the number of those that expire soon.
#[derive(Default)]
pub struct CertificateMetrics {
    /// Seconds since 1970, by file.
    expiry: Mutex<BTreeMap<String, u64>>,
    /// By the label `within`.
    expiring: Mutex<BTreeMap<String, usize>>,
}

impl CertificateMetrics {
    /// Sets the expiry of the certificate in `file`, in seconds since 1970.
    pub fn set_expiry(&self, file: &str, not_after: u64) {
        self.expiry.lock().insert(file.to_owned(), not_after);
    }

    /// Removes the series of the certificate in `file`.
    pub fn remove(&self, file: &str) {
        self.expiry.lock().remove(file);
    }

    /// Replaces the expiry of all certificates: files, and seconds since 1970.
    pub fn replace_all(&self, certificates: impl IntoIterator<Item = (String, u64)>) {
        *self.expiry.lock() = certificates.into_iter().collect();
    }

    /// The expiry of the certificate in `file`, in seconds since 1970; none if it has no series.
    pub fn expiry(&self, file: &str) -> Option<u64> {
        self.expiry.lock().get(file).copied()
    }

    /// Sets the number of certificates that expire within the time of the label `within` or have expired.
    pub fn set_expiring(&self, within: &str, count: usize) {
        self.expiring.lock().insert(within.to_owned(), count);
    }

    /// The number of certificates that expire within the time of the label `within`; none if it was not set.
    pub fn expiring(&self, within: &str) -> Option<usize> {
        self.expiring.lock().get(within).copied()
    }

    /// Families `narthex_certificate_expiry_timestamp_seconds` and `narthex_certificates_expiring`.
    pub(in crate::observe::metrics) fn render(&self, text: &mut MetricsText) {
        text.family(
            "narthex_certificate_expiry_timestamp_seconds",
            MetricType::Gauge,
            "Expiry of the certificate in a file, in seconds since 1970.",
        );
        for (file, not_after) in &*self.expiry.lock() {
            text.sample(&[("file", file)], *not_after);
        }
        text.family(
            "narthex_certificates_expiring",
            MetricType::Gauge,
            "Configured certificates and certificates of servers that expire within a time; 0d: expired.",
        );
        for (within, count) in &*self.expiring.lock() {
            text.sample(&[("within", within)], *count as u64);
        }
    }
}
