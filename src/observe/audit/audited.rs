//! One request while it is audited: what it was judged by, and what became known of it since.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use http::{HeaderMap, HeaderValue, Method, Uri};

use super::Auditor;
use super::body::{Copy, Passed};
use super::event::{Decision, Event, Facts, Impersonated, Outcome};
use super::policy::{Level, Stage, Verdict};
use crate::kubeapi::{RequestInfo, Status, User};
use crate::observe::access::End;

/// A failed answer of a backend is looked into up to here, for the status it is.
const LONGEST_STATUS: u64 = 64 << 10;

/// What an audit begins with.
pub struct Begin<'b> {
    /// What is asked.
    pub info: &'b RequestInfo<'b>,
    /// Who asks; nobody when the request is turned away, or answered, before that is known.
    pub user: Option<&'b Arc<User>>,
    /// The client's headers.
    pub headers: &'b HeaderMap,
    /// Whether the answer goes on for long.
    pub long_running: bool,
    /// Whether nobody knows who asks, which is all there is to say (`WithFailedAuthenticationAudit`).
    pub unauthenticated: bool,
}

/// What a record knows of its request.
pub(in crate::observe) struct Known<'k> {
    pub(in crate::observe) id: Option<&'k HeaderValue>,
    pub(in crate::observe) method: &'k Method,
    pub(in crate::observe) uri: &'k Uri,
    pub(in crate::observe) agent: Option<&'k HeaderValue>,
    pub(in crate::observe) client: IpAddr,
    pub(in crate::observe) began: Instant,
}

/// A request that is audited; its last event is made when it [ends](Audited::end).
pub struct Audited {
    auditor: Arc<Auditor>,
    facts: Arc<Facts>,
    verdict: Verdict,
    resource: bool,
    long_running: bool,
    unauthenticated: bool,
    started: bool,
    refused: Option<Arc<Status>>,
    decision: Option<Decision>,
    impersonated: Option<Arc<Impersonated>>,
    response: Option<Result<Copy, Passed>>,
}

impl Auditor {
    /// Judges a request and, if anything is to be written of it, begins with that.
    pub(in crate::observe) fn begin(self: &Arc<Auditor>, begin: &Begin<'_>, known: &Known<'_>) -> Option<Box<Audited>> {
        let verdict = self.policy.load().judge(begin.user.map(|user| &**user), begin.info);
        self.metrics.audit().judged(verdict.level);
        if verdict.level == Level::None {
            return None;
        }
        let received = SystemTime::now().checked_sub(known.began.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        let facts = Facts {
            level: verdict.level,
            omit_managed_fields: verdict.omit_managed_fields,
            id: known.id.cloned().unwrap_or_else(|| HeaderValue::from_static("")),
            method: known.method.clone(),
            uri: known.uri.clone(),
            user: begin.user.cloned(),
            agent: known.agent.cloned(),
            sources: sources(begin.headers, known.client),
            received,
        };
        let audited = Audited {
            auditor: self.clone(),
            facts: Arc::new(facts),
            verdict,
            resource: begin.info.is_resource_request,
            long_running: begin.long_running || begin.unauthenticated,
            unauthenticated: begin.unauthenticated,
            started: false,
            refused: None,
            decision: None,
            impersonated: None,
            response: None,
        };
        if !begin.unauthenticated && !verdict.omit.has(Stage::RequestReceived) {
            audited.auditor.emit(audited.event(Stage::RequestReceived, received));
        }
        Some(Box::new(audited))
    }
}

impl Audited {
    /// The authorisers said that it may be, and why, if they gave a reason.
    pub fn allowed(&mut self, reason: Option<&Arc<str>>) {
        self.decision = Some(Decision::Allow(reason.cloned()));
    }

    /// They said that it may not be, and why; or they could not say.
    pub fn denied(&mut self, reason: Option<&str>) {
        self.decision = Some(reason.map_or(Decision::Error, |reason| Decision::Forbid(reason.into())));
    }

    /// The request goes on as that of `user`; `constraint` is the verb of constrained impersonation that allowed it.
    pub(in crate::observe) fn impersonates(&mut self, user: &Arc<User>, constraint: Option<&'static str>) {
        self.impersonated = Some(Arc::new(Impersonated { user: user.clone(), constraint }));
    }

