//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::cork::Cork;
use super::lifetime::{Active, Arriving, Connections, End, Lifetime, Tunnel};
use super::linger::Linger;
use super::{Incoming, Limits};
use crate::message::{Body, BodyError};
use crate::process::Deadline;

/// What TLS and the socket say of a client.
pub struct Accepted {
    /// The client's address.
    pub remote: SocketAddr,
    /// Our end of the connection.
    pub local: Option<SocketAddr>,
    /// The client's certificate chain, leaf first; possession of the key is proved, nothing else is judged.
    pub chain: Vec<CertificateDer<'static>>,
    /// What ALPN chose.
    pub protocol: Protocol,
    /// Ends the connection early.
    pub closer: Closer,
}

/// Ends one connection before its client does.
#[derive(Clone)]
pub struct Closer(Arc<Lifetime>);

impl Closer {
    /// GOAWAY or `Connection: close`; what runs is finished.
    pub fn finish(&self) {
        self.0.tell(End::Gracefully);
    }

    /// At once, with all that runs on it.
    pub fn cut(&self) {
        self.0.tell(End::Now);
    }

    /// The answer that is about to be given must be taken by `at`: whoever does not read it is not waited for.
    /// Without this word an answer of unknown length, such as a watch, has all the time there is.
    pub fn answer_by(&self, at: Instant) {
        self.0.answer_by(at);
    }

    /// What the connection is about to become behind an upgrade.
    pub fn tunnel(&self) -> Tunnel {
        Tunnel::of(&self.0)
    }
}

/// The HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1 (or 1.0).
    Http1,
    /// HTTP/2.
    Http2,
}

/// Answers requests of one connection.
pub trait Handler {
    /// Answers one request. The future is boxed so that hyper keeps little for an open watch.
    fn handle(self: Rc<Self>, request: Request<hyper::body::Incoming>)
    -> Pin<Box<dyn Future<Output = Response<Body>>>>;
}

/// Meets connections; one a worker.
pub trait Service {
    /// What answers the requests of one connection.
    type Connection: Handler + 'static;

    /// A connection whose handshake is done.
    fn connection(&self, accepted: Accepted) -> Rc<Self::Connection>;

    /// A handshake failed or took too long.
    fn handshake_failed(&self, remote: SocketAddr, error: &io::Error);
}

/// Serves `incoming` until it ends, by the client's will, by ours or by `limits`.
///
/// It counts as arriving from the call on, not from the first poll, so that none is overlooked at the end.
pub fn serve<S: Service>(
    incoming: Incoming,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<Limits>,
    connections: Connections,
) -> impl Future<Output = ()> {
    let arriving = connections.arrive();
    meet(incoming, tls, service, limits, connections, arriving)
}

