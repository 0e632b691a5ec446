//! Flags as given on the command line, in the environment and in the file, in this order of precedence.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::ArgMatches;

use super::file;
use super::flag::{Flag, FlagGroup, FlagKind, flags};
use super::value::{self, FlagValue, ValueSource};
use crate::kubeclient::IN_CLUSTER;
use crate::process::{Problem, Problems};

/// The flags that were given, as text, each with its source.
#[derive(Clone, Debug, Default)]
pub struct RawFlags {
    values: BTreeMap<&'static str, FlagValue>,
    /// The directory of the configuration file.
    folder: PathBuf,
}

impl RawFlags {
    /// Collects the flags of the command line.
    pub(super) fn from_command_line(matches: &ArgMatches, groups: &[&'static FlagGroup]) -> RawFlags {
        let mut raw = RawFlags::default();
        for flag in flags(groups) {
            if let Ok(Some(values)) = matches.try_get_many::<String>(flag.name) {
                let values = split_values(flag, values.cloned());
                raw.values.insert(flag.name, FlagValue { values, source: ValueSource::CommandLine });
            }
        }
        raw
    }

    /// Adds flags from the environment and then from the file of `--config`, where they are not given yet.
    ///
    /// `environment` looks up one variable. A variable `NARTHEX_*` that is no flag is ignored:
    /// Kubernetes sets `NARTHEX_SERVICE_HOST` and others for a Service of this name.
    pub(super) fn add_environment_and_file(
        mut self,
        groups: &[&'static FlagGroup],
        environment: &dyn Fn(&str) -> Option<String>,
        kind: &str,
    ) -> (RawFlags, Problems) {
        let mut problems = Problems::default();
        for flag in flags(groups) {
            if let Some(value) = environment(&flag.environment_variable()) {
                let values = split_values(flag, std::iter::once(value));
                self.values.entry(flag.name).or_insert(FlagValue { values, source: ValueSource::Environment });
            }
        }
        let path = self.values.get("config").and_then(|given| given.values.last()).filter(|path| !path.is_empty());
        if let Some(path) = path {
            let location = self.problem_location("config").0;
            match std::fs::read_to_string(path) {
                Err(error) => problems.0.push(Problem::new(location, format_args!("cannot read {path}: {error}"))),
                Ok(text) => {
                    self.folder = Path::new(path).parent().unwrap_or(Path::new("")).to_owned();
                    for (flag, given) in file::read(path, &text, kind, groups, &mut problems) {
                        self.values.entry(flag.name).or_insert(given);
                    }
                }
            }
        }
        (self, problems)
    }

    /// The flags of one entry of a file in `folder`.
    pub(super) fn from_entry(folder: PathBuf, values: BTreeMap<&'static str, FlagValue>) -> RawFlags {
        RawFlags { values, folder }
    }

    pub(super) fn get(&self, name: &str) -> Option<&FlagValue> {
        self.values.get(name)
    }

    /// Resolves a path in the value of a flag. In the configuration file it is relative to that file.
    pub(super) fn resolve_path(&self, name: &str, path: &str) -> PathBuf {
        match self.values.get(name).map(|given| &given.source) {
            // Special words, not paths.
            _ if matches!(path, "" | "-" | IN_CLUSTER) => PathBuf::from(path),
            Some(ValueSource::File { .. }) => self.folder.join(path),
            _ => PathBuf::from(path),
        }
    }

    /// Place and field of the flag for a [`Problem`]. For a flag that was not given, this is the command line.
    pub(super) fn problem_location(&self, name: &str) -> (String, String) {
        match self.values.get(name).map(|given| &given.source) {
            None | Some(ValueSource::CommandLine) if name == "v" => ("-v".to_owned(), String::new()),
            None | Some(ValueSource::CommandLine) => (format!("--{name}"), String::new()),
            Some(ValueSource::Environment) => {
                (format!("NARTHEX_{}", name.replace('-', "_").to_ascii_uppercase()), String::new())
            }
            Some(ValueSource::File { location, field }) => (location.clone(), field.clone()),
        }
    }
}

fn split_values(flag: &Flag, values: impl Iterator<Item = String>) -> Vec<String> {
    match flag.kind {
        FlagKind::List(_) => values.flat_map(|value| value::parse_list(&value)).collect(),
        _ => values.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static GROUP: FlagGroup = FlagGroup {
        heading: "Test",
        flags: &[
            Flag::new("config", FlagKind::File, "", ""),
            Flag::new("port", FlagKind::Count, "1", ""),
            Flag::new("names", FlagKind::List("NAME"), "", ""),
            Flag::new("pair", FlagKind::Repeated("A,B"), "", ""),
            Flag::new("open", FlagKind::Switch, "false", ""),
        ],
    };

    fn written(line: &[&str], environment: &[(&str, &str)]) -> (RawFlags, Problems) {
        let command = super::super::flag::augment(clap::Command::new("test"), &[&GROUP]);
        let matches = command.try_get_matches_from(std::iter::once(&"test").chain(line)).unwrap();
        let environment = |name: &str| {
            environment.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
        };
        RawFlags::from_command_line(&matches, &[&GROUP]).add_environment_and_file(&[&GROUP], &environment, "Test")
    }

    fn values(written: &RawFlags, name: &str) -> Vec<String> {
        written.get(name).map(|given| given.values.clone()).unwrap_or_default()
    }

    #[test]
    fn raw_flags_last_value_wins_and_lists_grow() {
        let (written, _) = written(&["--port=1", "--port", "2", "--names=a,b", "--names", "c", "--pair=a,b"], &[]);
        assert_eq!(values(&written, "port"), ["2"]);
        assert_eq!(values(&written, "names"), ["a", "b", "c"]);
        assert_eq!(values(&written, "pair"), ["a,b"]);
    }

    #[test]
    fn raw_flags_bare_switch_is_true() {
        assert_eq!(values(&written(&["--open"], &[]).0, "open"), ["true"]);
        assert_eq!(values(&written(&["--open=false"], &[]).0, "open"), ["false"]);
        assert_eq!(values(&written(&["--open", "--open=false"], &[]).0, "open"), ["false"]);
        assert_eq!(written(&[], &[]).0.get("open"), None);
    }

    #[test]
    fn raw_flags_precedence() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("narthex.yaml");
        let text = "apiVersion: narthex.dev/v1alpha1\nkind: Test\nport: 3\nnames: [x, y]\nopen: true\n";
        std::fs::write(&file, text).unwrap();
        let file = file.to_str().unwrap();

        let (all, problems) =
            written(&["--port=1"], &[("NARTHEX_CONFIG", file), ("NARTHEX_NAMES", "b,c"), ("NARTHEX_PORT", "2")]);
        assert_eq!(problems, Problems::default());
        assert_eq!(values(&all, "port"), ["1"]);
        assert_eq!(values(&all, "names"), ["b", "c"]);
        assert_eq!(values(&all, "open"), ["true"]);
        assert_eq!(all.problem_location("port").0, "--port");
        assert_eq!(all.problem_location("names").0, "NARTHEX_NAMES");
        assert_eq!(all.problem_location("open"), (format!("{file} line 5"), "open".to_owned()));
    }

    #[test]
    fn raw_flags_missing_config_file_names_flag() {
        let (_, problems) = written(&["--config=/nowhere/narthex.yaml"], &[]);
        assert_eq!(
            problems.to_string(),
            "--config: cannot read /nowhere/narthex.yaml: No such file or directory (os error 2)"
        );
    }
}
