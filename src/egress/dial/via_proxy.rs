//! Dials through the proxies of a selection: the first one that succeeds.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::egress::dial::dialer::{Dialer, OpenedStream};
use crate::egress::dial::happy_eyeballs;
use crate::egress::dial::transport::TransportStream;
use crate::egress::dial::unix;
use crate::egress::dial_result::{DialError, DialPhase, DialTiming};
use crate::egress::proxy::{http_connect, konnectivity, socks5};
use crate::egress::proxy_fault::ProxyFault;
use crate::egress::route::egress_route::{EgressProtocol, EgressProxy, EgressSelection, NameResolution};
use crate::egress::route::proxy_health::{ProxyHealthChange, ProxyState};
use crate::egress::{Address, Destination, Host, ReadAhead};
use crate::observe::metrics::CallKind;
use crate::tls::ClientTlsStream;

/// Limit of a name in SOCKS5, in bytes; DNS names have at most 253.
const MAX_NAME_BYTES: usize = 255;

/// Opens a stream to `destination` through a proxy of `selection`, within its dial timeout.
///
/// # Errors
/// The error of the last proxy, or the first error that is not proxy-specific; the cause lists all.
pub(in crate::egress) async fn open(
    dialer: &Dialer,
    selection: &Arc<EgressSelection>,
    destination: &Destination,
) -> Result<OpenedStream, DialError> {
    validate_name(destination)?;
    let until = Instant::now() + selection.dial_timeout;
    let mut left = selection.proxies.len();
    let mut causes = Vec::new();
    let mut last = ProxyFault::Unreachable;
    for number in selection.health.in_order() {
        let proxy = &selection.proxies[number];
        // Each proxy gets a share of the time: one that hangs leaves time for the others.
        let share = (until - Instant::now()) / u32::try_from(left.max(1)).unwrap_or(u32::MAX);
        left -= 1;
        match open_via(dialer, selection, proxy, destination, share).await {
            Ok(opened) => {
                record_outcome(dialer, selection, number, None, opened.timing.total());
                if selection.health.set_preferred(number) && selection.proxies.len() > 1 {
                    let (selection, proxy) = (&selection.name, &proxy.address);
                    tracing::warn!(selection, %proxy, why = causes.join("; "), "switched to another egress proxy");
                }
                return Ok(opened);
            }
            Err(error) => {
                if let DialPhase::Proxy(fault) = error.phase {
                    last = fault;
                }
                record_outcome(
                    dialer,
                    selection,
                    number,
                    last.is_proxy_specific().then_some((last, &error.cause)),
                    Duration::ZERO,
                );
                causes.push(error.cause);
                if !last.is_proxy_specific() {
                    break;
                }
            }
        }
    }
    let selection = selection.description();
    Err(last.with_cause(format!("{destination} through {selection}: {}", causes.join("; "))))
}

/// Records the result of a dial and logs changes of the proxy's health.
fn record_outcome(
    dialer: &Dialer,
    selection: &EgressSelection,
    number: usize,
    fault: Option<(ProxyFault, &str)>,
    duration: Duration,
) {
    let news = selection.health.record(number, fault);
    if let Some(metrics) = dialer.metrics() {
        let calls =
            selection.health.call_health(number, || metrics.calls().register(CallKind::EgressProxy, &selection.name));
        let result = fault.map_or(Ok(()), |(_, why)| Err(why));
        // A fault of a healthy proxy may be the destination's.
        if result.is_ok() || matches!(selection.health.state(number), ProxyState::Failing { .. }) {
            calls.record_quietly(&selection.proxies[number].address, result, duration);
        }
    }
    let (selection, proxy) = (&selection.name, &selection.proxies[number].address);
    match (news, fault) {
        (ProxyHealthChange::Failed, Some((ProxyFault::TimedOut, why))) => tracing::warn!(
            selection,
            %proxy,
            why,
            "egress proxy does not answer; check that it runs and can reach its destinations"
        ),
        (ProxyHealthChange::Failed, Some((_, why))) => tracing::warn!(selection, %proxy, why, "egress proxy failed"),
        (ProxyHealthChange::Recovered, _) => tracing::info!(selection, %proxy, "egress proxy recovered"),
        _ => {}
    }
}

