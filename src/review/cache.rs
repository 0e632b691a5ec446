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

use super::Key;
use crate::observe::metrics::{self, Metrics};

/// Slots of one set.
const WAYS: usize = 8;
/// Bytes of an entry besides its value: its fields, its allocation, its slot.
const OVERHEAD: usize = 160;

/// Limits of the size of a cache.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of decisions; rounded up to a power of two.
    pub entries: usize,
    /// The maximum number of bytes.
    pub bytes: usize,
}

/// A decision to insert.
pub struct Kept<'t, V> {
    /// The decision.
    pub value: V,
    /// The user it is about: decisions of one owner are evicted for each other first.
    pub owner: &'t str,
    /// The size of `value` in bytes.
    pub bytes: usize,
    /// When it becomes stale.
    pub fresh_until: Instant,
    /// When it expires. Until then it may be used if the server fails; not before `fresh_until`.
    pub stale_until: Instant,
}

/// A cache of decisions of one kind.
pub struct DecisionCache<V> {
    slots: Box<[Slot<V>]>,
    limits: Limits,
    began: Instant,
    writing: Mutex<Writing>,
    name: metrics::DecisionCache,
    metrics: Arc<Metrics>,
}

struct Slot<V> {
    /// 0 if empty.
    tag: AtomicU64,
    entry: ArcSwapOption<Entry<V>>,
}

struct Entry<V> {
    key: Key,
    value: V,
    owner: u64,
    bytes: usize,
    fresh_until: Instant,
    stale_until: Instant,
    /// The time of the last use, in seconds since the cache was created.
    used: AtomicU32,
}

/// State of the writer, under its lock.
struct Writing {
    entries: usize,
    bytes: usize,
    /// The size last reported to the metrics: entries and bytes.
    told: (usize, usize),
    /// The next set to evict from when the cache exceeds its byte limit.
    hand: usize,
    hasher: std::hash::RandomState,
}

impl<V: Clone + PartialEq> DecisionCache<V> {
    /// Creates an empty cache.
    pub fn new(name: metrics::DecisionCache, limits: Limits, metrics: Arc<Metrics>) -> DecisionCache<V> {
        let places = limits.entries.max(WAYS).next_power_of_two();
        let slot = || Slot { tag: AtomicU64::new(0), entry: ArcSwapOption::empty() };
        let writing = Writing { entries: 0, bytes: 0, told: (0, 0), hand: 0, hasher: std::hash::RandomState::new() };
        DecisionCache {
            slots: std::iter::repeat_with(slot).take(places).collect(),
            limits,
            began: Instant::now(),
            writing: Mutex::new(writing),
            name,
            metrics,
        }
    }

    /// Returns the decision, if it is fresh.
    pub fn fresh(&self, key: &Key, now: Instant) -> Option<V> {
        self.find(key, |entry| {
            let good = now < entry.fresh_until;
            if good {
                let used = self.seconds(now);
                // Not on every use: threads that read the same entry would contend for its cache line.
                if entry.used.load(Ordering::Relaxed) != used {
                    entry.used.store(used, Ordering::Relaxed);
                }
            }
            good.then(|| entry.value.clone())
        })
    }

    /// Returns the decision, fresh or stale, if it has not expired.
    pub fn stale(&self, key: &Key, now: Instant) -> Option<V> {
        self.find(key, |entry| (now < entry.stale_until).then(|| entry.value.clone()))
    }

