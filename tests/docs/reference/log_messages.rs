//! Log lines of level warn and above, collected from the sources.

use std::collections::BTreeMap;

use super::{code, table};
use crate::source::SourceFile;

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Line {
    module: String,
    message: String,
    fields: Vec<String>,
}

pub(super) fn regions(sources: &[SourceFile]) -> BTreeMap<String, String> {
    let mut regions = BTreeMap::new();
    for (level, name) in [("error", "log messages of level error"), ("warn", "log messages of level warn")] {
        let mut lines: Vec<Line> = sources.iter().flat_map(|file| lines_of(file, sources, level)).collect();
        if level == "error" {
            lines.extend(sources.iter().flat_map(lines_of_problems));
        }
        lines.sort();
        lines.dedup();
        assert!(lines.len() > 20, "{level}: {} lines", lines.len());
        let rows = lines.into_iter().map(|line| {
            let fields: Vec<String> = line.fields.iter().map(|field| code(field)).collect();
            vec![code(&line.message), fields.join(", "), code(&line.module)]
        });
        regions.insert(name.to_owned(), table(&["Message", "Fields", "Module"], rows));
    }
    regions
}

/// The lines that `tracing::LEVEL!` writes.
fn lines_of(file: &SourceFile, sources: &[SourceFile], level: &str) -> Vec<Line> {
    let mut lines = Vec::new();
    for call in file.calls(&format!("tracing::{level}!")) {
        let mut module = file.top_module();
        let mut fields = Vec::new();
        let mut message = None;
        for argument in file.arguments(call) {
            let text = file.text[argument.0..argument.1].trim();
            if message.is_some() {
                // Arguments of the message.
                continue;
            }
            match file.literal(argument) {
                Some(literal) => message = Some(literal.value.clone()),
                None if text.starts_with("target: ") => module = target(file, sources, text),
                None if !text.starts_with("//") => fields.push(field(text)),
                None => {}
            }
        }
        let place = format!("{}: {}", file.path, &file.text[call.0..call.1]);
        let message = message.unwrap_or_else(|| panic!("{place}: a log line without a literal message"));
        // This is `Problems::log`: its callers have the words.
        if message != "{consequence}" {
            lines.push(Line { message: with_constants(file, &message), fields, module });
        }
    }
    lines
}

/// The value of `target: CONSTANT`, which stands in the file or at the root of its crate.
fn target(file: &SourceFile, sources: &[SourceFile], argument: &str) -> String {
    let name = argument.trim_start_matches("target: ");
    let root = file.path.split_inclusive("/src/").next().map(|folder| format!("{folder}lib.rs"));
    let root = sources.iter().find(|source| Some(&source.path) == root.as_ref());
    let value = file.constant(name).or_else(|| root?.constant(name));
    value.unwrap_or_else(|| panic!("{}: {argument} is no constant", file.path)).to_owned()
}

/// The lines of `Problems::log`, which logs each problem under one message.
fn lines_of_problems(file: &SourceFile) -> Vec<Line> {
    let line = |message: &str| Line {
        message: with_constants(file, message),
        fields: vec!["problem".to_owned()],
        module: "narthex::process".to_owned(),
    };
    let mut lines: Vec<Line> = Vec::new();
    for call in file.calls("problems.log").into_iter().chain(file.calls(".log")) {
        let inner = file.text[call.0..call.1].trim();
        let within = |literal: &&crate::source::Literal| call.0 <= literal.start && literal.start < call.1;
        if (inner.starts_with('"') || inner.starts_with("&format!("))
            && let Some(literal) = file.literals.iter().find(within)
            && !lines.iter().any(|line| line.message == with_constants(file, &literal.value))
        {
            lines.push(line(&literal.value));
        }
    }
    lines.extend(file.constant("UNUSABLE").map(line));
    lines
}

/// `%error` is `error`, `file = %path.display()` is `file`.
fn field(text: &str) -> String {
    let name = text.split(" = ").next().unwrap_or(text);
    name.trim_start_matches(['%', '?']).rsplit('.').next().unwrap_or(name).trim().to_owned()
}

/// The message with the values of the constants in it.
fn with_constants(file: &SourceFile, message: &str) -> String {
    let template = message;
    let mut message = template.to_owned();
    for part in template.split('{').skip(1) {
        let name = part.split('}').next().unwrap_or_default();
        if let Some(value) = file.constant(name) {
            message = message.replace(&format!("{{{name}}}"), value);
        }
    }
    message
}
