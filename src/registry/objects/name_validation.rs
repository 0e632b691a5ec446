//! Validation of names: RFC 1123 subdomains and labels, RFC 1035 labels, DNS names.

/// Whether `text` is a lower-case RFC 1123 subdomain of at most 253 bytes: groups, names of most objects.
pub fn is_dns1123_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|part| is_label_text(part, text.len()))
}

/// Whether `text` is a lower-case RFC 1123 label of at most 63 bytes: namespaces.
pub(in crate::registry) fn is_dns1123_label(text: &str) -> bool {
    is_label_text(text, 63)
}

/// Whether `text` is a lower-case RFC 1035 label of at most 63 bytes: versions, Services. It begins with a letter.
pub(in crate::registry) fn is_dns1035_label(text: &str) -> bool {
    is_label_text(text, 63) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Whether `text` is a host name as in a certificate: a subdomain in either case, without a trailing dot.
pub(in crate::registry) fn is_host_name(text: &str) -> bool {
    is_dns1123_subdomain(&text.to_ascii_lowercase())
}

fn is_label_text(text: &str, longest: usize) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= longest
        && bytes.iter().all(|&b| inner(b) || b == b'-')
        && inner(bytes[0])
        && inner(bytes[bytes.len() - 1])
}

/// Error text for an invalid group or object name.
pub(in crate::registry) const SUBDOMAIN: &str = "must be a lower-case RFC 1123 subdomain: letters, digits, '-' and '.', beginning and ending with a letter or digit";
/// Error text for an invalid namespace.
pub(in crate::registry) const LABEL: &str =
    "must be a lower-case RFC 1123 label: letters, digits and '-', beginning and ending with a letter or digit";
/// Error text for an invalid version.
pub(in crate::registry) const LETTER_LABEL: &str =
    "must be a lower-case DNS-1035 label: letters, digits and '-', beginning with a letter";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_validated_like_kubernetes() {
        assert!(
            is_dns1123_subdomain("wardle.example.com") && is_dns1123_subdomain("a-b.c1") && is_dns1123_subdomain("1.2")
        );
        assert!(
            !is_dns1123_subdomain("")
                && !is_dns1123_subdomain("a..b")
                && !is_dns1123_subdomain(".a")
                && !is_dns1123_subdomain("A")
                && !is_dns1123_subdomain("-a")
        );
        assert!(!is_dns1123_subdomain(&"a".repeat(254)) && is_dns1123_subdomain(&"a".repeat(253)));
        assert!(is_dns1035_label("v1alpha1") && !is_dns1035_label("1v") && !is_dns1035_label("v1.x"));
        assert!(is_dns1123_label("0-a") && !is_dns1123_label("a-"));
        assert!(is_host_name("Example.COM") && !is_host_name("a_b"));
    }
}
