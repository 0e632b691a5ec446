//! The read verbs: get, list, and the start of a watch.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use super::api_errors;
use super::object;
use super::options::{ExampleListOptions, ExampleListVersion};
use super::representation::Representation;
use super::request::{ExampleRequest, ExampleTarget};
use super::store::RevisionError;
use super::watch::ObjectWatch;
use crate::kubeapi::Status;

/// Handles the verb get: returns one object.
pub(super) fn get(call: &ExampleRequest<'_>, target: &ExampleTarget, name: &str) -> Result<Value, Status> {
    let view = Representation::negotiate(call.headers, &call.query, false)?;
    if !matches!(call.query.get("resourceVersion"), "" | "0") {
        let asked = super::options::parse_version(call.query.get("resourceVersion"))?;
        let current = *call.api.store.latest().borrow();
        if asked > current {
            return Err(api_errors::resource_version_too_large(asked, current));
        }
    }
    let found = call.api.store.get(&target.key(name));
    let found = found.ok_or_else(|| api_errors::not_found(target.resource, name))?;
    Ok(view.render(target.resource, &found))
}

/// `list` of one or all namespaces, in pages if requested.
pub(super) fn list(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    options: &ExampleListOptions,
) -> Result<Value, Status> {
    let view = Representation::negotiate(call.headers, &call.query, true)?;
    let page = match options.continue_token.as_str() {
        "" => None,
        token => Some(ExampleContinueToken::decode(token)?),
    };
    let current = *call.api.store.latest().borrow();
    let at = match (&page, options.version) {
        (Some(page), _) => Some(page.revision),
        (None, ExampleListVersion::Latest | ExampleListVersion::Any) => None,
        (None, ExampleListVersion::NotOlderThan(revision)) if revision > current => {
            return Err(api_errors::resource_version_too_large(revision, current));
        }
        (None, ExampleListVersion::NotOlderThan(_)) => None,
        (None, ExampleListVersion::Exact(revision)) => Some(revision),
    };
    let snapshot = call.api.store.list(target.resource.plural, target.namespace.as_deref(), at);
    let snapshot = snapshot.map_err(|out_of_reach| match out_of_reach {
        RevisionError::TooOld { .. } if page.is_some() => Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new \
             list without the continue parameter.",
        ),
        RevisionError::TooOld { .. } => Status::expired("The resourceVersion for the provided list is too old."),
        RevisionError::Future { current } => api_errors::resource_version_too_large(at.unwrap_or(current), current),
    })?;
    let mut objects = snapshot.objects;
    if let Some(page) = &page {
        let start =
            objects.partition_point(|one| (object::namespace(one), object::name(one)) <= (&page.namespace, &page.name));
        objects.drain(..start);
    }
    objects.retain(|one| options.selector.matches(one));
    let mut metadata = json!({"resourceVersion": snapshot.revision.to_string()});
    if options.limit > 0 && objects.len() > options.limit {
        let remaining = objects.len() - options.limit;
        objects.truncate(options.limit);
        if let Some(last) = objects.last() {
            metadata["continue"] = json!(ExampleContinueToken::after(snapshot.revision, last).encode());
        }
        if options.selector.is_empty() {
            metadata["remainingItemCount"] = json!(remaining);
        }
    }
    Ok(view.render_list(target.resource, &objects, &metadata))
}

/// `watch`: starts the event stream.
pub(super) fn watch(
    call: &ExampleRequest<'_>,
    target: &ExampleTarget,
    options: ExampleListOptions,
) -> Result<ObjectWatch, Status> {
    let view = Representation::negotiate(call.headers, &call.query, false)?;
    Ok(ObjectWatch::start(
        call.api.store.clone(),
        target.resource,
        target.namespace.clone(),
        options,
        view,
        call.api.bookmark_every,
        call.drain.clone(),
    ))
}

/// The continue token: the next page begins after this object, at this revision.
struct ExampleContinueToken {
    revision: u64,
    namespace: String,
    name: String,
}

impl ExampleContinueToken {
    fn after(revision: u64, last: &Value) -> ExampleContinueToken {
        ExampleContinueToken { revision, namespace: object::namespace(last).into(), name: object::name(last).into() }
    }

    /// Encodes the token; opaque to clients, in Kubernetes' format.
    fn encode(&self) -> String {
        let start = format!("{}/{}\0", self.namespace, self.name);
        let token = json!({"v": "meta.k8s.io/v1", "rv": self.revision, "start": start});
        URL_SAFE_NO_PAD.encode(token.to_string())
    }

    fn decode(token: &str) -> Result<ExampleContinueToken, Status> {
        let wrong = |why: &str| Status::bad_request(format!("continue key is not valid: {why}"));
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|error| wrong(&error.to_string()))?;
        let token: Value = serde_json::from_slice(&bytes).map_err(|error| wrong(&error.to_string()))?;
        if token["v"] != "meta.k8s.io/v1" {
            return Err(wrong("server does not recognize this encoded version"));
        }
        let start = token["start"].as_str().and_then(|start| start.strip_suffix('\0')?.split_once('/'));
        let (Some(revision), Some((namespace, name))) = (token["rv"].as_u64(), start) else {
            return Err(wrong("incorrect encoded start resourceVersion (version meta.k8s.io/v1)"));
        };
        Ok(ExampleContinueToken { revision, namespace: namespace.into(), name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continue_token_round_trips() {
        let token = ExampleContinueToken::after(7, &json!({"metadata": {"name": "b", "namespace": "a"}})).encode();
        let page = ExampleContinueToken::decode(&token).unwrap();
        assert_eq!((page.revision, page.namespace.as_str(), page.name.as_str()), (7, "a", "b"));
        for wrong in ["", "x!", "e30", &URL_SAFE_NO_PAD.encode(r#"{"v":"meta.k8s.io/v1","rv":-1,"start":"a"}"#)] {
            assert_eq!(ExampleContinueToken::decode(wrong).err().map(|status| status.code), Some(400), "{wrong}");
        }
    }
}
