//! Audit context of one request: the applicable policy and the data collected for its events.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method, Uri};
use kubeapi::{RequestInfo, Status, User};

use super::AuditLevel;
use super::Auditor;
use super::annotations::{AuditAnnotation, AuditAnnotations};
use super::body::{BodyCapture, CapturedBody};
use super::event::{AuditDecision, AuditEvent, AuditImpersonation, AuditOutcome, AuditedRequest};
use super::policy::{AuditStage, RequestAuditConfig};
use crate::observe::EndReason;
use crate::process::BudgetShare;

/// Maximum size of a failed backend response that is parsed as a Status.
const MAX_STATUS_BODY: u64 = 64 << 10;

/// Request data with which the audit starts.
pub struct AuditInput<'b> {
    /// The parsed request.
    pub info: &'b RequestInfo<'b>,
    /// The authenticated user; `None` if the request was refused or answered before authentication.
    pub user: Option<&'b Arc<User>>,
    /// The client's headers.
    pub headers: &'b HeaderMap,
    /// Whether the request is long-running.
    pub long_running: bool,
    /// The control plane of the request, if it is one's.
    pub control_plane: Option<&'b Arc<str>>,
    /// Whether authentication failed; only that is audited (`WithFailedAuthenticationAudit`).
    pub unauthenticated: bool,
    /// Annotations of the authenticators.
    pub annotations: &'b [AuditAnnotation],
}

/// Request data of the access record.
pub(in crate::observe) struct RecordInfo<'k> {
    pub(in crate::observe) id: Option<&'k HeaderValue>,
    pub(in crate::observe) method: &'k Method,
    pub(in crate::observe) uri: &'k Uri,
    pub(in crate::observe) agent: Option<&'k HeaderValue>,
    pub(in crate::observe) client: IpAddr,
    pub(in crate::observe) began: Instant,
}

/// Audit context of a request; the last event is emitted by [`AuditContext::finish`].
pub struct AuditContext {
    auditor: Arc<Auditor>,
    facts: Arc<AuditedRequest>,
    config: RequestAuditConfig,
    resource: bool,
    long_running: bool,
    unauthenticated: bool,
    has_started: bool,
    refused: Option<Arc<Status>>,
    decision: Option<AuditDecision>,
    annotations: AuditAnnotations,
    impersonated: Option<Arc<AuditImpersonation>>,
    response: Option<Result<BodyCapture, CapturedBody>>,
}

impl Auditor {
    /// Evaluates the policy; if the request is audited, emits the event `RequestReceived` and returns its context.
    pub(in crate::observe) fn begin(
        self: &Arc<Auditor>,
        begin: &AuditInput<'_>,
        record: &RecordInfo<'_>,
    ) -> Option<Box<AuditContext>> {
        let verdict = self.policy.load().evaluate(begin.user.map(|user| &**user), begin.info);
        self.metrics.audit().record_level(verdict.level);
        if verdict.level == AuditLevel::None {
            return None;
        }
        let received = SystemTime::now().checked_sub(record.began.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let facts = AuditedRequest {
            level: verdict.level,
            omit_managed_fields: verdict.omit_managed_fields,
            id: record.id.cloned().unwrap_or_else(|| HeaderValue::from_static("")),
            method: record.method.clone(),
            uri: record.uri.clone(),
            user: begin.user.cloned(),
            control_plane: begin.control_plane.cloned(),
            agent: record.agent.cloned(),
            sources: source_ips(begin.headers, record.client),
            received,
        };
        let audited = AuditContext {
            auditor: self.clone(),
            facts: Arc::new(facts),
            config: verdict,
            resource: begin.info.is_resource_request,
            long_running: begin.long_running || begin.unauthenticated,
            unauthenticated: begin.unauthenticated,
            has_started: false,
            refused: None,
            decision: None,
            annotations: AuditAnnotations::audited(begin.annotations),
            impersonated: None,
            response: None,
        };
        if !begin.unauthenticated && !verdict.omit.contains(AuditStage::RequestReceived) {
            audited.auditor.emit(audited.event(AuditStage::RequestReceived, received));
        }
        Some(Box::new(audited))
    }
}

impl AuditContext {
    /// Records that the authorizers allowed the request, and their reason.
    pub fn record_allowed(&mut self, reason: Option<&Arc<str>>) {
        self.decision = Some(AuditDecision::Allow(reason.cloned()));
    }

