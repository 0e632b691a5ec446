//! Unfinished HTTP/2 header blocks on connections with running streams.

use crate::support::backend::{BackendSettings, data_frame, start_scripted_backend};
use crate::support::fixtures::TestEnvironment;
use crate::support::gateway_fixture::{GatewayFixture, THINGS};
use crate::support::raw_h2_client::{
    self, DATA, END_STREAM, GOAWAY, HEADERS, RawH2Client, StreamOutcome, encode_frame,
};

/// Nothing else may come before the rest of a header block, for any stream: its sender cannot go on, ever.
#[tokio::test(flavor = "multi_thread")]
async fn unfinished_header_block_bounded_while_streams_run() {
    let environment = TestEnvironment::new();
    let (backend, mut writers) = start_scripted_backend(&environment, BackendSettings::http2()).await;
    let fixture = GatewayFixture::with_flags(environment, &[&backend], &[], &["--read-header-timeout=2s"]);
    let open = async || RawH2Client::open(&fixture.environment, &fixture.gateway, Some(&fixture.jane), &[]).await;
    let mut watch = async |frames: &mut RawH2Client| {
        assert!(frames.send(&raw_h2_client::get_frames(1, &format!("{THINGS}?watch=1"), &[])).await);
        let writer = writers.recv().await.unwrap();
        assert_eq!(frames.stream_outcome(1).await, StreamOutcome::Status(200));
        writer
    };
    let (mut quiet, mut unfinished) = (open().await, open().await);
    let (quiet_writer, writer) = (watch(&mut quiet).await, watch(&mut unfinished).await);
    assert!(unfinished.send(&encode_frame(HEADERS, END_STREAM, 3, &[0x82])).await);
    let goaway = unfinished.next_matching(|frame| frame.kind == GOAWAY).await.expect("GOAWAY before the end");
    assert_eq!(goaway.payload[4..8], [0; 4], "{goaway:?}");
    // The stream that runs goes on.
    writer.send(data_frame("one\n")).unwrap();
    let event = |wanted: &'static str| {
        move |frame: &raw_h2_client::H2Frame| frame.kind == DATA && frame.payload == wanted.as_bytes()
    };
    assert!(unfinished.next_matching(event("one\n")).await.is_some());
    // Limited in time: a silent client cannot be told from a dead one.
    assert_eq!(unfinished.next_matching(|_| false).await, None);
    // One that owes nothing stays.
    quiet_writer.send(data_frame("two\n")).unwrap();
    assert!(quiet.next_matching(event("two\n")).await.is_some());
}
