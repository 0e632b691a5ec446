//! One object as a document.

use std::time::SystemTime;

use kubeapi::Status;
use kubeapi::json::JsonIndenter;
use kubeapi::protobuf::encode::encode_object;
use kubeapi::yaml::write_yaml_into;
use serde_json::Value;

use super::negotiate::{ObjectTransform, OutputEncoding, OutputMediaType};
use super::reply_object::ReplyObject;
use super::table::{table_head, write_partial_metadata, write_row};
use crate::resources::ServedKind;
use crate::resources::builtin::builtin_kinds;

/// An object in a representation, as a whole document. A Table has its columns if `with_columns` says so.
///
/// # Errors
/// 500 for an object that cannot be read or encoded.
pub(super) fn object_document(
    kind: &ServedKind,
    object: &ReplyObject,
    media_type: OutputMediaType,
    with_columns: bool,
) -> Result<Vec<u8>, Status> {
    object.check_readable(kind)?;
    let mut json = Vec::with_capacity(4096);
    write_document_json(&mut json, kind, object, media_type.transform, with_columns);
    encode_json(kind, json, media_type)
}

/// Appends an object as a JSON document, without a newline at its end.
pub(super) fn write_document_json(
    out: &mut Vec<u8>,
    kind: &ServedKind,
    object: &ReplyObject,
    transform: ObjectTransform,
    with_columns: bool,
) {
    let now = SystemTime::now();
    let ObjectTransform::Table(api_version, _) = transform else {
        let _ = write_object(out, kind, object, transform, now);
        return;
    };
    let metadata = match &*object.resource_version() {
        "" => "{}".to_owned(),
        version => format!("{{\"resourceVersion\":\"{version}\"}}"),
    };
    out.extend_from_slice(table_head(kind, api_version, &metadata, with_columns).as_bytes());
    let _ = write_object(out, kind, object, transform, now);
    out.extend_from_slice(b"]}");
}

/// Appends an object as JSON, as an item of a list: with its type if that is a custom one. A Table has rows. Returns the size
/// of what its schemas made of a stored object, of which the item may have a small part.
pub(super) fn write_item(
    out: &mut Vec<u8>,
    kind: &ServedKind,
    object: &ReplyObject,
    transform: ObjectTransform,
    now: SystemTime,
) -> usize {
    match transform {
        ObjectTransform::Unchanged if kind.resource.custom.is_none() => {
            object.in_version_of(kind).write_untyped_json(out);
            0
        }
        _ => write_object(out, kind, object, transform, now),
    }
}

/// Appends an object as JSON, or as the row of a Table. Returns what [`write_item`] does.
fn write_object(
    out: &mut Vec<u8>,
    kind: &ServedKind,
    object: &ReplyObject,
    transform: ObjectTransform,
    now: SystemTime,
) -> usize {
    let object = &object.in_version_of(kind);
    match transform {
        ObjectTransform::Unchanged => object.write_json(out),
        ObjectTransform::PartialMetadata(api_version) => write_partial_metadata(out, object, api_version),
        ObjectTransform::Table(api_version, row_object) => {
            write_row(out, kind, object, (api_version, row_object), now);
        }
    }
    object.converted_size()
}

/// Converts the JSON of an object into the encoding.
fn encode_json(kind: &ServedKind, mut json: Vec<u8>, media_type: OutputMediaType) -> Result<Vec<u8>, Status> {
    match media_type.encoding {
        OutputEncoding::Json => {
            json.push(b'\n');
            Ok(json)
        }
        OutputEncoding::PrettyJson => {
            let mut out = Vec::with_capacity(2 * json.len());
            JsonIndenter::default().indent(&json, &mut out);
            Ok(out)
        }
        OutputEncoding::Yaml => {
            let mut out = String::with_capacity(json.len());
            write_yaml_into(&mut out, &parse_json(&json)?, 0);
            Ok(out.into_bytes())
        }
        OutputEncoding::Protobuf => {
            let kinds = builtin_kinds();
            let message = match media_type.transform {
                ObjectTransform::Unchanged => kind.version.message(),
                _ => kinds.meta_message("PartialObjectMetadata"),
            };
            let message = message.ok_or_else(|| Status::internal_error("PartialObjectMetadata has no message type"))?;
            encode_object(&kinds.messages, message, &parse_json(&json)?).map_err(Status::internal_error)
        }
    }
}

/// Parses JSON that this server wrote.
///
/// # Errors
/// 500 for a value of the store that is no JSON.
pub(super) fn parse_json(json: &[u8]) -> Result<Value, Status> {
    serde_json::from_slice(json).map_err(|error| Status::internal_error(format_args!("object cannot be read: {error}")))
}
