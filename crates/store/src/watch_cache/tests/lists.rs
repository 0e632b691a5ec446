//! Lists: resourceVersion, match, limit and continue.

use super::*;

fn names(list: &StoredList) -> String {
    list.objects.iter().map(|object| object.name()).collect::<Vec<_>>().join(" ")
}

fn query(version: ListRevision, limit: usize) -> ListQuery {
    ListQuery { version, limit, ..ListQuery::default() }
}

async fn next(things: &ResourceCollection, first: &ListQuery, page: &StoredList) -> Result<StoredList, Error> {
    things.list(&ListQuery { continues: page.next.clone(), ..first.clone() }).await
}

#[test]
fn list_pages_are_at_first_revision() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        for path in ["a/1", "a/2", "b/3", "b/4", "b/5"] {
            fixture.put(path, "x", "").await;
        }
        let all = query(ListRevision::Latest, 2);
        let first = fixture.things.list(&all).await.unwrap();
        assert_eq!((names(&first).as_str(), first.revision, first.remaining), ("1 2", 6, Some(3)));
        let position = first.next.clone().unwrap();
        assert_eq!((position.start.as_str(), position.revision), ("/a/2\0", Some(6)));
        fixture.delete("b/4").await;
        fixture.put("b/3", "y", "").await;
        fixture.put("b/35", "x", "").await;
        let second = next(&fixture.things, &all, &first).await.unwrap();
        assert_eq!((names(&second).as_str(), second.revision, second.remaining), ("3 4", 6, Some(1)));
        assert_eq!(second.objects[0].revision(), 4, "as it was");
        let third = next(&fixture.things, &all, &second).await.unwrap();
        assert_eq!((names(&third).as_str(), third.revision, third.remaining), ("5", 6, None));
        assert_eq!(third.next, None);
    });
}

#[test]
fn list_page_that_ends_exactly_has_no_next() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        for path in ["a/1", "a/2", "b/3"] {
            fixture.put(path, "x", "").await;
        }
        let namespace = ListQuery { namespace: Some("a".to_owned()), ..query(ListRevision::Latest, 2) };
        let page = fixture.things.list(&namespace).await.unwrap();
        assert_eq!((names(&page).as_str(), page.next, page.remaining), ("1 2", None, None));
        let one = ListQuery { limit: 1, ..namespace };
        let page = fixture.things.list(&one).await.unwrap();
        assert_eq!(page.next.clone().unwrap().start, "/1\0", "relative to the namespace");
        assert_eq!(
            (page.remaining, names(&next(&fixture.things, &one, &page).await.unwrap())),
            (Some(1), "2".to_owned())
        );
    });
}

#[test]
fn list_selects_and_fills_pages() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        for number in 0..3_000 {
            fixture.put(&format!("ns/{number:04}"), if number % 1_000 == 0 { "x" } else { "y" }, "t").await;
        }
        let selected = ListQuery { selection: select("app=x", ""), ..query(ListRevision::Latest, 2) };
        let first = fixture.things.list(&selected).await.unwrap();
        assert_eq!((names(&first).as_str(), first.remaining), ("0000 1000", None));
        let second = next(&fixture.things, &selected, &first).await.unwrap();
        assert_eq!((names(&second).as_str(), second.next), ("2000", None));
        for (labels, fields, count) in [
            ("", "metadata.name=0007", 1),
            ("app!=x", "metadata.namespace=ns", 2_997),
            ("app=x", "type=t,metadata.name!=0000", 2),
            ("", "type!=t", 0),
        ] {
            let selected = ListQuery { selection: select(labels, fields), ..query(ListRevision::Any, 0) };
            assert_eq!(fixture.things.list(&selected).await.unwrap().objects.len(), count, "{labels} {fields}");
        }
    });
}

