//! The objects of the registry, parsed and validated: APIServices, Services, endpoints.

pub(super) mod annotations;
pub(super) mod api_service;
pub(super) mod endpoints;
pub(super) mod long_running;
pub(super) mod manifest;
pub(super) mod service;
pub(super) mod url_backend;
