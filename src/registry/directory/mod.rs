//! The registry directory: manifests on disk.

pub(super) mod cross_check;
pub(super) mod last_good;
pub(super) mod manifest_object;
pub(super) mod saved_manifests;
pub(super) mod scan;
