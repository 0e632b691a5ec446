//! Classifies errors of requests on open connections: not processed, invalid HTTP, or connection closed.

use std::error::Error as StdError;
use std::io;

use crate::egress::dial_result::{DialError, DialPhase};
use crate::egress::http::http1::Http1Error;
use crate::tls::ConnectionFailure;

/// Why the backend provably did not process a request that was sent; `None` if it may have.
pub(crate) fn unprocessed_error(error: &(dyn StdError + 'static)) -> Option<DialError> {
    let refused =
        |reason, phase| Some(DialError { phase, reason, cause: format!("the request was not processed: {error}") });
    if let Some(h2) = find_source::<h2::Error>(error) {
        // GOAWAY without an error ends exactly the streams above its last stream id, which were not processed (RFC
        // 9113, section 6.8). GOAWAY with an error may end others, too.
        let unseen = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM)
            || h2.is_go_away() && h2.reason() == Some(h2::Reason::NO_ERROR);
        return if h2.is_remote() && unseen { refused("StreamRefused", DialPhase::Http) } else { None };
    }
    // Under TLS 1.3 a server verifies the client certificate after the client's handshake is done; before it has
    // accepted the certificate, it reads no request.
    match tls_failure(error) {
        Some(ConnectionFailure::ClientCertificateRefused) => {
            refused(ConnectionFailure::ClientCertificateRefused.reason(), DialPhase::Handshake)
        }
        _ => None,
    }
}

/// Whether the backend sent GOAWAY.
pub(in crate::egress) fn is_goaway(error: &(dyn StdError + 'static)) -> bool {
    find_source::<h2::Error>(error).is_some_and(|h2| h2.is_remote() && h2.is_go_away())
}

/// The TLS failure that ended the connection, if one did.
fn tls_failure(error: &(dyn StdError + 'static)) -> Option<ConnectionFailure> {
    let io = find_source::<io::Error>(error)?;
    io.get_ref()?.downcast_ref::<rustls::Error>()?;
    Some(ConnectionFailure::from_io(io))
}

/// Whether the response was not valid HTTP, or exceeded a limit.
pub(crate) fn is_invalid_http(error: &(dyn StdError + 'static)) -> bool {
    matches!(find_source::<Http1Error>(error), Some(Http1Error::InvalidResponse(_)))
        || find_source::<h2::Error>(error).is_some_and(|h2| !h2.is_remote() && !h2.is_io() && h2.reason().is_some())
}

/// Whether the peer closed the connection; false if the gateway did.
pub(in crate::egress) fn is_connection_closed(error: &(dyn StdError + 'static)) -> bool {
    let ended = |io: &io::Error| {
        matches!(
            io.kind(),
            io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe
                | io::ErrorKind::UnexpectedEof
        )
    };
    matches!(find_source::<Http1Error>(error), Some(Http1Error::ConnectionClosed))
        || find_source::<io::Error>(error).is_some_and(ended)
}

/// The first `E` in the chain of `error` and its sources.
fn find_source<'e, E: StdError + 'static>(error: &'e (dyn StdError + 'static)) -> Option<&'e E> {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        if let Some(h2) = error.downcast_ref::<h2::Error>()
            && let Some(io) = h2.get_io()
            && let Some(found) = (io as &(dyn StdError + 'static)).downcast_ref::<E>()
        {
            return Some(found);
        }
        source = error.source();
    }
    None
}
