//! Whether a backend answers: probe, judge, report.
//!
//! [`run`] probes every APIService on its own, so that a slow one delays no other. What it finds stands on
//! the [`Board`], where a request reads it without waiting. Until its first probe has ended an APIService is
//! `Unknown`, and its requests are let through: a gateway that has just started must not refuse what works.
//!
//! What becomes of requests is judged beside it: of each endpoint its [`Standing`], which all APIServices share that have
//! it, of the whole its circuit. Where that
//! says otherwise than the last probe the next one comes at once.

mod announce;
mod asking;
mod board;
mod circuit;
mod condition;
mod endpoint_map;
mod judge;
mod pace;
mod passage;
mod probe;
// The APIServices as an API, read-only.
pub mod report;
mod schedule;
mod standing;

pub use announce::Announcer;
pub use board::{Availability, Board, Obstacle};
pub use circuit::Fate;
pub use condition::{Condition, ConditionStatus};
pub use endpoint_map::ConnectionSettings;
pub use judge::{Finding, Judge};
pub use passage::Passage;
pub use probe::{Probe, ProbeFailure};
pub use schedule::{Witness, run};
pub use standing::{Share, Standing};