    /// Records that the authorizers denied the request, with the reason; `None` if authorization failed with an error.
    pub fn record_denied(&mut self, reason: Option<&str>) {
        self.decision = Some(reason.map_or(AuditDecision::Error, |reason| AuditDecision::Forbid(reason.into())));
    }

    /// Where annotations of the request are added.
    pub(in crate::observe) fn annotations(&self) -> &AuditAnnotations {
        &self.annotations
    }

    /// Sets the impersonated user; `constraint` is the verb of constrained impersonation that allowed it.
    pub(in crate::observe) fn set_impersonated(&mut self, user: &Arc<User>, constraint: Option<&'static str>) {
        self.impersonated = Some(Arc::new(AuditImpersonation { user: user.clone(), constraint }));
    }

    /// Starts a capture of the request body; `None` if the audit level does not include it.
    pub(in crate::observe) fn capture_request(&self, headers: &HeaderMap) -> Option<Result<BodyCapture, CapturedBody>> {
        let is_captured = self.resource && self.config.level >= AuditLevel::Request;
        is_captured.then(|| BodyCapture::for_request(headers, self.budget()))
    }

    /// Records a response generated by this process.
    pub(in crate::observe) fn set_refusal(&mut self, status: &Status) {
        self.refused = Some(Arc::new(status.clone()));
    }

    /// Records the head of a backend's response, and starts a capture of its body if required.
    pub(in crate::observe) fn capture_response(&mut self, code: u16, headers: &HeaderMap, length: Option<u64>) {
        if self.refused.is_some() {
            return;
        }
        let failure = code >= 400 && length.is_none_or(|length| length <= MAX_STATUS_BODY);
        let object = self.resource && !self.long_running && self.config.level == AuditLevel::RequestResponse;
        if object || failure {
            self.response = Some(BodyCapture::for_response(headers, self.budget()));
        }
    }

    /// Captures a part of the response body.
    pub(in crate::observe) fn append_response(&mut self, data: &[u8]) {
        if let Some(Ok(copy)) = &mut self.response {
            copy.append(data);
        }
    }

    /// Records that the response with this code started; for long-running requests, emits `ResponseStarted`.
    pub(in crate::observe) fn response_started(&mut self, code: u16) {
        if self.long_running && !self.has_started && !self.config.omit.contains(AuditStage::ResponseStarted) {
            let mut event = self.event(AuditStage::ResponseStarted, SystemTime::now());
            event.outcome = Some(self.outcome(code));
            self.auditor.emit(event);
        }
        self.has_started = true;
    }

    /// Emits the last event. `code` is the status code sent to the client, or 0 if none was sent.
    pub(in crate::observe) fn finish(mut self, code: u16, end: EndReason, request: Option<CapturedBody>) {
        let panicked = std::thread::panicking();
        let stage = if panicked { AuditStage::Panic } else { AuditStage::ResponseComplete };
        if self.unauthenticated || self.config.omit.contains(stage) {
            return;
        }
        if !panicked {
            self.response_started(code);
        }
        let mut event = self.event(stage, SystemTime::now());
        event.outcome = Some(if panicked { AuditOutcome::Panicked } else { self.outcome(code) });
        event.end = (end != EndReason::Complete && code != 0 && !panicked).then(|| end.as_str());
        event.request = request;
        event.response = self.response.take().and_then(|copy| copy.map_or_else(Some, BodyCapture::finish));
        self.auditor.emit(event);
    }

    /// The memory for captured bodies of the user, who is another one in each control plane.
    fn budget(&self) -> Arc<BudgetShare> {
        let user = self.facts.user.as_deref().map_or("", |user| &user.name);
        self.auditor.budget.share_in(self.facts.control_plane.as_deref(), user)
    }

