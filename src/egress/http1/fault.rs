//! Errors of HTTP/1.1 client connections.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

/// Error of an HTTP/1.1 exchange.
#[derive(Debug)]
pub enum Fault {
    /// The connection was closed before the response was complete.
    Ended,
    /// Reading failed.
    Io(io::Error),
    /// The response is not valid HTTP/1.1, or exceeds a limit; the text says why.
    Nonsense(&'static str),
    /// Closed by the gateway: the request body broke off.
    Cut,
    /// Closed by the gateway: the endpoint is unresponsive.
    Unanswered,
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Ended => write!(f, "the connection was closed before its answer was complete"),
            Fault::Io(error) => write!(f, "reading the answer failed: {error}"),
            Fault::Nonsense(what) => write!(f, "the answer is not HTTP/1.1: {what}"),
            Fault::Cut => write!(f, "the connection was closed: the body of the request broke off"),
            Fault::Unanswered => write!(f, "the connection was closed: its endpoint does not answer"),
        }
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Fault::Io(error) => Some(error),
            Fault::Ended | Fault::Nonsense(_) | Fault::Cut | Fault::Unanswered => None,
        }
    }
}
