//! The pages of `docs/` and the repository's own Markdown files.

use std::path::{Path, PathBuf};

/// The folder of the repository.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A Markdown file.
pub(crate) struct Page {
    /// Its path in the repository, such as `docs/glossary.md`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn read(path: &str) -> Page {
        let text = std::fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Page { path: path.to_owned(), text }
    }

    /// The lines outside code blocks, with their numbers.
    pub(crate) fn prose(&self) -> Vec<(usize, &str)> {
        let mut prose = Vec::new();
        let mut in_block = false;
        for (number, line) in self.text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                prose.push((number + 1, line));
            }
        }
        prose
    }

    /// The fragments that links may name: headings as mdBook and GitHub name them, and `<a id="…">`.
    pub(crate) fn anchors(&self) -> Vec<String> {
        let (mut anchors, mut headings) = (Vec::new(), Vec::new());
        for (_, line) in self.prose() {
            if let Some(heading) = line.strip_prefix('#') {
                let name = fragment(heading.trim_start_matches('#'));
                let before = headings.iter().filter(|one| **one == name).count();
                anchors.push(if before == 0 { name.clone() } else { format!("{name}-{before}") });
                headings.push(name);
            }
            let ids = line.split("<a id=\"").skip(1).filter_map(|rest| rest.split('"').next());
            anchors.extend(ids.map(str::to_owned));
        }
        anchors
    }

    /// The rows of the tables below the heading `## heading` (of any level), without head and rule lines, as cells.
    pub(crate) fn rows(&self, heading: &str) -> Vec<Vec<String>> {
        let lines = self.prose();
        let level = |line: &str| line.bytes().take_while(|byte| *byte == b'#').count();
        let begin = lines
            .iter()
            .position(|(_, line)| level(line) > 0 && line.trim_start_matches('#').trim() == heading)
            .unwrap_or_else(|| panic!("{}: no heading {heading:?}", self.path));
        let own = level(lines[begin].1);
        let section = lines[begin + 1..].iter().take_while(|(_, line)| level(line) == 0 || level(line) > own);
        table_rows(section.map(|(_, line)| *line))
    }
}

/// The rows of all tables in `lines`, without heads.
pub(crate) fn table_rows<'l>(lines: impl Iterator<Item = &'l str>) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut in_body = false;
    for line in lines {
        if !line.starts_with('|') {
            in_body = false;
        } else if line.chars().all(|letter| matches!(letter, '|' | '-' | ' ' | ':')) {
            in_body = true;
        } else if in_body {
            rows.push(cells(line));
        }
    }
    rows
}

/// `| a | b \| c |` is `a` and `b \| c`.
fn cells(line: &str) -> Vec<String> {
    let masked = line.trim().replace("\\|", "\u{0}");
    let inner = masked.trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().replace('\u{0}', "\\|")).collect()
}

/// The words in backticks.
pub(crate) fn code_words(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The fragment of a heading: `What it "is"` is `what-it-is`.
pub(crate) fn fragment(heading: &str) -> String {
    let mut name = String::new();
    // A link's text counts, its target does not.
    let mut rest = heading.trim();
    let mut plain = String::new();
    while let Some((before, after)) = rest.split_once("](") {
        plain.push_str(before);
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    plain.push_str(rest);
    for letter in plain.to_lowercase().chars() {
        match letter {
            ' ' => name.push('-'),
            letter if letter.is_alphanumeric() || letter == '-' || letter == '_' => name.push(letter),
            _ => {}
        }
    }
    name
}

/// All pages of the book, and the Markdown files at the top of the repository.
pub(crate) fn pages() -> Vec<Page> {
    let mut paths = Vec::new();
    collect(&repository().join("docs"), &mut paths);
    let mut names: Vec<String> = paths
        .iter()
        .map(|path| path.strip_prefix(repository()).unwrap().display().to_string())
        .chain(["README.md".to_owned(), "CONTRIBUTING.md".to_owned()])
        .collect();
    names.sort_unstable();
    assert!(names.len() > 40, "{names:?}");
    names.iter().map(|name| Page::read(name)).collect()
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.push(path);
        }
    }
}

#[test]
fn heading_fragments_as_mdbook_makes_them() {
    for (heading, expected) in [
        (" Order of sources", "order-of-sources"),
        ("`kubectl get` shows another", "kubectl-get-shows-another"),
        (" A [link](to.md) in it", "a-link-in-it"),
        (" What, if: not?", "what-if-not"),
    ] {
        assert_eq!(fragment(heading), expected);
    }
}