    fn outcome(&self, code: u16) -> AuditOutcome {
        match (&self.refused, code) {
            (Some(status), _) => AuditOutcome::Refused(status.clone()),
            (None, 0) => AuditOutcome::ConnectionClosed,
            (None, code) => AuditOutcome::Code(code),
        }
    }

    fn event(&self, stage: AuditStage, at: SystemTime) -> AuditEvent {
        AuditEvent {
            facts: self.facts.clone(),
            stage,
            at,
            impersonated: self.impersonated.clone(),
            outcome: None,
            decision: self.decision.clone(),
            annotations: self.annotations.get(),
            end: None,
            request: None,
            response: None,
        }
    }
}

/// Source addresses as in `k8s.io/apimachinery/pkg/util/net.SourceIPs`: those of the headers, then the peer address,
/// which cannot be forged.
fn source_ips(headers: &HeaderMap, client: IpAddr) -> Vec<IpAddr> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut sources: Vec<IpAddr> =
        text("x-forwarded-for").split(',').filter_map(|part| parse_ip_sloppy(part.trim())).collect();
    if let Some(real) = parse_ip_sloppy(text("x-real-ip"))
        && !sources.contains(&real)
    {
        sources.push(real);
    }
    let client = client.to_canonical();
    if sources.last() != Some(&client) {
        sources.push(client);
    }
    sources
}

/// Like Go's `ParseIPSloppy`: the numbers of an IPv4 address may have leading zeros.
fn parse_ip_sloppy(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.to_canonical());
    }
    let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u8>().ok())?;
    let mut numbers = text.split('.').map(number);
    let four = [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
    numbers.next().is_none().then(|| four.into())
}

#[cfg(test)]
mod tests {
    use kubeapi::{CanonicalPath, Query};

    use super::super::queue::AuditQueue;
    use super::super::{AuditPolicy, EventSink};
    use super::*;
    use crate::observe::metrics::Metrics;
    use crate::process::{FairBudget, Published};

    struct AuditFixture {
        auditor: Arc<Auditor>,
        queue: Arc<AuditQueue>,
    }

    impl AuditFixture {
        fn new(rules: &str) -> AuditFixture {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{rules}]\n");
            let queue = AuditQueue::new(100, usize::MAX, 100, || {});
            let sinks = vec![EventSink { name: "test", queue: queue.clone() }];
            let policy = Published::fixed(AuditPolicy::parse("p", &text).unwrap());
            AuditFixture {
                auditor: Arc::new(Auditor { policy, sinks, metrics: Metrics::new(), budget: FairBudget::new(1 << 20) }),
                queue,
            }
        }

        fn begin(&self, uri: &'static str, unauthenticated: bool) -> Option<Box<AuditContext>> {
            let uri = Uri::from_static(uri);
            let (path, query) = (CanonicalPath::parse(uri.path()).unwrap(), Query::parse(uri.query().unwrap_or("")));
            let info = RequestInfo::parse(&Method::GET, &path, &query).unwrap();
            let (user, headers) = (Arc::new(User { name: "jane".into(), ..User::default() }), HeaderMap::new());
            let begin = AuditInput {
                info: &info,
                user: (!unauthenticated).then_some(&user),
                control_plane: None,
                headers: &headers,
                long_running: info.is_long_running(),
                unauthenticated,
                annotations: &[],
            };
            let client = IpAddr::from([192, 0, 2, 1]);
            let known =
                RecordInfo { id: None, method: &Method::GET, uri: &uri, agent: None, client, began: Instant::now() };
            self.auditor.begin(&begin, &known)
        }

