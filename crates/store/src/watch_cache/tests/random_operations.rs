//! Random histories: a list at a revision is the state at it, a watch from a revision has no gap, also across a restart
//! and with a store whose feeds end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{FaultyStore, LocalStore};

#[derive(Clone, Debug)]
enum CacheStep {
    Put { name: u8, app: u8 },
    Delete { name: u8 },
    List { back: u64, limit: usize, app: Option<u8> },
    Watch { back: u64, app: Option<u8> },
    Restart,
}

/// Name and label of each object, with its revision.
type State = BTreeMap<String, (u8, Revision)>;

fn steps() -> impl Strategy<Value = Vec<CacheStep>> {
    let app = || prop::option::of(0..3u8);
    let step = prop_oneof![
        8 => (0..8u8, 0..3u8).prop_map(|(name, app)| CacheStep::Put { name, app }),
        3 => (0..8u8).prop_map(|name| CacheStep::Delete { name }),
        4 => (0..40u64, 0..4usize, app()).prop_map(|(back, limit, app)| CacheStep::List { back, limit, app }),
        3 => (0..40u64, app()).prop_map(|(back, app)| CacheStep::Watch { back, app }),
        1 => Just(CacheStep::Restart),
    ];
    prop::collection::vec(step, 1..80)
}

struct Model {
    /// Feeds end, so that a collection may be loaded without its history.
    may_expire: bool,
    states: BTreeMap<Revision, State>,
    watches: Vec<ModelWatch>,
}

struct ModelWatch {
    cursor: WatchCursor,
    app: Option<u8>,
    /// What the events make of the state at the start.
    seen: State,
    last: Revision,
}

fn selected(state: &State, app: Option<u8>) -> State {
    state.iter().filter(|object| app.is_none_or(|app| object.1.0 == app)).map(|(n, o)| (n.clone(), *o)).collect()
}

fn selection(app: Option<u8>) -> Selection {
    app.map_or_else(Selection::default, |app| select(&format!("app=a{app}"), ""))
}

fn entry(object: &Stored) -> (String, (u8, Revision)) {
    let app = object.label("app").unwrap().strip_prefix('a').unwrap().parse().unwrap();
    (object.name().to_owned(), (app, object.revision()))
}

impl Model {
    fn current(&self) -> (Revision, &State) {
        let (revision, state) = self.states.last_key_value().unwrap();
        (*revision, state)
    }

    fn commit(&mut self, revision: Revision, change: impl FnOnce(&mut State)) {
        let (current, state) = self.current();
        assert_eq!(revision, current + 1, "no revision twice, none left out");
        let mut state = state.clone();
        change(&mut state);
        self.states.insert(revision, state);
    }

    /// Takes what the watches have; each must be at the current state then.
    async fn drain(&mut self, things: &ResourceCollection, notifier: &Notifier) {
        let (current, state) = self.states.last_key_value().unwrap();
        for watch in &mut self.watches {
            loop {
                let is_expired = watch.take(&self.states, self.may_expire);
                if things.is_loaded() && !is_expired && watch.seen == selected(state, watch.app) {
                    break;
                }
                // The feed ended: the watch does, too, and the client goes on where it was.
                assert!(is_expired || !things.is_loaded(), "a gap at the end");
                match resume(things, notifier, watch.app, watch.last).await {
                    Some(cursor) => watch.cursor = cursor,
                    // The collection had to be loaded without history: the client lists again.
                    None => {
                        assert!(self.may_expire);
                        (watch.last, watch.seen) = (*current, selected(state, watch.app));
                        watch.cursor = resume(things, notifier, watch.app, *current).await.unwrap();
                    }
                }
            }
        }
    }
}

impl ModelWatch {
    /// Takes the events that are at hand. Returns whether the watch has expired.
    fn take(&mut self, states: &BTreeMap<Revision, State>, may_expire: bool) -> bool {
        loop {
            let event = match self.cursor.next_at_hand() {
                Ok(Some(event)) => event,
                Ok(None) => return false,
                Err(error) => {
                    assert!(may_expire, "{error}");
                    return true;
                }
            };
            assert!(event.revision > self.last);
            self.last = event.revision;
            let (name, value) = entry(&event.object.unwrap());
            let old = match event.kind {
                WatchEventKind::Deleted => self.seen.remove(&name),
                _ => self.seen.insert(name, value),
            };
            assert_eq!(old.is_none(), event.kind == WatchEventKind::Added);
            assert_eq!(self.seen, selected(&states[&event.revision], self.app), "no gap");
        }
    }
}