    /// Inserts a decision and returns the stored value: if an equal one was stored before, that allocation is kept.
    pub fn keep(&self, key: Key, kept: Kept<'_, V>, now: Instant) -> V {
        let mut writing = self.writing.lock();
        let before = self.set(&key).position(|slot| slot.entry.load().as_ref().is_some_and(|entry| entry.key == key));
        let mut value = kept.value;
        if let Some(way) = before {
            let slot = &self.slots[self.first(&key) + way];
            if let Some(entry) = &*slot.entry.load()
                && entry.value == value
            {
                value = entry.value.clone();
            }
            self.empty(slot, &mut writing);
        }
        let bytes = kept.bytes + OVERHEAD;
        if bytes > self.limits.bytes {
            self.tell(&mut writing);
            return value;
        }
        while writing.bytes + bytes > self.limits.bytes {
            let set = writing.hand * WAYS % self.slots.len();
            writing.hand = writing.hand.wrapping_add(1);
            self.make_room(set, now, &mut writing);
        }
        let free = self.set(&key).position(|slot| slot.entry.load().is_none());
        let way = free.unwrap_or_else(|| self.make_room(self.first(&key), now, &mut writing).unwrap_or(0));
        let slot = &self.slots[self.first(&key) + way];
        let owner = std::hash::BuildHasher::hash_one(&writing.hasher, kept.owner);
        slot.entry.store(Some(Arc::new(Entry {
            key,
            value: value.clone(),
            owner,
            bytes,
            fresh_until: kept.fresh_until,
            stale_until: kept.stale_until,
            used: AtomicU32::new(self.seconds(now)),
        })));
        slot.tag.store(key.tag(), Ordering::Release);
        writing.entries += 1;
        writing.bytes += bytes;
        self.tell(&mut writing);
        value
    }

    /// Removes expired entries. Call it periodically.
    pub fn sweep(&self, now: Instant) {
        let mut writing = self.writing.lock();
        for slot in &self.slots {
            if slot.entry.load().as_ref().is_some_and(|entry| entry.stale_until <= now) {
                self.empty(slot, &mut writing);
            }
        }
        self.tell(&mut writing);
    }

    /// The number of entries, and their size in bytes.
    pub fn size(&self) -> (usize, usize) {
        let writing = self.writing.lock();
        (writing.entries, writing.bytes)
    }

    fn find(&self, key: &Key, take: impl FnOnce(&Entry<V>) -> Option<V>) -> Option<V> {
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
    fn make_room(&self, first: usize, now: Instant, writing: &mut Writing) -> Option<usize> {
        let entries: Vec<(usize, Arc<Entry<V>>)> =
            (0..WAYS).filter_map(|way| Some((way, self.slots[first + way].entry.load_full()?))).collect();
        let held = |owner: u64| entries.iter().filter(|(_, entry)| entry.owner == owner).count();
        let (way, entry) = entries.iter().max_by_key(|(_, entry)| {
            let useless = entry.stale_until <= now;
            (useless, held(entry.owner), std::cmp::Reverse(entry.used.load(Ordering::Relaxed)))
        })?;
        if now < entry.fresh_until {
            self.metrics.reviews().evicted(self.name);
        }
        self.empty(&self.slots[first + way], writing);
        Some(*way)
    }

    fn empty(&self, slot: &Slot<V>, writing: &mut Writing) {
        slot.tag.store(0, Ordering::Release);
        if let Some(entry) = slot.entry.swap(None) {
            writing.entries -= 1;
            writing.bytes -= entry.bytes;
        }
    }

    fn set(&self, key: &Key) -> std::slice::Iter<'_, Slot<V>> {
        let first = self.first(key);
        self.slots[first..first + WAYS].iter()
    }

    fn first(&self, key: &Key) -> usize {
        // The number of slots is a power of two; each set has WAYS of them.
        key.place() % (self.slots.len() / WAYS) * WAYS
    }

    fn seconds(&self, now: Instant) -> u32 {
        u32::try_from(now.saturating_duration_since(self.began).as_secs()).unwrap_or(u32::MAX)
    }

    fn tell(&self, writing: &mut Writing) {
        let now = (writing.entries, writing.bytes);
        self.metrics.reviews().holds(self.name, now, std::mem::replace(&mut writing.told, now));
    }
}

