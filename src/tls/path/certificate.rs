//! What building a path needs to know of a certificate.

use rustls::pki_types::UnixTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{ParsedExtension, X509Extension};

use super::alternative_names::AlternativeNames;
use super::name_constraints::NameConstraints;
use super::path_error::PathFault;
use super::policies::{ANY_POLICY, CertificatePolicies};
use crate::tls::certificate::{escape_for_log, parse, to_unix_time};
use crate::tls::der::split_element;

/// Version 3, as encoded.
const VERSION_3: u32 = 2;

/// The parts of a certificate that decide about a path.
#[derive(Debug)]
pub(in crate::tls) struct PathCertificate {
    pub(super) der: Vec<u8>,
    /// The distinguished names and the public key, as DER.
    pub(in crate::tls) subject: Vec<u8>,
    pub(super) issuer: Vec<u8>,
    pub(in crate::tls) public_key: Vec<u8>,
    /// What is signed, the content of the algorithm identifier, and the signature.
    pub(super) signed: Vec<u8>,
    pub(super) signature_algorithm: Vec<u8>,
    pub(super) signature: Vec<u8>,
    /// The subject for messages.
    pub(super) subject_text: String,
    pub(super) is_version_3: bool,
    pub(super) not_before: UnixTime,
    pub(in crate::tls) not_after: UnixTime,
    pub(super) basic_constraints: Option<BasicConstraints>,
    /// Whether the key may sign certificates; none if the certificate does not restrict its key.
    pub(super) may_sign_certificates: Option<bool>,
    pub(super) extended_usage: Option<ExtendedUsage>,
    pub(super) names: AlternativeNames,
    pub(super) name_constraints: Option<NameConstraints>,
    pub(super) policies: CertificatePolicies,
    pub(super) unknown_critical_extension: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct BasicConstraints {
    pub(super) is_authority: bool,
    pub(super) path_length: Option<u32>,
}

/// The purposes that concern TLS.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtendedUsage {
    pub(super) any: bool,
    pub(super) client: bool,
    pub(super) server: bool,
}