async fn meet<S: Service>(
    incoming: Incoming,
    tls: Arc<rustls::ServerConfig>,
    service: Rc<S>,
    limits: Rc<Limits>,
    connections: Connections,
    arriving: Arriving,
) {
    let Incoming { socket, remote, place: _place } = incoming;
    // The handshake's state is large and soon gone: boxed, it is not part of what an idle watch costs.
    let handshake = Box::pin(async {
        let mut socket = TcpStream::from_std(socket)?;
        let client = match &limits.proxy_protocol {
            Some(proxy_protocol) => proxy_protocol.client(&mut socket, remote).await?,
            None => remote,
        };
        Ok((client, TlsAcceptor::from(tls).accept(socket).await?))
    });
    let (remote, stream) = match tokio::time::timeout(limits.handshake_timeout, handshake).await {
        Ok(Ok(met)) => met,
        Ok(Err(error)) => return service.handshake_failed(remote, &error),
        Err(_) => return service.handshake_failed(remote, &io::ErrorKind::TimedOut.into()),
    };
    let (socket, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let listed = connections.open(remote, http2);
    drop(arriving);
    let accepted = Accepted {
        remote,
        local: socket.local_addr().ok(),
        chain: session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default(),
        protocol: if http2 { Protocol::Http2 } else { Protocol::Http1 },
        closer: Closer(listed.lifetime.clone()),
    };
    let handler = service.connection(accepted);
    drop(service);
    let stream = Observed { stream: TokioIo::new(stream), lifetime: listed.lifetime.clone(), linger: None };
    if http2 {
        serve_http2(stream, handler, &limits, &listed.lifetime).await;
    } else {
        serve_http1(stream, handler.clone(), &limits, &listed.lifetime).await;
        // What became of it behind an upgrade is still this client's connection, with its place and its trust.
        listed.lifetime.tunnel_over().await;
    }
}

type TlsStream = TokioIo<tokio_rustls::server::TlsStream<TcpStream>>;

/// Not an async function, nor the next one: it would hold its arguments beside what it makes of them, and each idle
/// watch would pay for both.
fn serve_http2<H: Handler + 'static>(
    stream: Observed<TlsStream>,
    handler: Rc<H>,
    limits: &Limits,
    lifetime: &Arc<Lifetime>,
) -> impl Future<Output = ()> {
    let lifetime = lifetime.clone();
    let cork = Cork::new(stream);
    let service = Requests { handler, lifetime: lifetime.clone(), patience: limits.idle_timeout };
    let connection = hyper::server::conn::http2::Builder::new(LocalExecutor(lifetime.clone()))
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.http2_max_streams)
        .max_header_list_size(limits.max_request_header_bytes)
        .serve_connection(cork.clone(), service);
    let mut connection = Box::pin(connection);
    let mut finishing = false;
    let mut done = false;
    let mut writing = false;
    let mut looking: Option<Pin<Box<dyn Future<Output = ()>>>> = None;
    poll_fn(move |cx| {
        lifetime.register(cx.waker());
        match lifetime.told() {
            End::Now => return Poll::Ready(()),
            End::Gracefully if !finishing => {
                finishing = true;
                connection.as_mut().graceful_shutdown();
            }
            _ => {}
        }
        if !done && connection.as_mut().poll(cx).is_ready() {
            done = true;
        }
        // While other requests run here, their answers may be in sockets we have not looked at: one look more, which
        // does not wait, and they leave in the same record and system call.
        if !done && !writing && cork.has_room() && lifetime.running().is_some() {
            let look = looking.get_or_insert_with(|| Box::pin(tokio::task::yield_now()));
            if look.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        looking = None;
        let drained = cork.drain(cx);
        // What the client does not take waits for the client alone.
        writing = drained.is_pending();
        match drained {
            Poll::Ready(Ok(())) if done => Poll::Ready(()),
            Poll::Ready(Err(_)) => Poll::Ready(()),
            _ => Poll::Pending,
        }
    })
}

fn serve_http1<H: Handler + 'static>(
    stream: Observed<TlsStream>,
    handler: Rc<H>,
    limits: &Limits,
    lifetime: &Arc<Lifetime>,
) -> impl Future<Output = ()> {
    let lifetime = lifetime.clone();
    let service = Requests { handler, lifetime: lifetime.clone(), patience: limits.idle_timeout };
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size((limits.max_request_header_bytes as usize).max(8192) + 4096)
        // As net/http, which forgives that much beyond the limit.
        .max_header_size(limits.max_request_header_bytes as usize + 4096)
        .max_headers(HTTP1_MAX_HEADERS)
        .serve_connection(stream, service)
        .with_upgrades();
    let mut connection = Box::pin(connection);
    let mut finishing = false;
    // The request whose answer must be taken, and until when.
    let mut bound: Option<(Option<u64>, Deadline)> = None;
    poll_fn(move |cx| {
        lifetime.register(cx.waker());
        loop {
            if lifetime.told() == End::Now {
                return Poll::Ready(());
            }
            if connection.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            if let Some(at) = lifetime.take_answer_by() {
                bound = Some((lifetime.running(), until(at)));
            }
            if let Some((request, deadline)) = &bound {
                if request.is_none() || *request != lifetime.running() {
                    bound = None;
                } else if deadline.is_over(cx.waker()) {
                    return Poll::Ready(());
                }
            }
            // Only now, and not before the first request: hyper closes at once what looks idle to it, also when a
            // request already waits to be read or has come in part. Whoever sends none is cut by the sweep.
            if finishing || lifetime.told() == End::No || lifetime.expects_request() {
                return Poll::Pending;
            }
            finishing = true;
            connection.as_mut().graceful_shutdown();
        }
    })
}

