//! Tracing: OpenTelemetry spans of requests, made from access records and sent to a collector, with kube-apiserver's
//! configuration and semantics (`k8s.io/component-base/tracing`, `WithTracing` in `k8s.io/apiserver`).
//!
//! A request that is not sampled costs a random trace ID, a comparison and the header `traceparent`. Spans of sampled
//! requests are made when the record ends and queued for the exporter; requests never wait for it.

mod attribute;
mod configuration;
mod context;
mod exporter;
mod request_trace;
mod sampler;
mod span_builder;
mod span_record;
mod tracer;

pub use configuration::{CollectorEndpoint, TracingConfiguration};
pub use context::SpanContext;
pub use exporter::{ExportError, SpanExporter, SpanSender};
pub(in crate::observe) use request_trace::RequestTrace;
pub use request_trace::TraceInput;
pub(in crate::observe) use span_record::{BackendSpanRecord, SpanRecord};
pub use tracer::Tracer;
