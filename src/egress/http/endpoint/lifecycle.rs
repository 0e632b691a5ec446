//! Opens an endpoint's connections, ejects the endpoint when dials fail or it is unresponsive, and brings it back.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};

use super::Endpoint;
use crate::egress::dial::connection_limit::ConnectionSlot;
use crate::egress::dial_result::{DialError, DialPhase, DialTiming, HttpVersion};
use crate::egress::http::http1::Http1Connection;
use crate::egress::http::http2;
use crate::egress::http::liveness::LivenessAction;
use crate::egress::{Address, TransportSecurity};
use crate::process;

/// Limit of connections of one worker to one endpoint; more are a fault, not load.
pub(super) const MAX_CONNECTIONS: usize = 100;
/// Delay between background dials of an ejected endpoint, initial and maximum.
const REDIAL_BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Maximum of that delay where dials are cheap: a backend that starts beside the gateway is used soon.
const CHEAP_REDIAL_BACKOFF_MAX: Duration = Duration::from_millis(250);
/// Limits of a liveness check: for the PING ACK, then for a new connection with its TLS handshake.
const LIVENESS_CHECK_TIMEOUTS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// Reason of an endpoint ejected as unresponsive.
const UNRESPONSIVE_REASON: &str = "NoAnswer";

pub(super) type SharedDial = Shared<LocalBoxFuture<'static, Result<DialTiming, DialError>>>;

/// What a dial is for.
#[derive(Clone, Copy)]
pub(super) enum DialPurpose {
    /// A request waits for the connection.
    Immediate,
    /// Opened ahead of need, before streams run out.
    Preconnect,
}

pub(super) enum OpenedConnection {
    Http1(Http1Connection, DialTiming),
    Http2(DialTiming),
}

/// State of an endpoint's connections.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// Address of the endpoint.
    pub address: Address,
    /// HTTP version of the last connection.
    pub protocol: Option<HttpVersion>,
    /// Connections without a request.
    pub idle: usize,
    /// Connections with one or more requests.
    pub busy: usize,
    /// Requests in flight.
    pub pending: usize,
    /// Reason why the endpoint is ejected, if it is.
    pub failure: Option<&'static str>,
}

impl Endpoint {
    /// State of its connections.
    pub fn report(&self) -> PoolReport {
        let multiplexed = self.http2_connections.borrow();
        let http1 = self.http_version.get() != Some(HttpVersion::Http2);
        PoolReport {
            address: self.key.address.clone(),
            protocol: self.http_version.get(),
            idle: if http1 { self.idle.len() } else { multiplexed.iter().filter(|c| c.active.get() == 0).count() },
            busy: if http1 { self.pending() } else { multiplexed.iter().filter(|c| c.active.get() > 0).count() },
            pending: self.pending(),
            failure: self.failure_reason(),
        }
    }

    /// The dial in progress, or a new one. It continues if no request waits for it any longer.
    pub(super) fn shared_dial(self: &Rc<Self>) -> SharedDial {
        if let Some(dialing) = &*self.current_dial.borrow() {
            return dialing.clone();
        }
        self.dial_in_background(DialPurpose::Immediate)
    }

    pub(super) fn dial_in_background(self: &Rc<Self>, purpose: DialPurpose) -> SharedDial {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let endpoint = self.clone();
        tokio::task::spawn_local(async move {
            let opened = match endpoint.open(purpose).await {
                Ok(OpenedConnection::Http1(connection, timing)) => {
                    endpoint.return_idle(connection);
                    Ok(timing)
                }
                Ok(OpenedConnection::Http2(timing)) => Ok(timing),
                Err(error) => Err(error),
            };
            endpoint.current_dial.borrow_mut().take();
            let _ = sender.send(opened);
        });
        let dialing = receiver
            .map(|received| {
                received.unwrap_or_else(|_| {
                    let cause = "the worker is shutting down".to_owned();
                    Err(DialError { phase: DialPhase::Connect, reason: "ShuttingDown", cause })
                })
            })
            .boxed_local()
            .shared();
        *self.current_dial.borrow_mut() = Some(dialing.clone());
        dialing
    }

