//! Runs the command blocks of a page, in order, in one shell, and compares the output with the blocks below them.
//!
//! `tests/interop` uses this file, too. How a page is marked:
//!
//! ```text
//! <!-- commands: test -->          run by `cargo test --test docs`: needs the built binary and a shell
//! <!-- commands: interop -->       run by `tests/interop/run`: needs kubectl or other peers
//! <!-- commands: FILE -->          run by the test in FILE, which knows the page
//! <!-- not run: REASON -->         before a block
//! <!-- fails -->                   before a block whose last command exits with an error
//! <!-- not output -->              before a text block that is not the output of the command block above
//! ```
//!
//! A block of `text` below a command block is its output: each of its lines occurs there, in this order. `…` stands for
//! anything; ages and times are compared by their form.

use std::fs::File;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a command block, or its output, may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// A code block of a page.
#[derive(Debug)]
pub(crate) struct Block {
    /// Its first line in the page.
    pub(crate) line: usize,
    pub(crate) language: String,
    /// The comment on the line above, such as `fails`.
    pub(crate) mark: String,
    pub(crate) text: String,
}

impl Block {
    /// Whether it is typed into a shell.
    pub(crate) fn is_command(&self) -> bool {
        matches!(&*self.language, "sh" | "console")
    }

    pub(crate) fn is_run(&self) -> bool {
        self.is_command() && !self.mark.starts_with("not run: ")
    }
}

/// The code blocks of a page.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut mark = String::new();
    let mut lines = page.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inner = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            let text = inner.fold(String::new(), |text, line| text + line + "\n");
            let (language, mark) = (language.to_owned(), std::mem::take(&mut mark));
            blocks.push(Block { line: number + 2, language, mark, text });
        } else if let Some(comment) = line.strip_prefix("<!-- ").and_then(|line| line.strip_suffix(" -->")) {
            mark = comment.to_owned();
        } else if !line.is_empty() {
            mark.clear();
        }
    }
    blocks
}

/// Where the commands of a page run.
pub(crate) struct PageEnvironment {
    /// An empty folder; the repository's samples are copied into it.
    pub(crate) directory: PathBuf,
    /// Programs by the name that pages use. A program is called through a script of that name.
    pub(crate) programs: Vec<(String, String)>,
    /// Replaced in the page and in the samples: ports and addresses.
    pub(crate) replacements: Vec<(String, String)>,
    /// The local port that `narthex gateway … &` listens on. The block after it waits for it, as a reader would.
    pub(crate) gateway_port: Option<u16>,
}

impl PageEnvironment {
    /// Runs `page`, the text of `path`. Panics at the first command that fails or prints something else.
    pub(crate) fn run(&self, path: &str, page: &str) {
        let mut shell = self.start_shell();
        let mut output = String::new();
        for block in blocks(page) {
            let text = self.replaced(&block.text);
            if block.is_run() {
                output = shell.run(path, &block, &text);
                let starts_gateway = |line: &str| line.starts_with("narthex gateway ") && line.ends_with('&');
                if let Some(port) = self.gateway_port.filter(|_| text.lines().any(starts_gateway)) {
                    wait_for_listener(port);
                }
            } else if block.language == "text" && block.mark != "not output" && shell.blocks > 0 {
                shell.expect(path, &block, &text, &output);
            }
        }
        assert!(shell.blocks > 0, "{path}: no command block was run");
    }

    fn start_shell(&self) -> PageShell {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["deploy", "examples"] {
            self.copy(&repository.join(folder), &self.directory.join(folder));
        }
        let state = self.directory.join(".page");
        let tools = state.join("bin");
        std::fs::create_dir_all(&tools).unwrap();
        for (name, script) in &self.programs {
            let file = tools.join(name);
            std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        }
        let transcript = state.join("transcript");
        let output = File::create(&transcript).unwrap();
        let mut child = Command::new("bash")
            .args(["--noprofile", "--norc"])
            .current_dir(&self.directory)
            .env_clear()
            .env("PATH", format!("{}:{}", tools.display(), std::env::var("PATH").unwrap_or_default()))
            .env("HOME", &self.directory)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .expect("bash, which runs the pages");
        let input = child.stdin.take().unwrap();
        PageShell { child, input, state, transcript, blocks: 0 }
    }

    /// Copies a folder of samples, with the replacements.
    fn copy(&self, from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let (source, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
            if source.is_dir() {
                self.copy(&source, &to.join(name));
            } else {
                let text = std::fs::read_to_string(&source).unwrap();
                std::fs::write(to.join(name), self.replaced(&text)).unwrap();
            }
        }
    }

    fn replaced(&self, text: &str) -> String {
        self.replacements.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
    }
}

/// The shell of one page; all that it started ends with it.
struct PageShell {
    child: Child,
    input: ChildStdin,
    state: PathBuf,
    transcript: PathBuf,
    blocks: usize,
}

