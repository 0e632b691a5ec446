//! One event as it travels to the sinks, and as it is written: `audit.k8s.io/v1`, fields in upstream's order, or the
//! one line of the format `legacy`.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use http::{HeaderValue, Method, Uri};
use serde::Serialize;
use serde_json::{Value, json};

use super::body::{Lack, Passed};
use super::policy::{Level, Stage};
use crate::kubeapi::{self, CanonicalPath, Encoding, Query, Quoted, RequestInfo, Status, User};

/// The longest user agent that is written (`maxUserAgentLength` in `k8s.io/apiserver/pkg/audit`).
const LONGEST_AGENT: usize = 1024;
/// What an event weighs besides what it points at.
const EVENT: usize = 512;

/// What is known of a request from its beginning.
pub(super) struct Facts {
    pub(super) level: Level,
    pub(super) omit_managed_fields: bool,
    pub(super) id: HeaderValue,
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) user: Option<Arc<User>>,
    pub(super) agent: Option<HeaderValue>,
    pub(super) sources: Vec<IpAddr>,
    pub(super) received: SystemTime,
}

/// What an event says of a moment. Made on the request's thread from what is at hand there; all that costs time is
/// done on the sink's.
pub(super) struct Event {
    pub(super) facts: Arc<Facts>,
    pub(super) stage: Stage,
    pub(super) at: SystemTime,
    pub(super) impersonated: Option<Arc<Impersonated>>,
    pub(super) outcome: Option<Outcome>,
    pub(super) decision: Option<Decision>,
    /// How an answer ended that did not end well.
    pub(super) end: Option<&'static str>,
    pub(super) request: Option<Passed>,
    pub(super) response: Option<Passed>,
}

/// Whom a user acts as.
pub(super) struct Impersonated {
    pub(super) user: Arc<User>,
    /// The verb of the constrained impersonation that allowed it.
    pub(super) constraint: Option<&'static str>,
}

/// How a request was answered.
#[derive(Clone)]
pub(super) enum Outcome {
    /// By somebody else, with this code.
    Code(u16),
    /// By ourselves, with this failure.
    Refused(Arc<Status>),
    /// Not at all: the client went away before.
    NotAtAll,
    /// Not at all: a defect of ours.
    Panicked,
}

/// What the authorisers said.
#[derive(Clone)]
pub(super) enum Decision {
    Allow(Option<Arc<str>>),
    Forbid(Arc<str>),
    /// Nobody could say.
    Error,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Written<'e> {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    level: &'static str,
    #[serde(rename = "auditID")]
    id: Cow<'e, str>,
    stage: &'static str,
    #[serde(rename = "requestURI")]
    uri: Cow<'e, str>,
    verb: &'e str,
    user: UserInfo<'e>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_user: Option<UserInfo<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authentication_metadata: Option<Value>,
    #[serde(rename = "sourceIPs")]
    sources: Vec<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    user_agent: Cow<'e, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    object_ref: Option<ObjectReference<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_status: Option<ResponseStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_object: Option<&'e Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_object: Option<Value>,
    request_received_timestamp: String,
    stage_timestamp: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<&'static str, String>,
}

