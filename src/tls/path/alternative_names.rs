//! The subject alternative names of a certificate.

use std::net::IpAddr;

use x509_parser::extensions::GeneralName;

/// The subject alternative names.
#[derive(Debug, Default)]
pub(super) struct AlternativeNames {
    /// The extension's value, to compare certificates.
    pub(super) value: Option<Vec<u8>>,
    pub(super) dns: Vec<String>,
    pub(super) addresses: Vec<IpAddr>,
    pub(super) emails: Vec<String>,
    pub(super) uris: Vec<String>,
}

impl AlternativeNames {
    pub(super) fn read(list: &[GeneralName<'_>]) -> Option<AlternativeNames> {
        let mut names = AlternativeNames::default();
        for name in list {
            match name {
                GeneralName::DNSName(name) if name.is_ascii() => names.dns.push((*name).to_owned()),
                GeneralName::RFC822Name(name) if name.is_ascii() => names.emails.push((*name).to_owned()),
                GeneralName::URI(name) if name.is_ascii() => names.uris.push((*name).to_owned()),
                GeneralName::IPAddress(bytes) => names.addresses.push(ip_address(bytes)?),
                GeneralName::DNSName(_) | GeneralName::RFC822Name(_) | GeneralName::URI(_) => return None,
                GeneralName::Invalid(tag, _) if matches!(tag.0, 1 | 2 | 6 | 7) => return None,
                _ => {}
            }
        }
        Some(names)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.dns.is_empty() && self.addresses.is_empty() && self.emails.is_empty() && self.uris.is_empty()
    }
}

fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
