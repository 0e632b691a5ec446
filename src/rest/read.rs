//! The verbs get and list.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::target::ObjectTarget;
use super::{ApiRequest, cache_error, object_bytes, strategy};
use crate::kubeapi::Status;
use crate::kubeapi::continue_token::ContinueToken;
use crate::kubeapi::json::quote_json_into;
use crate::kubeapi::list_options::{ListOptions, ListVersion, parse_resource_version};
use crate::watch_cache::{ContinuePosition, ListQuery, ListRevision, ResourceCollection, Selection, StoredList};

/// Handles the verb get: returns the object as JSON.
///
/// # Errors
/// 404, 400 for an invalid `resourceVersion`, 504 for one from the future.
pub(super) async fn get(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<Bytes, Status> {
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
            let revision = parse_resource_version(text)
                .map_err(|why| Status::bad_request(format!("invalid resource version: {why}")))?;
            collection.wait_for(revision).await.map_err(failed)?;
            collection.get(&key)
        }
    };
    Ok(object_bytes(&*stored.ok_or_else(|| target.not_found())?))
}

/// Handles the verb list, of one or all namespaces, in pages if the client sets a limit.
///
/// # Errors
/// 400 and 422 for invalid options, 410 for a version that is too old, 504 for one from the future.
pub(super) async fn list(
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<Bytes, Status> {
    let options = ListOptions::parse(request.query)?;
    let query = list_query(collection, target, &options)?;
    let list = collection.list(&query).await.map_err(|error| cache_error(target, error))?;
    Ok(list_bytes(target, &list))
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
    let own_fields = strategy::selectable_fields(target.resource);
    let is_selectable = |field: &str| {
        field == "metadata.name"
            || (field == "metadata.namespace" && target.resource.is_namespaced)
            || own_fields.contains(&field)
    };
    options.check_fields(is_selectable, !own_fields.is_empty())?;
    let declared = collection.declared_fields();
    Selection::new(options.label_selector.clone(), &options.field_selector, declared)
        .map_err(|error| cache_error(target, error))
}

/// A list as JSON.
pub(super) fn list_bytes(target: &ObjectTarget<'_>, list: &StoredList) -> Bytes {
    let mut head = String::from("{\"kind\":");
    quote_json_into(&mut head, target.resource.list_kind.unwrap_or_default());
    head.push_str(",\"apiVersion\":");
    quote_json_into(&mut head, &target.api_version());
    head.push_str(&format!(",\"metadata\":{{\"resourceVersion\":\"{}\"", list.revision));
    if let Some(next) = &list.next {
        head.push_str(",\"continue\":");
        quote_json_into(&mut head, &ContinueToken { revision: next.revision, start: next.start.clone() }.encode());
    }
    if let Some(remaining) = list.remaining.filter(|remaining| *remaining > 0) {
        head.push_str(&format!(",\"remainingItemCount\":{remaining}"));
    }
    head.push_str("},\"items\":[");
    let objects: usize = list.objects.iter().map(|object| object.bytes().len() + 48).sum();
    let mut body = BytesMut::with_capacity(head.len() + objects + 4);
    body.put_slice(head.as_bytes());
    for (index, object) in list.objects.iter().enumerate() {
        if index > 0 {
            body.put_u8(b',');
        }
        let [before, version, after] = object.versioned();
        body.put_slice(&before);
        body.put_slice(&version);
        body.put_slice(after.trim_ascii_end());
    }
    body.put_slice(b"]}\n");
    body.freeze()
}
