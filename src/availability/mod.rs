//! Availability of backends: probes, hysteresis, circuit breaker, outlier detection, status writer.
//!
//! [`run`] probes each APIService in a task of its own, so a slow one delays no other. Results are published on the
//! [`AvailabilityMap`], which a request reads without waiting. Until its first probe has ended an APIService is `Unknown` and its
//! requests are admitted: a gateway that has just started must not reject what works.
//!
//! Request outcomes count beside probes: per endpoint in its [`EndpointHealth`], shared by all APIServices that have the
//! endpoint, and per APIService in its circuit breaker. When they contradict the last probe, the next probe runs at
//! once.

mod api_service_objects;
mod availability_map;
mod circuit;
mod condition;
mod endpoint_map;
mod hysteresis;
mod outlier_detection;
mod probe;
mod probe_backoff;
mod probe_loops;
mod prober;
mod status_writer;

pub use api_service_objects::publish_api_services;
pub use availability_map::{Availability, AvailabilityMap, CircuitPermit, Rejection};
pub use circuit::BackendOutcome;
pub use condition::{AvailabilityCondition, ConditionStatus};
pub use endpoint_map::ConnectionSettings;
pub use hysteresis::{ConditionTracker, ProbeResult};
pub use outlier_detection::{EndpointHealth, Weight};
pub use probe::{Probe, ProbeFailure};
pub use probe_loops::run;
pub use prober::ProbeObserver;
pub use status_writer::{StatusTarget, StatusWriter};
