//! Availability of backends: probes, hysteresis, circuit breaker, outlier detection, status writer.
//!
//! [`run`] probes each APIService in a task of its own, so a slow one delays no other. Results are published on the
//! [`Board`], which a request reads without waiting. Until its first probe has ended an APIService is `Unknown` and its
//! requests are admitted: a gateway that has just started must not reject what works.
//!
//! Request outcomes count beside probes: per endpoint in its [`Standing`], shared by all APIServices that have the
//! endpoint, and per APIService in its circuit breaker. When they contradict the last probe, the next probe runs at
//! once.

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
// APIServices as a read-only API.
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
