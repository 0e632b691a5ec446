//! The identity in a client certificate.
//!
//! Parsed as by k8s.io/apiserver in pkg/authentication/request/x509: the last common name, every
//! organization, and the UID under its own object identifier.

use aws_lc_rs::digest;
use rustls::pki_types::UnixTime;
use x509_parser::asn1_rs::{Oid, Tag, oid};
use x509_parser::oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME};
use x509_parser::x509::AttributeTypeAndValue;

use super::certificate::{hex, parse, to_unix_time};

/// Kubernetes' object identifier of a user's UID (KEP-4940).
const UID: Oid<'static> = oid!(1.3.6.1.4.1.57683.2);

/// The identity in a client certificate. It is parsed once per connection, and does not imply trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The last common name of the subject; `None` when there is none or it is empty.
    pub common_name: Option<String>,
    /// The subject's organizations, in order.
    pub organizations: Vec<String>,
    uid: Result<Option<String>, &'static str>,
    /// SHA-256 of the certificate as lower-case hex.
    pub fingerprint: String,
    /// The serial number as lower-case hex.
    pub serial: String,
    /// First second in which it is valid.
    pub not_before: UnixTime,
    /// Last second in which it is valid.
    pub not_after: UnixTime,
}

impl PeerCertificate {
    /// Parses a DER certificate; the error is a message.
    pub fn parse(der: &[u8]) -> Result<PeerCertificate, String> {
        let certificate = parse(der)?;
        let mut peer = PeerCertificate {
            common_name: None,
            organizations: Vec::new(),
            uid: Ok(None),
            fingerprint: hex(digest::digest(&digest::SHA256, der).as_ref()),
            serial: hex(certificate.raw_serial()),
            not_before: to_unix_time(certificate.validity().not_before),
            not_after: to_unix_time(certificate.validity().not_after),
        };
        for attribute in certificate.subject().iter_attributes() {
            let kind = attribute.attr_type();
            if *kind == UID {
                peer.uid = match (&peer.uid, text(attribute)?) {
                    (Err(known), _) => Err(*known),
                    (Ok(Some(_)), _) => Err("the certificate has several UIDs"),
                    (Ok(None), None) => Err("the certificate's UID is not a string"),
                    (Ok(None), Some(uid)) if uid.is_empty() => Err("the certificate's UID is empty"),
                    (Ok(None), Some(uid)) => Ok(Some(uid)),
                };
            } else if *kind == OID_X509_COMMON_NAME {
                // An attribute that is not a string is skipped, as in Go's pkix.Name.
                if let Some(name) = text(attribute)? {
                    peer.common_name = Some(name);
                }
            } else if *kind == OID_X509_ORGANIZATION_NAME {
                peer.organizations.extend(text(attribute)?);
            }
        }
        peer.common_name = peer.common_name.filter(|name| !name.is_empty());
        Ok(peer)
    }

    /// The UID; an error (empty, no string, several) must fail the authentication by this certificate.
    pub fn uid(&self) -> Result<Option<&str>, &'static str> {
        match &self.uid {
            Ok(uid) => Ok(uid.as_deref()),
            Err(why) => Err(why),
        }
    }
}

