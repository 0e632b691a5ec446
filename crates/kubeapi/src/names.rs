//! Rules for names, labels and keys, with Kubernetes' sentences (`apimachinery/pkg/util/validation/validation.go` and
//! `pkg/api/validate/content`). A function returns one sentence for each broken rule, none if the text is valid.

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS1123_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS1035_LABEL: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const LABEL_KEY: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";

/// Maximum length of a DNS label in bytes.
pub const MAX_DNS_LABEL: usize = 63;
/// Maximum length of a DNS subdomain in bytes.
pub const MAX_DNS_SUBDOMAIN: usize = 253;
/// Maximum length of a label's value and of the name in its key, in bytes.
pub const MAX_LABEL: usize = 63;

/// Rule for the names of a resource's objects (`ValidateNameFunc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// RFC 1123 subdomain, as for most resources and all custom ones.
    DnsSubdomain,
    /// RFC 1123 subdomain of kinds whose names are validated by their definition (`validate.LongName`).
    LongName,
    /// RFC 1123 label, as for namespaces.
    DnsLabel,
    /// RFC 1035 label, as for Services in old versions.
    Dns1035Label,
    /// Any path segment, as for RBAC objects.
    PathSegment,
}

impl NameRule {
    /// The sentences for a name, or for a `generateName` (`is_prefix`), which may end with a dash.
    pub fn check(self, name: &str, is_prefix: bool) -> Vec<String> {
        let masked =
            if is_prefix && self != NameRule::PathSegment { mask_trailing_dash(name) } else { name.to_owned() };
        match self {
            NameRule::DnsSubdomain => check_dns1123_subdomain(&masked),
            NameRule::LongName => check_subdomain(&masked, too_many_bytes),
            NameRule::DnsLabel => check_dns1123_label(&masked),
            NameRule::Dns1035Label => check_dns1035_label(&masked),
            NameRule::PathSegment if is_prefix => check_path_segment_prefix(&masked),
            NameRule::PathSegment => check_path_segment(&masked),
        }
    }
}

/// As in Kubernetes, the character before the dash goes, too.
fn mask_trailing_dash(name: &str) -> String {
    match name.strip_suffix('-') {
        Some(start) if !start.is_empty() => {
            let mut masked = start.to_owned();
            if masked.pop().is_some_and(|last| !last.is_ascii()) {
                // Go cuts a byte: what stays is no text.
                masked.push('\u{fffd}');
            }
            masked.push('a');
            masked
        }
        _ => name.to_owned(),
    }
}

/// RFC 1123 label: `IsDNS1123Label`.
pub fn check_dns1123_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_DNS_LABEL {
        errors.push(too_many_characters(MAX_DNS_LABEL));
    }
    if !is_lower_label(value) {
        if value.split('.').all(is_lower_label) {
            errors.push("must not contain dots".to_owned());
        } else {
            let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
                        start and end with an alphanumeric character";
            errors.push(pattern_error(rule, DNS1123_LABEL, &["my-name", "123-abc"]));
        }
    }
    errors
}

/// RFC 1123 subdomain: `IsDNS1123Subdomain`.
pub fn check_dns1123_subdomain(value: &str) -> Vec<String> {
    check_subdomain(value, too_many_characters)
}

fn check_subdomain(value: &str, too_long: fn(usize) -> String) -> Vec<String> {
    if is_dns_subdomain(value) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if value.len() > MAX_DNS_SUBDOMAIN {
        errors.push(too_long(MAX_DNS_SUBDOMAIN));
    }
    if !value.split('.').all(is_lower_label) {
        let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and \
                    must start and end with an alphanumeric character";
        errors.push(pattern_error(rule, DNS1123_SUBDOMAIN, &["example.com"]));
    }
    errors
}

/// RFC 1035 label: `IsDNS1035Label`.
pub fn check_dns1035_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_DNS_LABEL {
        errors.push(too_many_characters(MAX_DNS_LABEL));
    }
    if !is_lower_label(value) || !value.starts_with(|c: char| c.is_ascii_lowercase()) {
        let rule = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an \
                    alphabetic character, and end with an alphanumeric character";
        errors.push(pattern_error(rule, DNS1035_LABEL, &["my-name", "abc-123"]));
    }
    errors
}

