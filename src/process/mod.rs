//! The life of the process: drain, published snapshots, mistakes in what the operator wrote.

mod drain;
mod problem;
mod published;

pub use drain::{Drain, Drainer, Phase};
pub use problem::{Problem, Problems};
pub use published::{Published, Publisher};
