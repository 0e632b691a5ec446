//! Follows paths to the module that declares what they name: through imports, renamed ones as well, and exports.

use std::collections::{BTreeMap, BTreeSet};

use crate::dependencies::CRATES;
use crate::source::SourceFile;
use crate::syntax::{ItemKind, UsedPath};

/// Limit of the imports that lead from a path to a declaration.
const MAX_STEPS: usize = 8;

/// A path from the name of its crate on: `narthex::tls::Bundle`.
pub(crate) type AbsolutePath = Vec<String>;

/// The modules of all crates, and the names in each.
#[derive(Default)]
pub(crate) struct Names {
    modules: BTreeSet<AbsolutePath>,
    declared: BTreeSet<AbsolutePath>,
    /// What a name is in a module that imports it.
    imported: BTreeMap<AbsolutePath, AbsolutePath>,
    /// Modules all of whose names a module imports.
    globs: BTreeMap<AbsolutePath, Vec<AbsolutePath>>,
}

impl Names {
    pub(crate) fn new(files: &[SourceFile]) -> Names {
        let mut names = Names::default();
        for file in files {
            names.modules.insert(file.module.clone());
            for item in &file.syntax.items {
                let path = [file.inner_module(&item.inner), vec![item.name.clone()]].concat();
                if item.kind == ItemKind::InlineModule {
                    names.modules.insert(path.clone());
                }
                names.declared.insert(path);
            }
        }
        // The first name of an import may be imported itself.
        for _ in 0..2 {
            for file in files {
                for import in &file.syntax.imports {
                    let module = file.inner_module(&import.path.inner);
                    let Some(path) = names.absolute(file, &import.path) else { continue };
                    if import.name == "*" {
                        let globs = names.globs.entry(module).or_default();
                        if !globs.contains(&path) {
                            globs.push(path);
                        }
                    } else {
                        names.imported.insert([module, vec![import.name.clone()]].concat(), path);
                    }
                }
            }
        }
        names
    }

    pub(crate) fn is_module(&self, path: &[String]) -> bool {
        self.modules.contains(path)
    }

    /// The whole path; none if it leads to a crate that is not of the repository, or to a local name.
    pub(crate) fn absolute(&self, file: &SourceFile, path: &UsedPath) -> Option<AbsolutePath> {
        let mut base = file.inner_module(&path.inner);
        let mut rest = &path.segments[..];
        match rest.first()?.as_str() {
            "crate" => {
                base.truncate(1);
                rest = &rest[1..];
            }
            "self" | "super" => {
                while let Some(first) = rest.first().filter(|first| ["self", "super"].contains(&first.as_str())) {
                    if first == "super" {
                        base.pop();
                    }
                    rest = &rest[1..];
                }
            }
            first => {
                base.push(first.to_owned());
                rest = &rest[1..];
                if let Some(import) = self.imported.get(&base) {
                    base.clone_from(import);
                } else if let Some(found) = self.through_globs(&base) {
                    base = found;
                } else if !self.declared.contains(&base) {
                    base = vec![CRATES.iter().find(|krate| krate.name == first)?.name.to_owned()];
                }
            }
        }
        base.extend(rest.iter().cloned());
        Some(base)
    }

    /// Follows the names that modules import to the module that declares them.
    pub(crate) fn declaration(&self, mut path: AbsolutePath) -> AbsolutePath {
        for _ in 0..MAX_STEPS {
            let Some(module) = (0..path.len()).rev().find(|length| self.modules.contains(&path[..*length])) else {
                break;
            };
            let name = &path[..=module];
            let declared = match self.imported.get(name) {
                _ if self.declared.contains(name) => break,
                Some(declared) => declared.clone(),
                None => match self.through_globs(name) {
                    Some(declared) => declared,
                    None => break,
                },
            };
            if declared == name {
                break;
            }
            path.splice(..=module, declared);
        }
        path
    }

    /// What the name at the end of `path` is, if its module has it from another one by `*`.
    fn through_globs(&self, path: &[String]) -> Option<AbsolutePath> {
        let (name, module) = path.split_last()?;
        self.globs.get(module)?.iter().find_map(|glob| {
            let found = [&**glob, std::slice::from_ref(name)].concat();
            self.declared.contains(&found).then(|| found.clone()).or_else(|| self.imported.get(&found).cloned())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::syntax::Syntax;

    /// Files of the crate narthex from module paths and texts.
    pub(crate) fn snippets(texts: &[(&str, &str)]) -> Vec<SourceFile> {
        let file = |&(module, text): &(&str, &str)| SourceFile {
            path: module.to_owned(),
            module: module.split("::").map(str::to_owned).collect(),
            text: text.to_owned(),
            syntax: Syntax::read(text).unwrap(),
            is_test: false,
        };
        texts.iter().map(file).collect()
    }

    #[test]
    fn names_are_followed_through_exports_aliases_and_globs() {
        let files = snippets(&[
            ("narthex", "pub mod tls; pub mod route; pub mod listen;"),
            ("narthex::tls", "mod a; pub use a::{B, c::D as E}; pub use self::a::c;"),
            ("narthex::tls::a", "pub struct B; pub mod c;"),
            ("narthex::tls::a::c", "pub struct D;"),
            (
                "narthex::route",
                "use crate::tls as t; use super as root; use t::*; fn f() { (t::B, root::listen::G, E::new()) }",
            ),
            (
                "narthex::listen",
                "pub struct G; use kubeapi::path::P; use tokio::net; fn h() { (P::new(), net::x(), Self::y()) }",
            ),
        ]);
        let names = Names::new(&files);
        let paths = |file: &SourceFile| -> Vec<_> {
            let absolute = file.syntax.paths.iter().map(|path| names.absolute(file, path));
            absolute.map(|path| path.map_or(String::new(), |path| names.declaration(path).join("::"))).collect()
        };
        assert_eq!(paths(&files[4]), ["narthex::tls::a::B", "narthex::listen::G", "narthex::tls::a::c::D::new"]);
        assert_eq!(paths(&files[5]), ["kubeapi::path::P::new", "", ""]);
    }
}
