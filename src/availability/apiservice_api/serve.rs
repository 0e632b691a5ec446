//! Serves `/apis/apiregistration.k8s.io/v1/apiservices` and subpaths.

use std::time::SystemTime;

use http::header::{CACHE_CONTROL, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderMap, HeaderValue, Response};
use serde_json::{Value, json};

use super::object::{API_VERSION, ApiServiceObject, Projection};
use super::object_filter::ObjectFilter;
use super::table::{IncludeObjectPolicy, ResponseFormat, table};
use super::view::ApiServiceView;
use super::watch::{WatchRequest, watch_api_services};
use crate::kubeapi::{Query, RequestInfo, Status, WatchOptions, resource_version};
use crate::message::{Blame, Body, Refusal, negotiate};
use crate::process::{Drain, Published};

/// Serves requests for APIServices. Cheap to clone: one for each worker.
#[derive(Clone)]
pub struct ApiServiceHandler {
    view: Published<ApiServiceView>,
    drain: Drain,
}

const GROUP: &str = "apiregistration.k8s.io";
const RESOURCE: &str = "apiservices";

impl ApiServiceHandler {
    /// A handler of `view`; its watches end with `drain`.
    pub fn new(view: Published<ApiServiceView>, drain: Drain) -> ApiServiceHandler {
        ApiServiceHandler { view, drain }
    }

    /// Whether a request is for this API: any resource of `apiregistration.k8s.io/v1`.
    pub fn claims(info: &RequestInfo<'_>) -> bool {
        info.is_resource_request && info.api_prefix == "apis" && info.api_group == GROUP && info.api_version == "v1"
    }

    /// Answers a request for which [`ApiServiceHandler::claims`] is true.
    pub fn answer(
        &self,
        info: &RequestInfo<'_>,
        query: &Query<'_>,
        headers: &HeaderMap,
    ) -> Result<Response<Body>, Refusal> {
        let refuse = |status| Err(Refusal::new(Blame::Client, status));
        if info.resource != RESOURCE || !info.namespace.is_empty() || !matches!(info.subresource, "" | "status") {
            return refuse(Status::not_found());
        }
        if !matches!(&*info.verb, "get" | "list" | "watch") {
            let message =
                "APIServices are read from the registry directory and cannot be changed here: change the files there";
            return refuse(Status::method_not_allowed(message).with_resource(GROUP, RESOURCE, &info.name));
        }
        let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let include = IncludeObjectPolicy::parse(&query.get("includeObject").unwrap_or_default());
        let Some((shape, yaml)) = negotiate_format(accept, include.unwrap_or_default()) else {
            let message = "only the following media types are accepted: application/json, application/yaml";
            return refuse(Status::not_acceptable(message));
        };
        if include.is_none() && matches!(shape, ResponseFormat::Table(_)) {
            return refuse(Status::bad_request("unrecognized includeObject value: expected None, Metadata or Object"));
        }
        let view = self.view.get();
        match &*info.verb {
            "get" => match view.object(&info.name) {
                Some(object) => Ok(text_response(&object_value(object, shape), yaml)),
                None => refuse(Status::object_not_found(GROUP, RESOURCE, &info.name)),
            },
            "list" => {
                let filter = ObjectFilter::from_request(info).map_err(|status| Refusal::new(Blame::Client, status))?;
                resource_version(query, view.version).map_err(|status| Refusal::new(Blame::Client, status))?;
                Ok(text_response(&list_value(&view, &filter, shape), yaml))
            }
            _ if yaml => refuse(Status::not_acceptable("a watch is answered in application/json only")),
            _ => {
                let wish =
                    watch_request(info, query, shape, &view).map_err(|status| Refusal::new(Blame::Client, status))?;
                let watch = watch_api_services(self.view.clone(), self.drain.clone(), wish);
                Ok(respond("application/json", Body::stream(watch)))
            }
        }
    }
}

