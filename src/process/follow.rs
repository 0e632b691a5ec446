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
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Time without notifications before the files are read.
const QUIET: Duration = Duration::from_millis(100);
/// Longest time that a stream of notifications can delay reading the files.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval at which the files are checked without a notification.
const POLL: Duration = Duration::from_secs(10);
/// Maximum directory depth; ends cycles of symbolic links.
const DEPTH: usize = 16;

/// Watches a set of files, or a directory with everything below it.
///
/// Create it *before* reading the files for the first time, so that changes in between are reported.
pub struct Follower {
    roots: Roots,
    /// Absent if the kernel provides no watch (limit reached, unsupported file system); then only the poll is used.
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    /// Paths on which the resolution of the roots depends: the roots, and each symbolic link that leads to them.
    leads: BTreeSet<PathBuf>,
    notices: mpsc::Receiver<()>,
    /// The paths that notifications named.
    named: Arc<Mutex<Named>>,
    /// When a notification was received that is not processed yet (processing may have been canceled).
    noticed: Option<Instant>,
    seen: Fingerprint,
    /// Paths changed since the last [`Follower::take_changed`]; `None` if any path may have changed.
    changed: Option<BTreeSet<PathBuf>>,
}

/// Paths named by notifications that are not processed yet.
#[derive(Default)]
struct Named {
    paths: BTreeSet<PathBuf>,
    /// Whether other paths may be affected, too.
    more: bool,
}

/// With more notified paths than this, all files are checked.
const MANY: usize = 256;

enum Roots {
    Files(Vec<PathBuf>),
    Directory(PathBuf),
}

/// Content digest and file state of each path.
type Fingerprint = BTreeMap<PathBuf, Entry>;

#[derive(Clone)]
struct Entry {
    state: (u64, u64, u64, i64, i64, i64, i64),
    content: [u8; 32],
    /// Whether the path involves a symbolic link: its content can then change without a notification that names it.
    linked: bool,
}

