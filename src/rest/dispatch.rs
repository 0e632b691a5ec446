//! From a request to the function of its verb, and to the response.

use http::Response;
use kubeapi::Status;
use store::watch_cache::Notifier;

use super::api_server::ApiServer;
use super::representation::{OutputMediaType, VerbReply};
use super::request::{ApiRequest, FailedRequest};
use super::subresource_kind::body_kind;
use super::target::ObjectTarget;
use super::{
    binding, component_status, create, delete, eviction, kubelet_streams, patch, proxy, read, representation, scale,
    token_request, update, warnings, watch,
};
use crate::compute::ComputeContext;
use crate::conversion::schema_work;
use crate::kinds::deprecation_warning;
use crate::message::Body;
use crate::resources::catalog::CONNECT_SUBRESOURCES;

impl ApiServer {
    /// The response to a request for a resource of the catalog.
    ///
    /// # Errors
    /// A Status with Kubernetes' reason and text, and the warnings until then.
    pub async fn respond(
        &self,
        request: &ApiRequest<'_>,
        notifier: &Notifier,
    ) -> Result<Response<Body>, FailedRequest> {
        let mut warnings = Vec::new();
        let context = ComputeContext::new(&self.compute, Some(request.hand), request.deadline);
        let _cancel = context.cancel_on_drop();
        match context.scope(Box::pin(self.call_verb(request, notifier, &mut warnings))).await {
            Ok(mut response) => {
                warnings::add_warnings(response.headers_mut(), &warnings);
                Ok(response)
            }
            Err(status) => Err(FailedRequest { status, warnings: warnings::bounded_warnings(&warnings) }),
        }
    }

    async fn call_verb(
        &self,
        request: &ApiRequest<'_>,
        notifier: &Notifier,
        warnings: &mut Vec<String>,
    ) -> Result<Response<Body>, Status> {
        let target = ObjectTarget::parse(&self.catalog.get(), request.info)?;
        if self.settings.is_read_only && writes(&request.info.verb, target.subresource) {
            return Err(read_only(&target));
        }
        warnings.extend(deprecation_warning(&target.kind).map(str::to_owned));
        match target.kind.resource.group_resource() {
            ("", "bindings") => return self.bind_named(&target, request, warnings).await,
            ("", "componentstatuses") => return component_status::read(self, &target, request).await,
            _ => {}
        }
        let collection = self.collection(&target.kind.resource)?;
        let _schemas = schema_work::compile_schemas(&target.kind).await?;
        let verb = &*request.info.verb;
        if target.subresource == "proxy" {
            return Err(proxy::refusal(self, &collection, &target).await);
        }
        if CONNECT_SUBRESOURCES.contains(&target.subresource) {
            return kubelet_streams::open(&collection, &target, request).await;
        }
        if let Some(kind) = body_kind(target.subresource) {
            let media_type = OutputMediaType::negotiate(kind, verb, request.query, request.headers)?;
            let reply = match target.subresource {
                "eviction" => eviction::evict(self, &collection, &target, kind, request, warnings).await?,
                "token" => token_request::issue_token(self, &collection, &target, kind, request, warnings).await?,
                "binding" => binding::bind(self, &collection, &target, kind, request, warnings).await?,
                _ => scale::scale(self, &collection, &target, kind, request, warnings).await?,
            };
            return representation::respond(kind, media_type, reply.code, reply.content).await;
        }
        let media_type = OutputMediaType::negotiate(&target.kind, verb, request.query, request.headers)?;
        let reply = match verb {
            "get" => VerbReply::ok(read::get(&collection, &target, request).await?),
            "list" => VerbReply::ok(read::list(self, &collection, &target, request).await?),
            "watch" => return watch::watch(self, &collection, &target, request, (media_type, notifier)).await,
            "create" => create::create(self, &collection, &target, request, warnings).await?,
            "update" => update::update(self, &collection, &target, request, warnings).await?,
            "patch" => patch::patch(self, &collection, &target, request, warnings).await?,
            "delete" => delete::delete(self, &collection, &target, request, warnings).await?,
            "deletecollection" => delete::delete_collection(self, &collection, &target, request, warnings).await?,
            _ => return Err(target.method_not_allowed(verb)),
        };
        let content = reply.content.convert(&self.converter, &target.kind, &collection).await?;
        representation::respond(&target.kind, media_type, reply.code, content).await
    }

    /// Creates a `Binding`, which names its Pod.
    async fn bind_named(
        &self,
        target: &ObjectTarget<'_>,
        request: &ApiRequest<'_>,
        warnings: &mut Vec<String>,
    ) -> Result<Response<Body>, Status> {
        let media_type = OutputMediaType::negotiate(&target.kind, "create", request.query, request.headers)?;
        let pods = self.catalog.get().find("", "v1", "pods").map(|entry| entry.kind.clone());
        let pod = ObjectTarget::new(pods.ok_or_else(Status::not_found)?, target.namespace, "", "binding");
        let collection = self.collection(&pod.kind.resource)?;
        let reply = binding::bind(self, &collection, &pod, &target.kind, request, warnings).await?;
        representation::respond(&target.kind, media_type, reply.code, reply.content).await
    }
}

/// Whether a request writes. `exec` creates nothing. A token is not stored, and yet a kube-apiserver's admission decides.
fn writes(verb: &str, subresource: &str) -> bool {
    !["get", "list", "watch"].contains(&verb) && !CONNECT_SUBRESOURCES.contains(&subresource)
}

/// 403: nothing is written to the etcd of a kube-apiserver, whose admission would not be asked.
fn read_only(target: &ObjectTarget<'_>) -> Status {
    let why = "this server is read-only (--etcd-access=read-only): write by the kube-apiserver of its etcd";
    Status::object_forbidden(&target.kind.resource.group, &target.kind.resource.plural, &target.name, why)
}
