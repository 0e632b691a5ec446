//! Kubernetes' order of versions.

use std::cmp::Ordering;

/// `Greater` when Kubernetes prefers `a`: GA before beta before alpha, then the higher numbers; other
/// names last, in the order of the alphabet (`apimachinery/pkg/version`, `CompareKubeAwareVersionStrings`).
pub(super) fn compare_kube_aware(a: &str, b: &str) -> Ordering {
    match (parts(a), parts(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

fn parts(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (major, rest) = rest.split_at(digits);
    let number = |digits: &str| (!digits.starts_with('0')).then(|| digits.parse::<u64>().ok()).flatten();
    let major = number(major)?;
    match rest {
        "" => Some((2, major, 0)),
        _ => match (rest.strip_prefix("beta"), rest.strip_prefix("alpha")) {
            (Some(minor), _) => Some((1, major, number(minor)?)),
            (_, Some(minor)) => Some((0, major, number(minor)?)),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upstreams_example() {
        let order = ["v10", "v2", "v1", "v11beta2", "v10beta3", "v3beta1", "v12alpha1", "v11alpha2", "foo1", "foo10"];
        let mut sorted = order;
        sorted.reverse();
        sorted.sort_by(|a, b| compare_kube_aware(b, a));
        assert_eq!(sorted, order);
    }
}
