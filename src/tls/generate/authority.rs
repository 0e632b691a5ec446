//! Generated certificate authorities, and the certificates they issue.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::{AsDer as _, EcPrivateKeyRfc5915Der};
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use rcgen::{
    BasicConstraints, CertificateParams, CustomExtension, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair as PrivateKey, KeyUsagePurpose, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};

use crate::process::Problem;
use crate::tls::certificate::CertificateInfo;
use crate::tls::der;
use crate::tls::key_pair::{KeyPair, PairFiles};

/// Lifetime of an authority.
pub const AUTHORITY_DAYS: u32 = 3650;
/// Default lifetime of a certificate.
pub const CERTIFICATE_DAYS: u32 = 365;
/// How far `notBefore` lies in the past, for peers with slow clocks.
const BACKDATED: Duration = Duration::from_secs(300);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Converts a time to rcgen's type, which belongs to a crate that is not a direct dependency.
macro_rules! moment {
    ($at:expr) => {
        rcgen::date_time_ymd(1970, 1, 1) + $at.duration_since(UNIX_EPOCH).map_err(failed)?
    };
}

/// The purpose of a certificate, which determines its extended key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CertificateUsage {
    /// Server authentication.
    Serving,
    /// Client authentication.
    Client,
}

/// The type of a generated key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum KeyType {
    /// ECDSA with P-256.
    #[default]
    Ecdsa,
    /// RSA with 2048 bits, for clients that read no keys of elliptic curves.
    Rsa,
}

/// Description of a certificate to issue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSpec {
    /// The common name; for a client, the user's name.
    pub common_name: String,
    /// The organizations; for a client, the groups.
    pub organizations: Vec<String>,
    /// Names of the certificate: DNS names (a leading `*.` is allowed) and IP addresses. For serving at least one.
    pub names: Vec<String>,
    /// The purpose.
    pub usage: CertificateUsage,
    /// Lifetime in days, limited by the authority's.
    pub days: u32,
    /// Type of its key.
    pub key_type: KeyType,
}

/// A certificate and its key as PEM. It has no `Debug`, because it contains a key.
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key, PKCS#8.
    pub key: String,
}

/// A certificate authority with its key. It has no `Debug`, because it contains a key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    info: CertificateInfo,
    issuer: Issuer<'static, PrivateKey>,
}

impl CertificateSpec {
    /// A serving certificate for `names`, the first of which becomes the common name.
    pub fn serving(names: &[String]) -> CertificateSpec {
        CertificateSpec {
            common_name: names.first().cloned().unwrap_or_default(),
            organizations: Vec::new(),
            names: names.to_vec(),
            usage: CertificateUsage::Serving,
            days: CERTIFICATE_DAYS,
            key_type: KeyType::default(),
        }
    }

    /// A client certificate for a user and the user's groups.
    pub fn client(user: &str, groups: &[&str]) -> CertificateSpec {
        CertificateSpec {
            common_name: user.to_owned(),
            organizations: groups.iter().map(|&group| group.to_owned()).collect(),
            names: Vec::new(),
            usage: CertificateUsage::Client,
            days: CERTIFICATE_DAYS,
            key_type: KeyType::default(),
        }
    }

    /// The same certificate with a key of this type.
    #[must_use]
    pub fn with_key_type(self, key_type: KeyType) -> CertificateSpec {
        CertificateSpec { key_type, ..self }
    }
}

impl Authority {
    /// Creates an authority; nothing is written to disk.
    pub fn new(common_name: &str, now: SystemTime) -> Result<(Authority, Issued), Problem> {
        Authority::with_key_type(common_name, KeyType::default(), now)
    }

    /// Creates an authority with a key of this type; nothing is written to disk.
    pub fn with_key_type(
        common_name: &str,
        key_type: KeyType,
        now: SystemTime,
    ) -> Result<(Authority, Issued), Problem> {
        Authority::with_key(common_name, new_key(key_type)?, now)
    }

    /// Creates an authority with an existing key. With the same name and key, issued certificates stay valid.
    pub(in crate::tls) fn with_key(
        common_name: &str,
        key: PrivateKey,
        now: SystemTime,
    ) -> Result<(Authority, Issued), Problem> {
        let mut params = parameters(now, AUTHORITY_DAYS)?;
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages =
            vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?;
        let issued = Issued { certificate: certificate.pem(), key: key.serialize_pem() };
        let facts = CertificateInfo::parse(certificate.der()).map_err(failed)?;
        let certificate = certificate.der().clone();
        Ok((Authority { certificate, info: facts, issuer: Issuer::new(params, key) }, issued))
    }

