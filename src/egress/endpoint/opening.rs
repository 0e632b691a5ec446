//! Opens an endpoint's connections, ejects the endpoint when dials fail or it is unresponsive, and brings it back.

use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, Shared};

use super::Endpoint;
use crate::egress::Wire;
use crate::egress::allowance::Place;
use crate::egress::dial::{DialError, DialPhase, Protocol, Timing};
use crate::egress::http1::Line;
use crate::egress::http2 as many;
use crate::egress::silence::Verdict;
use crate::process;

/// Limit of connections of one worker to one endpoint; more are a fault, not load.
pub(super) const MOST_CONNECTIONS: usize = 100;
/// Delay between background dials of an ejected endpoint, initial and maximum.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Maximum of that delay where dials are cheap: a backend that starts beside the gateway is used soon.
const RETRY_CHEAP: Duration = Duration::from_millis(250);
/// Limits of a liveness check: for the PING ACK, then for a new connection with its TLS handshake.
const CHECK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// Reason of an endpoint ejected as unresponsive.
const SILENT: &str = "NoAnswer";

pub(super) type Dialling = Shared<LocalBoxFuture<'static, Result<Timing, DialError>>>;

/// What a dial is for.
#[derive(Clone, Copy)]
pub(super) enum Purpose {
    /// A request waits for the connection.
    Now,
    /// Opened ahead of need, before streams run out.
    Ahead,
}

pub(super) enum Opened {
    Http1(Line, Timing),
    Http2(Timing),
}

impl Endpoint {
    /// The dial in progress, or a new one. It continues if no request waits for it any longer.
    pub(super) fn dialling(self: &Rc<Self>) -> Dialling {
        if let Some(dialling) = &*self.dialling.borrow() {
            return dialling.clone();
        }
        self.dial_in_background(Purpose::Now)
    }

    pub(super) fn dial_in_background(self: &Rc<Self>, purpose: Purpose) -> Dialling {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let endpoint = self.clone();
        tokio::task::spawn_local(async move {
            let opened = match endpoint.open(purpose).await {
                Ok(Opened::Http1(connection, timing)) => {
                    endpoint.give_back(connection);
                    Ok(timing)
                }
                Ok(Opened::Http2(timing)) => Ok(timing),
                Err(error) => Err(error),
            };
            endpoint.dialling.borrow_mut().take();
            let _ = sender.send(opened);
        });
        let dialling = receiver
            .map(|received| {
                received.unwrap_or_else(|_| {
                    let cause = "the worker is shutting down".to_owned();
                    Err(DialError { phase: DialPhase::Connect, reason: "ShuttingDown", cause })
                })
            })
            .boxed_local()
            .shared();
        *self.dialling.borrow_mut() = Some(dialling.clone());
        dialling
    }

    pub(super) async fn open(self: &Rc<Self>, purpose: Purpose) -> Result<Opened, DialError> {
        let most = self.most;
        if self.multiplexed.borrow().len() >= most.min(MOST_CONNECTIONS) || self.open.has(most) {
            let cause = format!("{}: connection limit of the endpoint reached", self.upstream.address);
            return Err(DialError { phase: DialPhase::Connect, reason: "TooManyStreams", cause });
        }
        let place = self.place()?;
        let opened = async {
            let started = Instant::now();
            let mut dialled = self.dialler.dial(&self.upstream, false).await?;
            dialled.keep(place);
            let timing = dialled.timing;
            let protocol = dialled.protocol;
            self.protocol.set(Some(protocol));
            Ok(match protocol {
                Protocol::Http1 => Opened::Http1(Line::new(dialled.channel, &self.open), timing),
                Protocol::Http2 => {
                    let rest = self.upstream.patience().saturating_sub(started.elapsed());
                    let greeting = tokio::time::timeout(rest, many::greet(dialled.channel));
                    let greeted = greeting.await.unwrap_or_else(|_| {
                        let cause = format!("{}: no HTTP/2 SETTINGS in time", self.upstream.address);
                        Err(DialError { phase: DialPhase::Http, reason: "ConnectTimeout", cause })
                    });
                    let connection = greeted.map_err(|error| match &self.upstream.wire {
                        Wire::Tls(_) => error,
                        // With prior knowledge nothing was negotiated.
                        Wire::Plain(_) => {
                            let DialError { phase, reason, cause } = error;
                            let cause = format!("{cause}; check that it supports HTTP/2 without TLS (h2c)");
                            DialError { phase, reason, cause }
                        }
                    })?;
                    self.multiplexed.borrow_mut().push(Rc::new(connection));
                    Opened::Http2(timing)
                }
            })
        };
        let opened = opened.await;
        match &opened {
            Ok(_) => {
                *self.failure.borrow_mut() = None;
                self.open.hear();
            }
            // No request waits for it, and open connections go on: a backend may simply have enough connections.
            Err(_) if matches!(purpose, Purpose::Ahead) && !self.is_full() => self.ahead.set(Instant::now() + RETRY.1),
            Err(error) => self.eject(error),
        }
        opened
    }