    /// A copy of the request's body, to be filled as it passes; none when it is not written.
    pub(in crate::observe) fn request(&self, headers: &HeaderMap) -> Option<Result<Copy, Passed>> {
        let wanted = self.resource && self.verdict.level >= Level::Request;
        wanted.then(|| Copy::of_request(headers, self.user(), &self.auditor.held))
    }

    /// We answer with a failure.
    pub(in crate::observe) fn refused(&mut self, status: &Status) {
        self.refused = Some(Arc::new(status.clone()));
    }

    /// The head of an answer that somebody else gives is here.
    pub(in crate::observe) fn answers(&mut self, code: u16, headers: &HeaderMap, length: Option<u64>) {
        if self.refused.is_some() {
            return;
        }
        let failure = code >= 400 && length.is_none_or(|length| length <= LONGEST_STATUS);
        let object = self.resource && !self.long_running && self.verdict.level == Level::RequestResponse;
        if object || failure {
            self.response = Some(Copy::of_response(headers, self.user(), &self.auditor.held));
        }
    }

    /// Some of the answer's body passes.
    pub(in crate::observe) fn sends(&mut self, data: &[u8]) {
        if let Some(Ok(copy)) = &mut self.response {
            copy.more(data);
        }
    }

    /// The client gets an answer with this code.
    pub(in crate::observe) fn started(&mut self, code: u16) {
        if self.long_running && !self.started && !self.verdict.omit.has(Stage::ResponseStarted) {
            let mut event = self.event(Stage::ResponseStarted, SystemTime::now());
            event.outcome = Some(self.outcome(code));
            self.auditor.emit(event);
        }
        self.started = true;
    }

    /// It is over: `code` is what the client got, or 0 if it got nothing.
    pub(in crate::observe) fn end(mut self, code: u16, end: End, request: Option<Passed>) {
        let panicked = std::thread::panicking();
        let stage = if panicked { Stage::Panic } else { Stage::ResponseComplete };
        if self.unauthenticated || self.verdict.omit.has(stage) {
            return;
        }
        if !panicked {
            self.started(code);
        }
        let mut event = self.event(stage, SystemTime::now());
        event.outcome = Some(if panicked { Outcome::Panicked } else { self.outcome(code) });
        event.end = (end != End::Complete && code != 0 && !panicked).then(|| end.as_str());
        event.request = request;
        event.response = self.response.take().and_then(|copy| copy.map_or_else(Some, Copy::end));
        self.auditor.emit(event);
    }

    fn user(&self) -> &str {
        self.facts.user.as_deref().map_or("", |user| &user.name)
    }

    fn outcome(&self, code: u16) -> Outcome {
        match (&self.refused, code) {
            (Some(status), _) => Outcome::Refused(status.clone()),
            (None, 0) => Outcome::NotAtAll,
            (None, code) => Outcome::Code(code),
        }
    }