impl PathCertificate {
    /// Parses a DER certificate.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub(in crate::tls) fn parse(der: &[u8]) -> Result<PathCertificate, String> {
        let certificate = parse(der)?;
        let (signed, signature_algorithm) =
            split_certificate(der).ok_or("it is not a well-formed X.509 certificate")?;
        if certificate.signature_algorithm != certificate.tbs_certificate.signature {
            return Err("it names two signature algorithms".to_owned());
        }
        let version = certificate.version().0;
        if version > VERSION_3 {
            return Err(format!("X.509 version {} is not supported", u64::from(version) + 1));
        }
        if version < VERSION_3 && !certificate.extensions().is_empty() {
            return Err("it has extensions, which only X.509 version 3 has".to_owned());
        }
        let mut parsed = PathCertificate {
            der: der.to_vec(),
            subject: certificate.subject().as_raw().to_vec(),
            issuer: certificate.issuer().as_raw().to_vec(),
            public_key: certificate.public_key().raw.to_vec(),
            signed: signed.to_vec(),
            signature_algorithm: signature_algorithm.to_vec(),
            signature: certificate.signature_value.data.to_vec(),
            subject_text: escape_for_log(&certificate.subject().to_string()),
            is_version_3: version == VERSION_3,
            not_before: to_unix_time(certificate.validity().not_before),
            not_after: to_unix_time(certificate.validity().not_after),
            basic_constraints: None,
            may_sign_certificates: None,
            extended_usage: None,
            names: AlternativeNames::default(),
            name_constraints: None,
            policies: CertificatePolicies::default(),
            unknown_critical_extension: None,
        };
        parsed.read_extensions(&certificate)?;
        Ok(parsed)
    }

    fn read_extensions(&mut self, certificate: &X509Certificate<'_>) -> Result<(), String> {
        let mut found = Vec::new();
        for extension in certificate.extensions() {
            if found.contains(&&extension.oid) {
                return Err(format!("it has the extension {} twice", extension.oid));
            }
            found.push(&extension.oid);
            if found.len() > MAX_EXTENSIONS {
                return Err(format!("it has more than {MAX_EXTENSIONS} extensions"));
            }
            let is_understood = self
                .read_extension(extension)
                .ok_or_else(|| format!("its extension {} is malformed", escape_for_log(&extension.oid.to_string())))?;
            if extension.critical && !is_understood && self.unknown_critical_extension.is_none() {
                self.unknown_critical_extension = Some(escape_for_log(&extension.oid.to_string()));
            }
        }
        Ok(())
    }

    /// Reads an extension: whether all of it is understood. `None` if it is malformed.
    fn read_extension(&mut self, extension: &X509Extension<'_>) -> Option<bool> {
        let oid = extension.oid.to_id_string();
        if oid == NAME_CONSTRAINTS {
            let (constraints, is_understood) = NameConstraints::parse(extension.value)?;
            self.name_constraints = Some(constraints);
            return Some(is_understood);
        }
        match extension.parsed_extension() {
            ParsedExtension::BasicConstraints(it) => {
                self.basic_constraints =
                    Some(BasicConstraints { is_authority: it.ca, path_length: it.path_len_constraint });
            }
            // Without any bit, as without the extension: as in Go.
            ParsedExtension::KeyUsage(usage) if usage.flags != 0 => {
                self.may_sign_certificates = Some(usage.key_cert_sign());
            }
            ParsedExtension::KeyUsage(_) => {}
            ParsedExtension::ExtendedKeyUsage(it) => {
                let others = it.code_signing || it.email_protection || it.time_stamping || it.ocsp_signing;
                let usage = ExtendedUsage { any: it.any, client: it.client_auth, server: it.server_auth };
                let is_empty = !(usage.any || usage.client || usage.server || others) && it.other.is_empty();
                self.extended_usage = (!is_empty).then_some(usage);
            }
            ParsedExtension::SubjectAlternativeName(it) => {
                self.names = AlternativeNames::read(&it.general_names)?;
                self.names.value = Some(extension.value.to_vec());
                return Some(!self.names.is_empty());
            }
            ParsedExtension::CertificatePolicies(list) => {
                self.policies.policies = list.iter().map(|it| it.policy_id.to_id_string()).collect();
            }
            ParsedExtension::PolicyMappings(it) => {
                self.policies.has_mappings = !it.mappings.is_empty();
                self.policies.maps_any = it.mappings.iter().any(|it| {
                    [&it.issuer_domain_policy, &it.subject_domain_policy]
                        .iter()
                        .any(|oid| oid.to_id_string() == ANY_POLICY)
                });
            }
            ParsedExtension::PolicyConstraints(it) => self.policies.require_explicit = it.require_explicit_policy,
            ParsedExtension::InhibitAnyPolicy(it) => self.policies.inhibit_any = Some(it.skip_certs),
            _ if READ_EXTENSIONS.contains(&oid.as_str()) => return None,
            // Revocation is not checked, as in Go.
            _ => return Some(oid == CRL_DISTRIBUTION_POINTS),
        }
        Some(true)
    }

    /// The fault of the certificate, wherever in a path it is.
    pub(super) fn fault_at(&self, now: UnixTime) -> Option<PathFault> {
        if let Some(oid) = &self.unknown_critical_extension {
            return Some(PathFault::UnknownCriticalExtension(oid.clone()));
        }
        if now.as_secs() < self.not_before.as_secs() {
            return Some(PathFault::NotYetValid { not_before: self.not_before });
        }
        (now.as_secs() > self.not_after.as_secs()).then_some(PathFault::Expired { not_after: self.not_after })
    }

    /// Why no client would accept it as a server's certificate, whoever signed it.
    pub(in crate::tls) fn unusable_for_serving(&self) -> Option<String> {
        match &self.unknown_critical_extension {
            Some(oid) => Some(format!("it has an unknown critical extension ({oid})")),
            None if !self.is_version_3 => {
                Some("it is not of X.509 version 3, without which it has no names".to_owned())
            }
            None => None,
        }
    }

    /// Whether both have the same name, key and alternative names: a path with both is a loop.
    pub(super) fn is_same_holder(&self, other: &PathCertificate) -> bool {
        self.subject == other.subject && self.public_key == other.public_key && self.names.value == other.names.value
    }
}

/// More than any certificate has; comparing each with each stays cheap.
const MAX_EXTENSIONS: usize = 128;
const NAME_CONSTRAINTS: &str = "2.5.29.30";
const CRL_DISTRIBUTION_POINTS: &str = "2.5.29.31";
/// Key usage, alternative name, basic constraints, policies and their mappings and constraints, extended key usage,
/// inhibitAnyPolicy: one that is not parsed is malformed.
const READ_EXTENSIONS: &[&str] =
    &["2.5.29.15", "2.5.29.17", "2.5.29.19", "2.5.29.32", "2.5.29.33", "2.5.29.36", "2.5.29.37", "2.5.29.54"];

/// The signed part of a certificate, and the content of its algorithm identifier.
fn split_certificate(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (_, whole, _) = split_element(der)?;
    let (signed, _, rest) = split_element(whole)?;
    let (_, algorithm, _) = split_element(rest)?;
    Some((signed, algorithm))
}
