//! A bounded set-associative cache of decisions that any thread reads without a lock.
//!
//! Each decision belongs to one of many small sets, so that a lookup reads a few words of memory, and eviction chooses
//! among a few entries. Eviction is fair: in a full set, the owner with the most entries loses one first, so that one
//! user with a thousand requests evicts only its own entries.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::DecisionKey;
use crate::observe::metrics::{self, Metrics};

/// Slots of one set.
const SLOTS_PER_SET: usize = 8;
/// Bytes of an entry besides its value: its fields, its allocation, its slot.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// Limits of the size of a cache.
#[derive(Clone, Copy, Debug)]
pub struct CacheLimits {
    /// The maximum number of decisions; rounded up to a power of two.
    pub entries: usize,
    /// The maximum number of bytes.
    pub bytes: usize,
}

/// A decision to insert.
pub struct CachedDecision<'t, V> {
    /// The decision.
    pub value: V,
    /// The user it is about: decisions of one owner are evicted for each other first.
    pub owner: &'t str,
    /// The size of `value` in bytes.
    pub bytes: usize,
    /// Time at which the entry becomes stale.
    pub fresh_until: Instant,
    /// Time at which the entry expires. Until then it may be used if the server fails; not before `fresh_until`.
    pub stale_until: Instant,
}

/// A cache of decisions of one kind.
pub struct DecisionCache<V> {
    slots: Box<[CacheSlot<V>]>,
    limits: CacheLimits,
    created: Instant,
    writer: Mutex<WriterState>,
    name: metrics::DecisionCacheKind,
    metrics: Arc<Metrics>,
}

struct CacheSlot<V> {
    /// 0 if empty.
    tag: AtomicU64,
    entry: ArcSwapOption<Entry<V>>,
}

struct Entry<V> {
    key: DecisionKey,
    value: V,
    owner: u64,
    bytes: usize,
    fresh_until: Instant,
    stale_until: Instant,
    /// The time of the last use, in seconds since the cache was created.
    last_used: AtomicU32,
}

/// State of the writer, under its lock.
struct WriterState {
    entries: usize,
    bytes: usize,
    /// The size last reported to the metrics: entries and bytes.
    reported: (usize, usize),
    /// The next set to evict from when the cache exceeds its byte limit.
    next_set: usize,
    hasher: std::hash::RandomState,
}

impl<V: Clone + PartialEq> DecisionCache<V> {
    /// Creates an empty cache.
    pub fn new(name: metrics::DecisionCacheKind, limits: CacheLimits, metrics: Arc<Metrics>) -> DecisionCache<V> {
        let places = limits.entries.max(SLOTS_PER_SET).next_power_of_two();
        let slot = || CacheSlot { tag: AtomicU64::new(0), entry: ArcSwapOption::empty() };
        let writing =
            WriterState { entries: 0, bytes: 0, reported: (0, 0), next_set: 0, hasher: std::hash::RandomState::new() };
        DecisionCache {
            slots: std::iter::repeat_with(slot).take(places).collect(),
            limits,
            created: Instant::now(),
            writer: Mutex::new(writing),
            name,
            metrics,
        }
    }

    /// Returns the decision, if it is fresh.
    pub fn get_fresh(&self, key: &DecisionKey, now: Instant) -> Option<V> {
        self.find(key, |entry| {
            let good = now < entry.fresh_until;
            if good {
                let used = self.seconds(now);
                // Not on every use: threads that read the same entry would contend for its cache line.
                if entry.last_used.load(Ordering::Relaxed) != used {
                    entry.last_used.store(used, Ordering::Relaxed);
                }
            }
            good.then(|| entry.value.clone())
        })
    }

    /// Returns the decision, even past its time to live, until the end of its stale time.
    pub fn get_stale(&self, key: &DecisionKey, now: Instant) -> Option<V> {
        self.find(key, |entry| (now < entry.stale_until).then(|| entry.value.clone()))
    }

