//! Who opens every connection of ours: one for each thread, with what that thread knows of names and ways.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::{CertificateDer, ServerName};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::carrier::Carrier;
use super::channel::Channel;
use super::dial::{DialError, DialPhase, Dialled, Protocol, Timing, connect};
use super::konnectivity::Clients;
use super::{Address, Destination, Kind, Proxy, ReadAhead, Resolver, Upstream, Way, Ways, Wire, through, unix};
use crate::observe::metrics::{Metrics, PeerCertificateFacts};
use crate::process::Published;
use crate::tls::Facts;

/// Opens connections on one thread, whichever way they go.
#[derive(Clone)]
pub struct Dialler(Rc<Inner>);

struct Inner {
    resolver: Resolver,
    ways: Published<Ways>,
    /// Connections to Konnectivity servers, each for many tunnels.
    konnectivity: Clients<Proxy>,
    /// Where dials by others are counted.
    metrics: Option<Arc<Metrics>>,
    /// By selection, the stuck tunnels of this thread that the metrics were told of.
    stuck: RefCell<BTreeMap<String, usize>>,
}

/// A way that is open, and what it took.
pub struct Opened {
    /// The way; what is sent into it comes to the destination.
    pub stream: ReadAhead,
    /// What it took, without the destination's TLS.
    pub timing: Timing,
}

impl Dialler {
    /// Looks names up with `resolver`, and goes the ways there are at the time.
    pub fn new(resolver: Resolver, ways: Published<Ways>, metrics: &Arc<Metrics>) -> Dialler {
        Dialler::of(resolver, ways, Some(metrics.clone()))
    }

    fn of(resolver: Resolver, ways: Published<Ways>, metrics: Option<Arc<Metrics>>) -> Dialler {
        Dialler(Rc::new(Inner { resolver, ways, konnectivity: Clients::default(), metrics, stuck: RefCell::default() }))
    }

    /// The ways there are.
    pub fn ways(&self) -> &Published<Ways> {
        &self.0.ways
    }

    /// The way of a selection that has a standard name, to what is spoken to without TLS if `plain`; direct if there is
    /// none of another.
    pub fn way(&self, standard: &str, plain: bool) -> Way {
        let ways = self.0.ways.load();
        let way = if plain { ways.of_plain(standard) } else { ways.of(standard) };
        way.cloned().unwrap_or_default()
    }

