//! Unfinished HTTP/2 header blocks on connections with running streams.

use crate::backend::{Settings, data, told};
use crate::frames::{self, Answered, DATA, END_STREAM, Frames, GOAWAY, HEADERS, frame};
use crate::scene::{Scene, THINGS};
use crate::world::World;

/// Nothing else may come before the rest of a header block, for any stream: its sender cannot go on, ever.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_header_block_bounded_while_streams_run() {
    let world = World::new();
    let (backend, mut writers) = told(&world, Settings::http2()).await;
    let scene = Scene::with(world, &[&backend], &[], &["--read-header-timeout=2s"]);
    let open = async || Frames::open(&scene.world, &scene.gateway, Some(&scene.jane), &[]).await;
    let mut watch = async |frames: &mut Frames| {
        assert!(frames.send(&frames::get(1, &format!("{THINGS}?watch=1"), &[])).await);
        let writer = writers.recv().await.unwrap();
        assert_eq!(frames.answer(1).await, Answered::Status(200));
        writer
    };
    let (mut quiet, mut unfinished) = (open().await, open().await);
    let (quiet_writer, writer) = (watch(&mut quiet).await, watch(&mut unfinished).await);
    assert!(unfinished.send(&frame(HEADERS, END_STREAM, 3, &[0x82])).await);
    let goaway = unfinished.find(|frame| frame.kind == GOAWAY).await.expect("GOAWAY before the end");
    assert_eq!(goaway.payload[4..8], [0; 4], "{goaway:?}");
    // The stream that runs goes on.
    writer.send(data("one\n")).unwrap();
    let event = |wanted: &'static str| {
        move |frame: &frames::FrameRead| frame.kind == DATA && frame.payload == wanted.as_bytes()
    };
    assert!(unfinished.find(event("one\n")).await.is_some());
    // Not for ever: nobody could tell it from one who is gone.
    assert_eq!(unfinished.find(|_| false).await, None);
    // One that owes nothing stays.
    quiet_writer.send(data("two\n")).unwrap();
    assert!(quiet.find(event("two\n")).await.is_some());
}