/// Rejects names that cannot be sent to a proxy of any protocol: an invalid byte could end the protocol field that
/// contains it.
fn validate_name(destination: &Destination) -> Result<(), DialError> {
    let Host::Name(name) = &destination.host else { return Ok(()) };
    let why = if name.is_empty() || name.len() > MAX_NAME_BYTES {
        format!("a host name has 1 to {MAX_NAME_BYTES} bytes, this one {}", name.len())
    } else if name.contains(['%', ':']) {
        // An address with a zone is meaningful only on the machine where it was written.
        format!("{name:?} is not a host name, and addresses with a zone are not supported")
    } else if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)) {
        format!("{name:?} is not a host name")
    } else {
        return Ok(());
    };
    Err(ProxyFault::InvalidName.with_cause(why))
}

/// Opens the stream through one proxy, within `share`.
async fn open_via(
    dialer: &Dialer,
    selection: &EgressSelection,
    proxy: &EgressProxy,
    destination: &Destination,
    share: Duration,
) -> Result<OpenedStream, DialError> {
    let (protocol, transport) = (selection.protocol.as_str(), proxy.address.transport());
    let counts = dialer.metrics().map(|metrics| metrics.egress());
    if let Some(counts) = counts {
        counts.record_start(protocol, transport);
    }
    let began = Instant::now();
    let reached = Cell::new(false);
    let attempt = async {
        let hosts = candidate_hosts(dialer, selection, proxy, destination).await?;
        let reached = &reached;
        let attempts = hosts.into_iter().map(|host| async move {
            open_once(dialer, selection, proxy, &Destination { host, ..*destination }, reached, share).await
        });
        happy_eyeballs(attempts, ProxyFault::NameNotResolved.with_cause("the name has no address")).await
    };
    let result = match timeout(share, attempt).await {
        Ok(result) => result,
        Err(_) if reached.get() => {
            Err(ProxyFault::TimedOut.with_cause(format!("no answer within {:.1} s", share.as_secs_f32())))
        }
        Err(_) => Err(ProxyFault::Unreachable.with_cause(format!("not connected within {:.1} s", share.as_secs_f32()))),
    };
    if let Some(counts) = counts {
        match &result {
            Ok(_) => counts.record_success(protocol, transport, began.elapsed()),
            Err(error) => {
                let was_connect_sent = matches!(error.phase, DialPhase::Proxy(fault) if fault.was_connect_sent());
                counts.record_failure(protocol, transport, was_connect_sent);
            }
        }
    }
    result.map_err(|error| DialError { cause: format!("{}: {}", proxy.address, error.cause), ..error })
}

/// Hosts to ask the proxy for, tried as in [`happy_eyeballs`]: the name, or the addresses resolved here.
async fn candidate_hosts(
    dialer: &Dialer,
    selection: &EgressSelection,
    proxy: &EgressProxy,
    destination: &Destination,
) -> Result<Vec<Host>, DialError> {
    if (selection.protocol, proxy.name_resolution) != (EgressProtocol::Socks5, NameResolution::Local) {
        return Ok(vec![destination.host.clone()]);
    }
    let found = dialer.resolver().addresses(destination).await;
    let found = found.map_err(|error| ProxyFault::NameNotResolved.with_cause(error.to_string()))?;
    Ok(found.into_iter().map(Host::Ip).collect())
}

async fn open_once(
    dialer: &Dialer,
    selection: &EgressSelection,
    proxy: &EgressProxy,
    destination: &Destination,
    reached: &Cell<bool>,
    share: Duration,
) -> Result<OpenedStream, DialError> {
    let began = Instant::now();
    if selection.protocol == EgressProtocol::Konnectivity {
        return open_tunnel(dialer, selection, proxy, destination, reached, share).await;
    }
    let carrier = connect_to_proxy(dialer, selection, proxy).await?;
    let connected = Instant::now();
    reached.set(true);
    let credentials = proxy.credentials.as_ref();
    let (carrier, rest) = match selection.protocol {
        EgressProtocol::HttpConnect(dialect) => {
            http_connect::connect(carrier, dialect, credentials, destination).await?
        }
        _ => (socks5::connect(carrier, credentials, destination).await?, Vec::new()),
    };
    let timing = DialTiming { connect: connected - began, proxy: connected.elapsed(), ..DialTiming::default() };
    Ok(OpenedStream { stream: ReadAhead::with_prefix(&rest, carrier), timing })
}