    fn event(&self, stage: Stage, at: SystemTime) -> Event {
        Event {
            facts: self.facts.clone(),
            stage,
            at,
            impersonated: self.impersonated.clone(),
            outcome: None,
            decision: self.decision.clone(),
            end: None,
            request: None,
            response: None,
        }
    }
}

/// Whence a request came, as `k8s.io/apimachinery/pkg/util/net.SourceIPs` finds out: what proxies and clients say,
/// then the address that cannot be made up.
fn sources(headers: &HeaderMap, client: IpAddr) -> Vec<IpAddr> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut sources: Vec<IpAddr> = text("x-forwarded-for").split(',').filter_map(|part| address(part.trim())).collect();
    if let Some(real) = address(text("x-real-ip"))
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

/// As Go's `ParseIPSloppy`: numbers of an IPv4 address may begin with zeros.
fn address(text: &str) -> Option<IpAddr> {
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
    use super::super::queue::Queue;
    use super::super::{Policy, Sink};
    use super::*;
    use crate::kubeapi::{CanonicalPath, Query};
    use crate::observe::metrics::Metrics;
    use crate::process::{Published, Shares};

    struct World {
        auditor: Arc<Auditor>,
        queue: Arc<Queue>,
    }

    impl World {
        fn new(rules: &str) -> World {
            let text = format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{rules}]\n");
            let queue = Queue::new(100, usize::MAX, 100, || {});
            let sinks = vec![Sink { name: "test", queue: queue.clone() }];
            let policy = Published::fixed(Policy::parse("p", &text).unwrap());
            World {
                auditor: Arc::new(Auditor { policy, sinks, metrics: Metrics::new(), held: Shares::new(1 << 20) }),
                queue,
            }
        }

        fn begin(&self, uri: &'static str, unauthenticated: bool) -> Option<Box<Audited>> {
            let uri = Uri::from_static(uri);
            let (path, query) = (CanonicalPath::parse(uri.path()).unwrap(), Query::parse(uri.query().unwrap_or("")));
            let info = RequestInfo::parse(&Method::GET, &path, &query).unwrap();
            let (user, headers) = (Arc::new(User { name: "jane".into(), ..User::default() }), HeaderMap::new());
            let begin = Begin {
                info: &info,
                user: (!unauthenticated).then_some(&user),
                headers: &headers,
                long_running: info.is_long_running(),
                unauthenticated,
            };
            let client = IpAddr::from([192, 0, 2, 1]);
            let known = Known { id: None, method: &Method::GET, uri: &uri, agent: None, client, began: Instant::now() };
            self.auditor.begin(&begin, &known)
        }

        /// Stages and codes of the events so far.
        fn told(&self) -> Vec<(String, serde_json::Value)> {
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

    fn told(stages: &[(&str, u16)]) -> Vec<(String, serde_json::Value)> {
        let code = |code: u16| if code == 0 { serde_json::Value::Null } else { code.into() };
        stages.iter().map(|(stage, of)| ((*stage).to_owned(), code(*of))).collect()
    }

    #[test]
    fn the_stages_of_every_kind_of_end() {
        let world = World::new("{level: Metadata}");
        let (received, started, complete) = ("RequestReceived", "ResponseStarted", "ResponseComplete");
        let mut plain = world.begin("/apis/g/v1/things", false).unwrap();
        plain.started(200);
        plain.end(200, End::Complete, None);
        assert_eq!(world.told(), told(&[(received, 0), (complete, 200)]));

        let mut watch = world.begin("/apis/g/v1/things?watch=1", false).unwrap();
        watch.started(200);
        watch.started(200);
        watch.end(200, End::Drained, None);
        assert_eq!(world.told(), told(&[(received, 0), (started, 200), (complete, 200)]));

        // The client went away before there was an answer.
        world.begin("/apis/g/v1/things?watch=1", false).unwrap().end(0, End::ClientGone, None);
        assert_eq!(world.told(), told(&[(received, 0), (started, 200), (complete, 200)]));

        let mut nobody = world.begin("/apis/g/v1/things", true).unwrap();
        nobody.refused(&Status::unauthorized());
        nobody.started(401);
        nobody.end(401, End::Complete, None);
        assert_eq!(world.told(), told(&[(started, 401)]));

        let audited = world.begin("/apis/g/v1/things", false).unwrap();
        let panicked = std::thread::spawn(move || {
            struct Ends(Option<Box<Audited>>);
            impl Drop for Ends {
                fn drop(&mut self) {
                    self.0.take().unwrap().end(0, End::ClientGone, None);
                }
            }
            let _ends = Ends(Some(audited));
            panic!("on purpose");
        });
        assert!(panicked.join().is_err());
        assert_eq!(world.told(), told(&[(received, 0), ("Panic", 500)]));
    }

    #[test]
    fn what_the_policy_leaves_out_is_not_made() {
        let world = World::new(
            "{level: None, nonResourceURLs: [/version]}, {level: Metadata, omitStages: [RequestReceived, ResponseStarted, ResponseComplete]}",
        );
        assert!(world.begin("/version", false).is_none());
        for unauthenticated in [false, true] {
            let mut audited = world.begin("/apis/g/v1/things?watch=1", unauthenticated).unwrap();
            audited.started(200);
            audited.end(200, End::Complete, None);
        }
        assert_eq!(world.told(), told(&[]));
    }

    #[test]
    fn sources_as_upstream_finds_them() {
        let found = |forwarded: &'static str, real: &'static str| {
            let mut headers = HeaderMap::new();
            for (name, value) in [("x-forwarded-for", forwarded), ("x-real-ip", real)] {
                if !value.is_empty() {
                    headers.append(name, HeaderValue::from_static(value));
                }
            }
            headers.append("x-forwarded-for", HeaderValue::from_static("192.0.2.99"));
            let sources = sources(&headers, "::ffff:192.0.2.1".parse().unwrap());
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
