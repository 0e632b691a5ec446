//! May they.
