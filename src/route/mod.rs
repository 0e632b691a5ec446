//! From a permit and a path to a target.
