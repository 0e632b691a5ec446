//! Body of an HTTP/1.1 response, read from its connection.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::Http1Error;
use super::chunked::ChunkedStep;
use super::head::BodyFraming;
use super::stream::Http1Stream;
use crate::message::BodyError;

/// The rest of a response body.
pub(super) struct Http1ResponseBody {
    /// `None` once the body has ended: the connection may then carry another request.
    stream: Option<Rc<Http1Stream>>,
    framing: BodyFraming,
    /// Whether the connection can be reused afterwards.
    keep_alive: bool,
    /// Error to return with the next poll.
    pending_error: Option<Http1Error>,
}

impl Http1ResponseBody {
    pub(super) fn new(wire: Rc<Http1Stream>, framing: BodyFraming, keeps: bool) -> Http1ResponseBody {
        Http1ResponseBody { stream: Some(wire), framing, keep_alive: keeps, pending_error: None }
    }

    fn finish(&mut self) {
        if let Some(wire) = self.stream.take() {
            wire.end_response(self.keep_alive);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Http1Error>>> {
        let Some(wire) = &self.stream else { return Poll::Ready(None) };
        loop {
            let mut piece = ready!(wire.poll_read(cx))?;
            if piece.is_empty() {
                if !matches!(self.framing, BodyFraming::Close) {
                    return Poll::Ready(Some(Err(Http1Error::ConnectionClosed)));
                }
                self.finish();
                return Poll::Ready(None);
            }
            return Poll::Ready(match &mut self.framing {
                BodyFraming::Close => Some(Ok(Frame::data(piece))),
                BodyFraming::Length(rest) => {
                    let of_it = usize::try_from(*rest).map_or(piece.len(), |rest| rest.min(piece.len()));
                    wire.put_back(piece.split_off(of_it));
                    *rest -= of_it as u64;
                    if *rest == 0 {
                        self.finish();
                    }
                    Some(Ok(Frame::data(piece)))
                }
                BodyFraming::Chunked(chunks) => {
                    let step = chunks.decode(&mut piece)?;
                    // The common case: the end of the body is in the same read.
                    let ends = matches!(step, ChunkedStep::Data(_)) && chunks.ends_with(&piece);
                    if ends {
                        chunks.decode(&mut piece)?;
                    }
                    wire.put_back(piece);
                    match step {
                        ChunkedStep::NeedMore => continue,
                        ChunkedStep::Data(data) => {
                            if ends {
                                self.finish();
                            }
                            Some(Ok(Frame::data(data)))
                        }
                        ChunkedStep::End(trailers) => {
                            self.finish();
                            trailers.map(|trailers| Ok(Frame::trailers(trailers)))
                        }
                    }
                }
            });
        }
    }
}

impl Body for Http1ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(fault) = self.pending_error.take() {
            return Poll::Ready(Some(Err(fault.into())));
        }
        match ready!(self.poll_next(cx)) {
            Some(Err(fault)) => {
                // The consumer drops what it has not yet sent when it gets the error, so the error is returned one poll
                // later.
                self.pending_error = Some(fault);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            next => Poll::Ready(next.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.stream, &self.framing) {
            (None, _) => SizeHint::with_exact(0),
            (Some(_), BodyFraming::Length(rest)) => SizeHint::with_exact(*rest),
            (Some(_), _) => SizeHint::default(),
        }
    }
}
