//! Routing: which APIService a path belongs to, and whether it can be sent there now.

mod inflight;
mod table;

pub use inflight::{Dealer, Hand, Inflight, Place};
pub use table::{Route, Sources, Table, Target, follow};
