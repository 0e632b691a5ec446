//! The access record of a running request, and its metrics, audit event and log line at the end.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::header::{HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, Uri, Version};
use kubeapi::User;

use super::{AccessLogMode, RefusedRequest, WorkerRecorder};
use crate::message::{Blame, Refusal};
use crate::observe::EndReason;
use crate::observe::audit::{
    AuditAnnotations, AuditContext, AuditInput, Auditor, BodyCapture, CapturedBody, RecordInfo as Facts,
};
use crate::observe::metrics::{
    ApiServiceMetrics, BackendPhase, EndpointMetrics, KnownLabels, RequestLabels, RequestOutcome, Retry, SeriesId, Verb,
};
use crate::observe::trace::RequestTrace;

/// Under [`AccessLogMode::Errors`], a longer request is written unless it is long-running.
const SLOW_REQUEST: Duration = Duration::from_secs(1);

/// Durations of the phases of opening a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectTimings {
    /// Name resolution and TCP handshake, with the backend or its egress proxy.
    pub dial: Duration,
    /// Time until the egress proxy had connected; zero without a proxy.
    pub proxy: Duration,
    /// TLS handshake.
    pub tls: Duration,
}

/// Access record of one request: opened by [`WorkerRecorder::begin`], written and counted when dropped.
///
/// One pointer wide, so that the stream of a watch can hold it.
pub struct AccessRecord(Box<OpenRecord>);

pub(super) struct OpenRecord {
    pub(super) worker: Rc<WorkerRecorder>,
    pub(super) started_at: Instant,
    /// End of the last recorded phase.
    pub(super) last_phase_end: Instant,
    pub(super) client: SocketAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) version: Version,
    pub(super) agent: Option<HeaderValue>,
    pub(super) audit_id: Option<HeaderValue>,
    pub(super) user: Option<Arc<User>>,
    pub(super) impersonated: Option<Arc<User>>,
    pub(super) counted: Option<CountedRequest>,
    pub(super) service: Option<Rc<ApiServiceMetrics>>,
    pub(super) endpoint: Option<Rc<EndpointMetrics>>,
    pub(super) admit_duration: Option<Duration>,
    pub(super) connect_timings: Option<ConnectTimings>,
    pub(super) headers_duration: Option<Duration>,
    pub(super) status: u16,
    pub(super) sent: u64,
    pub(super) request_body: Option<Rc<BodyCounter>>,
    pub(super) retries: u32,
    pub(super) end: EndReason,
    pub(super) refusal: Option<RefusalDetails>,
    /// Set if the request is audited.
    pub(super) audit: Option<Box<AuditContext>>,
    /// Set if the request is traced and sampled.
    pub(super) trace: Option<Box<RequestTrace>>,
}

#[derive(Clone, Copy)]
pub(super) struct CountedRequest {
    pub(super) series: SeriesId,
    pub(super) verb: Verb,
    pub(super) long_running: bool,
}

pub(super) struct RefusalDetails {
    pub(super) blame: Blame,
    pub(super) reason: &'static str,
    pub(super) cause: Box<str>,
}

impl WorkerRecorder {
    /// Opens the record of `request` from `client`.
    pub fn begin<B>(self: &Rc<Self>, client: SocketAddr, request: &Request<B>) -> AccessRecord {
        let now = Instant::now();
        AccessRecord(Box::new(OpenRecord {
            worker: self.clone(),
            started_at: now,
            last_phase_end: now,
            client,
            method: request.method().clone(),
            uri: request.uri().clone(),
            version: request.version(),
            agent: request.headers().get(USER_AGENT).cloned(),
            audit_id: None,
            user: None,
            impersonated: None,
            counted: None,
            service: None,
            endpoint: None,
            admit_duration: None,
            connect_timings: None,
            headers_duration: None,
            status: 0,
            sent: 0,
            request_body: None,
            retries: 0,
            end: EndReason::ClientGone,
            refusal: None,
            audit: None,
            trace: None,
        }))
    }
}

impl AccessRecord {
    /// When the request started.
    pub fn started_at(&self) -> Instant {
        self.0.started_at
    }

    /// When the last recorded phase ended.
    pub fn last_phase_end(&self) -> Instant {
        self.0.last_phase_end
    }

    /// Sets the value of `Audit-Id`.
    pub fn set_audit_id(&mut self, id: HeaderValue) {
        self.0.audit_id = Some(id);
    }