#[derive(Serialize, Default)]
struct UserInfo<'e> {
    #[serde(skip_serializing_if = "str::is_empty")]
    username: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: &'e str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    groups: &'e [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<&'e BTreeMap<String, Vec<String>>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ObjectReference<'e> {
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: Cow<'e, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: Cow<'e, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    uid: Cow<'e, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: &'e str,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource_version: Cow<'e, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: &'e str,
}

#[derive(Serialize, Default)]
struct ResponseStatus {
    metadata: Empty,
    #[serde(skip_serializing_if = "String::is_empty")]
    status: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    message: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Value>,
    code: u16,
}

#[derive(Serialize, Default)]
struct Empty {}

impl Event {
    /// The name of the user whose request it is; empty when nobody is known.
    pub(super) fn user(&self) -> &str {
        self.facts.user.as_deref().map_or("", |user| &user.name)
    }

    /// About how much memory it takes, here and when it is written.
    pub(super) fn weight(&self) -> usize {
        let facts = &self.facts;
        let agent = facts.agent.as_ref().map_or(0, HeaderValue::len);
        let bodies = self.request.iter().chain(&self.response).map(Passed::weight).sum::<usize>();
        EVENT + agent + facts.uri.path_and_query().map_or(0, |uri| uri.as_str().len()) + bodies
    }

    /// Appends it as one JSON object; with `kind` and `apiVersion` when it stands alone.
    pub(super) fn write_json(&self, out: &mut Vec<u8>, alone: bool) {
        let facts = &*self.facts;
        let (path, query) = (CanonicalPath::parse(facts.uri.path()), Query::parse(facts.uri.query().unwrap_or("")));
        let info = path.as_ref().ok().and_then(|path| RequestInfo::parse(&facts.method, path, &query).ok());
        let info = info.unwrap_or_default();
        let mut annotations = self.annotations();
        let mut object =
            |passed: &Option<Passed>, key: &'static str| match passed.as_ref()?.object(facts.omit_managed_fields) {
                Ok(object) => Some(object),
                Err(Lack::TooLong) => {
                    // As upstream's truncating backend marks an event whose objects it left out.
                    annotations.insert("audit.k8s.io/truncated", "true".to_owned());
                    None
                }
                Err(Lack::TooExpensive) => {
                    annotations.insert("audit.k8s.io/truncated", "true".to_owned());
                    annotations.insert(key, "left out: it would expand to much more than was sent".to_owned());
                    None
                }
                Err(Lack::NoJson) => {
                    annotations.insert(key, "left out: it cannot be read".to_owned());
                    None
                }
                Err(Lack::Encoding(media)) => {
                    annotations.insert(key, format!("left out: {media} is not made JSON here"));
                    None
                }
            };
        let request_object = object(&self.request, "audit.narthex.dev/request-object");
        let mut response_object = match &self.response {
            // For the status alone, of which the code is known anyway.
            Some(passed) if facts.level < Level::RequestResponse => passed.object(false).ok(),
            passed => object(passed, "audit.narthex.dev/response-object"),
        };
        let response_status = self.outcome.as_ref().map(|outcome| outcome.status(response_object.as_ref()));
        match &self.outcome {
            _ if facts.level < Level::RequestResponse => response_object = None,
            Some(Outcome::Refused(status)) => {
                response_object = serde_json::from_slice(&kubeapi::encode(status, Encoding::Json)).ok();
            }
            _ => {}
        }
        let written = Written {
            kind: alone.then_some("Event"),
            api_version: alone.then_some("audit.k8s.io/v1"),
            level: facts.level.as_str(),
            id: String::from_utf8_lossy(facts.id.as_bytes()),
            stage: self.stage.as_str(),
            uri: facts.uri(),
            verb: &info.verb,
            user: facts.user.as_deref().map(UserInfo::of).unwrap_or_default(),
            impersonated_user: self.impersonated.as_ref().map(|impersonated| UserInfo::of(&impersonated.user)),
            authentication_metadata: self
                .impersonated
                .as_ref()
                .and_then(|impersonated| impersonated.constraint)
                .map(|constraint| json!({"impersonationConstraint": constraint})),
            sources: facts.sources.iter().map(IpAddr::to_string).collect(),
            user_agent: facts.agent(),
            object_ref: info.is_resource_request.then(|| ObjectReference::of(&info, request_object.as_ref())),
            response_status,
            request_object: request_object.as_ref(),
            response_object,
            request_received_timestamp: micro_time(facts.received),
            stage_timestamp: micro_time(self.at),
            annotations,
        };
        // It holds nothing that cannot be written.
        let before = out.len();
        if serde_json::to_writer(&mut *out, &written).is_err() {
            out.truncate(before);
        }
    }

    /// Appends the line of the format `legacy`, without its end (`EventString` in `k8s.io/apiserver/pkg/audit`).
    pub(super) fn write_legacy(&self, out: &mut Vec<u8>) {
        use std::io::Write;
        let facts = &*self.facts;
        let (path, query) = (CanonicalPath::parse(facts.uri.path()), Query::parse(facts.uri.query().unwrap_or("")));
        let info = path.as_ref().ok().and_then(|path| RequestInfo::parse(&facts.method, path, &query).ok());
        let info = info.unwrap_or_default();
        let groups =
            |user: &User| user.groups.iter().map(|group| Quoted(group).to_string()).collect::<Vec<_>>().join(",");
        let (user, user_groups) = match facts.user.as_deref() {
            Some(user) if user.groups.is_empty() => (&*user.name, "<none>".to_owned()),
            Some(user) => (&*user.name, groups(user)),
            None => ("<none>", "<none>".to_owned()),
        };
        let (as_user, as_groups) = match &self.impersonated {
            Some(other) if other.user.groups.is_empty() => (&*other.user.name, "<lookup>".to_owned()),
            Some(other) => (&*other.user.name, groups(&other.user)),
            None => ("<self>", "<lookup>".to_owned()),
        };
        let response =
            self.outcome.as_ref().map_or("<deferred>".to_owned(), |outcome| outcome.status(None).code.to_string());
        // Writing to memory does not fail.
        let _ = write!(
            out,
            "{} AUDIT: id={} stage={} ip={} method={} user={} groups={} as={} asgroups={} user-agent={} namespace={} \
             uri={} response=\"{response}\"",
            jiff::Timestamp::try_from(facts.received).unwrap_or_default(),
            Quoted(&String::from_utf8_lossy(facts.id.as_bytes())),
            Quoted(self.stage.as_str()),
            Quoted(&facts.sources.first().map_or("<unknown>".to_owned(), IpAddr::to_string)),
            Quoted(&info.verb),
            Quoted(user),
            Quoted(&user_groups),
            Quoted(as_user),
            Quoted(&as_groups),
            Quoted(&facts.agent()),
            Quoted(if info.namespace.is_empty() { "<none>" } else { info.namespace }),
            Quoted(&facts.uri()),
        );
    }

    fn annotations(&self) -> BTreeMap<&'static str, String> {
        let mut annotations = BTreeMap::new();
        let (decision, reason) = match &self.decision {
            None => (None, None),
            Some(Decision::Allow(reason)) => (Some("allow"), Some(reason.as_deref().unwrap_or_default())),
            Some(Decision::Forbid(reason)) => (Some("forbid"), Some(&**reason)),
            Some(Decision::Error) => (None, Some("internal error")),
        };
        for (key, value) in [
            ("authorization.k8s.io/decision", decision),
            ("authorization.k8s.io/reason", reason),
            ("audit.narthex.dev/end", self.end),
        ] {
            annotations.extend(value.map(|value| (key, value.to_owned())));
        }
        annotations
    }

    /// One of `user` for `uri`, with a body of so many bytes.
    #[cfg(test)]
    pub(super) fn of(user: &str, uri: &'static str, bytes: usize) -> Arc<Event> {
        let user = Some(Arc::new(User { name: user.to_owned(), ..User::default() }));
        let request = (bytes > 0).then(|| Passed::json(vec![b' '; bytes]));
        let facts = Arc::new(Facts { user, ..Facts::for_test(uri) });
        Arc::new(Event { facts, request, ..Arc::into_inner(Event::for_test()).unwrap() })
    }

    #[cfg(test)]
    pub(super) fn for_test() -> Arc<Event> {
        Arc::new(Event {
            facts: Arc::new(Facts::for_test("/version")),
            stage: Stage::ResponseComplete,
            at: SystemTime::UNIX_EPOCH,
            impersonated: None,
            outcome: Some(Outcome::Code(200)),
            decision: None,
            end: None,
            request: None,
            response: None,
        })
    }
}

