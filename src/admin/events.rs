//! `/events`: the live content of the status page as server-sent events.
//!
//! One task renders for all streams, at most once a second, and only while there are streams. A stream holds no queue:
//! it sends the newest event, and skips those that came while its client did not read.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{Stream, unfold};
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

/// Maximum number of streams; further ones are refused.
const MAX_STREAMS: usize = 16;
/// Minimum time between two renderings.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Time after which an event is sent even if nothing changed: ages are current, and the client knows that it is connected.
pub(super) const MAX_INTERVAL: Duration = Duration::from_secs(10);

/// Body of an event stream.
pub(super) type EventBody = StreamBody<Pin<Box<dyn Stream<Item = Result<Frame<Bytes>, Infallible>>>>>;

/// The open event streams of the admin listener.
pub(super) struct EventStreams {
    /// The newest event; `None` before the first, and while there are no streams. Dropped when streams end.
    sender: RefCell<Option<watch::Sender<Option<Bytes>>>>,
    open: Rc<Cell<usize>>,
    opened: Notify,
}

/// Why a stream was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamRefusal {
    /// [`MAX_STREAMS`] are open.
    TooMany,
    /// The process is shutting down.
    Draining,
}

/// Counts one stream until it is dropped.
struct OpenStream(Rc<Cell<usize>>);

impl EventStreams {
    pub(super) fn new() -> EventStreams {
        EventStreams {
            sender: RefCell::new(Some(watch::Sender::new(None))),
            open: Rc::default(),
            opened: Notify::new(),
        }
    }

    /// Opens a stream, which begins with the current event.
    ///
    /// # Errors
    /// There are too many streams, or they have ended.
    pub(super) fn open(&self) -> Result<EventBody, StreamRefusal> {
        let sender = self.sender.borrow();
        let sender = sender.as_ref().ok_or(StreamRefusal::Draining)?;
        if self.open.get() >= MAX_STREAMS {
            return Err(StreamRefusal::TooMany);
        }
        self.open.set(self.open.get() + 1);
        let guard = OpenStream(self.open.clone());
        let mut receiver = sender.subscribe();
        receiver.mark_changed();
        self.opened.notify_one();
        let events: Pin<Box<dyn Stream<Item = _>>> =
            Box::pin(unfold((receiver, guard), async |(mut receiver, guard)| {
                loop {
                    receiver.changed().await.ok()?;
                    let event = receiver.borrow_and_update().clone();
                    if let Some(event) = event {
                        return Some((Ok(Frame::data(event)), (receiver, guard)));
                    }
                }
            }));
        Ok(StreamBody::new(events))
    }

    /// Waits until it is time to look for changes: there is a stream, and the last time was at least
    /// [`MIN_INTERVAL`] ago.
    pub(super) async fn next_turn(&self, last: Option<Instant>) {
        while self.is_empty() {
            // What was rendered for earlier streams is old when the next one opens.
            self.publish(None);
            self.opened.notified().await;
        }
        if let Some(last) = last {
            tokio::time::sleep_until(last + MIN_INTERVAL).await;
        }
    }

    /// Whether there is no stream.
    pub(super) fn is_empty(&self) -> bool {
        self.open.get() == 0
    }

    /// Whether a stream waits for its first event.
    pub(super) fn has_no_event(&self) -> bool {
        self.sender.borrow().as_ref().is_some_and(|sender| sender.borrow().is_none())
    }

    /// Replaces the current event.
    pub(super) fn publish(&self, event: Option<Bytes>) {
        if let Some(sender) = &*self.sender.borrow() {
            sender.send_replace(event);
        }
    }

    /// Ends all streams after the current event, and refuses further ones.
    pub(super) fn close(&self) {
        self.sender.borrow_mut().take();
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

/// Encodes an event without a name. `retry` tells clients how soon to reconnect.
pub(super) fn encode_event(data: &str) -> Bytes {
    let mut text = String::with_capacity(data.len() + 64);
    text.push_str("retry: 1000\n");
    // A carriage return ends a line of an event, too.
    for line in data.split(['\n', '\r']) {
        text.push_str("data: ");
        text.push_str(line);
        text.push('\n');
    }
    text.push('\n');
    text.into()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn next(body: &mut EventBody) -> Option<Bytes> {
        body.frame().await.map(|frame| frame.unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn event_stream_skips_events_that_were_not_read() {
        let streams = EventStreams::new();
        let mut body = streams.open().ok().unwrap();
        streams.publish(Some(Bytes::from("1")));
        assert_eq!(next(&mut body).await.unwrap(), "1");
        streams.publish(Some(Bytes::from("2")));
        streams.publish(Some(Bytes::from("3")));
        assert_eq!(next(&mut body).await.unwrap(), "3");
        let mut late = streams.open().ok().unwrap();
        assert_eq!(next(&mut late).await.unwrap(), "3", "begins with the current event");
        streams.publish(Some(Bytes::from("4")));
        streams.close();
        assert_eq!(next(&mut body).await.unwrap(), "4", "the last event is sent");
        assert_eq!(next(&mut body).await, None);
        assert_eq!(streams.open().err(), Some(StreamRefusal::Draining));
    }

    #[tokio::test]
    async fn event_streams_are_bounded_and_counted_until_dropped() {
        let streams = EventStreams::new();
        let mut open: Vec<_> = (0..MAX_STREAMS).map(|_| streams.open().ok().unwrap()).collect();
        assert_eq!(streams.open().err(), Some(StreamRefusal::TooMany));
        open.pop();
        assert!(streams.open().is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn event_streams_take_no_turn_without_a_stream() {
        let streams = EventStreams::new();
        streams.publish(Some(Bytes::from("old")));
        let waiting = tokio::time::timeout(Duration::from_secs(3600), streams.next_turn(None)).await;
        assert!(waiting.is_err() && streams.has_no_event());
        let _open = streams.open().ok().unwrap();
        let before = Instant::now();
        streams.next_turn(None).await;
        assert_eq!(before.elapsed(), Duration::ZERO, "at once for the first stream");
        streams.next_turn(Some(before)).await;
        assert_eq!(before.elapsed(), MIN_INTERVAL);
    }

    #[test]
    fn event_has_a_data_line_for_each_line() {
        assert_eq!(encode_event("<p>\n</p>"), "retry: 1000\ndata: <p>\ndata: </p>\n\n");
        // No text of the network ends an event or begins a field of it.
        assert_eq!(encode_event("a\r\rretry: 9"), "retry: 1000\ndata: a\ndata: \ndata: retry: 9\n\n");
    }
}