impl Follower {
    /// Watches single files. They need not exist yet.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>) -> Follower {
        Follower::of(Roots::Files(paths.into_iter().map(Into::into).collect()))
    }

    /// Watches every file below `path`, except hidden and temporary ones ([`is_passing`]).
    pub fn directory(path: impl Into<PathBuf>) -> Follower {
        Follower::of(Roots::Directory(path.into()))
    }

    /// Adds single files. Does nothing for the watcher of a directory.
    pub fn add<P: Into<PathBuf>>(&mut self, paths: impl IntoIterator<Item = P>) {
        let Roots::Files(known) = &mut self.roots else { return };
        let more: Vec<PathBuf> = paths.into_iter().map(Into::into).collect();
        if known.is_empty() {
            return *self = Follower::of(Roots::Files(more));
        }
        known.extend_from_slice(&more);
        self.watch_again();
        self.seen.extend(Roots::Files(more).fingerprint(&BTreeMap::new()));
    }

    fn of(roots: Roots) -> Follower {
        // A capacity of one is enough: a pending notification already triggers a check.
        let (sender, notices) = mpsc::channel(1);
        let named = Arc::<Mutex<Named>>::default();
        // A watcher costs a thread; without files there is nothing to watch.
        let watcher = if roots.is_empty() { None } else { watcher(sender, named.clone()) };
        let mut follower = Follower {
            roots,
            watcher,
            watched: BTreeSet::new(),
            leads: BTreeSet::new(),
            notices,
            named,
            noticed: None,
            seen: BTreeMap::new(),
            changed: Some(BTreeSet::new()),
        };
        follower.watch_again();
        follower.seen = follower.roots.fingerprint(&BTreeMap::new());
        follower
    }

    /// Waits until the content differs from that at the last return (or at creation). Cancellation safe: no change is
    /// lost if the future is dropped.
    pub async fn changed(&mut self) {
        loop {
            if self.noticed.is_none() {
                self.noticed = self.notice().await.then(Instant::now);
            }
            if let Some(since) = self.noticed {
                self.wait_for_quiet(since).await;
                if let Some(paths) = self.those_named() {
                    self.noticed = None;
                    if self.look_at(paths) {
                        return;
                    }
                    continue;
                }
            }
            self.watch_again();
            // A file can be written twice within one tick of the file system's clock: after a notification
            // everything is read, a poll trusts an unchanged inode.
            let known = if self.noticed.is_some() { BTreeMap::new() } else { self.seen.clone() };
            self.noticed = None;
            let now = self.roots.fingerprint(&known);
            let same = now.len() == self.seen.len()
                && now.iter().zip(&self.seen).all(|(a, b)| a.0 == b.0 && a.1.content == b.1.content);
            self.seen = now;
            if !same {
                self.changed = None;
                return;
            }
        }
    }

    /// Returns the changed paths of a directory since the last call; `None` if the whole directory has to be read.
    pub fn take_changed(&mut self) -> Option<BTreeSet<PathBuf>> {
        self.changed.replace(BTreeSet::new())
    }

    /// The files of a directory that notifications named; `None` if the whole directory has to be checked.
    fn those_named(&self) -> Option<BTreeSet<PathBuf>> {
        let Named { paths, more } = std::mem::take(&mut *self.named.lock());
        let Roots::Directory(root) = &self.roots else { return None };
        // Notifications carry absolute paths.
        let whole = absolute(root);
        let mut files = BTreeSet::new();
        for path in paths {
            let Ok(below) = path.strip_prefix(&whole) else {
                match self.leads.contains(&path) {
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
                    let below = self.seen.range::<Path, _>((Bound::Excluded(path.as_path()), Bound::Unbounded)).next();
                    if below.is_some_and(|(file, _)| file.starts_with(&path)) {
                        return None;
                    }
                }
            }
            if !is_passing(name) {
                files.insert(path);
            }
        }
        (!more).then_some(files)
    }

    /// Updates the fingerprints of these files and of all linked ones. True if any content changed.
    fn look_at(&mut self, mut paths: BTreeSet<PathBuf>) -> bool {
        paths.extend(self.seen.iter().filter(|(_, entry)| entry.linked).map(|(path, _)| path.clone()));
        let mut any = false;
        for path in paths {
            let before = self.seen.remove(&path);
            let linked = before.as_ref().is_some_and(|entry| entry.linked) || path.is_symlink();
            if fs::metadata(&path).is_ok_and(|data| data.is_file()) {
                look(&path, linked, &BTreeMap::new(), &mut self.seen);
            }
            if before.map(|entry| entry.content) != self.seen.get(&path).map(|entry| entry.content) {
                any = true;
                if let Some(changed) = &mut self.changed {
                    changed.insert(path);
                }
            }
        }
        any
    }

    /// True after a notification, false after the poll interval.
    async fn notice(&mut self) -> bool {
        match timeout(POLL, self.notices.recv()).await {
            Ok(Some(())) => true,
            Ok(None) => {
                sleep(POLL).await;
                false
            }
            Err(_) => false,
        }
    }

    /// Waits until no notification arrives for [`QUIET`], at most until [`PATIENCE`] after `since`, the first one. The
    /// bound also holds if the future is dropped and created again.
    async fn wait_for_quiet(&mut self, since: Instant) {
        let at_last = since + PATIENCE;
        while Instant::now() < at_last {
            let quiet = Instant::now() + QUIET;
            if !matches!(timeout_at(quiet.min(at_last), self.notices.recv()).await, Ok(Some(()))) {
                // Quiet, or the watcher is gone.
                return;
            }
        }
    }

    /// Watches the directories that are relevant now: a symbolic link may have a new target.
    fn watch_again(&mut self) {
        let Some(watcher) = &mut self.watcher else { return };
        self.leads = match &self.roots {
            Roots::Files(paths) => leading_to(paths),
            // The directory itself may be a link, or may be removed and recreated.
            Roots::Directory(path) => leading_to(std::slice::from_ref(path)),
        };
        let mut wanted: BTreeSet<PathBuf> = self.leads.iter().map(|path| parent(path)).collect();
        let whole = match &self.roots {
            Roots::Directory(path) => Some(path),
            Roots::Files(_) => None,
        };
        wanted.extend(whole.cloned());
        for gone in self.watched.difference(&wanted) {
            let _ = watcher.unwatch(gone);
        }
        let mut watched = BTreeSet::new();
        for directory in wanted {
            // A directory that was removed and recreated has silently lost its watch, so each watch is requested
            // again; requesting one twice is not an error.
            let mode = if whole == Some(&directory) { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
            if watcher.watch(&directory, mode).is_ok() {
                watched.insert(directory);
            }
        }
        self.watched = watched;
    }
}

