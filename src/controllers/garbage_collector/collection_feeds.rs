//! The collections that the garbage collector follows: those of all resources in the catalog, as they come and go.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::rc::Rc;
use std::time::Duration;

use kubeapi::Status;
use store::watch_cache::ResourceCollection;
use store::{Key, Prefix, Revision};
use tokio::sync::Notify;

use crate::process::Published;
use crate::resources::ServedKind;
use crate::resources::builtin::stored_version::is_stored_as_other;
use crate::resources::catalog::{CatalogEntry, ResourceCatalog};
use crate::rest::ApiServer;

/// How long a decision waits until the graph has all changes.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the last changes of a removed resource are waited for.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// A collection whose changes are applied to the graph.
pub(super) struct CollectionFeed {
    collection: ResourceCollection,
    kind: RefCell<ServedKind>,
    /// Revision up to which the graph has the changes; none before it has the objects.
    position: Cell<Option<Revision>>,
    /// Whether the resource is gone.
    is_removed: Cell<bool>,
}

/// The collections that are followed.
pub(super) struct CollectionFeeds {
    /// By prefix. No prefix begins with another one.
    feeds: RefCell<BTreeMap<String, Rc<CollectionFeed>>>,
    catalog: Published<ResourceCatalog>,
    /// Version of the catalog whose collections these are.
    version: Cell<Option<u64>>,
    /// Signaled when a feed has applied changes.
    progressed: Notify,
}

/// How the set of collections changes.
#[derive(Default)]
pub(super) struct FeedChanges {
    pub(super) added: Vec<Rc<CollectionFeed>>,
    pub(super) removed: Vec<Rc<CollectionFeed>>,
}

impl CollectionFeed {
    /// The collection.
    pub(super) fn collection(&self) -> &ResourceCollection {
        &self.collection
    }

    /// The resource, in one of its versions.
    pub(super) fn kind(&self) -> ServedKind {
        self.kind.borrow().clone()
    }

    /// Notes that the graph has the changes up to a revision; none if it has to be filled again.
    pub(super) fn set_position(&self, position: Option<Revision>) {
        self.position.set(position);
    }

    fn has_reached(&self, revision: Revision) -> bool {
        self.position.get().is_some_and(|position| position >= revision)
    }

    fn is_current(&self) -> bool {
        self.has_reached(self.collection.snapshot().revision())
    }
}

impl CollectionFeeds {
    /// No collections yet.
    pub(super) fn new(api: &ApiServer) -> CollectionFeeds {
        let (feeds, version, progressed) = (RefCell::default(), Cell::new(None), Notify::new());
        CollectionFeeds { feeds, catalog: api.catalog().clone(), version, progressed }
    }

    /// All collections.
    pub(super) fn all(&self) -> Vec<Rc<CollectionFeed>> {
        self.feeds.borrow().values().cloned().collect()
    }

    /// The collection that has a key.
    pub(super) fn of_key(&self, key: &Key) -> Option<Rc<CollectionFeed>> {
        let feeds = self.feeds.borrow();
        let (_, feed) = feeds.range::<str, _>((Bound::Unbounded, Bound::Included(key.as_str()))).next_back()?;
        Some(feed).filter(|feed| feed.collection.prefix().contains(key)).cloned()
    }

    /// Takes over the resources that the catalog has now.
    ///
    /// # Errors
    /// 500 for a resource whose name cannot be part of a key.
    pub(super) fn update(&self, api: &ApiServer) -> Result<FeedChanges, Status> {
        // In this order: a change in between is found next time.
        let (version, catalog) = (self.catalog.version(), self.catalog.get());
        let stored = catalog.entries().iter().filter(|entry| entry.is_stored() && !is_stored_as_other(&entry.kind));
        // As upstream: they are many, and expire.
        let stored = stored.filter(|entry| entry.kind.resource.plural != "events" || entry.is_custom());
        let collection = |entry: &CatalogEntry| Ok((entry.kind.clone(), api.collection(&entry.kind.resource)?));
        let stored = stored.map(collection).collect::<Result<Vec<_>, Status>>()?;
        let mut before = std::mem::take(&mut *self.feeds.borrow_mut());
        let (mut now, mut changes) = (BTreeMap::new(), FeedChanges::default());
        for (kind, collection) in stored {
            let prefix = collection.prefix().as_str().to_owned();
            // Another version of the resource.
            if now.contains_key(&prefix) {
                continue;
            }
            let same = before.remove(&prefix).filter(|feed| {
                let is_same = feed.collection.is_same(&collection);
                if !is_same {
                    changes.removed.push(feed.clone());
                }
                is_same
            });
            let feed = match same {
                Some(feed) => {
                    *feed.kind.borrow_mut() = kind;
                    feed
                }
                None => {
                    let (kind, position, is_removed) = (RefCell::new(kind), Cell::new(None), Cell::new(false));
                    let feed = Rc::new(CollectionFeed { collection, kind, position, is_removed });
                    changes.added.push(feed.clone());
                    feed
                }
            };
            now.insert(prefix, feed);
        }
        changes.removed.extend(before.into_values());
        changes.removed.iter().for_each(|feed| feed.is_removed.set(true));
        *self.feeds.borrow_mut() = now;
        self.version.set(Some(version));
        Ok(changes)
    }

    /// Signals those who wait for changes in the graph.
    pub(super) fn note_progress(&self) {
        self.progressed.notify_waiters();
    }

    /// Waits until the graph has all objects and changes that are seen now.
    pub(super) async fn wait_until_current(&self) {
        let mut behind: Option<Vec<(Rc<CollectionFeed>, Revision)>> = None;
        loop {
            let progressed = self.progressed.notified();
            if self.version.get() == Some(self.catalog.version()) {
                let behind = behind.get_or_insert_with(|| self.revisions());
                behind.retain(|(feed, revision)| !feed.is_removed.get() && !feed.has_reached(*revision));
                if behind.is_empty() {
                    return;
                }
            }
            progressed.await;
        }
    }

    /// The collections with their revisions.
    fn revisions(&self) -> Vec<(Rc<CollectionFeed>, Revision)> {
        self.feeds.borrow().values().map(|feed| (feed.clone(), feed.collection.snapshot().revision())).collect()
    }

    /// Waits until the graph has the changes of a collection, for a limited time: it is followed no longer.
    pub(super) async fn wait_until_drained(&self, feed: &CollectionFeed) {
        let drain = async {
            loop {
                let progressed = self.progressed.notified();
                if feed.position.get().is_none() || feed.is_current() {
                    return;
                }
                progressed.await;
            }
        };
        if tokio::time::timeout(DRAIN_TIMEOUT, drain).await.is_err() {
            tracing::warn!(prefix = feed.collection.prefix().as_str(), "last changes of a removed resource not seen");
        }
    }

    /// As [`wait_until_current`](CollectionFeeds::wait_until_current), for a limited time.
    ///
    /// # Errors
    /// 503 if a collection cannot be read in that time.
    pub(super) async fn catch_up(&self) -> Result<(), Status> {
        let caught_up = tokio::time::timeout(CATCH_UP_TIMEOUT, self.wait_until_current()).await;
        caught_up.map_err(|_| Status::service_unavailable(format!("owners of {} are not loaded", self.missing())))
    }

    /// The collections that the graph does not have yet.
    fn missing(&self) -> String {
        let feeds = self.feeds.borrow();
        let missing = feeds.values().filter(|feed| !feed.is_current());
        let prefixes: Vec<&str> = missing.map(|feed| Prefix::as_str(feed.collection.prefix())).take(3).collect();
        prefixes.join(", ")
    }
}
