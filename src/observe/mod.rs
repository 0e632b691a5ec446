//! What the operator sees.
