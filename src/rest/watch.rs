//! The verb watch.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use kubeapi::Status;
use kubeapi::list_options::{ListOptions, VersionMatch};
use store::watch_cache::{
    Error, Notifier, ResourceCollection, Selection, WatchCursor, WatchEvent, WatchQuery, WatchStart,
};

use super::api_server::ApiServer;
use super::errors::cache_error;
use super::read;
use super::representation::{EventEncoder, OutputMediaType};
use super::request::ApiRequest;
use super::target::ObjectTarget;
use crate::compute::ComputeContext;
use crate::conversion::{ObjectConverter, has_webhook};
use crate::message::{Body, BodyError};
use crate::process::{Drain, Published, ShutdownPhase};
use crate::resources::catalog::ResourceCatalog;
use crate::resources::{ResourceVersion, ServedKind};

/// Size in bytes up to which initial events are sent together.
const MAX_FRAME_BYTES: usize = 64 << 10;

/// Starts the event stream.
///
/// # Errors
/// 400 and 422 for invalid options. A version that is too old or from the future is an event of type ERROR, as in
/// Kubernetes.
pub(super) async fn watch(
    api: &ApiServer,
    collection: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
    (media_type, notifier): (OutputMediaType, &Notifier),
) -> Result<Response<Body>, Status> {
    let mut options = ListOptions::parse(request.query)?;
    if !request.info.name.is_empty() {
        options.select_name(&request.info.name)?;
    }
    let mut start = watch_start(&options)?;
    if start == WatchStart::After(0) {
        // Without initial events, a watch from any version begins now.
        start =
            WatchStart::After(collection.wait_for_acknowledged().await.map_err(|error| cache_error(target, error))?);
    }
    let selection = read::selection(collection, target, &options)?;
    let identity = selection.without_content().filter(|_| has_webhook(&target.kind));
    let converted_selection = identity.is_some().then(|| selection.clone());
    let query = WatchQuery {
        namespace: (!target.namespace.is_empty()).then(|| target.namespace.to_owned()),
        selection: identity.unwrap_or(selection),
        start,
        sends_bookmarks: options.allows_bookmarks,
        timeout: Some(options.timeout.unwrap_or_else(|| default_timeout(api.settings.min_request_timeout))),
    };
    let cursor = match collection.watch(query, notifier).await {
        Ok(cursor) => Ok(cursor),
        Err(error @ (Error::Expired { .. } | Error::TooLargeResourceVersion { .. })) => Err(cache_error(target, error)),
        Err(error) => return Err(cache_error(target, error)),
    };
    // As in a kube-apiserver, which asks its store for the latest version first.
    let asks_for_latest = options.resource_version.is_empty();
    let cursor = match cursor.map_err(Some) {
        Ok(_) if options.is_timed_out => Err(asks_for_latest.then(deadline_exceeded)),
        cursor => cursor,
    };
    let encoder = EventEncoder::new(target.kind.clone(), media_type, api.event_views.clone());
    let content_type = encoder.content_type();
    let served = target.kind.resource.custom.as_ref().map(|_| ServedCrd::new(api, target));
    let conversion = has_webhook(&target.kind).then(|| EventConversion {
        converter: api.converter.clone(),
        kind: target.kind.clone(),
        collection: collection.clone(),
        selection: converted_selection,
    });
    let body = WatchBody { cursor, encoder, conversion, served, drain: api.drain.clone() };
    let context = ComputeContext::current().for_body();
    let events = stream::unfold((body, context), |(mut body, context)| async move {
        let frame = context.scope(body.next_frame()).await?;
        Some((Ok::<_, BodyError>(Frame::data(frame)), (body, context)))
    });
    let mut response = Response::new(Body::stream(StreamBody::new(Box::pin(events))));
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(response)
}

/// Timeout of a watch without one: at most twice the minimum, spread so that watches do not end together
/// (`pkg/endpoints/handlers/get.go`).
fn default_timeout(least: Duration) -> Duration {
    least.mul_f64(1.0 + fastrand::f64())
}

