//! The kernel's file notifications (inotify), shared by all file watchers of the process: one instance and one thread,
//! however many files are watched. The kernel allows a user 128 instances by default.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;

/// Called on the thread of the notifications with each change that the subscription is for.
type EventHandler = Box<dyn Fn(&notify::Result<notify::Event>) + Send>;

/// The notifications of the process.
static NOTIFIER: LazyLock<SharedNotifier> = LazyLock::new(SharedNotifier::default);

/// The number of the next subscription.
static NEXT_SUBSCRIPTION: AtomicU64 = AtomicU64::new(0);

/// The watched paths of one file watcher. Ends when it is dropped.
pub(super) struct NotifierSubscription {
    number: u64,
    paths: BTreeSet<PathBuf>,
    directories: BTreeSet<PathBuf>,
}

/// Which changes in a watched directory are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchScope {
    /// Those of paths that are set ([`NotifierSubscription::set_paths`]).
    Paths,
    /// All.
    Directory,
    /// All, and those in the directories below it.
    Tree,
}

/// Two locks: a call to the kernel's watcher waits for its thread, which may be calling handlers.
#[derive(Default)]
struct SharedNotifier {
    watches: Mutex<KernelWatches>,
    handlers: Mutex<EventHandlers>,
}

/// The kernel's watcher and the subscriptions of each directory.
#[derive(Default)]
struct KernelWatches {
    /// Created for the first subscription.
    watcher: Option<RecommendedWatcher>,
    directories: BTreeMap<PathBuf, BTreeMap<u64, RecursiveMode>>,
}

#[derive(Default)]
struct EventHandlers {
    by_subscription: HashMap<u64, EventHandler>,
    /// Subscriptions by path. A change of a directory is also one of the paths below it.
    by_path: BTreeMap<PathBuf, BTreeSet<u64>>,
    /// Subscriptions by directory, for every change below it that the kernel reports.
    by_directory: BTreeMap<PathBuf, BTreeSet<u64>>,
}

impl NotifierSubscription {
    /// Subscribes `handler` to the changes of paths that are set later; none if the kernel has no notifications.
    pub(super) fn new(
        handler: impl Fn(&notify::Result<notify::Event>) + Send + 'static,
    ) -> Option<NotifierSubscription> {
        let mut watches = NOTIFIER.watches.lock();
        if watches.watcher.is_none() {
            let created = notify::recommended_watcher(|event| {
                if !is_access(&event) {
                    NOTIFIER.handlers.lock().dispatch(&event);
                }
            });
            let created = created.inspect_err(|error| {
                tracing::warn!(%error, "file change notifications are unavailable; files are polled instead");
            });
            watches.watcher = Some(created.ok()?);
        }
        drop(watches);
        let number = NEXT_SUBSCRIPTION.fetch_add(1, Ordering::Relaxed);
        NOTIFIER.handlers.lock().by_subscription.insert(number, Box::new(handler));
        Some(NotifierSubscription { number, paths: BTreeSet::new(), directories: BTreeSet::new() })
    }

    /// Replaces the paths whose changes are reported. They are absolute; the caller also watches their directories.
    pub(super) fn set_paths(&mut self, paths: &BTreeSet<PathBuf>) {
        let mut handlers = NOTIFIER.handlers.lock();
        for gone in self.paths.difference(paths) {
            remove_subscription(&mut handlers.by_path, gone, self.number);
        }
        for path in paths.difference(&self.paths) {
            handlers.by_path.entry(path.clone()).or_default().insert(self.number);
        }
        self.paths.clone_from(paths);
    }

