//! A copy-on-write map for snapshots: a clone shares all shards that are not modified.

use std::collections::HashMap;
use std::sync::Arc;

/// Number of shards: in a map of a thousand entries a change copies sixteen.
const SHARDS: usize = 64;

/// Values by name. Cloning takes constant time.
pub struct ShardedMap<V>(Arc<[MapShard<V>]>);

type MapShard<V> = Arc<HashMap<Box<str>, V>>;

impl<V> Default for ShardedMap<V> {
    fn default() -> ShardedMap<V> {
        let empty = Arc::new(HashMap::new());
        ShardedMap(vec![empty; SHARDS].into())
    }
}

impl<V> Clone for ShardedMap<V> {
    fn clone(&self) -> ShardedMap<V> {
        ShardedMap(self.0.clone())
    }
}

impl<V> ShardedMap<V> {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.0.get(shard_index(name))?.get(name)
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.0.iter().map(|shard| shard.len()).sum()
    }

    /// Whether the map has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|shard| shard.is_empty())
    }

    /// All values, in no particular order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().flat_map(|shard| shard.values())
    }

    /// All names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().flat_map(|shard| shard.keys()).map(AsRef::as_ref)
    }
}

impl<V: Clone> ShardedMap<V> {
    /// Sets the value of `name`; earlier clones are not affected.
    pub fn insert(&mut self, name: &str, value: V) {
        if let Some(shard) = Arc::make_mut(&mut self.0).get_mut(shard_index(name)) {
            Arc::make_mut(shard).insert(name.into(), value);
        }
    }

    /// Removes `name`; earlier clones are not affected.
    pub fn remove(&mut self, name: &str) {
        if self.get(name).is_some()
            && let Some(shard) = Arc::make_mut(&mut self.0).get_mut(shard_index(name))
        {
            Arc::make_mut(shard).remove(name);
        }
    }
}

/// FNV-1a. Collisions only make a shard larger, so no keyed hash is needed.
fn shard_index(name: &str) -> usize {
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash >> 32) as usize % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sharded_map_clone_is_unchanged_and_shares_other_shards() {
        let mut one = ShardedMap::default();
        for number in 0..1000 {
            one.insert(&format!("v1.group-{number}.io"), number);
        }
        let mut two = one.clone();
        two.insert("v1.group-7.io", 0);
        two.remove("v1.group-8.io");
        two.remove("nobody");
        assert_eq!((one.get("v1.group-7.io"), two.get("v1.group-7.io")), (Some(&7), Some(&0)));
        assert_eq!((one.get("v1.group-8.io"), two.get("v1.group-8.io")), (Some(&8), None));
        assert_eq!((one.len(), two.len(), two.values().count(), two.names().count()), (1000, 999, 999, 999));
        assert!(!two.is_empty() && ShardedMap::<u32>::default().is_empty());
        let shared = one.0.iter().zip(two.0.iter()).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert!(shared >= SHARDS - 2, "{shared}");
        assert!(one.0.iter().all(|shard| shard.len() < 40), "spread evenly enough");
    }
}