    /// Evaluates the audit policy and emits the first event. Called once, while the headers are still the client's.
    pub fn start_audit(&mut self, auditor: &Arc<Auditor>, begin: &AuditInput<'_>) {
        let open = &mut *self.0;
        let facts = Facts {
            id: open.audit_id.as_ref(),
            method: &open.method,
            uri: &open.uri,
            agent: open.agent.as_ref(),
            client: open.client.ip(),
            began: open.started_at,
        };
        open.audit = auditor.begin(begin, &facts);
        if let Some(audited) = &open.audit
            && let Some(copy) = audited.capture_request(begin.headers)
        {
            open.request_body = Some(Rc::new(BodyCounter::with_capture(Some(copy))));
        }
    }

    pub(super) fn open(&mut self) -> &mut OpenRecord {
        &mut self.0
    }

    /// Audit context of the request, if it is audited.
    pub fn audit_context(&mut self) -> Option<&mut AuditContext> {
        self.0.audit.as_deref_mut()
    }

    /// Where annotations of the audit events are added.
    pub fn audit_annotations(&self) -> AuditAnnotations {
        self.0.audit.as_ref().map(|audit| audit.annotations().clone()).unwrap_or_default()
    }

    /// Sets the authenticated user.
    pub fn set_user(&mut self, user: &Arc<User>) {
        self.0.user = Some(user.clone());
    }

    /// Sets the impersonated user; `constraint` is the verb of constrained impersonation that allowed it.
    pub fn set_impersonated(&mut self, user: &Arc<User>, constraint: Option<&'static str>) {
        self.0.impersonated = Some(user.clone());
        if let Some(audited) = &mut self.0.audit {
            audited.set_impersonated(user, constraint);
        }
    }

    /// The control plane that got the request; none if the gateway itself did.
    pub fn control_plane(&self) -> Option<&str> {
        self.0.worker.control_plane().map(|name| &**name)
    }