async fn resume(
    things: &ResourceCollection,
    notifier: &Notifier,
    app: Option<u8>,
    after: Revision,
) -> Option<WatchCursor> {
    let start = WatchStart::After(after);
    let query = WatchQuery { namespace: None, selection: selection(app), start, sends_bookmarks: false, timeout: None };
    match things.watch(query, notifier).await {
        Ok(cursor) => Some(cursor),
        Err(Error::Expired { requested, oldest }) => {
            assert!(requested == after && oldest > after);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

async fn list(things: &ResourceCollection, revision: Revision, limit: usize, app: Option<u8>) -> State {
    let version = ListRevision::Exact(revision);
    let mut query = ListQuery { selection: selection(app), version, limit, ..ListQuery::default() };
    let mut found = State::new();
    loop {
        let page = things.list(&query).await.unwrap();
        assert_eq!(page.revision, revision);
        assert!(limit == 0 || page.objects.len() <= limit);
        found.extend(page.objects.iter().map(|object| entry(object)));
        let Some(next) = page.next else { return found };
        query.continues = Some(next);
    }
}

/// Commits again as long as the store refuses.
async fn again<T>(mut commit: impl AsyncFnMut() -> Result<T, Error>) -> Option<T> {
    loop {
        match commit().await {
            Ok(done) => return Some(done),
            Err(Error::Store(crate::Error::Full | crate::Error::Unavailable(_))) => {}
            Err(Error::Conflict { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

async fn assert_history(
    may_expire: bool,
    steps: Vec<CacheStep>,
    mut open: impl FnMut(Option<Collections>) -> Collections,
) {
    let mut model = Model { may_expire, states: BTreeMap::from([(1, State::new())]), watches: Vec::new() };
    let mut collections = open(None);
    let (mut all, mut notifier) = (collections.collection(&things()), collections.notifier());
    for step in steps {
        let (current, state) = model.current();
        match step {
            CacheStep::Put { name, app } => {
                let (name, held) = (format!("n{name}"), state.get(&format!("n{name}")).map(|held| held.1));
                let (key, value) = (key(&format!("ns/{name}")), value(&format!("a{app}"), ""));
                let put = again(async || match held {
                    Some(revision) => all.update(&key, revision, value.clone(), None).await,
                    None => all.create(&key, value.clone(), None).await,
                });
                let put = put.await.unwrap();
                model.commit(put.revision(), |state| {
                    state.insert(name, (app, put.revision()));
                });
            }
            CacheStep::Delete { name } => {
                let name = format!("n{name}");
                let held = state.get(&name).map_or(current, |held| held.1);
                let is_there = state.contains_key(&name);
                let deleted = again(async || all.delete(&key(&format!("ns/{name}")), held).await).await;
                assert_eq!(deleted.is_some(), is_there);
                if let Some(revision) = deleted {
                    model.commit(revision, |state| {
                        state.remove(&name);
                    });
                }
            }
            CacheStep::List { back, limit, app } => {
                let revision = current.saturating_sub(back).max(1);
                assert_eq!(list(&all, revision, limit, app).await, selected(&model.states[&revision], app));
            }
            CacheStep::Watch { back, app } => {
                all.ensure_loaded().await.unwrap();
                let last = current.saturating_sub(back).max(all.oldest());
                let seen = selected(&model.states[&last], app);
                let Some(cursor) = resume(&all, &notifier, app, last).await else { continue };
                model.watches.push(ModelWatch { cursor, app, seen, last });
            }
            CacheStep::Restart => {
                model.drain(&all, &notifier).await;
                let watches: Vec<_> = model.watches.drain(..).map(|w| (w.app, w.seen, w.last)).collect();
                drop((all, notifier));
                collections = open(Some(collections));
                (all, notifier) = (collections.collection(&things()), collections.notifier());
                for (app, seen, last) in watches {
                    let cursor = resume(&all, &notifier, app, last).await.expect("history survives a restart");
                    model.watches.push(ModelWatch { cursor, app, seen, last });
                }
            }
        }
        // Also when the feed has ended, before the next read loads the collection again.
        for watch in &mut model.watches {
            watch.take(&model.states, may_expire);
        }
        let (revision, state) = model.current();
        let latest = all.list(&ListQuery::default()).await.unwrap();
        assert_eq!(latest.objects.iter().map(|object| entry(object)).collect::<State>(), *state);
        assert!(latest.revision <= revision);
        if revision % 3 == 0 {
            model.drain(&all, &notifier).await;
        }
    }
    model.drain(&all, &notifier).await;
}

/// The ring is small, so that some lists come from the store.
fn small() -> HistoryLimits {
    HistoryLimits { min_changes: 1, max_changes: 1_000, max_bytes: 4_000, ..HistoryLimits::default() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn watch_cache_history_memory(steps in steps()) {
        let store = MemoryStore::new();
        run(assert_history(false, steps, |_| collections(Arc::new(store.clone()), HistoryLimits::default())));
    }

    #[test]
    fn watch_cache_history_faulty(steps in steps(), seed in any::<u32>()) {
        let store: Arc<dyn Store> = Arc::new(FaultyStore::new(MemoryStore::new(), seed.into()));
        // A load may go without history in the end, and then nothing survives a restart.
        let steps = steps.into_iter().filter(|step| !matches!(step, CacheStep::Restart)).collect();
        run(assert_history(true, steps, |_| collections(store.clone(), HistoryLimits::default())));
    }

    #[test]
    fn watch_cache_lists_beyond_small_ring(steps in steps()) {
        let store = MemoryStore::new();
        let steps = steps.into_iter().filter(|step| !matches!(step, CacheStep::Watch { .. })).collect();
        run(assert_history(false, steps, |_| collections(Arc::new(store.clone()), small())));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn watch_cache_history_local_across_restarts(steps in steps()) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("store.db");
        let open = |closed: Option<Collections>| {
            drop(closed);
            let settings = LocalStoreSettings { synchronizes: false, ..LocalStoreSettings::new(&file) };
            collections(Arc::new(LocalStore::open(settings).unwrap()), HistoryLimits::default())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(assert_history(false, steps, open));
    }
}
