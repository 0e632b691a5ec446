//! Watches files on disk and reports when their content has changed.
//!
//! Kernel notifications (inotify) are only hints. A change is reported when the digest of the readable content
//! differs from the previous one. A ConfigMap's `..data` swap, an editor that writes a temporary file and renames it,
//! a `touch`, and a lost notification are therefore all handled correctly. A poll finds changes for which the kernel
//! sends no notification (network file systems).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::shared_notifier::{NotifierSubscription, WatchScope, absolute};
use crate::process::{Drain, ShutdownPhase};

/// Time without notifications before the files are read.
const QUIET_PERIOD: Duration = Duration::from_millis(100);
/// Longest time that a stream of notifications can delay reading the files.
const MAX_DEBOUNCE: Duration = Duration::from_secs(1);
/// Interval at which the files are checked without a notification.
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum directory depth; ends cycles of symbolic links.
const MAX_DEPTH: usize = 16;

/// Watches a set of files, or a directory with everything below it.
///
/// Create it *before* reading the files for the first time, so that changes in between are reported.
pub struct FileWatcher {
    roots: WatchRoots,
    /// Absent if the kernel provides no watch (limit reached, unsupported file system); then only the poll is used.
    watcher: Option<NotifierSubscription>,
    watched: BTreeSet<PathBuf>,
    /// Paths on which the resolution of the roots depends: the roots, and each symbolic link that leads to them.
    resolution_paths: BTreeSet<PathBuf>,
    notifications: mpsc::Receiver<()>,
    /// The paths that notifications named.
    notified: Arc<Mutex<NotifiedPaths>>,
    /// When a notification was received that is not processed yet (processing may have been canceled).
    notified_at: Option<Instant>,
    fingerprints: Fingerprints,
    /// Paths changed since the last [`FileWatcher::take_changed_paths`]; `None` if any path may have changed.
    changed: Option<BTreeSet<PathBuf>>,
}

/// Paths named by notifications that are not processed yet.
#[derive(Default)]
struct NotifiedPaths {
    paths: BTreeSet<PathBuf>,
    /// Whether other paths may be affected, too.
    incomplete: bool,
}

/// With more notified paths than this, all files are checked.
const MAX_NOTIFIED_PATHS: usize = 256;

enum WatchRoots {
    Files(Vec<PathBuf>),
    Directory(PathBuf),
}

/// Content digest and file state of each path.
type Fingerprints = BTreeMap<PathBuf, FileFingerprint>;

#[derive(Clone)]
struct FileFingerprint {
    state: (u64, u64, u64, i64, i64, i64, i64),
    content: [u8; 32],
    /// Whether the path involves a symbolic link: its content can then change without a notification that names it.
    is_linked: bool,
}