    /// Sets the metric labels; from now on the request counts as in flight, or as long-running. `known_labels` as for
    /// [`WorkerMetrics::series`](crate::observe::metrics::WorkerMetrics::series). Only the first call has an effect.
    pub fn set_labels(
        &mut self,
        labels: &RequestLabels<'_>,
        long_running: bool,
        known_labels: impl FnOnce(&RequestLabels<'_>) -> KnownLabels,
    ) {
        if self.0.counted.is_none() {
            let metrics = &self.0.worker.metrics;
            let series = metrics.series(labels, known_labels);
            let verb = metrics.request_started(series, long_running);
            self.0.counted = Some(CountedRequest { series, verb, long_running });
        }
    }

    /// Marks the request as long-running because of the type of its response.
    pub fn mark_long_running(&mut self) {
        let open = &mut *self.0;
        if let Some(counted) = open.counted.as_mut().filter(|counted| !counted.long_running) {
            counted.long_running = true;
            open.worker.metrics.request_is_long_running(counted.series);
            if let Some(service) = &open.service {
                service.request_is_long_running();
            }
        }
    }

    /// Sets the APIService; after [`AccessRecord::set_labels`]. Only the first call has an effect.
    pub fn set_service(&mut self, service: &Rc<ApiServiceMetrics>) {
        if self.0.service.is_none() {
            let (long_running, watch) = self.0.long_running_and_watch();
            service.request_started(long_running, watch);
            self.0.service = Some(service.clone());
        }
    }

    /// Sets the endpoint; the last call takes effect.
    pub fn set_endpoint(&mut self, endpoint: &Rc<EndpointMetrics>) {
        self.0.endpoint = Some(endpoint.clone());
    }

    /// The request is authenticated, authorized, routed, and within the inflight limits.
    pub fn mark_admitted(&mut self) {
        self.0.admit_duration = Some(self.0.lap());
    }

    /// The backend's response headers were received; `opening` if a connection was opened for this request.
    pub fn record_backend_headers(&mut self, opening: Option<ConnectTimings>) {
        let opened = opening.map(|opening| opening.dial + opening.proxy + opening.tls).unwrap_or_default();
        self.0.headers_duration = Some(self.0.lap().saturating_sub(opened));
        self.0.connect_timings = opening;
    }

    /// Sets the status code sent to the client.
    pub fn set_status(&mut self, code: u16) {
        self.0.status = code;
        if let Some(audited) = &mut self.0.audit {
            audited.response_started(code);
        }
    }

    /// Records the head of the response; its body has `length` bytes if that is known.
    pub fn record_response_head(&mut self, code: u16, headers: &HeaderMap, length: Option<u64>) {
        if let Some(audited) = &mut self.0.audit {
            audited.capture_response(code, headers, length);
        }
        self.set_status(code);
    }

    /// Records a part of the response body.
    pub fn record_response_body(&mut self, data: &[u8]) {
        self.add_sent_bytes(data.len());
        if let Some(audited) = &mut self.0.audit {
            audited.append_response(data);
        }
    }

    /// Records an event of a watch that is answered locally.
    pub fn record_watch_event(&mut self, event: &[u8]) {
        self.record_response_body(event);
        if let Some(counted) = self.0.counted.filter(|_| !event.is_empty()) {
            self.0.worker.metrics.watch_event_sent(counted.series, event.len() as u64);
        }
    }

    /// Adds to the number of bytes sent to the client.
    pub fn add_sent_bytes(&mut self, bytes: usize) {
        self.0.sent += bytes as u64;
    }

    /// Counter of the request body; only for requests with a body.
    pub fn request_body_counter(&mut self) -> Rc<BodyCounter> {
        self.0.request_body.get_or_insert_default().clone()
    }

    /// Whether the client aborted the request body.
    pub fn is_broken_by_client(&self) -> bool {
        self.0.request_body.as_ref().is_some_and(|receipt| receipt.is_broken())
    }

    /// Records that the request is retried.
    pub fn record_retry(&mut self, reason: Retry) {
        self.0.retries += 1;
        if let Some(trace) = &mut self.0.trace {
            trace.record_retry(reason);
        }
        if let Some(service) = &self.0.service {
            service.record_retry(reason);
        }
    }

    /// Records a refusal as the response; sets its status code.
    pub fn record_refusal(&mut self, refusal: &Refusal) {
        let status = refusal.status();
        self.0.status = status.code;
        if let Some(audited) = &mut self.0.audit {
            audited.set_refusal(status);
        }
        let cause = if refusal.cause().is_empty() { &status.message } else { refusal.cause() };
        self.0.refusal = Some(RefusalDetails { blame: refusal.blame(), reason: status.reason, cause: cause.into() });
    }

    /// Sets how the request ended; the last call takes effect.
    pub fn set_end(&mut self, end: EndReason) {
        self.0.end = end;
    }
}

impl OpenRecord {
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last_phase_end, now)
    }

    /// Whether the request is long-running, and whether it is a watch.
    fn long_running_and_watch(&self) -> (bool, bool) {
        self.counted.map_or((false, false), |counted| (counted.long_running, counted.verb == Verb::Watch))
    }

    /// Whether the request counts in `apiserver_request_terminations_total`: kube-apiserver counts requests that it
    /// rejected or aborted in self-defense, with 429 or a timeout.
    fn is_self_defense(&self) -> bool {
        self.end == EndReason::Timeout
            || self
                .refusal
                .as_ref()
                .is_some_and(|refused| refused.blame == Blame::Gateway && matches!(self.status, 429 | 503 | 504))
    }

    fn should_write(&self, duration: Duration) -> bool {
        match self.worker.settings.mode {
            AccessLogMode::Off => false,
            AccessLogMode::All => true,
            AccessLogMode::Errors => self.is_refused() || (duration > SLOW_REQUEST && !self.long_running_and_watch().0),
        }
    }

    /// Whether the request was refused or failed.
    fn is_refused(&self) -> bool {
        self.refusal.is_some()
            || self.status >= 500
            || matches!(self.end, EndReason::BackendBroke | EndReason::Timeout | EndReason::Cut | EndReason::SlowClient)
    }

    /// The entry of the refusal log.
    fn to_refused_request(&self) -> RefusedRequest {
        let name = |user: &Option<Arc<User>>| user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
        let (reason, cause) = match &self.refusal {
            Some(RefusalDetails { reason, cause, .. }) => (*reason, String::from(&**cause)),
            None if self.end == EndReason::Complete && self.service.is_some() => {
                ("", "response of the backend".to_owned())
            }
            None => (self.end.as_str(), String::new()),
        };
        RefusedRequest {
            time: SystemTime::now(),
            client: self.client.ip(),
            user: name(&self.user),
            impersonated: name(&self.impersonated),
            verb: self.counted.map_or(self.method.as_str(), |counted| counted.verb.as_str()).to_owned(),
            control_plane: self.worker.control_plane().map(|name| name.to_string()).unwrap_or_default(),
            path: self.uri.path().to_owned(),
            status: self.status,
            reason: reason.to_owned(),
            cause,
            audit_id: self.audit_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned(),
            count: 1,
        }
    }

    fn record_metrics(&self, duration: Duration, body: Option<Duration>) {
        let metrics = &self.worker.metrics;
        // A request that was refused before it was parsed is counted by its method.
        let (long_running, watch) = self.long_running_and_watch();
        let series = match self.counted {
            Some(counted) => counted.series,
            None => {
                let series = metrics.series(&RequestLabels::for_path(&self.method, ""), |_| KnownLabels::Nothing);
                metrics.request_started(series, long_running);
                series
            }
        };
        let ended = RequestOutcome {
            code: self.status,
            duration,
            bytes: self.sent,
            is_self_defense: self.is_self_defense(),
            by_slow_client: self.end == EndReason::SlowClient,
        };
        metrics.request_finished(series, long_running, &ended);
        if let Some(service) = &self.service {
            service.request_finished(long_running, watch);
        }
        if let Some(endpoint) = &self.endpoint {
            if let Some(opening) = self.connect_timings {
                endpoint.observe(BackendPhase::Dial, opening.dial);
                if !opening.proxy.is_zero() {
                    endpoint.observe(BackendPhase::Proxy, opening.proxy);
                }
                endpoint.observe(BackendPhase::Tls, opening.tls);
            }
            if let Some(headers) = self.headers_duration {
                endpoint.observe(BackendPhase::Headers, headers);
            }
            if let Some(body) = body {
                endpoint.observe(BackendPhase::Body, body);
            }
            if self.status >= 500 || matches!(self.end, EndReason::BackendBroke | EndReason::Timeout) {
                endpoint.record_failure(self.headers_duration.is_none());
            }
        }
    }
}