    /// Inserts a decision and returns the stored value: if an equal one was stored before, that allocation is kept.
    pub fn insert(&self, key: DecisionKey, decision: CachedDecision<'_, V>, now: Instant) -> V {
        let mut writing = self.writer.lock();
        let before = self.set(&key).position(|slot| slot.entry.load().as_ref().is_some_and(|entry| entry.key == key));
        let mut value = decision.value;
        if let Some(slot_index) = before {
            let slot = &self.slots[self.set_start(&key) + slot_index];
            if let Some(entry) = &*slot.entry.load()
                && entry.value == value
            {
                value = entry.value.clone();
            }
            self.clear_slot(slot, &mut writing);
        }
        let bytes = decision.bytes + ENTRY_OVERHEAD_BYTES;
        if bytes > self.limits.bytes {
            self.record_size(&mut writing);
            return value;
        }
        while writing.bytes + bytes > self.limits.bytes {
            let set = writing.next_set * SLOTS_PER_SET % self.slots.len();
            writing.next_set = writing.next_set.wrapping_add(1);
            self.evict_one(set, now, &mut writing);
        }
        let free = self.set(&key).position(|slot| slot.entry.load().is_none());
        let slot_index = free.unwrap_or_else(|| self.evict_one(self.set_start(&key), now, &mut writing).unwrap_or(0));
        let slot = &self.slots[self.set_start(&key) + slot_index];
        let owner = std::hash::BuildHasher::hash_one(&writing.hasher, decision.owner);
        slot.entry.store(Some(Arc::new(Entry {
            key,
            value: value.clone(),
            owner,
            bytes,
            fresh_until: decision.fresh_until,
            stale_until: decision.stale_until,
            last_used: AtomicU32::new(self.seconds(now)),
        })));
        slot.tag.store(key.tag(), Ordering::Release);
        writing.entries += 1;
        writing.bytes += bytes;
        self.record_size(&mut writing);
        value
    }

    /// Removes expired entries. Call it periodically.
    pub fn remove_expired(&self, now: Instant) {
        let mut writing = self.writer.lock();
        for slot in &self.slots {
            if slot.entry.load().as_ref().is_some_and(|entry| entry.stale_until <= now) {
                self.clear_slot(slot, &mut writing);
            }
        }
        self.record_size(&mut writing);
    }

    /// The number of entries, and their size in bytes.
    pub fn size(&self) -> (usize, usize) {
        let writing = self.writer.lock();
        (writing.entries, writing.bytes)
    }

    fn find(&self, key: &DecisionKey, take: impl FnOnce(&Entry<V>) -> Option<V>) -> Option<V> {
        let tag = key.tag();
        for slot in self.set(key) {
            if slot.tag.load(Ordering::Acquire) == tag
                && let Some(entry) = &*slot.entry.load()
                && entry.key == *key
            {
                return take(entry);
            }
        }
        None
    }

    /// Evicts an entry of the set that begins at `first`, and returns its slot; none if the set is empty.
    fn evict_one(&self, first: usize, now: Instant, writing: &mut WriterState) -> Option<usize> {
        let entries: Vec<(usize, Arc<Entry<V>>)> = (0..SLOTS_PER_SET)
            .filter_map(|slot_index| Some((slot_index, self.slots[first + slot_index].entry.load_full()?)))
            .collect();
        let held = |owner: u64| entries.iter().filter(|(_, entry)| entry.owner == owner).count();
        let (slot_index, entry) = entries.iter().max_by_key(|(_, entry)| {
            let useless = entry.stale_until <= now;
            (useless, held(entry.owner), std::cmp::Reverse(entry.last_used.load(Ordering::Relaxed)))
        })?;
        if now < entry.fresh_until {
            self.metrics.reviews().record_eviction(self.name);
        }
        self.clear_slot(&self.slots[first + slot_index], writing);
        Some(*slot_index)
    }

    fn clear_slot(&self, slot: &CacheSlot<V>, writing: &mut WriterState) {
        slot.tag.store(0, Ordering::Release);
        if let Some(entry) = slot.entry.swap(None) {
            writing.entries -= 1;
            writing.bytes -= entry.bytes;
        }
    }

    fn set(&self, key: &DecisionKey) -> std::slice::Iter<'_, CacheSlot<V>> {
        let first = self.set_start(key);
        self.slots[first..first + SLOTS_PER_SET].iter()
    }

    fn set_start(&self, key: &DecisionKey) -> usize {
        // The number of slots is a power of two; each set has WAYS of them.
        key.set_index() % (self.slots.len() / SLOTS_PER_SET) * SLOTS_PER_SET
    }

    fn seconds(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.created).as_secs()).unwrap_or(u32::MAX)
    }

    fn record_size(&self, writing: &mut WriterState) {
        let now = (writing.entries, writing.bytes);
        self.metrics.reviews().update_size(self.name, now, std::mem::replace(&mut writing.reported, now));
    }
}