    pub(super) async fn open(self: &Rc<Self>, purpose: DialPurpose) -> Result<OpenedConnection, DialError> {
        let limit = self.max_connections;
        if self.http2_connections.borrow().len() >= limit.min(MAX_CONNECTIONS)
            || self.http1_connections.has_at_least(limit)
        {
            let cause = format!("{}: connection limit of the endpoint reached", self.key.address);
            return Err(DialError { phase: DialPhase::Connect, reason: "TooManyStreams", cause });
        }
        let slot = self.acquire_connection_slot()?;
        let opened = async {
            let started = Instant::now();
            let mut dialed = self.dialer.dial(&self.key, false).await?;
            dialed.attach_slot(slot);
            let timing = dialed.timing;
            let protocol = dialed.protocol;
            self.http_version.set(Some(protocol));
            Ok(match protocol {
                HttpVersion::Http1 => {
                    OpenedConnection::Http1(Http1Connection::new(dialed.stream, &self.http1_connections), timing)
                }
                HttpVersion::Http2 => {
                    let rest = self.key.dial_timeout().saturating_sub(started.elapsed());
                    let greeting = tokio::time::timeout(rest, http2::handshake(dialed.stream));
                    let greeted = greeting.await.unwrap_or_else(|_| {
                        let cause = format!("{}: no HTTP/2 SETTINGS in time", self.key.address);
                        Err(DialError { phase: DialPhase::Http, reason: "ConnectTimeout", cause })
                    });
                    let connection = greeted.map_err(|error| match &self.key.security {
                        TransportSecurity::Tls(_) => error,
                        // With prior knowledge nothing was negotiated.
                        TransportSecurity::Plaintext(_) => {
                            let DialError { phase, reason, cause } = error;
                            let cause = format!("{cause}; check that it supports HTTP/2 without TLS (h2c)");
                            DialError { phase, reason, cause }
                        }
                    })?;
                    self.http2_connections.borrow_mut().push(Rc::new(connection));
                    OpenedConnection::Http2(timing)
                }
            })
        };
        let opened = opened.await;
        match &opened {
            Ok(_) => {
                *self.failure.borrow_mut() = None;
                self.http1_connections.record_liveness_sign();
            }
            // No request waits for it, and open connections go on: a backend may simply have enough connections.
            Err(_) if matches!(purpose, DialPurpose::Preconnect) && !self.is_full() => {
                self.next_preconnect.set(Instant::now() + REDIAL_BACKOFF.1)
            }
            Err(error) => self.eject(error),
        }
        opened
    }

    /// Counts one more connection to the APIService. Being at the limit says nothing about this endpoint: it is not
    /// ejected, and open connections go on.
    pub(super) fn acquire_connection_slot(&self) -> Result<ConnectionSlot, DialError> {
        let (counter, limit) = &self.connection_limit;
        counter.try_acquire(*limit).ok_or_else(|| {
            let cause = format!("{}: connection limit of its APIService reached ({limit})", self.key.address);
            DialError { phase: DialPhase::Connect, reason: "TooManyConnections", cause }
        })
    }

    /// Whether no open connection has a free stream.
    fn is_full(&self) -> bool {
        self.http2_connections.borrow().iter().all(|connection| connection.free_streams() == 0)
    }

