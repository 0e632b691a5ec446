//! The trace of one sampled request: what its spans need beyond the access record.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method};
use kubeapi::{RequestInfo, User};

use super::span_builder::{client_span, server_span};
use super::span_record::{SpanRecord, TracedRequest};
use super::tracer::Tracer;
use crate::observe::metrics::Retry;

/// Groups whose traces are continued (`notSystemPrivilegedGroup` in `k8s.io/apiserver/pkg/endpoints/filters`).
const TRUSTED_GROUPS: [&str; 2] = ["system:masters", "system:monitoring"];

/// What a trace is started with.
pub struct TraceInput<'r> {
    /// The attributes of the request.
    pub info: &'r RequestInfo<'r>,
    /// The requested host.
    pub host: Option<&'r HeaderValue>,
    /// The authenticated user; none for a path that needs no authentication.
    pub user: Option<&'r User>,
}

/// Trace of a sampled request.
pub(in crate::observe) struct RequestTrace {
    tracer: Arc<Tracer>,
    request: TracedRequest,
}

impl RequestTrace {
    /// Starts the trace of a request if it is sampled. Replaces the trace context in `headers` in any case.
    pub(in crate::observe) fn start(
        tracer: &Arc<Tracer>,
        input: &TraceInput<'_>,
        method: &Method,
        headers: &mut HeaderMap,
    ) -> Option<Box<RequestTrace>> {
        let is_trusted =
            input.user.is_some_and(|user| user.groups.iter().any(|group| TRUSTED_GROUPS.contains(&group.as_str())));
        let sampled = tracer.start(headers, is_trusted)?;
        let forwarded_for = headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        let first = forwarded_for.and_then(|list| list.split(',').next()).map(|first| first.trim().to_owned());
        let request = TracedRequest {
            sampled,
            name: span_name(method, input.info),
            host: input.host.cloned(),
            forwarded_for: first.filter(|first| !first.is_empty()),
            retries: Vec::new(),
        };
        Some(Box::new(RequestTrace { tracer: tracer.clone(), request }))
    }

    /// The trace ID, as it is shown.
    pub(in crate::observe) fn trace_id(&self) -> String {
        self.request.sampled.server.trace_id_text()
    }

    /// Records an attempt after the first one.
    pub(in crate::observe) fn record_retry(&mut self, reason: Retry) {
        self.request.retries.push((Instant::now(), reason));
    }

    /// Queues the spans of the request.
    pub(in crate::observe) fn finish(self, record: &SpanRecord<'_>) {
        let now = SystemTime::now();
        if let Some(backend) = &record.backend {
            self.tracer.queue(client_span(&self.request, record, backend, now));
        }
        self.tracer.queue(server_span(&self.request, record, now));
    }
}

/// The name of the server span (`getSpanNameFromRequestInfo`).
fn span_name(method: &Method, info: &RequestInfo<'_>) -> String {
    if !info.is_resource_request {
        return method.to_string();
    }
    let mut name = format!("{method} /{}", info.api_prefix);
    let mut add = |part: &str| {
        name.push('/');
        name.push_str(part);
    };
    if !info.api_group.is_empty() {
        add(info.api_group);
    }
    add(info.api_version);
    if !info.namespace.is_empty() {
        add("namespaces/{:namespace}");
    }
    add(info.resource);
    if !info.name.is_empty() {
        add("{:name}");
    }
    if !info.subresource.is_empty() {
        add(info.subresource);
    }
    name
}

#[cfg(test)]
mod tests {
    use kubeapi::{CanonicalPath, Query};

    use super::*;

    #[test]
    fn span_names_as_upstream() {
        for (method, target, expected) in [
            ("GET", "/version", "GET"),
            ("GET", "/apis/apps/v1", "GET"),
            ("GET", "/api/v1/pods", "GET /api/v1/pods"),
            ("GET", "/api/v1/namespaces", "GET /api/v1/namespaces"),
            ("GET", "/api/v1/namespaces/a", "GET /api/v1/namespaces/{:namespace}/namespaces/{:name}"),
            ("POST", "/api/v1/namespaces/a/pods/b/exec", "POST /api/v1/namespaces/{:namespace}/pods/{:name}/exec"),
            (
                "PUT",
                "/apis/apps/v1/namespaces/a/deployments/b/status",
                "PUT /apis/apps/v1/namespaces/{:namespace}/deployments/{:name}/status",
            ),
            ("GET", "/api/v1/nodes/a/status", "GET /api/v1/nodes/{:name}/status"),
        ] {
            let (path, query, method) =
                (CanonicalPath::parse(target).unwrap(), Query::parse(""), method.parse().unwrap());
            assert_eq!(span_name(&method, &RequestInfo::parse(&method, &path, &query).unwrap()), expected);
        }
    }
}
