//! Module order in `src/lib.rs` and other structural rules.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum production lines of a file, which are those above its test module; the aim is 100 to 300.
const LONGEST_FILE: usize = 500;
/// Maximum lines of a function.
const LONGEST_FUNCTION: usize = 100;

#[test]
fn modules_use_only_modules_declared_above() {
    let order = declared_order();
    let mut wrong = Vec::new();
    for file in files() {
        let Some(own) = order.iter().position(|module| *module == top_module(&file)) else { continue };
        for (line, used) in used_modules(&read(&file), depth(&file)) {
            if order.iter().position(|module| *module == used).is_some_and(|theirs| theirs > own) {
                let file = file.display();
                wrong.push(format!("{file}:{line}: {} stands above {used} and may not use it", order[own]));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Modules of one folder import each other in one direction only. Names that a module imports or exports again count as
/// those of the module that declares them, unless they are renamed.
#[test]
fn sibling_modules_have_no_import_circle() {
    // Folder and the import that may close a circle.
    const EXCEPTIONS: [(&str, &str, &str); 1] = [
        // Only impersonation, which asks the authorizers, may create the effective user that they authorize.
        ("authorize", "authorizer", "impersonation"),
    ];
    let files: Vec<_> = files().into_iter().filter(|file| !is_test_file(file)).collect();
    let modules: BTreeSet<Vec<String>> = files.iter().map(|file| module_path(file)).collect();
    let texts: Vec<_> = files
        .iter()
        .map(|file| (module_path(file), without_comments_and_texts(&production(&read(file)).join("\n"))))
        .collect();
    let mut names = BTreeMap::new();
    for (own, text) in &texts {
        names.extend(
            imported_paths(text, own).into_iter().filter_map(|path| Some(((own.clone(), path.last()?.clone()), path))),
        );
    }
    let mut imports = BTreeMap::<Vec<String>, BTreeMap<String, BTreeSet<String>>>::new();
    for (own, text) in &texts {
        for path in used_paths(text, own) {
            let path = declared_path(path, &modules, &names);
            let common = own.iter().zip(&path).take_while(|(a, b)| a == b).count();
            if common < own.len() && common < path.len() && modules.contains(&path[..=common]) {
                let exception = (own[..common].join("/"), own[common].as_str(), path[common].as_str());
                if !EXCEPTIONS.contains(&(&exception.0, exception.1, exception.2)) {
                    let folder = imports.entry(own[..common].to_vec()).or_default();
                    folder.entry(own[common].clone()).or_default().insert(path[common].clone());
                }
            }
        }
    }
    assert!(imports.len() > 20, "src has become empty, or imports are written in a way that this test does not read");
    let circles: Vec<_> = imports
        .iter()
        .filter_map(|(folder, edges)| Some(format!("{}: {}", folder.join("/"), find_circle(edges)?.join(" -> "))))
        .collect();
    assert!(circles.is_empty(), "import circles:\n{}", circles.join("\n"));
}

#[test]
fn folders_are_declared_modules() {
    let declared: BTreeSet<_> = declared_order().into_iter().collect();
    let present: BTreeSet<_> =
        files().iter().map(|file| top_module(file)).filter(|name| name != "lib" && name != "main").collect();
    assert_eq!(present, declared);
}

#[test]
fn unsafe_code_absent() {
    for file in files() {
        for (number, line) in without_comments_and_texts(&read(&file)).lines().enumerate() {
            // The name of jemalloc's settings: there is no other way to give a static the name a C library looks for.
            let name = file.ends_with("src/main.rs") && line.starts_with("#[unsafe(export_name = ");
            let unsafe_ = words(line).any(|word| word == "unsafe");
            assert!(!unsafe_ || name, "{}:{}: unsafe", file.display(), number + 1);
        }
    }
}

#[test]
fn files_have_module_docs_and_bounded_length() {
    let mut wrong = Vec::new();
    for file in files() {
        let text = read(&file);
        if !text.starts_with("//!") {
            wrong.push(format!("{} lacks its opening sentence", file.display()));
        }
        let lines = production(&text).len();
        if lines > LONGEST_FILE && !is_test_file(&file) {
            wrong.push(format!("{} has {lines} lines above its tests; split it", file.display()));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn functions_have_bounded_length() {
    let mut wrong = Vec::new();
    for file in files().into_iter().filter(|file| !is_test_file(file)) {
        let text = read(&file);
        for (name, line, length) in functions(&production(&text)) {
            if length > LONGEST_FUNCTION {
                wrong.push(format!("{}:{line}: {name} has {length} lines; split it", file.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn file_names_are_specific() {
    const EMPTY: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "types"];
    for file in files() {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        assert!(!stem.split('_').any(|word| EMPTY.contains(&word)), "{} has an empty name", file.display());
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
    for file in files() {
        let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        assert!(!PRIVATE.contains(&stem), "{}: use the field's name for it", file.display());
    }
}

/// Two types of one name send a reader to the wrong one.
#[test]
fn type_names_are_unique() {
    // Names that Rust code uses once per module, told apart by the module's name.
    const USUAL: [&str; 22] = [
        "Builder", "Client", "Config", "Entry", "Error", "Handler", "Inner", "Iter", "Kind", "Metadata", "Metrics",
        "Options", "Request", "Response", "Result", "Server", "Settings", "Source", "Spec", "State", "Status",
        "Version",
    ];
    let mut declared = BTreeMap::<String, Vec<String>>::new();
    for file in files() {
        if file.file_name().is_some_and(|name| name == "tests.rs") {
            continue;
        }
        let text = read(&file);
        let production = text.split("\n#[cfg(test)]\n").next().unwrap_or_default();
        for line in without_comments_and_texts(production).lines() {
            let mut words = words(line).skip_while(|word| ["pub", "super", "crate", "in", "self"].contains(word));
            if let (Some("struct" | "enum" | "trait" | "union"), Some(name)) = (words.next(), words.next()) {
                declared.entry(name.to_owned()).or_default().push(file.display().to_string());
            }
        }
    }
    assert!(declared.len() > 500, "types are declared in a way that this test does not read");
    declared.retain(|name, files| files.len() > 1 && !USUAL.contains(&name.as_str()));
    assert!(declared.is_empty(), "types of one name: {declared:#?}");
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
    for file in files() {
        for (number, line) in read(&file).lines().enumerate() {
            let lower = line.to_lowercase();
            let found = BRITISH.iter().filter(|stem| lower.contains(**stem));
            wrong.extend(found.map(|stem| format!("{}:{}: {stem}", file.display(), number + 1)));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

#[test]
fn path_parser_agrees_with_compiler() {
    let text = r##"
use crate::tls::Bundle; // crate::admin
use crate::{egress::{pool, crate_}, forward, listen::Limits};
use super::super::commands::main;
fn a<'a>(b: &'a str) -> char { let _ = "crate::openapi \" crate::config"; r#"crate::route"#; '"' }
/* crate::discovery */ fn c() { super::super::super::admin::page(); my_crate::thing() }
"##;
    let mut used = used_modules(text, 2);
    used.sort();
    let expected = [(2, "tls"), (3, "egress"), (3, "forward"), (3, "listen"), (4, "commands"), (6, "admin")];
    assert_eq!(used, expected.map(|(line, name)| (line, name.to_owned())));
}

#[test]
fn imported_names_followed_to_their_module() {
    let path = |text: &str| text.split("::").map(str::to_owned).collect::<Vec<_>>();
    let imports = imported_paths("mod a;\npub use a::{B, c::D};\nfn e() { let use_ = 1; }", &path("tls"));
    assert_eq!(imports, [path("tls::a::B"), path("tls::a::c::D")]);
    let names = imports.into_iter().map(|path| ((path[..1].to_vec(), path[path.len() - 1].clone()), path)).collect();
    let modules = BTreeSet::from([path("tls"), path("tls::a"), path("tls::a::c")]);
    assert_eq!(declared_path(path("tls::D::new"), &modules, &names), path("tls::a::c::D::new"));
    assert_eq!(declared_path(path("tls::a::B"), &modules, &names), path("tls::a::B"));
}

#[test]
fn test_items_are_no_production_lines() {
    let text = "a\n#[cfg(test)]\nmod b;\nc\n    #[cfg(test)]\n    fn d(\n        e: F,\n    ) {\n    }\ng\n#[cfg(test)]\nmod tests {\n}\n";
    assert_eq!(production(text), ["a", "", "", "c", "", "", "", "", "", "g"]);
}

#[test]
fn import_paths_parsed_with_groups() {
    let own = ["tls".to_owned(), "server".to_owned()];
    let text = "use super::{a::{B, c::D}, self as e};\nuse crate::f::G;\nfn h() { self::i::j(); k::l::m() }";
    let paths: Vec<String> = used_paths(text, &own).into_iter().map(|path| path.join("::")).collect();
    assert_eq!(paths, ["f::G", "tls::a::B", "tls::a::c::D", "tls::self", "tls::server::i::j"]);
}

/// The modules of `src/lib.rs`, from the first to the last.
fn declared_order() -> Vec<String> {
    let modules: Vec<_> = read(&source().join("lib.rs"))
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';').map(str::to_owned))
        .collect();
    assert!(modules.len() > 10, "src/lib.rs declares its modules in a way that this test does not read");
    modules
}

/// The paths of the `use` declarations of the module `own`, from the crate on; groups are expanded.
fn imported_paths(text: &str, own: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, _) in text.match_indices("use ") {
        let visibility = text[..at].rsplit('\n').next().unwrap_or_default().trim();
        if !["", "pub", "pub(crate)", "pub(super)"].contains(&visibility) && !visibility.starts_with("pub(in ") {
            continue;
        }
        let path = text[at + "use ".len()..].split(';').next().unwrap_or_default();
        let starts: &[&str] = &["crate::", "super::", "self::"];
        match starts.iter().any(|start| path.starts_with(start)) {
            true => paths.extend(used_paths(path, own)),
            false => drop(expand_path(path, own, &mut paths)),
        }
    }
    paths
}

/// Follows the names that modules import to the module that declares them.
fn declared_path(
    mut path: Vec<String>,
    modules: &BTreeSet<Vec<String>>,
    names: &BTreeMap<(Vec<String>, String), Vec<String>>,
) -> Vec<String> {
    for _ in 0..8 {
        let Some(module) = (0..path.len()).rev().find(|length| modules.contains(&path[..*length])) else { break };
        let Some(declared) = names.get(&(path[..module].to_vec(), path[module].clone())) else { break };
        if *declared == path[..=module] {
            break;
        }
        path.splice(..=module, declared.iter().cloned());
    }
    path
}

/// The paths that begin with `crate`, `super` or `self`, from the crate on; groups are expanded.
fn used_paths(text: &str, own: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for start in ["crate::", "super::", "self::"] {
        for (at, _) in text.match_indices(start) {
            let before = &text[..at];
            if before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':') {
                continue;
            }
            let (mut base, mut rest) = (own.to_vec(), &text[at..]);
            if let Some(after) = rest.strip_prefix("crate::") {
                (base, rest) = (Vec::new(), after);
            }
            rest = rest.strip_prefix("self::").unwrap_or(rest);
            while let Some(after) = rest.strip_prefix("super::") {
                base.pop();
                rest = after;
            }
            expand_path(rest, &base, &mut paths);
        }
    }
    paths
}

/// Adds `base` followed by the path that `text` begins with. Returns the text after it.
fn expand_path<'t>(text: &'t str, base: &[String], paths: &mut Vec<Vec<String>>) -> &'t str {
    let mut text = text.trim_start();
    let mut path = base.to_vec();
    loop {
        if let Some(mut group) = text.strip_prefix('{') {
            loop {
                group = expand_path(group, &path, paths).trim_start();
                match group.strip_prefix(',') {
                    Some(after) if !after.trim_start().starts_with('}') => group = after,
                    Some(after) => return after.trim_start().strip_prefix('}').unwrap_or(after),
                    None => return group.strip_prefix('}').unwrap_or(group),
                }
            }
        }
        let end = text.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(text.len());
        path.push(text[..end].to_owned());
        text = &text[end..];
        match text.strip_prefix("::") {
            Some(after) => text = after.trim_start(),
            None => break,
        }
    }
    paths.push(path);
    match text.trim_start().strip_prefix("as ") {
        Some(alias) => alias.trim_start_matches(|letter: char| letter.is_alphanumeric() || letter == '_'),
        None => text,
    }
}

/// A circle of imports among the modules of a folder.
fn find_circle(edges: &BTreeMap<String, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit<'e>(
        module: &'e str,
        edges: &'e BTreeMap<String, BTreeSet<String>>,
        path: &mut Vec<&'e str>,
        done: &mut BTreeSet<&'e str>,
    ) -> bool {
        if path.contains(&module) {
            path.push(module);
            return true;
        }
        if !done.insert(module) {
            return false;
        }
        path.push(module);
        let found = edges.get(module).into_iter().flatten().any(|used| visit(used, edges, path, done));
        if !found {
            path.pop();
        }
        found
    }
    let mut done = BTreeSet::new();
    for module in edges.keys() {
        let mut path = Vec::new();
        if visit(module, edges, &mut path, &mut done) {
            return Some(path.into_iter().map(str::to_owned).collect());
        }
    }
    None
}

/// The top-level modules that a file uses, with line numbers: `crate::X`, `crate::{X, …}`, and as many
/// `super::` as lead from the file to the crate, or one more from a module within the file.
fn used_modules(text: &str, depth: usize) -> Vec<(usize, String)> {
    let text = without_comments_and_texts(text);
    let mut used = Vec::new();
    for start in ["crate::".to_owned(), "super::".repeat(depth), "super::".repeat(depth + 1)] {
        for (at, _) in text.match_indices(&start) {
            let before = &text[..at];
            let within = before.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_' || letter == ':');
            let after = &text[at + start.len()..];
            if !within && !after.starts_with("super::") {
                let line = before.matches('\n').count() + 1;
                used.extend(first_names(after).into_iter().map(|name| (line, name)));
            }
        }
    }
    used
}

/// `tls::Bundle` is `tls`; `{egress, tls::{A, B}}` is `egress` and `tls`.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else {
        return words(path).next().map(str::to_owned).into_iter().collect();
    };
    let mut names = Vec::new();
    let mut level = 0;
    let mut expected = true;
    for (at, letter) in group.char_indices() {
        match letter {
            '{' => level += 1,
            '}' if level == 0 => break,
            '}' => level -= 1,
            ',' if level == 0 => expected = true,
            letter if expected && letter.is_alphabetic() => {
                names.extend(words(&group[at..]).next().map(str::to_owned));
                expected = false;
            }
            _ => {}
        }
    }
    names
}

/// The lines of a file without the items that are compiled for tests only, which are left empty before other items.
fn production(text: &str) -> Vec<&str> {
    let mut kept = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[cfg(test)]") {
            kept.push(line);
            continue;
        }
        kept.push("");
        let indent = line.len() - line.trim_start().len();
        let mut is_first = true;
        for line in lines.by_ref() {
            kept.push("");
            let item = line.get(indent..).unwrap_or_default();
            if item.starts_with("#[") {
                continue;
            }
            if item.starts_with('}') || is_first && item.ends_with([';', ',', '}']) {
                break;
            }
            is_first = false;
        }
    }
    while kept.last().is_some_and(|line| line.is_empty()) {
        kept.pop();
    }
    kept
}

/// Whether a file holds tests only.
fn is_test_file(file: &Path) -> bool {
    within_source(file).iter().any(|part| part == "tests" || part == "tests.rs")
}

/// The functions of a file: name, first line, number of lines.
fn functions<'t>(lines: &[&'t str]) -> Vec<(&'t str, usize, usize)> {
    let mut found = Vec::new();
    let mut rest = lines.iter().enumerate();
    while let Some((first, line)) = rest.next() {
        let mut words = words(line)
            .skip_while(|word| ["pub", "crate", "super", "self", "in", "async", "const", "unsafe"].contains(word));
        let (Some("fn"), Some(name)) = (words.next(), words.next()) else { continue };
        let (mut depth, mut is_open) = (0, false);
        for (number, line) in std::iter::once((first, line)).chain(rest.by_ref()) {
            depth += line.matches('{').count() as isize - line.matches('}').count() as isize;
            is_open |= line.contains('{');
            if is_open && depth <= 0 || !is_open && line.trim_end().ends_with(';') {
                found.push((name, first + 1, number - first + 1));
                break;
            }
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

/// The same lines without comments and quoted texts, which may speak of anything.
fn without_comments_and_texts(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(hashes) = raw_text(rest, &plain) {
            let end = format!("\"{}", "#".repeat(hashes));
            let open = hashes + 2;
            rest[open..].find(&end).map_or(rest.len(), |at| open + at + end.len())
        } else if letter == '"' {
            quoted_text(rest)
        } else if let Some(length) = quoted_letter(rest) {
            length
        } else {
            plain.push(letter);
            rest = &rest[letter.len_utf8()..];
            continue;
        };
        plain.extend(rest[..skipped].chars().filter(|letter| *letter == '\n'));
        rest = &rest[skipped..];
    }
    plain
}

/// How many `#` the raw text that begins here has, if one does.
fn raw_text(rest: &str, before: &str) -> Option<usize> {
    let within_word = before.ends_with(|letter: char| letter.is_alphanumeric() && letter != 'b' || letter == '_');
    let after = rest.strip_prefix('r').filter(|_| !within_word)?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    after[hashes..].starts_with('"').then_some(hashes)
}

/// The length of `"a \" b"`.
fn quoted_text(rest: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in rest.char_indices().skip(1) {
        match letter {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return at + 1,
            _ => {}
        }
    }
    rest.len()
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

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).expect("a source file is readable")
}

fn files() -> Vec<PathBuf> {
    fn collect(folder: &Path, into: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).expect("a source folder is readable") {
            let path = entry.expect("a source folder is readable").path();
            if path.is_dir() {
                collect(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(path);
            }
        }
    }
    let mut files = Vec::new();
    collect(&source(), &mut files);
    assert!(files.len() > 20, "src has become empty");
    files
}

fn within_source(file: &Path) -> &Path {
    file.strip_prefix(source()).expect("files are found below src")
}

/// The path of a file's module from the crate.
fn module_path(file: &Path) -> Vec<String> {
    let path = within_source(file).with_extension("");
    let mut names: Vec<String> = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if names.last().is_some_and(|name| ["mod", "lib", "main"].contains(&name.as_str())) {
        names.pop();
    }
    names
}

fn top_module(file: &Path) -> String {
    let first = within_source(file).iter().next().and_then(|name| name.to_str()).unwrap_or_default();
    first.strip_suffix(".rs").unwrap_or(first).to_owned()
}

/// How many `super` lead from a file to the crate: one from `src/tls/mod.rs`, two from `src/tls/a.rs`.
fn depth(file: &Path) -> usize {
    let levels = within_source(file).iter().count();
    if file.file_name().is_some_and(|name| name == "mod.rs") { levels - 1 } else { levels }
}
