//! Clients, backends, fakes and fixtures of the tests.

pub(crate) mod assert_refused;
pub(crate) mod backend;
pub(crate) mod bad_certs;
pub(crate) mod client;
pub(crate) mod conversion_webhook;
pub(crate) mod embedded_api;
pub(crate) mod event_stream;
pub(crate) mod fake_apiserver;
pub(crate) mod fake_collector;
pub(crate) mod fake_egress_proxy;
pub(crate) mod fake_oidc_issuer;
pub(crate) mod fake_review_server;
pub(crate) mod fixtures;
pub(crate) mod gateway_fixture;
pub(crate) mod plaintext_backend;
pub(crate) mod process;
pub(crate) mod raw_backend;
pub(crate) mod raw_h2_client;
pub(crate) mod store_file;
