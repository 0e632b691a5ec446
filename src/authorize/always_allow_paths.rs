//! `--authorization-always-allow-paths`: paths that need no authorization.

use kubeapi::{GoQuoted, RequestInfo};

use crate::process::{Problem, Problems};

const FLAG: &str = "--authorization-always-allow-paths";

/// Paths, exact or by prefix, that every user may request with any verb. Never resource paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AlwaysAllowPaths {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

impl AlwaysAllowPaths {
    /// Parses paths like `k8s.io/apiserver/pkg/authorization/path`: the leading slash may be missing; a star is allowed
    /// at the end only.
    pub fn new<S: AsRef<str>>(paths: impl IntoIterator<Item = S>) -> Result<AlwaysAllowPaths, Problems> {
        let mut problems = Problems::default();
        let mut read = AlwaysAllowPaths::default();
        for path in paths {
            let path = path.as_ref();
            let path = path.strip_prefix('/').unwrap_or(path);
            let (prefix, is_prefix) = path.strip_suffix('*').map_or((path, false), |prefix| (prefix, true));
            if prefix.contains('*') {
                problems.0.push(Problem::new(FLAG, format!("only trailing * allowed in {}", GoQuoted(path))));
            } else if is_prefix {
                read.prefixes.push(prefix.to_owned());
            } else {
                read.exact.push(path.to_owned());
            }
        }
        problems.into_result(read)
    }

    /// Returns the default of the flag: `/healthz`, `/readyz` and `/livez`.
    pub fn health_endpoints() -> AlwaysAllowPaths {
        AlwaysAllowPaths { exact: ["healthz", "readyz", "livez"].map(str::to_owned).to_vec(), prefixes: Vec::new() }
    }

    /// Whether a request needs no authorization.
    pub fn allows(&self, request: &RequestInfo<'_>) -> bool {
        let path = request.path.strip_prefix('/').unwrap_or(request.path);
        !request.is_resource_request
            && (self.exact.iter().any(|exact| exact == path)
                || self.prefixes.iter().any(|prefix| path.starts_with(&**prefix)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_allow_paths_match_exactly_or_by_prefix() {
        let paths = AlwaysAllowPaths::new(["/healthz", "metrics", "/a/*", "/b*", "/"]).unwrap();
        for (path, allowed) in [
            ("/healthz", true),
            ("/healthz/", false),
            ("/healthz/etcd", false),
            ("/metrics", true),
            ("/a", false),
            ("/a/", true),
            ("/a/b/c", true),
            ("/bcd", true),
            ("/", true),
            ("/x", false),
        ] {
            let request = RequestInfo { path, ..RequestInfo::default() };
            assert_eq!(paths.allows(&request), allowed, "{path}");
        }
        let all = AlwaysAllowPaths::new(["*"]).unwrap();
        let resource = RequestInfo { path: "/api/v1/pods", is_resource_request: true, ..RequestInfo::default() };
        assert!(!all.allows(&resource));
        assert!(all.allows(&RequestInfo { path: "/api", ..RequestInfo::default() }));
    }

    #[test]
    fn always_allow_paths_reject_inner_star() {
        let problems = AlwaysAllowPaths::new(["/a*b", "/ok", "/**"]).unwrap_err();
        assert_eq!(
            problems.to_string(),
            "--authorization-always-allow-paths: only trailing * allowed in \"a*b\"\n\
             --authorization-always-allow-paths: only trailing * allowed in \"**\""
        );
    }
}
