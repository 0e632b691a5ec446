//! The embedded API server (`--embedded-api`).

mod api_services;
mod bad_bodies;
mod bad_parameters;
mod builtin_kinds;
mod concurrency;
mod conversion_selection;
mod conversion_subresources;
mod conversion_webhook_addresses;
mod conversion_webhook_calls;
pub(crate) mod conversion_webhooks;
mod custom_resources;
mod definition_changes;
mod definition_churn;
mod definition_conflicts;
mod definition_limits;
mod definition_validation;
mod definition_watches;
mod discovery;
mod namespaces;
mod observability;
mod process_kills;
mod recorded_history;
mod representations;
mod shutdown;
mod store_failures;
mod stored_definitions;