        /// Stages and codes of the events so far.
        fn emitted(&self) -> Vec<(String, serde_json::Value)> {
            let taken = self.queue.take(100, usize::MAX);
            let told = taken.events.iter().map(|event| {
                let mut text = Vec::new();
                event.write_json(&mut text, true);
                let event: serde_json::Value = serde_json::from_slice(&text).unwrap();
                (event["stage"].as_str().unwrap().to_owned(), event["responseStatus"]["code"].clone())
            });
            told.collect()
        }
    }

    fn expected_events(stages: &[(&str, u16)]) -> Vec<(String, serde_json::Value)> {
        let code = |code: u16| if code == 0 { serde_json::Value::Null } else { code.into() };
        stages.iter().map(|(stage, of)| ((*stage).to_owned(), code(*of))).collect()
    }

    #[test]
    fn audit_stages_for_every_end_reason() {
        let world = AuditFixture::new("{level: Metadata}");
        let (received, started, complete) = ("RequestReceived", "ResponseStarted", "ResponseComplete");
        let mut plain = world.begin("/apis/g/v1/things", false).unwrap();
        plain.response_started(200);
        plain.finish(200, EndReason::Complete, None);
        assert_eq!(world.emitted(), expected_events(&[(received, 0), (complete, 200)]));

        let mut watch = world.begin("/apis/g/v1/things?watch=1", false).unwrap();
        watch.response_started(200);
        watch.response_started(200);
        watch.finish(200, EndReason::Drained, None);
        assert_eq!(world.emitted(), expected_events(&[(received, 0), (started, 200), (complete, 200)]));

        // The client disconnected before the response.
        world.begin("/apis/g/v1/things?watch=1", false).unwrap().finish(0, EndReason::ClientGone, None);
        assert_eq!(world.emitted(), expected_events(&[(received, 0), (started, 200), (complete, 200)]));

        let mut nobody = world.begin("/apis/g/v1/things", true).unwrap();
        nobody.set_refusal(&Status::unauthorized());
        nobody.response_started(401);
        nobody.finish(401, EndReason::Complete, None);
        assert_eq!(world.emitted(), expected_events(&[(started, 401)]));

        let audited = world.begin("/apis/g/v1/things", false).unwrap();
        let panicked = std::thread::spawn(move || {
            struct EndOnDrop(Option<Box<AuditContext>>);
            impl Drop for EndOnDrop {
                fn drop(&mut self) {
                    self.0.take().unwrap().finish(0, EndReason::ClientGone, None);
                }
            }
            let _ends = EndOnDrop(Some(audited));
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(world.emitted(), expected_events(&[(received, 0), ("Panic", 500)]));
    }

    #[test]
    fn audit_policy_omitted_stages_emit_no_event() {
        let world = AuditFixture::new(
            "{level: None, nonResourceURLs: [/version]}, {level: Metadata, omitStages: [RequestReceived, ResponseStarted, ResponseComplete]}",
        );
        assert!(world.begin("/version", false).is_none());
        for unauthenticated in [false, true] {
            let mut audited = world.begin("/apis/g/v1/things?watch=1", unauthenticated).unwrap();
            audited.response_started(200);
            audited.finish(200, EndReason::Complete, None);
        }
        assert_eq!(world.emitted(), expected_events(&[]));
    }

    #[test]
    fn audit_source_ips_match_upstream() {
        let found = |forwarded: &'static str, real: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [("x-forwarded-for", forwarded), ("x-real-ip", real)] {
                if !value.is_empty() {
                    headers.append(name, HeaderValue::from_static(value));
                }
            }
            headers.append("x-forwarded-for", HeaderValue::from_static("192.0.2.99"));
            let sources = source_ips(&headers, "::ffff:192.0.2.1".parse().unwrap());
            sources.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(" ")
        };
        for (forwarded, real, expected) in [
            ("1.1.1.1", "", "1.1.1.1 192.0.2.1"),
            ("1.1.1.1, 2001:db8::1,192.0.2.1", "", "1.1.1.1 2001:db8::1 192.0.2.1"),
            ("192.0.2.1,1.1.1.1", "192.0.2.1", "192.0.2.1 1.1.1.1 192.0.2.1"),
            ("unknown, 01.002.3.4, 1.2.3, 1.2.3.4.5, 1.2.3.256", "5.6.7.8", "1.2.3.4 5.6.7.8 192.0.2.1"),
            (" ", "192.0.2.1", "192.0.2.1"),
            ("::ffff:1.2.3.4", "x", "1.2.3.4 192.0.2.1"),
        ] {
            assert_eq!(found(forwarded, real), expected, "{forwarded} {real}");
        }
    }
}
