//! Files of HTTP requests (`tests/interop/requests/*.http`), in the format that HTTP clients of editors read.
//!
//! `###` and a name begin a request; then comments and directives, the request line, headers, an empty line, the body.
//!
//! | directive | meaning |
//! |---|---|
//! | `# @name NAME` | `{{NAME.metadata.uid}}` in a later request is that field of the response |
//! | `# @each KEY = A \| B` | the request is sent for each value, as `{{KEY}}`; several multiply |
//! | `# @concurrent` | sent together with the neighbors that say the same |
//! | `# @base64` | the body is base64 |
//! | `# @until TEXT` | sent again until the status code and the body, as one text, contain TEXT, or the code is it; several add up |
//!
//! `{{repeat TEXT COUNT}}` is TEXT that often. The text before the first request says what the file is about.

use std::path::Path;

/// One request of a file.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestRow {
    pub(super) title: String,
    /// Name that later requests use, or empty.
    pub(super) name: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
    pub(super) is_base64: bool,
    pub(super) is_concurrent: bool,
    /// What the last response contains; empty if the request is sent once.
    pub(super) until: Vec<String>,
}

/// Reads the requests of a file, with `{{KEY}}` replaced by the given values.
pub(super) fn read_requests(file: &str, values: &[(&str, &str)]) -> Vec<RequestRow> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/requests").join(file);
    let mut text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    for (key, value) in values {
        text = text.replace(&format!("{{{{{key}}}}}"), value);
    }
    let sections = format!("\n{text}");
    sections.split("\n### ").skip(1).flat_map(expanded_rows).collect()
}

/// The requests of one section, one for each combination of its `@each` values.
fn expanded_rows(section: &str) -> Vec<RequestRow> {
    let mut sections = vec![section.to_owned()];
    for line in section.lines() {
        let Some((key, values)) = line.strip_prefix("# @each ").and_then(|rest| rest.split_once(" =")) else {
            continue;
        };
        let replaced = |section: &String, value: &str| {
            let (title, rest) = section.split_once('\n').unwrap();
            let rest = rest.replace(&format!("{{{{{key}}}}}"), value);
            format!("{title} [{key}={value}]\n{rest}")
        };
        let values: Vec<&str> = values.split('|').map(str::trim).collect();
        sections =
            sections.iter().flat_map(|section| values.iter().map(move |value| replaced(section, value))).collect();
    }
    sections.iter().map(|section| parse_row(section)).collect()
}

fn parse_row(section: &str) -> RequestRow {
    let (head, body) = section.split_once("\n\n").unwrap_or((section, ""));
    let mut lines = head.lines();
    let title = lines.next().unwrap_or_default().to_owned();
    let mut row = RequestRow { title, body: body.trim_end().to_owned(), ..RequestRow::default() };
    for line in lines {
        if let Some(directive) = line.strip_prefix('#') {
            parse_directive(&mut row, directive.trim());
        } else if row.method.is_empty() {
            let (method, path) = line.split_once(' ').unwrap_or_else(|| panic!("{}: request line {line:?}", row.title));
            row.method = method.to_owned();
            row.path = path.trim().to_owned();
        } else {
            let (name, value) = line.split_once(':').unwrap_or_else(|| panic!("{}: header {line:?}", row.title));
            row.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
    row
}

fn parse_directive(row: &mut RequestRow, directive: &str) {
    match directive.split_once(' ').unwrap_or((directive, "")) {
        ("@name", name) => row.name = name.to_owned(),
        ("@base64", _) => row.is_base64 = true,
        ("@concurrent", _) => row.is_concurrent = true,
        ("@until", text) => row.until.push(text.to_owned()),
        ("@each", _) => {}
        (word, _) => assert!(!word.starts_with('@'), "{}: unknown directive {word}", row.title),
    }
}
