//! Opens streams and connections over any egress route.

use std::path::Path;
use std::time::{Duration, Instant};

use tokio::time::timeout;

use crate::egress::dial::dialer::{Dialer, OpenedStream};
use crate::egress::dial::maybe_tls_stream::MaybeTlsStream;
use crate::egress::dial::transport::TransportStream;
use crate::egress::dial::{DialedConnection, unix, via_proxy};
use crate::egress::dial_result::{DialError, DialPhase, DialTiming, HttpVersion};
use crate::egress::{Address, Destination, EgressRoute, EndpointKey, ReadAhead, TransportSecurity};
use crate::tls::ClientTlsStream;

impl Dialer {
    /// Opens a stream to `destination`, without the destination's TLS. `patience` limits direct dials; dials through a
    /// proxy have the limit of their selection.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn open(
        &self,
        route: &EgressRoute,
        destination: &Destination,
        patience: Duration,
    ) -> Result<OpenedStream, DialError> {
        match route.selection_for(destination) {
            None => {
                let (socket, connect) = self.connect(destination, patience).await?;
                Ok(OpenedStream {
                    stream: ReadAhead::new(socket),
                    timing: DialTiming { connect, ..DialTiming::default() },
                })
            }
            // Boxed: direct dials would pay for its size.
            Some(selection) => Box::pin(via_proxy::open(self, selection, destination)).await,
        }
    }

    /// As [`Dialer::open`], to an address. Unix domain sockets are always dialed directly.
    ///
    /// # Errors
    /// A [`DialError`]; time-out included.
    pub async fn open_address(
        &self,
        route: &EgressRoute,
        address: &Address,
        patience: Duration,
    ) -> Result<OpenedStream, DialError> {
        match address {
            Address::Tcp(destination) => self.open(route, destination, patience).await,
            Address::Unix(path) => open_unix(path, patience).await,
        }
    }

    /// Opens a connection to `key`, with the HTTP version that ALPN or the configuration selects, or HTTP/1.1 if
    /// `only_http1`.
    pub(in crate::egress) async fn dial(
        &self,
        key: &EndpointKey,
        only_http1: bool,
    ) -> Result<DialedConnection, DialError> {
        let started = Instant::now();
        let EndpointKey { address, connect_timeout, .. } = key;
        let OpenedStream { stream, mut timing } =
            self.open_address(&key.egress_route, address, *connect_timeout).await?;
        let (mut channel, protocol) = match &key.security {
            // A server of HTTP/2 with prior knowledge also accepts HTTP/1.1.
            TransportSecurity::Plaintext(protocol) => {
                (MaybeTlsStream::Plaintext(stream), if only_http1 { HttpVersion::Http1 } else { *protocol })
            }
            TransportSecurity::Tls(tls) => {
                let connected = Instant::now();
                let handshake = ClientTlsStream::connect(tls.config(only_http1), tls.server_name().clone(), stream);
                let rest = key.dial_timeout().saturating_sub(connected - started).min(*connect_timeout);
                let stream = match timeout(rest, handshake).await {
                    Ok(shaken) => shaken.map_err(|error| {
                        self.record_refused_peer(address, tls.server_name(), &error);
                        DialError::from_io(DialPhase::Handshake, address, &error)
                    })?,
                    Err(_) => return Err(DialError::timed_out(DialPhase::Handshake, address, *connect_timeout)),
                };
                timing.handshake = connected.elapsed();
                self.record_peer_certificate(address, tls.server_name(), stream.state().peer_certificates());
                let http2 = stream.state().alpn_protocol() == Some(b"h2");
                (MaybeTlsStream::Tls(Box::new(stream)), if http2 { HttpVersion::Http2 } else { HttpVersion::Http1 })
            }
        };
        if protocol == HttpVersion::Http2 {
            channel.enable_read_ahead();
        }
        Ok(DialedConnection { stream: channel, protocol, timing })
    }
}

async fn open_unix(path: &Path, patience: Duration) -> Result<OpenedStream, DialError> {
    let started = Instant::now();
    let socket = match timeout(patience, unix::connect(path)).await {
        Ok(socket) => socket.map_err(|error| unix::dial_error(path, &error))?,
        Err(_) => {
            let address = format_args!("unix:{}", path.display());
            return Err(DialError::timed_out(DialPhase::Connect, &address, patience));
        }
    };
    let timing = DialTiming { connect: started.elapsed(), ..DialTiming::default() };
    Ok(OpenedStream { stream: ReadAhead::new(TransportStream::Unix(socket)), timing })
}