/// Qualified name, which is also a label's key: `IsQualifiedName`, `IsLabelKey`.
pub fn check_qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let rule = |start: &str| {
        let rule = format!(
            "{start}must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character"
        );
        pattern_error(&rule, LABEL_KEY, &["MyName", "my.name", "123-abc"])
    };
    let name = match value.split_once('/') {
        None => value,
        Some((_, name)) if name.contains('/') => {
            let with_prefix = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![rule("a valid label key ") + with_prefix];
        }
        Some(("", name)) => {
            errors.push("prefix part must be non-empty".to_owned());
            name
        }
        Some((prefix, name)) => {
            errors.extend(check_subdomain(prefix, too_many_bytes).into_iter().map(|e| format!("prefix part {e}")));
            name
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > MAX_LABEL {
        errors.push(format!("name part {}", too_many_bytes(MAX_LABEL)));
    }
    if !is_label_text(name) {
        errors.push(rule("name part "));
    }
    errors
}

/// Value of a label: `IsLabelValue`.
pub fn check_label_value(value: &str) -> Vec<String> {
    if is_label_value(value) {
        return Vec::new();
    }
    let mut errors = Vec::new();
    if value.len() > MAX_LABEL {
        errors.push(too_many_bytes(MAX_LABEL));
    }
    if !is_label_text(value) {
        let rule = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                    must start and end with an alphanumeric character";
        errors.push(pattern_error(rule, &format!("({LABEL_KEY})?"), &["MyValue", "my_value", "12345"]));
    }
    errors
}

/// Name that can be a path segment: `IsPathSegmentName`.
pub fn check_path_segment(name: &str) -> Vec<String> {
    match name {
        "." | ".." => vec![format!("may not be '{name}'")],
        _ => check_path_segment_prefix(name),
    }
}

/// Prefix of a name that can be a path segment: `IsPathSegmentPrefix`.
pub fn check_path_segment_prefix(name: &str) -> Vec<String> {
    ["/", "%"].into_iter().filter(|one| name.contains(one)).map(|one| format!("may not contain '{one}'")).collect()
}

/// Key of a ConfigMap or Secret: `IsConfigMapKey`.
pub fn check_config_map_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_DNS_SUBDOMAIN {
        errors.push(too_many_characters(MAX_DNS_SUBDOMAIN));
    }
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        let rule = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        errors.push(pattern_error(rule, "[-._a-zA-Z0-9]+", &["key.name", "KEY_NAME", "key-name"]));
    }
    match value {
        "." | ".." => errors.push(format!("must not be '{value}'")),
        _ if value.starts_with("..") => errors.push("must not start with '..'".to_owned()),
        _ => {}
    }
    errors
}

/// Name of a port: `IsValidPortName`.
pub fn check_port_name(port: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let mut require = |holds: bool, rule: &str| {
        if !holds {
            errors.push(rule.to_owned());
        }
    };
    require(port.len() <= 15, &too_many_characters(15));
    let is_port_byte = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let rule = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)";
    require(!port.is_empty() && port.bytes().all(is_port_byte), rule);
    require(port.bytes().any(|byte| byte.is_ascii_lowercase()), "must contain at least one letter (a-z)");
    require(!port.contains("--"), "must not contain consecutive hyphens");
    require(!port.starts_with('-') && !port.ends_with('-'), "must not begin or end with a hyphen");
    errors
}

/// Wildcard subdomain such as `*.example.com`: `IsWildcardDNS1123Subdomain`.
pub fn check_wildcard_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > MAX_DNS_SUBDOMAIN {
        errors.push(too_many_characters(MAX_DNS_SUBDOMAIN));
    }
    if !value.strip_prefix("*.").is_some_and(|domain| domain.split('.').all(is_lower_label)) {
        let rule = "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must \
                    consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character";
        errors.push(pattern_error(rule, &format!(r"\*\.{DNS1123_SUBDOMAIN}"), &["*.example.com"]));
    }
    errors
}

/// Percentage such as `25%`: `IsValidPercent`.
pub fn check_percent(value: &str) -> Vec<String> {
    let is_valid = value
        .strip_suffix('%')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()));
    let rule = "a valid percent string must be a numeric string followed by an ending '%'";
    if is_valid { Vec::new() } else { vec![pattern_error(rule, "[0-9]+%", &["1%", "93%"])] }
}

/// Number of a port: `IsValidPortNum`.
pub fn check_port_number(number: i64) -> Option<String> {
    (!(1..=65_535).contains(&number)).then(|| "must be between 1 and 65535, inclusive".to_owned())
}

