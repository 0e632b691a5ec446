//! The dialer of one thread: its resolver, routes and Konnectivity connections, and direct TCP connections.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use konnectivity_client::KonnectivityPool;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::time::timeout;

use crate::egress::dial::connect;
use crate::egress::dial::transport::TransportStream;
use crate::egress::dial_result::{DialError, DialPhase, DialTiming};
use crate::egress::{Destination, EgressProtocol, EgressProxy, EgressRoute, EgressRoutes, ReadAhead, Resolver};
use crate::observe::metrics::{Metrics, PeerCertificateInfo};
use crate::process::Published;
use crate::tls::CertificateInfo;

/// Opens connections on one thread, over any egress route.
#[derive(Clone)]
pub struct Dialer(Rc<Inner>);

struct Inner {
    resolver: Resolver,
    routes: Published<EgressRoutes>,
    /// Connections to Konnectivity servers, each shared by many tunnels.
    konnectivity: KonnectivityPool<EgressProxy, DialError>,
    /// Metrics of dials through proxies.
    metrics: Option<Arc<Metrics>>,
    /// Stuck tunnels of this thread last reported to the metrics, by selection.
    reported_stuck: RefCell<BTreeMap<String, usize>>,
}

/// An open stream to a destination, and how long opening took.
pub struct OpenedStream {
    /// The stream to the destination.
    pub stream: ReadAhead,
    /// Timing of the dial, without the destination's TLS.
    pub timing: DialTiming,
}

impl Dialer {
    /// A dialer that looks names up with `resolver` and uses the current `routes`.
    pub fn new(resolver: Resolver, routes: Published<EgressRoutes>, metrics: &Arc<Metrics>) -> Dialer {
        Dialer::with_metrics(resolver, routes, Some(metrics.clone()))
    }

    fn with_metrics(resolver: Resolver, routes: Published<EgressRoutes>, metrics: Option<Arc<Metrics>>) -> Dialer {
        Dialer(Rc::new(Inner {
            resolver,
            routes,
            konnectivity: KonnectivityPool::default(),
            metrics,
            reported_stuck: RefCell::default(),
        }))
    }

    /// The current egress routes.
    pub fn routes(&self) -> &Published<EgressRoutes> {
        &self.0.routes
    }

    /// Route of the selection `standard`, for destinations without TLS if `plain`. Direct if there is no selection of
    /// that name and it is no standard one.
    pub fn route(&self, standard: &str, plain: bool) -> EgressRoute {
        let routes = self.0.routes.load();
        let route = if plain { routes.get_plaintext(standard) } else { routes.get(standard) };
        route.cloned().unwrap_or_default()
    }

    /// The addresses that `destination` has, if it is dialed directly; none if a proxy dials it.
    ///
    /// # Errors
    /// The name has no address, or the resolver fails.
    pub async fn direct_addresses(
        &self,
        route: &EgressRoute,
        destination: &Destination,
    ) -> io::Result<Option<Vec<IpAddr>>> {
        match route.selection_for(destination) {
            Some(_) => Ok(None),
            None => self.0.resolver.addresses(destination).await.map(Some),
        }
    }

    /// Records the certificate that the server at `address` presented for `name`.
    pub(in crate::egress) fn record_peer_certificate(
        &self,
        address: &dyn std::fmt::Display,
        name: &ServerName<'_>,
        chain: Option<&[CertificateDer<'_>]>,
    ) {
        if let (Some(metrics), Some(leaf)) = (self.metrics(), chain.and_then(<[_]>::first)) {
            record(metrics, address, name, leaf, "");
        }
    }

    /// Records the certificate for which the handshake with the server at `address` ended with `error`, if it was
    /// refused.
    pub(in crate::egress) fn record_refused_peer(
        &self,
        address: &dyn std::fmt::Display,
        name: &ServerName<'_>,
        error: &io::Error,
    ) {
        if let (Some(metrics), Some(leaf)) = (self.metrics(), crate::tls::refused_certificate(error)) {
            record(metrics, address, name, &leaf, crate::tls::failure_reason(error));
        }
    }

    /// Connects by TCP to an address of `destination`.
    pub(in crate::egress) async fn connect(
        &self,
        destination: &Destination,
        patience: Duration,
    ) -> Result<(TransportStream, Duration), DialError> {
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
            socket.map_err(|error| DialError::from_io(DialPhase::Connect, destination, &error))
        };
        match timeout(patience, attempt).await {
            Ok(socket) => Ok((TransportStream::Tcp(socket?), started.elapsed())),
            Err(_) => Err(DialError::timed_out(phase.get(), destination, patience)),
        }
    }

    /// Reports the number of stuck tunnels to the metrics. Call every second.
    pub(in crate::egress) fn report_stuck_tunnels(&self) {
        let Some(metrics) = self.metrics() else { return };
        let routes = self.0.routes.load();
        let mut reported = self.0.reported_stuck.borrow_mut();
        let mut gone = std::mem::take(&mut *reported);
        for (name, route) in routes.entries() {
            let EgressRoute::Proxied(selection) = route else { continue };
            if selection.protocol != EgressProtocol::Konnectivity {
                continue;
            }
            let now = selection.proxies.iter().map(|proxy| self.0.konnectivity.stuck_tunnels(proxy)).sum();
            metrics.egress().update_stuck(name, gone.remove(name).unwrap_or(0), now);
            reported.insert(name.to_owned(), now);
        }
        // Selections that were removed count none.
        gone.iter().for_each(|(name, before)| metrics.egress().update_stuck(name, *before, 0));
    }

    pub(in crate::egress) fn resolver(&self) -> &Resolver {
        &self.0.resolver
    }

    pub(in crate::egress) fn konnectivity(&self) -> &KonnectivityPool<EgressProxy, DialError> {
        &self.0.konnectivity
    }

    pub(in crate::egress) fn metrics(&self) -> Option<&Metrics> {
        self.0.metrics.as_deref()
    }
}

/// A dialer without egress selections and metrics: every dial is direct.
impl From<Resolver> for Dialer {
    fn from(resolver: Resolver) -> Dialer {
        Dialer::with_metrics(resolver, Published::fixed(EgressRoutes::default()), None)
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
        let facts = CertificateInfo::parse(leaf).ok()?;
        let (not_before, not_after) = (facts.not_before.as_secs(), facts.not_after.as_secs());
        Some(PeerCertificateInfo { subject: facts.subject, not_before, not_after, refused })
    });
}
