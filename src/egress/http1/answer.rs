//! Body of an HTTP/1.1 response, read from its connection.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::Fault;
use super::chunks::Step;
use super::head::Framing;
use super::wire::Wire;
use crate::message::BodyError;

/// The rest of a response body.
pub(super) struct Answer {
    /// `None` once the body has ended: the connection may then carry another request.
    wire: Option<Rc<Wire>>,
    framing: Framing,
    /// Whether the connection can be reused afterwards.
    keeps: bool,
    /// Error to return with the next poll.
    fault: Option<Fault>,
}

impl Answer {
    pub(super) fn new(wire: Rc<Wire>, framing: Framing, keeps: bool) -> Answer {
        Answer { wire: Some(wire), framing, keeps, fault: None }
    }

    fn end(&mut self) {
        if let Some(wire) = self.wire.take() {
            wire.ended(self.keeps);
        }
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Fault>>> {
        let Some(wire) = &self.wire else { return Poll::Ready(None) };
        loop {
            let mut piece = ready!(wire.poll_read(cx))?;
            if piece.is_empty() {
                if !matches!(self.framing, Framing::Close) {
                    return Poll::Ready(Some(Err(Fault::Ended)));
                }
                self.end();
                return Poll::Ready(None);
            }
            return Poll::Ready(match &mut self.framing {
                Framing::Close => Some(Ok(Frame::data(piece))),
                Framing::Length(rest) => {
                    let of_it = usize::try_from(*rest).map_or(piece.len(), |rest| rest.min(piece.len()));
                    wire.put_back(piece.split_off(of_it));
                    *rest -= of_it as u64;
                    if *rest == 0 {
                        self.end();
                    }
                    Some(Ok(Frame::data(piece)))
                }
                Framing::Chunked(chunks) => {
                    let step = chunks.read(&mut piece)?;
                    // The common case: the end of the body is in the same read.
                    let ends = matches!(step, Step::Data(_)) && chunks.ends_with(&piece);
                    if ends {
                        chunks.read(&mut piece)?;
                    }
                    wire.put_back(piece);
                    match step {
                        Step::More => continue,
                        Step::Data(data) => {
                            if ends {
                                self.end();
                            }
                            Some(Ok(Frame::data(data)))
                        }
                        Step::End(trailers) => {
                            self.end();
                            trailers.map(|trailers| Ok(Frame::trailers(trailers)))
                        }
                    }
                }
            });
        }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(fault) = self.fault.take() {
            return Poll::Ready(Some(Err(fault.into())));
        }
        match ready!(self.poll_next(cx)) {
            Some(Err(fault)) => {
                // The consumer drops what it has not yet sent when it gets the error, so the error is returned one poll
                // later.
                self.fault = Some(fault);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            next => Poll::Ready(next.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.wire.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.wire, &self.framing) {
            (None, _) => SizeHint::with_exact(0),
            (Some(_), Framing::Length(rest)) => SizeHint::with_exact(*rest),
            (Some(_), _) => SizeHint::default(),
        }
    }
}
