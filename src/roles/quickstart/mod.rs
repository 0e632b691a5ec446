//! `narthex quickstart`: everything in one process on this machine.

pub mod example;
