//! The access record of a running request, and its metrics, audit event and log line at the end.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use http::header::{HeaderValue, USER_AGENT};
use http::{HeaderMap, Method, Request, Uri, Version};

use super::{Mode, Receipt, RefusedRequest, Worker};
use crate::kubeapi::User;
use crate::message::{Blame, Refusal};
use crate::observe::audit::{Audited, Auditor, Begin, Known as Facts};
use crate::observe::metrics::{BackendPhase, Ended, Endpoint, Known, RequestLabels, Retry, Series, Service, Verb};

/// Under [`Mode::Errors`], a longer request is written unless it is long-running.
const SLOW: Duration = Duration::from_secs(1);

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The response was sent completely.
    Complete,
    /// The client disconnected before that; also the default of a record that is dropped.
    ClientGone,
    /// The backend's response was truncated, and therefore the client's.
    BackendBroke,
    /// The request timed out.
    Timeout,
    /// A watch or tunnel was ended by the shutdown.
    Drained,
    /// The client did not read the response while it held memory that other requests needed.
    SlowClient,
    /// Aborted by this process: the client's certificate is not trusted any more, or the shutdown timed out.
    Cut,
}

impl End {
    pub(in crate::observe) fn as_str(self) -> &'static str {
        match self {
            End::Complete => "complete",
            End::ClientGone => "client-gone",
            End::BackendBroke => "backend-broke",
            End::Timeout => "timeout",
            End::Drained => "drained",
            End::SlowClient => "slow-client",
            End::Cut => "cut",
        }
    }
}

/// Durations of the phases of opening a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Name resolution and TCP handshake, with the backend or its egress proxy.
    pub dial: Duration,
    /// Time until the egress proxy had connected; zero without a proxy.
    pub proxy: Duration,
    /// TLS handshake.
    pub tls: Duration,
}

/// Access record of one request: opened by [`Worker::begin`], written and counted when dropped.
///
/// One pointer wide, so that the stream of a watch can hold it.
pub struct AccessRecord(Box<Open>);

pub(super) struct Open {
    pub(super) worker: Rc<Worker>,
    pub(super) began: Instant,
    /// End of the last recorded phase.
    pub(super) last: Instant,
    pub(super) client: SocketAddr,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) version: Version,
    pub(super) agent: Option<HeaderValue>,
    pub(super) audit_id: Option<HeaderValue>,
    pub(super) user: Option<Arc<User>>,
    pub(super) impersonated: Option<Arc<User>>,
    pub(super) counted: Option<Counted>,
    pub(super) service: Option<Rc<Service>>,
    pub(super) endpoint: Option<Rc<Endpoint>>,
    pub(super) admitted: Option<Duration>,
    pub(super) opening: Option<Opening>,
    pub(super) answered: Option<Duration>,
    pub(super) status: u16,
    pub(super) sent: u64,
    pub(super) receipt: Option<Rc<Receipt>>,
    pub(super) retries: u32,
    pub(super) end: End,
    pub(super) refusal: Option<Refused>,
    /// Set if the request is audited.
    pub(super) audited: Option<Box<Audited>>,
}

#[derive(Clone, Copy)]
pub(super) struct Counted {
    pub(super) series: Series,
    pub(super) verb: Verb,
    pub(super) long_running: bool,
}

pub(super) struct Refused {
    pub(super) blame: Blame,
    pub(super) reason: &'static str,
    pub(super) cause: Box<str>,
}

impl Worker {
    /// Opens the record of `request` from `client`.
    pub fn begin<B>(self: &Rc<Self>, client: SocketAddr, request: &Request<B>) -> AccessRecord {
        let now = Instant::now();
        AccessRecord(Box::new(Open {
            worker: self.clone(),
            began: now,
            last: now,
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
            admitted: None,
            opening: None,
            answered: None,
            status: 0,
            sent: 0,
            receipt: None,
            retries: 0,
            end: End::ClientGone,
            refusal: None,
            audited: None,
        }))
    }
}

impl AccessRecord {
    /// When the request started.
    pub fn began(&self) -> Instant {
        self.0.began
    }

