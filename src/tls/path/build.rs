//! The search for a path from a peer's certificate to a trusted one.

use rustls::pki_types::{SubjectPublicKeyInfoDer, UnixTime};
use webpki::RawPublicKeyEntity;
use x509_parser::public_key::PublicKey;

use super::certificate::PathCertificate;
use super::path_error::{PathError, PathFault};
use super::policies::has_required_policies;
use crate::tls::certificate::parse;
use crate::tls::provider;

/// Maximum number of candidates for an issuer, each of which costs a signature check: Go's `maxChainSignatureChecks`.
const MAX_SIGNATURE_CHECKS: usize = 100;

/// The role of a peer, which determines the required key usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tls) enum PeerRole {
    Client,
    Server,
}

/// Builds a path that is valid `now` from `leaf` by any of `intermediates` to one of `roots`, the leaf first. A leaf that is
/// one of the roots is a path of its own.
///
/// # Errors
/// The fault of the candidate that came closest.
pub(in crate::tls) fn build_path<'a>(
    leaf: &'a PathCertificate,
    intermediates: &'a [PathCertificate],
    roots: &'a [PathCertificate],
    now: UnixTime,
    role: PeerRole,
) -> Result<Vec<&'a PathCertificate>, PathError> {
    if let Some(fault) = leaf.fault_at(now) {
        return Err(PathError::of_leaf(fault));
    }
    let mut path = vec![leaf];
    if roots.iter().any(|root| root.der == leaf.der) {
        return check_path(&path, role).map(|()| path);
    }
    let mut search = PathSearch { intermediates, roots, now, role, checks: 0, closest: None };
    if search.extend(&mut path) {
        return Ok(path);
    }
    Err(search.closest.unwrap_or(PathError::of_leaf(PathFault::UnknownIssuer)))
}

struct PathSearch<'a> {
    intermediates: &'a [PathCertificate],
    roots: &'a [PathCertificate],
    now: UnixTime,
    role: PeerRole,
    checks: usize,
    closest: Option<PathError>,
}

impl<'a> PathSearch<'a> {
    /// Extends `path` up to a root: whether there is a valid path.
    fn extend(&mut self, path: &mut Vec<&'a PathCertificate>) -> bool {
        let Some(&child) = path.last() else { return false };
        let (roots, intermediates) = (self.roots, self.intermediates);
        let candidates = roots.iter().map(|it| (it, true)).chain(intermediates.iter().map(|it| (it, false)));
        for (candidate, is_root) in candidates.filter(|(it, _)| it.subject == child.issuer) {
            self.checks += 1;
            if self.checks > MAX_SIGNATURE_CHECKS {
                self.closest = Some(PathError::of_leaf(PathFault::TooManySignatures));
                return false;
            }
            if path.iter().any(|it| it.is_same_holder(candidate)) {
                continue;
            }
            if let Err(error) = self.check_issuer(path, candidate, is_root) {
                self.note(error);
                continue;
            }
            path.push(candidate);
            let is_valid = if is_root {
                check_path(path, self.role).map_err(|error| self.note(error)).is_ok()
            } else {
                self.extend(path)
            };
            if is_valid {
                return true;
            }
            path.pop();
        }
        false
    }

    /// Checks that `issuer` signed the last certificate of `path`, and was allowed to.
    fn check_issuer(
        &self,
        path: &[&PathCertificate],
        issuer: &PathCertificate,
        is_root: bool,
    ) -> Result<(), PathError> {
        let Some((&child, above)) = path.split_last() else { return Ok(()) };
        let blame_issuer = |fault| blame(issuer, false, fault);
        check_signature(child, issuer).map_err(|fault| blame(child, above.is_empty(), fault))?;
        // A root of version 1 or 2 cannot have basic constraints.
        let is_authority = match issuer.basic_constraints {
            Some(constraints) => constraints.is_authority,
            None => is_root && !issuer.is_version_3,
        };
        if !is_authority {
            return Err(blame_issuer(PathFault::NotAuthority));
        }
        if issuer.may_sign_certificates == Some(false) {
            return Err(blame_issuer(PathFault::MayNotSignCertificates));
        }
        if let Some(fault) = issuer.fault_at(self.now) {
            return Err(blame_issuer(fault));
        }
        // All authorities below it count, also those that issued themselves.
        let below = above.len();
        match issuer.basic_constraints.and_then(|constraints| constraints.path_length) {
            Some(limit) if below > usize::try_from(limit).unwrap_or(usize::MAX) => {
                Err(blame_issuer(PathFault::PathTooLong { limit }))
            }
            _ => Ok(()),
        }
    }

