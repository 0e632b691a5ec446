//! JSON of API objects, read and written as Go's `encoding/json` and `sigs.k8s.io/json` do.

mod indent;
mod read;
mod size;
mod strict_order;
mod write;

pub use indent::JsonIndenter;
pub use read::{JsonError, JsonFindings, MAX_JSON_DEPTH, number_too_large, read_json, read_untyped_json};
pub use size::{is_costly_beyond, json_size};
pub use strict_order::strict_messages;
pub use write::{
    StoredJson, VersionSlot, format_go_number, json_kind, quote_json_into, write_json, write_json_into,
    write_stored_json,
};
