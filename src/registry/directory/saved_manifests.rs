//! Last valid manifests of the registry directory, saved on disk for the next start.
//!
//! One file per manifest, so that a change costs as much as that manifest. A separate thread writes them: no other
//! task waits for the disk.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::process::replace_file;
use crate::registry::directory::scan::{DirectoryScan, MAX_MANIFEST_BYTES, ManifestFile};

/// Format version of the saved files. Files of another version are ignored.
const FORMAT_VERSION: u32 = 1;

/// Saved manifests of one registry directory. Several registry directories may share one `directory`.
pub(in crate::registry) struct SavedManifests {
    /// Directory of the saved files.
    directory: PathBuf,
    /// The registry directory, as the flag names it.
    registry: PathBuf,
    pending: Arc<Mutex<PendingWrites>>,
}

/// Writes that are queued for the writer thread.
#[derive(Default)]
struct PendingWrites {
    /// By absolute path of the manifest; `None` removes its saved file.
    manifests: BTreeMap<PathBuf, Option<String>>,
    /// Absolute paths of all manifests that exist. Saved files of others are removed.
    present: Option<BTreeSet<PathBuf>>,
    is_writing: bool,
    has_failed: bool,
}

/// First line of a saved file. The manifest follows.
#[derive(Serialize, Deserialize)]
struct SavedManifestHeader {
    form: u32,
    /// The manifest's absolute path.
    path: PathBuf,
}

impl SavedManifests {
    /// Saved manifests of the registry directory `registry` in `directory`, which is created at the first write.
    pub(in crate::registry) fn new(directory: PathBuf, registry: PathBuf) -> SavedManifests {
        SavedManifests { directory, registry, pending: Arc::default() }
    }

    /// Reads the saved manifests of this registry directory. `None` if there are none.
    pub(in crate::registry) fn load(&self) -> Option<DirectoryScan> {
        let registry = std::path::absolute(&self.registry).ok()?;
        let mut files: Vec<ManifestFile> = saved_files(&self.directory)
            .filter_map(|file| {
                let (heading, text) = read(&file).ok()?;
                // The same paths as in a scan of the registry directory.
                let path = self.registry.join(heading.path.strip_prefix(&registry).ok()?);
                Some(ManifestFile { path, text: Ok(text), modified: SystemTime::UNIX_EPOCH })
            })
            .collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        (!files.is_empty()).then_some(DirectoryScan { files, only: None })
    }

    /// Saves these manifests in the background; `None` removes one. After a full scan, `present` holds all manifests:
    /// saved files of others are removed.
    pub(in crate::registry) fn save(
        &self,
        manifests: BTreeMap<PathBuf, Option<String>>,
        present: Option<BTreeSet<PathBuf>>,
    ) {
        let Ok(registry) = std::path::absolute(&self.registry) else { return };
        let absolute = |path: PathBuf| match path.strip_prefix(&self.registry) {
            Ok(below) => registry.join(below),
            Err(_) => path,
        };
        let mut pending = self.pending.lock();
        pending.manifests.extend(manifests.into_iter().map(|(path, text)| (absolute(path), text)));
        if let Some(present) = present {
            pending.present = Some(present.into_iter().map(absolute).collect());
        }
        if pending.is_writing || (pending.manifests.is_empty() && pending.present.is_none()) {
            return;
        }
        let (directory, shared) = (self.directory.clone(), self.pending.clone());
        let writing = std::thread::Builder::new()
            .name("registry-save".into())
            .spawn(move || write_all(&directory, &registry, &shared));
        match writing {
            Ok(_) => pending.is_writing = true,
            Err(error) => tracing::warn!(%error, "registry not saved for the next start: cannot start a thread"),
        }
    }
}

/// Writes until nothing is pending.
fn write_all(directory: &Path, registry: &Path, pending: &Mutex<PendingWrites>) {
    loop {
        let mut now = pending.lock();
        let done = if let Some((path, text)) = now.manifests.pop_first() {
            drop(now);
            match text {
                Some(text) => write(directory, &path, &text),
                None => remove(&saved_path(directory, &path)),
            }
        } else if let Some(present) = now.present.take() {
            drop(now);
            remove_stale(directory, registry, &present);
            Ok(())
        } else {
            now.is_writing = false;
            return;
        };
        let mut now = pending.lock();
        if let Err(error) = &done
            && !now.has_failed
        {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "registry not saved for the next start: see --data-dir");
        }
        now.has_failed = done.is_err();
    }
}

/// The completely written files of `directory`.
fn saved_files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| !is_temporary(entry)).map(|entry| entry.path())
}

fn is_temporary(entry: &fs::DirEntry) -> bool {
    entry.file_name().as_encoded_bytes().starts_with(b".")
}

