//! The source files of all crates, each read once.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread::{available_parallelism, scope};

use crate::dependencies::CRATES;
use crate::syntax::{ItemKind, Syntax};

/// A source file of a crate.
pub(crate) struct SourceFile {
    /// Its path in the repository.
    pub(crate) path: String,
    /// The path of its module, from the name of the crate on.
    pub(crate) module: Vec<String>,
    pub(crate) text: String,
    pub(crate) syntax: Syntax,
    /// Whether it is compiled for tests only.
    pub(crate) is_test: bool,
}

impl SourceFile {
    /// The module within the file that `inner` names.
    pub(crate) fn inner_module(&self, inner: &[String]) -> Vec<String> {
        [&*self.module, inner].concat()
    }

    fn read(path: &Path, module: Vec<String>) -> SourceFile {
        let text = fs::read_to_string(path).expect("a source file is readable");
        let path = path.strip_prefix(env!("CARGO_MANIFEST_DIR")).expect("in the repository").display().to_string();
        let syntax = Syntax::read(&text).unwrap_or_else(|error| panic!("{path}: {error}"));
        SourceFile { path, module, text, syntax, is_test: false }
    }
}

/// The files of all crates.
pub(crate) fn sources() -> &'static [SourceFile] {
    static SOURCES: LazyLock<Vec<SourceFile>> = LazyLock::new(|| {
        let mut paths = Vec::new();
        for krate in &CRATES {
            collect(&krate.source(), &[krate.name.to_owned()], &mut paths);
        }
        let workers = available_parallelism().map_or(1, usize::from);
        let mut files: Vec<SourceFile> = scope(|scope| {
            let parts: Vec<_> = paths.chunks(paths.len().div_ceil(workers)).collect();
            let read = |part: &[(PathBuf, Vec<String>)]| -> Vec<SourceFile> {
                part.iter().map(|(path, module)| SourceFile::read(path, module.clone())).collect()
            };
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || read(part))).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("the files are valid Rust")).collect()
        });
        mark_tests(&mut files);
        assert!(files.len() > 700, "{} files", files.len());
        files
    });
    &SOURCES
}

/// Marks the files whose modules, or modules around them, are declared for tests only.
fn mark_tests(files: &mut [SourceFile]) {
    let mut tests = BTreeSet::new();
    for file in &*files {
        let declared = file.syntax.items.iter().filter(|item| item.is_test && item.kind == ItemKind::ModuleFile);
        tests.extend(declared.map(|item| [file.inner_module(&item.inner), vec![item.name.clone()]].concat()));
    }
    for file in files {
        file.is_test = (1..=file.module.len()).any(|length| tests.contains(&file.module[..length]));
    }
}

/// The Rust files below `folder` with their modules.
fn collect(folder: &Path, module: &[String], into: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in fs::read_dir(folder).expect("a source folder is readable") {
        let path = entry.expect("a source folder is readable").path();
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
        if path.is_dir() {
            collect(&path, &[module, &[stem]].concat(), into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let own = if ["mod", "lib", "main"].contains(&&*stem) { Vec::new() } else { vec![stem] };
            into.push((path, [module, &own].concat()));
        }
    }
}
