//! Each command block is run by a test, or says why not.

use std::path::Path;

use crate::page::{Page, pages, repository};
use crate::page_runner::{PageEnvironment, blocks, first_missing, line_matches};

/// What runs the commands of a page, from `<!-- commands: … -->`.
fn runner(page: &str) -> Option<&str> {
    page.lines().find_map(|line| line.strip_prefix("<!-- commands: ")?.strip_suffix(" -->"))
}

#[test]
fn command_blocks_are_run_or_say_why_not() {
    let mut wrong = Vec::new();
    let (mut run, mut left) = (0, 0);
    for page in pages() {
        let runner = runner(&page.text);
        for block in blocks(&page.text) {
            let place = format!("{}:{}", page.path, block.line);
            match &*block.language {
                "sh" | "console" => {}
                "text" | "yaml" | "diff" | "json" | "mermaid" => continue,
                other => {
                    wrong.push(format!("{place}: a block of {other:?}; commands are sh, everything else is text"));
                    continue;
                }
            }
            if !block.is_run() {
                left += 1;
                assert!(block.mark.len() > "not run: ".len() + 5, "{place}: {} is no reason", block.mark);
                continue;
            }
            run += 1;
            match runner {
                Some("test") => {}
                Some(file) => {
                    let file = if file == "interop" { "tests/interop/scenarios/pages.rs" } else { file };
                    let test = std::fs::read_to_string(repository().join(file)).unwrap_or_default();
                    if !test.contains(&page.path) {
                        wrong.push(format!("{place}: {file} does not run this page"));
                    }
                }
                None => wrong.push(format!(
                    "{place}: no test runs it; put `<!-- commands: test -->` or `<!-- commands: interop -->` below the \
                     page's heading, or `<!-- not run: REASON -->` before the block"
                )),
            }
        }
    }
    println!("{run} command blocks are run, {left} are not");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert!(run > 3 * left, "{run} command blocks are run, {left} are not: too many are left out");
}

#[test]
fn command_blocks_that_need_no_peers_work_as_printed() {
    for page in pages().iter().filter(|page| runner(&page.text) == Some("test")) {
        run(page);
    }
}

fn run(page: &Page) {
    let directory = tempfile::Builder::new().prefix("page-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_narthex")).display();
    let environment = PageEnvironment {
        directory: directory.path().to_owned(),
        programs: vec![("narthex".to_owned(), format!("exec '{program}' \"$@\""))],
        replacements: Vec::new(),
        gateway_port: None,
    };
    environment.run(&page.path, &page.text);
}

#[test]
fn output_lines_compared_with_wildcards_and_times() {
    for (expected, printed, same) in [
        ("NAME   AGE", "NAME     AGE", true),
        ("hello  4s", "hello    2m10s", true),
        ("hello  4s", "hello    later", false),
        ("one    2026-11-22T20:14:01Z", "one   2027-01-01T00:00:00Z", true),
        ("key SHA256=…", "key SHA256=abc def", true),
        ("a … d", "a b c d", true),
        ("a … d", "a b c d e", false),
        ("gateway: no mistakes found", "gateway: no mistakes found!", false),
    ] {
        assert_eq!(line_matches(expected, printed), same, "{expected} | {printed}");
    }
    assert_eq!(first_missing("a\n\nc\n", "a\nb\nc\n"), None);
    assert_eq!(first_missing("c\na\n", "a\nb\nc\n"), Some("a"));
}

#[test]
fn blocks_have_marks_and_lines() {
    let page = "x\n\n<!-- not run: why -->\n```sh\na\n```\n\n```text\nb\n```\n";
    let blocks = blocks(page);
    assert_eq!((blocks[0].line, &*blocks[0].mark, blocks[0].is_run()), (5, "not run: why", false));
    assert_eq!((&*blocks[1].language, &*blocks[1].text, blocks[1].is_command()), ("text", "b\n", false));
}
