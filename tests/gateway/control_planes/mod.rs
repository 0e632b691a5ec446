//! Many control planes through one gateway (`--control-planes-config`).

mod changes;
mod configuration_errors;
mod fixture;
mod isolation;
mod many;
mod path_mappings;
mod selection;
