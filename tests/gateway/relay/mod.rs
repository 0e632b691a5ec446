//! Requests and responses on their way between client and backend.

pub(crate) mod body_streaming;
pub(crate) mod case_sensitivity;
pub(crate) mod connection_pool;
pub(crate) mod cors;
pub(crate) mod forwarding;
pub(crate) mod malformed_requests;
pub(crate) mod query_parameters;
pub(crate) mod request_bodies;
pub(crate) mod request_headers;
pub(crate) mod request_paths;
pub(crate) mod response_filtering;
pub(crate) mod response_headers;
pub(crate) mod truncated_responses;
pub(crate) mod unmatched_paths;
pub(crate) mod upgrades;
