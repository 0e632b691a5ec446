//! `--allow-paths` and `--ignore-paths`: which paths are served, and which without authentication.

use super::glob::Glob;
use crate::kubeapi::{CanonicalPath, Quoted};
use crate::process::{Problem, Problems};

const ALLOW: &str = "--allow-paths";
const IGNORE: &str = "--ignore-paths";

/// The path filter; by default, all paths are served, and all are protected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// Served paths; empty for all.
    allowed: Vec<Glob>,
    /// Paths served without authentication and authorization.
    ignored: Vec<Glob>,
}

/// How a request is handled by its path.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// It needs authentication and authorization.
    Asked,
    /// It is forwarded without authentication and identity headers.
    Open(Open),
    /// 404: the path is not served.
    NotThere,
}

/// Proof that a path is served without authentication. Only [`Paths::way`] creates one.
#[derive(Debug, PartialEq, Eq)]
pub struct Open(());

impl Paths {
    /// Parses both lists of patterns.
    ///
    /// # Errors
    /// When both are given, as in kube-rbac-proxy, or a pattern is invalid.
    pub fn new(allowed: &[String], ignored: &[String]) -> Result<Paths, Problems> {
        let mut problems = Problems::default();
        let mut read = |flag: &str, patterns: &[String]| -> Vec<Glob> {
            let read = |pattern: &String| {
                let wrong = || Problem::new(flag, format_args!("{} is not a path pattern", Quoted(pattern)));
                problems.keep(Glob::parse(pattern).ok_or_else(wrong))
            };
            patterns.iter().filter_map(read).collect()
        };
        let paths = Paths { allowed: read(ALLOW, allowed), ignored: read(IGNORE, ignored) };
        if !allowed.is_empty() && !ignored.is_empty() {
            problems.0.push(Problem::new(IGNORE, format_args!("cannot be given together with {ALLOW}")));
        }
        problems.or(paths)
    }

    /// Decides how a request to `path` is handled.
    ///
    /// An ambiguous path, which another server may parse as another path, is never open, whichever pattern it matches.
    pub fn way(&self, path: &CanonicalPath<'_>) -> Way {
        let fits = |globs: &[Glob]| globs.iter().any(|glob| glob.matches(path.decoded()));
        if !self.allowed.is_empty() && !fits(&self.allowed) {
            Way::NotThere
        } else if !self.ignored.is_empty() && reads_one_way(path) && fits(&self.ignored) {
            Way::Open(Open(()))
        } else {
            Way::Asked
        }
    }

    /// Whether any path is served without authentication.
    pub fn any_open(&self) -> bool {
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
pub(super) fn reads_one_way(path: &CanonicalPath<'_>) -> bool {
    let (raw, decoded) = (path.raw(), path.decoded());
    let slashes = |text: &str| text.bytes().filter(|byte| *byte == b'/').count();
    !decoded.contains([';', '\\', '%']) && !decoded.contains("//") && slashes(raw) == slashes(decoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(allowed: &[&str], ignored: &[&str]) -> Result<Paths, Problems> {
        let owned = |texts: &[&str]| -> Vec<String> { texts.iter().map(|&text| text.to_owned()).collect() };
        Paths::new(&owned(allowed), &owned(ignored))
    }

    fn way(paths: &Paths, path: &str) -> Way {
        paths.way(&CanonicalPath::parse(path).unwrap())
    }

    #[test]
    fn only_what_is_allowed_is_there() {
        let paths = paths(&["/metrics", "/api/v1/label/*/values"], &[]).unwrap();
        for (path, expected) in [
            ("/metrics", Way::Asked),
            ("/%6detrics", Way::Asked),
            ("/api/v1/label/job/values", Way::Asked),
            ("/", Way::NotThere),
            ("/metrics/", Way::NotThere),
            ("/METRICS", Way::NotThere),
            ("/api/v1/label/name", Way::NotThere),
        ] {
            assert_eq!(way(&paths, path), expected, "{path}");
        }
        assert!(!paths.any_open());
        assert_eq!(way(&Paths::default(), "/x"), Way::Asked);
    }

    #[test]
    fn nobody_gets_around_by_writing_a_path_in_another_way() {
        let paths = paths(&[], &["/metrics", "/public/*", "/public/*/x", "/a*"]).unwrap();
        for (path, expected) in [
            ("/metrics", Way::Open(Open(()))),
            ("/%6detrics", Way::Open(Open(()))),
            ("/public/logo.png", Way::Open(Open(()))),
            ("/ab", Way::Open(Open(()))),
            ("/", Way::Asked),
            ("/Metrics", Way::Asked),
            ("/metrics/", Way::Asked),
            ("/public%2Flogo.png", Way::Asked),
            ("/public//x", Way::Asked),
            ("/a;b", Way::Asked),
            ("/public/a;/x", Way::Asked),
            ("/public/a%5Csecret", Way::Asked),
            ("/public/%2541", Way::Asked),
        ] {
            assert_eq!(way(&paths, path), expected, "{path}");
        }
        for dots in ["..", "%2e%2e", "..;", "..%3B", "..%5Csecret", "%252e%252e"] {
            assert!(CanonicalPath::parse_anywhere(&format!("/public/{dots}/x")).is_err(), "{dots}");
        }
    }

    #[test]
    fn all_mistakes_at_once() {
        assert_eq!(
            paths(&["/a[", "/b"], &["\\"]).unwrap_err().to_string(),
            "--allow-paths: \"/a[\" is not a path pattern\n\
             --ignore-paths: \"\\\\\" is not a path pattern\n\
             --ignore-paths: cannot be given together with --allow-paths"
        );
    }
}
