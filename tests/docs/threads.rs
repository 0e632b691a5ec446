//! The page on the architecture has a row for each thread that the program starts, with the file that starts it.

use std::collections::BTreeSet;

use crate::page::{Page, code_words};
use crate::source::{SourceFile, sources};

const PAGE: &str = "docs/development/architecture.md";

/// Calls whose first argument is the name of a thread.
const NAMED: [&str; 3] = ["spawn_thread", "threads.spawn", "health::spawn"];

/// Files that start threads for their callers, which name them, or a thread that only waits for others.
const FORWARDING: [&str; 2] = ["src/commands/threads.rs", "src/commands/konnectivity/health.rs"];

#[test]
fn architecture_page_lists_each_thread() {
    let mut started = BTreeSet::new();
    let mut unnamed = Vec::new();
    for file in sources() {
        for call in spawning_calls(&file) {
            match thread_name(&file, call) {
                Some(name) => {
                    started.insert((name, file.path.clone()));
                }
                None if FORWARDING.contains(&&*file.path) => {}
                None => {
                    let arguments = file.text[call.0..call.1].lines().next().unwrap_or_default();
                    unnamed.push(format!("{}: {arguments}", file.path));
                }
            }
        }
    }
    assert!(unnamed.is_empty(), "the name of a thread is no literal:\n{}", unnamed.join("\n"));
    assert!(started.iter().any(|(name, _)| name == "worker-{number}"), "{started:?}");
    let listed = listed_threads();
    let without_row: Vec<_> = started.difference(&listed).collect();
    assert!(without_row.is_empty(), "{PAGE} has no row of these threads and files: {without_row:?}");
    let without_code: Vec<_> = listed.difference(&started).collect();
    assert!(without_code.is_empty(), "{PAGE} has rows of threads that no such file starts: {without_code:?}");
}

/// Calls that start a thread. Only in files that use `thread::Builder` is `.name(…)` one of them.
fn spawning_calls(file: &SourceFile) -> Vec<(usize, usize)> {
    let mut calls: Vec<_> = NAMED.iter().flat_map(|name| file.calls(name)).collect();
    if file.code.contains("thread::Builder") {
        let names = file.calls(".name").into_iter();
        calls.extend(names.filter(|call| !file.arguments(*call).is_empty()));
    }
    // It has no name.
    calls.extend(file.calls("thread::spawn"));
    calls
}

/// The name in the first argument, a literal or `&format!` of one.
fn thread_name(file: &SourceFile, call: (usize, usize)) -> Option<String> {
    let (start, end) = *file.arguments(call).first()?;
    let argument = file.code[start..end].trim_start();
    let is_literal = argument.strip_prefix("&format!(").unwrap_or(argument).starts_with('"');
    let literal = file.literals.iter().find(|literal| (start..end).contains(&literal.start))?;
    is_literal.then(|| literal.value.clone())
}

/// Thread and file of each row.
fn listed_threads() -> BTreeSet<(String, String)> {
    let mut listed = BTreeSet::new();
    for row in Page::read(PAGE).rows("Threads") {
        let (names, files) = (code_words(&row[0]), code_words(&row[1]));
        assert!(names.len() == 1 && !files.is_empty(), "{PAGE}: a row needs a thread and a file: {row:?}");
        for file in files {
            assert!(listed.insert((names[0].clone(), file)), "{PAGE}: twice: {row:?}");
        }
    }
    listed
}
