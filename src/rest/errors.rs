//! Errors of the watch cache and the store as `Status`.

use kubeapi::Status;
use kubeapi::continue_token::{ContinueToken, expired_list, expired_page};
use store::watch_cache::Error;

use super::target::ObjectTarget;

/// The Status of an error about an object of `target`.
pub(super) fn cache_error(target: &ObjectTarget<'_>, error: Error) -> Status {
    match error {
        Error::Expired { .. } | Error::ListTooLarge => Status::expired(error.to_string()),
        Error::ListExpired => expired_list(),
        Error::ContinueExpired { next } => expired_page(&ContinueToken { revision: next.revision, start: next.start }),
        Error::TooLargeResourceVersion { requested, current } => Status::resource_version_too_large(requested, current),
        Error::InvalidContinue => Status::bad_request("continue key is not valid"),
        Error::Conflict { current: Some(_) } => modified(target, &target.name),
        Error::Conflict { current: None } => target.not_found(),
        // Callers with conditions try again; this is for those that gave up.
        Error::ConditionFailed(_) => Status::service_unavailable(error.to_string()),
        Error::UnsupportedField(_) | Error::InvalidKey(_) => Status::bad_request(error.to_string()),
        Error::Store(error) => store_status(&error),
    }
}

/// 503 for a controller that cannot read or write objects.
pub(crate) fn unavailable(error: &Error) -> Status {
    Status::service_unavailable(error.to_string())
}

/// The result of a write that is tried again if another writer was faster: of a controller at the event of that change.
///
/// # Errors
/// Errors of the store.
pub(crate) fn finish_write<T>(written: Result<T, Error>) -> Result<(), Status> {
    match written {
        Ok(_) | Err(Error::Conflict { .. }) => Ok(()),
        Err(error) => Err(unavailable(&error)),
    }
}

/// 409: another writer was faster. Kubernetes' text (`pkg/registry/generic/registry/store.go`,
/// `OptimisticLockErrorMsg`).
pub(super) fn modified(target: &ObjectTarget<'_>, name: &str) -> Status {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    Status::conflict(&target.kind.resource.group, &target.kind.resource.plural, name, why)
}

/// 413 for a value that is too large, else 503. Without a `Retry-After` header, which client-go would obey silently.
fn store_status(error: &store::Error) -> Status {
    match error {
        store::Error::TooLarge { limit, .. } => Status::request_entity_too_large(format_args!("limit is {limit}")),
        error => Status::service_unavailable(format!("the store cannot serve the request: {error}")),
    }
}