/// Opens a Konnectivity tunnel on a shared connection.
async fn open_tunnel(
    dialer: &Dialer,
    selection: &EgressSelection,
    proxy: &EgressProxy,
    destination: &Destination,
    reached: &Cell<bool>,
    share: Duration,
) -> Result<OpenedStream, DialError> {
    let began = Instant::now();
    let connect = Cell::new(Duration::ZERO);
    let open = async || {
        reached.set(false);
        let began = Instant::now();
        let carrier = connect_to_proxy(dialer, selection, proxy).await?;
        let client = konnectivity::connect(carrier, &authority(proxy)).await?;
        connect.set(began.elapsed());
        reached.set(true);
        Ok(client)
    };
    // An existing connection counts as reached.
    reached.set(true);
    // Slightly before the caller's timeout: the reason is better known here.
    let patience = share.saturating_sub(Duration::from_millis(10));
    let tunnel = dialer.konnectivity().dial(proxy, &destination.to_string(), patience, open).await?;
    let connect = connect.get();
    let timing = DialTiming { connect, proxy: began.elapsed().saturating_sub(connect), ..DialTiming::default() };
    Ok(OpenedStream { stream: ReadAhead::new(TransportStream::Tunnel(Box::new(tunnel))), timing })
}

/// HTTP/2 authority of the server; grpc-go also sends `localhost` for a Unix socket.
fn authority(proxy: &EgressProxy) -> String {
    match (&proxy.address, &proxy.tls) {
        (Address::Unix(_), _) => "localhost".to_owned(),
        (Address::Tcp(destination), None) => destination.to_string(),
        (Address::Tcp(destination), Some(_)) => format!("https://{destination}"),
    }
}

/// Connects to the proxy itself.
async fn connect_to_proxy(
    dialer: &Dialer,
    selection: &EgressSelection,
    proxy: &EgressProxy,
) -> Result<TransportStream, DialError> {
    let unreachable = |why: String| ProxyFault::Unreachable.with_cause(why);
    let carrier = match &proxy.address {
        Address::Tcp(destination) => {
            let connected = dialer.connect(destination, selection.dial_timeout).await;
            // The caller adds the proxy's address.
            let named = format!("{destination}: ");
            connected
                .map_err(|error| unreachable(error.cause.strip_prefix(&named).unwrap_or(&error.cause).to_owned()))?
                .0
        }
        Address::Unix(path) => {
            TransportStream::Unix(unix::connect(path).await.map_err(|error| unreachable(unix::describe(&error)))?)
        }
    };
    let Some(tls) = &proxy.tls else { return Ok(carrier) };
    let shaken = ClientTlsStream::connect(tls.config.clone(), tls.name.clone(), carrier).await;
    let shaken = shaken.map_err(|error| {
        dialer.record_refused_peer(&proxy.address, &tls.name, &error);
        ProxyFault::Untrusted.with_cause(format!("TLS handshake: {}", crate::tls::describe_error(&error)))
    })?;
    dialer.record_peer_certificate(&proxy.address, &tls.name, shaken.state().peer_certificates());
    Ok(TransportStream::Tls(Box::new(shaken)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn via_proxy_invalid_names_are_not_sent() {
        let said = |name: &str| validate_name(&Destination { host: Host::Name(name.to_owned()), port: 1 });
        for name in ["", "fe80::1%eth0", "a\0b", "a b", "a\r\nHost: b", "[::1]", "ü", &"n".repeat(256)] {
            let error = said(name).unwrap_err();
            assert_eq!(error.phase, DialPhase::Proxy(ProxyFault::InvalidName), "{name}");
            assert!(!error.cause.contains(['\r', '\n', '\0']), "{}", error.cause);
        }
        for name in ["a", "A_b-1.example.", &"n".repeat(255)] {
            assert!(said(name).is_ok(), "{name}");
        }
    }
}
