//! `narthex help`: the help of a command, or a page of the documents as plain text.

use std::io::{IsTerminal as _, Write as _};
use std::process::{Command as Program, ExitCode, Stdio};

use super::{print, report_problems};
use crate::process::Problem;

/// Print the help of a command, or a page of the documents
#[derive(Debug, clap::Args)]
#[command(after_help = help_topics())]
pub struct HelpCommand {
    /// Words of a command, or a topic and perhaps one of its sections
    #[arg(value_name = "WORD")]
    pub words: Vec<String>,
}

/// Pages that are part of the program: whoever has the package alone can read them.
const PAGES: [(&str, &str); 10] = [
    ("authentication", include_str!("../../docs/how-to/authentication.md")),
    ("authorization", include_str!("../../docs/how-to/authorization.md")),
    ("certificates", include_str!("../../docs/how-to/certificates.md")),
    ("error-causes", include_str!("../../docs/reference/error-causes.md")),
    ("konnectivity", include_str!("../../docs/how-to/konnectivity.md")),
    ("log-messages", include_str!("../../docs/reference/log-messages.md")),
    ("runbook", include_str!("../../docs/operations/runbook.md")),
    ("store-backup", include_str!("../../docs/how-to/store-backup.md")),
    ("store-file", include_str!("../../docs/how-to/store.md")),
    ("troubleshooting", include_str!("../../docs/operations/troubleshooting.md")),
];

fn help_topics() -> String {
    format!("Topics: {}", PAGES.map(|(topic, _)| topic).join(", "))
}

/// Prints what the words name; `root` is the whole command line.
pub(super) fn run(command: &HelpCommand, root: clap::Command) -> ExitCode {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    if let Some(text) = command_help(root, &words) {
        return show(&text);
    }
    let found = match words.as_slice() {
        [topic] => page(topic),
        [topic, section] => page(topic).and_then(|page| section_of(page, section)),
        _ => None,
    };
    match found {
        Some(page) => show(&plain_text(page)),
        None => {
            let text = format!("no such command or topic; see narthex --help. {}", help_topics());
            report_problems("help", &Problem::new(words.join(" "), text).into())
        }
    }
}

/// The page of a topic, as Markdown.
pub fn page(topic: &str) -> Option<&'static str> {
    PAGES.iter().find(|(name, _)| *name == topic).map(|(_, page)| *page)
}

/// The help of the command with these words.
fn command_help(mut root: clap::Command, words: &[&str]) -> Option<String> {
    root.build();
    let mut found = &mut root;
    for word in words {
        found = found.find_subcommand_mut(word)?;
    }
    Some(found.render_long_help().to_string())
}

/// The section of a page under a heading, by the heading's name in links.
pub fn section_of<'p>(page: &'p str, section: &str) -> Option<&'p str> {
    let level = |line: &str| line.len() - line.trim_start_matches('#').len();
    let (mut start, mut offset, mut is_code) = (None, 0, false);
    for line in page.split_inclusive('\n') {
        is_code ^= line.starts_with("```");
        // A comment of a shell is no heading.
        let depth = if is_code { 0 } else { level(line) };
        match start {
            Some((from, above)) if depth > 0 && depth <= above => return page.get(from..offset),
            None if depth > 0 && anchor(line) == section => start = Some((offset, depth)),
            _ => {}
        }
        offset += line.len();
    }
    start.and_then(|(from, _)| page.get(from..))
}

/// The name of a heading in links.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Markdown for a terminal: links are their texts, and marks for the tests of the documents are left out.
fn plain_text(page: &str) -> String {
    let mut text = String::new();
    let mut is_code = false;
    for line in page.lines() {
        if line.starts_with("```") {
            is_code = !is_code;
            continue;
        }
        let is_separator = line.starts_with('|') && line.chars().all(|c| "|-: ".contains(c));
        if !is_code && (line.starts_with("<!--") || is_separator) {
            continue;
        }
        match is_code {
            true => text.push_str(&format!("    {line}")),
            false => push_without_links(&mut text, line),
        }
        text.push('\n');
    }
    text
}

/// Appends a line with each `[text](target)` as `text`.
fn push_without_links(text: &mut String, line: &str) {
    let mut rest = line;
    while let Some((before, link)) = rest.split_once('[') {
        let parts = link.split_once("](").and_then(|(shown, target)| Some((shown, target.split_once(')')?.1)));
        text.push_str(before);
        match parts {
            Some((shown, after)) if !shown.contains('[') => {
                text.push_str(shown);
                rest = after;
            }
            _ => {
                text.push('[');
                rest = link;
            }
        }
    }
    text.push_str(rest);
}

/// Prints a text; on a terminal by the pager, as `git` does.
fn show(text: &str) -> ExitCode {
    if std::io::stdout().is_terminal() {
        let pager = std::env::var("PAGER").ok().filter(|pager| !pager.trim().is_empty());
        let mut words = pager.as_deref().unwrap_or("less").split_whitespace();
        let started = words.next().and_then(|program| {
            let mut program = Program::new(program);
            // Ends by itself when the text fits on the screen.
            program.args(words).env("LESS", "FRX").stdin(Stdio::piped()).spawn().ok()
        });
        if let Some(mut pager) = started {
            // A pager that is left early reads no further.
            let _ = pager.stdin.take().map(|mut input| input.write_all(text.as_bytes()));
            return if pager.wait().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
        }
    }
    print(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::super::cli::command;
    use super::*;

    #[test]
    fn help_page_is_plain_text_without_links_and_marks() {
        let page = "# Title\n\n<!-- commands: test -->\n\nSee [the page](../a.md#b) and `a[0]`.\n\n| A | B |\n|---|---|\n\
                    | 1 | [x](y) |\n\n```sh\nls [a](b)\n```\n";
        let text = "# Title\n\n\nSee the page and `a[0]`.\n\n| A | B |\n| 1 | x |\n\n    ls [a](b)\n";
        assert_eq!(plain_text(page), text);
    }

    #[test]
    fn help_section_ends_at_next_heading_of_its_level() {
        let page = "# T\n## Group split\none\n### Below\ntwo\n```\n# no\n```\n## Next: a `b`\nthree\n";
        assert_eq!(section_of(page, "group-split"), Some("## Group split\none\n### Below\ntwo\n```\n# no\n```\n"));
        assert_eq!(section_of(page, "next-a-b"), Some("## Next: a `b`\nthree\n"));
        assert_eq!(section_of(page, "none"), None);
    }

    #[test]
    fn help_of_commands_and_topics() {
        assert!(command_help(command(), &["pki", "issue"]).unwrap().contains("narthex pki issue"));
        assert!(command_help(command(), &["no"]).is_none());
        let mut topics = PAGES.map(|(topic, _)| topic);
        topics.sort_unstable();
        assert_eq!(topics, PAGES.map(|(topic, _)| topic));
        // A command comes first.
        assert!(topics.iter().all(|topic| command_help(command(), &[topic]).is_none()), "{topics:?}");
    }
}