    /// Counts one more connection to the APIService. Being at the limit says nothing about this endpoint: it is not
    /// ejected, and open connections go on.
    pub(super) fn place(&self) -> Result<Place, DialError> {
        let (allowance, most) = &self.allowance;
        allowance.take(*most).ok_or_else(|| {
            let cause = format!("{}: connection limit of its APIService reached ({most})", self.upstream.address);
            DialError { phase: DialPhase::Connect, reason: "TooManyConnections", cause }
        })
    }

    /// Whether no open connection has a free stream.
    fn is_full(&self) -> bool {
        self.multiplexed.borrow().iter().all(|connection| connection.free() == 0)
    }

    /// Ejects the endpoint until a background dial succeeds.
    pub(super) fn eject(self: &Rc<Self>, error: &DialError) {
        let before = self.failure.replace(Some(error.clone()));
        if before.is_some() {
            return;
        }
        self.idle.clear();
        let most = if self.upstream.is_cheap_to_dial() { RETRY_CHEAP } else { RETRY.1 };
        let endpoint = Rc::downgrade(self);
        tokio::task::spawn_local(async move {
            let mut delay = RETRY.0;
            loop {
                tokio::time::sleep(delay.mul_f64(0.75 + fastrand::f64() / 2.0)).await;
                let Some(endpoint) = endpoint.upgrade() else { return };
                if endpoint.is_usable() || endpoint.dialling().await.is_ok() {
                    return;
                }
                delay = (delay * 2).min(most);
            }
        });
    }

    /// Ejects the endpoint because another worker found it unresponsive, so that requests here need not find out by
    /// waiting.
    pub fn suspect(self: &Rc<Self>) {
        if self.is_usable() {
            self.eject(&self.silent());
        }
    }

    /// Whether the endpoint became unresponsive since this was last called.
    pub fn fell_silent(&self) -> bool {
        self.fell_silent.take()
    }

    /// Whether the endpoint is ejected as unresponsive.
    fn is_silent(&self) -> bool {
        self.failure.borrow().as_ref().is_some_and(|failure| failure.reason == SILENT)
    }

    fn silent(&self) -> DialError {
        let cause = format!("endpoint {} accepts connections but does not respond", self.upstream.address);
        DialError { phase: DialPhase::Http, reason: SILENT, cause }
    }

    /// Checks by a new connection whether an endpoint is alive that answers neither a request nor a PING: a stopped
    /// process completes no TLS handshake. Without TLS the kernel accepts for it, and the check would learn nothing.
    fn check_liveness(self: &Rc<Self>) {
        if !matches!(self.upstream.wire, Wire::Tls(_)) || self.checking.replace(true) {
            return;
        }
        let asked: Vec<_> =
            self.multiplexed.borrow().iter().map(|connection| (connection.clone(), connection.heard())).collect();
        asked.iter().for_each(|(connection, _)| connection.ask_for_life());
        let endpoint = self.clone();
        tokio::task::spawn_local(async move {
            endpoint.find_unresponsive(asked).await;
            endpoint.checking.set(false);
        });
    }

    async fn find_unresponsive(self: &Rc<Self>, mut asked: Vec<(Rc<many::Multiplexed>, u64)>) {
        tokio::time::sleep(CHECK.0).await;
        asked.retain(|(connection, heard)| connection.heard() == *heard);
        // At the connection limit no check is possible.
        let (false, Ok(_place)) = (asked.is_empty(), self.place()) else { return };
        let dialled = tokio::time::timeout(CHECK.1, self.dialler.dial(&self.upstream, false)).await;
        // A peer that refuses the connection is alive, or its connections close anyway.
        if !dialled.is_ok_and(|dialled| dialled.err().is_none_or(|error| error.reason != "ConnectTimeout")) {
            asked.iter().for_each(|(connection, heard)| connection.give_up(*heard));
            if self.is_usable() && !self.multiplexed.borrow().iter().any(|connection| connection.is_usable()) {
                self.fell_silent.set(true);
                self.eject(&self.silent());
            }
            process::wake_waiting();
        }
    }

    pub(in crate::egress) fn sweep(self: &Rc<Self>, now: Instant) {
        self.idle.sweep(now);
        let before = self.multiplexed.borrow().iter().any(|connection| connection.is_usable());
        let mut pinged = false;
        self.multiplexed.borrow_mut().retain(|connection| {
            pinged |= connection.listen(now);
            connection.is_worth_keeping(now)
        });
        if pinged {
            self.check_liveness();
        }
        let (doubted, speaks) = {
            let multiplexed = self.multiplexed.borrow();
            let usable = multiplexed.iter().any(|connection| connection.is_usable());
            (!usable && multiplexed.iter().any(|connection| connection.is_doubted()), usable)
        };
        if before && doubted && self.is_usable() {
            self.fell_silent.set(true);
            self.eject(&self.silent());
        } else if speaks && self.is_silent() {
            *self.failure.borrow_mut() = None;
        }
        // HTTP/1.1 has no PING: liveness is probed by opening a connection.
        match self.open.judge(now) {
            Verdict::Ask => drop(self.dialling()),
            Verdict::Doubt if !self.is_usable() => self.fell_silent.set(true),
            Verdict::End if !self.is_usable() => self.open.cut(),
            Verdict::Fine | Verdict::Doubt | Verdict::End => {}
        }
    }
}