/// The first format in `Accept` that is supported, and whether as YAML.
fn negotiate_format(accept: &str, include: IncludeObjectPolicy) -> Option<(ResponseFormat, bool)> {
    if accept.trim().is_empty() {
        return Some((ResponseFormat::Plain(Projection::Full), false));
    }
    negotiate::parse_accept(accept).iter().find_map(|clause| {
        let yaml = match clause {
            json if json.covers("application", "json") => false,
            yaml if yaml.covers("application", "yaml") => true,
            _ => return None,
        };
        let known =
            clause.parameter("g") == Some("meta.k8s.io") && matches!(clause.parameter("v"), Some("v1" | "v1beta1"));
        let shape = match clause.parameter("as") {
            None => ResponseFormat::Plain(Projection::Full),
            Some("Table") if known => ResponseFormat::Table(include),
            Some("PartialObjectMetadata" | "PartialObjectMetadataList") if known => {
                ResponseFormat::Plain(Projection::Metadata)
            }
            Some(_) => return None,
        };
        Some((shape, yaml))
    })
}

fn object_value(object: &ApiServiceObject, shape: ResponseFormat) -> Value {
    match shape {
        ResponseFormat::Plain(extent) => object.value(extent),
        ResponseFormat::Table(include) => table(&[object], object.version, include, true, SystemTime::now()),
    }
}