impl FileWatcher {
    /// Watches single files. They need not exist yet.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> FileWatcher {
        FileWatcher::with_roots(WatchRoots::Files(paths.into_iter().map(Into::into).collect()))
    }

    /// Watches every file below `path`, except hidden and temporary ones ([`is_temporary_name`]).
    pub fn for_directory(path: impl Into<PathBuf>) -> FileWatcher {
        FileWatcher::with_roots(WatchRoots::Directory(path.into()))
    }

    /// Adds single files. Does nothing for the watcher of a directory.
    pub fn add<P: Into<PathBuf>>(&mut self, paths: impl IntoIterator<Item = P>) {
        let WatchRoots::Files(known) = &mut self.roots else { return };
        let more: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        if known.is_empty() {
            return *self = FileWatcher::with_roots(WatchRoots::Files(more));
        }
        known.extend_from_slice(&more);
        self.update_watches();
        self.fingerprints.extend(WatchRoots::Files(more).fingerprint(&BTreeMap::new()));
    }

    fn with_roots(roots: WatchRoots) -> FileWatcher {
        // A capacity of one is enough: a pending notification already triggers a check.
        let (sender, notices) = mpsc::channel(1);
        let named = Arc::<Mutex<NotifiedPaths>>::default();
        let watcher = if roots.is_empty() { None } else { subscribe(sender, named.clone()) };
        let mut follower = FileWatcher {
            roots,
            watcher,
            watched: BTreeSet::new(),
            resolution_paths: BTreeSet::new(),
            notifications: notices,
            notified: named,
            notified_at: None,
            fingerprints: BTreeMap::new(),
            changed: Some(BTreeSet::new()),
        };
        follower.update_watches();
        follower.fingerprints = follower.roots.fingerprint(&BTreeMap::new());
        follower
    }

    /// Waits for the next change. Returns `false` once the process ends.
    pub async fn changed_before_end(&mut self, drain: &mut Drain) -> bool {
        tokio::select! {
            () = self.changed() => true,
            () = drain.wait_for(ShutdownPhase::Ending) => false,
        }
    }

    /// Waits until the content differs from that at the last return (or at creation). Cancellation safe: no change is
    /// lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            if self.notified_at.is_none() {
                self.notified_at = self.wait_for_notification().await.then(Instant::now);
            }
            if let Some(since) = self.notified_at {
                self.wait_for_quiet(since).await;
                if let Some(paths) = self.notified_files() {
                    self.notified_at = None;
                    if self.refresh_fingerprints(paths) {
                        return;
                    }
                    continue;
                }
            }
            self.update_watches();
            // A file can be written twice within one tick of the file system's clock: after a notification
            // everything is read, a poll trusts an unchanged inode.
            let previous = if self.notified_at.is_some() { BTreeMap::new() } else { self.fingerprints.clone() };
            self.notified_at = None;
            let now = self.roots.fingerprint(&previous);
            let same = now.len() == self.fingerprints.len()
                && now.iter().zip(&self.fingerprints).all(|(a, b)| a.0 == b.0 && a.1.content == b.1.content);
            self.fingerprints = now;
            if !same {
                self.changed = None;
                return;
            }
        }
    }

    /// Returns the changed paths of a directory since the last call; `None` if the whole directory has to be read.
    pub fn take_changed_paths(&mut self) -> Option<BTreeSet<PathBuf>> {
        self.changed.replace(BTreeSet::new())
    }

    /// The files of a directory that notifications named; `None` if the whole directory has to be checked.
    fn notified_files(&self) -> Option<BTreeSet<PathBuf>> {
        let NotifiedPaths { paths, incomplete: more } = std::mem::take(&mut *self.notified.lock());
        let WatchRoots::Directory(root) = &self.roots else { return None };
        // Notifications carry absolute paths.
        let whole = absolute(root);
        let mut files = BTreeSet::new();
        for path in paths {
            let Ok(below) = path.strip_prefix(&whole) else {
                match self.resolution_paths.contains(&path) {
                    true => return None,
                    false => continue,
                }
            };
            let path = root.join(below);
            let mut names = below.iter();
            let name = names.next_back()?;
            // `..data` and similar links affect other paths.
            if name.as_encoded_bytes().starts_with(b"..") || names.any(is_hidden) {
                return None;
            }
            match fs::metadata(&path) {
                Ok(data) if data.is_dir() => return None,
                Ok(_) => {}
                Err(_) => {
                    let below =
                        self.fingerprints.range::<Path, _>((Bound::Excluded(path.as_path()), Bound::Unbounded)).next();
                    if below.is_some_and(|(file, _)| file.starts_with(&path)) {
                        return None;
                    }
                }
            }
            if !is_temporary_name(name) {
                files.insert(path);
            }
        }
        (!more).then_some(files)
    }

    /// Updates the fingerprints of these files and of all linked ones. True if any content changed.
    fn refresh_fingerprints(&mut self, mut paths: BTreeSet<PathBuf>) -> bool {
        paths.extend(self.fingerprints.iter().filter(|(_, entry)| entry.is_linked).map(|(path, _)| path.clone()));
        let mut any = false;
        for path in paths {
            let before = self.fingerprints.remove(&path);
            let linked = before.as_ref().is_some_and(|entry| entry.is_linked) || path.is_symlink();
            if fs::metadata(&path).is_ok_and(|data| data.is_file()) {
                fingerprint_file(&path, linked, &BTreeMap::new(), &mut self.fingerprints);
            }
            if before.map(|entry| entry.content) != self.fingerprints.get(&path).map(|entry| entry.content) {
                any = true;
                if let Some(changed) = &mut self.changed {
                    changed.insert(path);
                }
            }
        }
        any
    }

    /// True after a notification, false after the poll interval.
    async fn wait_for_notification(&mut self) -> bool {
        match timeout(POLL_INTERVAL, self.notifications.recv()).await {
            Ok(Some(())) => true,
            Ok(None) => {
                sleep(POLL_INTERVAL).await;
                false
            }
            Err(_) => false,
        }
    }

    /// Waits until no notification arrives for [`QUIET_PERIOD`], at most until [`MAX_DEBOUNCE`] after `since`, the first one. The
    /// bound also holds if the future is dropped and created again.
    async fn wait_for_quiet(&mut self, since: Instant) {
        let at_last = since + MAX_DEBOUNCE;
        while Instant::now() < at_last {
            let quiet = Instant::now() + QUIET_PERIOD;
            if !matches!(timeout_at(quiet.min(at_last), self.notifications.recv()).await, Ok(Some(()))) {
                // Quiet, or the watcher is gone.
                return;
            }
        }
    }

    /// Watches the directories that are relevant now: a symbolic link may have a new target.
    fn update_watches(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        let roots = match &self.roots {
            WatchRoots::Files(paths) => paths,
            // The directory itself may be a link, or may be removed and recreated.
            WatchRoots::Directory(path) => std::slice::from_ref(path),
        };
        self.resolution_paths = resolution_paths(roots);
        watcher.set_paths(&self.resolution_paths);
        let mut directories: BTreeSet<PathBuf> = self.resolution_paths.iter().map(|path| parent(path)).collect();
        let whole = match &self.roots {
            WatchRoots::Directory(path) => Some(path),
            WatchRoots::Files(_) => None,
        };
        directories.extend(whole.cloned());
        for gone in self.watched.difference(&directories) {
            watcher.unwatch(gone);
        }
        // The kernel reports a directory under one of its names only, and links may lead through it: with a link, every
        // change in a watched directory counts. Otherwise those of other files, like a log, do not.
        let has_links = roots.iter().any(|path| is_linked(path));
        let scope = if has_links { WatchScope::Directory } else { WatchScope::Paths };
        let mut watched = BTreeSet::new();
        for directory in directories {
            // A directory that was removed and recreated has silently lost its watch, so each watch is requested
            // again; requesting one twice is not an error.
            let scope = if whole == Some(&directory) { WatchScope::Tree } else { scope };
            if watcher.watch(&directory, scope) {
                watched.insert(directory);
            }
        }
        self.watched = watched;
    }
}

