//! Cache of converted objects. An object that many watches send is converted once, also while the webhook is called.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use kubeapi::Status;
use parking_lot::Mutex;
use tokio::sync::watch;

use store::watch_cache::Stored;
use store::{Key, Revision};

/// Bytes of converted objects that are kept at most.
const MAX_BYTES: usize = 32 << 20;
/// What an object takes besides its bytes.
const OVERHEAD_BYTES: usize = 1024;

/// An object in a version.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConversionKey {
    /// Identifies the version of one generation of one CRD.
    pub(super) version: u64,
    pub(super) key: Key,
    pub(super) revision: Revision,
}

/// Result of the conversion of an object.
pub(super) type ConversionResult = Result<Arc<Stored>, Status>;

/// Converted objects, the oldest of which are dropped, and conversions that are in flight.
#[derive(Default)]
pub(super) struct ConversionCache(Mutex<CacheState>);

#[derive(Default)]
struct CacheState {
    slots: HashMap<ConversionKey, ConvertedSlot>,
    /// Keys of converted objects, the oldest first.
    converted: VecDeque<ConversionKey>,
    bytes: usize,
}

enum ConvertedSlot {
    Converted(Arc<Stored>),
    InFlight(watch::Receiver<Option<ConversionResult>>),
}

/// What the cache has of an object.
pub(super) enum CacheLookup {
    /// The converted object.
    Converted(Arc<Stored>),
    /// Another caller converts it. The receiver ends without a result if that caller gives up.
    InFlight(watch::Receiver<Option<ConversionResult>>),
    /// The caller should convert it.
    Vacant(ConversionGuard),
}

/// RAII guard of one conversion. Dropping it without a result leaves the conversion to those that wait.
pub(super) struct ConversionGuard {
    cache: Arc<ConversionCache>,
    key: ConversionKey,
    result: watch::Sender<Option<ConversionResult>>,
}

impl ConversionCache {
    /// Finds a converted object; if there is none, the caller converts it.
    pub(super) fn lookup(self: &Arc<Self>, key: ConversionKey) -> CacheLookup {
        let mut state = self.0.lock();
        match state.slots.get(&key) {
            Some(ConvertedSlot::Converted(converted)) => CacheLookup::Converted(converted.clone()),
            Some(ConvertedSlot::InFlight(receiver)) => CacheLookup::InFlight(receiver.clone()),
            None => {
                let (result, receiver) = watch::channel(None);
                state.slots.insert(key.clone(), ConvertedSlot::InFlight(receiver));
                CacheLookup::Vacant(ConversionGuard { cache: self.clone(), key, result })
            }
        }
    }
}

impl CacheState {
    fn insert(&mut self, key: &ConversionKey, converted: Arc<Stored>) {
        self.bytes += size_of(&converted);
        self.slots.insert(key.clone(), ConvertedSlot::Converted(converted));
        self.converted.push_back(key.clone());
        while self.bytes > MAX_BYTES {
            let Some(oldest) = self.converted.pop_front() else { break };
            if let Some(ConvertedSlot::Converted(dropped)) = self.slots.remove(&oldest) {
                self.bytes -= size_of(&dropped);
            }
        }
    }
}

fn size_of(converted: &Stored) -> usize {
    converted.bytes().len() + OVERHEAD_BYTES
}

impl ConversionGuard {
    /// Gives the result to all that wait. A failure is not kept: the next caller tries again.
    pub(super) fn finish(self, result: ConversionResult) {
        if let Ok(converted) = &result {
            self.cache.0.lock().insert(&self.key, converted.clone());
        }
        self.result.send_replace(Some(result));
    }
}

impl Drop for ConversionGuard {
    fn drop(&mut self) {
        let mut state = self.cache.0.lock();
        if let Some(ConvertedSlot::InFlight(_)) = state.slots.get(&self.key) {
            state.slots.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use store::{KeyValue, Prefix};

    use super::*;

    fn stored(revision: Revision, size: usize) -> (ConversionKey, Arc<Stored>) {
        let prefix = Prefix::parse("/registry/things/").unwrap();
        let key = prefix.key("ns", "a").unwrap();
        let value = Bytes::from(format!("{{\"metadata\":{{}},\"x\":\"{}\"}}", "x".repeat(size)));
        let record = KeyValue { key: key.clone(), value, created: 1, revision, expires: None };
        let stored = Arc::new(Stored::new(Arc::new(record), &prefix, &[]));
        (ConversionKey { version: 1, key, revision }, stored)
    }

    fn guard(cache: &Arc<ConversionCache>, key: &ConversionKey) -> ConversionGuard {
        match cache.lookup(key.clone()) {
            CacheLookup::Vacant(guard) => guard,
            _ => panic!("{key:?} is not vacant"),
        }
    }

    #[tokio::test]
    async fn conversion_in_flight_is_shared_and_its_result_kept() {
        let cache = Arc::new(ConversionCache::default());
        let (key, converted) = stored(7, 1);
        let guard = guard(&cache, &key);
        let CacheLookup::InFlight(mut receiver) = cache.lookup(key.clone()) else { panic!("not in flight") };
        guard.finish(Ok(converted.clone()));
        let result = receiver.wait_for(Option::is_some).await.unwrap().clone();
        assert!(Arc::ptr_eq(&result.unwrap().unwrap(), &converted));
        assert!(matches!(cache.lookup(key), CacheLookup::Converted(_)));
    }

    #[tokio::test]
    async fn conversion_that_fails_or_is_given_up_is_tried_again() {
        let cache = Arc::new(ConversionCache::default());
        let (key, _) = stored(7, 1);
        let first = guard(&cache, &key);
        let CacheLookup::InFlight(mut receiver) = cache.lookup(key.clone()) else { panic!("not in flight") };
        drop(first);
        assert!(receiver.wait_for(Option::is_some).await.is_err());
        let second = guard(&cache, &key);
        let CacheLookup::InFlight(mut receiver) = cache.lookup(key.clone()) else { panic!("not in flight") };
        second.finish(Err(Status::new(500, "", "no")));
        assert!(receiver.wait_for(Option::is_some).await.unwrap().as_ref().unwrap().is_err());
        drop(guard(&cache, &key));
    }

    #[test]
    fn conversion_cache_drops_oldest_objects_beyond_its_size() {
        let cache = Arc::new(ConversionCache::default());
        let half = MAX_BYTES / 2;
        for revision in 1..=3 {
            let (key, converted) = stored(revision, half - 2 * OVERHEAD_BYTES);
            guard(&cache, &key).finish(Ok(converted));
        }
        let is_kept = |revision| matches!(cache.lookup(stored(revision, 1).0), CacheLookup::Converted(_));
        assert_eq!([is_kept(1), is_kept(2), is_kept(3)], [false, true, true]);
        let state = cache.0.lock();
        assert_eq!((state.converted.len(), state.slots.len()), (2, 2));
        assert!(state.bytes <= MAX_BYTES);
    }
}