/// The value if it is of any ASN.1 string type; an error if the string is malformed.
fn text(attribute: &AttributeTypeAndValue<'_>) -> Result<Option<String>, String> {
    let value = attribute.attr_value();
    let bytes = value.data;
    let broken = || "the certificate's subject contains a malformed string".to_owned();
    match value.tag() {
        Tag::Utf8String => String::from_utf8(bytes.to_vec()).map(Some).map_err(|_| broken()),
        Tag::PrintableString | Tag::Ia5String | Tag::NumericString => {
            if bytes.is_ascii() {
                Ok(Some(bytes.iter().map(|byte| char::from(*byte)).collect()))
            } else {
                Err(broken())
            }
        }
        // Like Go, T.61 is read as Latin-1.
        Tag::TeletexString => Ok(Some(bytes.iter().map(|byte| char::from(*byte)).collect())),
        Tag::BmpString => {
            let (pairs, rest) = bytes.as_chunks::<2>();
            let units = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
            match char::decode_utf16(units).collect::<Result<String, _>>() {
                Ok(text) if rest.is_empty() => Ok(Some(text)),
                _ => Err(broken()),
            }
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DistinguishedName, DnType, DnValue, KeyPair};

    use super::*;

    const UID_PARTS: &[u64] = &[1, 3, 6, 1, 4, 1, 57683, 2];

    fn peer(parts: &[(&[u64], DnValue)]) -> Result<PeerCertificate, String> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        for (kind, value) in parts {
            params.distinguished_name.push(DnType::CustomDnType(kind.to_vec()), value.clone());
        }
        PeerCertificate::parse(params.self_signed(&KeyPair::generate().unwrap()).unwrap().der())
    }

    fn utf8(text: &str) -> DnValue {
        DnValue::Utf8String(text.to_owned())
    }

    #[test]
    fn peer_certificate_uid() {
        let found = peer(&[(&[2, 5, 4, 3], utf8("jane")), (UID_PARTS, utf8("42"))]).unwrap();
        assert_eq!((found.common_name.as_deref(), found.uid()), (Some("jane"), Ok(Some("42"))));
        assert_eq!(found.fingerprint.len(), 64);
        assert_eq!(peer(&[(&[2, 5, 4, 3], utf8("jane"))]).unwrap().uid(), Ok(None));
        assert!(peer(&[(UID_PARTS, utf8(""))]).unwrap().uid().is_err());
    }

    #[test]
    fn peer_certificate_uid_invalid_or_repeated_is_error() {
        let name = |parts: &[(&[u8], &str)]| super::super::der::distinguished_name(parts);
        let uid: &[u8] = &[0x2b, 0x06, 0x01, 0x04, 0x01, 0x83, 0xc2, 0x53, 0x02];
        let key = KeyPair::generate().unwrap();
        let draft = CertificateParams::default().self_signed(&key).unwrap();
        let with = |subject: &[u8]| {
            let der = super::super::der::replace_names(draft.der(), subject, subject, &key).unwrap();
            PeerCertificate::parse(&der).unwrap()
        };
        assert_eq!(with(&name(&[(uid, "1")])).uid(), Ok(Some("1")));
        assert!(with(&name(&[(uid, "1"), (uid, "1")])).uid().unwrap_err().contains("several"));
        let mut number = name(&[(uid, "1")]);
        let tag = number.iter().rposition(|byte| *byte == 0x0c).unwrap();
        number[tag] = 0x02;
        assert!(with(&number).uid().unwrap_err().contains("not a string"));
    }

    #[test]
    fn peer_certificate_last_common_name_is_used() {
        let key = KeyPair::generate().unwrap();
        let draft = CertificateParams::default().self_signed(&key).unwrap();
        let common: &[u8] = &[0x55, 0x04, 0x03];
        for (names, expected) in [(&["a", "b"][..], Some("b")), (&["a", ""], None), (&[], None)] {
            let parts: Vec<_> = names.iter().map(|&name| (common, name)).collect();
            let subject = super::super::der::distinguished_name(&parts);
            let der = super::super::der::replace_names(draft.der(), &subject, &subject, &key).unwrap();
            assert_eq!(PeerCertificate::parse(&der).unwrap().common_name.as_deref(), expected, "{names:?}");
        }
    }

    #[test]
    fn peer_certificate_legacy_string_types() {
        let bmp = DnValue::BmpString("jäne".try_into().unwrap());
        let found = peer(&[(&[2, 5, 4, 3], bmp), (&[2, 5, 4, 10], DnValue::TeletexString("dev".try_into().unwrap()))]);
        let found = found.unwrap();
        assert_eq!((found.common_name.as_deref(), found.organizations), (Some("jäne"), vec!["dev".to_owned()]));
        assert!(PeerCertificate::parse(b"\x30\x00").is_err());
    }

    #[test]
    fn peer_certificate_parse_never_panics() {
        let authority = crate::tls::Authority::generate("clients");
        let bundle = authority.bundle();
        let good = authority.pair(&crate::tls::CertificateSpec::client("jane", &["dev"])).chain()[0].to_vec();
        bolero::check!().with_type::<(Vec<(u16, u8)>, u16)>().for_each(|(changes, cut)| {
            let mut der = good.clone();
            for (position, byte) in changes.iter().take(8) {
                let position = usize::from(*position) % der.len();
                der[position] = *byte;
            }
            if cut % 4 == 0 {
                der.truncate(usize::from(*cut) % good.len());
            }
            let _ = PeerCertificate::parse(&der);
            let changed = der != good;
            let judged = bundle.verify_client(&[der.into()], UnixTime::now());
            assert!(judged.is_err() || !changed, "a changed certificate is not trusted");
        });
    }
}