    /// Loads an authority's certificate and key; a problem names both files.
    pub fn load(files: &PairFiles) -> Result<Authority, Problem> {
        let pair = KeyPair::load(files)?;
        let location = files.location();
        if !pair.info().is_authority {
            let message =
                format!("\"{}\" is not a certificate authority and cannot issue certificates", pair.info().subject);
            return Err(Problem::new(location, message));
        }
        let pem = std::fs::read_to_string(&files.key).map_err(|error| Problem::new(&location, error))?;
        let key = PrivateKey::from_pem(&pem).map_err(|_| unusable_issuer(&location))?;
        let certificate = pair.chain()[0].clone();
        let issuer = Issuer::from_ca_cert_der(&certificate, key).map_err(|_| unusable_issuer(&location))?;
        Ok(Authority { certificate, info: pair.info().clone(), issuer })
    }

    /// Information about the authority's certificate.
    pub fn info(&self) -> &CertificateInfo {
        &self.info
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a certificate with a new key.
    pub fn issue(&self, request: &CertificateSpec, now: SystemTime) -> Result<Issued, Problem> {
        self.issue_with_extensions(request, Vec::new(), now)
    }

    /// Issues a certificate with additional extensions.
    pub(crate) fn issue_with_extensions(
        &self,
        request: &CertificateSpec,
        extensions: Vec<CustomExtension>,
        now: SystemTime,
    ) -> Result<Issued, Problem> {
        if request.common_name.is_empty() {
            return Err(Problem::new("certificate", "a name is required"));
        }
        if request.usage == CertificateUsage::Serving && request.names.is_empty() {
            let message = "a serving certificate needs at least one DNS name or IP address, because clients ignore the common name";
            return Err(Problem::new("certificate", message));
        }
        let mut params = parameters(now, request.days)?;
        let end = UNIX_EPOCH + Duration::from_secs(self.info.not_after.as_secs());
        params.not_after = params.not_after.min(moment!(end));
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match request.usage {
            CertificateUsage::Serving => ExtendedKeyUsagePurpose::ServerAuth,
            CertificateUsage::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.subject_alt_names = request.names.iter().map(|name| alternative_name(name)).collect::<Result<_, _>>()?;
        params.custom_extensions = extensions;
        let key = new_key(request.key_type)?;
        let draft = params.signed_by(&key, &self.issuer).map_err(failed)?;
        // rcgen keeps one value per attribute type, in the subject and in the issuer it copies from a loaded
        // certificate. A user may be in several groups, so both names are encoded here.
        let issuer = crate::tls::certificate::parse(&self.certificate).map_err(failed)?.subject().as_raw().to_vec();
        let certificate = der::replace_names(draft.der(), &issuer, &subject(request), self.issuer.key())
            .ok_or_else(|| failed("the certificate could not be encoded"))?;
        Ok(Issued { certificate: der::pem("CERTIFICATE", &certificate), key: key_pem(&key)? })
    }
}

/// The key as PEM. A key of an elliptic curve has the form of RFC 5915, whose heading names its kind: fabric8 for Java
/// takes the key of any other heading for RSA.
fn key_pem(key: &PrivateKey) -> Result<String, Problem> {
    if key.algorithm() != &rcgen::PKCS_ECDSA_P256_SHA256 {
        return Ok(key.serialize_pem());
    }
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, key.serialized_der()).map_err(failed)?;
    let encoded: EcPrivateKeyRfc5915Der<'_> = pair.private_key().as_der().map_err(failed)?;
    Ok(der::pem("EC PRIVATE KEY", encoded.as_ref()))
}

impl Issued {
    /// The certificate as DER.
    pub fn der(&self) -> Result<CertificateDer<'static>, Problem> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(failed)
    }
}

fn subject(request: &CertificateSpec) -> Vec<u8> {
    const ORGANIZATION: &[u8] = &[0x55, 0x04, 0x0a];
    const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
    let mut parts: Vec<(&[u8], &str)> =
        request.organizations.iter().map(|organization| (ORGANIZATION, organization.as_str())).collect();
    parts.push((COMMON_NAME, &request.common_name));
    der::distinguished_name(&parts)
}

fn parameters(now: SystemTime, days: u32) -> Result<CertificateParams, Problem> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.not_before = moment!(now - BACKDATED);
    params.not_after = moment!(now + DAY * days);
    let mut serial = [0; 16];
    aws_lc_rs::rand::fill(&mut serial).map_err(failed)?;
    // Positive, and without a leading zero byte, which DER does not allow.
    serial[0] = serial[0] & 0x7f | 0x40;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    Ok(params)
}

pub(in crate::tls) fn new_key(key_type: KeyType) -> Result<PrivateKey, Problem> {
    match key_type {
        KeyType::Ecdsa => PrivateKey::generate(),
        KeyType::Rsa => PrivateKey::generate_for(&rcgen::PKCS_RSA_SHA256),
    }
    .map_err(failed)
}

