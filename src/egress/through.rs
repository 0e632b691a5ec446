//! Dials through the proxies of a selection: the first one that succeeds.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use super::carrier::Carrier;
use super::dial::{DialError, DialPhase, Timing, first};
use super::dialler::{Dialler, Opened};
use super::health::{News, ProxyState};
use super::proxy_fault::ProxyFault;
use super::way::{Kind, Names, Proxy, Selection};
use super::{Address, Destination, Host, ReadAhead, connect, konnectivity, socks5, unix};
use crate::observe::metrics::CallKind;

/// Limit of a name in SOCKS5, in bytes; DNS names have at most 253.
const LONGEST_NAME: usize = 255;

/// Opens a stream to `destination` through a proxy of `selection`, within its dial timeout.
///
/// # Errors
/// The error of the last proxy, or the first error that is not proxy-specific; the cause lists all.
pub(super) async fn open(
    dialler: &Dialler,
    selection: &Arc<Selection>,
    destination: &Destination,
) -> Result<Opened, DialError> {
    speakable(destination)?;
    let until = Instant::now() + selection.dial_timeout;
    let mut left = selection.proxies.len();
    let mut causes = Vec::new();
    let mut last = ProxyFault::Unreachable;
    for number in selection.health.in_order() {
        let proxy = &selection.proxies[number];
        // Each proxy gets a share of the time: one that hangs leaves time for the others.
        let share = (until - Instant::now()) / u32::try_from(left.max(1)).unwrap_or(u32::MAX);
        left -= 1;
        match by(dialler, selection, proxy, destination, share).await {
            Ok(opened) => {
                hear(dialler, selection, number, None, opened.timing.whole());
                if selection.health.prefer(number) && selection.proxies.len() > 1 {
                    let (selection, proxy) = (&selection.name, &proxy.address);
                    tracing::warn!(selection, %proxy, why = causes.join("; "), "switched to another egress proxy");
                }
                return Ok(opened);
            }
            Err(error) => {
                if let DialPhase::Proxy(fault) = error.phase {
                    last = fault;
                }
                hear(dialler, selection, number, last.is_its_own().then_some((last, &error.cause)), Duration::ZERO);
                causes.push(error.cause);
                if !last.is_its_own() {
                    break;
                }
            }
        }
    }
    Err(last.because(format!("{destination} through egress selection {}: {}", selection.name, causes.join("; "))))
}

/// Records the result of a dial and logs changes of the proxy's health.
fn hear(dialler: &Dialler, selection: &Selection, number: usize, fault: Option<(ProxyFault, &str)>, took: Duration) {
    let news = selection.health.hear(number, fault);
    if let Some(metrics) = dialler.metrics() {
        let calls = selection.health.calls(number, || metrics.calls().register(CallKind::EgressProxy, &selection.name));
        let result = fault.map_or(Ok(()), |(_, why)| Err(why));
        // A fault of a healthy proxy may be the destination's.
        if result.is_ok() || matches!(selection.health.state(number), ProxyState::Fails { .. }) {
            calls.record_quietly(&selection.proxies[number].address, result, took);
        }
    }
    let (selection, proxy) = (&selection.name, &selection.proxies[number].address);
    match (news, fault) {
        (News::Fails, Some((ProxyFault::TimedOut, why))) => tracing::warn!(
            selection,
            %proxy,
            why,
            "egress proxy does not answer; check that it runs and can reach its destinations"
        ),
        (News::Fails, Some((_, why))) => tracing::warn!(selection, %proxy, why, "egress proxy failed"),
        (News::Recovers, _) => tracing::info!(selection, %proxy, "egress proxy recovered"),
        _ => {}
    }
}

/// Rejects names that cannot be sent to a proxy of any protocol: an invalid byte could end the protocol field that
/// contains it.
fn speakable(destination: &Destination) -> Result<(), DialError> {
    let Host::Name(name) = &destination.host else { return Ok(()) };
    let why = if name.is_empty() || name.len() > LONGEST_NAME {
        format!("a host name has 1 to {LONGEST_NAME} bytes, this one {}", name.len())
    } else if name.contains(['%', ':']) {
        // An address with a zone is meaningful only on the machine where it was written.
        format!("{name:?} is not a host name, and addresses with a zone are not supported")
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        format!("{name:?} is not a host name")
    } else {
        return Ok(());
    };
    Err(ProxyFault::Unspeakable.because(why))
}

/// Opens the stream through one proxy, within `share`.
async fn by(
    dialler: &Dialler,
    selection: &Selection,
    proxy: &Proxy,
    destination: &Destination,
    share: Duration,
) -> Result<Opened, DialError> {
    let (protocol, transport) = (selection.kind.as_str(), proxy.address.transport());
    let counts = dialler.metrics().map(|metrics| metrics.egress());
    if let Some(counts) = counts {
        counts.started(protocol, transport);
    }
    let began = Instant::now();
    let reached = Cell::new(false);
    let attempt = async {
        let hosts = hosts(dialler, selection, proxy, destination).await?;
        let reached = &reached;
        let attempts = hosts.into_iter().map(|host| async move {
            once(dialler, selection, proxy, &Destination { host, ..*destination }, reached, share).await
        });
        first(attempts, ProxyFault::NameNotResolved.because("the name has no address")).await
    };
    let result = match timeout(share, attempt).await {
        Ok(result) => result,
        Err(_) if reached.get() => Err(ProxyFault::TimedOut.because(format!("no answer within {share:?}"))),
        Err(_) => Err(ProxyFault::Unreachable.because(format!("not connected within {share:?}"))),
    };
    if let Some(counts) = counts {
        match &result {
            Ok(_) => counts.opened(protocol, transport, began.elapsed()),
            Err(error) => {
                let asked = matches!(error.phase, DialPhase::Proxy(fault) if fault.was_asked());
                counts.failed(protocol, transport, asked);
            }
        }
    }
    result.map_err(|error| DialError { cause: format!("{}: {}", proxy.address, error.cause), ..error })
}

