//! The life of the process: drain, followed files, published snapshots, mistakes in what the operator wrote.

mod drain;
mod follow;
mod problem;
mod published;

pub use drain::{Drain, Drainer, Phase};
pub use follow::{Follower, is_passing};
pub use problem::{Problem, Problems};
pub use published::{Published, Publisher};
