//! Truncated responses: which side is at fault, and outlier detection of endpoints that truncate responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use http::Request;

use crate::backend::{Answer, Backend, Settings, data, json, streamed};
use crate::bodies::written;
use crate::client::{get, next, read};
use crate::raw;
use crate::scene::{Scene, THINGS};
use crate::world::{World, eventually};

/// What is said of an endpoint that is taken out.
const LEFT: &str = "endpoint ejected after repeated failures";

/// A good beginning, and no end.
fn half() -> Answer {
    let (writer, answer) = streamed(200);
    writer.send(data("{\"items\":[")).unwrap();
    tokio::spawn(async move {
        // What is reset at once is never seen.
        tokio::time::sleep(Duration::from_millis(5)).await;
        let _ = writer.send(Err(std::io::Error::other("no more of it")));
    });
    answer
}

/// One of two truncates every list: by its heads alone it would serve as well as the other.
#[tokio::test(flavor = "multi_thread")]
async fn an_endpoint_whose_answers_break_off_is_left_and_tried() {
    for settings in [Settings::http1(), Settings::http2()] {
        let world = World::new();
        let (breaks, begun) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let fine = Backend::start(&world, settings.clone(), async |_| json(200, "{}")).await;
        let (says, counted) = (breaks.clone(), begun.clone());
        let broken = Backend::start(&world, settings, move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            let breaks = says.load(Ordering::SeqCst);
            async move { if breaks { half() } else { json(200, "{}") } }
        })
        .await;
        let scene = Scene::new(world, &[&fine, &broken], &[]);
        let client = scene.http2().await;
        let ask = async || match client.send(get(THINGS, &[])).await {
            Ok(answer) => read(answer).await.whole,
            Err(_) => false,
        };
        eventually("it to be left", async || {
            ask().await;
            scene.gateway.log().iter().any(|line| line.contains(LEFT) && line.contains("BrokenAnswer")).then_some(())
        })
        .await;
        let then = begun.load(Ordering::SeqCst);
        assert!((5..=7).contains(&then), "{then}");
        for _ in 0..100 {
            ask().await;
        }
        let during = begun.load(Ordering::SeqCst) - then;
        assert!(during < 10, "of 100 requests {during} went to the one that breaks its answers off");
        breaks.store(false, Ordering::SeqCst);
        eventually("it to be used again", async || {
            ask().await;
            (begun.load(Ordering::SeqCst) > then + during + 20).then_some(())
        })
        .await;
    }
}

/// What was not begun costs its backend nothing, and nothing of what may be begun twice.
#[tokio::test(flavor = "multi_thread")]
async fn refused_streams_are_sent_again_however_many_there_are() {
    let world = World::new();
    let streams = Arc::new(AtomicUsize::new(0));
    let counted = streams.clone();
    let backend = raw::http2(&world, move |mut stream: raw::Stream| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match number % 2 {
                0 => stream.respond.send_reset(h2::Reason::REFUSED_STREAM),
                _ => stream.answer("{}".into()),
            }
        }
    })
    .await;
    let scene = Scene::new(world, &[&backend], &[]);
    let client = scene.http2().await;
    // More than could be saved up for what was begun.
    for number in 0..800 {
        let answer = client.get(THINGS).await;
        assert_eq!((answer.status.as_u16(), answer.whole), (200, true), "{number}: {}", answer.text());
    }
    assert_eq!(streams.load(Ordering::SeqCst), 1600);
}

/// Clients that leave, that send what is not passed on, and watches that break within an event say nothing against an
/// endpoint.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_or_a_watch_breaks_off_is_no_fault_of_the_endpoint() {
    let world = World::new();
    let both = [Settings::http2(), Settings::http2()].map(|settings| {
        Backend::start(&world, settings, async |request| {
            if request.uri().query() == Some("fine=1") {
                return json(200, "{}");
            }
            if request.uri().query() == Some("watch=1") {
                return half();
            }
            let (writer, answer) = streamed(200);
            writer.send(data("a beginning")).unwrap();
            tokio::spawn(async move {
                // Never ends of itself.
                let _request = request;
                writer.closed().await;
            });
            answer
        })
    });
    let both = futures_util::future::join_all(both).await;
    let scene = Scene::new(world, &[&both[0], &both[1]], &[("max-request-bytes", "1000")]);
    let client = scene.http2().await;
    for _ in 0..20 {
        let mut left = client.send(get(THINGS, &[])).await.unwrap().into_body();
        assert_eq!(next(&mut left).await.unwrap().unwrap(), "a beginning");
        drop(left);
        let (sender, body) = written();
        let mut cut = client.send(Request::post(THINGS).body(body).unwrap()).await.unwrap().into_body();
        assert_eq!(next(&mut cut).await.unwrap().unwrap(), "a beginning");
        sender.send(data(&"x".repeat(1001))).unwrap();
        while let Some(Ok(_)) = next(&mut cut).await {}
        if let Ok(watch) = client.send(get(&format!("{THINGS}?watch=1"), &[])).await {
            assert!(!read(watch).await.whole);
        }
    }
    let said = |word: &str| scene.gateway.log().iter().filter(|line| line.contains(word)).count();
    assert!(client.get(&format!("{THINGS}?fine=1")).await.whole);
    assert_eq!(said(LEFT), 0, "{:?}", scene.gateway.log());
}