/// Path of the saved file of the manifest with this absolute path.
fn saved_path(directory: &Path, path: &Path) -> PathBuf {
    let digest = digest::digest(&digest::SHA256, path.as_os_str().as_encoded_bytes());
    let mut name = String::with_capacity(64);
    for byte in digest.as_ref() {
        let _ = write!(name, "{byte:02x}");
    }
    directory.join(name)
}

fn read(file: &Path) -> io::Result<(SavedManifestHeader, String)> {
    let mut content = String::new();
    File::open(file)?.take(MAX_MANIFEST_BYTES + (1 << 20)).read_to_string(&mut content)?;
    let (heading, text) = content.split_once('\n').unwrap_or_default();
    let heading: SavedManifestHeader = serde_json::from_str(heading)?;
    match heading.form {
        FORMAT_VERSION => Ok((heading, text.to_owned())),
        _ => Err(io::Error::other("unknown format version")),
    }
}

fn write(directory: &Path, path: &Path, text: &str) -> io::Result<()> {
    let file = saved_path(directory, path);
    if read(&file).is_ok_and(|(_, saved)| saved == text) {
        return Ok(());
    }
    let heading = serde_json::to_string(&SavedManifestHeader { form: FORMAT_VERSION, path: path.to_owned() })?;
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    replace_file(&file, format!("{heading}\n{text}"), 0o600).map_err(io::Error::other)
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Removes saved files of manifests of `registry` that are not `present`. A present path that cannot be read may be a
/// directory: saved files below it stay.
fn remove_stale(directory: &Path, registry: &Path, present: &BTreeSet<PathBuf>) {
    for file in saved_files(directory) {
        let Ok((SavedManifestHeader { path, .. }, _)) = read(&file) else { continue };
        if path.starts_with(registry) && !path.ancestors().any(|path| present.contains(path)) {
            let _ = remove(&file);
        }
    }
    // Incomplete files of a crash.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten().filter(is_temporary) {
        let _ = remove(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn save(saved: &SavedManifests, manifests: &[(&str, Option<&str>)], present: Option<&[&str]>) {
        let path = |name: &str| saved.registry.join(name);
        let manifests = manifests.iter().map(|(name, text)| (path(name), text.map(str::to_owned))).collect();
        saved.save(manifests, present.map(|present| present.iter().map(|name| path(name)).collect()));
        while saved.pending.lock().is_writing {
            std::thread::yield_now();
        }
    }

    fn loaded(saved: &SavedManifests) -> Vec<(String, String)> {
        let files = saved.load().map(|scan| scan.files).unwrap_or_default();
        files.into_iter().map(|file| (file.path.display().to_string(), file.text.unwrap())).collect()
    }

    #[test]
    fn saved_manifests_kept_apart_by_registry_directory() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("saved");
        let of = |registry: &str| SavedManifests::new(place.clone(), registry.into());
        let (one, other) = (of("one"), of("/other"));
        assert!(one.load().is_none());
        save(&one, &[("b/c.yaml", Some("c\nd")), ("a.yaml", Some("a"))], None);
        save(&other, &[("a.yaml", Some("other's"))], None);
        let pair = |path: &str, text: &str| (path.to_owned(), text.to_owned());
        assert_eq!(loaded(&one), [pair("one/a.yaml", "a"), pair("one/b/c.yaml", "c\nd")]);
        assert_eq!(loaded(&other), [pair("/other/a.yaml", "other's")]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&place), mode(&saved_files(&place).next().unwrap())), (0o700, 0o600));

        save(&one, &[("a.yaml", None), ("never.yaml", None)], None);
        assert_eq!(loaded(&one), [pair("one/b/c.yaml", "c\nd")]);
        fs::write(place.join(".torn.tmp"), "x").unwrap();
        // `b` cannot be read.
        save(&one, &[("z.yaml", Some("z"))], Some(&["b", "z.yaml"]));
        assert_eq!(loaded(&one).len(), 2);
        save(&one, &[], Some(&["z.yaml"]));
        assert_eq!((loaded(&one), loaded(&other).len()), (vec![pair("one/z.yaml", "z")], 1));
        assert!(!place.join(".torn.tmp").exists());
    }

    #[test]
    fn saved_manifests_corrupt_files_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let saved = SavedManifests::new(dir.path().to_owned(), "/r".into());
        for (number, text) in
            ["", "no heading", "{\"form\":2,\"path\":\"/r/a\"}\nx", "{\"form\":1,\"path\":\"/s/a\"}\nx"]
                .into_iter()
                .enumerate()
        {
            fs::write(dir.path().join(number.to_string()), text).unwrap();
        }
        assert!(saved.load().is_none());
    }
}