impl Facts {
    /// Path and query as they came; but what a parameter holds that is named like a secret stays out of every log.
    fn uri(&self) -> Cow<'_, str> {
        let whole = self.uri.path_and_query().map_or("/", |uri| uri.as_str());
        let Some((path, query)) = whole.split_once('?') else { return whole.into() };
        let secret = |pair: &&str| {
            let name = pair.split('=').next().unwrap_or_default().to_ascii_lowercase();
            ["token", "password", "secret"].iter().any(|end| name.ends_with(end))
        };
        if !query.split('&').any(|pair| secret(&pair)) {
            return whole.into();
        }
        let shown = |pair| {
            if secret(&pair) { format!("{}=***", pair.split('=').next().unwrap_or_default()) } else { pair.to_owned() }
        };
        format!("{path}?{}", query.split('&').map(shown).collect::<Vec<_>>().join("&")).into()
    }

    fn agent(&self) -> Cow<'_, str> {
        let bytes = self.agent.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
        if bytes.len() <= LONGEST_AGENT {
            return String::from_utf8_lossy(bytes);
        }
        format!("{}...TRUNCATED", String::from_utf8_lossy(&bytes[..LONGEST_AGENT])).into()
    }

    #[cfg(test)]
    pub(super) fn for_test(uri: &'static str) -> Facts {
        Facts {
            level: Level::Metadata,
            omit_managed_fields: false,
            id: HeaderValue::from_static("b7f4"),
            method: Method::GET,
            uri: Uri::from_static(uri),
            user: None,
            agent: None,
            sources: vec![[192, 0, 2, 1].into()],
            received: SystemTime::UNIX_EPOCH,
        }
    }
}

