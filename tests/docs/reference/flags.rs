//! The flags of every command, from the definitions that the command line is made of.

use std::collections::BTreeMap;

use clap::{Arg, Command};
use narthex::commands::cli;
use narthex::config::{
    CommandFlags, Flag, FlagGroup, FlagKind, GatewayCommand, ProxyCommand, QuickstartCommand, SidecarCommand,
    Socks5Command,
};

use super::{code, escaped, table};

pub(super) fn regions() -> BTreeMap<String, String> {
    let command = cli::command();
    let mut regions = BTreeMap::new();
    for below in command.get_subcommands() {
        match below.get_name() {
            "help" => {}
            "gateway" => long_running::<GatewayCommand>(below, &mut regions),
            "sidecar" => long_running::<SidecarCommand>(below, &mut regions),
            "proxy" => long_running::<ProxyCommand>(below, &mut regions),
            "socks5" => long_running::<Socks5Command>(below, &mut regions),
            "quickstart" => long_running::<QuickstartCommand>(below, &mut regions),
            "check" => check_takes_the_flags_of_the_command(below, &command),
            "kubeconfig" => {
                for kind in below.get_subcommands().filter(|kind| kind.get_name() != "help") {
                    regions.insert(format!("flags of narthex kubeconfig {}", kind.get_name()), arguments(kind));
                }
            }
            "pki" => {
                let own = |command: &Command| {
                    let commands = command.get_subcommands().filter(|kind| kind.get_name() != "help");
                    commands.cloned().collect::<Vec<_>>()
                };
                for kind in own(below) {
                    // `rotate` has a command for each key.
                    let keys =
                        own(&kind).into_iter().map(|key| (format!("{} {}", kind.get_name(), key.get_name()), key));
                    let mut keys: Vec<_> = keys.collect();
                    if keys.is_empty() {
                        keys.push((kind.get_name().to_owned(), kind));
                    }
                    for (name, command) in keys {
                        regions.insert(format!("flags of narthex pki {name}"), arguments(&command));
                    }
                }
                let log = below.get_arguments().filter(|argument| argument.get_help_heading() == Some("Log"));
                assert_eq!(log.count(), 3, "the flags of narthex pki itself");
            }
            name => drop(regions.insert(format!("flags of narthex {name}"), arguments(below))),
        }
    }
    regions
}

/// The tables of a command whose flags are also read from the environment and, with a `KIND`, from a file.
fn long_running<C: CommandFlags>(command: &Command, regions: &mut BTreeMap<String, String>) {
    let described: Vec<&str> = C::FLAGS.iter().flat_map(|group| group.flags).map(|flag| flag.name).collect();
    assert_eq!(names(command), described, "the flags of {}", command.get_name());
    // The gateway and the sidecar have a page of their own; in the page of the others a fragment names the command.
    let name = command.get_name();
    let own_page = matches!(name, "gateway" | "sidecar");
    let (level, prefix) = if own_page { ("##", "flag-".to_owned()) } else { ("###", format!("{name}-")) };
    let tables = C::FLAGS
        .iter()
        .map(|group| format!("{level} {}\n\n{}", group.heading, group_table(group, &prefix, !C::KIND.is_empty())));
    regions.insert(format!("flags of narthex {name}"), tables.collect::<Vec<_>>().join("\n"));
}

fn group_table(group: &FlagGroup, prefix: &str, in_file: bool) -> String {
    let rows = group.flags.iter().map(|flag| {
        assert!(!flag.help.is_empty(), "--{} has no help text", flag.name);
        let letter = flag.letter.map(|letter| format!("{}, ", code(&format!("-{letter}")))).unwrap_or_default();
        // `-v` has no long form of more than a letter.
        let name = if flag.name.len() == 1 { format!("-{}", flag.name) } else { format!("--{}", flag.name) };
        let letter = if flag.name.len() == 1 { String::new() } else { letter };
        let variable = code(&flag.environment_variable());
        let mut first = format!("<a id=\"{prefix}{}\"></a>{letter}{}<br>{variable}", flag.name, code(&name));
        if in_file && flag.name != "config" {
            first.push_str(&format!("<br>{}", code(&flag.field_name())));
        }
        vec![first, value(flag), code(flag.default), escaped(flag.help)]
    });
    let first = if in_file { "Flag, variable, field" } else { "Flag, variable" };
    table(&[first, "Value", "Default", "Description"], rows)
}

fn value(flag: &Flag) -> String {
    match flag.kind {
        FlagKind::Text(word) => escaped(word),
        FlagKind::File => "FILE".to_owned(),
        FlagKind::Directory => "DIR".to_owned(),
        FlagKind::Switch => "`true` or `false`".to_owned(),
        FlagKind::Count => "whole number".to_owned(),
        FlagKind::Fraction => "number".to_owned(),
        FlagKind::Duration => "duration, such as `1m30s`".to_owned(),
        FlagKind::Choice(words) => words.iter().map(|word| code(word)).collect::<Vec<_>>().join(", "),
        FlagKind::List(word) => format!("{}, …", escaped(word)),
        FlagKind::Repeated(word) => format!("{}, repeatable", escaped(word)),
    }
}

/// The table of a command that clap reads alone.
fn arguments(command: &Command) -> String {
    let own =
        command.get_arguments().filter(|argument| is_shown(argument) && argument.get_help_heading() != Some("Log"));
    let rows = own.map(|argument| {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(!help.is_empty(), "{} of {} has no help text", argument.get_id(), command.get_name());
        let values: Vec<String> = match &argument.get_possible_values()[..] {
            [] => argument.get_value_names().unwrap_or_default().iter().map(|name| escaped(name.as_str())).collect(),
            values if argument.get_action().takes_values() => {
                values.iter().map(|value| code(value.get_name())).collect()
            }
            _ => Vec::new(),
        };
        let name = match (argument.get_long(), argument.get_short()) {
            (Some(long), Some(short)) => format!("`-{short}`, `--{long}`"),
            (Some(long), None) => format!("`--{long}`"),
            _ => format!("`<{}>`", argument.get_id().as_str().to_uppercase()),
        };
        let variable = argument.get_env().map(|name| format!("<br>`{}`", name.display())).unwrap_or_default();
        let default: Vec<String> =
            argument.get_default_values().iter().map(|value| code(&value.to_string_lossy())).collect();
        let default = if argument.get_action().takes_values() { default.join(", ") } else { String::new() };
        vec![name + &variable, values.join(", "), default, escaped(&help)]
    });
    table(&["Flag, variable", "Value", "Default", "Description"], rows)
}

fn is_shown(argument: &Arg) -> bool {
    !argument.is_hide_set() && !matches!(argument.get_id().as_str(), "help" | "version")
}

fn names(command: &Command) -> Vec<&str> {
    command.get_arguments().filter(|argument| is_shown(argument)).map(|argument| argument.get_id().as_str()).collect()
}

fn check_takes_the_flags_of_the_command(check: &Command, all: &Command) {
    for checked in check.get_subcommands().filter(|checked| checked.get_name() != "help") {
        let name = if checked.get_name() == "kube-rbac-proxy" { "sidecar" } else { checked.get_name() };
        let command = all.find_subcommand(name).expect("a command is checked that exists");
        assert_eq!(names(checked), names(command), "check {}", checked.get_name());
    }
}
