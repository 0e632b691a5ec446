//! Bodies and refusals: what every stage of a request speaks.

mod body;
mod refusal;

pub use body::{Body, BodyError};
pub use refusal::{Blame, Refusal};