    /// When the last recorded phase ended.
    pub fn last_phase_ended(&self) -> Instant {
        self.0.last
    }

    /// Sets the value of `Audit-Id`.
    pub fn audit_id(&mut self, id: HeaderValue) {
        self.0.audit_id = Some(id);
    }

    /// Evaluates the audit policy and emits the first event. Called once, while the headers are still the client's.
    pub fn audit(&mut self, auditor: &Arc<Auditor>, begin: &Begin<'_>) {
        let open = &mut *self.0;
        let known = Facts {
            id: open.audit_id.as_ref(),
            method: &open.method,
            uri: &open.uri,
            agent: open.agent.as_ref(),
            client: open.client.ip(),
            began: open.began,
        };
        open.audited = auditor.begin(begin, &known);
        if let Some(audited) = &open.audited
            && let Some(copy) = audited.request(begin.headers)
        {
            open.receipt = Some(Rc::new(Receipt::copied(Some(copy))));
        }
    }

    /// Audit context of the request, if it is audited.
    pub fn audited(&mut self) -> Option<&mut Audited> {
        self.0.audited.as_deref_mut()
    }

    /// Sets the authenticated user.
    pub fn user(&mut self, user: &Arc<User>) {
        self.0.user = Some(user.clone());
    }

    /// Sets the impersonated user; `constraint` is the verb of constrained impersonation that allowed it.
    pub fn impersonated(&mut self, user: &Arc<User>, constraint: Option<&'static str>) {
        self.0.impersonated = Some(user.clone());
        if let Some(audited) = &mut self.0.audited {
            audited.impersonates(user, constraint);
        }
    }

