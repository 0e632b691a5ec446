//! Label and field selectors.

pub(super) mod field_selector;
pub(super) mod label_selector;
