//! Watches: where they begin, what they send, when they end.

use std::time::Duration;

use super::*;

fn query(start: WatchStart) -> WatchQuery {
    WatchQuery { namespace: None, selection: Selection::default(), start, sends_bookmarks: false, timeout: None }
}

const INITIAL: WatchStart = WatchStart::Latest { marks_end: false };

/// An event as text: type, name, revision.
fn text(event: &WatchEvent) -> String {
    let name = event.object.as_ref().map_or("-", |object| object.name());
    format!("{:?} {name} {}", event.kind, event.revision)
}

fn at_hand(cursor: &mut WatchCursor) -> Vec<String> {
    std::iter::from_fn(|| cursor.next_at_hand().unwrap()).map(|event| text(&event)).collect()
}

#[test]
fn watch_begins_with_objects_or_after_revision() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        for path in ["a/1", "b/2", "a/3"] {
            fixture.put(path, "x", "").await;
        }
        let open = async |start| fixture.things.watch(query(start), &fixture.notifier).await.unwrap();
        let mut cursors = [
            open(INITIAL).await,
            open(WatchStart::NotOlderThan { revision: 0, marks_end: true }).await,
            open(WatchStart::After(1)).await,
            open(WatchStart::After(3)).await,
            open(WatchStart::After(5)).await,
        ];
        let expected: [&[&str]; 5] = [
            &["Added 1 2", "Added 3 4", "Added 2 3"],
            &["Added 1 2", "Added 3 4", "Added 2 3", "InitialEventsEnd - 4"],
            &["Added 1 2", "Added 2 3", "Added 3 4"],
            &["Added 3 4"],
            &[],
        ];
        assert_eq!(cursors.each_mut().map(at_hand).each_ref().map(Vec::as_slice), expected);
        fixture.put("a/1", "y", "").await;
        fixture.delete("b/2").await;
        let expected: [&[&str]; 5] = [
            &["Modified 1 5", "Deleted 2 6"],
            &["Modified 1 5", "Deleted 2 6"],
            &["Modified 1 5", "Deleted 2 6"],
            &["Modified 1 5", "Deleted 2 6"],
            &["Deleted 2 6"],
        ];
        assert_eq!(
            cursors.each_mut().map(at_hand).each_ref().map(Vec::as_slice),
            expected,
            "a future revision is silent"
        );
        assert_eq!(fixture.collections.watches(), 5);
        drop(cursors);
        assert_eq!(fixture.collections.watches(), 0);
    });
}

#[test]
fn watch_initial_events_are_of_one_revision() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        fixture.put("a/1", "x", "").await;
        fixture.put("a/2", "x", "").await;
        let mut cursor = fixture.things.watch(query(INITIAL), &fixture.notifier).await.unwrap();
        assert_eq!(text(&cursor.next().await.unwrap().unwrap()), "Added 1 2");
        fixture.delete("a/2").await;
        fixture.put("a/0", "x", "").await;
        assert_eq!(at_hand(&mut cursor), ["Added 2 3", "Deleted 2 4", "Added 0 5"]);
    });
}

#[test]
fn watch_selects_with_events_at_the_border() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        let selected = WatchQuery { selection: select("app=x", "type!=t"), ..query(INITIAL) };
        let mut cursor = fixture.things.watch(selected, &fixture.notifier).await.unwrap();
        fixture.put("a/1", "y", "").await;
        fixture.put("a/1", "x", "").await;
        fixture.put("a/1", "x", "u").await;
        fixture.put("a/1", "x", "t").await;
        fixture.put("a/1", "x", "").await;
        fixture.put("a/1", "y", "").await;
        fixture.delete("a/1").await;
        let mut events = Vec::new();
        while let Some(event) = cursor.next_at_hand().unwrap() {
            let object = event.object.clone().unwrap();
            assert!(event.change.is_some());
            events.push(format!("{} {} {}", text(&event), object.revision(), object.field(0)));
        }
        assert_eq!(events, ["Added 1 3 3 ", "Modified 1 4 4 u", "Deleted 1 5 4 u", "Added 1 6 6 ", "Deleted 1 7 6 "]);
    });
}

#[test]
fn watch_of_namespace_or_name_sees_its_own() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        let namespace = WatchQuery { namespace: Some("a".to_owned()), ..query(INITIAL) };
        let mut of_namespace = fixture.things.watch(namespace.clone(), &fixture.notifier).await.unwrap();
        let name = WatchQuery { selection: select("", "metadata.name=1"), ..namespace };
        let mut of_name = fixture.things.watch(name, &fixture.notifier).await.unwrap();
        assert_eq!((at_hand(&mut of_namespace).len(), at_hand(&mut of_name).len()), (0, 0));
        for path in ["a/1", "b/1", "a/2", "aa/1"] {
            fixture.put(path, "x", "").await;
        }
        assert_eq!(at_hand(&mut of_namespace), ["Added 1 2", "Added 2 4"]);
        assert_eq!(at_hand(&mut of_name), ["Added 1 2"]);
    });
}

#[test]
fn watch_behind_the_history_expires() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits { min_changes: 1, max_changes: 3, ..HistoryLimits::default() });
        fixture.put("a/1", "x", "").await;
        let mut slow = fixture.things.watch(query(WatchStart::After(1)), &fixture.notifier).await.unwrap();
        for _ in 0..4 {
            fixture.put("a/1", "x", "").await;
        }
        let expired = slow.next().await.unwrap_err();
        assert_eq!(expired.to_string(), "too old resource version: 1 (3)");
        let refused = fixture.things.watch(query(WatchStart::After(2)), &fixture.notifier).await.err().unwrap();
        assert!(matches!(refused, Error::Expired { requested: 2, oldest: 3 }));
        assert!(fixture.things.watch(query(WatchStart::After(3)), &fixture.notifier).await.is_ok());
    });
}