/// A user of a front proxy arrives with a line for every group, so hyper's 100 lines are too few.
const HTTP1_MAX_HEADERS: usize = 256;

/// Beyond the time an answer has: its own body ends it in better order, if anybody asks it.
const GRACE: Duration = Duration::from_secs(1);

fn until(at: Instant) -> Deadline {
    Deadline::at(at + GRACE)
}

/// Runs hyper's tasks on this thread: one for each HTTP/2 stream.
#[derive(Clone)]
struct LocalExecutor(Arc<Lifetime>);

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, stream: F) {
        tokio::task::spawn_local(Bounded { stream, lifetime: self.0.clone(), bound: None });
    }
}

pin_project_lite::pin_project! {
    /// A stream whose answer must be taken in time. hyper asks a body for nothing while the client has no window
    /// for it, so that the body's own deadline would never be seen; dropped, the stream is reset.
    struct Bounded<F> {
        #[pin]
        stream: F,
        lifetime: Arc<Lifetime>,
        bound: Option<Deadline>,
    }
}

impl<F: Future> Future for Bounded<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        let over = this.stream.poll(cx).is_ready();
        // Taken in any case: it was this stream's, not the next one's.
        let at = this.lifetime.take_answer_by();
        if over {
            return Poll::Ready(());
        }
        if let Some(at) = at {
            *this.bound = Some(until(at));
        }
        if this.bound.as_ref().is_some_and(|bound| bound.is_over(cx.waker())) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// hyper's service of one connection: every request is counted from its begin to the end of its answer.
struct Requests<H> {
    handler: Rc<H>,
    lifetime: Arc<Lifetime>,
    /// How long an answer that is all at hand may wait to be taken.
    patience: Duration,
}

impl<H: Handler + 'static> hyper::service::Service<Request<hyper::body::Incoming>> for Requests<H> {
    type Response = Response<Counted>;
    type Error = Infallible;
    type Future = Answer;

    fn call(&self, request: Request<hyper::body::Incoming>) -> Answer {
        Answer {
            answer: self.handler.clone().handle(request),
            active: Some(self.lifetime.begin()),
            patience: self.patience,
        }
    }
}

/// The answer to a request, on its way.
struct Answer {
    answer: Pin<Box<dyn Future<Output = Response<Body>>>>,
    active: Option<Active>,
    patience: Duration,
}

impl Future for Answer {
    type Output = Result<Response<Counted>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let response = ready!(self.answer.as_mut().poll(cx));
        let active = self.active.take();
        if response.status() == http::StatusCode::SWITCHING_PROTOCOLS
            && let Some(Active(lifetime)) = &active
        {
            lifetime.upgraded();
        }
        if let (Body::Full(_), Some(Active(lifetime))) = (response.body(), &active) {
            lifetime.answer_by(Instant::now() + self.patience);
        }
        Poll::Ready(Ok(response.map(|body| Counted { body, _active: active })))
    }
}

/// A body that keeps its request counted until it is dropped.
struct Counted {
    body: Body,
    _active: Option<Active>,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that tells its [`Lifetime`] when bytes came.
struct Observed<T> {
    stream: T,
    lifetime: Arc<Lifetime>,
    /// Once our half is closed.
    linger: Option<Linger>,
}

impl<T: Read + Unpin> Read for Observed<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let result = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        self.lifetime.bytes_came();
        Poll::Ready(result)
    }
}

impl<T: Read + Write + Unpin> Write for Observed<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        self.lifetime.moved();
        Poll::Ready(result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, slices));
        self.lifetime.moved();
        Poll::Ready(result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.linger.is_none() {
            ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        }
        // A tunnel whose one half is closed goes on reading; that is not ours to read.
        if this.lifetime.is_upgraded() {
            return Poll::Ready(Ok(()));
        }
        // Nobody told it to go: then it was closed because of what its client still sends.
        let (expecting, http2) = (this.lifetime.told() == End::No, this.lifetime.http2);
        this.linger.get_or_insert_with(|| Linger::new(expecting, http2)).poll(&mut this.stream, cx)
    }
}
