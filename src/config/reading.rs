//! From text to values: one reader that takes each flag by name and collects every mistake.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::flag::{Flag, Group, Kind};
use super::value;
use super::written::{Origin, Written, flags};
use crate::process::{Problem, Problems};

/// Why a role does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    /// All that is wrong; never empty.
    pub problems: Problems,
    /// Whether the command line itself cannot be read (exit status 2), rather than what it asks for
    /// cannot be done (1).
    pub command_line: bool,
}

impl Display for Mistakes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.problems.fmt(f)
    }
}

impl std::error::Error for Mistakes {}

/// Reads the flags of one role. A mistake is remembered and some value returned, so that reading goes
/// on and all mistakes are found in one go; [`Reading::end`] tells.
pub(super) struct Reading<'a> {
    written: Written,
    groups: &'a [&'static Group],
    environment: &'a dyn Fn(&str) -> Option<String>,
    problems: Problems,
    warnings: Vec<Problem>,
    command_line: bool,
    #[cfg(test)]
    asked: std::collections::BTreeSet<&'static str>,
}

impl<'a> Reading<'a> {
    pub(super) fn new(
        written: &Written,
        groups: &'a [&'static Group],
        later: &'static [Flag],
        kind: &str,
        environment: &'a dyn Fn(&str) -> Option<String>,
    ) -> Reading<'a> {
        let (written, problems) = written.clone().complete(groups, later, environment, kind);
        let mut reading = Reading {
            written,
            groups,
            environment,
            problems,
            warnings: Vec::new(),
            command_line: false,
            #[cfg(test)]
            asked: std::collections::BTreeSet::new(),
        };
        for flag in later {
            let Some(given) = reading.written.get(flag.name) else { continue };
            // Manifests written for kube-apiserver say `--leader-elect=false`: that we can do.
            let off =
                flag.kind == Kind::Switch && given.values.last().is_some_and(|value| value::switch(value) == Ok(false));
            if !off {
                reading.problem(flag.name, format_args!("not in this version yet; {}", flag.help));
            }
        }
        reading
    }

    /// Whether somebody gave this flag.
    pub(super) fn given(&self, name: &str) -> bool {
        self.written.get(name).is_some()
    }

    /// Its text, or the default.
    pub(super) fn text(&mut self, name: &str) -> String {
        let default = self.flag(name).map(|flag| flag.default).unwrap_or_default();
        match self.written.get(name).and_then(|given| given.values.last()) {
            Some(value) => value.clone(),
            None => default.to_owned(),
        }
    }

    /// Its value by `parse`; a text that does not fit is a mistake, of the command line if it stands
    /// there.
    pub(super) fn parse<T, E: Display>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let text = self.text(name);
        match parse(&text) {
            Ok(value) => Some(value),
            Err(message) => {
                if self.written.get(name).is_some_and(|given| given.origin == Origin::CommandLine) {
                    self.command_line = true;
                }
                self.problem(name, format_args!("{text:?}: {message}"));
                None
            }
        }
    }

    pub(super) fn switch(&mut self, name: &str) -> bool {
        self.parse(name, value::switch).unwrap_or_default()
    }

    /// A whole number of at most `most`.
    pub(super) fn count(&mut self, name: &str, most: u64) -> u64 {
        let number = self.parse(name, |text| text.parse::<i128>().map_err(|_| "use a whole number"));
        match number {
            None => 0,
            Some(number) if number < 0 => {
                self.problem(name, "must not be negative");
                0
            }
            Some(number) => u64::try_from(number).ok().filter(|number| *number <= most).unwrap_or_else(|| {
                self.problem(name, format_args!("{number} is too much; the most is {most}"));
                0
            }),
        }
    }

    /// A count of things held in memory.
    pub(super) fn size(&mut self, name: &str) -> usize {
        usize::try_from(self.count(name, u64::from(u32::MAX))).unwrap_or(usize::MAX)
    }

    /// A number between `least` and `most`.
    pub(super) fn fraction(&mut self, name: &str, least: f64, most: f64) -> f64 {
        let number = self.parse(name, |text| text.parse::<f64>().map_err(|_| "use a number")).unwrap_or(least);
        if !(least..=most).contains(&number) {
            self.problem(name, format_args!("{number} is not between {least} and {most}"));
            return least;
        }
        number
    }

    /// A duration; never negative.
    pub(super) fn duration(&mut self, name: &str) -> Duration {
        if self.text(name).starts_with('-') {
            self.problem(name, "must not be negative");
            return Duration::ZERO;
        }
        self.parse(name, value::duration).unwrap_or_default()
    }

    /// A duration that is some time at all.
    pub(super) fn positive_duration(&mut self, name: &str) -> Duration {
        let before = self.problems.0.len();
        let duration = self.duration(name);
        if duration.is_zero() && self.problems.0.len() == before {
            self.problem(name, "must be longer than nothing");
        }
        duration
    }

    /// The values of a list, or the default's.
    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let default = self.flag(name).map(|flag| flag.default).unwrap_or_default();
        match self.written.get(name) {
            Some(given) => given.values.clone(),
            None => value::list(default),
        }
    }

    /// One of the words of a [`Kind::Choice`].
    pub(super) fn choice(&mut self, name: &str) -> String {
        let text = self.text(name);
        if let Some(Kind::Choice(words)) = self.flag(name).map(|flag| flag.kind)
            && !words.contains(&text.as_str())
        {
            self.problem(name, format_args!("{text:?} is not supported; use {}", words.join(" or ")));
        }
        text
    }

    /// A path; an empty text is none.
    pub(super) fn path(&mut self, name: &str) -> Option<PathBuf> {
        Some(self.text(name)).filter(|text| !text.is_empty()).map(PathBuf::from)
    }

    /// A path of a file that must be readable now.
    pub(super) fn file(&mut self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        if let Err(error) = readable(&path) {
            self.problem(name, format_args!("cannot read {}: {error}", path.display()));
        }
        Some(path)
    }

    /// A path of a file that holds secrets: readable now, and better not by others.
    pub(super) fn secret_file(&mut self, name: &str) -> Option<PathBuf> {
        let path = self.file(name)?;
        self.warn_if_open(name, &path);
        Some(path)
    }

    /// A path of a directory that must be there now.
    pub(super) fn directory(&mut self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        if let Err(error) = std::fs::read_dir(&path) {
            self.problem(name, format_args!("cannot read directory {}: {error}", path.display()));
        }
        Some(path)
    }

    /// A certificate and its key: both or none. A mistake in either names both files.
    pub(super) fn pair(&mut self, certificate: &str, key: &str) -> Option<(PathBuf, PathBuf)> {
        match (self.path(certificate), self.path(key)) {
            (None, None) => None,
            (Some(path), None) => {
                self.problem(certificate, format_args!("{} needs its key; give --{key} too", path.display()));
                None
            }
            (None, Some(path)) => {
                self.problem(key, format_args!("{} needs its certificate; give --{certificate} too", path.display()));
                None
            }
            (Some(certificate_path), Some(key_path)) => {
                self.check_pair(certificate, key, &certificate_path, &key_path);
                Some((certificate_path, key_path))
            }
        }
    }

    /// Whether both files of a pair can be read; the flags may be the same one.
    pub(super) fn check_pair(&mut self, certificate: &str, key: &str, certificate_path: &Path, key_path: &Path) {
        if let Err(error) = readable(certificate_path) {
            let (certificate_path, key_path) = (certificate_path.display(), key_path.display());
            self.problem(certificate, format_args!("cannot read {certificate_path} (its key is {key_path}): {error}"));
        }
        if let Err(error) = readable(key_path) {
            let (certificate_path, key_path) = (certificate_path.display(), key_path.display());
            self.problem(key, format_args!("cannot read {key_path} (the key of {certificate_path}): {error}"));
        }
        self.warn_if_open(key, key_path);
    }

    fn warn_if_open(&mut self, name: &str, path: &Path) {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o004 != 0) {
            let message =
                format!("everyone on this machine can read {}; chmod o-r would keep it secret", path.display());
            let (place, field) = self.written.place(name);
            self.warnings.push(Problem::field(place, field, message));
        }
    }

    /// Remembers a mistake in the value of a flag.
    pub(super) fn problem(&mut self, name: &str, message: impl Display) {
        let (place, field) = self.written.place(name);
        self.problems.0.push(Problem::field(place, field, message));
    }

    /// Remembers something that is no mistake but worth a line in the log.
    pub(super) fn warning(&mut self, name: &str, message: impl Display) {
        let (place, field) = self.written.place(name);
        self.warnings.push(Problem::field(place, field, message));
    }

    /// An environment variable that is no flag.
    pub(super) fn environment(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }

    /// What `build` makes of the warnings, unless something is wrong.
    pub(super) fn end<T>(self, build: impl FnOnce(Vec<Problem>) -> T) -> Result<T, Mistakes> {
        #[cfg(test)]
        for flag in flags(self.groups, &[]) {
            let read = flag.name == "config" || self.asked.contains(flag.name);
            assert!(read, "--{} is a flag that nobody reads", flag.name);
        }
        let Reading { problems, warnings, command_line, .. } = self;
        problems.or(build(warnings)).map_err(|problems| Mistakes { problems, command_line })
    }

    fn flag(&mut self, name: &str) -> Option<&'static Flag> {
        let flag = flags(self.groups, &[]).find(|flag| flag.name == name);
        debug_assert!(flag.is_some(), "--{name} is no flag of this role");
        #[cfg(test)]
        self.asked.extend(flag.map(|flag| flag.name));
        flag
    }
}

fn readable(path: &Path) -> std::io::Result<()> {
    use std::io::Read;
    // Opening a directory succeeds; reading from it does not.
    std::fs::File::open(path)?.read(&mut [0; 1]).map(drop)
}
