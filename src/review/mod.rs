//! Cache of remote decisions (TokenReview, SubjectAccessReview), with single flight.
//!
//! A cached decision is read without a lock and without writing to shared memory. Keys are keyed digests: the inputs
//! (a token, a user with its groups) are not stored.

mod cache;
mod complaint;
mod flights;
mod key;
mod target;

pub use cache::{DecisionCache, Kept, Limits};
pub use complaint::Complaint;
pub use flights::{Flights, Landing};
pub use key::{Digest, Key, Secret};
pub use target::{Target, Version};
