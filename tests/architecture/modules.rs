//! The order of modules, and imports among siblings.

use std::collections::{BTreeMap, BTreeSet};

use crate::names::Names;
use crate::source::{SourceFile, sources};
use crate::syntax::{ItemKind, UsedPath};

/// Folder and the import that may close a circle.
const CIRCLE_EXCEPTIONS: [(&str, &str, &str); 1] = [
    // Only impersonation, which asks the authorizers, may create the effective user that they authorize.
    ("narthex/authorize", "authorizer", "impersonation"),
];

#[test]
fn modules_use_only_modules_declared_above() {
    let wrong = order_violations(sources());
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}

/// Modules of one folder import each other in one direction only. Names that a module imports or exports again count as
/// those of the module that declares them. Tests may import what they need.
#[test]
fn sibling_modules_have_no_import_circle() {
    let imports = sibling_imports(sources(), &CIRCLE_EXCEPTIONS);
    assert!(imports.len() > 30, "imports are written in a way that this test does not read");
    let circles = circles(&imports);
    assert!(circles.is_empty(), "import circles:\n{}", circles.join("\n"));
}

/// A file that no module declares is not compiled.
#[test]
fn files_are_declared_modules() {
    let mut declared = BTreeSet::new();
    for file in sources() {
        let items = file.syntax.items.iter().filter(|item| item.kind == ItemKind::ModuleFile);
        declared.extend(items.map(|item| [file.inner_module(&item.inner), vec![item.name.clone()]].concat()));
    }
    let modules = sources().iter().filter(|file| file.module.len() > 1);
    let undeclared: Vec<_> = modules.filter(|file| !declared.contains(&file.module)).map(|file| &file.path).collect();
    assert!(undeclared.is_empty(), "no module declares {undeclared:?}");
}

fn paths(file: &SourceFile) -> impl Iterator<Item = &UsedPath> {
    file.syntax.paths.iter().chain(file.syntax.imports.iter().map(|import| &import.path))
}

/// Uses of modules that the root of the crate declares below the module of the file, in tests as well.
fn order_violations(files: &[SourceFile]) -> Vec<String> {
    let names = Names::new(files);
    let mut order = BTreeMap::<&str, Vec<&str>>::new();
    for root in files.iter().filter(|file| file.module.len() == 1 && !file.path.ends_with("main.rs")) {
        let modules =
            root.syntax.items.iter().filter(|item| item.kind == ItemKind::ModuleFile && item.inner.is_empty());
        order.insert(&root.module[0], modules.map(|item| &*item.name).collect());
    }
    let mut wrong = BTreeSet::new();
    for file in files.iter().filter(|file| file.module.len() > 1) {
        let order = &order[&*file.module[0]];
        let position = |name: &str| order.iter().position(|module| *module == name);
        let own = position(&file.module[1]);
        for path in paths(file) {
            let Some(written) = names.absolute(file, path) else { continue };
            // What a module exports from another one is in both.
            for used in [names.declaration(written.clone()), written] {
                if used[0] == file.module[0] && used.len() > 1 && position(&used[1]) > own {
                    let (file, line, own) = (&file.path, path.line, &file.module[1]);
                    wrong.insert(format!("{file}:{line}: {own} stands above {} and may not use it", used[1]));
                }
            }
        }
    }
    wrong.into_iter().collect()
}

/// Which modules of each folder import which others.
type SiblingImports = BTreeMap<Vec<String>, BTreeMap<String, BTreeSet<String>>>;

fn sibling_imports(files: &[SourceFile], exceptions: &[(&str, &str, &str)]) -> SiblingImports {
    let names = Names::new(files);
    let mut imports = SiblingImports::new();
    for file in files.iter().filter(|file| !file.is_test) {
        for path in paths(file).filter(|path| !path.is_test) {
            let own = file.inner_module(&path.inner);
            let Some(used) = names.absolute(file, path) else { continue };
            let used = names.declaration(used);
            let common = own.iter().zip(&used).take_while(|(own, used)| own == used).count();
            if common > 0 && common < own.len() && common < used.len() && names.is_module(&used[..=common]) {
                let exception = (own[..common].join("/"), own[common].as_str(), used[common].as_str());
                if !exceptions.contains(&(&exception.0, exception.1, exception.2)) {
                    let folder = imports.entry(own[..common].to_vec()).or_default();
                    folder.entry(own[common].clone()).or_default().insert(used[common].clone());
                }
            }
        }
    }
    imports
}

fn circles(imports: &SiblingImports) -> Vec<String> {
    let found = |(folder, edges): (&Vec<String>, _)| {
        Some(format!("{}: {}", folder.join("/"), find_circle(edges)?.join(" -> ")))
    };
    imports.iter().filter_map(found).collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::tests::snippets;

    #[test]
    fn order_violations_are_found_behind_aliases_exports_macros_and_in_tests() {
        let files = snippets(&[
            ("narthex", "pub mod tls; pub mod egress; pub mod listen; pub use listen::Limits;"),
            ("narthex::tls", "#[cfg(test)]\nmod tests {\n    fn a() { assert!(crate::egress::b()); }\n}"),
            ("narthex::tls::c", "use super::super as root;\nfn d(e: root::egress::F) {}"),
            ("narthex::egress", "use crate::tls::c;\nuse crate::Limits;"),
            ("narthex::listen", "pub struct Limits;\nuse crate::{egress, tls};"),
        ]);
        let expected = [
            "narthex::egress:2: egress stands above listen and may not use it",
            "narthex::tls:3: tls stands above egress and may not use it",
            "narthex::tls::c:2: tls stands above egress and may not use it",
        ];
        assert_eq!(order_violations(&files), expected);
    }

    #[test]
    fn import_circles_are_found_behind_exports_and_not_in_tests() {
        let of = |b: &str, exceptions: &[(&str, &str, &str)]| {
            let files = snippets(&[
                ("narthex", "pub mod tls;"),
                ("narthex::tls", "mod a; mod b; pub use a::A; pub use b::B as C;"),
                ("narthex::tls::a", "use super::C; pub struct A;"),
                ("narthex::tls::b", b),
            ]);
            circles(&sibling_imports(&files, exceptions))
        };
        let circle = "pub struct B(crate::tls::A);";
        assert_eq!(of(circle, &[]), ["narthex/tls: a -> b -> a"]);
        assert!(of(circle, &[("narthex/tls", "b", "a")]).is_empty());
        assert!(of("pub struct B; #[cfg(test)] mod tests { use super::super::A; }", &[]).is_empty());
    }
}