/// Every path that affects what `paths` resolve to if it is renamed.
fn leading_to(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let mut leads = BTreeSet::new();
    for path in paths {
        leads.insert(path.clone());
        leads.extend(fs::canonicalize(path));
        let mut link = path.clone();
        for _ in 0..DEPTH {
            let Ok(target) = fs::read_link(&link) else { break };
            link = parent(&link).join(target);
            leads.insert(link.clone());
        }
    }
    leads.iter().map(|path| absolute(path)).collect()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

impl Named {
    fn add(&mut self, event: notify::Result<notify::Event>) {
        match event {
            Ok(event) if !event.need_rescan() && !event.paths.is_empty() && self.paths.len() < MANY => {
                self.paths.extend(event.paths);
            }
            _ => self.more = true,
        }
    }
}

/// Creates the kernel's file watcher; `None` if there is none.
fn watcher(sender: mpsc::Sender<()>, named: Arc<Mutex<Named>>) -> Option<RecommendedWatcher> {
    let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        if !matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. })) {
            named.lock().add(event);
            let _ = sender.try_send(());
        }
    });
    let told = |error: &notify::Error| {
        tracing::warn!(%error, "file change notifications are unavailable; files are polled instead");
    };
    watcher.inspect_err(told).ok()
}

impl Roots {
    fn is_empty(&self) -> bool {
        matches!(self, Roots::Files(files) if files.is_empty())
    }

    fn fingerprint(&self, known: &Fingerprint) -> Fingerprint {
        let mut found = BTreeMap::new();
        match self {
            Roots::Files(paths) => paths.iter().for_each(|path| look(path, false, known, &mut found)),
            Roots::Directory(path) => walk(path, DEPTH, false, known, &mut found),
        }
        found
    }
}

fn look(path: &Path, linked: bool, known: &Fingerprint, found: &mut Fingerprint) {
    let Ok(data) = fs::metadata(path) else { return };
    let state = (data.dev(), data.ino(), data.size(), data.mtime(), data.mtime_nsec(), data.ctime(), data.ctime_nsec());
    if let Some(entry) = known.get(path).filter(|entry| entry.state == state) {
        found.insert(path.to_owned(), entry.clone());
        return;
    }
    // An unreadable file counts as absent: a change is reported when it becomes readable.
    let Ok(content) = fs::read(path) else { return };
    let digest = digest::digest(&digest::SHA256, &content);
    let mut content = [0; 32];
    content.copy_from_slice(digest.as_ref());
    found.insert(path.to_owned(), Entry { state, content, linked });
}

