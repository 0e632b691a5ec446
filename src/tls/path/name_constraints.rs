//! Name constraints of authorities (RFC 5280, 4.2.1.10), as Go's crypto/x509 applies them in `constraints.go`.

use std::net::IpAddr;

use super::alternative_names::AlternativeNames;
use crate::tls::certificate::escape_for_log;
use crate::tls::der::split_element;

/// Comparisons of a name with a constraint in one path; beyond it the path is not valid.
const MAX_COMPARISONS: usize = 250_000;

/// The names that an authority may sign for.
#[derive(Debug, Default)]
pub(super) struct NameConstraints {
    permitted: Subtrees,
    excluded: Subtrees,
}

#[derive(Debug, Default)]
struct Subtrees {
    dns: Vec<String>,
    emails: Vec<String>,
    uris: Vec<String>,
    /// Address and mask, of the same length.
    networks: Vec<(Vec<u8>, Vec<u8>)>,
}

impl NameConstraints {
    /// Parses the extension's value: the constraints, and whether all kinds of names in it are known. `None` if it is malformed.
    pub(super) fn parse(value: &[u8]) -> Option<(NameConstraints, bool)> {
        const SEQUENCE: u8 = 0x30;
        const PERMITTED: u8 = 0xa0;
        const EXCLUDED: u8 = 0xa1;
        let (sequence, mut rest, []) = split_element(value)? else { return None };
        if sequence.first() != Some(&SEQUENCE) || rest.is_empty() {
            return None;
        }
        let mut constraints = NameConstraints::default();
        let mut is_understood = true;
        let mut expected = vec![(EXCLUDED, &mut constraints.excluded), (PERMITTED, &mut constraints.permitted)];
        while !rest.is_empty() {
            let (element, mut trees, after) = split_element(rest)?;
            rest = after;
            let target = loop {
                let (tag, target) = expected.pop()?;
                if element.first() == Some(&tag) {
                    break target;
                }
            };
            while !trees.is_empty() {
                let (tree, content, after) = split_element(trees)?;
                trees = after;
                if tree.first() != Some(&SEQUENCE) {
                    return None;
                }
                let (base, name, _) = split_element(content)?;
                is_understood &= target.add(*base.first()?, name)?;
            }
        }
        let is_empty = constraints.permitted.is_empty() && constraints.excluded.is_empty();
        (!is_empty || !is_understood).then_some((constraints, is_understood))
    }

    /// Checks `names`. `comparisons` are counted for a whole path.
    ///
    /// # Errors
    /// The name that is not permitted.
    pub(super) fn check(&self, names: &AlternativeNames, comparisons: &mut usize) -> Result<(), String> {
        let count = names.dns.len() + names.addresses.len() + names.emails.len() + names.uris.len();
        *comparisons = comparisons.saturating_add(count.saturating_mul(self.permitted.len() + self.excluded.len()));
        if *comparisons > MAX_COMPARISONS {
            return Err("there are too many names and name constraints".to_owned());
        }
        let check_name = |what: &str, name: &str, is_restricted: bool, is_permitted: bool, is_excluded: bool| {
            let name = escape_for_log(name);
            if is_restricted && !is_permitted {
                return Err(format!("the {what} {name:?} is not among the permitted ones"));
            }
            if is_excluded { Err(format!("the {what} {name:?} is excluded")) } else { Ok(()) }
        };
        let (permitted, excluded) = (&self.permitted, &self.excluded);
        for address in &names.addresses {
            let text = address.to_string();
            let is_restricted = !permitted.networks.is_empty();
            check_name("address", &text, is_restricted, permitted.has_address(address), excluded.has_address(address))?;
        }
        for name in &names.dns {
            if !is_domain_name(name, false) {
                return Err(format!("the DNS name {:?} is not valid", escape_for_log(name)));
            }
            let is_excluded = excluded.dns.iter().any(|it| has_suffix(name, it) || wildcard_may_be(name, it));
            let is_permitted = permitted.dns.iter().any(|it| has_suffix(name, it));
            check_name("DNS name", name, !permitted.dns.is_empty(), is_permitted, is_excluded)?;
        }
        for uri in &names.uris {
            let host = uri_host(uri).ok_or_else(|| format!("the URI {:?} names no host", escape_for_log(uri)))?;
            let is_excluded = excluded.uris.iter().any(|it| has_suffix(host, it) || wildcard_may_be(host, it));
            let is_permitted = permitted.uris.iter().any(|it| has_suffix(host, it));
            check_name("URI", uri, !permitted.uris.is_empty(), is_permitted, is_excluded)?;
        }
        for email in &names.emails {
            let (local, domain) = split_mailbox(email)
                .ok_or_else(|| format!("the email address {:?} is not valid", escape_for_log(email)))?;
            let matches = |it: &String| match split_mailbox(it) {
                Some((there, domain_there)) => there == local && domain_there.eq_ignore_ascii_case(domain),
                None => has_suffix(domain, it),
            };
            let is_excluded = excluded.emails.iter().any(matches);
            let is_permitted = permitted.emails.iter().any(matches);
            check_name("email address", email, !permitted.emails.is_empty(), is_permitted, is_excluded)?;
        }
        Ok(())
    }
}