    /// Sets the metric labels; from now on the request counts as in flight, or as long-running. `known` as for
    /// [`WorkerMetrics::series`](crate::observe::metrics::WorkerMetrics::series). Only the first call has an effect.
    pub fn asks(
        &mut self,
        labels: &RequestLabels<'_>,
        long_running: bool,
        known: impl FnOnce(&RequestLabels<'_>) -> Known,
    ) {
        if self.0.counted.is_none() {
            let metrics = &self.0.worker.metrics;
            let series = metrics.series(labels, known);
            let verb = metrics.request_began(series, long_running);
            self.0.counted = Some(Counted { series, verb, long_running });
        }
    }

    /// Marks the request as long-running because of the type of its response.
    pub fn runs_long(&mut self) {
        let open = &mut *self.0;
        if let Some(counted) = open.counted.as_mut().filter(|counted| !counted.long_running) {
            counted.long_running = true;
            open.worker.metrics.request_runs_long(counted.series);
            if let Some(service) = &open.service {
                service.request_runs_long();
            }
        }
    }

    /// Sets the APIService; after [`AccessRecord::asks`]. Only the first call has an effect.
    pub fn service(&mut self, service: &Rc<Service>) {
        if self.0.service.is_none() {
            let (long_running, watch) = self.0.kind();
            service.request_began(long_running, watch);
            self.0.service = Some(service.clone());
        }
    }

    /// Sets the endpoint; the last call takes effect.
    pub fn endpoint(&mut self, endpoint: &Rc<Endpoint>) {
        self.0.endpoint = Some(endpoint.clone());
    }

    /// The request is authenticated, authorized, routed, and within the inflight limits.
    pub fn admitted(&mut self) {
        self.0.admitted = Some(self.0.lap());
    }

    /// The backend's response headers were received; `opening` if a connection was opened for this request.
    pub fn answered(&mut self, opening: Option<Opening>) {
        let opened = opening.map(|opening| opening.dial + opening.proxy + opening.tls).unwrap_or_default();
        self.0.answered = Some(self.0.lap().saturating_sub(opened));
        self.0.opening = opening;
    }

    /// Sets the status code sent to the client.
    pub fn status(&mut self, code: u16) {
        self.0.status = code;
        if let Some(audited) = &mut self.0.audited {
            audited.started(code);
        }
    }

    /// Records the head of the response; its body has `length` bytes if that is known.
    pub fn answers(&mut self, code: u16, headers: &HeaderMap, length: Option<u64>) {
        if let Some(audited) = &mut self.0.audited {
            audited.answers(code, headers, length);
        }
        self.status(code);
    }

    /// Records a part of the response body.
    pub fn sends(&mut self, data: &[u8]) {
        self.sent(data.len());
        if let Some(audited) = &mut self.0.audited {
            audited.sends(data);
        }
    }

    /// Adds to the number of bytes sent to the client.
    pub fn sent(&mut self, bytes: usize) {
        self.0.sent += bytes as u64;
    }

    /// Counter of the request body; only for requests with a body.
    pub fn receipt(&mut self) -> Rc<Receipt> {
        self.0.receipt.get_or_insert_default().clone()
    }

    /// Whether the client aborted the request body.
    pub fn broken_by_client(&self) -> bool {
        self.0.receipt.as_ref().is_some_and(|receipt| receipt.is_broken())
    }

    /// Records that the request is retried.
    pub fn retried(&mut self, reason: Retry) {
        self.0.retries += 1;
        if let Some(service) = &self.0.service {
            service.retried(reason);
        }
    }

    /// Records a refusal as the response; sets its status code.
    pub fn refused(&mut self, refusal: &Refusal) {
        let status = refusal.status();
        self.0.status = status.code;
        if let Some(audited) = &mut self.0.audited {
            audited.refused(status);
        }
        let cause = if refusal.cause().is_empty() { &status.message } else { refusal.cause() };
        self.0.refusal = Some(Refused { blame: refusal.blame(), reason: status.reason, cause: cause.into() });
    }

    /// Sets how the request ended; the last call takes effect.
    pub fn ended(&mut self, end: End) {
        self.0.end = end;
    }
}

impl Open {
    fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.last, now)
    }

    /// Whether the request is long-running, and whether it is a watch.
    fn kind(&self) -> (bool, bool) {
        self.counted.map_or((false, false), |counted| (counted.long_running, counted.verb == Verb::Watch))
    }

    /// Whether the request counts in `apiserver_request_terminations_total`: kube-apiserver counts requests that it
    /// rejected or aborted in self-defense, with 429 or a timeout.
    fn in_self_defence(&self) -> bool {
        self.end == End::Timeout
            || self
                .refusal
                .as_ref()
                .is_some_and(|refused| refused.blame == Blame::Gateway && matches!(self.status, 429 | 503 | 504))
    }

    fn is_written(&self, took: Duration) -> bool {
        match self.worker.settings.mode {
            Mode::Off => false,
            Mode::All => true,
            Mode::Errors => self.is_refused() || (took > SLOW && !self.kind().0),
        }
    }

    /// Whether the request was refused or failed.
    fn is_refused(&self) -> bool {
        self.refusal.is_some()
            || self.status >= 500
            || matches!(self.end, End::BackendBroke | End::Timeout | End::Cut | End::SlowClient)
    }

    /// The entry of the refusal log.
    fn refused(&self) -> RefusedRequest {
        let name = |user: &Option<Arc<User>>| user.as_ref().map(|user| user.name.clone()).unwrap_or_default();
        let (reason, cause) = match &self.refusal {
            Some(Refused { reason, cause, .. }) => (*reason, String::from(&**cause)),
            None if self.end == End::Complete && self.service.is_some() => ("", "response of the backend".to_owned()),
            None => (self.end.as_str(), String::new()),
        };
        RefusedRequest {
            time: SystemTime::now(),
            client: self.client.ip(),
            user: name(&self.user),
            impersonated: name(&self.impersonated),
            verb: self.counted.map_or(self.method.as_str(), |counted| counted.verb.as_str()).to_owned(),
            path: self.uri.path().to_owned(),
            status: self.status,
            reason: reason.to_owned(),
            cause,
            audit_id: self.audit_id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned(),
            count: 1,
        }
    }

    fn count(&self, took: Duration, body: Option<Duration>) {
        let metrics = &self.worker.metrics;
        // A request that was refused before it was parsed is counted by its method.
        let (long_running, watch) = self.kind();
        let series = match self.counted {
            Some(counted) => counted.series,
            None => {
                let series = metrics.series(&RequestLabels::path(&self.method, ""), |_| Known::Nothing);
                metrics.request_began(series, long_running);
                series
            }
        };
        let ended = Ended {
            code: self.status,
            took,
            bytes: self.sent,
            in_self_defence: self.in_self_defence(),
            by_slow_client: self.end == End::SlowClient,
        };
        metrics.request_ended(series, long_running, &ended);
        if let Some(service) = &self.service {
            service.request_ended(long_running, watch);
        }
        if let Some(endpoint) = &self.endpoint {
            if let Some(opening) = self.opening {
                endpoint.observe(BackendPhase::Dial, opening.dial);
                if !opening.proxy.is_zero() {
                    endpoint.observe(BackendPhase::Proxy, opening.proxy);
                }
                endpoint.observe(BackendPhase::Tls, opening.tls);
            }
            if let Some(headers) = self.answered {
                endpoint.observe(BackendPhase::Headers, headers);
            }
            if let Some(body) = body {
                endpoint.observe(BackendPhase::Body, body);
            }
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let now = Instant::now();
        let took = now - self.began;
        let body = self.answered.is_some().then(|| now - self.last);
        if self.end == End::ClientGone && self.worker.cutting.get() {
            self.end = End::Cut;
        }
        self.count(took, body);
        if let Some(audited) = self.audited.take() {
            let request = self.receipt.as_ref().and_then(|receipt| receipt.take());
            audited.end(self.status, self.end, request);
        }
        if self.is_refused() {
            self.worker.sink.refused(self.refused());
        }
        if self.is_written(took) {
            self.worker.sink.write(|out| self.write(out, took, body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::writer::tests::Written;
    use super::super::{AccessLog, Form, Settings};
    use super::*;
    use crate::kubeapi::Status;
    use crate::observe::metrics::{DryRun, Format, Metrics, Scope};

    struct World {
        metrics: Arc<Metrics>,
        written: Written,
        log: AccessLog,
        worker: Rc<Worker>,
    }

    impl World {
        fn new(mode: Mode, form: Form) -> World {
            let (metrics, written) = (Metrics::new(), Written::default());
            let log = AccessLog::to(Box::new(written.clone()), &metrics).unwrap();
            let worker = Worker::new(&metrics, &log, Settings { mode, form });
            World { metrics, written, log, worker }
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
            let text = self.metrics.render(Format::Classic);
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
        Refusal::new(Blame::Client, Status::new(403, "Forbidden", "no")).because("line\nbreak")
    }

    #[test]
    fn a_record_says_all_it_knows() {
        let world = World::new(Mode::All, Form::Json);
        let mut record = world.begin();
        record.audit_id(HeaderValue::from_static("b7f4"));
        record.user(&Arc::new(User { name: "jane".into(), groups: vec!["dev".into()], ..User::default() }));
        record.impersonated(&Arc::new(User { name: "bob".into(), ..User::default() }), None);
        record.asks(&watch(), true, |_| Known::Resource);
        record.service(&world.worker.metrics().service("v1.example.narthex.dev"));
        record.endpoint(&world.worker.metrics().endpoint("v1.example.narthex.dev", "10.0.0.1:443"));
        record.admitted();
        record.answered(Some(Opening {
            dial: Duration::from_micros(7),
            proxy: Duration::ZERO,
            tls: Duration::from_micros(8),
        }));
        record.status(200);
        record.receipt().carried(5);
        record.sent(3);
        record.sent(4);
        record.retried(Retry::StaleConnection);
        record.ended(End::Complete);
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
    fn a_refusal_is_one_line_with_its_private_cause() {
        let world = World::new(Mode::Errors, Form::Text);
        world.begin().refused(&refusal());
        let written = world.written();
        assert_eq!(written.lines().count(), 1, "{written}");
        assert!(
            written.contains(" status=403 ")
                && written.contains(" refused=\"Forbidden\" blame=client cause=\"line\\u000abreak\""),
            "{written}"
        );
    }

    #[test]
    fn modes_choose_what_is_written() {
        type Outcome = (&'static str, fn(&mut AccessRecord), bool);
        let outcomes: [Outcome; 5] = [
            ("complete", |record| record.ended(End::Complete), false),
            ("gone", |_| (), false),
            ("broke", |record| record.ended(End::BackendBroke), true),
            ("refused", |record| record.refused(&refusal()), true),
            ("5xx", |record| record.status(502), true),
        ];
        for (name, outcome, is_error) in outcomes {
            for (mode, expected) in [(Mode::Off, false), (Mode::Errors, is_error), (Mode::All, true)] {
                let world = World::new(mode, Form::Text);
                outcome(&mut world.begin());
                assert_eq!(!world.written().is_empty(), expected, "{name} {mode:?}");
            }
        }
    }

    #[test]
    fn what_is_slow_is_written_unless_it_is_meant_to_be() {
        let world = World::new(Mode::Errors, Form::Text);
        for (long_running, expected) in [(false, true), (true, false)] {
            let mut record = world.begin();
            record.asks(&watch(), long_running, |_| Known::Resource);
            assert_eq!(record.0.is_written(Duration::from_millis(1001)), expected);
            assert!(!record.0.is_written(Duration::from_millis(999)));
        }
    }

    #[test]
    fn a_watch_is_counted_while_it_runs_and_after() {
        let world = World::new(Mode::Off, Form::Text);
        let service = world.worker.metrics().service("v1.example.narthex.dev");
        let mut record = world.begin();
        record.asks(&watch(), true, |_| Known::Resource);
        record.service(&service);
        record.status(200);
        let labels = "component=\"apiserver\",group=\"example.narthex.dev\",resource=\"greetings\",scope=\"cluster\",\
                      subresource=\"\",verb=\"WATCH\",version=\"v1\"";
        let running = format!("apiserver_longrunning_requests{{{labels}}}");
        assert_eq!(world.sample(&running).as_deref(), Some("1"));
        assert_eq!(world.sample("narthex_watches{apiservice=\"v1.example.narthex.dev\"}").as_deref(), Some("1"));
        assert_eq!(world.metrics.running("v1.example.narthex.dev").watches, 1);
        drop(record);
        assert_eq!(world.sample(&running), None);
        assert_eq!(world.sample("narthex_watches{apiservice=\"v1.example.narthex.dev\"}").as_deref(), Some("0"));
        let counted = labels.replace("group", "dry_run=\"\",group");
        assert_eq!(world.sample(&format!("apiserver_request_total{{code=\"200\",{counted}}}")).as_deref(), Some("1"));
    }

    #[test]
    fn a_request_nobody_understood_is_counted_by_its_method() {
        let world = World::new(Mode::Off, Form::Text);
        world.begin().refused(&refusal());
        let line = "apiserver_request_total{code=\"403\",component=\"apiserver\",dry_run=\"\",group=\"\",resource=\"\",\
                    scope=\"\",subresource=\"\",verb=\"GET\",version=\"\"}";
        assert_eq!(world.sample(line).as_deref(), Some("1"));
        assert_eq!(
            world.sample("apiserver_current_inflight_requests{request_kind=\"readOnly\"}").as_deref(),
            Some("0")
        );
    }

    #[test]
    fn what_we_cut_is_counted_as_terminated() {
        let world = World::new(Mode::Off, Form::Text);
        let mut record = world.begin();
        record.asks(&watch(), false, |_| Known::Resource);
        record.refused(&Refusal::new(Blame::Gateway, Status::too_many_requests("later", 1)));
        drop(record);
        let line = "apiserver_request_terminations_total{code=\"429\",component=\"apiserver\",\
                    group=\"example.narthex.dev\",resource=\"greetings\",scope=\"cluster\",subresource=\"\",\
                    verb=\"WATCH\",version=\"v1\"}";
        assert_eq!(world.sample(line).as_deref(), Some("1"));
    }
}
