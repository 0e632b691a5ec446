//! `narthex man`: the manual pages, made from the definition of the command line.

use std::path::Path;
use std::process::ExitCode;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::cli::{ManCommand, command};
use super::{print, report_problems};
use crate::process::{Problem, Problems, replace_file};

const SECTION: &str = "1";

/// Prints one page, or writes all into a directory.
pub(super) fn run(command: &ManCommand) -> ExitCode {
    match &command.output_dir {
        Some(directory) => match write_pages(directory) {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => report_problems("man", &Problems(vec![problem])),
        },
        None => match pages().into_iter().find(|page| page.words == command.words) {
            Some(page) => print(page.text.as_bytes()),
            None => {
                let problem = Problem::new(command.words.join(" "), "no such command; see narthex --help");
                report_problems("man", &Problems(vec![problem]))
            }
        },
    }
}

fn write_pages(directory: &Path) -> Result<(), Problem> {
    std::fs::create_dir_all(directory).map_err(|error| Problem::new(directory.display(), error))?;
    for page in pages() {
        replace_file(&directory.join(format!("{}.{SECTION}", page_name(&page.words))), page.text, 0o644)?;
    }
    Ok(())
}

/// The manual page of one command.
struct ManualPage {
    /// Words behind `narthex`.
    words: Vec<String>,
    text: String,
}

/// The pages of all commands.
fn pages() -> Vec<ManualPage> {
    let mut root = command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    let mut left = vec![(Vec::new(), root)];
    while let Some((words, command)) = left.pop() {
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            left.push((Vec::from_iter(words.iter().cloned().chain([below.get_name().to_owned()])), below.clone()));
        }
        pages.push(ManualPage { text: render(&words, command), words });
    }
    pages
}

fn render(words: &[String], command: clap::Command) -> String {
    let name = page_name(words);
    let spoken = std::iter::once("narthex").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ");
    let has_commands = command.has_subcommands();
    let related = related_pages(words, &command);
    let flag =
        command.get_arguments().filter_map(clap::Arg::get_long).find(|flag| !matches!(*flag, "help" | "version"));
    let flag = flag.map(str::to_owned);
    // All options one after another are no synopsis.
    let positionals: String = command.get_positionals().map(|one| format!(" [{}]", value_name(one))).collect();
    let usage = format!("{spoken}{} [OPTIONS]{positionals}", if has_commands { " COMMAND" } else { "" });
    let page = Man::new(command.mut_args(list_values).override_usage(usage)).section(SECTION);
    // Without a date: it would differ from build to build.
    let mut text = format!(".TH \"{name}\" \"{SECTION}\" \"\" \"narthex {}\" \"Narthex\"\n", env!("CARGO_PKG_VERSION"))
        .into_bytes();
    // Writing to memory does not fail.
    let _ = page.render_name_section(&mut text);
    let _ = page.render_synopsis_section(&mut text);
    let _ = page.render_description_section(&mut text);
    if has_commands {
        let _ = page.render_subcommands_section(&mut text);
    }
    let _ = page.render_options_section(&mut text);
    let mut more = Roff::new();
    if let Some(flag) = flag {
        let variable = format!("NARTHEX_{}", flag.replace('-', "_").to_uppercase());
        more.control("SH", ["ENVIRONMENT"]).text([
            roman("Every flag is also read from the environment: "),
            bold(format!("--{flag}")),
            roman(" from "),
            bold(variable),
            roman(". The command line comes first."),
        ]);
    }
    more.control("SH", ["EXIT STATUS"]).text([roman(
        "0 on success, 1 for an invalid flag value or file or a failure, 2 for an unknown command or flag.",
    )]);
    if !related.is_empty() {
        more.control("SH", ["SEE ALSO"]);
        let mut line = Vec::new();
        for (number, page) in related.into_iter().enumerate() {
            line.extend([roman(if number > 0 { ", " } else { "" }), bold(page), roman(format!("({SECTION})"))]);
        }
        more.text(line);
    }
    let _ = more.to_writer(&mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Possible values in the help of an argument, where clap_mangen would make a list with warnings of mandoc.
fn list_values(argument: clap::Arg) -> clap::Arg {
    let values: Vec<String> = argument.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if values.is_empty() || !argument.get_action().takes_values() {
        return argument;
    }
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    argument.help(format!("{help}: {}", values.join(", "))).hide_possible_values(true)
}

/// Name of the page of the command with these words.
fn page_name(words: &[String]) -> String {
    std::iter::once("narthex").chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join("-")
}

fn value_name(argument: &clap::Arg) -> String {
    match argument.get_value_names() {
        Some(names) => names.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(" "),
        None => argument.get_id().as_str().to_uppercase(),
    }
}

/// The pages of the commands above and below.
fn related_pages(words: &[String], command: &clap::Command) -> Vec<String> {
    let above = (0..words.len()).map(|length| page_name(&words[..length]));
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    let below = below.map(|below| page_name(&[words, &[below.get_name().to_owned()]].concat()));
    above.chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_pages_of_all_commands_have_their_flags() {
        let pages = pages();
        let page = |words: &[&str]| &pages.iter().find(|page| page.words == words).unwrap().text;
        assert!(page(&[]).contains("\\fBnarthex\\-gateway\\fR(1)"), "{}", page(&[]));
        assert!(page(&["gateway"]).contains("\\-\\-secure\\-port"), "{}", page(&["gateway"]));
        assert!(page(&["pki", "issue"]).contains("\\-\\-dir"), "{}", page(&["pki", "issue"]));
        for page in &pages {
            assert!(page.text.contains(".SH NAME") && page.text.contains(".SH \"EXIT STATUS\""), "{}", page.text);
        }
    }
}
