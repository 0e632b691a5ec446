//! A request's body on its way into an HTTP/2 stream.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http_body::Body as _;
use tokio::task::AbortHandle;

use crate::message::Body;

/// An upload that is under way; dropped, it stops, and its stream is reset.
pub(in crate::egress) struct Upload(Option<AbortHandle>);

/// Moves a body into its stream as fast as the backend takes it.
struct Pump {
    body: Body,
    stream: SendStream<Bytes>,
    /// What was read and waits for the window; whether it is the last.
    waiting: Option<(Bytes, bool)>,
}

impl Upload {
    /// Sends `body`. What can be sent at once, nearly every object of an API, needs no task.
    pub(super) fn begin(body: Body, stream: SendStream<Bytes>) -> Upload {
        let mut pump = Pump { body, stream, waiting: None };
        // Its task asks once more, and is then woken.
        let mut cx = Context::from_waker(Waker::noop());
        if Pin::new(&mut pump).poll(&mut cx).is_ready() {
            return Upload(None);
        }
        Upload(Some(tokio::task::spawn_local(pump).abort_handle()))
    }

    /// The answer is there in full: what the backend still wants of the request it may have.
    pub(in crate::egress) fn let_go(&mut self) {
        self.0 = None;
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Future for Pump {
    type Output = ();

    /// Ends with the body or with the stream; why, the answer says.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            // Asked first, so that a reset wakes whoever waits for the client's next bytes.
            if this.stream.poll_reset(cx).is_ready() {
                return Poll::Ready(());
            }
            if this.waiting.is_some() {
                while this.stream.capacity() == 0 {
                    match ready!(this.stream.poll_capacity(cx)) {
                        Some(Ok(_)) => {}
                        Some(Err(_)) | None => return Poll::Ready(()),
                    }
                }
            }
            if let Some((data, last)) = this.waiting.take() {
                if this.stream.send_data(data, last).is_err() || last {
                    return Poll::Ready(());
                }
                continue;
            }
            // No window is reserved before there is something to send: it is the whole connection's.
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
                        // h2 asks for the rest of it by itself once it is sent.
                        this.stream.reserve_capacity(1);
                        this.waiting = Some((data, last));
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
