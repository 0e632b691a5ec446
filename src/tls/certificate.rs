//! Readable information about a certificate, for errors, `pki show` and the status page.

use std::fmt::Write;
use std::net::IpAddr;

use rustls::pki_types::UnixTime;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, KeyUsage, ParsedExtension};
use x509_parser::prelude::FromDer;
use x509_parser::time::ASN1Time;

/// Readable information about a certificate. All strings are safe to print: control characters are escaped,
/// and the length is bounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// The subject, for example `CN=jane, O=dev`.
    pub subject: String,
    /// The issuer, in the same form.
    pub issuer: String,
    /// The serial number as lower-case hex.
    pub serial: String,
    /// DNS names and IP addresses of the subject alternative name, as text.
    pub names: Vec<String>,
    /// First second in which it is valid.
    pub not_before: UnixTime,
    /// Last second in which it is valid.
    pub not_after: UnixTime,
    /// Whether the certificate may sign others (basic constraints and key usage). A version 1 certificate has neither and
    /// counts as an authority, because trust stores contain such roots.
    pub is_authority: bool,
    /// Key usage and extended key usage in words, for example `digital signature`, `client authentication`.
    pub usages: Vec<String>,
    /// Algorithm of the public key, for example `ECDSA P-256`.
    pub key: String,
}

impl CertificateInfo {
    /// Parses a DER certificate; the error is a message.
    pub fn parse(der: &[u8]) -> Result<CertificateInfo, String> {
        let certificate = parse(der)?;
        let mut names = Vec::new();
        let mut usages = Vec::new();
        for extension in certificate.extensions() {
            match extension.parsed_extension() {
                ParsedExtension::SubjectAlternativeName(alternatives) => {
                    names.extend(alternatives.general_names.iter().filter_map(alternative_name_text));
                }
                ParsedExtension::KeyUsage(usage) => usages.extend(usage_names(usage)),
                ParsedExtension::ExtendedKeyUsage(usage) => {
                    let purposes = [
                        (usage.any, "any purpose"),
                        (usage.server_auth, "server authentication"),
                        (usage.client_auth, "client authentication"),
                        (usage.code_signing, "code signing"),
                        (usage.email_protection, "email protection"),
                        (usage.time_stamping, "time stamping"),
                        (usage.ocsp_signing, "OCSP signing"),
                    ];
                    usages.extend(purposes.iter().filter(|(is, _)| *is).map(|(_, word)| (*word).to_owned()));
                    usages.extend(usage.other.iter().map(|oid| format!("purpose {oid}")));
                }
                _ => {}
            }
        }
        Ok(CertificateInfo {
            subject: escape_for_log(&certificate.subject().to_string()),
            issuer: escape_for_log(&certificate.issuer().to_string()),
            serial: hex(certificate.raw_serial()),
            names,
            not_before: to_unix_time(certificate.validity().not_before),
            not_after: to_unix_time(certificate.validity().not_after),
            is_authority: is_authority(&certificate),
            usages,
            key: key_description(&certificate),
        })
    }

    /// Whether the extended key usage allows `purpose`, for example `server authentication`; none allows all.
    pub fn allows_usage(&self, purpose: &str) -> bool {
        let mut purposes = self.usages.iter().filter(|usage| {
            usage.ends_with("authentication")
                || usage.starts_with("purpose ")
                || ["any purpose", "code signing", "email protection", "time stamping", "OCSP signing"]
                    .contains(&usage.as_str())
        });
        let all_allowed = purposes.clone().next().is_none();
        all_allowed || purposes.any(|usage| usage == purpose || usage == "any purpose")
    }

    /// A message if `now` is before or after the certificate's lifetime.
    pub fn validity_error(&self, now: UnixTime) -> Option<String> {
        if now.as_secs() > self.not_after.as_secs() {
            return Some(format!("it expired on {}", format_date(self.not_after)));
        }
        self.early(now)
    }

