//! Routing: which APIService a path belongs to, and whether it can be sent there now.

mod inflight;
mod table;

pub use inflight::{Dealer, Hand, Inflight, InflightPermit};
pub use table::{Route, RouteSources, RouteTable, RouteTarget, publish_route_tables};
