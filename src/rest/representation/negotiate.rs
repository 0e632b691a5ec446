//! Negotiation of the representation by `Accept` (`k8s.io/apiserver/pkg/endpoints/handlers/negotiation`).

use http::HeaderMap;
use http::header::ACCEPT;
use kubeapi::field_error::FieldError;
use kubeapi::{Query, Status, StatusDetails, StatusEncoding};

use crate::message::negotiate::{MediaRange, accepts_gzip, is_pretty_print, parse_accept};
use crate::resources::ServedKind;

/// Encoding of an object, list or event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rest) enum OutputEncoding {
    Json,
    /// JSON with indentation.
    PrettyJson,
    Yaml,
    Protobuf,
}

/// What is sent instead of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rest) enum ObjectTransform {
    /// The object itself.
    Unchanged,
    /// A `PartialObjectMetadata` of this API version.
    PartialMetadata(&'static str),
    /// A `Table` of this API version with a row for the object.
    Table(&'static str, RowObject),
}

/// The object in a row of a Table (`metav1.IncludeObjectPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rest) enum RowObject {
    Absent,
    Metadata,
    Complete,
}

/// The negotiated representation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::rest) struct OutputMediaType {
    pub(super) encoding: OutputEncoding,
    pub(super) transform: ObjectTransform,
    /// Whether the client accepts a response with gzip.
    pub(super) accepts_gzip: bool,
}

impl OutputEncoding {
    /// What a clause of `Accept` is compared with, in the order of preference.
    const SUPPORTED: [(OutputEncoding, &str); 3] = [
        (OutputEncoding::Json, "json"),
        (OutputEncoding::Yaml, "yaml"),
        (OutputEncoding::Protobuf, "vnd.kubernetes.protobuf"),
    ];

    /// The same encoding of a Status.
    pub(super) fn for_status(self) -> StatusEncoding {
        match self {
            OutputEncoding::Json => StatusEncoding::Json,
            OutputEncoding::PrettyJson => StatusEncoding::PrettyJson,
            OutputEncoding::Yaml => StatusEncoding::Yaml,
            OutputEncoding::Protobuf => StatusEncoding::Protobuf,
        }
    }
}

/// Media types of an object or list.
const MEDIA_TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
/// Media types of a watch.
const STREAM_MEDIA_TYPES: &str = "application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";

impl OutputMediaType {
    /// Negotiates the representation of the response to a request.
    ///
    /// # Errors
    /// 406 if nothing acceptable is supported, 400 for an invalid `includeObject`; with kube-apiserver's texts.
    pub(in crate::rest) fn negotiate(
        kind: &ServedKind,
        verb: &str,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<OutputMediaType, Status> {
        let accept = headers.get(ACCEPT).map_or(Some(""), |accept| accept.to_str().ok());
        let shape = ResponseShape::of_verb(verb);
        let clause = match accept {
            Some("") => SupportedClause { encoding: OutputEncoding::Json, target: None, is_pretty: false },
            accept => negotiate_clause(accept.unwrap_or_default(), shape, kind.version.message().is_some())?,
        };
        let mut encoding = clause.encoding;
        if shape == ResponseShape::Watch && clause.encoding == OutputEncoding::Yaml {
            return Err(not_acceptable(STREAM_MEDIA_TYPES));
        }
        if encoding == OutputEncoding::Json
            && shape != ResponseShape::Watch
            && (clause.is_pretty || is_pretty_print(query, headers))
        {
            encoding = OutputEncoding::PrettyJson;
        }
        let transform = match clause.target {
            None => ObjectTransform::Unchanged,
            Some(target) => target.transform(kind, shape, query)?,
        };
        if matches!(transform, ObjectTransform::Table(..)) && kind.version.columns.is_empty() {
            return Err(not_acceptable(MEDIA_TYPES));
        }
        let accepts_gzip = shape != ResponseShape::Watch && accepts_gzip(headers);
        Ok(OutputMediaType { encoding, transform, accepts_gzip })
    }
}

/// What the response to a verb holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResponseShape {
    Object,
    List,
    Watch,
}

impl ResponseShape {
    fn of_verb(verb: &str) -> ResponseShape {
        match verb {
            "list" | "deletecollection" => ResponseShape::List,
            "watch" => ResponseShape::Watch,
            _ => ResponseShape::Object,
        }
    }
}

