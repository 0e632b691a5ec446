//! From a path to a target: which APIService a request is for, and where it can be sent now.

mod inflight;
mod table;

pub use inflight::{Dealer, Hand, Inflight, Place};
pub use table::{Route, Sources, Table, Target, follow};
