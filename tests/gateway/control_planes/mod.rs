//! Many control planes through one gateway (`--control-planes-config`).

mod backend_isolation;
mod cached_decisions;
mod changes;
mod configuration_errors;
mod documents;
mod fixture;
mod isolation;
mod many;
mod path_mappings;
mod selection;
