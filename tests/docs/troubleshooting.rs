//! The page on troubleshooting: sections that findings and warnings refer to, and messages as the code has them.

use narthex::process::HelpTopic;

use crate::page::Page;
use crate::source::sources;

/// Parts of messages that the code puts together, and messages of other programs.
const COMPOSED: [&str; 5] = [
    "it contains a CA that is trusted for clients, too",
    "for front proxies, too",
    "the server is currently unable to handle the request (aggregated API",
    "cannot list resource",
    "the server doesn't have a resource type",
];

#[test]
fn help_links_lead_to_sections() {
    for topic in HelpTopic::ALL {
        let words: Vec<&str> = topic.link().split(' ').collect();
        let ["narthex", "help", page, section] = words[..] else { panic!("{words:?}") };
        let page = narthex::commands::help::page(page).expect("a topic");
        assert!(narthex::commands::help::section_of(page, section).is_some(), "{topic:?}: {}", topic.link());
    }
}

#[test]
fn troubleshooting_messages_are_those_of_the_code() {
    let page = Page::read("docs/operations/troubleshooting.md");
    let files = sources();
    let texts: Vec<&str> = files.iter().flat_map(|file| &file.literals).map(|literal| literal.value.as_str()).collect();
    let mut checked = 0;
    for (number, line) in page.prose() {
        // Every other part is between backquotes.
        for span in line.split('`').skip(1).step_by(2).filter(|span| is_message(span)) {
            for part in span.split(['…', '<', '>']).map(|part| part.trim_matches([' ', ':', ',', '(', ')', '"'])) {
                if !part.contains(' ') || COMPOSED.contains(&part) {
                    continue;
                }
                assert!(texts.iter().any(|text| text.contains(part)), "line {number}: no text has {part:?}");
                checked += 1;
            }
        }
    }
    assert!(checked > 30, "{checked} messages");
}

/// Whether a text in backquotes is a message, not a command, flag or annotation.
fn is_message(span: &str) -> bool {
    span.contains(' ') && !["--", "narthex ", "kubectl ", "narthex.dev/"].iter().any(|start| span.starts_with(start))
}
