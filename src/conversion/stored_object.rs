//! Stored objects as values.

use std::sync::Arc;

use kubeapi::Status;
use serde_json::{Map, Value};
use store::watch_cache::Stored;

use crate::compute::run_sized;

/// The stored object with its resourceVersion as a value, parsed on a compute thread if it is large.
///
/// # Errors
/// 500 for a value that cannot be read.
pub async fn stored_object(stored: &Arc<Stored>) -> Result<Map<String, Value>, Status> {
    let (size, stored) = (stored.bytes().len(), stored.clone());
    run_sized(size, move || parse_stored_object(&stored)).await?
}

/// As [`stored_object`], on this thread.
pub(super) fn parse_stored_object(stored: &Stored) -> Result<Map<String, Value>, Status> {
    let object = serde_json::from_slice(&stored.versioned().concat());
    object.map_err(|error| {
        Status::internal_error(format_args!("stored object {} cannot be parsed: {error}", stored.key()))
    })
}
