//! Representations: the encodings in which objects are sent, and what they are transformed to
//! (`k8s.io/apiserver/pkg/endpoints/handlers/response.go` and `responsewriters`).
//!
//! Everything is JSON first, for the most part bytes of the store, and converted from that.

mod body;
#[cfg(test)]
mod custom_tests;
mod document;
mod event;
mod list;
mod negotiate;
mod reply_object;
mod served_object;
mod table;
#[cfg(test)]
mod tests;

use http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, VARY};
use http::{HeaderValue, Response, StatusCode};

pub(super) use self::event::{EventEncoder, EventViewCache};
pub(super) use self::negotiate::OutputMediaType;
pub(super) use self::reply_object::ReplyObject;

use kubeapi::{Status, StatusDetails, encode};
use store::watch_cache::{ResourceCollection, StoredList};

use self::body::FramedBody;
use self::document::object_document;
use self::list::list_frames;
use self::negotiate::OutputEncoding;
use crate::compute::run_sized;
use crate::conversion::{ObjectConverter, has_webhook};
use crate::message::Body;
use crate::resources::ServedKind;

/// An object, a list or a Status, before it is encoded.
pub(super) enum ReplyContent {
    /// One object.
    Object(ReplyObject),
    /// A list or a page of it.
    List(StoredList),
    /// The outcome of a deletion. It is not transformed.
    Status(Status),
}

/// What a verb is answered with.
pub(super) struct VerbReply {
    pub(super) code: StatusCode,
    pub(super) content: ReplyContent,
}

impl VerbReply {
    /// 200.
    pub(super) fn ok(content: ReplyContent) -> VerbReply {
        VerbReply { code: StatusCode::OK, content }
    }

    /// 201 of a subresource that answers with a Status.
    pub(super) fn created() -> VerbReply {
        let mut status = Status::success(StatusDetails::default());
        (status.code, status.details) = (201, None);
        VerbReply { code: StatusCode::CREATED, content: ReplyContent::Status(status) }
    }
}

impl ReplyContent {
    /// Converts what a request is answered with to the version of a kind. A deletion's outcome stays.
    ///
    /// # Errors
    /// 500 with upstream's text. A list fails as a whole.
    pub(super) async fn convert(
        self,
        converter: &ObjectConverter,
        kind: &ServedKind,
        collection: &ResourceCollection,
    ) -> Result<ReplyContent, Status> {
        if !has_webhook(kind) {
            return Ok(self);
        }
        Ok(match self {
            ReplyContent::List(mut list) => {
                converter.convert_all(kind, collection, &mut list.objects, true).await?;
                ReplyContent::List(list)
            }
            ReplyContent::Object(ReplyObject::Stored(stored, revision)) => {
                let converted = converter.convert(kind, collection, stored).await?;
                ReplyContent::Object(ReplyObject::Stored(converted, revision))
            }
            ReplyContent::Object(ReplyObject::Unstored(value)) => {
                let value = match kind.version.custom() {
                    Some(version) => converter.convert_value(kind, version, value).await?,
                    None => value,
                };
                ReplyContent::Object(ReplyObject::Unstored(value))
            }
            status @ ReplyContent::Status(_) => status,
        })
    }
}

/// The response of a kind in the representation that was negotiated.
///
/// # Errors
/// 500 for an object that cannot be read or encoded.
pub(super) async fn respond(
    kind: &ServedKind,
    media_type: OutputMediaType,
    code: StatusCode,
    content: ReplyContent,
) -> Result<Response<Body>, Status> {
    let gzip = media_type.accepts_gzip;
    let (body, is_gzipped) = match content {
        ReplyContent::Status(status) => (encode(&status, media_type.encoding.for_status()).into(), false),
        ReplyContent::Object(object) => {
            let size = object.work(kind);
            let kind = kind.clone();
            let is_indented = media_type.encoding == OutputEncoding::PrettyJson;
            let encoding = if is_indented { OutputEncoding::Json } else { media_type.encoding };
            let encoded = OutputMediaType { encoding, ..media_type };
            let document = run_sized(size, move || object_document(&kind, &object, encoded, true)).await??;
            match is_indented {
                true => FramedBody::indented(document.into()).into_body(gzip).await?,
                false => FramedBody::from_document(document.into(), gzip).await?,
            }
        }
        ReplyContent::List(list) => FramedBody::new(list_frames(kind, list, media_type).await?).into_body(gzip).await?,
    };
    let mut response = Response::new(body);
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, media_type.encoding.for_status().content_type());
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if is_gzipped {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    Ok(response)
}
