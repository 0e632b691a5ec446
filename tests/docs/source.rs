//! Reads the Rust sources: text literals, calls of macros, module paths.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::page::repository;

/// A source file without its tests.
pub(crate) struct SourceFile {
    /// Its path in the repository.
    pub(crate) path: String,
    pub(crate) text: String,
    /// The same bytes with comments and the insides of text literals blanked.
    pub(crate) code: String,
    pub(crate) literals: Vec<Literal>,
}

/// A text literal.
#[derive(Clone, Debug)]
pub(crate) struct Literal {
    /// Where its first quote is.
    pub(crate) start: usize,
    pub(crate) value: String,
}

/// The production files of all crates.
pub(crate) fn sources() -> Vec<SourceFile> {
    let mut paths = Vec::new();
    collect(&repository().join("src"), &mut paths);
    for entry in std::fs::read_dir(repository().join("crates")).unwrap() {
        collect(&entry.unwrap().path().join("src"), &mut paths);
    }
    let mut tests = BTreeSet::new();
    for path in &paths {
        let text = std::fs::read_to_string(path).unwrap();
        let folder = match path.file_stem().unwrap().to_str() {
            Some("mod" | "lib" | "main") => path.parent().unwrap().to_owned(),
            _ => path.with_extension(""),
        };
        for rest in text.split("#[cfg(test)]\n").skip(1) {
            let line = rest.lines().next().unwrap_or_default().trim();
            if let Some(name) = line.strip_suffix(';').and_then(|line| line.rsplit("mod ").next()) {
                tests.extend([folder.join(format!("{name}.rs")), folder.join(name)]);
            }
        }
    }
    paths.retain(|path| !path.ancestors().any(|part| tests.contains(part)));
    paths.sort_unstable();
    assert!(paths.len() > 300, "{} files", paths.len());
    paths.iter().map(|path| SourceFile::read(path)).collect()
}

impl SourceFile {
    fn read(path: &Path) -> SourceFile {
        let text = std::fs::read_to_string(path).unwrap();
        let path = path.strip_prefix(repository()).unwrap().display().to_string();
        // Tests are at the end of a file.
        let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
        SourceFile::parse(path, &text[..end])
    }

    fn parse(path: String, text: &str) -> SourceFile {
        let (code, literals) = blank(text);
        SourceFile { path, text: text.to_owned(), code, literals }
    }

    /// The module at the top, as the target of a log line of the root package begins: `narthex::tls`.
    pub(crate) fn top_module(&self) -> String {
        let name = self.path.trim_start_matches("src/").split('/').next().unwrap_or_default();
        format!("narthex::{}", name.trim_end_matches(".rs"))
    }

    /// The arguments of each call `name(…)`, which may be a macro: `start..end` of the text in the parentheses.
    pub(crate) fn calls(&self, name: &str) -> Vec<(usize, usize)> {
        let open = format!("{name}(");
        self.code.match_indices(&open).map(|(at, _)| (at + open.len(), self.closing(at + open.len()))).collect()
    }

    /// Splits the arguments in `start..end` at their commas.
    pub(crate) fn arguments(&self, (start, end): (usize, usize)) -> Vec<(usize, usize)> {
        let mut parts = Vec::new();
        let (mut level, mut begin) = (0, start);
        for (at, byte) in self.code.bytes().enumerate().take(end).skip(start) {
            match byte {
                b'(' | b'[' | b'{' => level += 1,
                b')' | b']' | b'}' => level -= 1,
                b',' if level == 0 => {
                    parts.push((begin, at));
                    begin = at + 1;
                }
                _ => {}
            }
        }
        parts.push((begin, end));
        parts.retain(|(start, end)| !self.text[*start..*end].trim().is_empty());
        parts
    }

    /// The literal that is all of the text in `start..end`.
    pub(crate) fn literal(&self, (start, end): (usize, usize)) -> Option<&Literal> {
        let text = &self.code[start..end];
        let at = start + (text.len() - text.trim_start().len());
        let inner = text.trim();
        let is_literal = inner.starts_with('"') && inner.ends_with('"') && inner.matches('"').count() == 2;
        self.literals.iter().find(|literal| is_literal && literal.start == at)
    }

