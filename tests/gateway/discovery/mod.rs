//! Discovery and OpenAPI of all backends.

pub(crate) mod disk_cache;
pub(crate) mod malformed_discovery;
pub(crate) mod merged_discovery;
pub(crate) mod openapi_v2;
