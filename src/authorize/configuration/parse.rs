//! Parser of `AuthorizationConfiguration`, validated like `pkg/apis/apiserver/validation` of k8s.io/apiserver.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kubeapi::{duration, is_dns_subdomain};

use crate::authorize::match_conditions::MatchConditions;
use crate::decision_cache::ReviewVersion;
use crate::process::{FieldReader, Problem, Problems, is_json, parse_configuration, read_text_file};

const KIND: &str = "AuthorizationConfiguration";
const MAX_FILE_BYTES: u64 = 4 << 20;
const MAX_MATCH_CONDITIONS: usize = 64;
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// The parsed file.
#[derive(Clone, Debug, PartialEq)]
pub struct AuthorizationConfiguration {
    /// The file name in problems.
    pub(super) location: String,
    /// The text of the file.
    pub(super) text: String,
    /// The authorizers, in order.
    pub(super) authorizers: Vec<AuthorizerConfiguration>,
}

/// What other flags require of the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfigurationRequirements {
    /// Whether there may be RBAC objects (`--authorization-policy-file`, `--embedded-api`).
    pub has_policy: bool,
    /// Whether an authorizer must evaluate users (`--serve-delegation`).
    pub needs_decision: bool,
}

/// The configuration of one authorizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AuthorizerConfiguration {
    pub(super) name: String,
    pub(super) kind: AuthorizerKind,
}

/// The type of an authorizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum AuthorizerKind {
    AlwaysAllow,
    AlwaysDeny,
    /// RBAC objects, from a file.
    Rbac,
    Webhook(Box<WebhookConfiguration>),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct WebhookConfiguration {
    pub(super) connection: WebhookConnectionInfo,
    pub(super) version: ReviewVersion,
    pub(super) timeout: Duration,
    /// The cache TTL of allowed decisions; zero for no caching.
    pub(super) authorized_ttl: Duration,
    /// The cache TTL of denied decisions; zero for no caching.
    pub(super) unauthorized_ttl: Duration,
    pub(super) denies_on_failure: bool,
    pub(super) match_conditions: Option<MatchConditions>,
}

/// Where the webhook is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WebhookConnectionInfo {
    Kubeconfig(PathBuf),
    InCluster,
}

impl AuthorizerKind {
    /// The type name in the file.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            AuthorizerKind::AlwaysAllow => "AlwaysAllow",
            AuthorizerKind::AlwaysDeny => "AlwaysDeny",
            AuthorizerKind::Rbac => "RBAC",
            AuthorizerKind::Webhook(_) => "Webhook",
        }
    }
}

