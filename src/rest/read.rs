//! The verbs get and list.

use kubeapi::Status;
use kubeapi::continue_token::ContinueToken;
use kubeapi::list_options::{ListOptions, ListVersion, parse_resource_version};
use store::watch_cache::{ContinuePosition, ListQuery, ListRevision, ResourceCollection, Selection};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::representation::{ReplyContent, ReplyObject};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use crate::kinds::selectable_fields::resolve_label;

/// Handles the verb get: returns the object.
///
/// # Errors
/// 404, 500 without a reason for an invalid `resourceVersion`, as in Kubernetes, 504 for one from the future.
pub(super) async fn get(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<ReplyContent, Status> {
    let key = target.key(collection)?;
    let version = request.query.get("resourceVersion").unwrap_or_default();
    let failed = |error| cache_error(target, error);
    let stored = match &*version {
        "" => collection.get_latest(&key).await.map_err(failed)?,
        "0" => {
            collection.ensure_loaded().await.map_err(failed)?;
            collection.get(&key)
        }
        text => {
            let revision = parse_resource_version(text).map_err(|why| Status::new(500, "", why))?;
            collection.wait_for(revision).await.map_err(failed)?;
            collection.get(&key)
        }
    };
    Ok(ReplyContent::Object(ReplyObject::stored(stored.ok_or_else(|| target.not_found())?)))
}

/// Handles the verb list, of one or all namespaces, in pages if the client sets a limit.
///
/// # Errors
/// 400 and 422 for invalid options, 410 for a version that is too old, 504 for one from the future.
pub(super) async fn list(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<ReplyContent, Status> {
    let options = ListOptions::parse(request.query)?;
    let query = list_query(collection, target, &options)?;
    let list = api.converter.list(&target.kind, collection, &query, |error| cache_error(target, error)).await?;
    Ok(ReplyContent::List(list))
}

/// The query of a list, for `list` and `deletecollection`.
pub(super) fn list_query(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    options: &ListOptions,
) -> Result<ListQuery, Status> {
    let selection = selection(collection, target, options)?;
    let continues = match &*options.continue_token {
        "" => None,
        text => {
            let token = ContinueToken::decode(text)?;
            options.check_continue()?;
            Some(ContinuePosition { revision: token.revision, start: token.start })
        }
    };
    let version = match options.list_version()? {
        ListVersion::Latest => ListRevision::Latest,
        ListVersion::Any => ListRevision::Any,
        ListVersion::NotOlderThan(revision) => ListRevision::NotOlderThan(revision),
        ListVersion::Exact(revision) => ListRevision::Exact(revision),
    };
    Ok(ListQuery {
        namespace: (!target.namespace.is_empty()).then(|| target.namespace.to_owned()),
        selection,
        version,
        limit: usize::try_from(options.limit).unwrap_or(usize::MAX),
        continues,
    })
}

/// The selectors of a list or watch.
pub(super) fn selection(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    options: &ListOptions,
) -> Result<Selection, Status> {
    let mut fields = options.field_selector.clone();
    for term in &mut fields.terms {
        term.field = resolve_label(&target.kind, &term.field).map_err(Status::bad_request)?;
    }
    let declared = collection.declared_fields();
    Selection::new(options.label_selector.clone(), &fields, declared).map_err(|error| cache_error(target, error))
}
