//! `--allow-paths` and `--ignore-paths`: which paths are there at all, and which are open to everybody.

use super::glob::Glob;
use crate::kubeapi::{CanonicalPath, Quoted};
use crate::process::{Problem, Problems};

const ALLOW: &str = "--allow-paths";
const IGNORE: &str = "--ignore-paths";

/// Which paths are let through; all of them, and none without asking, unless said otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// No other path is there, if there are any.
    allowed: Vec<Glob>,
    /// Nobody is asked who they are and whether they may.
    ignored: Vec<Glob>,
}

/// The way a request goes by its path.
#[derive(Debug, PartialEq, Eq)]
pub enum Way {
    /// It is asked who sent it, and whether they may.
    Asked,
    /// Straight to the server behind us, without any identity.
    Open(Open),
    /// 404: the path is not there.
    NotThere,
}

/// The path of a request is open to everybody. Only [`Paths::way`] makes one.
#[derive(Debug, PartialEq, Eq)]
pub struct Open(());

impl Paths {
    /// Reads both lists of patterns.
    ///
    /// # Errors
    /// When both are given, as kube-rbac-proxy has it, or one is no pattern.
    pub fn new(allowed: &[String], ignored: &[String]) -> Result<Paths, Problems> {
        let mut problems = Problems::default();
        let mut read = |flag: &str, patterns: &[String]| -> Vec<Glob> {
            let read = |pattern: &String| {
                let wrong = || Problem::new(flag, format_args!("{} is no pattern of paths", Quoted(pattern)));
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

    /// Which way a request to `path` goes.
    ///
    /// What is open to everybody must be so to every reader: a path that another server may read as another one is
    /// never open, whichever pattern it fits.
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

    /// Whether any path is open to everybody.
    pub fn any_open(&self) -> bool {
        !self.ignored.is_empty()
    }

    /// The patterns, for the operator: those that are there, and those that are open.
    pub fn describe(&self) -> (Vec<&str>, Vec<&str>) {
        (self.allowed.iter().map(Glob::as_str).collect(), self.ignored.iter().map(Glob::as_str).collect())
    }
}

/// Whether every server finds the same segments in it: without encoded slashes, backslashes (which some take for
/// slashes), semicolons (which some cut off with what follows), empty segments (which some drop) and percent signs that
/// some would decode once more.
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
            "--allow-paths: \"/a[\" is no pattern of paths\n\
             --ignore-paths: \"\\\\\" is no pattern of paths\n\
             --ignore-paths: cannot be given together with --allow-paths"
        );
    }
}