/// The error of a watch whose time is over before it begins, with Go's text.
fn deadline_exceeded() -> Status {
    Status::new(500, "InternalError", "context deadline exceeded")
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

/// The event stream.
struct WatchBody {
    /// An error is sent once, as an event of type ERROR.
    cursor: Result<WatchCursor, Option<Status>>,
    encoder: EventEncoder,
    /// Of a custom resource with a conversion webhook.
    conversion: Option<EventConversion>,
    /// Of a custom resource.
    served: Option<ServedCrd>,
    drain: Drain,
}

/// How the objects of events are converted before they are encoded.
struct EventConversion {
    converter: ObjectConverter,
    kind: ServedKind,
    collection: ResourceCollection,
    /// Which converted objects are sent, if that depends on their content.
    selection: Option<Selection>,
}

/// The CRD by which a watch began: the watch ends when it changes, so that clients see objects by the new one.
struct ServedCrd {
    catalog: Published<ResourceCatalog>,
    kind: ServedKind,
}

impl ServedCrd {
    fn new(api: &ApiServer, target: &ObjectTarget<'_>) -> ServedCrd {
        ServedCrd { catalog: api.catalog.clone(), kind: target.kind.clone() }
    }

    fn is_current(&self) -> bool {
        let (resource, version) = (&self.kind.resource, &self.kind.version);
        let catalog = self.catalog.load();
        let entry = catalog.find(&resource.group, &version.version, &resource.plural);
        let custom = |version: &ResourceVersion| version.custom().cloned();
        let (now, before) = (entry.and_then(|entry| custom(&entry.kind.version)), custom(version));
        now.zip(before).is_some_and(|(now, before)| Arc::ptr_eq(&now, &before))
    }

    /// Waits until the CRD is another one.
    async fn changed(&mut self) {
        while self.is_current() {
            self.catalog.changed().await;
        }
    }
}

/// Waits until the CRD of a custom resource is another one; for ever for a built-in one.
async fn crd_changed(served: &mut Option<ServedCrd>) {
    match served {
        Some(served) => served.changed().await,
        None => std::future::pending().await,
    }
}

impl WatchBody {
    /// The bytes of the next event, or of several initial ones.
    async fn next_frame(&mut self) -> Option<Bytes> {
        loop {
            let frame = self.try_next_frame().await?;
            if !frame.is_empty() {
                return Some(frame);
            }
        }
    }

    /// As [`next_frame`](WatchBody::next_frame); empty if the events are not selected.
    async fn try_next_frame(&mut self) -> Option<Bytes> {
        let cursor = match &mut self.cursor {
            Ok(cursor) => cursor,
            Err(status) => return status.take().map(|status| self.encoder.encode_error(&status)),
        };
        let event = tokio::select! {
            biased;
            () = self.drain.wait_for(ShutdownPhase::Draining) => return None,
            () = crd_changed(&mut self.served) => return None,
            event = cursor.next() => event,
        };
        let frame = match event {
            Ok(None) => return None,
            Ok(Some(event)) => match &self.conversion {
                None => encode_with_initial(cursor, &mut self.encoder, event).await,
                Some(conversion) => tokio::select! {
                    biased;
                    // Boxed: other watches would pay for its size.
                    frame = Box::pin(encode_converted(cursor, &mut self.encoder, conversion, event)) => frame,
                    // A webhook may take long.
                    () = self.drain.wait_for(ShutdownPhase::Draining) => return None,
                    () = crd_changed(&mut self.served) => return None,
                },
            },
            Err(error) => Err(Status::expired(error.to_string())),
        };
        Some(frame.unwrap_or_else(|status| {
            self.cursor = Err(None);
            self.encoder.encode_error(&status)
        }))
    }
}

/// As [`encode_with_initial`], of objects that a webhook converts: those of several events by one call. Empty if none of
/// them is selected.
async fn encode_converted(
    cursor: &mut WatchCursor,
    encoder: &mut EventEncoder,
    conversion: &EventConversion,
    event: WatchEvent,
) -> Result<Bytes, Status> {
    let size = |event: &WatchEvent| event.object.as_ref().map_or(0, |object| object.bytes().len());
    let mut read = size(&event);
    let mut events = vec![event];
    while read < MAX_FRAME_BYTES
        && let Some(event) = cursor.next_initial_at_hand()
    {
        read += size(&event);
        events.push(event);
    }
    let EventConversion { converter, kind, collection, selection } = conversion;
    match selection {
        Some(selection) => events = converter.select_events(kind, collection, selection, events).await?,
        None => converter.convert_events(kind, collection, &mut events).await?,
    }
    let mut frames = BytesMut::new();
    for event in events {
        frames.extend_from_slice(&encoder.encode(event).await?);
    }
    Ok(frames.freeze())
}

/// Encodes an event, and with an initial one those that follow it, up to the size of a frame.
async fn encode_with_initial(
    cursor: &mut WatchCursor,
    encoder: &mut EventEncoder,
    event: WatchEvent,
) -> Result<Bytes, Status> {
    let mut read = event.object.as_ref().map_or(0, |object| object.bytes().len());
    let first = encoder.encode(event).await?;
    let mut frames = BytesMut::new();
    while read.max(frames.len()) < MAX_FRAME_BYTES
        && let Some(event) = cursor.next_initial_at_hand()
    {
        read += event.object.as_ref().map_or(0, |object| object.bytes().len());
        if frames.is_empty() {
            frames.extend_from_slice(&first);
        }
        frames.extend_from_slice(&encoder.encode(event).await?);
    }
    Ok(if frames.is_empty() { first } else { frames.freeze() })
}