impl Drop for OpenRecord {
    fn drop(&mut self) {
        let now = Instant::now();
        let duration = now - self.started_at;
        let body = self.headers_duration.is_some().then(|| now - self.last_phase_end);
        if self.end == EndReason::ClientGone && self.worker.is_cutting.get() {
            self.end = EndReason::Cut;
        }
        self.record_metrics(duration, body);
        if let Some(audited) = self.audit.take() {
            let request = self.request_body.as_ref().and_then(|receipt| receipt.take_captured());
            audited.finish(self.status, self.end, request);
        }
        // That an object is not there is an ordinary answer: clients ask before they create.
        if self.is_refused() && self.status != 404 {
            self.worker.sink.push_refusal(self.to_refused_request());
        }
        if self.should_write(duration) {
            self.worker.sink.write(|out| self.write_line(out, duration, body));
        }
        if let Some(trace) = self.trace.take() {
            self.finish_trace(*trace, now);
        }
    }
}

/// Counts a request body while it is forwarded, and captures it for the audit if required.
#[derive(Default)]
pub struct BodyCounter {
    bytes: Cell<u64>,
    broken: Cell<bool>,
    capture: RefCell<Option<Result<BodyCapture, CapturedBody>>>,
}

impl BodyCounter {
    fn with_capture(copy: Option<Result<BodyCapture, CapturedBody>>) -> BodyCounter {
        BodyCounter { capture: RefCell::new(copy), ..BodyCounter::default() }
    }

    /// Records forwarded data; returns the total number of bytes.
    pub fn record(&self, data: &[u8]) -> u64 {
        if let Some(Ok(copy)) = &mut *self.capture.borrow_mut() {
            copy.append(data);
        }
        self.bytes.set(self.bytes.get() + data.len() as u64);
        self.bytes.get()
    }

    /// The client aborted the body, or sent an invalid one.
    pub fn mark_broken(&self) {
        self.broken.set(true);
    }

    fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Sets the total number of bytes of a tunnel; they are not captured.
    pub fn set_bytes(&self, bytes: u64) {
        self.bytes.set(bytes);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.get()
    }

    /// Takes the captured body; `None` if there is none.
    fn take_captured(&self) -> Option<CapturedBody> {
        let copy = self.capture.take()?;
        copy.map_or_else(Some, BodyCapture::finish)
    }
}

#[cfg(test)]
mod tests {
    use kubeapi::{RetryAfter, Status};

    use super::super::writer::tests::CapturedOutput;
    use super::super::{AccessLog, AccessLogFormat, Settings};
    use super::*;
    use crate::observe::metrics::{DryRun, ExpositionFormat, Metrics, Scope};