#[test]
fn watch_of_quiet_object_outlives_the_ring() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits { min_changes: 1, max_changes: 3, ..HistoryLimits::default() });
        fixture.put("a/1", "x", "").await;
        let quiet = WatchQuery {
            selection: select("", "metadata.name=1"),
            sends_bookmarks: true,
            ..query(WatchStart::After(2))
        };
        let mut cursor = fixture.things.watch(quiet, &fixture.notifier).await.unwrap();
        assert_eq!(at_hand(&mut cursor).len(), 0);
        let mut last = 0;
        for _ in 0..20 {
            last = fixture.put("a/2", "x", "").await;
        }
        let bookmark = cursor.next().await.unwrap().unwrap();
        assert_eq!(text(&bookmark), format!("Bookmark - {last}"));
        for _ in 0..20 {
            fixture.put("a/2", "x", "").await;
        }
        let changed = fixture.put("a/1", "y", "").await;
        assert_eq!(text(&cursor.next().await.unwrap().unwrap()), format!("Modified 1 {changed}"));
    });
}

#[test]
fn watch_bookmarks_move_on_with_the_store_and_precede_the_end() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        fixture.put("a/1", "x", "").await;
        let timed = |sends_bookmarks| WatchQuery {
            sends_bookmarks,
            timeout: Some(Duration::from_secs(100)),
            ..query(WatchStart::After(2))
        };
        let start = tokio::time::Instant::now();
        let mut cursor = fixture.things.watch(timed(true), &fixture.notifier).await.unwrap();
        let other = CollectionSettings {
            prefix: Prefix::parse("/registry/others/").unwrap(),
            fields: Arc::new([]),
            upgrade: None,
            repair: None,
        };
        let others = fixture.collections.collection(&other);
        others.create(&other.prefix.key("", "o").unwrap(), value("", ""), None).await.unwrap();
        let mut bookmarks = Vec::new();
        while let Some(event) = cursor.next().await.unwrap() {
            assert_eq!(text(&event), "Bookmark - 3", "the store's revision");
            bookmarks.push(start.elapsed());
        }
        assert_eq!(start.elapsed().as_secs(), 100);
        assert!((50..=60).contains(&bookmarks[0].as_secs()), "{bookmarks:?}");
        assert_eq!(bookmarks[1].as_secs(), 98, "{bookmarks:?}");
        assert_eq!(bookmarks.len(), 2);
        let mut silent = fixture.things.watch(timed(false), &fixture.notifier).await.unwrap();
        assert!(silent.next().await.unwrap().is_none());
        assert_eq!(start.elapsed().as_secs(), 200);
    });
}

#[test]
fn watch_event_encodings_are_shared() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        let open = || fixture.things.watch(query(INITIAL), &fixture.notifier);
        let (mut one, mut two) = (open().await.unwrap(), open().await.unwrap());
        fixture.put("a/1", "x", "").await;
        let mut encoded = 0;
        for cursor in [&mut one, &mut two] {
            let change = cursor.next().await.unwrap().unwrap().change.unwrap();
            change.views().get_or_encode(1, || {
                encoded += 1;
                "event".into()
            });
        }
        assert_eq!(encoded, 1);
    });
}

/// Watches on threads of their own, fed by the thread of the store.
#[test]
fn watch_wakes_on_worker_threads() {
    let folder = tempfile::tempdir().unwrap();
    let settings =
        LocalStoreSettings { synchronizes: false, ..LocalStoreSettings::new(folder.path().join("store.db")) };
    let store: Arc<dyn Store> = Arc::new(crate::LocalStore::open(settings).unwrap());
    let collections = collections(store, HistoryLimits::default());
    let run = |task: &dyn Fn(Collections) -> std::pin::Pin<Box<dyn Future<Output = ()>>>| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(task(collections.clone()));
    };
    std::thread::scope(|scope| {
        for worker in 0..3 {
            scope.spawn(move || {
                run(&|collections| {
                    Box::pin(async move {
                        let (things, notifier) = (collections.collection(&things()), collections.notifier());
                        let dispatcher = notifier.clone();
                        // One worker has no task: the thread of the store wakes its watches.
                        let task = (worker > 0).then(|| tokio::spawn(async move { dispatcher.run().await }));
                        let mut all = things.watch(query(WatchStart::After(1)), &notifier).await.unwrap();
                        let name =
                            WatchQuery { selection: select("", "metadata.name=7"), ..query(WatchStart::After(1)) };
                        let mut one = things.watch(name, &notifier).await.unwrap();
                        let mut expected = 1;
                        while expected < 201 {
                            let event = all.next().await.unwrap().unwrap();
                            expected += 1;
                            assert_eq!(event.revision, expected, "no gap");
                        }
                        for _ in 0..10 {
                            assert_eq!(one.next().await.unwrap().unwrap().object.unwrap().name(), "7");
                        }
                        if let Some(task) = task {
                            task.abort();
                        }
                    })
                });
            });
        }
        run(&|collections| {
            Box::pin(async move {
                let things = collections.collection(&things());
                for number in 0..200 {
                    put(&things, &format!("ns/{}", number % 20), "x", "").await;
                }
            })
        });
    });
}
