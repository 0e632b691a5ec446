//! Status pages of Konnectivity servers and agents.

mod agent_page;
mod attention;
mod server_page;
mod summary;

/// Maximum rows of the tables of agents and servers; a page of thousands would be rendered each second.
const MAX_ROWS: usize = 200;
/// Paths that the pages link to.
const LINKS: &[&str] = &["metrics", "status.json"];

/// Describes whether each tunnel of a connection has a window and a half-close.
fn describe_flow_control(per_tunnel: bool) -> &'static str {
    if per_tunnel { "per tunnel" } else { "none" }
}
