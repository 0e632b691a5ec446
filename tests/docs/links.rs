//! Links lead somewhere, and each page is in the table of contents.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use crate::page::{Page, pages, repository};

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let pages = pages();
    let anchors: BTreeMap<&str, Vec<String>> = pages.iter().map(|page| (page.path.as_str(), page.anchors())).collect();
    let mut wrong = Vec::new();
    let mut followed = 0;
    for page in &pages {
        for (line, target) in links(page) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            followed += 1;
            let (path, fragment) = target.split_once('#').unwrap_or((&target, ""));
            let path = if path.is_empty() { page.path.clone() } else { resolve(&page.path, path) };
            let place = format!("{}:{line}", page.path);
            if !repository().join(&path).exists() {
                wrong.push(format!("{place}: {path} does not exist"));
            } else if page.path.starts_with("docs/") && !path.starts_with("docs/") {
                wrong.push(format!("{place}: {path} is outside the book; write it as code, not as a link"));
            } else if !fragment.is_empty() && !anchors.get(&*path).is_some_and(|all| all.iter().any(|a| a == fragment))
            {
                wrong.push(format!("{place}: {path} has no heading or anchor #{fragment}"));
            }
        }
    }
    assert!(followed > 100, "{followed} links");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn each_page_is_in_the_table_of_contents_once() {
    let summary = Page::read("docs/SUMMARY.md");
    let listed: Vec<String> =
        links(&summary).into_iter().map(|(_, target)| resolve("docs/SUMMARY.md", &target)).collect();
    let unique: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(unique.len(), listed.len(), "a page is listed twice");
    let present: BTreeSet<_> = pages()
        .into_iter()
        .map(|page| page.path)
        .filter(|path| path.starts_with("docs/") && path != "docs/SUMMARY.md")
        .collect();
    assert_eq!(unique, present, "left: docs/SUMMARY.md; right: the files");
}

#[test]
fn anchors_are_unique_on_their_page() {
    for page in pages() {
        let anchors = page.anchors();
        let unique: BTreeSet<_> = anchors.iter().collect();
        let twice: Vec<_> =
            unique.iter().filter(|one| anchors.iter().filter(|other| other == *one).count() > 1).collect();
        assert!(twice.is_empty(), "{}: {twice:?}", page.path);
    }
}

/// The README is an overview.
#[test]
fn readme_has_at_most_150_lines() {
    assert!(Page::read("README.md").text.lines().count() <= 150);
}

/// The targets of `[text](target)` with their lines.
fn links(page: &Page) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in page.prose() {
        // Not within code.
        let line: String = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        for rest in line.split("](").skip(1) {
            found.push((number, rest.split(')').next().unwrap_or_default().to_owned()));
        }
    }
    found
}

/// The path in the repository of a link in the page `from`.
fn resolve(from: &str, target: &str) -> String {
    let mut path = PathBuf::new();
    for part in Path::new(from).parent().unwrap().join(target).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path.display().to_string()
}
