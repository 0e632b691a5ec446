//! A certificate file that a process presents or trusts.

use std::path::PathBuf;

use rustls::pki_types::UnixTime;

use super::bundle::Bundle;
use super::certificate::CertificateInfo;
use super::key_pair::{KeyPair, PairFiles};

/// A certificate file in use, for metrics and status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInUse {
    /// The file.
    pub file: PathBuf,
    /// The flag that names it, for example `--client-ca-file`.
    pub flag: &'static str,
    /// The subject of the certificate (in a bundle: of the one that expires first).
    pub subject: String,
    /// DNS names and IP addresses of the certificate.
    pub names: Vec<String>,
    /// First second in which that certificate is valid.
    pub not_before: UnixTime,
    /// Last second in which all certificates of the file are valid.
    pub not_after: UnixTime,
}

impl CertificateInUse {
    /// A key pair given by `flag`.
    pub fn from_pair(files: &PairFiles, flag: &'static str, pair: &KeyPair) -> CertificateInUse {
        CertificateInUse::new(files.certificate.clone(), flag, pair.info())
    }

    /// A CA bundle given by `flag`. `None` if it is empty.
    pub fn from_bundle(file: impl Into<PathBuf>, flag: &'static str, bundle: &Bundle) -> Option<CertificateInUse> {
        let first = bundle.certificate_infos().iter().min_by_key(|info| info.not_after)?;
        Some(CertificateInUse::new(file.into(), flag, first))
    }

    /// The certificate `info` of `file`.
    pub fn new(file: PathBuf, flag: &'static str, info: &CertificateInfo) -> CertificateInUse {
        let CertificateInfo { subject, names, not_before, not_after, .. } = info.clone();
        CertificateInUse { file, flag, subject, names, not_before, not_after }
    }
}
