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
    /// We gave it up: the body of the request broke off, or the endpoint no longer answers.
    Cut,
}

impl Display for Fault {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Ended => write!(f, "the connection was closed before its answer was complete"),
            Fault::Io(error) => write!(f, "reading the answer failed: {error}"),
            Fault::Nonsense(what) => write!(f, "the answer is not HTTP/1.1: {what}"),
            Fault::Cut => write!(f, "the connection was given up"),
        }
    }
}

impl Error for Fault {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Fault::Io(error) => Some(error),
            Fault::Ended | Fault::Nonsense(_) | Fault::Cut => None,
        }
    }
}