#[test]
fn list_version_and_match() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        for path in ["ns/1", "ns/2", "ns/3"] {
            fixture.put(path, "x", "").await;
        }
        let other = CollectionSettings {
            prefix: Prefix::parse("/registry/others/").unwrap(),
            fields: Arc::new([]),
            upgrade: None,
            repair: None,
        };
        let others = fixture.collections.collection(&other);
        others.create(&other.prefix.key("", "o").unwrap(), value("", ""), None).await.unwrap();
        use ListRevision::*;
        for (version, limit, expected, revision, is_page) in [
            (Latest, 0, "1 2 3", 5, false),
            (Latest, 1, "1", 5, true),
            (Any, 1, "1 2 3", 5, false),
            (NotOlderThan(3), 1, "1", 5, true),
            (NotOlderThan(5), 0, "1 2 3", 5, false),
            (Exact(3), 1, "1", 3, true),
            (Exact(3), 2, "1 2", 3, false),
            (Exact(2), 0, "1", 2, false),
            (Exact(1), 0, "", 1, false),
            (Exact(5), 0, "1 2 3", 5, false),
        ] {
            let list = fixture.things.list(&query(version, limit)).await.unwrap();
            let found = (names(&list), list.revision, list.next.is_some());
            assert_eq!(found, (expected.to_owned(), revision, is_page), "{version:?} {limit}");
        }
        for version in [NotOlderThan(6), Exact(6)] {
            let start = tokio::time::Instant::now();
            let refused = fixture.things.list(&query(version, 0)).await.unwrap_err();
            assert!(matches!(refused, Error::TooLargeResourceVersion { requested: 6, current: 5 }), "{refused}");
            assert_eq!(start.elapsed().as_secs(), 3);
        }
    });
}

#[test]
fn list_waits_for_revision_that_comes() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        fixture.put("ns/1", "x", "").await;
        let later = query(ListRevision::NotOlderThan(3), 0);
        let (list, _) = tokio::join!(fixture.things.list(&later), async {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            fixture.put("ns/2", "x", "").await
        });
        assert_eq!(names(&list.unwrap()), "1 2");
    });
}

#[test]
fn list_beyond_the_ring_comes_from_the_store_then_expires() {
    run(async {
        let limits = HistoryLimits { min_changes: 1, max_changes: 2, ..HistoryLimits::default() };
        let fixture = CacheFixture::new(limits);
        for path in ["ns/1", "ns/2", "ns/3", "ns/4"] {
            fixture.put(path, "x", "").await;
        }
        let all = query(ListRevision::Latest, 2);
        let first = fixture.things.list(&all).await.unwrap();
        for _ in 0..5 {
            fixture.put("ns/3", "y", "").await;
        }
        assert!(fixture.things.oldest() > first.revision);
        let second = next(&fixture.things, &all, &first).await.unwrap();
        assert_eq!((names(&second).as_str(), second.objects[0].revision(), second.revision), ("3 4", 4, 5));
        let old = fixture.things.list(&query(ListRevision::Exact(4), 2)).await.unwrap();
        assert_eq!(
            (names(&old).as_str(), old.remaining, old.next.clone().unwrap().start.as_str()),
            ("1 2", Some(1), "/ns/2\0")
        );
        let selected = ListQuery { selection: select("", "metadata.name=3"), ..query(ListRevision::Exact(4), 1) };
        let selected = fixture.things.list(&selected).await.unwrap();
        assert_eq!((names(&selected).as_str(), selected.next), ("3", None));
        fixture.store.compact(8);
        assert!(matches!(fixture.things.list(&query(ListRevision::Exact(4), 0)).await, Err(Error::ListExpired)));
        let Err(Error::ContinueExpired { next }) = next(&fixture.things, &all, &first).await else {
            panic!("not expired")
        };
        assert_eq!(next, ContinuePosition { revision: None, start: "/ns/2\0".to_owned() });
        fixture.put("ns/5", "x", "").await;
        let rest = fixture.things.list(&ListQuery { continues: Some(next), ..all.clone() }).await.unwrap();
        assert_eq!((names(&rest).as_str(), rest.revision), ("3 4", 11), "goes on at the latest");
        assert_eq!(rest.next.unwrap().revision, Some(11));
    });
}

