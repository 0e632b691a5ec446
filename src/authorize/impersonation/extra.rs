//! Validation of extras in constrained impersonation modes.

use std::collections::BTreeMap;

use kubeapi::{GoQuoted, is_dns_subdomain};

/// Returns Kubernetes' error for an invalid extra (`validateExtra` in `mode.go`, `IsDomainPrefixedPath` in
/// `k8s.io/apimachinery/pkg/util/validation`).
pub(super) fn validate(extra: &BTreeMap<String, Vec<String>>) -> Option<String> {
    extra.iter().find_map(|(key, values)| {
        if key.is_empty() {
            return Some("impersonating the empty string key in extra is not allowed".to_owned());
        }
        if let Some(why) = validate_domain_prefixed_path(key) {
            return Some(format!("impersonating an invalid key in extra is not allowed: {why}"));
        }
        if key.to_lowercase() != *key {
            return Some(format!("impersonating a non-lowercase key in extra is not allowed: {}", GoQuoted(key)));
        }
        values
            .iter()
            .any(String::is_empty)
            .then(|| "impersonating the empty string value in extra is not allowed".to_owned())
    })
}

fn validate_domain_prefixed_path(key: &str) -> Option<String> {
    let invalid = |value: &str, why: &str| format!("extra.key: Invalid value: {}: {why}", GoQuoted(value));
    let parts = key.split_once('/').filter(|(domain, path)| !domain.is_empty() && !path.is_empty());
    let Some((domain, path)) = parts else {
        return Some(invalid(key, "must be a domain-prefixed path (such as \"acme.io/foo\")"));
    };
    let mut mistakes = Vec::new();
    if domain.len() > 253 {
        mistakes.push(invalid(domain, "must be no more than 253 characters"));
    }
    // Without the length, which has its own error.
    if !domain.split('.').all(is_dns_subdomain) {
        mistakes.push(invalid(
            domain,
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
             '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
        ));
    }
    if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte)) {
        mistakes.push(invalid(path, "Invalid path (regex used for validation is '[A-Za-z0-9/\\-._~%!$&'()*+,;=:]+')"));
    }
    match &*mistakes {
        [] => None,
        [one] => Some(one.clone()),
        _ => Some(format!("[{}]", mistakes.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(key: &str, values: &[&str]) -> Option<String> {
        validate(&[(key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())].into())
    }

    #[test]
    fn impersonation_extra_errors_equal_upstream() {
        for good in ["acme.io/foo", "a/b", "acme.io/foo/bar%2c:;", "a.b/~"] {
            assert_eq!(told(good, &["v"]), None, "{good}");
        }
        let key = |rest: &str| Some(format!("impersonating an invalid key in extra is not allowed: {rest}"));
        for short in ["scopes", "/a", "a/", "a"] {
            assert_eq!(
                told(short, &["v"]),
                key(&format!(
                    r#"extra.key: Invalid value: "{short}": must be a domain-prefixed path (such as "acme.io/foo")"#
                ))
            );
        }
        assert_eq!(
            told("a_b/c d", &["v"]),
            key(
                r#"[extra.key: Invalid value: "a_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), extra.key: Invalid value: "c d": Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')]"#
            )
        );
        assert_eq!(
            told(&format!("{}/x", ["a"; 130].join(".")), &["v"]).map(|why| why.contains("no more than 253 characters")),
            Some(true)
        );
        assert_eq!(
            told("a.b/C", &["v"]).as_deref(),
            Some(r#"impersonating a non-lowercase key in extra is not allowed: "a.b/C""#)
        );
        assert_eq!(told("", &["v"]).as_deref(), Some("impersonating the empty string key in extra is not allowed"));
        assert_eq!(
            told("a/b", &["v", ""]).as_deref(),
            Some("impersonating the empty string value in extra is not allowed")
        );
    }
}
