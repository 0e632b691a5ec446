//! Schemas of custom resources in memory. Each is compiled when it is used; those that were not used for longest are dropped
//! when all together take too much.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Weak};

use parking_lot::Mutex;

use kubeapi::schema::Schema;

/// Weight of all compiled schemas, twice that of the largest one: from 130 to 500 MB. One that is larger than the rest is
/// kept alone.
const MAX_WEIGHT: usize = 1 << 23;

/// The schemas of this process.
static PROCESS_MEMORY: LazyLock<Arc<SchemaMemory>> = LazyLock::new(|| Arc::new(SchemaMemory::new(MAX_WEIGHT)));

/// What compiled schemas take together.
#[derive(Debug)]
pub(super) struct SchemaMemory {
    max_weight: usize,
    /// Those that were compiled, and may have been dropped since.
    slots: Mutex<Vec<Weak<SchemaSlot>>>,
    uses: AtomicU64,
}

/// The schema of one version.
#[derive(Debug)]
pub(super) struct SchemaSlot {
    memory: Arc<SchemaMemory>,
    compiled: Mutex<CompiledSchema>,
    /// Of the schema; 0 if it was dropped.
    weight: AtomicUsize,
    last_use: AtomicU64,
}

#[derive(Debug, Default)]
struct CompiledSchema {
    schema: Option<Arc<Schema>>,
    /// Of a schema that was dropped while a request uses it.
    dropped: Weak<Schema>,
    /// How often it was found idle since its last use.
    idle: u32,
}

impl SchemaMemory {
    fn new(max_weight: usize) -> SchemaMemory {
        SchemaMemory { max_weight, slots: Mutex::default(), uses: AtomicU64::new(0) }
    }

    /// Notes that a schema was compiled, and drops others if there is too much.
    fn add(&self, slot: &Arc<SchemaSlot>) {
        let mut slots = self.slots.lock();
        slots.retain(|other| other.upgrade().is_some_and(|other| other.weight() > 0 && !Arc::ptr_eq(&other, slot)));
        let mut others: Vec<Arc<SchemaSlot>> = slots.iter().filter_map(Weak::upgrade).collect();
        others.sort_by_key(|other| other.last_use.load(Relaxed));
        let mut total = others.iter().map(|other| other.weight()).sum::<usize>() + slot.weight();
        for other in others {
            if total <= self.max_weight {
                break;
            }
            let weight = other.weight();
            // One that is locked is used now.
            if other.try_drop() {
                total -= weight;
            }
        }
        slots.push(Arc::downgrade(slot));
    }
}

impl Default for SchemaSlot {
    fn default() -> SchemaSlot {
        SchemaSlot::new(PROCESS_MEMORY.clone())
    }
}

impl SchemaSlot {
    fn new(memory: Arc<SchemaMemory>) -> SchemaSlot {
        let (weight, last_use) = (AtomicUsize::new(0), AtomicU64::new(0));
        SchemaSlot { memory, compiled: Mutex::default(), weight, last_use }
    }

    /// The schema; compiled now unless it is there. `json_size` is that of its text.
    pub(super) fn get_or_compile(self: &Arc<Self>, json_size: usize, compile: impl FnOnce() -> Schema) -> Arc<Schema> {
        self.note_use();
        let (schema, is_new) = {
            // Held while it is compiled: other callers would compile it, too.
            let mut compiled = self.compiled.lock();
            compiled.idle = 0;
            let found = compiled.schema.clone();
            let is_new = found.is_none();
            let schema = found.or_else(|| compiled.dropped.upgrade()).unwrap_or_else(|| Arc::new(compile()));
            if is_new {
                self.weight.store(schema.weight(json_size), Relaxed);
                compiled.schema = Some(schema.clone());
            }
            (schema, is_new)
        };
        // Without the lock: the memory locks the schemas that it drops.
        if is_new {
            self.memory.add(self);
        }
        schema
    }

    /// The schema if it need not be compiled. None while another thread compiles it.
    pub(super) fn get(&self) -> Option<Arc<Schema>> {
        let mut compiled = self.compiled.try_lock()?;
        compiled.idle = 0;
        self.note_use();
        compiled.schema.clone().or_else(|| compiled.dropped.upgrade())
    }

    /// Whether [`get`](SchemaSlot::get) would find the schema. Does not count as a use.
    #[cfg(test)]
    pub(super) fn is_compiled(&self) -> bool {
        self.compiled
            .try_lock()
            .is_some_and(|compiled| compiled.schema.is_some() || compiled.dropped.strong_count() > 0)
    }

    fn note_use(&self) {
        self.last_use.store(self.memory.uses.fetch_add(1, Relaxed), Relaxed);
    }

    /// Drops the schema if it was not used since as many calls of this function as `limit` says.
    pub(super) fn drop_idle(&self, limit: u32) {
        // One that is being compiled is used.
        let Some(mut compiled) = self.compiled.try_lock() else { return };
        compiled.idle += 1;
        if compiled.idle > limit {
            self.drop_schema(&mut compiled);
        }
    }

    fn try_drop(&self) -> bool {
        let Some(mut compiled) = self.compiled.try_lock() else { return false };
        self.drop_schema(&mut compiled);
        true
    }

    fn drop_schema(&self, compiled: &mut CompiledSchema) {
        let dropped = compiled.schema.as_ref().map_or_else(Weak::new, Arc::downgrade);
        *compiled = CompiledSchema { schema: None, dropped, idle: 0 };
        self.weight.store(0, Relaxed);
    }

    fn weight(&self) -> usize {
        self.weight.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema whose pattern has a weight of about 1,000.
    fn schema(name: &str) -> Schema {
        Schema::read(&json!({"type": "string", "pattern": format!("^{name}[ab]{{1000}}$")})).unwrap()
    }

    #[test]
    fn compiled_schemas_that_were_not_used_for_longest_are_dropped_when_all_weigh_too_much() {
        let memory = Arc::new(SchemaMemory::new(3_500));
        let slots: Vec<Arc<SchemaSlot>> = (0..5).map(|_| Arc::new(SchemaSlot::new(memory.clone()))).collect();
        let compile = |at: usize| drop(slots[at].get_or_compile(100, || schema(&at.to_string())));
        let compiled = || slots.iter().map(|slot| slot.is_compiled()).collect::<Vec<bool>>();
        (0..3).for_each(compile);
        assert_eq!(compiled(), [true, true, true, false, false]);
        compile(0);
        compile(3);
        assert_eq!(compiled(), [true, false, true, true, false]);
        compile(4);
        assert_eq!(compiled(), [true, false, false, true, true]);
        assert_eq!(
            memory.slots.lock().iter().filter_map(Weak::upgrade).map(|slot| slot.weight()).sum::<usize>() / 1_000,
            3
        );
        // A schema that a request uses is not compiled again.
        let held = slots[0].get_or_compile(100, || unreachable!("it is there"));
        (1..4).for_each(compile);
        assert!(slots[0].is_compiled());
        assert!(Arc::ptr_eq(&held, &slots[0].get_or_compile(100, || unreachable!("it is used"))));
        // One that is larger than all others may be is kept alone.
        let large = Arc::new(SchemaSlot::new(memory));
        large.get_or_compile(100, || {
            Schema::read(&json!({"type": "string", "pattern": "[ab]{1000}[cd]{1000}[ef]{1000}[gh]{1000}"})).unwrap()
        });
        assert!(large.is_compiled() && slots[1..].iter().all(|slot| !slot.is_compiled()));
    }
}