    struct AccessLogFixture {
        metrics: Arc<Metrics>,
        written: CapturedOutput,
        log: AccessLog,
        worker: Rc<WorkerRecorder>,
    }

    impl AccessLogFixture {
        fn new(mode: AccessLogMode, form: AccessLogFormat) -> AccessLogFixture {
            let (metrics, written) = (Metrics::new(), CapturedOutput::default());
            let log = AccessLog::to_writer(Box::new(written.clone()), &metrics).unwrap();
            let worker = WorkerRecorder::new(&metrics, &log, Settings { mode, form });
            AccessLogFixture { metrics, written, log, worker }
        }

        fn begin(&self) -> AccessRecord {
            let request = Request::get("/apis/example.narthex.dev/v1/greetings?watch=1&token=s3cret")
                .header(USER_AGENT, "kubectl/v1.36.0\u{e9}\"")
                .body(())
                .unwrap();
            self.worker.begin("192.0.2.1:4711".parse().unwrap(), &request)
        }

        fn written(&self) -> String {
            self.log.flush();
            self.written.text()
        }

        fn sample(&self, line: &str) -> Option<String> {
            let text = self.metrics.render(ExpositionFormat::Classic);
            let line = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
            line.map(str::to_owned)
        }
    }

    fn watch() -> RequestLabels<'static> {
        RequestLabels {
            verb: Verb::Watch,
            group: "example.narthex.dev",
            version: "v1",
            resource: "greetings",
            subresource: "",
            scope: Scope::Cluster,
            dry_run: DryRun::No,
        }
    }

    fn refusal() -> Refusal {
        Refusal::new(Blame::Client, Status::new(403, "Forbidden", "no")).with_cause("line\nbreak")
    }

    #[test]
    fn access_record_json_has_every_field() {
        let world = AccessLogFixture::new(AccessLogMode::All, AccessLogFormat::Json);
        let mut record = world.begin();
        record.set_audit_id(HeaderValue::from_static("b7f4"));
        record.set_user(&Arc::new(User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() }));
        record.set_impersonated(&Arc::new(User { name: "bob".into(), ..User::default() }), None);
        record.set_labels(&watch(), true, |_| KnownLabels::Resource);
        record.set_service(&world.worker.metrics().service("v1.example.narthex.dev"));
        record.set_endpoint(&world.worker.metrics().endpoint("v1.example.narthex.dev", "10.0.0.1:443"));
        record.mark_admitted();
        record.record_backend_headers(Some(ConnectTimings {
            dial: Duration::from_micros(7),
            proxy: Duration::ZERO,
            tls: Duration::from_micros(8),
        }));
        record.set_status(200);
        record.request_body_counter().set_bytes(5);
        record.add_sent_bytes(3);
        record.add_sent_bytes(4);
        record.record_retry(Retry::StaleConnection);
        record.set_end(EndReason::Complete);
        drop(record);
        let line: serde_json::Value = serde_json::from_str(&world.written()).unwrap();
        for (key, expected) in [
            ("kind", "access"),
            ("audit", "b7f4"),
            ("client", "192.0.2.1:4711"),
            ("user", "jane"),
            ("as", "bob"),
            ("verb", "WATCH"),
            ("method", "GET"),
            ("path", "/apis/example.narthex.dev/v1/greetings?watch=1&token=***"),
            ("protocol", "http/1.1"),
            ("apiservice", "v1.example.narthex.dev"),
            ("endpoint", "10.0.0.1:443"),
            ("end", "complete"),
            ("agent", "kubectl/v1.36.0\u{e9}\""),
        ] {
            assert_eq!(line[key], expected, "{key} of {line}");
        }
        for (key, expected) in [
            ("groups", 1),
            ("as_groups", 0),
            ("status", 200),
            ("dial_us", 7),
            ("tls_us", 8),
            ("in", 5),
            ("out", 7),
            ("retries", 1),
        ] {
            assert_eq!(line[key], expected, "{key} of {line}");
        }
        for key in ["time", "admit_us", "headers_us", "body_us", "total_us"] {
            assert!(!line[key].is_null(), "{key} of {line}");
        }
    }

    #[test]
    fn access_record_of_refusal_is_one_line_with_cause() {
        let world = AccessLogFixture::new(AccessLogMode::Errors, AccessLogFormat::Text);
        world.begin().record_refusal(&refusal());
        let written = world.written();
        assert_eq!(written.lines().count(), 1, "{written}");
        assert!(
            written.contains(" status=403 ")
                && written.contains(" refused=\"Forbidden\" blame=client cause=\"line\\u000abreak\""),
            "{written}"
        );
    }

    #[test]
    fn access_log_modes_select_records() {
        type OutcomeCase = (&'static str, fn(&mut AccessRecord), bool);
        let outcomes: [OutcomeCase; 5] = [
            ("complete", |record| record.set_end(EndReason::Complete), false),
            ("gone", |_| (), false),
            ("broke", |record| record.set_end(EndReason::BackendBroke), true),
            ("refused", |record| record.record_refusal(&refusal()), true),
            ("5xx", |record| record.set_status(502), true),
        ];
        for (name, outcome, is_error) in outcomes {
            for (mode, expected) in
                [(AccessLogMode::Off, false), (AccessLogMode::Errors, is_error), (AccessLogMode::All, true)]
            {
                let world = AccessLogFixture::new(mode, AccessLogFormat::Text);
                outcome(&mut world.begin());
                assert_eq!(!world.written().is_empty(), expected, "{name} {mode:?}");
            }
        }
    }

    #[test]
    fn access_log_writes_slow_requests_unless_long_running() {
        let world = AccessLogFixture::new(AccessLogMode::Errors, AccessLogFormat::Text);
        for (long_running, expected) in [(false, true), (true, false)] {
            let mut record = world.begin();
            record.set_labels(&watch(), long_running, |_| KnownLabels::Resource);
            assert_eq!(record.0.should_write(Duration::from_millis(1001)), expected);
            assert!(!record.0.should_write(Duration::from_millis(999)));
        }
    }

    #[test]
    fn access_record_counts_running_and_finished_watch() {
        let world = AccessLogFixture::new(AccessLogMode::Off, AccessLogFormat::Text);
        let service = world.worker.metrics().service("v1.example.narthex.dev");
        let mut record = world.begin();
        record.set_labels(&watch(), true, |_| KnownLabels::Resource);
        record.set_service(&service);
        record.set_status(200);
        let labels = "component=\"apiserver\",group=\"example.narthex.dev\",resource=\"greetings\",scope=\"cluster\",\
                      subresource=\"\",verb=\"WATCH\",version=\"v1\"";
        let running = format!("apiserver_longrunning_requests{{{labels}}}");
        assert_eq!(world.sample(&running).as_deref(), Some("1"));
        assert_eq!(world.sample("narthex_watches{apiservice=\"v1.example.narthex.dev\"}").as_deref(), Some("1"));
        assert_eq!(world.metrics.apiservice_load("v1.example.narthex.dev").watches, 1);
        drop(record);
        assert_eq!(world.sample(&running), None);
        assert_eq!(world.sample("narthex_watches{apiservice=\"v1.example.narthex.dev\"}").as_deref(), Some("0"));
        let counted = labels.replace("group", "dry_run=\"\",group");
        assert_eq!(world.sample(&format!("apiserver_request_total{{code=\"200\",{counted}}}")).as_deref(), Some("1"));
    }

    #[test]
    fn access_record_of_unparsed_request_is_counted_by_method() {
        let world = AccessLogFixture::new(AccessLogMode::Off, AccessLogFormat::Text);
        world.begin().record_refusal(&refusal());
        let line = "apiserver_request_total{code=\"403\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",\
                    scope=\"\",subresource=\"\",verb=\"GET\",version=\"\"}";
        assert_eq!(world.sample(line).as_deref(), Some("1"));
        assert_eq!(
            world.sample("apiserver_current_inflight_requests{request_kind=\"readOnly\"}").as_deref(),
            Some("0")
        );
    }

    #[test]
    fn access_record_of_rejected_request_is_counted_as_terminated() {
        let world = AccessLogFixture::new(AccessLogMode::Off, AccessLogFormat::Text);
        let mut record = world.begin();
        record.set_labels(&watch(), false, |_| KnownLabels::Resource);
        record
            .record_refusal(&Refusal::new(Blame::Gateway, Status::too_many_requests("later", RetryAfter::Overloaded)));
        drop(record);
        let line = "apiserver_request_terminations_total{code=\"429\",component=\"apiserver\",\
                    group=\"example.narthex.dev\",resource=\"greetings\",scope=\"cluster\",subresource=\"\",\
                    verb=\"WATCH\",version=\"v1\"}";
        assert_eq!(world.sample(line).as_deref(), Some("1"));
    }
}
