//! The fields of configuration files and the annotations: each that is read has a line in its page, and no other has.

use std::collections::BTreeSet;

use crate::page::{Page, code_words};
use crate::source::{SourceFile, sources};

/// Page in `docs/reference/`, heading, and the source that reads the file.
const FILES: [(&str, &str, &str); 5] = [
    ("configuration-files.md", "AuthenticationConfiguration", "src/authenticate/jwt/configuration.rs"),
    ("configuration-files.md", "AuthorizationConfiguration", "src/authorize/configuration/parse.rs"),
    ("configuration-files.md", "Policy of audit", "src/observe/audit/policy/parse.rs"),
    ("configuration-files.md", "Sidecar rules", "src/authorize/rbac_proxy/file.rs"),
    ("egress.md", "EgressConfiguration", "src/config/egress/egress_configuration.rs"),
];

/// The calls that read a field.
const READERS: [&str; 11] = [
    ".string",
    ".optional_string",
    ".optional_bool",
    ".string_list",
    ".string_map",
    ".object",
    ".object_list",
    "template",
    "parse_duration",
    "parse_cache_ttl",
    "path",
];

#[test]
fn fields_of_configuration_files_are_documented() {
    let sources = sources();
    for (page, heading, path) in FILES {
        let page = Page::read(&format!("docs/reference/{page}"));
        let file = sources.iter().find(|file| file.path == path).unwrap_or_else(|| panic!("{path} is gone"));
        // `issuer.url` in the page is the field `url` of the field `issuer`.
        let rows = page.rows(heading);
        let parts = |text: &String| {
            let parts = code_words(text).into_iter().flat_map(|field| {
                field.split('.').map(|part| part.trim_end_matches("[]").to_owned()).collect::<Vec<_>>()
            });
            parts.collect::<BTreeSet<String>>()
        };
        let named: BTreeSet<String> = rows.iter().flat_map(|row| parts(&row[0])).collect();
        // The fields of a small object may stand in its row's text.
        let mentioned: BTreeSet<String> = rows.iter().flat_map(|row| parts(&row[2])).collect();
        let read = read_by(file);
        let missing: Vec<_> =
            read.iter().filter(|field| !named.contains(*field) && !mentioned.contains(*field)).collect();
        let unknown: Vec<_> = named.difference(&read).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "{}, {heading}: read by {path} and not in the page: {missing:?}; in the page and not read: {unknown:?}",
            page.path
        );
    }
}

#[test]
fn flags_of_files_exist() {
    let flags: BTreeSet<String> = ["gateway", "sidecar", "proxy", "socks5"]
        .iter()
        .flat_map(|name| {
            let command = narthex::commands::cli::command();
            let command = command.find_subcommand(name).unwrap();
            let flags = command.get_arguments().filter_map(|argument| argument.get_long());
            flags.map(|flag| format!("--{flag}")).collect::<Vec<_>>()
        })
        .collect();
    let page = Page::read("docs/reference/configuration-files.md");
    for row in page.rows("Files") {
        for flag in code_words(&row[1]).iter().filter(|word| word.starts_with("--")) {
            assert!(flags.contains(flag), "{flag}");
        }
    }
}

#[test]
fn annotations_are_documented() {
    let sources = sources();
    let file = sources.iter().find(|file| file.path == "src/registry/objects/annotations.rs").unwrap();
    let begin = file.code.find("const KNOWN_ANNOTATIONS").expect("the list of annotations");
    let end = begin + file.code[begin..].find("];").unwrap();
    let mut known: BTreeSet<String> = file
        .literals
        .iter()
        .filter(|literal| (begin..end).contains(&literal.start))
        .map(|literal| literal.value.clone())
        .collect();
    known.extend(file.constant("CLIENT_CERTIFICATE").map(str::to_owned));
    assert!(known.len() > 10);
    let rows = Page::read("docs/reference/annotations.md").rows("Annotations");
    let documented = rows.iter().flat_map(|row| code_words(&row[0])).collect();
    assert_eq!(known, documented, "left: read; right: in the page");
}

fn read_by(file: &SourceFile) -> BTreeSet<String> {
    let mut fields = BTreeSet::new();
    for reader in READERS {
        for argument in file.calls(reader).into_iter().flat_map(|call| file.arguments(call)) {
            let name = file.literal(argument).map(|literal| literal.value.as_str());
            let name = name.or_else(|| file.constant(file.text[argument.0..argument.1].trim()));
            fields.extend(name.filter(|name| name.bytes().all(|byte| byte.is_ascii_alphabetic())).map(str::to_owned));
        }
    }
    fields
}
