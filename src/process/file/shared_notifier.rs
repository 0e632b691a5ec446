//! The kernel's file notifications (inotify), shared by all file watchers of the process: one instance and one thread,
//! however many files are watched. The kernel allows a user 128 instances by default.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;

/// Called on the thread of the notifications with each event in a watched directory.
type EventHandler = Box<dyn Fn(&notify::Result<notify::Event>) + Send>;

/// The notifications of the process.
static NOTIFIER: LazyLock<SharedNotifier> = LazyLock::new(SharedNotifier::default);

/// The number of the next subscription.
static NEXT_SUBSCRIPTION: AtomicU64 = AtomicU64::new(0);

/// The watched directories of one file watcher. Ends when it is dropped.
pub(super) struct NotifierSubscription(u64);

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
    /// Whether each subscription of a directory also gets the events of directories below it.
    by_directory: HashMap<PathBuf, HashMap<u64, bool>>,
}

impl NotifierSubscription {
    /// Subscribes `handler` to the events of directories that are watched later; none if the kernel has no
    /// notifications.
    pub(super) fn new(
        handler: impl Fn(&notify::Result<notify::Event>) + Send + 'static,
    ) -> Option<NotifierSubscription> {
        let mut watches = NOTIFIER.watches.lock();
        if watches.watcher.is_none() {
            let created = notify::recommended_watcher(|event| NOTIFIER.handlers.lock().dispatch(&event));
            let created = created.inspect_err(|error| {
                tracing::warn!(%error, "file change notifications are unavailable; files are polled instead");
            });
            watches.watcher = Some(created.ok()?);
        }
        drop(watches);
        let number = NEXT_SUBSCRIPTION.fetch_add(1, Ordering::Relaxed);
        NOTIFIER.handlers.lock().by_subscription.insert(number, Box::new(handler));
        Some(NotifierSubscription(number))
    }

    /// Watches `directory`, again if it is watched already: a directory that was removed and recreated has silently
    /// lost its watch. Returns whether the kernel watches it.
    pub(super) fn watch(&mut self, directory: &Path, mode: RecursiveMode) -> bool {
        let directory = absolute(directory);
        let recursive = mode == RecursiveMode::Recursive;
        NOTIFIER.handlers.lock().by_directory.entry(directory.clone()).or_default().insert(self.0, recursive);
        let mut watches = NOTIFIER.watches.lock();
        watches.directories.entry(directory.clone()).or_default().insert(self.0, mode);
        watches.request(&directory)
    }

    /// Ends the watch of `directory`.
    pub(super) fn unwatch(&mut self, directory: &Path) {
        let directory = absolute(directory);
        {
            let mut handlers = NOTIFIER.handlers.lock();
            if let Some(users) = handlers.by_directory.get_mut(&directory) {
                users.remove(&self.0);
                if users.is_empty() {
                    handlers.by_directory.remove(&directory);
                }
            }
        }
        NOTIFIER.watches.lock().release(&directory, self.0);
    }
}

impl Drop for NotifierSubscription {
    fn drop(&mut self) {
        let directories: Vec<PathBuf> = {
            let mut handlers = NOTIFIER.handlers.lock();
            handlers.by_subscription.remove(&self.0);
            let mut left = Vec::new();
            handlers.by_directory.retain(|directory, users| {
                if users.remove(&self.0).is_some() {
                    left.push(directory.clone());
                }
                !users.is_empty()
            });
            left
        };
        let mut watches = NOTIFIER.watches.lock();
        directories.iter().for_each(|directory| watches.release(directory, self.0));
    }
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
        let mut called = Vec::new();
        for path in paths {
            for (distance, directory) in path.ancestors().enumerate() {
                let users = self.by_directory.get(directory).into_iter().flatten();
                for (subscription, _) in users.filter(|(_, recursive)| distance < 2 || **recursive) {
                    if !called.contains(subscription) {
                        called.push(*subscription);
                    }
                }
            }
        }
        for handler in called.iter().filter_map(|subscription| self.by_subscription.get(subscription)) {
            handler(event);
        }
    }
}
