//! Reads the manifest files of the registry directory.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::process::{Problem, is_temporary_name, read_text_with_metadata};

/// The manifests of a directory, in the order of their paths.
pub(in crate::registry) struct DirectoryScan {
    pub(in crate::registry) files: Vec<ManifestFile>,
    /// The paths read, if only some were. A path that is not among `files` then no longer exists.
    pub(in crate::registry) only: Option<BTreeSet<PathBuf>>,
}

/// One manifest file, or the error of reading it. With an error, the path may be a directory.
pub(in crate::registry) struct ManifestFile {
    pub(in crate::registry) path: PathBuf,
    pub(in crate::registry) text: Result<String, Problem>,
    pub(in crate::registry) modified: SystemTime,
}

/// Maximum bytes of a manifest file. An API server accepts no object above 3 MiB.
pub(in crate::registry) const MAX_MANIFEST_BYTES: u64 = 16 << 20;
/// Maximum number of files below the directory.
const MAX_FILES: usize = 20_000;
/// Maximum depth of directories.
const MAX_DEPTH: usize = 16;

impl DirectoryScan {
    /// Reads all manifests below `dir`.
    pub(in crate::registry) fn read_directory(dir: &Path) -> DirectoryScan {
        let mut files = Vec::new();
        for entry in walk(dir) {
            let file = match entry.metadata {
                Ok(found) if is_manifest(&entry.path) => ManifestFile::read(entry.path, &found),
                Ok(_) => continue,
                Err(message) => {
                    let problem = Problem::new(entry.path.display(), message);
                    ManifestFile { path: entry.path, text: Err(problem), modified: SystemTime::UNIX_EPOCH }
                }
            };
            files.push(file);
        }
        DirectoryScan { files, only: None }
    }

    /// Reads the manifests among `paths`, which are paths that a scan of the directory finds.
    pub(in crate::registry) fn read_paths(paths: BTreeSet<PathBuf>) -> DirectoryScan {
        let read = |path: &PathBuf| match fs::metadata(path) {
            Ok(found) if found.is_file() => Some(ManifestFile::read(path.clone(), &found)),
            _ => None,
        };
        let files = paths.iter().filter(|path| is_manifest(path)).filter_map(read).collect();
        DirectoryScan { files, only: Some(paths) }
    }

    /// A scan of these paths and texts, without I/O.
    pub(in crate::registry) fn from_texts(files: &[(&str, &str)]) -> DirectoryScan {
        let file = |(path, text): &(&str, &str)| ManifestFile {
            path: PathBuf::from(path),
            text: Ok((*text).to_owned()),
            modified: SystemTime::UNIX_EPOCH,
        };
        DirectoryScan { files: files.iter().map(file).collect(), only: None }
    }
}

impl ManifestFile {
    fn read(path: PathBuf, found: &Metadata) -> ManifestFile {
        let text = read_text_with_metadata(&path, found, MAX_MANIFEST_BYTES);
        ManifestFile { text, modified: found.modified().unwrap_or(SystemTime::UNIX_EPOCH), path }
    }
}

struct Entry {
    path: PathBuf,
    metadata: Result<Metadata, String>,
}

fn walk(dir: &Path) -> Vec<Entry> {
    let mut entries = Vec::new();
    descend(dir, 0, &mut HashSet::new(), &mut entries);
    entries
}

fn descend(dir: &Path, depth: usize, visited: &mut HashSet<(u64, u64)>, entries: &mut Vec<Entry>) {
    let listed = fs::metadata(dir).and_then(|found| Ok((found, fs::read_dir(dir)?)));
    let (found, listed) = match listed {
        Ok(listed) => listed,
        Err(error) => {
            entries.push(Entry { path: dir.to_owned(), metadata: Err(format!("cannot be read: {error}")) });
            return;
        }
    };
    // A symlink may lead back up.
    if depth > MAX_DEPTH || !visited.insert((found.dev(), found.ino())) {
        return;
    }
    let mut paths: Vec<PathBuf> = Vec::new();
    for one in listed {
        match one {
            // Hidden entries are skipped: `..data` and the like of a mounted ConfigMap (its visible names are symlinks
            // into it), swap and lock files of editors.
            Ok(one) if one.file_name().as_encoded_bytes().starts_with(b".") => {}
            Ok(one) => paths.push(one.path()),
            Err(error) => {
                entries.push(Entry { path: dir.to_owned(), metadata: Err(format!("cannot be read: {error}")) });
            }
        }
    }
    paths.sort();
    for path in paths {
        if entries.len() >= MAX_FILES {
            let found = Err(format!("more than {MAX_FILES} files below it: this is not a registry directory"));
            entries.push(Entry { path: dir.to_owned(), metadata: found });
            return;
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => descend(&path, depth + 1, visited, entries),
            Ok(found) if found.is_file() && !path.file_name().is_some_and(is_temporary_name) => {
                entries.push(Entry { path, metadata: Ok(found) });
            }
            Ok(_) => {}
            // A file deleted after the listing is skipped. A manifest that is a dangling symlink is an error.
            Err(_) if !is_manifest(&path) || path.symlink_metadata().is_err() => {}
            Err(error) => entries.push(Entry { path, metadata: Err(format!("cannot be read: {error}")) }),
        }
    }
}

fn is_manifest(path: &Path) -> bool {
    path.extension().is_some_and(|suffix| suffix == "yaml" || suffix == "yml" || suffix == "json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let files = DirectoryScan::read_directory(dir).files;
        files.iter().map(|file| file.path.strip_prefix(dir).unwrap().display().to_string()).collect()
    }

    #[test]
    fn scan_finds_manifests_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("b/c")).unwrap();
        fs::create_dir(dir.path().join(".git")).unwrap();
        for name in [
            "a.yaml",
            "b/c/d.json",
            "b/x.yml",
            ".hidden.yaml",
            "a.yaml~",
            "#a.yaml#",
            ".a.yaml.swp",
            "README.md",
            ".git/x.yaml",
        ] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink(dir.path(), dir.path().join("b/loop")).unwrap();
        assert_eq!(names(dir.path()), ["a.yaml", "b/c/d.json", "b/x.yml"]);
    }

    #[test]
    fn scan_reads_mounted_config_map_by_visible_names() {
        let dir = tempfile::tempdir().unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.path().join(name)).unwrap();
        fs::create_dir(dir.path().join("..1")).unwrap();
        fs::write(dir.path().join("..1/a.yaml"), "one").unwrap();
        link("..1", "..data");
        link("..data/a.yaml", "a.yaml");
        assert_eq!(names(dir.path()), ["a.yaml"]);
        fs::create_dir(dir.path().join("..2")).unwrap();
        fs::write(dir.path().join("..2/a.yaml"), "two").unwrap();
        link("..2", "..data_tmp");
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
        assert_eq!(DirectoryScan::read_directory(dir.path()).files[0].text, Ok("two".to_owned()));
    }

    #[test]
    fn scan_unreadable_files_reported() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.yaml"), b"x: \xff").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("b.yaml")).unwrap();
        let problems: Vec<String> = DirectoryScan::read_directory(dir.path())
            .files
            .into_iter()
            .map(|file| file.text.unwrap_err().message)
            .collect();
        assert_eq!(problems[0], "not UTF-8 after byte 3");
        assert!(problems[1].starts_with("cannot be read: "), "{problems:?}");
        let missing = DirectoryScan::read_directory(&dir.path().join("missing")).files;
        assert!(missing[0].text.as_ref().unwrap_err().message.starts_with("cannot be read: "));
    }
}
