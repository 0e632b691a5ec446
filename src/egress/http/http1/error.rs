//! Errors of HTTP/1.1 client connections.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

/// Error of an HTTP/1.1 exchange.
#[derive(Debug)]
pub enum Http1Error {
    /// The connection was closed before the response was complete.
    ConnectionClosed,
    /// Reading failed.
    Io(io::Error),
    /// The response is not valid HTTP/1.1, or exceeds a limit; the text says why.
    InvalidResponse(&'static str),
    /// Closed by the gateway: the request body broke off.
    RequestBodyBroken,
    /// Closed by the gateway: the endpoint is unresponsive.
    EndpointUnresponsive,
}

impl Display for Http1Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Http1Error::ConnectionClosed => write!(f, "the connection was closed before its answer was complete"),
            Http1Error::Io(error) => write!(f, "reading the answer failed: {error}"),
            Http1Error::InvalidResponse(what) => write!(f, "the answer is not HTTP/1.1: {what}"),
            Http1Error::RequestBodyBroken => write!(f, "the connection was closed: the body of the request broke off"),
            Http1Error::EndpointUnresponsive => write!(f, "the connection was closed: its endpoint does not answer"),
        }
    }
}

impl Error for Http1Error {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Http1Error::Io(error) => Some(error),
            Http1Error::ConnectionClosed
            | Http1Error::InvalidResponse(_)
            | Http1Error::RequestBodyBroken
            | Http1Error::EndpointUnresponsive => None,
        }
    }
}