impl<V> Drop for DecisionCache<V> {
    fn drop(&mut self) {
        self.metrics.reviews().update_size(self.name, (0, 0), self.writer.get_mut().reported);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision_cache::DigestSecret;

    struct CacheFixture {
        cache: DecisionCache<Arc<str>>,
        secret: DigestSecret,
        now: Instant,
    }

    impl CacheFixture {
        fn new(entries: usize, bytes: usize) -> CacheFixture {
            let limits = CacheLimits { entries, bytes };
            let cache = DecisionCache::new(metrics::DecisionCacheKind::Access, limits, Metrics::new());
            CacheFixture { cache, secret: DigestSecret::new().unwrap(), now: Instant::now() }
        }

        fn key(&self, question: &str) -> DecisionKey {
            self.secret.key(|digest| digest.text(question))
        }

        fn insert(&self, owner: &str, question: &str, bytes: usize) -> Arc<str> {
            let kept = CachedDecision {
                value: "yes".into(),
                owner,
                bytes,
                fresh_until: self.after(10),
                stale_until: self.after(30),
            };
            self.cache.insert(self.key(question), kept, self.now)
        }

        fn after(&self, seconds: u64) -> Instant {
            self.now + Duration::from_secs(seconds)
        }

        fn has_fresh(&self, question: &str) -> bool {
            self.cache.get_fresh(&self.key(question), self.now).is_some()
        }
    }

    #[test]
    fn decision_cache_entry_is_fresh_then_stale_then_expired() {
        let world = CacheFixture::new(64, 1 << 20);
        let kept = world.insert("jane", "a", 3);
        let key = world.key("a");
        let fresh = |seconds| world.cache.get_fresh(&key, world.after(seconds)).is_some();
        let stale = |seconds| world.cache.get_stale(&key, world.after(seconds)).is_some();
        assert_eq!((fresh(9), fresh(10), stale(29), stale(30)), (true, false, true, false));
        assert!(!world.has_fresh("b"));
        // An equal decision keeps its allocation: caches keyed by its address stay valid.
        assert!(Arc::ptr_eq(&kept, &world.insert("jane", "a", 3)));
        assert_eq!(world.cache.size(), (1, 3 + ENTRY_OVERHEAD_BYTES));
        world.cache.remove_expired(world.after(29));
        assert_eq!(world.cache.size().0, 1);
        world.cache.remove_expired(world.after(30));
        assert_eq!(world.cache.size(), (0, 0));
    }

    #[test]
    fn decision_cache_owner_evicts_only_its_own_entries() {
        let world = CacheFixture::new(1024, 1 << 20);
        let others: Vec<String> = (0..100).map(|number| format!("user-{number}")).collect();
        others.iter().for_each(|other| drop(world.insert(other, other, 3)));
        for number in 0..20_000 {
            world.insert("mallory", &format!("m{number}"), 3);
        }
        let left = others.iter().filter(|other| world.has_fresh(other)).count();
        // A set full of other owners would have to evict one of them; with 100 in 128 sets that does not happen.
        assert_eq!(left, 100);
        assert_eq!(world.cache.size().0, 1024);
    }

    #[test]
    fn decision_cache_evicts_least_recently_used_entry_of_owner() {
        let mut world = CacheFixture::new(SLOTS_PER_SET, 1 << 20);
        let names: Vec<String> = (0..SLOTS_PER_SET).map(|number| format!("q{number}")).collect();
        for name in &names {
            world.insert("jane", name, 3);
            world.now += Duration::from_secs(1);
        }
        assert!(world.has_fresh("q0"));
        world.insert("jane", "another", 3);
        assert!(world.has_fresh("q0") && !world.has_fresh("q1") && world.has_fresh("another"));
    }

    #[test]
    fn decision_cache_bytes_are_bounded_and_oversized_entry_is_not_stored() {
        let world = CacheFixture::new(4096, 100_000);
        for number in 0..2_000 {
            world.insert(&format!("user-{number}"), &format!("q{number}"), 1_000);
            let (entries, bytes) = world.cache.size();
            assert!(bytes <= 100_000 && entries * (1_000 + ENTRY_OVERHEAD_BYTES) == bytes, "{entries} {bytes}");
        }
        assert!(world.has_fresh("q1999"));
        assert_eq!(&*world.insert("jane", "big", 100_000), "yes");
        assert!(!world.has_fresh("big"));
    }

    #[test]
    fn decision_cache_read_concurrently_with_writes() {
        let world = CacheFixture::new(256, 1 << 20);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let world = &world;
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let question = format!("q{}", (number * 7 + reader) % 500);
                        if let Some(value) = world.cache.get_fresh(&world.key(&question), world.now) {
                            assert_eq!(&*value, "yes");
                        }
                    }
                });
            }
            for number in 0..5_000 {
                world.insert("jane", &format!("q{}", number % 500), 3);
            }
        });
        assert!(world.cache.size().0 <= 256);
    }
}
