//! Parses flags into values by name, and collects all errors.

use std::fmt::Display;
use std::path::PathBuf;
use std::time::Duration;

use kubeapi::duration::{self, DurationError};

use super::flag::{Flag, FlagGroup, FlagKind, flags};
use super::raw::RawFlags;
use super::value;
use crate::process::{Problem, Problems};
use crate::tls::PairFiles;

/// Errors and warnings about the configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnostics {
    /// All errors; empty for a valid configuration.
    pub problems: Problems,
    /// Warnings, to be logged.
    pub warnings: Vec<Problem>,
    /// Paths of files in flag values, each with the flag.
    pub(super) named_files: Vec<(String, String)>,
}

impl Diagnostics {
    /// Adds problems with files, each prefixed with the flags that name the file.
    pub fn add_file_problems(&mut self, problems: Problems) {
        for mut problem in problems.0 {
            let is_named = |path: &str| {
                // A place may continue with a line, or with a second file.
                problem.location.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ':']))
            };
            let mut by: Vec<_> =
                self.named_files.iter().filter(|(path, _)| is_named(path)).map(|(_, by)| &**by).collect();
            by.sort_unstable();
            by.dedup();
            if !by.is_empty() {
                problem.location = format!("{} {}", by.join(", "), problem.location);
            }
            // A file that several flags name is reported once.
            if !self.problems.0.contains(&problem) {
                self.problems.0.push(problem);
            }
        }
    }
}

/// Hint for an invalid duration.
const DURATION_HINT: &str = "use a duration such as 90s, 1m30s or 1h";

/// Parses the flags of one command. On an error it records the error and returns a placeholder value, so that all
/// errors are found in one run; [`FlagParser::finish`] returns them. Reads no file but that of `--config`.
pub(super) struct FlagParser<'a> {
    raw: RawFlags,
    groups: &'a [&'static FlagGroup],
    environment: &'a dyn Fn(&str) -> Option<String>,
    /// Defaults that override those of the flags.
    defaults: &'static [(&'static str, &'static str)],
    diagnostics: Diagnostics,
    #[cfg(test)]
    read_flags: std::collections::BTreeSet<&'static str>,
}

