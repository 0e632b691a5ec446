//! Selection of objects that a webhook converts: by labels and fields as they are in the version that is read, as upstream,
//! where each version has a watch cache of its own.

use std::sync::Arc;

use kubeapi::Status;
use store::watch_cache::{
    ContinuePosition, Error, ListQuery, ListRevision, ResourceCollection, Selection, Stored, StoredList, WatchEvent,
    WatchEventKind,
};

use super::{ObjectConverter, has_webhook};
use crate::resources::ServedKind;

/// Objects of a page that are converted before it is known how many of them are selected, at least.
const MIN_PAGE: usize = 500;

impl ObjectConverter {
    /// Makes a list or a page of one. `failed` gives the Status of an error of the collection.
    ///
    /// # Errors
    /// Those of [`ResourceCollection::list`], and 500 with upstream's text for an object that cannot be converted.
    pub async fn list(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        query: &ListQuery,
        failed: impl Fn(Error) -> Status,
    ) -> Result<StoredList, Status> {
        let Some(identity) = query.selection.without_content().filter(|_| has_webhook(kind)) else {
            return collection.list(query).await.map_err(&failed);
        };
        // As in a list without conversion, version 0 is answered whole.
        let is_whole = query.limit == 0 || (query.continues.is_none() && query.version == ListRevision::Any);
        let limit = if is_whole { usize::MAX } else { query.limit };
        let page_limit = if is_whole { 0 } else { query.limit.max(MIN_PAGE) };
        let mut page_query = ListQuery { selection: identity, limit: page_limit, ..query.clone() };
        let mut selected: Vec<Arc<Stored>> = Vec::new();
        loop {
            let mut page = collection.list(&page_query).await.map_err(&failed)?;
            self.convert_all(kind, collection, &mut page.objects, true).await?;
            selected.extend(page.objects.drain(..).filter(|object| query.selection.matches(object)));
            let next: Option<ContinuePosition> = page.next.take();
            if next.is_none() || selected.len() > limit {
                let mut list = StoredList { objects: selected, next, remaining: None, ..page };
                list.shorten(collection, query, limit).map_err(&failed)?;
                return Ok(list);
            }
            page_query.continues = next;
        }
    }

    /// Converts the objects of events, which were selected by name and namespace only, and keeps those that a watch of
    /// `selection` has.
    ///
    /// # Errors
    /// 500 with upstream's text.
    pub async fn select_events(
        &self,
        kind: &ServedKind,
        collection: &ResourceCollection,
        selection: &Selection,
        events: Vec<WatchEvent>,
    ) -> Result<Vec<WatchEvent>, Status> {
        let both = |event: &WatchEvent| match &event.change {
            Some(change) => [change.old().cloned(), change.new_object().cloned()],
            None => [None, event.object.clone()],
        };
        let mut objects: Vec<Arc<Stored>> = events.iter().flat_map(both).flatten().collect();
        let is_list = objects.len() > 1;
        self.convert_all(kind, collection, &mut objects, is_list).await?;
        let mut objects = objects.into_iter();
        let mut selected = Vec::new();
        for event in events {
            let [old, new] = both(&event).map(|object| object.and_then(|_| objects.next()));
            if event.object.is_none() {
                // A bookmark.
                selected.push(event);
            } else if let Some(kind) = selection.classify_objects(old.as_deref(), new.as_deref()) {
                let object = if kind == WatchEventKind::Deleted { old } else { new };
                selected.push(WatchEvent { kind, object, ..event });
            }
        }
        Ok(selected)
    }
}
