//! Lists of objects: selection of revision, objects and pages.

use std::sync::Arc;

use super::Error;
use super::collection::ResourceCollection;
use super::rollback::roll_back;
use super::select::Selection;
use super::snapshot::Snapshot;
use super::stored::Stored;
use crate::{Prefix, Revision};

/// Number of objects that are examined before other tasks of the thread run.
const OBJECTS_AT_ONCE: usize = 1_024;

/// Terms of a selection up to which so many objects are examined; of more terms, fewer.
const CHEAP_TERMS: usize = 16;

/// Bytes of objects from the history of the store after which a page ends. They are kept until the client has read them.
const HISTORY_BYTES_PER_LIST: usize = 64 << 20;

/// Number of objects that are examined by a selection of so many terms before other tasks of the thread run.
fn objects_at_once(terms: usize) -> usize {
    (OBJECTS_AT_ONCE * CHEAP_TERMS / terms.max(CHEAP_TERMS)).max(1)
}

/// The revision that a list asks for: `resourceVersion` and `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListRevision {
    /// Version unset: never older than an acknowledged write.
    #[default]
    Latest,
    /// Version `0`: the cached objects, all on one page.
    Any,
    /// Version N, with `NotOlderThan` or without match and limit: the cached objects when not older.
    NotOlderThan(Revision),
    /// Version N, with `Exact` or without match and with a limit: the objects as of that revision.
    Exact(Revision),
}

/// Request of a list.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Namespace to which the list is restricted, if it is.
    pub namespace: Option<String>,
    /// Selection by labels and fields.
    pub selection: Selection,
    /// The revision asked for; not used with `continues`.
    pub version: ListRevision,
    /// Maximum number of objects on a page; 0 is no limit.
    pub limit: usize,
    /// A decoded continue token.
    pub continues: Option<ContinuePosition>,
}

/// Content of a continue token (`storage/continue.go`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContinuePosition {
    /// Revision of the first page, `rv` in the token; none is -1, the latest.
    pub revision: Option<Revision>,
    /// First key that was not on the page, relative to the list's prefix, with a leading slash: `/ns/name\0`.
    pub start: String,
}

/// A page of objects.
#[derive(Clone, Debug)]
pub struct StoredList {
    /// The field `metadata.resourceVersion`.
    pub revision: Revision,
    /// The objects, by key.
    pub objects: Vec<Arc<Stored>>,
    /// Start of the next page, if there is one.
    pub next: Option<ContinuePosition>,
    /// `metadata.remainingItemCount`: how many objects follow, if everything is selected.
    pub remaining: Option<usize>,
}

impl ResourceCollection {
    /// Makes a list or a page of one.
    ///
    /// # Errors
    /// [`Error::ListExpired`], [`Error::ListTooLarge`], [`Error::ContinueExpired`], [`Error::TooLargeResourceVersion`],
    /// [`Error::InvalidContinue`], [`Error::InvalidKey`], [`Error::Store`].
    pub async fn list(&self, query: &ListQuery) -> Result<StoredList, Error> {
        self.ensure_loaded().await?;
        let scope = self.scope(query.namespace.as_deref())?;
        if let Some(position) = &query.continues {
            return self.list_from(query, &scope, position).await;
        }
        match query.version {
            ListRevision::Latest => {
                self.wait_for_acknowledged().await?;
                let (revision, snapshot) = self.current();
                self.page(query, &scope, snapshot, revision, None, query.limit).await
            }
            ListRevision::Exact(revision) => self.list_at(query, &scope, revision).await,
            ListRevision::Any => self.list_not_older_than(query, &scope, 0).await,
            ListRevision::NotOlderThan(revision) => self.list_not_older_than(query, &scope, revision).await,
        }
    }

    /// Prefix of the keys of a namespace, or of all.
    pub(super) fn scope(&self, namespace: Option<&str>) -> Result<Prefix, Error> {
        Ok(match namespace {
            Some(namespace) => self.prefix().namespace(namespace)?,
            None => self.prefix().clone(),
        })
    }

    async fn list_not_older_than(
        &self,
        query: &ListQuery,
        scope: &Prefix,
        least: Revision,
    ) -> Result<StoredList, Error> {
        self.wait_for(least).await?;
        let (revision, snapshot) = self.current();
        // Version 0 is answered whole, as by Kubernetes' watch cache.
        let limit = if least == 0 { 0 } else { query.limit };
        self.page(query, scope, snapshot, revision, None, limit).await
    }

    async fn list_at(&self, query: &ListQuery, scope: &Prefix, revision: Revision) -> Result<StoredList, Error> {
        self.wait_for(revision).await?;
        match self.page_at(query, scope, revision, None).await {
            Err(Error::Store(crate::Error::Compacted(_))) => Err(Error::ListExpired),
            page => page,
        }
    }

    async fn list_from(
        &self,
        query: &ListQuery,
        scope: &Prefix,
        position: &ContinuePosition,
    ) -> Result<StoredList, Error> {
        let relative = position.start.strip_prefix('/').filter(|relative| !relative.is_empty());
        let from = format!("{scope}{}", relative.ok_or(Error::InvalidContinue)?);
        let Some(revision) = position.revision else {
            self.wait_for_acknowledged().await?;
            let (revision, snapshot) = self.current();
            return self.page(query, scope, snapshot, revision, Some(&from), query.limit).await;
        };
        self.wait_for(revision).await?;
        match self.page_at(query, scope, revision, Some(&from)).await {
            Err(Error::Store(crate::Error::Compacted(_))) => {
                let next = ContinuePosition { revision: None, start: position.start.clone() };
                Err(Error::ContinueExpired { next })
            }
            page => page,
        }
    }

