//! Parser of `AuthorizationConfiguration`, validated like `pkg/apis/apiserver/validation` of k8s.io/apiserver.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::MatchConditions;
use crate::kubeapi::{duration, is_dns_subdomain};
use crate::process::{Fields, Problem, Problems, configuration, is_json, text_of};
use crate::review::Version;

const KIND: &str = "AuthorizationConfiguration";
const LARGEST: u64 = 4 << 20;
const MOST_CONDITIONS: usize = 64;
const LONGEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The parsed file.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// The file name in problems.
    pub(super) place: String,
    /// The text of the file.
    pub(super) text: String,
    /// The authorizers, in order.
    pub(super) authorizers: Vec<Written>,
}

/// What other flags require of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demands {
    /// Whether there are RBAC objects (`--authorization-policy-file`).
    pub policy: bool,
    /// Whether an authorizer must evaluate users (`--serve-delegation`).
    pub decision: bool,
}

/// The configuration of one authorizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Written {
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// The type of an authorizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Kind {
    AlwaysAllow,
    AlwaysDeny,
    /// RBAC objects, from a file.
    Rbac,
    Webhook(Box<Webhook>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Webhook {
    pub(super) connection: Connection,
    pub(super) version: Version,
    pub(super) timeout: Duration,
    /// The cache TTL of allowed decisions; zero for no caching.
    pub(super) authorized_ttl: Duration,
    /// The cache TTL of denied decisions; zero for no caching.
    pub(super) unauthorized_ttl: Duration,
    pub(super) denies_on_failure: bool,
    pub(super) conditions: Option<MatchConditions>,
}

/// Where the webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Kubeconfig(PathBuf),
    InCluster,
}

impl Kind {
    /// The type name in the file.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Kind::AlwaysAllow => "AlwaysAllow",
            Kind::AlwaysDeny => "AlwaysDeny",
            Kind::Rbac => "RBAC",
            Kind::Webhook(_) => "Webhook",
        }
    }
}

