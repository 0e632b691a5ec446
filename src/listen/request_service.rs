//! The service of a connection's requests.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use http::{Request, Response};
use tower::{Service, ServiceExt};

use crate::message::{Body, IncomingBody};

/// The tower service of one connection's requests; a name for its bounds.
pub trait RequestService:
    Service<Request<IncomingBody>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture> + Clone + 'static
{
}

impl<S> RequestService for S where
    S: Service<Request<IncomingBody>, Response = Response<Body>, Error = Infallible, Future = ResponseFuture>
        + Clone
        + 'static
{
}

/// The future of a response, boxed to save memory for open watches.
pub type ResponseFuture = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>>>>;

/// Calls `service` when it is ready: at once, unless a layer around it holds requests back.
pub(super) fn call_when_ready<S: RequestService>(service: &S, request: Request<IncomingBody>) -> ResponseFuture {
    let mut service = service.clone();
    match service.poll_ready(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(())) => service.call(request),
        Poll::Pending => Box::pin(service.oneshot(request)),
    }
}