    /// A page as of a revision that the collection has reached.
    async fn page_at(
        &self,
        query: &ListQuery,
        scope: &Prefix,
        revision: Revision,
        from: Option<&str>,
    ) -> Result<StoredList, Error> {
        loop {
            let feed = self.feed();
            let snapshot = roll_back(self.snapshot(), self.ring(), revision).await;
            if feed.is_none() || feed != self.feed() {
                // The ring was another one in between.
                self.wait_for(revision).await?;
                continue;
            }
            return match snapshot {
                Some(snapshot) => self.page(query, scope, snapshot, revision, from, query.limit).await,
                None => self.page_of_store(query, scope, revision, from).await,
            };
        }
    }

    async fn page(
        &self,
        query: &ListQuery,
        scope: &Prefix,
        snapshot: Arc<Snapshot>,
        revision: Revision,
        from: Option<&str>,
        limit: usize,
    ) -> Result<StoredList, Error> {
        let limit = if limit == 0 { usize::MAX } else { limit };
        let mut page = StoredList { revision, objects: Vec::new(), next: None, remaining: None };
        let mut start = from.map(str::to_owned);
        let at_once = objects_at_once(query.selection.term_count());
        loop {
            let mut last = None;
            for object in snapshot.range(scope, start.as_deref()).take(at_once) {
                // An object beyond the page that is selected: there is another page.
                let is_selected = query.selection.matches(object);
                if is_selected && page.objects.len() == limit {
                    page.end(scope, revision);
                    if query.selection.is_everything() {
                        page.remaining = Some(self.count_remaining(&snapshot, scope, from, &page));
                    }
                    return Ok(page);
                }
                if is_selected {
                    page.objects.push(object.clone());
                }
                last = Some(object);
            }
            let Some(last) = last else { return Ok(page) };
            start = Some(format!("{}\0", last.key()));
            tokio::task::yield_now().await;
        }
    }

    fn count_remaining(&self, snapshot: &Snapshot, scope: &Prefix, from: Option<&str>, page: &StoredList) -> usize {
        match page.objects.last() {
            _ if from.is_none() && scope == self.prefix() => snapshot.len() - page.objects.len(),
            Some(last) => snapshot.range(scope, Some(last.key().as_str())).count() - 1,
            None => 0,
        }
    }

    /// A page from the history of the store, which may reach back further than the ring. A large page is shorter than asked.
    ///
    /// # Errors
    /// [`Error::ListTooLarge`] for a list that is not to have pages.
    async fn page_of_store(
        &self,
        query: &ListQuery,
        scope: &Prefix,
        revision: Revision,
        from: Option<&str>,
    ) -> Result<StoredList, Error> {
        let limit = if query.limit == 0 { usize::MAX } else { query.limit };
        let mut list = StoredList { revision, objects: Vec::new(), next: None, remaining: None };
        let (snapshot, mut history_bytes) = (self.snapshot(), 0);
        let mut start = from.map(str::to_owned);
        loop {
            let page = self.store().at(scope, start.as_deref(), OBJECTS_AT_ONCE.min(limit), revision).await?;
            let mut records = page.records.into_iter();
            for record in records.by_ref() {
                start = Some(format!("{}\0", record.key));
                let current = snapshot.get(record.key.as_str()).filter(|current| current.revision() == record.revision);
                let object = current.cloned().unwrap_or_else(|| Arc::new(self.parse(&record)));
                if query.selection.matches(&object) {
                    history_bytes += if current.is_some() { 0 } else { record.value.len() };
                    list.objects.push(object);
                }
                if list.objects.len() == limit || history_bytes > HISTORY_BYTES_PER_LIST {
                    break;
                }
            }
            let remaining = records.len() + page.remaining;
            if remaining == 0 {
                return Ok(list);
            }
            let is_large = history_bytes > HISTORY_BYTES_PER_LIST;
            if is_large && query.limit == 0 {
                return Err(Error::ListTooLarge);
            }
            if list.objects.len() == limit || is_large {
                list.end(scope, revision);
                list.remaining = query.selection.is_everything().then_some(remaining);
                return Ok(list);
            }
            tokio::task::yield_now().await;
        }
    }
}

impl StoredList {
    /// Shortens a page of a list to `limit` objects, if it has more; the next page begins after them.
    pub fn shorten(&mut self, collection: &ResourceCollection, query: &ListQuery, limit: usize) -> Result<(), Error> {
        if self.objects.len() > limit {
            self.objects.truncate(limit);
            self.end(&collection.scope(query.namespace.as_deref())?, self.revision);
        }
        Ok(())
    }

    /// Marks the page as followed by another one that begins after the last object.
    fn end(&mut self, scope: &Prefix, revision: Revision) {
        let relative = self.objects.last().and_then(|last| last.key().as_str().strip_prefix(scope.as_str()));
        let start = format!("/{}\0", relative.unwrap_or_default());
        self.next = Some(ContinuePosition { revision: Some(revision), start });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_examines_fewer_objects_at_once_by_many_terms() {
        assert_eq!([0, 16, 32, 15_000, usize::MAX].map(objects_at_once), [1024, 1024, 512, 1, 1]);
    }
}
