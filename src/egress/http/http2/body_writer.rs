//! Writes a request body to an HTTP/2 stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;

use crate::message::Body;

/// Writes a body to its stream as fast as the backend accepts it. Dropped before the end, it resets the stream.
pub(super) struct Http2BodyWriter {
    body: Body,
    stream: SendStream<Bytes>,
    /// Data that waits for flow-control capacity; whether it is the last.
    pending: Option<(Bytes, bool)>,
}

impl Http2BodyWriter {
    pub(super) fn new(body: Body, stream: SendStream<Bytes>) -> Http2BodyWriter {
        Http2BodyWriter { body, stream, pending: None }
    }
}

impl Future for Http2BodyWriter {
    type Output = ();

    /// Ends with the body or with the stream; errors are reported by the response.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            // Polled first, so that a reset also wakes a task that waits for the client's next bytes.
            if this.stream.poll_reset(cx).is_ready() {
                return Poll::Ready(());
            }
            if this.pending.is_some() {
                while this.stream.capacity() == 0 {
                    match ready!(this.stream.poll_capacity(cx)) {
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return Poll::Ready(()),
                    }
                }
            }
            if let Some((data, last)) = this.pending.take() {
                if this.stream.send_data(data, last).is_err() || last {
                    return Poll::Ready(());
                }
                continue;
            }
            // Capacity is reserved only when there is data: the connection's window is shared.
            let frame = match ready!(Pin::new(&mut this.body).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(_)) => {
                    this.stream.send_reset(Reason::INTERNAL_ERROR);
                    return Poll::Ready(());
                }
                None => {
                    let _ = this.stream.send_data(Bytes::new(), true);
                    return Poll::Ready(());
                }
            };
            match frame.into_data() {
                Ok(data) => {
                    let last = this.body.is_end_stream();
                    if data.is_empty() {
                        if this.stream.send_data(data, last).is_err() || last {
                            return Poll::Ready(());
                        }
                    } else {
                        // h2 requests the rest of the capacity itself once this is sent.
                        this.stream.reserve_capacity(1);
                        this.pending = Some((data, last));
                    }
                }
                Err(frame) => {
                    if let Ok(trailers) = frame.into_trailers() {
                        this.stream.reserve_capacity(0);
                        let _ = this.stream.send_trailers(trailers);
                        return Poll::Ready(());
                    }
                }
            }
        }
    }
}
