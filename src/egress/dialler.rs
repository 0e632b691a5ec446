//! Opens all outbound connections of one thread, directly or through proxies.

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

/// Opens connections on one thread, over any egress route.
#[derive(Clone)]
pub struct Dialler(Rc<Inner>);

struct Inner {
    resolver: Resolver,
    ways: Published<Ways>,
    /// Connections to Konnectivity servers, each shared by many tunnels.
    konnectivity: Clients<Proxy>,
    /// Metrics of dials through proxies.
    metrics: Option<Arc<Metrics>>,
    /// Stuck tunnels of this thread last reported to the metrics, by selection.
    stuck: RefCell<BTreeMap<String, usize>>,
}

/// An open stream to a destination, and how long opening took.
pub struct Opened {
    /// The stream to the destination.
    pub stream: ReadAhead,
    /// Timing of the dial, without the destination's TLS.
    pub timing: Timing,
}

impl Dialler {
    /// A dialer that looks names up with `resolver` and uses the current `ways`.
    pub fn new(resolver: Resolver, ways: Published<Ways>, metrics: &Arc<Metrics>) -> Dialler {
        Dialler::of(resolver, ways, Some(metrics.clone()))
    }

    fn of(resolver: Resolver, ways: Published<Ways>, metrics: Option<Arc<Metrics>>) -> Dialler {
        Dialler(Rc::new(Inner { resolver, ways, konnectivity: Clients::default(), metrics, stuck: RefCell::default() }))
    }

    /// The current egress routes.
    pub fn ways(&self) -> &Published<Ways> {
        &self.0.ways
    }

    /// Route of the selection `standard`, for destinations without TLS if `plain`. Direct if there is no selection of
    /// that name and it is no standard one.
    pub fn way(&self, standard: &str, plain: bool) -> Way {
        let ways = self.0.ways.load();
        let way = if plain { ways.of_plain(standard) } else { ways.of(standard) };
        way.cloned().unwrap_or_default()
    }

    /// Opens a stream to `destination`, without the destination's TLS. `patience` limits direct dials; dials through a
    /// proxy have the limit of their selection.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn open(&self, way: &Way, destination: &Destination, patience: Duration) -> Result<Opened, DialError> {
        match way.selection_for(destination) {
            None => {
                let (socket, connect) = self.connect(destination, patience).await?;
                Ok(Opened { stream: ReadAhead::new(socket), timing: Timing { connect, ..Timing::default() } })
            }
            // Boxed: direct dials would pay for its size.
            Some(selection) => Box::pin(through::open(self, selection, destination)).await,
        }
    }

    /// As [`Dialler::open`], to an address. Unix domain sockets are always dialed directly.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn reach(&self, way: &Way, address: &Address, patience: Duration) -> Result<Opened, DialError> {
        match address {
            Address::Tcp(destination) => self.open(way, destination, patience).await,
            Address::Unix(path) => open_unix(path, patience).await,
        }
    }

    /// Opens a connection to `upstream`, with the HTTP version that ALPN or the configuration selects, or HTTP/1.1 if
    /// `only_http1`.
    pub(super) async fn dial(&self, upstream: &Upstream, only_http1: bool) -> Result<Dialled, DialError> {
        let started = Instant::now();
        let Upstream { address, connect_timeout, .. } = upstream;
        let Opened { stream, mut timing } = self.reach(&upstream.way, address, *connect_timeout).await?;
        let (mut channel, protocol) = match &upstream.wire {
            // A server of HTTP/2 with prior knowledge also accepts HTTP/1.1.
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

    /// Records the certificate that the server at `address` presented for `name`.
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

    /// Connects by TCP to an address of `destination`.
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

    /// Reports the number of stuck tunnels to the metrics. Call every second.
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
        // Selections that were removed count none.
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

/// A dialer without egress selections and metrics: every dial is direct.
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
    /// An I/O error in `phase`, talking to `destination` or to a proxy there.
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