/// Whether a text is a valid label key: `[DNS subdomain/]name`.
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_dns_subdomain) && name.len() <= MAX_LABEL && is_label_text(name)
}

/// Whether a text is a valid label value.
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || value.len() <= MAX_LABEL && is_label_text(value)
}

/// Whether a text is a lower-case RFC 1123 subdomain, as most object names must be.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_DNS_SUBDOMAIN && text.split('.').all(is_lower_label)
}

/// Whether a text is a lower-case RFC 1123 label, as names of namespaces must be.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_DNS_LABEL && is_lower_label(text)
}

/// Whether a text is a lower-case RFC 1035 label, as versions must be. It begins with a letter.
pub fn is_dns1035_label(text: &str) -> bool {
    is_dns_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase())
}

/// Whether a text is a host name as in a certificate: a subdomain in either case, without a trailing dot.
pub fn is_host_name(text: &str) -> bool {
    is_dns_subdomain(&text.to_ascii_lowercase())
}

fn is_lower_label(label: &str) -> bool {
    let ends = !label.is_empty() && !label.starts_with('-') && !label.ends_with('-');
    ends && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// Whether a text has only letters, digits, `-`, `_`, `.`, with a letter or digit at both ends.
fn is_label_text(text: &str) -> bool {
    let is_end = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    is_end(text.bytes().next())
        && is_end(text.bytes().next_back())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn too_many_characters(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

fn too_many_bytes(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
}

/// The sentence of a text that does not match a pattern (`RegexError`).
pub fn pattern_error(rule: &str, pattern: &str, examples: &[&str]) -> String {
    if examples.is_empty() {
        return format!("{rule} (regex used for validation is '{pattern}')");
    }
    let examples = examples.iter().map(|one| format!("'{one}', ")).collect::<Vec<_>>().join(" or ");
    format!("{rule} (e.g. {examples}regex used for validation is '{pattern}')")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_sentences_match_upstream() {
        let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        assert_eq!(check_dns1123_subdomain("A_b"), [subdomain]);
        assert_eq!(check_dns1123_subdomain(""), [subdomain]);
        assert_eq!(check_dns1123_subdomain(&"a".repeat(254)), ["must be no more than 253 characters"]);
        assert_eq!(check_dns1123_label("a.b"), ["must not contain dots"]);
        assert_eq!(
            check_dns1123_label(&format!("{}_", "a".repeat(63))),
            [
                "must be no more than 63 characters",
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(
            check_dns1035_label("1a"),
            [
                "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
            ]
        );
        assert_eq!(
            check_label_value("-a"),
            [
                "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
            ]
        );
        assert_eq!(check_path_segment(".."), ["may not be '..'"]);
        assert_eq!(check_path_segment("a/%"), ["may not contain '/'", "may not contain '%'"]);
        assert_eq!(check_config_map_key("..a"), ["must not start with '..'"]);
    }

    #[test]
    fn qualified_name_sentences_match_upstream() {
        let name = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        assert_eq!(check_qualified_name("a_"), [name]);
        assert_eq!(check_qualified_name(""), ["name part must be non-empty", name]);
        assert_eq!(check_qualified_name("/a"), ["prefix part must be non-empty"]);
        assert_eq!(check_qualified_name(&"a".repeat(64)), ["name part must be no more than 63 bytes"]);
        assert_eq!(
            check_qualified_name(&format!("{}/a", "a".repeat(254))),
            ["prefix part must be no more than 253 bytes"]
        );
        assert_eq!(
            check_qualified_name("a/b/c"),
            [
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ]
        );
        assert!(check_qualified_name("example.com/My_name").is_empty());
    }

    #[test]
    fn name_rule_prefix_may_end_with_dash() {
        for (rule, name, is_prefix, is_valid) in [
            (NameRule::DnsSubdomain, "web-", true, true),
            (NameRule::DnsSubdomain, "web-", false, false),
            (NameRule::DnsSubdomain, "web--", true, true),
            (NameRule::DnsSubdomain, "-", true, false),
            (NameRule::DnsLabel, "a.b-", true, false),
            (NameRule::DnsLabel, "ab-", true, true),
            (NameRule::DnsLabel, "é-", true, false),
            (NameRule::PathSegment, "..", true, true),
            (NameRule::PathSegment, "..", false, false),
            (NameRule::PathSegment, "system:x-", false, true),
        ] {
            assert_eq!(rule.check(name, is_prefix).is_empty(), is_valid, "{rule:?} {name} {is_prefix}");
        }
    }
}