/// What a clause of `Accept` asks for by `as`, `g` and `v`.
#[derive(Clone, Copy, Debug)]
struct TransformTarget {
    kind: TransformKind,
    api_version: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TransformKind {
    Table,
    PartialMetadata,
    PartialMetadataList,
}

/// A clause with an encoding that its parameters allow.
struct SupportedClause {
    encoding: OutputEncoding,
    target: Option<TransformTarget>,
    is_pretty: bool,
}

/// The preferred clause that is supported; `has_protobuf` as for [`SupportedClause::new`].
fn negotiate_clause(accept: &str, shape: ResponseShape, has_protobuf: bool) -> Result<SupportedClause, Status> {
    let clauses = parse_accept(accept);
    let covered = || {
        clauses.iter().flat_map(|clause| {
            let supported = OutputEncoding::SUPPORTED.into_iter();
            supported.filter(|(_, subtype)| clause.covers("application", subtype)).map(move |(one, _)| (clause, one))
        })
    };
    // As in go-restful, which comes first, a range of subtypes alone accepts nothing.
    let is_range = |clause: &MediaRange<'_>| clause.kind != "*" && clause.subtype == "*";
    let is_acceptable = covered().any(|(clause, _)| !is_range(clause));
    if is_acceptable
        && let Some(clause) =
            covered().find_map(|(clause, encoding)| SupportedClause::new(clause, encoding, has_protobuf))
    {
        return Ok(clause);
    }
    if is_acceptable {
        return Err(not_acceptable(MEDIA_TYPES));
    }
    // The text of go-restful, which compares media types without their parameters first.
    let streams = if shape == ResponseShape::Object { String::new() } else { format!(", {STREAM_MEDIA_TYPES}") };
    let why = format!("406: Not Acceptable\n\nAvailable representations: {MEDIA_TYPES}{streams}");
    Err(Status::not_acceptable(why).with_details(StatusDetails::default()))
}

impl SupportedClause {
    /// The clause; none if one of its parameters is not supported for the encoding. `has_protobuf` says that objects of
    /// the kind have a form in protobuf; metadata always have.
    fn new(clause: &MediaRange<'_>, encoding: OutputEncoding, has_protobuf: bool) -> Option<SupportedClause> {
        let is_streamed = encoding != OutputEncoding::Yaml;
        let is_supported = clause.parameters.iter().all(|(key, value)| match *key {
            "stream" => value.is_empty() || (value == "watch" && is_streamed),
            "sv" => value.is_empty() || value == "v1",
            _ => true,
        });
        let is_transformed = ["as", "g", "v"].iter().any(|name| clause.parameter(name).is_some());
        let target = if is_transformed { Some(TransformTarget::new(clause)?) } else { None };
        // A Table has no form in protobuf.
        let is_table = target.is_some_and(|target| target.kind == TransformKind::Table);
        let is_unavailable = is_table || target.is_none() && !has_protobuf;
        if !is_supported || (is_unavailable && encoding == OutputEncoding::Protobuf) {
            return None;
        }
        Some(SupportedClause { encoding, target, is_pretty: clause.parameter("pretty") == Some("1") })
    }
}

impl TransformTarget {
    fn new(clause: &MediaRange<'_>) -> Option<TransformTarget> {
        let kind = match clause.parameter("as")? {
            "Table" => TransformKind::Table,
            "PartialObjectMetadata" => TransformKind::PartialMetadata,
            "PartialObjectMetadataList" => TransformKind::PartialMetadataList,
            _ => return None,
        };
        let api_version = match (clause.parameter("g")?, clause.parameter("v")?) {
            ("meta.k8s.io", "v1") => "meta.k8s.io/v1",
            ("meta.k8s.io", "v1beta1") => "meta.k8s.io/v1beta1",
            _ => return None,
        };
        Some(TransformTarget { kind, api_version })
    }

    fn transform(self, kind: &ServedKind, shape: ResponseShape, query: &Query<'_>) -> Result<ObjectTransform, Status> {
        let package = kind.resource.group.split('.').next().filter(|label| !label.is_empty()).unwrap_or("core");
        let requested = |transform: &str, is: &str, suffix: &str| {
            let go_type = format!("*{package}.{}{suffix}", kind.resource.kind);
            Err(Status::not_acceptable(format!("you requested {transform}, but the requested object {is} ({go_type})")))
        };
        match (self.kind, shape) {
            (TransformKind::Table, _) => Ok(ObjectTransform::Table(self.api_version, RowObject::parse(query)?)),
            (TransformKind::PartialMetadata, ResponseShape::List) => {
                requested("PartialObjectMetadata", "is a list", "List")
            }
            (TransformKind::PartialMetadataList, ResponseShape::Object | ResponseShape::Watch) => {
                requested("PartialObjectMetadataList", "is not a list", "")
            }
            _ => Ok(ObjectTransform::PartialMetadata(self.api_version)),
        }
    }
}

impl RowObject {
    fn parse(query: &Query<'_>) -> Result<RowObject, Status> {
        match &*query.get("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(RowObject::Metadata),
            "None" => Ok(RowObject::Absent),
            "Object" => Ok(RowObject::Complete),
            other => {
                let error =
                    FieldError::invalid("includeObject", other, "must be 'Metadata', 'Object', 'None', or empty");
                Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")))
            }
        }
    }
}

fn not_acceptable(supported: &str) -> Status {
    Status::not_acceptable(format!("only the following media types are accepted: {supported}"))
}