    /// The value of `const NAME: &str = "…"`.
    pub(crate) fn constant(&self, name: &str) -> Option<&str> {
        let at = self.code.find(&format!("const {name}: "))?;
        let value = self.literals.iter().find(|literal| literal.start > at)?;
        (!self.code[at..value.start].contains(';')).then_some(value.value.as_str())
    }

    fn closing(&self, start: usize) -> usize {
        let mut level = 1;
        for (at, byte) in self.code.bytes().enumerate().skip(start) {
            match byte {
                b'(' => level += 1,
                b')' => level -= 1,
                _ => {}
            }
            if level == 0 {
                return at;
            }
        }
        self.code.len()
    }
}

fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// Blanks comments and the insides of literals; byte positions stay.
fn blank(text: &str) -> (String, Vec<Literal>) {
    let mut code = text.as_bytes().to_vec();
    let mut literals = Vec::new();
    let mut at = 0;
    let hide = |code: &mut Vec<u8>, from: usize, to: usize| {
        code[from..to].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    };
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("//") {
            let end = at + rest.find('\n').unwrap_or(rest.len());
            hide(&mut code, at, end);
            at = end;
        } else if rest.starts_with("/*") {
            let end = at + rest.find("*/").map_or(rest.len(), |end| end + 2);
            hide(&mut code, at, end);
            at = end;
        } else if let Some((hashes, open)) = raw_literal(text, at) {
            let close = format!("\"{}", "#".repeat(hashes));
            let end = at + open + text[at + open..].find(&close).unwrap_or(text.len() - at - open);
            literals.push(Literal { start: at, value: text[at + open..end].to_owned() });
            hide(&mut code, at, (end + close.len()).min(text.len()));
            at = end + close.len();
        } else if rest.starts_with('"') {
            let mut end = at + 1;
            while end < text.len() && text.as_bytes()[end] != b'"' {
                end += if text.as_bytes()[end] == b'\\' { 2 } else { 1 };
            }
            literals.push(Literal { start: at, value: unescape(&text[at + 1..end]) });
            hide(&mut code, at + 1, end);
            at = end + 1;
        } else if let Some(length) = quoted_letter(rest) {
            hide(&mut code, at, at + length);
            at += length;
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    (String::from_utf8(code).unwrap(), literals)
}

/// How many `#` the raw literal at `at` has, and how long its opening is.
fn raw_literal(text: &str, at: usize) -> Option<(usize, usize)> {
    let within_word = text[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let after = text[at..].strip_prefix('r').filter(|_| !within_word)?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some((hashes, hashes + 2))
}

/// The length of `'"'` or `'\''`; a lifetime is neither.
fn quoted_letter(rest: &str) -> Option<usize> {
    let inner = rest.strip_prefix('\'')?;
    if let Some(escape) = inner.strip_prefix('\\') {
        return escape.char_indices().skip(1).find(|(_, letter)| *letter == '\'').map(|(at, _)| at + 3);
    }
    let letter = inner.chars().next()?;
    inner[letter.len_utf8()..].starts_with('\'').then_some(letter.len_utf8() + 2)
}

fn unescape(text: &str) -> String {
    let mut plain = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => plain.push('\n'),
            Some('t') => plain.push('\t'),
            // A line that goes on in the next one.
            Some('\n') => while letters.next_if(|letter| letter.is_whitespace()).is_some() {},
            Some(letter) => plain.push(letter),
            None => {}
        }
    }
    plain
}

#[test]
fn literals_and_calls_are_found() {
    let text = r##"
// tracing::warn!("no")
fn a<'a>() { tracing::warn!(why = "b, c", %error, "d \"e\" \
     f {g}"); let _ = ('"', r#"raw "x""#, '\''); }
const NAME: &str = "value";
"##;
    let file = SourceFile::parse("src/x/mod.rs".to_owned(), text);
    let [call] = file.calls("tracing::warn!")[..] else { panic!() };
    let arguments = file.arguments(call);
    assert_eq!(arguments.len(), 3);
    assert_eq!(file.literal(arguments[2]).unwrap().value, "d \"e\" f {g}");
    assert!(file.literal(arguments[0]).is_none());
    assert_eq!(file.literals.iter().filter(|one| one.value == "raw \"x\"").count(), 1);
    assert_eq!((file.constant("NAME"), file.top_module().as_str()), (Some("value"), "narthex::x"));
}
