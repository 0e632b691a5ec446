//! Habits of files, functions and names.

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::{SourceFile, sources};
use crate::syntax::ItemKind;

/// Maximum production lines of a file, which are those above its tests; the aim is 100 to 300.
const LONGEST_FILE: usize = 500;
/// Maximum lines of a function.
const LONGEST_FUNCTION: usize = 100;

/// Names of types that Rust code uses once per module, told apart by the module's name.
const USUAL_TYPES: [&str; 22] = [
    "Builder", "Client", "Config", "Entry", "Error", "Handler", "Inner", "Iter", "Kind", "Metadata", "Metrics",
    "Options", "Request", "Response", "Result", "Server", "Settings", "Source", "Spec", "State", "Status", "Version",
];

#[test]
fn unsafe_code_absent() {
    for file in sources() {
        for line in &file.syntax.unsafe_lines {
            // The name of jemalloc's settings: there is no other way to give a static the name a C library looks for.
            let text = file.text.lines().nth(line - 1).unwrap_or_default();
            let names_settings = file.path == "src/main.rs" && text.starts_with("#[unsafe(export_name = ");
            assert!(names_settings, "{}:{line}: unsafe", file.path);
        }
    }
}

#[test]
fn files_have_module_docs_and_bounded_length() {
    let wrong: Vec<_> = sources().iter().flat_map(file_violations).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn functions_have_bounded_length() {
    let wrong: Vec<_> = sources().iter().flat_map(function_violations).collect();
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn file_names_are_specific() {
    const EMPTY: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "types"];
    for file in sources() {
        let stem = file_stem(file);
        assert!(!stem.split('_').any(|word| EMPTY.contains(&word)), "{} has an empty name", file.path);
    }
}

#[test]
fn file_names_are_terms_of_the_field() {
    // Words that name nothing an engineer of the field would search for.
    const PRIVATE: [&str; 65] = [
        "answered",
        "asker",
        "asking",
        "audited",
        "behind",
        "board",
        "carrier",
        "chosen",
        "complaint",
        "course",
        "desk",
        "dialler",
        "door",
        "doubts",
        "flights",
        "forge",
        "guarding",
        "heard",
        "history",
        "judge",
        "keeper",
        "kept",
        "known",
        "last",
        "lately",
        "letters",
        "lookup",
        "making",
        "mistakes",
        "named",
        "odd",
        "onward",
        "ours",
        "own",
        "parting",
        "passage",
        "patience",
        "person",
        "pitfalls",
        "places",
        "plain",
        "pushed",
        "reached",
        "reading",
        "recall",
        "receipt",
        "remember",
        "rounds",
        "said",
        "scene",
        "seen",
        "selected",
        "shared",
        "silence",
        "speakable",
        "standing",
        "strangers",
        "told",
        "unclaimed",
        "unwritten",
        "wanted",
        "way",
        "ways",
        "who",
        "written",
    ];
    for file in sources() {
        let stem = file_stem(file);
        assert!(!PRIVATE.contains(&stem), "{}: use the field's name for it", file.path);
    }
}

/// Two types of one name send a reader to the wrong one. Tests have their own.
#[test]
fn type_names_are_unique() {
    let types = declared_types(sources());
    assert!(types.len() > 1000, "types are declared in a way that this test does not read");
    let repeated = repeated_types(types);
    assert!(repeated.is_empty(), "types of one name: {repeated:#?}");
}

#[test]
fn spelling_is_american() {
    const BRITISH: [&str; 17] = [
        "authoris",
        "behaviour",
        "cancelled",
        "catalogue",
        "colour",
        "dialled",
        "dialler",
        "dialling",
        "favour",
        "honour",
        "initialis",
        "judgement",
        "labelled",
        "neighbour",
        "normalis",
        "recognis",
        "serialis",
    ];
    let mut wrong = Vec::new();
    for file in sources() {
        for (number, line) in file.text.lines().enumerate() {
            let lower = line.to_lowercase();
            let found = BRITISH.iter().filter(|stem| lower.contains(**stem));
            wrong.extend(found.map(|stem| format!("{}:{}: {stem}", file.path, number + 1)));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

fn file_stem(file: &SourceFile) -> &str {
    Path::new(&file.path).file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn file_violations(file: &SourceFile) -> Vec<String> {
    let mut wrong = Vec::new();
    if !file.text.starts_with("//!") {
        wrong.push(format!("{} lacks its opening sentence", file.path));
    }
    let lines = file.syntax.production_lines;
    if lines > LONGEST_FILE && !file.is_test {
        wrong.push(format!("{} has {lines} lines above its tests; split it", file.path));
    }
    wrong
}

fn function_violations(file: &SourceFile) -> Vec<String> {
    let functions = file.syntax.functions.iter().filter(|function| !function.is_test && !file.is_test);
    let long = functions.filter(|function| function.length > LONGEST_FUNCTION);
    let text = |name: &str, line, length| format!("{}:{line}: {name} has {length} lines; split it", file.path);
    long.map(|function| text(&function.name, function.line, function.length)).collect()
}

/// Where each type is declared.
fn declared_types(files: &[SourceFile]) -> BTreeMap<&str, Vec<String>> {
    let mut declared = BTreeMap::<&str, Vec<String>>::new();
    for file in files.iter().filter(|file| !file.is_test) {
        for item in file.syntax.items.iter().filter(|item| item.kind == ItemKind::Type && !item.is_test) {
            declared.entry(&item.name).or_default().push(format!("{}:{}", file.path, item.line));
        }
    }
    declared
}

fn repeated_types(mut declared: BTreeMap<&str, Vec<String>>) -> BTreeMap<&str, Vec<String>> {
    declared.retain(|name, places| places.len() > 1 && !USUAL_TYPES.contains(name));
    declared
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tests::snippets;

    #[test]
    fn repeated_types_are_found_behind_items_for_tests() {
        let files = snippets(&[
            (
                "narthex::a",
                "#[cfg(test)]\nfn early() {}\nenum Received {}\nstruct Error;\n#[cfg(test)]\nmod tests { struct B; }",
            ),
            ("kubeapi::b", "pub struct Received;\npub struct Error;\npub struct B;"),
        ]);
        let expected = BTreeMap::from([("Received", vec!["narthex::a:3".to_owned(), "kubeapi::b:1".to_owned()])]);
        assert_eq!(repeated_types(declared_types(&files)), expected);
    }

    #[test]
    fn long_files_and_functions_are_found_and_tests_may_be_long() {
        let long = |opening: &str| format!("{opening}fn a() {{\n{}}}\n", "    b();\n".repeat(600));
        let files = snippets(&[("narthex::a", &long("//! A.\n")), ("narthex::b", &long("//! B.\n#[cfg(test)]\n"))]);
        let wrong: Vec<_> =
            files.iter().flat_map(|file| [file_violations(file), function_violations(file)].concat()).collect();
        let expected =
            ["narthex::a has 603 lines above its tests; split it", "narthex::a:2: a has 602 lines; split it"];
        assert_eq!(wrong, expected);
        assert_eq!(
            file_violations(&snippets(&[("narthex::c", "fn c() {}")])[0]),
            ["narthex::c lacks its opening sentence"]
        );
    }
}