impl Subtrees {
    /// Adds a name: whether its kind is known. `None` if it is malformed.
    fn add(&mut self, tag: u8, name: &[u8]) -> Option<bool> {
        const EMAIL: u8 = 0x81;
        const DNS: u8 = 0x82;
        const URI: u8 = 0x86;
        const ADDRESS: u8 = 0x87;
        let text = || std::str::from_utf8(name).ok().filter(|text| text.is_ascii()).map(str::to_owned);
        let domain = || text().filter(|text| is_domain_name(text, true));
        match tag {
            DNS => self.dns.push(domain()?),
            EMAIL => {
                let text = text()?;
                let is_valid =
                    if text.contains('@') { split_mailbox(&text).is_some() } else { is_domain_name(&text, true) };
                self.emails.push(is_valid.then_some(text)?);
            }
            URI => self.uris.push(domain().filter(|text| text.parse::<IpAddr>().is_err())?),
            ADDRESS => {
                let (address, mask) = name.split_at_checked(name.len() / 2)?;
                let is_valid = matches!(name.len(), 8 | 32) && is_prefix_mask(mask);
                is_valid.then_some(())?;
                self.networks.push((address.to_vec(), mask.to_vec()));
            }
            _ => return Some(false),
        }
        Some(true)
    }

    fn len(&self) -> usize {
        self.dns.len() + self.emails.len() + self.uris.len() + self.networks.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn has_address(&self, address: &IpAddr) -> bool {
        let bytes = match address {
            IpAddr::V4(it) => it.octets().to_vec(),
            IpAddr::V6(it) => it.octets().to_vec(),
        };
        self.networks.iter().any(|(network, mask)| {
            network.len() == bytes.len()
                && network.iter().zip(mask).zip(&bytes).all(|((network, mask), byte)| network & mask == byte & mask)
        })
    }
}

fn is_prefix_mask(mask: &[u8]) -> bool {
    let ones: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    let leading = mask.iter().try_fold(0, |sum, byte| match byte.leading_ones() {
        8 => Ok(sum + 8),
        some => Err(sum + some),
    });
    ones == leading.unwrap_or_else(|it| it)
}

/// Whether `name` is `domain` or below it; a domain with a leading period has only names below it.
fn has_suffix(name: &str, domain: &str) -> bool {
    if domain.is_empty() {
        return true;
    }
    let Some((before, end)) = name.len().checked_sub(domain.len()).and_then(|at| name.split_at_checked(at)) else {
        return false;
    };
    end.eq_ignore_ascii_case(domain) && (before.is_empty() || domain.starts_with('.') || before.ends_with('.'))
}

/// Whether a name with a wildcard stands for `domain`, which is excluded.
fn wildcard_may_be(name: &str, domain: &str) -> bool {
    match (name.find('.'), domain.find('.')) {
        (Some(here), Some(there)) => name.starts_with('*') && name[here..].eq_ignore_ascii_case(&domain[there..]),
        _ => false,
    }
}

/// A domain name as in Go's `domainNameValid`; that of a constraint may begin with a period.
fn is_domain_name(name: &str, is_constraint: bool) -> bool {
    if name.is_empty() {
        return true;
    }
    let labels = if is_constraint { name.strip_prefix('.').unwrap_or(name) } else { name };
    labels.split('.').all(|label| !label.is_empty() && label.bytes().all(|byte| (33..=126).contains(&byte)))
}

/// The host name of a URI; `None` if it has none, or an address.
fn uri_host(uri: &str) -> Option<&str> {
    let (_, rest) = uri.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.split_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        Some(_) => return None,
        None => host,
    };
    let is_name = !host.is_empty() && is_domain_name(host, false) && host.parse::<IpAddr>().is_err();
    (is_name && !host.starts_with('[')).then_some(host)
}

/// Local part and domain of a mailbox without quotes.
fn split_mailbox(text: &str) -> Option<(&str, &str)> {
    let (local, domain) = text.split_once('@')?;
    let is_atom = |atom: &str| {
        !atom.is_empty()
            && atom.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-/=?^_`{|}~".contains(&byte))
    };
    let is_valid = local.split('.').all(is_atom) && !domain.is_empty() && is_domain_name(domain, false);
    (is_valid && !domain.contains('@')).then_some((local, domain))
}
