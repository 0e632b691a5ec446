//! Why an HTTP/1.1 connection gave no answer, or not the whole of it.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::io;

/// What went wrong on a connection.
#[derive(Debug)]
pub enum Fault {
    /// It was closed where more had to come.
    Ended,
    /// Reading failed.
    Io(io::Error),
    /// What came is not HTTP/1.1, or more of it than we read; in words.
    Nonsense(&'static str),
    /// We closed it: the body of the request broke off.
    Cut,
    /// We closed it: the endpoint no longer answers.
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