/// Every path that affects what `paths` resolve to if it is renamed.
fn resolution_paths(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut leads = BTreeSet::new();
    for path in paths {
        leads.insert(path.clone());
        leads.extend(fs::canonicalize(path));
        let mut link = path.clone();
        for _ in 0..MAX_DEPTH {
            let Ok(target) = fs::read_link(&link) else { break };
            link = parent(&link).join(target);
            leads.insert(link.clone());
        }
    }
    leads.iter().map(|path| absolute(path)).collect()
}

/// Whether `path` is another name of its file, by a symbolic link or `..`. The file need not exist.
fn is_linked(path: &Path) -> bool {
    let real = fs::canonicalize(path).or_else(|error| match path.file_name() {
        Some(name) => Ok(fs::canonicalize(parent(path))?.join(name)),
        None => Err(error),
    });
    real.map_or(true, |real| real != absolute(path))
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

impl NotifiedPaths {
    fn record(&mut self, event: &notify::Result<notify::Event>) {
        match event {
            Ok(event) if !event.need_rescan() && !event.paths.is_empty() && self.paths.len() < MAX_NOTIFIED_PATHS => {
                self.paths.extend(event.paths.iter().cloned());
            }
            _ => self.incomplete = true,
        }
    }
}

/// Subscribes to the kernel's notifications; `None` if there are none.
fn subscribe(sender: mpsc::Sender<()>, named: Arc<Mutex<NotifiedPaths>>) -> Option<NotifierSubscription> {
    NotifierSubscription::new(move |event| {
        named.lock().record(event);
        let _ = sender.try_send(());
    })
}

impl WatchRoots {
    fn is_empty(&self) -> bool {
        matches!(self, WatchRoots::Files(files) if files.is_empty())
    }

    fn fingerprint(&self, previous: &Fingerprints) -> Fingerprints {
        let mut found = BTreeMap::new();
        match self {
            WatchRoots::Files(paths) => {
                paths.iter().for_each(|path| fingerprint_file(path, false, previous, &mut found))
            }
            WatchRoots::Directory(path) => fingerprint_directory(path, MAX_DEPTH, false, previous, &mut found),
        }
        found
    }
}

fn fingerprint_file(path: &Path, linked: bool, previous: &Fingerprints, found: &mut Fingerprints) {
    let Ok(data) = fs::metadata(path) else { return };
    let state = (data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
    if let Some(entry) = previous.get(path).filter(|entry| entry.state == state) {
        found.insert(path.to_owned(), entry.clone());
        return;
    }
    // An unreadable file counts as absent: a change is reported when it becomes readable.
    let Ok(content) = fs::read(path) else { return };
    let digest = digest::digest(&digest::SHA256, &content);
    let mut content = [0; 32];
    content.copy_from_slice(digest.as_ref());
    found.insert(path.to_owned(), FileFingerprint { state, content, is_linked: linked });
}

fn fingerprint_directory(
    directory: &Path,
    depth: usize,
    linked: bool,
    previous: &Fingerprints,
    found: &mut Fingerprints,
) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let linked = linked || entry.file_type().is_ok_and(|kind| kind.is_symlink());
        // `metadata` follows links: the files of a mounted ConfigMap are links into `..data`. A directory may be named
        // like an editor's temporary file (`2026`).
        match fs::metadata(&path) {
            Ok(data) if data.is_dir() && depth > 0 && !is_hidden(&name) => {
                fingerprint_directory(&path, depth - 1, linked, previous, found);
            }
            Ok(data) if data.is_file() && !is_temporary_name(&name) => fingerprint_file(&path, linked, previous, found),
            _ => {}
        }
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether a file name is hidden (`..data`, `.x.swp`) or an editor's temporary file (`x~`, `#x#`, `4913`).
pub fn is_temporary_name(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with('.')
        || name.starts_with('#')
        || name.ends_with('~')
        || [".tmp", ".swp", ".bak", ".part"].iter().any(|suffix| name.ends_with(suffix))
        || (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Waits for a change; the timeout is long enough for a loaded machine.
    async fn changes(follower: &mut FileWatcher) {
        timeout(Duration::from_secs(30), follower.changed()).await.expect("the change is noticed");
    }

    #[tokio::test]
    async fn file_watcher_reports_rewritten_and_renamed_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = FileWatcher::new([&path]);
        fs::write(&path, "two").unwrap();
        changes(&mut follower).await;
        let other = dir.path().join("b.crt");
        fs::write(&other, "one").unwrap();
        follower.add([&other]);
        fs::write(&other, "two").unwrap();
        changes(&mut follower).await;
        let temporary = dir.path().join("b");
        fs::write(&temporary, "three").unwrap();
        fs::rename(&temporary, &path).unwrap();
        changes(&mut follower).await;
        fs::remove_file(&path).unwrap();
        changes(&mut follower).await;
        fs::write(&path, "three").unwrap();
        changes(&mut follower).await;
    }

    #[tokio::test(start_paused = true)]
    async fn file_watcher_ignores_rewrite_with_same_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = FileWatcher::new([&path]);
        fs::write(&path, "one").unwrap();
        let _ = fs::read(&path).unwrap();
        // The clock is the test's own: three polls pass at once.
        assert!(timeout(POLL_INTERVAL * 3, follower.changed()).await.is_err());
    }

    #[tokio::test]
    async fn reads_and_other_files_of_a_directory_cause_no_notification() {
        let dir = tempfile::tempdir().unwrap();
        let (path, log) = (dir.path().join("a.crt"), dir.path().join("narthex.log"));
        fs::write(&path, "one").unwrap();
        let mut follower = FileWatcher::new([&path]);
        fs::write(&log, "line").unwrap();
        let _ = fs::read(&path).unwrap();
        fs::remove_file(&log).unwrap();
        // Notifications are in order: that of the last change is the end of the others.
        let last = dir.path().join("last");
        let mut end = FileWatcher::new([&last]);
        fs::write(&last, "end").unwrap();
        changes(&mut end).await;
        // An error of the kernel's queue, which all tests share, is told to all followers, without a path.
        assert_eq!(follower.notified.lock().paths, BTreeSet::new());
        while follower.notifications.try_recv().is_ok() {}
        fs::write(&path, "two").unwrap();
        assert_eq!(timeout(POLL_INTERVAL / 2, follower.notifications.recv()).await, Ok(Some(())));
    }

    #[tokio::test(start_paused = true)]
    async fn file_watcher_poll_finds_change_without_notification() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = FileWatcher::new([&path]);
        follower.watcher = None;
        fs::write(&path, "another").unwrap();
        timeout(POLL_INTERVAL * 3, follower.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn file_watcher_reports_config_map_data_swap() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        for (version, content) in [("..2024_1", "one"), ("..2024_2", "two")] {
            fs::create_dir(mount.join(version)).unwrap();
            fs::write(mount.join(version).join("ca.crt"), content).unwrap();
        }
        symlink("..2024_1", mount.join("..data")).unwrap();
        symlink("..data/ca.crt", mount.join("ca.crt")).unwrap();
        let mut file = FileWatcher::new([mount.join("ca.crt")]);
        let mut directory = FileWatcher::for_directory(mount);
        symlink("..2024_2", mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
        changes(&mut file).await;
        changes(&mut directory).await;
    }

    #[tokio::test]
    async fn file_watcher_follows_symlink_into_other_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("far/away")).unwrap();
        fs::create_dir(dir.path().join("here")).unwrap();
        let real = dir.path().join("far/away/ca.crt");
        fs::write(&real, "one").unwrap();
        let link = dir.path().join("here/ca.crt");
        symlink(&real, &link).unwrap();
        let mut follower = FileWatcher::new([&link]);
        fs::write(&real, "two").unwrap();
        changes(&mut follower).await;
    }

    #[tokio::test]
    async fn changes_behind_links_are_notified() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["real", "v1", "v2"] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("ca.crt"), name).unwrap();
        }
        fs::write(path("real/one.crt"), "one").unwrap();
        symlink("ca.crt", path("real/link.crt")).unwrap();
        symlink("real", path("z")).unwrap();
        symlink("v1", path("stage")).unwrap();
        symlink("stage", path("current")).unwrap();
        symlink("current/ca.crt", path("ca.crt")).unwrap();
        let swap = |target: &str, link: &str| {
            symlink(target, path("next")).unwrap();
            fs::rename(path("next"), path(link)).unwrap();
        };
        // Less than the interval of polls.
        let notified = async |follower: &mut FileWatcher| {
            timeout(POLL_INTERVAL / 2, follower.changed()).await.expect("a notification");
        };
        // One watcher at a time: the kernel reports a directory under one name, that of the last watch.
        let mut by_name = FileWatcher::new([path("z/link.crt")]);
        swap("one.crt", "real/link.crt");
        notified(&mut by_name).await;
        drop(by_name);
        let mut by_parent = FileWatcher::new([path("v1/../real/link.crt")]);
        swap("ca.crt", "real/link.crt");
        notified(&mut by_parent).await;
        drop(by_parent);
        let mut both_names = FileWatcher::new([path("real/ca.crt"), path("z/one.crt")]);
        fs::write(path("real/ca.crt"), "changed").unwrap();
        notified(&mut both_names).await;
        drop(both_names);
        let mut by_chain = FileWatcher::new([path("ca.crt")]);
        swap("v2", "stage");
        notified(&mut by_chain).await;
    }

    #[tokio::test]
    async fn directory_watcher_reports_changes_below() {
        let dir = tempfile::tempdir().unwrap();
        let mut follower = FileWatcher::for_directory(dir.path());
        fs::create_dir(dir.path().join("2026")).unwrap();
        fs::write(dir.path().join("2026/a.yaml"), "one").unwrap();
        changes(&mut follower).await;
        fs::write(dir.path().join("2026/a.yaml"), "two").unwrap();
        changes(&mut follower).await;
        fs::remove_file(dir.path().join("2026/a.yaml")).unwrap();
        changes(&mut follower).await;
    }

    #[tokio::test]
    async fn directory_watcher_names_changed_paths() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let only = |names: &[&str]| Some(names.iter().map(|name| path(name)).collect::<BTreeSet<_>>());
        for name in ["a.yaml", "b.yaml", "c.yaml"] {
            fs::write(path(name), "one").unwrap();
        }
        symlink("c.yaml", path("link.yaml")).unwrap();
        let mut follower = FileWatcher::for_directory(dir.path());
        fs::write(path(".a.yaml.swp"), "two").unwrap();
        fs::write(path("a.yaml"), "two").unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed_paths(), only(&["a.yaml"]));
        assert_eq!(follower.take_changed_paths(), only(&[]));
        // A link to a changed file has changed, too.
        fs::write(path("c.tmp"), "two").unwrap();
        fs::rename(path("c.tmp"), path("c.yaml")).unwrap();
        fs::remove_file(path("b.yaml")).unwrap();
        changes(&mut follower).await;
        let mut changed = follower.take_changed_paths().unwrap();
        // Notifications may arrive one by one.
        while changed.len() < 3 {
            changes(&mut follower).await;
            changed.extend(follower.take_changed_paths().unwrap());
        }
        assert_eq!(Some(changed), only(&["b.yaml", "c.yaml", "link.yaml"]));
        // After a directory was created or removed, the whole directory has to be read.
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/e.yaml"), "one").unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed_paths(), None);
        fs::rename(path("d"), path("f")).unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed_paths(), None);
        assert_eq!(follower.take_changed_paths(), only(&[]));
    }

    #[tokio::test]
    async fn directory_watcher_survives_symlink_swap_and_recreation() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["one", "two"] {
            fs::create_dir(dir.path().join(version)).unwrap();
            fs::write(dir.path().join(version).join("a.yaml"), version).unwrap();
        }
        let path = dir.path().join("registry");
        symlink("one", &path).unwrap();
        let mut follower = FileWatcher::for_directory(&path);
        symlink("two", dir.path().join("next")).unwrap();
        fs::rename(dir.path().join("next"), &path).unwrap();
        changes(&mut follower).await;
        fs::write(path.join("a.yaml"), "three").unwrap();
        changes(&mut follower).await;
        fs::remove_file(&path).unwrap();
        changes(&mut follower).await;
        fs::create_dir(&path).unwrap();
        fs::write(path.join("a.yaml"), "four").unwrap();
        changes(&mut follower).await;
        fs::write(path.join("a.yaml"), "five").unwrap();
        changes(&mut follower).await;
    }

    #[test]
    fn temporary_file_names_are_recognized() {
        for name in [".a.yaml.swp", "..data", "a.yaml~", "#a.yaml#", "4913", "a.yaml.tmp"] {
            assert!(is_temporary_name(OsStr::new(name)), "{name}");
        }
        for name in ["a.yaml", "v1.json", "1.yaml"] {
            assert!(!is_temporary_name(OsStr::new(name)), "{name}");
        }
    }
}
