//! Subresources of Pods that a kubelet answers: `log`, `exec`, `attach`, `portforward` (`LogLocation` and its kin in
//! `pkg/registry/core/pod/strategy.go`). This server does not connect to kubelets: it answers for Pods without a node, and
//! says why it does not for others.

use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use kubeapi::Status;
use serde_json::{Map, Value};
use store::watch_cache::ResourceCollection;

use super::errors::cache_error;
use super::request::ApiRequest;
use super::target::ObjectTarget;
use crate::conversion::stored_object;
use crate::message::Body;

/// Answers a request for a stream of a Pod.
///
/// # Errors
/// 404 for a Pod that does not exist, 400 for a container that it does not have or a Pod without a node, 500 for one on a
/// node.
pub(super) async fn open(
    pods: &ResourceCollection,
    target: &ObjectTarget<'_>,
    request: &ApiRequest<'_>,
) -> Result<Response<Body>, Status> {
    let key = target.key(pods)?;
    let stored = pods.get_latest(&key).await.map_err(|error| cache_error(target, error))?;
    let pod = stored_object(&stored.ok_or_else(|| target.not_found())?).await?;
    let name = &target.name;
    if target.subresource != "portforward" {
        check_container(name, &pod, &request.query.get("container").unwrap_or_default())?;
    }
    match pod.get("spec").and_then(|spec| spec["nodeName"].as_str()).unwrap_or_default() {
        "" if target.subresource == "log" => {
            let mut response = Response::new(Body::from(bytes::Bytes::new()));
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            Ok(response)
        }
        "" => Err(Status::bad_request(format!("pod {name} does not have a host assigned"))),
        node => Err(Status::internal_error(format_args!(
            "error dialing backend: this server does not connect to kubelets, and pod {name} is on node {node}"
        ))),
    }
}

/// Checks that the Pod has the container; without a name, that it has only one (`validateContainer`).
fn check_container(pod_name: &str, pod: &Map<String, Value>, container: &str) -> Result<(), Status> {
    let names = |field: &str| -> Vec<String> {
        let list = pod.get("spec").and_then(|spec| spec[field].as_array()).into_iter().flatten();
        list.filter_map(|one| one["name"].as_str()).map(str::to_owned).collect()
    };
    let all = [names("initContainers"), names("containers"), names("ephemeralContainers")].concat();
    let why = match (container, names("containers").len()) {
        ("", 1) => return Ok(()),
        ("", 0) => format!("a container name must be specified for pod {pod_name}"),
        ("", _) => {
            format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", all.join(" "))
        }
        (container, _) if all.iter().any(|name| name == container) => return Ok(()),
        (container, _) => format!("container {container} is not valid for pod {pod_name}"),
    };
    Err(Status::bad_request(why))
}