#[test]
fn list_from_the_history_is_bounded_in_bytes() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits { min_changes: 1, max_changes: 2, ..HistoryLimits::default() });
        let large = |filler: u8| -> Bytes {
            format!(r#"{{"metadata":{{}},"data":"{}"}}"#, char::from(filler).to_string().repeat(1 << 20)).into()
        };
        let keys: Vec<Key> = (0..70).map(|number| key(&format!("ns/{number:02}"))).collect();
        let mut created = Vec::new();
        for key in &keys {
            created.push(fixture.things.create(key, large(b'a'), None).await.unwrap().revision());
        }
        let old = created[69];
        for (key, revision) in keys.iter().zip(created).take(69) {
            fixture.things.update(key, revision, large(b'b'), None).await.unwrap();
        }
        let whole = fixture.things.list(&query(ListRevision::Exact(old), 0)).await;
        assert!(matches!(whole, Err(Error::ListTooLarge)), "{:?}", whole.map(|list| list.objects.len()));
        let paged = query(ListRevision::Exact(old), 500);
        let first = fixture.things.list(&paged).await.unwrap();
        assert_eq!((first.objects.len(), first.remaining), (64, Some(6)), "shorter than asked");
        let last = next(&fixture.things, &paged, &first).await.unwrap();
        assert_eq!((last.objects.len(), last.revision, last.next.is_none()), (6, old, true));
        let current = fixture.things.get(&keys[69]).unwrap();
        assert!(Arc::ptr_eq(&last.objects[5], &current), "what the cache has counts nothing");
        let selected = ListQuery { selection: select("", "metadata.name=03"), ..query(ListRevision::Exact(old), 0) };
        assert_eq!(names(&fixture.things.list(&selected).await.unwrap()), "03");
    });
}

#[test]
fn list_continue_never_leaves_its_prefix() {
    run(async {
        let fixture = CacheFixture::new(HistoryLimits::default());
        fixture.put("a/1", "x", "").await;
        fixture.put("b/1", "x", "").await;
        for (start, expected) in [("", None), ("a", None), ("/", None), ("/../", Some("1")), ("/zzz", Some(""))] {
            for revision in [None, Some(3)] {
                let continues = Some(ContinuePosition { revision, start: start.to_owned() });
                let list = ListQuery { namespace: Some("b".to_owned()), continues, ..ListQuery::default() };
                let list = fixture.things.list(&list).await;
                assert_eq!(list.as_ref().ok().map(names).as_deref(), expected, "{start}");
                assert!(expected.is_some() || matches!(list, Err(Error::InvalidContinue)));
            }
        }
        let odd = ListQuery { namespace: Some("a/b".to_owned()), ..ListQuery::default() };
        assert!(matches!(fixture.things.list(&odd).await, Err(Error::InvalidKey(_))));
    });
}

#[test]
fn snapshot_has_every_change_that_is_in_the_ring() {
    const WRITES: usize = 5000;
    let fixture = CacheFixture::new(HistoryLimits::default());
    let first = run(fixture.put("a/1", "x", ""));
    let things = fixture.things.clone();
    let writer = std::thread::spawn(move || {
        run(async {
            for _ in 0..WRITES {
                put(&things, "a/1", "x", "").await;
            }
        });
    });
    let mut seen = first;
    while seen < first + Revision::try_from(WRITES).unwrap() {
        let oldest = fixture.things.oldest();
        let newest = fixture.things.ring().read().newest(oldest, Revision::MAX, 1).unwrap_or_default();
        let Some(change) = newest.first() else { continue };
        seen = change.revision();
        assert!(fixture.things.current().0 >= seen);
    }
    writer.join().unwrap();
}