    fn note(&mut self, error: PathError) {
        if self.closest.as_ref().is_none_or(|closest| closest.rank() < error.rank()) {
            self.closest = Some(error);
        }
    }
}

/// Checks what concerns a path as a whole.
fn check_path(path: &[&PathCertificate], role: PeerRole) -> Result<(), PathError> {
    for (position, certificate) in path.iter().enumerate() {
        let allows_role = certificate.extended_usage.is_none_or(|usage| {
            usage.any
                || match role {
                    PeerRole::Client => usage.client,
                    PeerRole::Server => usage.server,
                }
        });
        if !allows_role {
            return Err(blame(certificate, position == 0, PathFault::WrongUsage));
        }
    }
    let below_root: Vec<_> =
        path.iter().take(path.len().saturating_sub(1)).map(|it| (&it.policies, it.subject == it.issuer)).collect();
    if !has_required_policies(&below_root) {
        return Err(PathError::of_leaf(PathFault::NoCommonPolicy));
    }
    check_name_constraints(path).map_err(PathError::of_leaf)
}

/// Checks the alternative names of each certificate of `path` by the constraints of all above it.
fn check_name_constraints(path: &[&PathCertificate]) -> Result<(), PathFault> {
    let mut comparisons = 0;
    for (position, certificate) in path.iter().enumerate().filter(|(_, it)| it.names.value.is_some()) {
        for constraints in path.iter().skip(position + 1).filter_map(|it| it.name_constraints.as_ref()) {
            constraints.check(&certificate.names, &mut comparisons).map_err(PathFault::NameNotPermitted)?;
        }
    }
    Ok(())
}

fn blame(certificate: &PathCertificate, is_leaf: bool, fault: PathFault) -> PathError {
    PathError { fault, authority: (!is_leaf).then(|| certificate.subject_text.clone()) }
}

fn check_signature(child: &PathCertificate, issuer: &PathCertificate) -> Result<(), PathFault> {
    let key = SubjectPublicKeyInfoDer::from(issuer.public_key.as_slice());
    let key = RawPublicKeyEntity::try_from(&key).map_err(|_| PathFault::UnsupportedSignature)?;
    let algorithms = provider().signature_verification_algorithms.all;
    let named = algorithms.iter().filter(|it| it.signature_alg_id().as_ref() == child.signature_algorithm);
    for algorithm in named {
        match key.verify_signature(*algorithm, &child.signed, &child.signature) {
            Ok(()) => return Ok(()),
            // The identifier of ECDSA names no curve.
            Err(webpki::Error::UnsupportedSignatureAlgorithmForPublicKeyContext(_)) => {}
            Err(_) if has_short_key(issuer) => return Err(PathFault::UnsupportedSignature),
            Err(_) => return Err(PathFault::WrongSignature),
        }
    }
    Err(PathFault::UnsupportedSignature)
}

/// Whether the key is of RSA and shorter than what signatures are verified with.
fn has_short_key(certificate: &PathCertificate) -> bool {
    const MIN_BITS: usize = 2048;
    let Ok(parsed) = parse(&certificate.der) else { return false };
    matches!(parsed.public_key().parsed(), Ok(PublicKey::RSA(key)) if key.key_size() < MIN_BITS)
}