    /// Opens a bare connection to `destination`, without the destination's TLS. Going by ourselves may take `patience`;
    /// by others, what their selection allows.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn open(&self, way: &Way, destination: &Destination, patience: Duration) -> Result<Opened, DialError> {
        match way.selection_for(destination) {
            None => {
                let (socket, connect) = self.connect(destination, patience).await?;
                Ok(Opened { stream: ReadAhead::new(socket), timing: Timing { connect, ..Timing::default() } })
            }
            // Boxed: whoever goes by himself would pay for its size.
            Some(selection) => Box::pin(through::open(self, selection, destination)).await,
        }
    }

    /// As [`Dialler::open`], to an address. There is but one way to a Unix domain socket.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn reach(&self, way: &Way, address: &Address, patience: Duration) -> Result<Opened, DialError> {
        match address {
            Address::Tcp(destination) => self.open(way, destination, patience).await,
            Address::Unix(path) => open_unix(path, patience).await,
        }
    }

    /// Opens a connection to `upstream` on which what is agreed is spoken, or HTTP/1.1 if `only_http1`.
    pub(super) async fn dial(&self, upstream: &Upstream, only_http1: bool) -> Result<Dialled, DialError> {
        let started = Instant::now();
        let Upstream { address, connect_timeout, .. } = upstream;
        let Opened { stream, mut timing } = self.reach(&upstream.way, address, *connect_timeout).await?;
        let (mut channel, protocol) = match &upstream.wire {
            // Who speaks HTTP/2 without being asked speaks HTTP/1.1 to who begins with that.
            Wire::Plain(protocol) => (Channel::Plain(stream), if only_http1 { Protocol::Http1 } else { *protocol }),
            Wire::Tls(tls) => {
                let connected = Instant::now();
                let handshake = TlsConnector::from(tls.config(only_http1)).connect(tls.server_name().clone(), stream);
                let rest = upstream.patience().saturating_sub(connected - started).min(*connect_timeout);
                let stream = match timeout(rest, handshake).await {
                    Ok(shaken) => shaken.map_err(|error| {
                        self.record_refused_peer(address, tls.server_name(), &error);
                        DialError::of(DialPhase::Handshake, address, &error)
                    })?,
                    Err(_) => return Err(DialError::late(DialPhase::Handshake, address, *connect_timeout)),
                };
                timing.handshake = connected.elapsed();
                self.record_peer(address, tls.server_name(), stream.get_ref().1.peer_certificates());
                let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                (Channel::Tls(Box::new(stream)), if http2 { Protocol::Http2 } else { Protocol::Http1 })
            }
        };
        if protocol == Protocol::Http2 {
            channel.read_ahead();
        }
        Ok(Dialled { channel, protocol, timing })
    }

    /// Records the certificate that the server at `address` presented as `name`.
    pub(super) fn record_peer(
        &self,
        address: &dyn std::fmt::Display,
        name: &ServerName<'_>,
        chain: Option<&[CertificateDer<'_>]>,
    ) {
        if let (Some(metrics), Some(leaf)) = (self.metrics(), chain.and_then(<[_]>::first)) {
            record(metrics, address, name, leaf, "");
        }
    }

    /// Records the certificate for which the handshake with the server at `address` ended with `error`, if it was refused.
    pub(super) fn record_refused_peer(
        &self,
        address: &dyn std::fmt::Display,
        name: &ServerName<'_>,
        error: &io::Error,
    ) {
        if let (Some(metrics), Some(leaf)) = (self.metrics(), crate::tls::refused_certificate(error)) {
            record(metrics, address, name, &leaf, crate::tls::classify(error));
        }
    }

    /// TCP to an address of `destination`.
    pub(super) async fn connect(
        &self,
        destination: &Destination,
        patience: Duration,
    ) -> Result<(Carrier, Duration), DialError> {
        let started = Instant::now();
        let phase = std::cell::Cell::new(DialPhase::Resolve);
        let attempt = async {
            let addresses = self.0.resolver.addresses(destination).await.map_err(|error| DialError {
                phase: DialPhase::Resolve,
                reason: "NameNotResolved",
                cause: format!("{destination}: {error}"),
            })?;
            phase.set(DialPhase::Connect);
            let socket = connect(&addresses, destination.port).await;
            socket.map_err(|error| DialError::of(DialPhase::Connect, destination, &error))
        };
        match timeout(patience, attempt).await {
            Ok(socket) => Ok((Carrier::Tcp(socket?), started.elapsed())),
            Err(_) => Err(DialError::late(phase.get(), destination, patience)),
        }
    }

    /// Tells the metrics which tunnels are stuck. Call it every second.
    pub(super) fn tell_stuck(&self) {
        let Some(metrics) = self.metrics() else { return };
        let ways = self.0.ways.load();
        let mut told = self.0.stuck.borrow_mut();
        let mut gone = std::mem::take(&mut *told);
        for (name, way) in ways.all() {
            let Way::Through(selection) = way else { continue };
            if selection.kind != Kind::Konnectivity {
                continue;
            }
            let now = selection.proxies.iter().map(|proxy| self.0.konnectivity.stuck(proxy)).sum();
            metrics.egress().stuck(name, gone.remove(name).unwrap_or(0), now);
            told.insert(name.to_owned(), now);
        }
        // Those of a selection that went are nobody's.
        gone.iter().for_each(|(name, before)| metrics.egress().stuck(name, *before, 0));
    }

    pub(super) fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    pub(super) fn konnectivity(&self) -> &Clients<Proxy> {
        &self.0.konnectivity
    }

    pub(super) fn metrics(&self) -> Option<&Metrics> {
        self.0.metrics.as_deref()
    }
}

/// One that goes by itself wherever nothing else is said.
impl From<Resolver> for Dialler {
    fn from(resolver: Resolver) -> Dialler {
        Dialler::of(resolver, Published::fixed(Ways::default()), None)
    }
}

fn record(
    metrics: &Metrics,
    address: &dyn std::fmt::Display,
    name: &ServerName<'_>,
    leaf: &CertificateDer<'_>,
    refused: &'static str,
) {
    metrics.peer_certificates().record(address.to_string(), name.to_str().into_owned(), leaf, refused, || {
        let facts = Facts::of(leaf).ok()?;
        let (not_before, not_after) = (facts.not_before.as_secs(), facts.not_after.as_secs());
        Some(PeerCertificateFacts { subject: facts.subject, not_before, not_after, refused })
    });
}

async fn open_unix(path: &Path, patience: Duration) -> Result<Opened, DialError> {
    let started = Instant::now();
    let socket = match timeout(patience, unix::connect(path)).await {
        Ok(socket) => socket.map_err(|error| unix::failed(path, &error))?,
        Err(_) => {
            let address = format_args!("unix:{}", path.display());
            return Err(DialError::late(DialPhase::Connect, &address, patience));
        }
    };
    let timing = Timing { connect: started.elapsed(), ..Timing::default() };
    Ok(Opened { stream: ReadAhead::new(Carrier::Unix(socket)), timing })
}

impl DialError {
    /// What came of talking to `destination`, or to a proxy there.
    pub(super) fn of(phase: DialPhase, destination: &dyn std::fmt::Display, error: &io::Error) -> DialError {
        DialError {
            phase,
            reason: crate::tls::classify(error),
            cause: format!("{destination}: {}", crate::tls::describe(error)),
        }
    }

    fn late(phase: DialPhase, destination: &dyn std::fmt::Display, patience: Duration) -> DialError {
        let cause = format!("{destination}: not connected within {patience:?}");
        DialError { phase, reason: "ConnectTimeout", cause }
    }
}
