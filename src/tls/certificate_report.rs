//! A configured certificate as status reports show it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::pki_types::UnixTime;
use serde::{Deserialize, Serialize};

use super::certificate_in_use::CertificateInUse;
use super::expiry_warning::{ExpiringCertificate, ExpiryWarning, describe_time_left};
use super::key_pair::KeyPair;
use crate::observe::times::timestamp;

/// A configured certificate: presented or trusted by this process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CertificateReport {
    /// File of the certificate.
    pub file: String,
    /// Subject of the certificate.
    pub subject: String,
    /// Subject alternative names.
    pub names: Vec<String>,
    /// Begin of the validity, from [`timestamp`].
    pub not_before: String,
    /// End of the validity, from [`timestamp`].
    pub not_after: String,
}

impl CertificateReport {
    /// The expiry warning of the certificate, if any.
    pub fn expiry_warning(&self, now: SystemTime) -> Option<ExpiryWarning> {
        ExpiryWarning::parse_validity(&self.not_before, &self.not_after, now)
    }

    /// The certificate with its warning and a sentence, if there is a warning.
    pub fn expiring(&self, now: SystemTime) -> Option<ExpiringCertificate> {
        let CertificateReport { file, subject, not_after, .. } = self;
        let sentence = format!("{file} ({subject}) {} ({not_after})", describe_time_left(not_after, now));
        let warning = self.expiry_warning(now)?;
        Some(ExpiringCertificate { warning, sentence, subject: subject.clone(), not_after: not_after.clone() })
    }
}

impl From<&CertificateInUse> for CertificateReport {
    fn from(in_use: &CertificateInUse) -> CertificateReport {
        CertificateReport {
            file: in_use.file.display().to_string(),
            subject: in_use.subject.clone(),
            names: in_use.names.clone(),
            not_before: format_unix_time(in_use.not_before),
            not_after: format_unix_time(in_use.not_after),
        }
    }
}

impl From<&KeyPair> for CertificateReport {
    fn from(pair: &KeyPair) -> CertificateReport {
        let info = pair.info();
        CertificateReport {
            file: pair.location().to_owned(),
            subject: info.subject.clone(),
            names: info.names.clone(),
            not_before: format_unix_time(info.not_before),
            not_after: format_unix_time(info.not_after),
        }
    }
}

fn format_unix_time(time: UnixTime) -> String {
    timestamp(UNIX_EPOCH + Duration::from_secs(time.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{Authority, Bundle, CertificateSpec};

    #[test]
    fn certificate_report_of_a_bundle_is_of_the_authority_that_expires_first() {
        let (old, new) = (Authority::generate("old"), Authority::generate("new"));
        let pem = new.bundle().to_pem() + &old.bundle().to_pem();
        let bundle = Bundle::from_pem(pem.as_bytes(), "ca.crt").unwrap();
        let in_use = CertificateInUse::from_bundle("ca.crt", "--ca-cert", &bundle).unwrap();
        let first = bundle.certificate_infos().iter().min_by_key(|info| info.not_after).unwrap();
        let report = CertificateReport::from(&in_use);
        assert_eq!((report.file.as_str(), &report.subject), ("ca.crt", &first.subject));
        assert_eq!(report.not_after, format_unix_time(first.not_after));
    }

    #[test]
    fn certificate_report_says_when_the_certificate_expires() {
        let issued = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
        let spec = CertificateSpec { days: 90, ..CertificateSpec::client("agent", &[]) };
        let issued_pair = Authority::generate("agents").issue(&spec, issued).unwrap();
        let pair = KeyPair::from_pem(issued_pair.certificate.as_bytes(), issued_pair.key.as_bytes(), "a.crt").unwrap();
        let report = CertificateReport::from(&pair);
        let end = UNIX_EPOCH + Duration::from_secs(pair.not_after().as_secs());
        let days_before = |days: u64| end - Duration::from_secs(days * 86_400);
        assert_eq!(report.expiring(days_before(31)), None);
        let expiring = report.expiring(days_before(5)).unwrap();
        assert_eq!(expiring.warning, ExpiryWarning::Week);
        assert_eq!(expiring.sentence, format!("a.crt (CN=agent) expires in 5d ({})", report.not_after));
        let expired = report.expiring(end + Duration::from_secs(300)).unwrap();
        assert_eq!(expired.warning, ExpiryWarning::Expired);
        assert_eq!(expired.sentence, format!("a.crt (CN=agent) expired 5m ago ({})", report.not_after));
    }
}