impl<V> Drop for DecisionCache<V> {
    fn drop(&mut self) {
        self.metrics.reviews().holds(self.name, (0, 0), self.writing.get_mut().told);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::review::Secret;

    struct World {
        cache: DecisionCache<Arc<str>>,
        secret: Secret,
        now: Instant,
    }

    impl World {
        fn new(entries: usize, bytes: usize) -> World {
            let limits = Limits { entries, bytes };
            let cache = DecisionCache::new(metrics::DecisionCache::Access, limits, Metrics::new());
            World { cache, secret: Secret::new().unwrap(), now: Instant::now() }
        }

        fn key(&self, question: &str) -> Key {
            self.secret.key(|digest| digest.text(question))
        }

        fn keep(&self, owner: &str, question: &str, bytes: usize) -> Arc<str> {
            let kept =
                Kept { value: "yes".into(), owner, bytes, fresh_until: self.after(10), stale_until: self.after(30) };
            self.cache.keep(self.key(question), kept, self.now)
        }

        fn after(&self, seconds: u64) -> Instant {
            self.now + Duration::from_secs(seconds)
        }

        fn knows(&self, question: &str) -> bool {
            self.cache.fresh(&self.key(question), self.now).is_some()
        }
    }

    #[test]
    fn a_decision_is_fresh_then_stale_then_gone() {
        let world = World::new(64, 1 << 20);
        let kept = world.keep("jane", "a", 3);
        let key = world.key("a");
        let fresh = |seconds| world.cache.fresh(&key, world.after(seconds)).is_some();
        let stale = |seconds| world.cache.stale(&key, world.after(seconds)).is_some();
        assert_eq!((fresh(9), fresh(10), stale(29), stale(30)), (true, false, true, false));
        assert!(!world.knows("b"));
        // An equal decision keeps its allocation: caches keyed by its address stay valid.
        assert!(Arc::ptr_eq(&kept, &world.keep("jane", "a", 3)));
        assert_eq!(world.cache.size(), (1, 3 + OVERHEAD));
        world.cache.sweep(world.after(29));
        assert_eq!(world.cache.size().0, 1);
        world.cache.sweep(world.after(30));
        assert_eq!(world.cache.size(), (0, 0));
    }

    #[test]
    fn one_owner_pushes_out_nobody_else() {
        let world = World::new(1024, 1 << 20);
        let others: Vec<String> = (0..100).map(|number| format!("user-{number}")).collect();
        others.iter().for_each(|other| drop(world.keep(other, other, 3)));
        for number in 0..20_000 {
            world.keep("mallory", &format!("m{number}"), 3);
        }
        let left = others.iter().filter(|other| world.knows(other)).count();
        // A set full of other owners would have to evict one of them; with 100 in 128 sets that does not happen.
        assert_eq!(left, 100);
        assert_eq!(world.cache.size().0, 1024);
    }

    #[test]
    fn the_longest_unused_of_an_owner_goes_first() {
        let mut world = World::new(WAYS, 1 << 20);
        let names: Vec<String> = (0..WAYS).map(|number| format!("q{number}")).collect();
        for name in &names {
            world.keep("jane", name, 3);
            world.now += Duration::from_secs(1);
        }
        assert!(world.knows("q0"));
        world.keep("jane", "another", 3);
        assert!(world.knows("q0") && !world.knows("q1") && world.knows("another"));
    }

    #[test]
    fn bytes_are_bounded_and_what_is_too_big_is_not_kept() {
        let world = World::new(4096, 100_000);
        for number in 0..2_000 {
            world.keep(&format!("user-{number}"), &format!("q{number}"), 1_000);
            let (entries, bytes) = world.cache.size();
            assert!(bytes <= 100_000 && entries * (1_000 + OVERHEAD) == bytes, "{entries} {bytes}");
        }
        assert!(world.knows("q1999"));
        assert_eq!(&*world.keep("jane", "big", 100_000), "yes");
        assert!(!world.knows("big"));
    }

    #[test]
    fn threads_read_while_one_writes() {
        let world = World::new(256, 1 << 20);
        std::thread::scope(|scope| {
            for reader in 0..2 {
                let world = &world;
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let question = format!("q{}", (number * 7 + reader) % 500);
                        if let Some(value) = world.cache.fresh(&world.key(&question), world.now) {
                            assert_eq!(&*value, "yes");
                        }
                    }
                });
            }
            for number in 0..5_000 {
                world.keep("jane", &format!("q{}", number % 500), 3);
            }
        });
        assert!(world.cache.size().0 <= 256);
    }
}
