//! Description of a flag: name, kind of value, default and help text.
//!
//! The command line, the environment, the configuration file, the help text and the completions are
//! all derived from these descriptions.

use clap::builder::{Arg, ValueHint};
use clap::{ArgAction, Command};

/// A flag of a command.
#[derive(Debug)]
pub struct Flag {
    /// The name without leading dashes.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: FlagKind,
    /// The default value, in the form of the command line; empty for none.
    pub default: &'static str,
    /// One or two sentences for the help text.
    pub help: &'static str,
    /// One-letter short form, if any.
    pub letter: Option<char>,
}

/// Flags under one heading of the help text.
#[derive(Debug)]
pub struct FlagGroup {
    /// The heading.
    pub heading: &'static str,
    /// The flags, in the order they are shown.
    pub flags: &'static [Flag],
}

/// The kind of a flag's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlagKind {
    /// Any text; the word is its placeholder in the help.
    Text(&'static str),
    /// Path of a file that is read.
    File,
    /// Path of a directory.
    Directory,
    /// `true` or `false`; the bare flag means `true`.
    Switch,
    /// A whole number.
    Count,
    /// A number with a fraction.
    Fraction,
    /// A duration as Go writes it: `90s`, `1m30s`, `1h`.
    Duration,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Several values, separated by commas or by giving the flag again.
    List(&'static str),
    /// Several values, each by giving the flag again; commas belong to the value.
    Repeated(&'static str),
}

impl Flag {
    /// A flag without a short form.
    pub const fn new(name: &'static str, kind: FlagKind, default: &'static str, help: &'static str) -> Flag {
        Flag { name, kind, default, help, letter: None }
    }

    /// Adds a one-letter short form.
    pub const fn with_letter(self, letter: char) -> Flag {
        Flag { letter: Some(letter), ..self }
    }

    /// Name of the flag's field in the configuration file: `secure-port` is `securePort`.
    pub fn field_name(&self) -> String {
        let mut field = String::with_capacity(self.name.len());
        let mut after_dash = false;
        for letter in self.name.chars() {
            match letter {
                '-' => after_dash = true,
                letter if after_dash => {
                    field.push(letter.to_ascii_uppercase());
                    after_dash = false;
                }
                letter => field.push(letter),
            }
        }
        field
    }

    /// Name of the flag's environment variable: `secure-port` is `NARTHEX_SECURE_PORT`.
    pub fn environment_variable(&self) -> String {
        format!("NARTHEX_{}", self.name.replace('-', "_").to_ascii_uppercase())
    }

    fn to_arg(&self, heading: &'static str) -> Arg {
        let mut help = self.help.to_owned();
        if !self.default.is_empty() && self.kind != FlagKind::Switch {
            help.push_str(&format!(" (default {})", self.default));
        } else if self.default == "true" {
            help.push_str(" (default true)");
        }
        let argument = Arg::new(self.name).long(self.name).help(help).help_heading(heading);
        let argument = if let Some(letter) = self.letter { argument.short(letter) } else { argument };
        match self.kind {
            FlagKind::Text(word) => single_value(argument, self.name).value_name(word),
            FlagKind::File => single_value(argument, self.name).value_name("FILE").value_hint(ValueHint::FilePath),
            FlagKind::Directory => single_value(argument, self.name).value_name("DIR").value_hint(ValueHint::DirPath),
            FlagKind::Switch => single_value(argument, self.name)
                .value_name("true|false")
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true"),
            FlagKind::Count | FlagKind::Fraction => {
                single_value(argument, self.name).value_name("NUMBER").allow_negative_numbers(true)
            }
            FlagKind::Duration => single_value(argument, self.name).value_name("DURATION").allow_hyphen_values(true),
            FlagKind::Choice(words) => single_value(argument, self.name).value_name(words.join("|")),
            FlagKind::List(word) => argument.action(ArgAction::Append).value_name(format!("{word},…")),
            FlagKind::Repeated(word) => argument.action(ArgAction::Append).value_name(word),
        }
    }
}

/// A flag with one value; given again, the last one counts, as with kubectl.
fn single_value(argument: Arg, name: &'static str) -> Arg {
    argument.action(ArgAction::Set).overrides_with(name)
}

/// All flags of `groups`.
pub(super) fn flags(groups: &[&'static FlagGroup]) -> impl Iterator<Item = &'static Flag> {
    groups.iter().flat_map(|group| group.flags)
}

/// Adds the flags of `groups` to a command.
pub(super) fn augment(mut command: Command, groups: &[&'static FlagGroup]) -> Command {
    for group in groups {
        for flag in group.flags {
            command = command.arg(flag.to_arg(group.heading));
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flag_field_and_variable_names() {
        let flag = Flag::new("http2-max-streams-per-connection", FlagKind::Count, "0", "");
        assert_eq!(flag.field_name(), "http2MaxStreamsPerConnection");
        assert_eq!(flag.environment_variable(), "NARTHEX_HTTP2_MAX_STREAMS_PER_CONNECTION");
    }
}