impl Outcome {
    /// What is written of it; with what the answer itself says if it is a Status.
    fn status(&self, answered: Option<&Value>) -> ResponseStatus {
        match self {
            Outcome::Code(code) => {
                let said = answered.filter(|object| object["kind"] == "Status" && object["apiVersion"] == "v1");
                let text = |field| said.and_then(|status| status[field].as_str()).unwrap_or_default().to_owned();
                ResponseStatus {
                    status: text("status"),
                    message: text("message"),
                    reason: text("reason"),
                    details: said.and_then(|status| status.get("details")).filter(|it| !it.is_null()).cloned(),
                    code: *code,
                    ..ResponseStatus::default()
                }
            }
            Outcome::Refused(status) => ResponseStatus {
                status: "Failure".to_owned(),
                message: status.message.clone(),
                reason: status.reason.to_owned(),
                details: status.details.as_ref().and_then(|details| serde_json::to_value(details).ok()),
                code: status.code,
                ..ResponseStatus::default()
            },
            // In upstream's words, which people search for.
            Outcome::NotAtAll => ResponseStatus {
                status: "Success".to_owned(),
                message: "Connection closed early".to_owned(),
                code: 200,
                ..ResponseStatus::default()
            },
            Outcome::Panicked => ResponseStatus {
                status: "Failure".to_owned(),
                message: "the gateway panicked; this is a defect of it".to_owned(),
                reason: "InternalError".to_owned(),
                code: 500,
                ..ResponseStatus::default()
            },
        }
    }
}

impl<'e> UserInfo<'e> {
    fn of(user: &'e User) -> UserInfo<'e> {
        let extra = Some(&user.extra).filter(|extra| !extra.is_empty());
        UserInfo { username: &user.name, uid: &user.uid, groups: &user.groups, extra }
    }
}

impl<'e> ObjectReference<'e> {
    /// What the path does not say, the object that was sent may (`LogRequestObject` in `k8s.io/apiserver/pkg/audit`);
    /// a patch is no object.
    fn of(info: &'e RequestInfo<'_>, sent: Option<&'e Value>) -> ObjectReference<'e> {
        let metadata = sent.filter(|_| info.verb != "patch").and_then(|object| object.get("metadata"));
        let says = |field: &str| metadata.and_then(|metadata| metadata.get(field)?.as_str()).unwrap_or_default();
        let or = |known: &'e str, field| if known.is_empty() { says(field) } else { known };
        ObjectReference {
            resource: info.resource,
            namespace: or(info.namespace, "namespace").into(),
            name: or(&info.name, "name").into(),
            uid: says("uid").into(),
            api_group: info.api_group,
            api_version: info.api_version,
            resource_version: says("resourceVersion").into(),
            subresource: info.subresource,
        }
    }
}

/// As `metav1.MicroTime`.
fn micro_time(time: SystemTime) -> String {
    jiff::Timestamp::try_from(time).map(|time| time.strftime("%FT%T%.6fZ").to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
