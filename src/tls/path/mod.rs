//! Certification paths, built and judged as Go's crypto/x509 does in `verify.go`.
//!
//! rustls-webpki refuses certificates that Kubernetes clusters use (an authority as end entity, version 1, critical
//! policies) and ignores what limits an authority's key (key usage, a root's path length and extensions). Signatures are
//! verified by its algorithms.

mod alternative_names;
mod build;
mod certificate;
mod host_name;
mod name_constraints;
mod path_error;
mod policies;
#[cfg(test)]
mod tests;

pub(super) use build::{PeerRole, build_path};
pub(super) use certificate::PathCertificate;
pub(super) use path_error::{PathError, PathFault};
