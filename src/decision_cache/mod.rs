//! Cache of remote decisions (TokenReview, SubjectAccessReview), with single flight.
//!
//! A cached decision is read without a lock and without writing to shared memory. Keys are keyed digests: the inputs
//! (a token, a user with its groups) are not stored.

mod cache;
mod key;
mod log_throttle;
mod single_flight;
mod target;

pub use cache::{CacheLimits, CachedDecision, DecisionCache};
pub use key::{DecisionKey, Digest, DigestSecret};
pub use log_throttle::LogThrottle;
pub use single_flight::{FlightGuard, SingleFlight};
pub use target::{ReviewTarget, ReviewVersion};
