//! `--allow-paths` and `--ignore-paths`: which paths are served, and which without authentication.

use kubeapi::{CanonicalPath, GoQuoted};

use super::glob::Glob;
use crate::process::{Problem, Problems};

const ALLOW_FLAG: &str = "--allow-paths";
const IGNORE_FLAG: &str = "--ignore-paths";

/// The path filter; by default, all paths are served, and all are protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PathFilter {
    /// Served paths; empty for all.
    allowed: Vec<Glob>,
    /// Paths served without authentication and authorization.
    ignored: Vec<Glob>,
}

/// How a request is handled by its path.
#[derive(Debug, PartialEq, Eq)]
pub enum PathAccess {
    /// The request needs authentication and authorization.
    Protected,
    /// The request is forwarded without authentication and identity headers.
    Open(OpenPath),
    /// 404: the path is not served.
    NotFound,
}

/// Proof that a path is served without authentication. Only [`PathFilter::access`] creates one.
#[derive(Debug, PartialEq, Eq)]
pub struct OpenPath(());

impl PathFilter {
    /// Parses both lists of patterns.
    ///
    /// # Errors
    /// When both are given, as in kube-rbac-proxy, or a pattern is invalid.
    pub fn new(allowed: &[String], ignored: &[String]) -> Result<PathFilter, Problems> {
        let mut problems = Problems::default();
        let mut read = |flag: &str, patterns: &[String]| -> Vec<Glob> {
            let read = |pattern: &String| {
                let wrong = || Problem::new(flag, format_args!("{} is not a path pattern", GoQuoted(pattern)));
                problems.collect(Glob::parse(pattern).ok_or_else(wrong))
            };
            patterns.iter().filter_map(read).collect()
        };
        let paths = PathFilter { allowed: read(ALLOW_FLAG, allowed), ignored: read(IGNORE_FLAG, ignored) };
        if !allowed.is_empty() && !ignored.is_empty() {
            problems.0.push(Problem::new(IGNORE_FLAG, format_args!("cannot be given together with {ALLOW_FLAG}")));
        }
        problems.into_result(paths)
    }

    /// Decides how a request to `path` is handled.
    ///
    /// An ambiguous path, which another server may parse as another path, is never open, whichever pattern it matches.
    pub fn access(&self, path: &CanonicalPath<'_>) -> PathAccess {
        let fits = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(path.decoded()));
        if !self.allowed.is_empty() && !fits(&self.allowed) {
            PathAccess::NotFound
        } else if !self.ignored.is_empty() && is_unambiguous(path) && fits(&self.ignored) {
            PathAccess::Open(OpenPath(()))
        } else {
            PathAccess::Protected
        }
    }

    /// Whether any path is served without authentication.
    pub fn has_open_paths(&self) -> bool {
        !self.ignored.is_empty()
    }

    /// Returns the patterns for the operator: those served, and those open.
    pub fn describe(&self) -> (Vec<&str>, Vec<&str>) {
        (self.allowed.iter().map(Glob::as_str).collect(), self.ignored.iter().map(Glob::as_str).collect())
    }
}

/// Whether every server parses the path into the same segments: it has no encoded slashes, no backslashes (some treat
/// them as slashes), no semicolons (some cut off the rest), no empty segments (some drop them) and no percent signs
/// that some would decode again.
pub(super) fn is_unambiguous(path: &CanonicalPath<'_>) -> bool {
    let (raw, decoded) = (path.raw(), path.decoded());
    let slashes = |text: &str| text.bytes().filter(|byte| *byte == b'/').count();
    !decoded.contains([';', '\\', '%']) && !decoded.contains("//") && slashes(raw) == slashes(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(allowed: &[&str], ignored: &[&str]) -> Result<PathFilter, Problems> {
        let owned = |texts: &[&str]| -> Vec<String> { texts.iter().map(|&text| text.to_owned()).collect() };
        PathFilter::new(&owned(allowed), &owned(ignored))
    }

    fn way(paths: &PathFilter, path: &str) -> PathAccess {
        paths.access(&CanonicalPath::parse(path).unwrap())
    }

    #[test]
    fn allow_paths_other_paths_are_not_found() {
        let paths = paths(&["/metrics", "/api/v1/label/*/values"], &[]).unwrap();
        for (path, expected) in [
            ("/metrics", PathAccess::Protected),
            ("/%6detrics", PathAccess::Protected),
            ("/api/v1/label/job/values", PathAccess::Protected),
            ("/", PathAccess::NotFound),
            ("/metrics/", PathAccess::NotFound),
            ("/METRICS", PathAccess::NotFound),
            ("/api/v1/label/name", PathAccess::NotFound),
        ] {
            assert_eq!(way(&paths, path), expected, "{path}");
        }
        assert!(!paths.has_open_paths());
        assert_eq!(way(&PathFilter::default(), "/x"), PathAccess::Protected);
    }

    #[test]
    fn ignore_paths_ambiguous_spellings_stay_protected() {
        let paths = paths(&[], &["/metrics", "/public/*", "/public/*/x", "/a*"]).unwrap();
        for (path, expected) in [
            ("/metrics", PathAccess::Open(OpenPath(()))),
            ("/%6detrics", PathAccess::Open(OpenPath(()))),
            ("/public/logo.png", PathAccess::Open(OpenPath(()))),
            ("/ab", PathAccess::Open(OpenPath(()))),
            ("/", PathAccess::Protected),
            ("/Metrics", PathAccess::Protected),
            ("/metrics/", PathAccess::Protected),
            ("/public%2Flogo.png", PathAccess::Protected),
            ("/public//x", PathAccess::Protected),
            ("/a;b", PathAccess::Protected),
            ("/public/a;/x", PathAccess::Protected),
            ("/public/a%5Csecret", PathAccess::Protected),
            ("/public/%2541", PathAccess::Protected),
        ] {
            assert_eq!(way(&paths, path), expected, "{path}");
        }
        for dots in ["..", "%2e%2e", "..;", "..%3B", "..%5Csecret", "%252e%252e"] {
            assert!(CanonicalPath::parse_non_kubernetes(&format!("/public/{dots}/x")).is_err(), "{dots}");
        }
    }

    #[test]
    fn allow_and_ignore_paths_errors_reported_together() {
        assert_eq!(
            paths(&["/a[", "/b"], &["\\"]).unwrap_err().to_string(),
            "--allow-paths: \"/a[\" is not a path pattern\n\
             --ignore-paths: \"\\\\\" is not a path pattern\n\
             --ignore-paths: cannot be given together with --allow-paths"
        );
    }
}
