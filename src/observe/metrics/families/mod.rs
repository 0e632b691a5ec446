//! Metric families by subject.

pub(super) mod audit;
pub(super) mod authorization;
pub(super) mod calls;
pub(super) mod certificates;
pub(super) mod compute;
pub(super) mod conversion;
pub(super) mod egress;
pub(super) mod impersonation;
pub(super) mod konnectivity;
pub(super) mod peer_certificates;
pub(super) mod rejections;
pub(super) mod reviews;
pub(super) mod service_accounts;
pub(super) mod socks5;
pub(super) mod storage;
pub(super) mod tracing;
pub(super) mod work_queues;