impl<'a> FlagParser<'a> {
    pub(super) fn new(
        command_line: &RawFlags,
        groups: &'a [&'static FlagGroup],
        kind: &str,
        environment: &'a dyn Fn(&str) -> Option<String>,
    ) -> FlagParser<'a> {
        let (raw, problems) = command_line.clone().add_environment_and_file(groups, environment, kind);
        FlagParser {
            raw,
            groups,
            environment,
            defaults: &[],
            diagnostics: Diagnostics { problems, ..Diagnostics::default() },
            #[cfg(test)]
            read_flags: std::collections::BTreeSet::new(),
        }
    }

    /// Overrides the defaults of flags.
    pub(super) fn with_defaults(mut self, defaults: &'static [(&'static str, &'static str)]) -> FlagParser<'a> {
        self.defaults = defaults;
        self
    }

    /// Whether this flag was given.
    pub(super) fn is_given(&self, name: &str) -> bool {
        self.raw.get(name).is_some()
    }

    /// The text of a flag, or its default.
    pub(super) fn text(&mut self, name: &str) -> String {
        let default = self.default_value(name);
        match self.raw.get(name).and_then(|given| given.values.last()) {
            Some(value) => value.clone(),
            None => default.to_owned(),
        }
    }

    /// The value of a flag by `parse`; a failure is recorded as an error.
    pub(super) fn parse<T, E: Display>(&mut self, name: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Option<T> {
        let text = self.text(name);
        match parse(&text) {
            Ok(value) => Some(value),
            Err(message) => {
                self.add_problem(name, format_args!("{text:?}: {message}"));
                None
            }
        }
    }

    /// The value of a boolean flag.
    pub(super) fn switch(&mut self, name: &str) -> bool {
        self.parse(name, value::parse_bool).unwrap_or_default()
    }

    /// A boolean; none if it is not given.
    pub(super) fn optional_switch(&mut self, name: &str) -> Option<bool> {
        self.default_value(name);
        self.is_given(name).then(|| self.switch(name))
    }

    /// A whole number of at most `max`.
    pub(super) fn count(&mut self, name: &str, max: u64) -> u64 {
        let number = self.parse(name, |text| text.parse::<i128>().map_err(|_| "use a whole number"));
        match number {
            None => 0,
            Some(number) if number < 0 => {
                self.add_problem(name, "must not be negative");
                0
            }
            Some(number) => u64::try_from(number).ok().filter(|number| *number <= max).unwrap_or_else(|| {
                self.add_problem(name, format_args!("{number} is too large; the maximum is {max}"));
                0
            }),
        }
    }

    /// A number of objects held in memory.
    pub(super) fn memory_count(&mut self, name: &str) -> usize {
        usize::try_from(self.count(name, u64::from(u32::MAX))).unwrap_or(usize::MAX)
    }

    /// A number of objects, at least one.
    pub(super) fn positive_count(&mut self, name: &str) -> usize {
        let before = self.diagnostics.problems.0.len();
        let size = self.memory_count(name);
        if size == 0 && self.diagnostics.problems.0.len() == before {
            self.add_problem(name, "must be greater than 0");
        }
        size
    }

    /// A number between `min` and `max`.
    pub(super) fn fraction(&mut self, name: &str, min: f64, max: f64) -> f64 {
        let number = self.parse(name, |text| text.parse::<f64>().map_err(|_| "use a number")).unwrap_or(min);
        if !(min..=max).contains(&number) {
            self.add_problem(name, format_args!("{number} is not between {min} and {max}"));
            return min;
        }
        number
    }

    /// A duration that is not negative.
    pub(super) fn duration(&mut self, name: &str) -> Duration {
        match duration::parse(&self.text(name)) {
            Err(DurationError::Negative(_)) => {
                self.add_problem(name, "must not be negative");
                Duration::ZERO
            }
            _ => self.parse(name, |text| duration::parse(text).map_err(|_| DURATION_HINT)).unwrap_or_default(),
        }
    }

    /// A duration greater than zero.
    pub(super) fn positive_duration(&mut self, name: &str) -> Duration {
        let before = self.diagnostics.problems.0.len();
        let duration = self.duration(name);
        if duration.is_zero() && self.diagnostics.problems.0.len() == before {
            self.add_problem(name, "must be greater than 0");
        }
        duration
    }

    /// The values of a list, or its default.
    pub(super) fn list(&mut self, name: &str) -> Vec<String> {
        let default = self.default_value(name);
        match self.raw.get(name) {
            Some(given) => given.values.clone(),
            None => value::parse_list(default),
        }
    }

    /// One of the words of a [`FlagKind::Choice`].
    pub(super) fn choice(&mut self, name: &str) -> String {
        let text = self.text(name);
        match self.find_flag(name) {
            Some(Flag { kind: FlagKind::Choice(words), default, .. }) if !words.contains(&text.as_str()) => {
                self.add_problem(name, format_args!("{text:?} is not supported; use {}", words.join(" or ")));
                (*default).to_owned()
            }
            _ => text,
        }
    }

    /// A path; empty counts as none. In the configuration file it is relative to that file.
    pub(super) fn path(&mut self, name: &str) -> Option<PathBuf> {
        let path = Some(self.text(name)).filter(|text| !text.is_empty())?;
        Some(self.resolve_path(name, &path))
    }

    /// Resolves a path in the value of a flag, as [`FlagParser::path`].
    pub(super) fn resolve_path(&mut self, name: &str, path: &str) -> PathBuf {
        let path = self.raw.resolve_path(name, path);
        if self.is_given(name) {
            let (location, field) = self.raw.problem_location(name);
            let by = if field.is_empty() { location } else { format!("{location}: {field}") };
            self.diagnostics.named_files.push((path.display().to_string(), by));
        }
        path
    }

    /// The files of a certificate and its key: both or none.
    pub(super) fn key_pair_files(&mut self, certificate: &str, key: &str) -> Option<PairFiles> {
        match (self.path(certificate), self.path(key)) {
            (None, None) => None,
            (Some(path), None) => {
                self.add_problem(certificate, format_args!("{} needs its key; give --{key} too", path.display()));
                None
            }
            (None, Some(path)) => {
                self.add_problem(
                    key,
                    format_args!("{} needs its certificate; give --{certificate} too", path.display()),
                );
                None
            }
            (Some(certificate), Some(key)) => Some(PairFiles::new(certificate, key)),
        }
    }

    /// Records an error in the value of a flag.
    pub(super) fn add_problem(&mut self, name: &str, message: impl Display) {
        let (location, field) = self.raw.problem_location(name);
        self.diagnostics.problems.0.push(Problem::at_field(location, field, message));
    }

    /// Records a warning about a flag.
    pub(super) fn add_warning(&mut self, name: &str, message: impl Display) {
        let (location, field) = self.raw.problem_location(name);
        self.diagnostics.warnings.push(Problem::at_field(location, field, message));
    }

    /// Records warnings about variables that are not flags.
    pub(super) fn add_environment_warnings(&mut self, warnings: Vec<Problem>) {
        self.diagnostics.warnings.extend(warnings);
    }

    /// Reports the problems of environment variables that are no flags.
    pub(super) fn collect_environment<T>(&mut self, read: Result<T, Problems>) -> Option<T> {
        read.map_err(|problems| self.diagnostics.problems.0.extend(problems.0)).ok()
    }

    /// Looks up an environment variable that is not a flag.
    pub(super) fn environment(&self, name: &str) -> Option<String> {
        (self.environment)(name)
    }

    /// Parses `flags` that have no effect, so that an invalid value is still an error.
    pub(super) fn check_ignored(&mut self, flags: impl Iterator<Item = &'static Flag>) {
        for flag in flags {
            match flag.kind {
                FlagKind::Switch => drop(self.switch(flag.name)),
                FlagKind::Count => drop(self.count(flag.name, u64::MAX)),
                FlagKind::Fraction => drop(self.fraction(flag.name, 0.0, f64::from(f32::MAX))),
                FlagKind::Duration => drop(self.duration(flag.name)),
                _ => drop(self.text(flag.name)),
            }
        }
    }

    /// Returns the errors and warnings. In tests, checks that every flag was read.
    pub(super) fn finish(self) -> Diagnostics {
        #[cfg(test)]
        for flag in flags(self.groups) {
            let read = flag.name == "config" || self.read_flags.contains(flag.name);
            assert!(read, "--{} is a flag that is never read", flag.name);
        }
        self.diagnostics
    }

    fn default_value(&mut self, name: &str) -> &'static str {
        let own = self.find_flag(name).map(|flag| flag.default).unwrap_or_default();
        self.defaults.iter().find(|(flag, _)| *flag == name).map_or(own, |(_, default)| default)
    }

    fn find_flag(&mut self, name: &str) -> Option<&'static Flag> {
        let flag = flags(self.groups).find(|flag| flag.name == name);
        debug_assert!(flag.is_some(), "--{name} is not a flag of this command");
        #[cfg(test)]
        self.read_flags.extend(flag.map(|flag| flag.name));
        flag
    }
}
