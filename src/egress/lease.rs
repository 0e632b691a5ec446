//! RAII guards of a request's connection and counts until the last byte of the response.

use std::cell::Cell;
use std::rc::Rc;

use super::endpoint::Endpoint;
use super::http1::Line;
use super::http2::Multiplexed;
use super::pushed::Pushed;

/// Guard of a request's connection to its endpoint.
///
/// Dropping it early is safe: an HTTP/1.1 connection whose response was not read to the end is closed, an HTTP/2 stream
/// is reset.
pub struct Lease {
    connection: Held,
    pending: Option<Pending>,
}

enum Held {
    Http1 { endpoint: Rc<Endpoint>, line: Line },
    Http2 { upload: Option<Pushed>, _stream: Stream },
    Private { _line: Line },
    Returned,
}

/// Counts one request of an endpoint, for load balancing.
pub(super) struct Pending {
    endpoint: Rc<Endpoint>,
    lasting: bool,
}

impl Pending {
    pub(super) fn new(endpoint: &Rc<Endpoint>) -> Pending {
        step(&endpoint.brief, 1);
        Pending { endpoint: endpoint.clone(), lasting: false }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        step(if self.lasting { &self.endpoint.lasting } else { &self.endpoint.brief }, -1);
    }
}

/// Counts one active stream of an HTTP/2 connection.
pub(super) struct Stream(pub(super) Rc<Multiplexed>);

impl Stream {
    pub(super) fn new(connection: &Rc<Multiplexed>) -> Stream {
        step(&connection.active, 1);
        Stream(connection.clone())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        step(&self.0.active, -1);
        self.0.touch();
    }
}

fn step(count: &Cell<usize>, by: isize) {
    count.set(count.get().saturating_add_signed(by));
}

impl Lease {
    pub(super) fn http1(endpoint: &Rc<Endpoint>, line: Line, pending: Pending) -> Lease {
        Lease { connection: Held::Http1 { endpoint: endpoint.clone(), line }, pending: Some(pending) }
    }

    pub(super) fn http2(stream: Stream, upload: Option<Pushed>, pending: Pending) -> Lease {
        Lease { connection: Held::Http2 { upload, _stream: stream }, pending: Some(pending) }
    }

    /// Guard of a connection that carries this request only.
    pub fn private(line: Line) -> Lease {
        Lease { connection: Held::Private { _line: line }, pending: None }
    }

    /// Marks the request as long-running: it is counted apart from those that end soon.
    pub fn lasts(&mut self) {
        if let Some(pending) = &mut self.pending
            && !std::mem::replace(&mut pending.lasting, true)
        {
            step(&pending.endpoint.brief, -1);
            step(&pending.endpoint.lasting, 1);
        }
    }

    /// Marks the response as read to its end: an HTTP/1.1 connection can be reused.
    pub fn finished(&mut self) {
        match std::mem::replace(&mut self.connection, Held::Returned) {
            Held::Http1 { endpoint, line } => endpoint.give_back(line),
            // The backend may still read the rest of the request.
            Held::Http2 { upload: Some(mut upload), .. } => upload.let_go(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::egress::{Address, Host, Pool, Protocol, Resolver, Upstream, Way, Wire};

    #[test]
    fn what_lasts_is_counted_apart_until_it_is_over() {
        let upstream = Upstream {
            address: Address::tcp(Host::Name("a".to_owned()), 1),
            wire: Wire::Plain(Protocol::Http1),
            connect_timeout: Duration::from_secs(1),
            way: Way::Direct,
            keeps_host: false,
        };
        let endpoint = Pool::new(Resolver::System).endpoint(&upstream);
        let lease = || Lease { connection: Held::Returned, pending: Some(Pending::new(&endpoint)) };
        let (mut watch, get) = (lease(), lease());
        watch.lasts();
        watch.lasts();
        assert_eq!((endpoint.pending(), endpoint.brief()), (2, 1));
        drop(get);
        assert_eq!((endpoint.pending(), endpoint.brief()), (1, 0));
        drop(watch);
        assert_eq!((endpoint.pending(), endpoint.brief()), (0, 0));
    }
}