impl PageShell {
    /// Runs one block, and returns what was printed meanwhile.
    fn run(&mut self, path: &str, block: &Block, text: &str) -> String {
        self.blocks += 1;
        let number = self.blocks.to_string();
        let place = format!("{path}:{}", block.line);
        let begin = self.printed().len();
        let script = self.state.join(format!("{number}.sh"));
        let done = self.state.join("done");
        std::fs::write(&script, text).unwrap();
        let (script, end) = (script.display(), done.display());
        let command = match &*block.mark {
            "fails" => format!("set +e; . '{script}' < /dev/null; failed=$?; set -e; test $failed -ne 0"),
            _ => format!("set -e; . '{script}' < /dev/null"),
        };
        writeln!(self.input, "{command}\necho {number} > '{end}'").unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            if std::fs::read_to_string(&done).is_ok_and(|text| text.trim() == number) {
                return self.printed()[begin..].to_owned();
            }
            let ended = self.child.try_wait().unwrap();
            if ended.is_some() || Instant::now() > deadline {
                let how = if ended.is_some() { "a command failed" } else { "it does not end" };
                let printed = self.printed();
                panic!("{place}: {how}\n--- typed\n{text}--- printed\n{}", &printed[begin..]);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until the last block has printed `expected`; `before` is what it had printed when it ended.
    fn expect(&self, path: &str, block: &Block, expected: &str, before: &str) {
        let begin = self.printed().rfind(before).unwrap_or(0);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let printed = self.printed()[begin..].to_owned();
            match first_missing(expected, &printed) {
                None => return,
                Some(line) if Instant::now() > deadline => {
                    panic!("{path}:{}: not printed: {line}\n--- printed\n{printed}", block.line)
                }
                Some(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.transcript).unwrap_or_default()).into_owned()
    }
}

impl Drop for PageShell {
    fn drop(&mut self) {
        // The whole group: what runs in the background, too.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.child.wait();
    }
}

/// Waits until a local port accepts connections. When it does not, the commands that need it say why.
fn wait_for_listener(port: u16) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first line of `expected` that is not in `printed` behind the lines before it.
pub(crate) fn first_missing<'e>(expected: &'e str, printed: &str) -> Option<&'e str> {
    let mut rest = printed.lines();
    expected
        .lines()
        .filter(|line| !line.trim().is_empty())
        .find(|line| !rest.any(|printed| line_matches(line, printed)))
}

/// Whether a printed line is as the page shows it. Columns may be wider or narrower.
pub(crate) fn line_matches(expected: &str, printed: &str) -> bool {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>().join(" ");
    let (expected, printed) = (words(expected), words(printed));
    let mut parts = expected.split('…');
    let Some(first) = parts.next() else { return false };
    let Some(mut at) = prefix_length(first, &printed) else { return false };
    let mut last_is_open = false;
    let rest: Vec<&str> = parts.collect();
    for (number, part) in rest.iter().enumerate() {
        last_is_open = part.is_empty();
        let is_last = number + 1 == rest.len();
        let starts = (at..=printed.len()).filter(|start| printed.is_char_boundary(*start));
        let found = starts.filter_map(|start| prefix_length(part, &printed[start..]).map(|length| start + length));
        // The last part is at the end.
        let end = found.into_iter().find(|end| !is_last || part.is_empty() || *end == printed.len());
        match end {
            Some(end) => at = end,
            None => return false,
        }
    }
    at == printed.len() || last_is_open
}

/// The length of the beginning of `printed` that is `expected`, where ages and times differ.
fn prefix_length(expected: &str, printed: &str) -> Option<usize> {
    let (mut at, mut rest) = (0, expected);
    while !rest.is_empty() {
        let word = |text: &str| text.find(' ').unwrap_or(text.len());
        let at_word = expected.len() == rest.len() || expected[..expected.len() - rest.len()].ends_with(' ');
        let (wanted, given) = (&rest[..word(rest)], &printed[at..][..word(&printed[at..])]);
        if at_word && is_time(wanted) && is_time(given) {
            rest = &rest[wanted.len()..];
            at += given.len();
            continue;
        }
        let letter = rest.chars().next()?;
        if !printed[at..].starts_with(letter) {
            return None;
        }
        rest = &rest[letter.len_utf8()..];
        at += letter.len_utf8();
    }
    Some(at)
}

/// `4s`, `2m7s`, `2026-11-22T20:14:01Z`.
fn is_time(word: &str) -> bool {
    let age = word.ends_with(['s', 'm', 'h', 'd'])
        && word.starts_with(|letter: char| letter.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_digit() || b"smhd".contains(&byte));
    let moment = word.len() == 20 && word.ends_with('Z') && word.as_bytes()[10] == b'T';
    age || moment
}