fn walk(directory: &Path, depth: usize, linked: bool, known: &Fingerprint, found: &mut Fingerprint) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let linked = linked || entry.file_type().is_ok_and(|kind| kind.is_symlink());
        // `metadata` follows links: the files of a mounted ConfigMap are links into `..data`. A directory may be named
        // like an editor's temporary file (`2026`).
        match fs::metadata(&path) {
            Ok(data) if data.is_dir() && depth > 0 && !is_hidden(&name) => {
                walk(&path, depth - 1, linked, known, found);
            }
            Ok(data) if data.is_file() && !is_passing(&name) => look(&path, linked, known, found),
            _ => {}
        }
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether a file name is hidden (`..data`, `.x.swp`) or an editor's temporary file (`x~`, `#x#`, `4913`).
pub fn is_passing(name: &OsStr) -> bool {
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
    async fn changes(follower: &mut Follower) {
        timeout(Duration::from_secs(30), follower.changed()).await.expect("the change is noticed");
    }

    #[tokio::test]
    async fn notices_a_rewritten_and_a_renamed_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = Follower::new([&path]);
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
    async fn the_same_content_is_no_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = Follower::new([&path]);
        fs::write(&path, "one").unwrap();
        let _ = fs::read(&path).unwrap();
        // The clock is the test's own: three polls pass at once.
        assert!(timeout(POLL * 3, follower.changed()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_poll_finds_what_nobody_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.crt");
        fs::write(&path, "one").unwrap();
        let mut follower = Follower::new([&path]);
        follower.watcher = None;
        fs::write(&path, "another").unwrap();
        timeout(POLL * 3, follower.changed()).await.unwrap();
    }

    #[tokio::test]
    async fn understands_the_swap_of_a_mounted_config_map() {
        let dir = tempfile::tempdir().unwrap();
        let mount = dir.path();
        for (version, content) in [("..2024_1", "one"), ("..2024_2", "two")] {
            fs::create_dir(mount.join(version)).unwrap();
            fs::write(mount.join(version).join("ca.crt"), content).unwrap();
        }
        symlink("..2024_1", mount.join("..data")).unwrap();
        symlink("..data/ca.crt", mount.join("ca.crt")).unwrap();
        let mut file = Follower::new([mount.join("ca.crt")]);
        let mut directory = Follower::directory(mount);
        symlink("..2024_2", mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
        changes(&mut file).await;
        changes(&mut directory).await;
    }

    #[tokio::test]
    async fn a_link_into_another_directory_is_followed_there() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("far/away")).unwrap();
        fs::create_dir(dir.path().join("here")).unwrap();
        let real = dir.path().join("far/away/ca.crt");
        fs::write(&real, "one").unwrap();
        let link = dir.path().join("here/ca.crt");
        symlink(&real, &link).unwrap();
        let mut follower = Follower::new([&link]);
        fs::write(&real, "two").unwrap();
        changes(&mut follower).await;
    }

    #[tokio::test]
    async fn a_directory_is_followed_with_all_below_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut follower = Follower::directory(dir.path());
        fs::create_dir(dir.path().join("2026")).unwrap();
        fs::write(dir.path().join("2026/a.yaml"), "one").unwrap();
        changes(&mut follower).await;
        fs::write(dir.path().join("2026/a.yaml"), "two").unwrap();
        changes(&mut follower).await;
        fs::remove_file(dir.path().join("2026/a.yaml")).unwrap();
        changes(&mut follower).await;
    }

    #[tokio::test]
    async fn of_a_directory_those_that_changed_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let only = |names: &[&str]| Some(names.iter().map(|name| path(name)).collect::<BTreeSet<_>>());
        for name in ["a.yaml", "b.yaml", "c.yaml"] {
            fs::write(path(name), "one").unwrap();
        }
        symlink("c.yaml", path("link.yaml")).unwrap();
        let mut follower = Follower::directory(dir.path());
        fs::write(path(".a.yaml.swp"), "two").unwrap();
        fs::write(path("a.yaml"), "two").unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed(), only(&["a.yaml"]));
        assert_eq!(follower.take_changed(), only(&[]));
        // A link to a changed file has changed, too.
        fs::write(path("c.tmp"), "two").unwrap();
        fs::rename(path("c.tmp"), path("c.yaml")).unwrap();
        fs::remove_file(path("b.yaml")).unwrap();
        changes(&mut follower).await;
        let mut changed = follower.take_changed().unwrap();
        // Notifications may arrive one by one.
        while changed.len() < 3 {
            changes(&mut follower).await;
            changed.extend(follower.take_changed().unwrap());
        }
        assert_eq!(Some(changed), only(&["b.yaml", "c.yaml", "link.yaml"]));
        // After a directory was created or removed, the whole directory has to be read.
        fs::create_dir(path("d")).unwrap();
        fs::write(path("d/e.yaml"), "one").unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed(), None);
        fs::rename(path("d"), path("f")).unwrap();
        changes(&mut follower).await;
        assert_eq!(follower.take_changed(), None);
        assert_eq!(follower.take_changed(), only(&[]));
    }

    #[tokio::test]
    async fn a_directory_that_is_a_link_or_made_again_is_followed_on() {
        let dir = tempfile::tempdir().unwrap();
        for version in ["one", "two"] {
            fs::create_dir(dir.path().join(version)).unwrap();
            fs::write(dir.path().join(version).join("a.yaml"), version).unwrap();
        }
        let path = dir.path().join("registry");
        symlink("one", &path).unwrap();
        let mut follower = Follower::directory(&path);
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
    fn knows_passing_names() {
        for name in [".a.yaml.swp", "..data", "a.yaml~", "#a.yaml#", "4913", "a.yaml.tmp"] {
            assert!(is_passing(OsStr::new(name)), "{name}");
        }
        for name in ["a.yaml", "v1.json", "1.yaml"] {
            assert!(!is_passing(OsStr::new(name)), "{name}");
        }
    }
}
