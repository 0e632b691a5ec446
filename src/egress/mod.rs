//! Outbound: from a destination to a stream of bytes, and the pool of HTTP connections over it.
//!
//! There is one place that opens connections ([`dial`]), so that later ways (SOCKS5, HTTP CONNECT, a
//! Konnectivity tunnel) stand beside the direct one and everything above it stays as it is.

mod destination;
mod dial;
mod endpoint;
mod http1;
mod http2;
mod lease;
mod pool;
mod read_ahead;
mod refusal;
mod resolve;
mod silence;
mod trust;

pub use destination::{Destination, Host, Upstream};
pub use dial::{DialError, DialPhase, Protocol, Timing, dial_plain};
pub use endpoint::{Cause, Endpoint, SendError, Sent};
pub use lease::Lease;
pub use pool::{Pool, PoolReport};
pub(crate) use refusal::{is_nonsense, unprocessed};
pub use resolve::Resolver;
pub use trust::BackendTls;