    /// The problem of a certificate that is not valid yet, if it is one.
    pub fn early(&self, now: UnixTime) -> Option<String> {
        let early = now.as_secs() < self.not_before.as_secs();
        early.then(|| {
            format!("it is not valid before {} (is this machine's clock right?)", format_date(self.not_before))
        })
    }
}

/// Parses a DER certificate without trailing bytes.
pub(super) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, String> {
    match X509Certificate::from_der(der) {
        Ok(([], certificate)) => Ok(certificate),
        Ok(_) => Err("bytes follow the end of the certificate".to_owned()),
        Err(_) => Err("it is not a well-formed X.509 certificate".to_owned()),
    }
}

fn is_authority(certificate: &X509Certificate<'_>) -> bool {
    let may_sign = match certificate.key_usage() {
        Ok(Some(usage)) => usage.value.flags == 0 || usage.value.key_cert_sign(),
        Ok(None) => true,
        Err(_) => false,
    };
    may_sign
        && match certificate.basic_constraints() {
            Ok(Some(constraints)) => constraints.value.ca,
            Ok(None) => certificate.version().0 == 0,
            Err(_) => false,
        }
}

pub(super) fn to_unix_time(time: ASN1Time) -> UnixTime {
    let seconds = u64::try_from(time.timestamp()).unwrap_or(0);
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds))
}

/// Formats a time as in RFC 3339: `2027-10-21T12:00:00Z`.
pub(crate) fn format_date(time: UnixTime) -> String {
    i64::try_from(time.as_secs())
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| "a date out of range".to_owned(), |at| at.strftime("%FT%TZ").to_string())
}

/// Escapes untrusted text for a log line or a terminal.
pub(super) fn escape_for_log(text: &str) -> String {
    const MAX_LEN: usize = 256;
    let mut safe = String::new();
    for character in text.chars() {
        if safe.len() >= MAX_LEN {
            safe.push('…');
            break;
        }
        if character.is_control() || ('\u{200b}'..='\u{202e}').contains(&character) {
            safe.extend(character.escape_unicode());
        } else {
            safe.push(character);
        }
    }
    safe
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn alternative_name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some(escape_for_log(name)),
        GeneralName::IPAddress(bytes) => {
            let address = <[u8; 4]>::try_from(*bytes)
                .map(IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
            address.ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

fn usage_names(usage: &KeyUsage) -> Vec<String> {
    let words = [
        (usage.digital_signature(), "digital signature"),
        (usage.key_encipherment(), "key encipherment"),
        (usage.data_encipherment(), "data encipherment"),
        (usage.key_agreement(), "key agreement"),
        (usage.key_cert_sign(), "signing certificates"),
        (usage.crl_sign(), "signing revocation lists"),
    ];
    words.iter().filter(|(is, _)| *is).map(|(_, word)| (*word).to_owned()).collect()
}

fn key_description(certificate: &X509Certificate<'_>) -> String {
    use x509_parser::public_key::PublicKey;
    match certificate.public_key().parsed() {
        Ok(PublicKey::RSA(key)) => format!("RSA {}", key.key_size()),
        Ok(PublicKey::EC(point)) => format!("ECDSA P-{}", point.key_size()),
        _ => match certificate.public_key().algorithm.algorithm.to_id_string().as_str() {
            "1.3.101.112" => "Ed25519".to_owned(),
            other => format!("algorithm {}", escape_for_log(other)),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificate_text_is_escaped_for_log() {
        assert_eq!(escape_for_log("CN=a\nlevel=info \u{1b}[31m"), "CN=a\\u{a}level=info \\u{1b}[31m");
        assert!(escape_for_log(&"x".repeat(10_000)).len() < 300);
    }

    #[test]
    fn certificate_malformed_is_error() {
        assert!(CertificateInfo::parse(b"rubbish").unwrap_err().contains("well-formed"));
        assert!(CertificateInfo::parse(b"").is_err());
    }
}
