//! The reference pages: regions of `docs/reference/` that are made from the code.
//!
//! A region stands between `<!-- generated: NAME -->` and `<!-- end of NAME -->`. `UPDATE_REFERENCE=1 cargo test --test
//! docs` rewrites all of them.

mod error_causes;
mod file_fields;
mod flags;
mod health_checks;
mod log_messages;
mod metrics;

use std::collections::BTreeMap;

use crate::page::{pages, repository};
use crate::source::sources;

#[test]
fn reference_pages_match_the_code() {
    let sources = sources();
    let mut regions: BTreeMap<String, String> = flags::regions();
    regions.extend(metrics::regions(&sources));
    regions.extend(error_causes::regions(&sources));
    regions.extend(health_checks::regions(&sources));
    regions.extend(log_messages::regions(&sources));
    let mut stale = Vec::new();
    let mut used = Vec::new();
    for page in pages() {
        let mut text = page.text.clone();
        for (name, content) in &regions {
            let (begin, end) = (format!("<!-- generated: {name} -->\n"), format!("<!-- end of {name} -->\n"));
            let Some((before, rest)) = text.split_once(&begin) else { continue };
            let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{}: {end:?} is missing", page.path));
            text = format!("{before}{begin}\n{content}\n{end}{after}");
            used.push(name);
        }
        if text == page.text {
            continue;
        }
        if std::env::var_os("UPDATE_REFERENCE").is_some() {
            std::fs::write(repository().join(&page.path), text).unwrap();
            continue;
        }
        let changed = text.lines().zip(page.text.lines()).find(|(new, old)| new != old).unwrap_or_default();
        stale.push(format!("{}\n  the code:  {}\n  the page:  {}", page.path, changed.0, changed.1));
    }
    used.sort_unstable();
    let all: Vec<_> = regions.keys().collect();
    assert_eq!(used, all, "left: regions in the pages; right: regions that are made. Each belongs in one page");
    assert!(
        stale.is_empty(),
        "these pages differ from the code; run `UPDATE_REFERENCE=1 cargo test --test docs` and review the diff:\n{}",
        stale.join("\n")
    );
}

/// A table; cells are Markdown already.
fn table(head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>());
    text.push_str(&format!("|{}\n", "---|".repeat(head.len())));
    for row in rows {
        assert_eq!(row.len(), head.len(), "{row:?}");
        text.push_str(&line(&row));
    }
    text
}

/// Plain text as Markdown in a cell.
fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '<' => out.push_str("&lt;"),
            '|' | '*' | '_' | '\\' | '[' | ']' | '`' => out.extend(['\\', letter]),
            '\n' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}

/// Code in a cell.
fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) }
}