impl Configuration {
    /// Reads the file, and reports all errors at once.
    pub fn load(path: &Path) -> Result<Configuration, Problems> {
        let text = text_of(path, LARGEST)?;
        Configuration::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of such a file; `place` is the file name in problems.
    pub fn parse(place: &str, text: &str, json: bool) -> Result<Configuration, Problems> {
        configuration(place, text, json, KIND, |fields| {
            if fields.lacks("authorizers") {
                fields.problem("authorizers", "at least one authorization mode must be defined");
            }
            let mut seen = Seen::default();
            let authorizers =
                fields.each("authorizers").into_iter().filter_map(|one| authorizer(one, &mut seen)).collect();
            Configuration { place: place.to_owned(), text: text.to_owned(), authorizers }
        })
    }

    /// Checks the configuration against other flags.
    pub(super) fn check(&self, demands: &Demands) -> Problems {
        let mut problems = Problems::default();
        let mut decides = false;
        for (number, authorizer) in self.authorizers.iter().enumerate() {
            let field = format!("authorizers[{number}].type");
            match &authorizer.kind {
                Kind::Rbac if !demands.policy => {
                    let message = "RBAC requires --authorization-policy-file, the file with the RBAC objects";
                    problems.0.push(Problem::field(&self.place, field, message));
                }
                Kind::AlwaysAllow if demands.decision => {
                    let message = "AlwaysAllow cannot be used with --serve-delegation, which requires real decisions";
                    problems.0.push(Problem::field(&self.place, field, message));
                }
                Kind::Webhook(_) | Kind::Rbac => decides = true,
                Kind::AlwaysAllow | Kind::AlwaysDeny => {}
            }
        }
        if demands.decision && !decides && problems.0.is_empty() {
            let message = "--serve-delegation requires an authorizer of type Webhook or RBAC";
            problems.0.push(Problem::field(&self.place, "authorizers", message));
        }
        problems
    }
}

#[derive(Default)]
struct Seen {
    types: BTreeSet<&'static str>,
    names: BTreeSet<String>,
}

fn authorizer(mut fields: Fields<'_>, seen: &mut Seen) -> Option<Written> {
    let written = fields.text("type");
    let name = fields.text("name");
    let webhook = fields.has("webhook");
    let kind = match &*written {
        "AlwaysAllow" => Some(Kind::AlwaysAllow),
        "AlwaysDeny" => Some(Kind::AlwaysDeny),
        "RBAC" | "Static" => Some(Kind::Rbac),
        "Webhook" => fields.fields("webhook").and_then(self::webhook).map(|webhook| Kind::Webhook(Box::new(webhook))),
        _ => {
            fields.problem("type", unknown_type(&written));
            // Other errors are not reported: the entry must be removed anyway.
            return None;
        }
    };
    if written == "Webhook" {
        if !webhook {
            fields.problem("webhook", "required when type=Webhook");
        }
    } else {
        fields.ignore("webhook");
        if webhook {
            fields.problem("webhook", "may only be specified when type=Webhook");
        }
    }
    if let Some(kind) = kind.as_ref().filter(|kind| !matches!(kind, Kind::Webhook(_)))
        && !seen.types.insert(kind.as_str())
    {
        fields.problem("type", format_args!("duplicate value {written}"));
    }
    if name.is_empty() {
        fields.problem("name", "required");
    } else if !seen.names.insert(name.clone()) {
        fields.problem("name", format_args!("duplicate value {name:?}"));
    } else if !is_dns_subdomain(&name) {
        fields.problem("name", format_args!("{name:?} is not a DNS subdomain, such as a.example.com"));
    } else if written != "Webhook" && name != written.to_lowercase() {
        let expected = written.to_lowercase();
        fields.problem("name", format_args!("expected name {expected} for authorizer {written} instead of {name}"));
    }
    fields.end();
    Some(Written { name, kind: kind? })
}

fn unknown_type(written: &str) -> String {
    let instead = match written {
        "" => return "required; use Webhook, RBAC, AlwaysDeny or AlwaysAllow".to_owned(),
        "Node" => "it is for kubelets only; remove this authorizer",
        "ABAC" => "write its policy as RBAC objects into the file of --authorization-policy-file, and use RBAC",
        _ => "use Webhook, RBAC (with the objects of --authorization-policy-file), AlwaysDeny or AlwaysAllow",
    };
    format!("{written:?} is not supported: {instead}")
}

fn webhook(mut fields: Fields<'_>) -> Option<Webhook> {
    let timeout = length(&mut fields, "timeout");
    match timeout {
        Some(Length::Missing) => fields.problem("timeout", "required"),
        Some(Length::Of(timeout)) if timeout > LONGEST_TIMEOUT => fields.problem("timeout", "must be > 0s and <= 30s"),
        Some(Length::Negative) => fields.problem("timeout", "must be > 0s and <= 30s"),
        _ => {}
    }
    let authorized = remembered(&mut fields, "authorizedTTL", "cacheAuthorizedRequests", Duration::from_secs(300));
    let unauthorized = remembered(&mut fields, "unauthorizedTTL", "cacheUnauthorizedRequests", Duration::from_secs(30));
    let version = fields.text("subjectAccessReviewVersion");
    let known = Version::parse(&version);
    if known.is_none() {
        not_supported(&fields, "subjectAccessReviewVersion", &version, "v1 or v1beta1");
    }
    let policy = fields.text("failurePolicy");
    if !matches!(&*policy, "NoOpinion" | "Deny") {
        not_supported(&fields, "failurePolicy", &policy, "NoOpinion or Deny");
    }
    let connection = match fields.fields("connectionInfo") {
        Some(connection) => self::connection(connection),
        None => {
            fields.problem("connectionInfo.type", "required; use KubeConfigFile or InClusterConfig");
            None
        }
    };
    let given = !fields.lacks("matchConditions");
    match &*fields.text("matchConditionSubjectAccessReviewVersion") {
        "v1" => {}
        "" if given => {
            fields.problem("matchConditionSubjectAccessReviewVersion", "required if match conditions are specified");
        }
        "" => {}
        other => not_supported(&fields, "matchConditionSubjectAccessReviewVersion", other, "v1"),
    }
    let conditions = conditions(&mut fields);
    fields.end();
    let Some(Length::Of(timeout)) = timeout else { return None };
    Some(Webhook {
        connection: connection?,
        version: known?,
        timeout,
        authorized_ttl: authorized?,
        unauthorized_ttl: unauthorized?,
        denies_on_failure: policy == "Deny",
        conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
    })
}

fn not_supported(fields: &Fields<'_>, name: &str, written: &str, instead: &str) {
    match written {
        "" => fields.problem(name, format_args!("required; use {instead}")),
        _ => fields.problem(name, format_args!("{written:?} is not supported; use {instead}")),
    }
}

/// A duration field.
#[derive(Clone, Copy)]
enum Length {
    Missing,
    Negative,
    Of(Duration),
}

/// Parses a duration; none if it is invalid.
fn length(fields: &mut Fields<'_>, name: &'static str) -> Option<Length> {
    if !fields.has(name) {
        fields.ignore(name);
        return Some(Length::Missing);
    }
    let text = fields.text_if_given(name)?;
    match duration::parse_signed(&text) {
        Ok(0) => Some(Length::Missing),
        Ok(nanoseconds) => {
            Some(u64::try_from(nanoseconds).map_or(Length::Negative, |n| Length::Of(Duration::from_nanos(n))))
        }
        Err(error) => {
            fields.problem(name, error);
            None
        }
    }
}

/// Parses a cache TTL and its switch.
fn remembered(fields: &mut Fields<'_>, name: &'static str, switch: &'static str, usual: Duration) -> Option<Duration> {
    let remembers = fields.switch(switch).unwrap_or(true);
    let length = match length(fields, name)? {
        Length::Missing => usual,
        Length::Of(length) => length,
        Length::Negative => {
            fields.problem(name, "must be > 0s");
            return None;
        }
    };
    Some(if remembers { length } else { Duration::ZERO })
}

fn connection(mut fields: Fields<'_>) -> Option<Connection> {
    const FILE: &str = "kubeConfigFile";
    let file = fields.text_if_given(FILE);
    let connection = match &*fields.text("type") {
        "KubeConfigFile" => match file.as_deref() {
            None | Some("") => {
                fields.problem(FILE, "required");
                None
            }
            Some(path) if !Path::new(path).is_absolute() => {
                fields.problem(FILE, format_args!("{path:?} must be an absolute path"));
                None
            }
            Some(path) => Some(Connection::Kubeconfig(path.into())),
        },
        "InClusterConfig" => {
            if file.is_some() {
                fields.problem(FILE, "can only be set when type=KubeConfigFile");
            }
            Some(Connection::InCluster)
        }
        other => {
            not_supported(&fields, "type", other, "KubeConfigFile or InClusterConfig");
            None
        }
    };
    fields.end();
    connection
}

fn conditions(fields: &mut Fields<'_>) -> MatchConditions {
    let mut conditions = MatchConditions::default();
    let written = fields.each("matchConditions");
    if written.len() > MOST_CONDITIONS {
        let message = format!("{} conditions are too many; the maximum is {MOST_CONDITIONS}", written.len());
        fields.problem("matchConditions", message);
        return conditions;
    }
    let mut sources = BTreeSet::new();
    for mut one in written {
        let source = one.text("expression");
        if source.trim().is_empty() {
            one.problem("expression", "required");
        } else if !sources.insert(source.clone()) {
            one.problem("expression", "duplicate value");
        } else if let Err(why) = conditions.add(&source) {
            one.problem("expression", format_args!("{source:?}: {why}"));
        }
        one.end();
    }
    conditions
}