    /// Ejects the endpoint until a background dial succeeds.
    pub(super) fn eject(self: &Rc<Self>, error: &DialError) {
        let before = self.failure.replace(Some(error.clone()));
        if before.is_some() {
            return;
        }
        self.idle.clear();
        let max_backoff = if self.key.is_cheap_to_dial() { CHEAP_REDIAL_BACKOFF_MAX } else { REDIAL_BACKOFF.1 };
        let endpoint = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let mut delay = REDIAL_BACKOFF.0;
            loop {
                tokio::time::sleep(delay.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
                let Some(endpoint) = endpoint.upgrade() else { return };
                if endpoint.is_usable() || endpoint.shared_dial().await.is_ok() {
                    return;
                }
                delay = (delay * 2).min(max_backoff);
            }
        });
    }

    /// Ejects the endpoint because another worker found it unresponsive, so that requests here need not find out by
    /// waiting.
    pub fn mark_unresponsive(self: &Rc<Self>) {
        if self.is_usable() {
            self.eject(&self.unresponsive_error());
        }
    }

    /// Whether the endpoint became unresponsive since this was last called.
    pub fn take_became_unresponsive(&self) -> bool {
        self.became_unresponsive.take()
    }

    /// Whether the endpoint is ejected as unresponsive.
    fn is_ejected_as_unresponsive(&self) -> bool {
        self.failure.borrow().as_ref().is_some_and(|failure| failure.reason == UNRESPONSIVE_REASON)
    }

    fn unresponsive_error(&self) -> DialError {
        let cause = format!("endpoint {} accepts connections but does not respond", self.key.address);
        DialError { phase: DialPhase::Http, reason: UNRESPONSIVE_REASON, cause }
    }

    /// Checks by a new connection whether an endpoint is alive that answers neither a request nor a PING: a stopped
    /// process completes no TLS handshake. Without TLS the kernel accepts for it, and the check would learn nothing.
    fn check_liveness(self: &Rc<Self>) {
        if !matches!(self.key.security, TransportSecurity::Tls(_)) || self.liveness_check_running.replace(true) {
            return;
        }
        let pinged: Vec<_> = self
            .http2_connections
            .borrow()
            .iter()
            .map(|connection| (connection.clone(), connection.read_count()))
            .collect();
        pinged.iter().for_each(|(connection, _)| connection.send_ping());
        let endpoint = self.clone();
        tokio::task::spawn_local(async move {
            endpoint.find_unresponsive(pinged).await;
            endpoint.liveness_check_running.set(false);
        });
    }

    async fn find_unresponsive(self: &Rc<Self>, mut pinged: Vec<(Rc<http2::Http2Connection>, u64)>) {
        tokio::time::sleep(LIVENESS_CHECK_TIMEOUTS.0).await;
        pinged.retain(|(connection, count_at_ping)| connection.read_count() == *count_at_ping);
        // At the connection limit no check is possible.
        let (false, Ok(_slot)) = (pinged.is_empty(), self.acquire_connection_slot()) else { return };
        let dialed = tokio::time::timeout(LIVENESS_CHECK_TIMEOUTS.1, self.dialer.dial(&self.key, false)).await;
        // A peer that refuses the connection is alive, or its connections close anyway.
        if !dialed.is_ok_and(|dialed| dialed.err().is_none_or(|error| error.reason != "ConnectTimeout")) {
            pinged.iter().for_each(|(connection, count_at_ping)| connection.mark_unresponsive(*count_at_ping));
            if self.is_usable() && !self.http2_connections.borrow().iter().any(|connection| connection.is_usable()) {
                self.became_unresponsive.set(true);
                self.eject(&self.unresponsive_error());
            }
            process::wake_pending_deadlines();
        }
    }

    pub(in crate::egress) fn sweep(self: &Rc<Self>, now: Instant) {
        self.idle.sweep(now);
        let before = self.http2_connections.borrow().iter().any(|connection| connection.is_usable());
        let mut pinged = false;
        self.http2_connections.borrow_mut().retain(|connection| {
            pinged |= connection.check_liveness(now);
            connection.is_worth_keeping(now)
        });
        if pinged {
            self.check_liveness();
        }
        let (doubted, speaks) = {
            let multiplexed = self.http2_connections.borrow();
            let usable = multiplexed.iter().any(|connection| connection.is_usable());
            (!usable && multiplexed.iter().any(|connection| connection.is_doubtful()), usable)
        };
        if before && doubted && self.is_usable() {
            self.became_unresponsive.set(true);
            self.eject(&self.unresponsive_error());
        } else if speaks && self.is_ejected_as_unresponsive() {
            *self.failure.borrow_mut() = None;
        }
        // HTTP/1.1 has no PING: liveness is probed by opening a connection.
        match self.http1_connections.check_liveness(now) {
            LivenessAction::Probe => drop(self.shared_dial()),
            LivenessAction::Suspect if !self.is_usable() => self.became_unresponsive.set(true),
            LivenessAction::Close if !self.is_usable() => self.http1_connections.abort_all(),
            LivenessAction::Healthy | LivenessAction::Suspect | LivenessAction::Close => {}
        }
    }
}
