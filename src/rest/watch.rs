//! The verb watch.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::stream;
use http::Response;
use http_body::Frame;
use http_body_util::StreamBody;

use super::target::ObjectTarget;
use super::{ApiRequest, ApiServer, cache_error, read, set_headers};
use crate::kubeapi::json::quote_json_into;
use crate::kubeapi::list_options::{ListOptions, VersionMatch};
use crate::kubeapi::{Status, StatusEncoding, encode};
use crate::message::{Body, BodyError};
use crate::process::{Drain, ShutdownPhase};
use crate::watch_cache::{
    Notifier, ResourceCollection, WatchCursor, WatchEvent, WatchEventKind, WatchQuery, WatchStart,
};

/// Starts the event stream.
///
/// # Errors
/// 400 and 422 for invalid options, 504 for a version from the future. A version that is too old is an event of type
/// ERROR, as in Kubernetes.
pub(super) async fn watch(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    notifier: &Notifier,
) -> Result<Response<Body>, Status> {
    let options = ListOptions::parse(request.query)?;
    let query = WatchQuery {
        namespace: (!target.namespace.is_empty()).then(|| target.namespace.to_owned()),
        selection: read::selection(collection, target, &options)?,
        start: watch_start(&options)?,
        sends_bookmarks: options.allows_bookmarks,
        timeout: Some(options.timeout.unwrap_or_else(|| default_timeout(api.settings.min_request_timeout))),
    };
    let cursor = match collection.watch(query, notifier).await {
        Ok(cursor) => Ok(cursor),
        Err(error @ crate::watch_cache::Error::Expired { .. }) => Err(cache_error(target, error)),
        Err(error) => return Err(cache_error(target, error)),
    };
    let body = WatchBody { cursor: cursor.map_err(Some), type_fields: type_fields(target), drain: api.drain.clone() };
    let events = stream::unfold(body, |mut body| async move {
        let line = body.next_line().await?;
        Some((Ok::<_, BodyError>(Frame::data(line)), body))
    });
    let mut response = Response::new(Body::stream(StreamBody::new(Box::pin(events))));
    set_headers(response.headers_mut());
    Ok(response)
}

/// Timeout of a watch without one: at most twice the minimum, spread so that watches do not end together
/// (`pkg/endpoints/handlers/get.go`).
fn default_timeout(least: Duration) -> Duration {
    least.mul_f64(1.0 + fastrand::f64())
}

/// Where the watch begins: the table of KEP-3157 and `GetWatchOptions`.
fn watch_start(options: &ListOptions) -> Result<WatchStart, Status> {
    let revision = options.watch_version()?;
    let asks_for_initial = options.sends_initial_events == Some(true);
    let marks_end = asks_for_initial && options.allows_bookmarks;
    Ok(match &*options.resource_version {
        _ if options.sends_initial_events == Some(false) => WatchStart::After(revision),
        "" => WatchStart::Latest { marks_end },
        "0" => WatchStart::NotOlderThan { revision: 0, marks_end },
        _ if asks_for_initial && options.version_match == Some(VersionMatch::NotOlderThan) => {
            WatchStart::NotOlderThan { revision, marks_end }
        }
        _ => WatchStart::After(revision),
    })
}

/// The event stream: one JSON document a line.
struct WatchBody {
    /// An error is sent once, as an event of type ERROR.
    cursor: Result<WatchCursor, Option<Status>>,
    /// Kind and apiVersion of each event's object, such as `"kind":"ConfigMap","apiVersion":"v1"`.
    type_fields: String,
    drain: Drain,
}

impl WatchBody {
    async fn next_line(&mut self) -> Option<Bytes> {
        let cursor = match &mut self.cursor {
            Ok(cursor) => cursor,
            Err(status) => return status.take().map(|status| error_line(&status)),
        };
        let event = tokio::select! {
            biased;
            () = self.drain.wait_for(ShutdownPhase::Draining) => return None,
            event = cursor.next() => event,
        };
        match event {
            Ok(event) => event.map(|event| event_line(&event, &self.type_fields)),
            Err(error) => {
                self.cursor = Err(None);
                Some(error_line(&Status::expired(error.to_string())))
            }
        }
    }
}

fn type_fields(target: &ObjectTarget<'_>) -> String {
    let mut text = String::from("\"kind\":");
    quote_json_into(&mut text, target.resource.kind);
    text.push_str(",\"apiVersion\":");
    quote_json_into(&mut text, &target.api_version());
    text
}

fn event_line(event: &WatchEvent, type_fields: &str) -> Bytes {
    let kind = match event.kind {
        WatchEventKind::Added => "ADDED",
        WatchEventKind::Modified => "MODIFIED",
        WatchEventKind::Deleted => "DELETED",
        WatchEventKind::Bookmark | WatchEventKind::InitialEventsEnd => "BOOKMARK",
    };
    let Some(object) = &event.object else {
        let annotations = match event.kind {
            WatchEventKind::InitialEventsEnd => ",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}",
            _ => "",
        };
        let revision = event.revision;
        return format!(
            "{{\"type\":\"{kind}\",\"object\":{{{type_fields},\"metadata\":{{\"resourceVersion\":\"{revision}\"\
             {annotations}}}}}}}\n"
        )
        .into();
    };
    let [before, version, after] = object.versioned_as(event.revision);
    let mut line = BytesMut::with_capacity(before.len() + version.len() + after.len() + 40);
    line.put_slice(b"{\"type\":\"");
    line.put_slice(kind.as_bytes());
    line.put_slice(b"\",\"object\":");
    line.put_slice(&before);
    line.put_slice(&version);
    line.put_slice(after.trim_ascii_end());
    line.put_slice(b"}\n");
    line.freeze()
}

fn error_line(status: &Status) -> Bytes {
    let status = encode(status, StatusEncoding::Json);
    [&b"{\"type\":\"ERROR\",\"object\":"[..], status.trim_ascii_end(), b"}\n"].concat().into()
}