/// Whether a key in PEM has this type.
pub(in crate::tls) fn has_key_type(pem: &str, key_type: KeyType) -> bool {
    let is_rsa = PrivateKey::from_pem(pem).is_ok_and(|key| key.algorithm() == &rcgen::PKCS_RSA_SHA256);
    is_rsa == (key_type == KeyType::Rsa)
}

pub(in crate::tls) fn alternative_name(name: &str) -> Result<SanType, Problem> {
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']')).unwrap_or(name);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let wrong = || Problem::new("certificate", format!("\"{name}\" is neither a DNS name nor an IP address"));
    let host = name.strip_prefix("*.").unwrap_or(name);
    match ServerName::try_from(host) {
        Ok(ServerName::DnsName(_)) => {}
        _ => return Err(wrong()),
    }
    Ok(SanType::DnsName(name.to_ascii_lowercase().try_into().map_err(|_| wrong())?))
}

pub(in crate::tls) fn failed(error: impl std::fmt::Display) -> Problem {
    Problem::new("certificate", format!("could not be created: {error}"))
}

fn unusable_issuer(location: &str) -> Problem {
    Problem::new(location, "cannot issue with this authority's key or certificate; supported keys are ECDSA and RSA")
}

#[cfg(test)]
impl Authority {
    /// Creates an authority that is valid now.
    pub(crate) fn generate(common_name: &str) -> Authority {
        Authority::new(common_name, SystemTime::now()).unwrap().0
    }

    /// A pair issued by this authority at `now`.
    pub(crate) fn pair_at(&self, request: &CertificateSpec, now: SystemTime) -> KeyPair {
        let issued = self.issue(request, now).unwrap();
        KeyPair::from_pem(issued.certificate.as_bytes(), issued.key.as_bytes(), "made by a test").unwrap()
    }

    /// A pair issued by this authority now.
    pub(crate) fn pair(&self, request: &CertificateSpec) -> KeyPair {
        self.pair_at(request, SystemTime::now())
    }

    /// A bundle of this authority alone.
    pub(crate) fn bundle(&self) -> crate::tls::Bundle {
        crate::tls::Bundle::from_pem(self.pem().as_bytes(), "authority.crt").unwrap()
    }

    /// The authority's certificate as PEM.
    pub(crate) fn pem(&self) -> String {
        der::pem("CERTIFICATE", &self.certificate)
    }

    /// A certificate of version 1 for the same holder as `issued`.
    pub(crate) fn version_1(&self, issued: &Issued) -> CertificateDer<'static> {
        der::version_1(&issued.der().unwrap(), self.issuer.key()).unwrap().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::PeerCertificate;

    #[test]
    fn issued_client_certificate_has_user_and_groups() {
        let authority = Authority::generate("clients");
        let issued =
            authority.issue(&CertificateSpec::client("jane", &["dev", "ops", "büro"]), SystemTime::now()).unwrap();
        let peer = PeerCertificate::parse(&issued.der().unwrap()).unwrap();
        assert_eq!(peer.common_name.as_deref(), Some("jane"));
        assert_eq!(peer.organizations, ["dev", "ops", "büro"]);
        let facts = CertificateInfo::parse(&issued.der().unwrap()).unwrap();
        assert_eq!(facts.usages, ["digital signature", "client authentication"]);
        assert_eq!(facts.key, "ECDSA P-256");
        assert!(!facts.is_authority);
        assert!(facts.issuer.contains("clients"), "{}", facts.issuer);
    }

    #[test]
    fn issued_certificate_ends_with_authority() {
        let authority = Authority::generate("clients");
        let request = CertificateSpec { days: 2 * AUTHORITY_DAYS, ..CertificateSpec::client("jane", &[]) };
        assert_eq!(authority.pair(&request).not_after(), authority.info().not_after);
    }

    #[test]
    fn issued_serving_certificate_requires_valid_names() {
        let authority = Authority::generate("servers");
        for wrong in [&[][..], &["a b"], &["-"], &["a", "*.*"]] {
            let names: Vec<_> = wrong.iter().map(|&name| name.to_owned()).collect();
            let mut request = CertificateSpec::serving(&names);
            request.common_name = "x".to_owned();
            assert!(authority.issue(&request, SystemTime::now()).is_err(), "{wrong:?}");
        }
        let names = ["Localhost", "*.example.com", "127.0.0.1", "[::1]"].map(str::to_owned);
        let pair = authority.pair(&CertificateSpec::serving(&names));
        assert_eq!(pair.info().names, ["localhost", "*.example.com", "127.0.0.1", "::1"]);
    }
}
