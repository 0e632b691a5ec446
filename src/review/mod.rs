//! Decisions that somebody else makes for us: kept for a while, and asked for once at a time.
//!
//! What is kept is found without waiting and without writing to memory that threads share; only what must be
//! asked for costs more. The keys are keyed digests: what was asked (a token, a user with all their groups) is
//! not kept at all.

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