    /// Watches `directory`, again if it is watched already: a directory that was removed and recreated has silently
    /// lost its watch. Returns whether the kernel watches it.
    pub(super) fn watch(&mut self, directory: &Path, scope: WatchScope) -> bool {
        let directory = absolute(directory);
        {
            let by_directory = &mut NOTIFIER.handlers.lock().by_directory;
            match scope {
                WatchScope::Paths => remove_subscription(by_directory, &directory, self.number),
                WatchScope::Directory | WatchScope::Tree => {
                    by_directory.entry(directory.clone()).or_default().insert(self.number);
                }
            }
        }
        let mode = match scope {
            WatchScope::Tree => RecursiveMode::Recursive,
            WatchScope::Paths | WatchScope::Directory => RecursiveMode::NonRecursive,
        };
        self.directories.insert(directory.clone());
        let mut watches = NOTIFIER.watches.lock();
        watches.directories.entry(directory.clone()).or_default().insert(self.number, mode);
        watches.request(&directory)
    }

    /// Ends the watch of `directory`.
    pub(super) fn unwatch(&mut self, directory: &Path) {
        let directory = absolute(directory);
        remove_subscription(&mut NOTIFIER.handlers.lock().by_directory, &directory, self.number);
        self.directories.remove(&directory);
        NOTIFIER.watches.lock().release(&directory, self.number);
    }
}

impl Drop for NotifierSubscription {
    fn drop(&mut self) {
        self.set_paths(&BTreeSet::new());
        NOTIFIER.handlers.lock().by_subscription.remove(&self.number);
        for directory in std::mem::take(&mut self.directories) {
            self.unwatch(&directory);
        }
    }
}

/// Removes a subscription of a path, and the path with its last one.
fn remove_subscription(by_path: &mut BTreeMap<PathBuf, BTreeSet<u64>>, path: &Path, subscription: u64) {
    if let Some(subscriptions) = by_path.get_mut(path) {
        subscriptions.remove(&subscription);
        if subscriptions.is_empty() {
            by_path.remove(path);
        }
    }
}

/// Whether a file was only opened or closed. Each read of a watched file causes such events.
fn is_access(event: &notify::Result<notify::Event>) -> bool {
    matches!(event, Ok(notify::Event { kind: EventKind::Access(_), .. }))
}

/// The path in the form of notifications.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

impl KernelWatches {
    fn request(&mut self, directory: &Path) -> bool {
        let Some(users) = self.directories.get(directory) else { return false };
        let recursive = users.values().any(|mode| *mode == RecursiveMode::Recursive);
        let mode = if recursive { RecursiveMode::Recursive } else { RecursiveMode::NonRecursive };
        self.watcher.as_mut().is_some_and(|watcher| watcher.watch(directory, mode).is_ok())
    }

    fn release(&mut self, directory: &Path, subscription: u64) {
        let Some(users) = self.directories.get_mut(directory) else { return };
        users.remove(&subscription);
        if !users.is_empty() {
            return;
        }
        self.directories.remove(directory);
        if let Some(watcher) = &mut self.watcher {
            let _ = watcher.unwatch(directory);
        }
        // The end of a recursive watch also ended those of the directories below it.
        let below = self.directories.range(directory.to_owned()..).map(|(path, _)| path.clone());
        let below: Vec<PathBuf> = below.take_while(|path| path.starts_with(directory)).collect();
        for directory in below {
            self.request(&directory);
        }
    }
}

impl EventHandlers {
    fn dispatch(&self, event: &notify::Result<notify::Event>) {
        let paths = match event {
            Ok(event) if !event.need_rescan() && !event.paths.is_empty() => &event.paths,
            _ => return self.by_subscription.values().for_each(|handler| handler(event)),
        };
        let mut called = BTreeSet::new();
        for path in paths {
            let from_path = self.by_path.range::<Path, _>((Bound::Included(path.as_path()), Bound::Unbounded));
            let at_or_below = from_path.take_while(|(named, _)| named.starts_with(path)).map(|(_, users)| users);
            let above = path.ancestors().filter_map(|directory| self.by_directory.get(directory));
            called.extend(at_or_below.chain(above).flatten().copied());
        }
        for handler in called.iter().filter_map(|subscription| self.by_subscription.get(subscription)) {
            handler(event);
        }
    }
}
