//! `narthex konnectivity-server` and `narthex konnectivity-agent`.

pub mod agent;
mod api_server;
mod certificate_expiry;
mod health;
pub mod server;
mod token_reviews;
mod worker_pool;