/// Hosts to ask the proxy for, tried as in [`first`]: the name, or the addresses resolved here.
async fn hosts(
    dialler: &Dialler,
    selection: &Selection,
    proxy: &Proxy,
    destination: &Destination,
) -> Result<Vec<Host>, DialError> {
    if (selection.kind, proxy.names) != (Kind::Socks5, Names::ByUs) {
        return Ok(vec![destination.host.clone()]);
    }
    let found = dialler.resolver().addresses(destination).await;
    let found = found.map_err(|error| ProxyFault::NameNotResolved.because(error.to_string()))?;
    Ok(found.into_iter().map(Host::Ip).collect())
}

async fn once(
    dialler: &Dialler,
    selection: &Selection,
    proxy: &Proxy,
    destination: &Destination,
    reached: &Cell<bool>,
    share: Duration,
) -> Result<Opened, DialError> {
    let began = Instant::now();
    if selection.kind == Kind::Konnectivity {
        return tunnel(dialler, selection, proxy, destination, reached, share).await;
    }
    let carrier = reach(dialler, selection, proxy).await?;
    let connected = Instant::now();
    reached.set(true);
    let credentials = proxy.credentials.as_ref();
    let (carrier, rest) = match selection.kind {
        Kind::Connect(dialect) => connect::connect(carrier, dialect, credentials, destination).await?,
        _ => (socks5::connect(carrier, credentials, destination).await?, Vec::new()),
    };
    let timing = Timing { connect: connected - began, proxy: connected.elapsed(), ..Timing::default() };
    Ok(Opened { stream: ReadAhead::after(&rest, carrier), timing })
}

/// Opens a Konnectivity tunnel on a shared connection.
async fn tunnel(
    dialler: &Dialler,
    selection: &Selection,
    proxy: &Proxy,
    destination: &Destination,
    reached: &Cell<bool>,
    share: Duration,
) -> Result<Opened, DialError> {
    let began = Instant::now();
    let connect = Cell::new(Duration::ZERO);
    let open = async || {
        reached.set(false);
        let began = Instant::now();
        let carrier = reach(dialler, selection, proxy).await?;
        let client = konnectivity::Client::connect(carrier, &authority(proxy)).await?;
        connect.set(began.elapsed());
        reached.set(true);
        Ok(client)
    };
    // An existing connection counts as reached.
    reached.set(true);
    // Slightly before the caller's timeout: the reason is better known here.
    let patience = share.saturating_sub(Duration::from_millis(10));
    let tunnel = dialler.konnectivity().dial(proxy, &destination.to_string(), patience, open).await?;
    let connect = connect.get();
    let timing = Timing { connect, proxy: began.elapsed().saturating_sub(connect), ..Timing::default() };
    Ok(Opened { stream: ReadAhead::new(Carrier::Tunnel(Box::new(tunnel))), timing })
}

/// HTTP/2 authority of the server; grpc-go also sends `localhost` for a Unix socket.
fn authority(proxy: &Proxy) -> String {
    match (&proxy.address, &proxy.tls) {
        (Address::Unix(_), _) => "localhost".to_owned(),
        (Address::Tcp(destination), None) => destination.to_string(),
        (Address::Tcp(destination), Some(_)) => format!("https://{destination}"),
    }
}

/// Connects to the proxy itself.
async fn reach(dialler: &Dialler, selection: &Selection, proxy: &Proxy) -> Result<Carrier, DialError> {
    let unreachable = |why: String| ProxyFault::Unreachable.because(why);
    let carrier = match &proxy.address {
        Address::Tcp(destination) => {
            let connected = dialler.connect(destination, selection.dial_timeout).await;
            // The caller adds the proxy's address.
            let named = format!("{destination}: ");
            connected
                .map_err(|error| unreachable(error.cause.strip_prefix(&named).unwrap_or(&error.cause).to_owned()))?
                .0
        }
        Address::Unix(path) => {
            Carrier::Unix(unix::connect(path).await.map_err(|error| unreachable(unix::describe(&error)))?)
        }
    };
    let Some(tls) = &proxy.tls else { return Ok(carrier) };
    let shaken = TlsConnector::from(tls.config.clone()).connect(tls.name.clone(), carrier).await;
    let shaken = shaken.map_err(|error| {
        dialler.record_refused_peer(&proxy.address, &tls.name, &error);
        ProxyFault::Untrusted.because(format!("TLS handshake: {}", crate::tls::describe(&error)))
    })?;
    dialler.record_peer(&proxy.address, &tls.name, shaken.get_ref().1.peer_certificates());
    Ok(Carrier::Tls(Box::new(shaken)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_end_the_word_in_which_it_stands_is_not_said() {
        let said = |name: &str| speakable(&Destination { host: Host::Name(name.to_owned()), port: 1 });
        for name in ["", "fe80::1%eth0", "a\0b", "a b", "a\r\nHost: b", "[::1]", "ü", &"n".repeat(256)] {
            let error = said(name).unwrap_err();
            assert_eq!(error.phase, DialPhase::Proxy(ProxyFault::Unspeakable), "{name}");
            assert!(!error.cause.contains(['\r', '\n', '\0']), "{}", error.cause);
        }
        for name in ["a", "A_b-1.example.", &"n".repeat(255)] {
            assert!(said(name).is_ok(), "{name}");
        }
    }
}
