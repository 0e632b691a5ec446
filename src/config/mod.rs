//! What the operator wrote.