impl AuthorizationConfiguration {
    /// Reads the file, and reports all errors at once.
    pub fn load(path: &Path) -> Result<AuthorizationConfiguration, Problems> {
        let text = read_text_file(path, MAX_FILE_BYTES)?;
        AuthorizationConfiguration::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of such a file; `location` is the file name in problems.
    pub fn parse(location: &str, text: &str, json: bool) -> Result<AuthorizationConfiguration, Problems> {
        parse_configuration(location, text, json, KIND, |fields| {
            if fields.is_missing_or_empty("authorizers") {
                fields.add_problem("authorizers", "at least one authorization mode must be defined");
            }
            let mut used_names = UsedNames::default();
            let authorizers = fields
                .object_list("authorizers")
                .into_iter()
                .filter_map(|one| parse_authorizer(one, &mut used_names))
                .collect();
            AuthorizationConfiguration { location: location.to_owned(), text: text.to_owned(), authorizers }
        })
    }

    /// Checks the configuration against other flags.
    pub(super) fn check(&self, demands: &ConfigurationRequirements) -> Problems {
        let mut problems = Problems::default();
        let mut decides = false;
        for (number, authorizer) in self.authorizers.iter().enumerate() {
            let field = format!("authorizers[{number}].type");
            match &authorizer.kind {
                AuthorizerKind::Rbac if !demands.has_policy => {
                    let message = "RBAC requires --authorization-policy-file, the file with the RBAC objects";
                    problems.0.push(Problem::at_field(&self.location, field, message));
                }
                AuthorizerKind::AlwaysAllow if demands.needs_decision => {
                    let message = "AlwaysAllow cannot be used with --serve-delegation, which requires real decisions";
                    problems.0.push(Problem::at_field(&self.location, field, message));
                }
                AuthorizerKind::Webhook(_) | AuthorizerKind::Rbac => decides = true,
                AuthorizerKind::AlwaysAllow | AuthorizerKind::AlwaysDeny => {}
            }
        }
        if demands.needs_decision && !decides && problems.0.is_empty() {
            let message = "--serve-delegation requires an authorizer of type Webhook or RBAC";
            problems.0.push(Problem::at_field(&self.location, "authorizers", message));
        }
        problems
    }
}

#[derive(Default)]
struct UsedNames {
    types: BTreeSet<&'static str>,
    names: BTreeSet<String>,
}

fn parse_authorizer(mut fields: FieldReader<'_>, used_names: &mut UsedNames) -> Option<AuthorizerConfiguration> {
    let type_name = fields.string("type");
    let name = fields.string("name");
    let webhook = fields.contains("webhook");
    let kind = match &*type_name {
        "AlwaysAllow" => Some(AuthorizerKind::AlwaysAllow),
        "AlwaysDeny" => Some(AuthorizerKind::AlwaysDeny),
        "RBAC" | "Static" => Some(AuthorizerKind::Rbac),
        "Webhook" => {
            fields.object("webhook").and_then(parse_webhook).map(|webhook| AuthorizerKind::Webhook(Box::new(webhook)))
        }
        _ => {
            fields.add_problem("type", unknown_type(&type_name));
            // Other errors are not reported: the entry must be removed anyway.
            return None;
        }
    };
    if type_name == "Webhook" {
        if !webhook {
            fields.add_problem("webhook", "required when type=Webhook");
        }
    } else {
        fields.ignore("webhook");
        if webhook {
            fields.add_problem("webhook", "may only be specified when type=Webhook");
        }
    }
    if let Some(kind) = kind.as_ref().filter(|kind| !matches!(kind, AuthorizerKind::Webhook(_)))
        && !used_names.types.insert(kind.as_str())
    {
        fields.add_problem("type", format_args!("duplicate value {type_name}"));
    }
    if name.is_empty() {
        fields.add_problem("name", "required");
    } else if !used_names.names.insert(name.clone()) {
        fields.add_problem("name", format_args!("duplicate value {name:?}"));
    } else if !is_dns_subdomain(&name) {
        fields.add_problem("name", format_args!("{name:?} is not a DNS subdomain, such as a.example.com"));
    } else if type_name != "Webhook" && name != type_name.to_lowercase() {
        let expected = type_name.to_lowercase();
        fields
            .add_problem("name", format_args!("expected name {expected} for authorizer {type_name} instead of {name}"));
    }
    fields.finish();
    Some(AuthorizerConfiguration { name, kind: kind? })
}

fn unknown_type(type_name: &str) -> String {
    let instead = match type_name {
        "" => return "required; use Webhook, RBAC, AlwaysDeny or AlwaysAllow".to_owned(),
        "Node" => "it is for kubelets only; remove this authorizer",
        "ABAC" => "write its policy as RBAC objects into the file of --authorization-policy-file, and use RBAC",
        _ => "use Webhook, RBAC (with the objects of --authorization-policy-file), AlwaysDeny or AlwaysAllow",
    };
    format!("{type_name:?} is not supported: {instead}")
}

fn parse_webhook(mut fields: FieldReader<'_>) -> Option<WebhookConfiguration> {
    let timeout = parse_duration(&mut fields, "timeout");
    match timeout {
        Some(DurationField::Missing) => fields.add_problem("timeout", "required"),
        Some(DurationField::Positive(timeout)) if timeout > MAX_TIMEOUT => {
            fields.add_problem("timeout", "must be > 0s and <= 30s")
        }
        Some(DurationField::Negative) => fields.add_problem("timeout", "must be > 0s and <= 30s"),
        _ => {}
    }
    let authorized = parse_cache_ttl(&mut fields, "authorizedTTL", "cacheAuthorizedRequests", Duration::from_secs(300));
    let unauthorized =
        parse_cache_ttl(&mut fields, "unauthorizedTTL", "cacheUnauthorizedRequests", Duration::from_secs(30));
    let version = fields.string("subjectAccessReviewVersion");
    let review_version = ReviewVersion::parse(&version);
    if review_version.is_none() {
        not_supported(&fields, "subjectAccessReviewVersion", &version, "v1 or v1beta1");
    }
    let policy = fields.string("failurePolicy");
    if !matches!(&*policy, "NoOpinion" | "Deny") {
        not_supported(&fields, "failurePolicy", &policy, "NoOpinion or Deny");
    }
    let connection = match fields.object("connectionInfo") {
        Some(connection) => parse_connection_info(connection),
        None => {
            fields.add_problem("connectionInfo.type", "required; use KubeConfigFile or InClusterConfig");
            None
        }
    };
    let given = !fields.is_missing_or_empty("matchConditions");
    match &*fields.string("matchConditionSubjectAccessReviewVersion") {
        "v1" => {}
        "" if given => {
            fields
                .add_problem("matchConditionSubjectAccessReviewVersion", "required if match conditions are specified");
        }
        "" => {}
        other => not_supported(&fields, "matchConditionSubjectAccessReviewVersion", other, "v1"),
    }
    let conditions = parse_match_conditions(&mut fields);
    fields.finish();
    let Some(DurationField::Positive(timeout)) = timeout else { return None };
    Some(WebhookConfiguration {
        connection: connection?,
        version: review_version?,
        timeout,
        authorized_ttl: authorized?,
        unauthorized_ttl: unauthorized?,
        denies_on_failure: policy == "Deny",
        match_conditions: Some(conditions).filter(|conditions| !conditions.is_empty()),
    })
}

fn not_supported(fields: &FieldReader<'_>, name: &str, value: &str, instead: &str) {
    match value {
        "" => fields.add_problem(name, format_args!("required; use {instead}")),
        _ => fields.add_problem(name, format_args!("{value:?} is not supported; use {instead}")),
    }
}

/// A duration field.
#[derive(Clone, Copy)]
enum DurationField {
    Missing,
    Negative,
    Positive(Duration),
}

/// Parses a duration; none if it is invalid.
fn parse_duration(fields: &mut FieldReader<'_>, name: &'static str) -> Option<DurationField> {
    if !fields.contains(name) {
        fields.ignore(name);
        return Some(DurationField::Missing);
    }
    let text = fields.optional_string(name)?;
    match duration::parse_signed(&text) {
        Ok(0) => Some(DurationField::Missing),
        Ok(nanoseconds) => Some(
            u64::try_from(nanoseconds)
                .map_or(DurationField::Negative, |n| DurationField::Positive(Duration::from_nanos(n))),
        ),
        Err(error) => {
            fields.add_problem(name, error);
            None
        }
    }
}

/// Parses a cache TTL and its switch.
fn parse_cache_ttl(
    fields: &mut FieldReader<'_>,
    name: &'static str,
    switch: &'static str,
    usual: Duration,
) -> Option<Duration> {
    let remembers = fields.optional_bool(switch).unwrap_or(true);
    let length = match parse_duration(fields, name)? {
        DurationField::Missing => usual,
        DurationField::Positive(length) => length,
        DurationField::Negative => {
            fields.add_problem(name, "must be > 0s");
            return None;
        }
    };
    Some(if remembers { length } else { Duration::ZERO })
}

fn parse_connection_info(mut fields: FieldReader<'_>) -> Option<WebhookConnectionInfo> {
    const FILE: &str = "kubeConfigFile";
    let file = fields.optional_string(FILE);
    let connection = match &*fields.string("type") {
        "KubeConfigFile" => match file.as_deref() {
            None | Some("") => {
                fields.add_problem(FILE, "required");
                None
            }
            Some(path) if !Path::new(path).is_absolute() => {
                fields.add_problem(FILE, format_args!("{path:?} must be an absolute path"));
                None
            }
            Some(path) => Some(WebhookConnectionInfo::Kubeconfig(path.into())),
        },
        "InClusterConfig" => {
            if file.is_some() {
                fields.add_problem(FILE, "can only be set when type=KubeConfigFile");
            }
            Some(WebhookConnectionInfo::InCluster)
        }
        other => {
            not_supported(&fields, "type", other, "KubeConfigFile or InClusterConfig");
            None
        }
    };
    fields.finish();
    connection
}

fn parse_match_conditions(fields: &mut FieldReader<'_>) -> MatchConditions {
    let mut conditions = MatchConditions::default();
    let list = fields.object_list("matchConditions");
    if list.len() > MAX_MATCH_CONDITIONS {
        let message = format!("{} conditions are too many; the maximum is {MAX_MATCH_CONDITIONS}", list.len());
        fields.add_problem("matchConditions", message);
        return conditions;
    }
    let mut sources = BTreeSet::new();
    for mut one in list {
        let source = one.string("expression");
        if source.trim().is_empty() {
            one.add_problem("expression", "required");
        } else if !sources.insert(source.clone()) {
            one.add_problem("expression", "duplicate value");
        } else if let Err(why) = conditions.add(&source) {
            one.add_problem("expression", format_args!("{source:?}: {why}"));
        }
        one.finish();
    }
    conditions
}