fn list_value(view: &ApiServiceView, filter: &ObjectFilter, shape: ResponseFormat) -> Value {
    let objects: Vec<&ApiServiceObject> =
        view.objects().into_iter().map(AsRef::as_ref).filter(|one| filter.matches(one)).collect();
    let (kind, api_version, items): (_, _, Vec<Value>) = match shape {
        ResponseFormat::Table(include) => return table(&objects, view.version, include, true, SystemTime::now()),
        ResponseFormat::Plain(Projection::Full) => {
            let items = objects.iter().map(|one| Value::Object(one.list_item(Projection::Full))).collect();
            ("APIServiceList", API_VERSION, items)
        }
        ResponseFormat::Plain(Projection::Metadata) => {
            let items = objects.iter().map(|one| one.value(Projection::Metadata)).collect();
            ("PartialObjectMetadataList", "meta.k8s.io/v1", items)
        }
    };
    let metadata = json!({ "resourceVersion": view.version.to_string() });
    json!({ "kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items })
}

fn watch_request(
    info: &RequestInfo<'_>,
    query: &Query<'_>,
    shape: ResponseFormat,
    view: &ApiServiceView,
) -> Result<WatchRequest, Status> {
    let options = WatchOptions::parse(query, view.version)?;
    Ok(WatchRequest { filter: ObjectFilter::from_request(info)?, shape, options })
}

fn text_response(value: &Value, yaml: bool) -> Response<Body> {
    match yaml.then(|| serde_saphyr::to_string(value)) {
        Some(Ok(text)) => respond("application/yaml", text.into()),
        _ => respond("application/json", format!("{value}\n").into()),
    }
}

fn respond(content_type: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use http::Method;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::availability::ConditionStatus;
    use crate::availability::apiservice_api::view::tests::{condition_of, registry_of};
    use crate::kubeapi::CanonicalPath;

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

    async fn request(method: Method, target: &str, accept: &'static str) -> (u16, Value) {
        let view = ApiServiceView::empty(UNIX_EPOCH)
            .updated(&registry_of(&["v1.a.io", "v2.a.io"]), condition_of(ConditionStatus::True));
        let (_drainer, drain) = Drain::new();
        let reports = ApiServiceHandler::new(Published::fixed(view.unwrap()), drain);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = format!("/apis/apiregistration.k8s.io/v1/{path}");
        let (path, query) = (CanonicalPath::parse(&path).unwrap(), Query::parse(query));
        let info = RequestInfo::parse(&method, &path, &query).unwrap();
        assert!(ApiServiceHandler::claims(&info));
        let headers = HeaderMap::from_iter([(http::header::ACCEPT, HeaderValue::from_static(accept))]);
        match reports.answer(&info, &query, &headers) {
            Ok(response) => {
                let code = response.status().as_u16();
                let bytes = response.into_body().collect().await.unwrap().to_bytes();
                (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into()))
            }
            Err(refusal) => {
                let status = refusal.status();
                (status.code, json!({ "reason": status.reason, "message": status.message }))
            }
        }
    }

    async fn get(target: &str, accept: &'static str) -> (u16, Value) {
        request(Method::GET, target, accept).await
    }

    #[tokio::test]
    async fn apiservices_get_and_list_in_every_format() {
        let (code, value) = get("apiservices/v1.a.io", "application/json").await;
        assert_eq!((code, &value["metadata"]["name"]), (200, &json!("v1.a.io")));
        let (_, value) = get("apiservices/v1.a.io/status", "").await;
        assert_eq!(value["status"]["conditions"][0]["status"], "True");
        let (_, value) = get("apiservices", "*/*").await;
        assert_eq!((&value["kind"], &value["metadata"]["resourceVersion"]), (&json!("APIServiceList"), &json!("2")));
        assert_eq!(value["items"].as_array().unwrap().len(), 2);
        assert_eq!(value["items"][0].get("kind"), None);
        let (_, value) = get("apiservices?includeObject=None", TABLE).await;
        assert_eq!((&value["kind"], value["rows"].as_array().unwrap().len()), (&json!("Table"), 2));
        let (_, value) = get("apiservices", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io").await;
        assert_eq!(value["kind"], "PartialObjectMetadataList");
        let (_, value) = get("apiservices/v1.a.io", "application/yaml").await;
        assert!(value.as_str().unwrap().contains("kind: APIService"));
        assert_eq!(get("apiservices", "text/html").await.0, 406);
    }

    #[tokio::test]
    async fn apiservices_list_selectors_and_resource_versions() {
        for (query, found) in [
            ("labelSelector=team%3Dblue", 2),
            ("labelSelector=team%3Dred", 0),
            ("fieldSelector=metadata.name%3Dv2.a.io", 1),
            ("fieldSelector=metadata.name!%3Dv2.a.io", 1),
            ("resourceVersion=0", 2),
            ("limit=1", 2),
        ] {
            let (code, value) = get(&format!("apiservices?{query}"), "").await;
            assert_eq!((code, value["items"].as_array().unwrap().len()), (200, found), "{query}");
        }
        for (query, code) in [
            ("fieldSelector=spec.group%3Da.io", 400),
            ("labelSelector=!!", 400),
            ("resourceVersion=x", 400),
            ("resourceVersion=9", 504),
            ("resourceVersion=1&resourceVersionMatch=Exact", 410),
            ("watch=1&sendInitialEvents=true", 400),
        ] {
            assert_eq!(get(&format!("apiservices?{query}"), "").await.0, code, "{query}");
        }
        let (_, value) = get("apiservices?includeObject=All", TABLE).await;
        assert_eq!(value["reason"], "BadRequest");
    }

    #[tokio::test(start_paused = true)]
    async fn apiservices_watch_ends_after_timeout_seconds() {
        let (code, lines) =
            get("apiservices?watch=true&timeoutSeconds=5&fieldSelector=metadata.name%3Dv2.a.io", TABLE).await;
        assert_eq!((code, &lines["type"]), (200, &json!("ADDED")), "{lines}");
        assert_eq!(lines["object"]["rows"][0]["cells"][0], "v2.a.io");
        let (_, lines) = get("apiservices?watch=true&timeoutSeconds=5&resourceVersion=2", "").await;
        assert_eq!(lines, "");
    }

    #[tokio::test]
    async fn apiservices_writes_refused() {
        for (method, target) in [
            (Method::POST, "apiservices"),
            (Method::PUT, "apiservices/v1.a.io"),
            (Method::PATCH, "apiservices/v1.a.io/status"),
            (Method::DELETE, "apiservices/v1.a.io"),
            (Method::DELETE, "apiservices"),
        ] {
            let (code, value) = request(method, target, "").await;
            assert_eq!((code, &value["reason"]), (405, &json!("MethodNotAllowed")));
            assert!(value["message"].as_str().unwrap().contains("registry directory"));
        }
        for absent in ["apiservices/v9.a.io", "others", "apiservices/v1.a.io/scale", "namespaces/x/apiservices"] {
            assert_eq!(get(absent, "").await.0, 404, "{absent}");
        }
    }
}
