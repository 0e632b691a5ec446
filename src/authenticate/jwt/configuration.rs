//! `AuthenticationConfiguration`, parsed and validated like `pkg/apis/apiserver/validation` of k8s.io/apiserver.

use std::collections::BTreeSet;
use std::path::Path;

use super::keys::Algorithm;
use super::url::HttpsUrl;
use crate::egress::Ways;
use crate::expression::{Expression, Kind, Variable};
use crate::kubeapi::is_dns_subdomain;
use crate::process::{Fields, Problem, Problems, configuration, is_json, text_of};
use crate::tls::Bundle;

const KIND: &str = "AuthenticationConfiguration";
const MOST_ISSUERS: usize = 64;
const LARGEST: u64 = 4 << 20;

const CLAIMS: Variable = Variable { name: "claims", fields: None };
const USER: Variable = Variable {
    name: "user",
    fields: Some(&[
        ("username", Kind::Text),
        ("uid", Kind::Text),
        ("groups", Kind::ListOf(&Kind::Text)),
        ("extra", Kind::Map),
    ]),
};

/// The parsed file.
#[derive(Debug)]
pub struct Configuration {
    /// The trusted issuers, each with a unique URL.
    pub issuers: Vec<JwtIssuer>,
    /// Settings of anonymous requests; none if the file has none.
    pub anonymous: Option<Anonymous>,
}

/// Which anonymous requests are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anonymous {
    /// Whether anonymous requests are allowed at all.
    pub enabled: bool,
    /// Paths for which they are allowed; empty for all.
    pub paths: Vec<String>,
}

/// A trusted issuer, and the mapping of its claims to users.
#[derive(Debug)]
pub struct JwtIssuer {
    /// The issuer URL, as in the claim `iss`.
    pub url: String,
    /// The URL of its discovery document.
    pub(super) discovery: HttpsUrl,
    /// The CAs for its servers; none for the system's roots.
    pub(super) authorities: Option<Bundle>,
    /// The egress selection for fetching its documents; empty for none.
    pub(super) egress: String,
    /// Accepted audiences; one must be in the claim `aud`.
    pub(super) audiences: Vec<String>,
    /// Allowed signing algorithms; empty for all supported ones.
    pub(super) algorithms: Vec<Algorithm>,
    /// Whether users get the group `system:authenticated`.
    pub(super) adds_authenticated: bool,
    pub(super) username: Source,
    pub(super) groups: Option<Source>,
    pub(super) uid: Option<Source>,
    pub(super) extra: Vec<(String, Expression)>,
    pub(super) claim_rules: Vec<Rule>,
    pub(super) user_rules: Vec<(Expression, String)>,
}

/// Where a user attribute comes from.
#[derive(Debug)]
pub(super) enum Source {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

/// A validation rule for claims.
#[derive(Debug)]
pub(super) enum Rule {
    Claim { name: String, value: String },
    Expression { expression: Expression, message: String },
}

impl Configuration {
    /// Returns a problem for each issuer whose egress selection is not configured. There is no fallback to a direct
    /// connection, as in `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`.
    pub(super) fn lookups(&self, path: &Path, ways: &Ways) -> Problems {
        let missing = self
            .issuers
            .iter()
            .enumerate()
            .filter(|(_, issuer)| !issuer.egress.is_empty() && ways.configured(&issuer.egress).is_none());
        let problems = missing.map(|(number, issuer)| {
            let field = format!("jwt[{number}].issuer.egressSelectorType");
            Problem::field(
                path.display(),
                field,
                format_args!("egress lookup for {:?} is not configured", issuer.egress),
            )
        });
        Problems(problems.collect())
    }

    /// Reads the file, and reports all errors at once.
    pub fn load(path: &Path) -> Result<Configuration, Problems> {
        let text = text_of(path, LARGEST)?;
        Configuration::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of such a file; `place` is the file name in problems.
    pub fn parse(place: &str, text: &str, json: bool) -> Result<Configuration, Problems> {
        configuration(place, text, json, KIND, |fields| {
            let issuers = issuers(fields);
            let anonymous = fields.fields("anonymous").map(anonymous);
            Configuration { issuers, anonymous }
        })
    }
}

impl JwtIssuer {
    pub(super) fn has_expressions(&self) -> bool {
        let expression = |source: &Source| matches!(source, Source::Expression(_));
        expression(&self.username)
            || self.groups.as_ref().is_some_and(expression)
            || self.uid.as_ref().is_some_and(expression)
            || !self.extra.is_empty()
            || self.claim_rules.iter().any(|rule| matches!(rule, Rule::Expression { .. }))
    }
}

fn anonymous(mut fields: Fields<'_>) -> Anonymous {
    let enabled = fields.switch("enabled").unwrap_or_default();
    let mut paths = Vec::new();
    for mut condition in fields.each("conditions") {
        paths.push(condition.text("path"));
        condition.end();
    }
    if !enabled && !paths.is_empty() {
        fields.problem("conditions", "enabled should be set to true when conditions are defined");
    }
    fields.end();
    Anonymous { enabled, paths }
}

fn issuers(fields: &mut Fields<'_>) -> Vec<JwtIssuer> {
    let written = fields.each("jwt");
    if written.len() > MOST_ISSUERS {
        fields.problem("jwt", format_args!("{} issuers are too many; the maximum is {MOST_ISSUERS}", written.len()));
        return Vec::new();
    }
    let (mut urls, mut discovery_urls) = (BTreeSet::new(), BTreeSet::new());
    written.into_iter().filter_map(|one| issuer(one, &mut urls, &mut discovery_urls)).collect()
}

fn issuer(
    mut fields: Fields<'_>,
    urls: &mut BTreeSet<String>,
    discovery_urls: &mut BTreeSet<String>,
) -> Option<JwtIssuer> {
    let issuer = match fields.fields("issuer") {
        Some(issuer) => issuer_fields(issuer, urls, discovery_urls),
        None => {
            fields.problem("issuer", "required");
            None
        }
    };
    let mut email = Email::default();
    let claim_rules = claim_rules(fields.each("claimValidationRules"), &mut email);
    let mappings = match fields.fields("claimMappings") {
        Some(mappings) => claim_mappings(mappings, email),
        None => {
            fields.problem("claimMappings.username", "claim or expression is required");
            None
        }
    };
    let user_rules = user_rules(fields.each("userValidationRules"));
    fields.end();
    let ((url, discovery, authorities, audiences, egress), (username, groups, uid, extra)) = (issuer?, mappings?);
    Some(JwtIssuer {
        url,
        discovery,
        authorities,
        audiences,
        algorithms: Vec::new(),
        adds_authenticated: true,
        egress,
        username,
        groups,
        uid,
        extra,
        claim_rules,
        user_rules,
    })
}

type IssuerFields = (String, HttpsUrl, Option<Bundle>, Vec<String>, String);

fn issuer_fields(
    mut fields: Fields<'_>,
    urls: &mut BTreeSet<String>,
    discovery_urls: &mut BTreeSet<String>,
) -> Option<IssuerFields> {
    let url = fields.text("url");
    let well_known = if url.is_empty() {
        fields.problem("url", "required");
        None
    } else {
        check_url(&fields, "url", &url)
    };
    if !url.is_empty() && !urls.insert(url.clone()) {
        fields.problem("url", format_args!("duplicate value {url:?}"));
    }
    let written = fields.text("discoveryURL");
    let discovery = if written.is_empty() {
        well_known.map(|url| url.join("/.well-known/openid-configuration"))
    } else {
        if url.trim_end_matches('/') == written.trim_end_matches('/') {
            fields.problem("discoveryURL", "discoveryURL must be different from URL");
        }
        if !discovery_urls.insert(written.clone()) {
            fields.problem("discoveryURL", format_args!("duplicate value {written:?}"));
        }
        check_url(&fields, "discoveryURL", &written)
    };
    let authority = fields.text("certificateAuthority");
    let mut authorities = None;
    if !authority.is_empty() {
        match Bundle::from_pem(authority.as_bytes(), fields.path("certificateAuthority")) {
            Ok(bundle) => authorities = Some(bundle),
            Err(problem) => fields.problem("certificateAuthority", problem.message),
        }
    }
    let audiences = audiences(&mut fields);
    let egress = fields.text("egressSelectorType");
    if !matches!(&*egress, "" | "controlplane" | "cluster") {
        fields.problem("egressSelectorType", "egress selector must be either controlplane or cluster");
    }
    fields.end();
    Some((url, discovery?, authorities, audiences, egress))
}

fn check_url(fields: &Fields<'_>, name: &str, url: &str) -> Option<HttpsUrl> {
    match HttpsUrl::parse(url) {
        Ok(url) => Some(url),
        Err(mistakes) => {
            // The URL may contain a password, which must not be logged.
            let url = if url.contains('@') { "<omitted>" } else { url };
            for mistake in mistakes {
                fields.problem(name, format_args!("{url:?}: {mistake}"));
            }
            None
        }
    }
}

fn audiences(fields: &mut Fields<'_>) -> Vec<String> {
    let audiences = fields.texts("audiences");
    let policy = fields.text("audienceMatchPolicy");
    if audiences.is_empty() {
        if fields.lacks("audiences") {
            fields.problem("audiences", "at least one audience is required");
        }
        return audiences;
    }
    for (number, audience) in audiences.iter().enumerate() {
        let field = format!("audiences[{number}]");
        if audience.is_empty() {
            fields.problem(&field, "must not be empty");
        }
        if audiences.iter().take(number).any(|earlier| earlier == audience) {
            fields.problem(&field, format_args!("duplicate value {audience:?}"));
        }
    }
    if audiences.len() > 1 && policy != "MatchAny" {
        fields.problem("audienceMatchPolicy", "audienceMatchPolicy must be MatchAny for multiple audiences");
    } else if !matches!(&*policy, "" | "MatchAny") {
        fields.problem("audienceMatchPolicy", "audienceMatchPolicy must be empty or MatchAny for single audience");
    }
    audiences
}

/// Whether an expression uses `claims.email_verified`.
#[derive(Default)]
struct Email {
    verified: bool,
}

fn compile(fields: &Fields<'_>, name: &str, source: &str, variable: &Variable) -> Option<Expression> {
    match Expression::compile(source, variable) {
        Ok(expression) => Some(expression),
        Err(why) => {
            fields.problem(name, why);
            None
        }
    }
}

/// Compiles an expression that must evaluate to a boolean.
fn condition(fields: &Fields<'_>, source: &str, variable: &Variable) -> Option<Expression> {
    let expression = compile(fields, "expression", source, variable)?;
    if expression.kind() != Kind::Bool {
        fields.problem("expression", "must evaluate to bool");
        return None;
    }
    Some(expression)
}

fn claim_rules(written: Vec<Fields<'_>>, email: &mut Email) -> Vec<Rule> {
    let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
    let mut rules = Vec::new();
    for mut fields in written {
        let (name, value) = (fields.text("claim"), fields.text("requiredValue"));
        let (source, message) = (fields.text("expression"), fields.text("message"));
        match (name.is_empty(), source.is_empty()) {
            (false, false) => fields.problem_here("claim and expression can't both be set"),
            (true, true) => fields.problem_here("claim or expression is required"),
            (false, true) => {
                if !message.is_empty() {
                    fields.problem("message", "may not be specified when claim is set");
                }
                if !claims.insert(name.clone()) {
                    fields.problem("claim", format_args!("duplicate value {name:?}"));
                }
                rules.push(Rule::Claim { name, value });
            }
            (true, false) => {
                if !value.is_empty() {
                    fields.problem("requiredValue", "may not be specified when expression is set");
                }
                if !expressions.insert(source.clone()) {
                    fields.problem("expression", "duplicate value");
                } else if let Some(expression) = condition(&fields, &source, &CLAIMS) {
                    email.verified |= expression.looks_at("email_verified");
                    rules.push(Rule::Expression { expression, message });
                }
            }
        }
        fields.end();
    }
    rules
}

type Mappings = (Source, Option<Source>, Option<Source>, Vec<(String, Expression)>);

fn claim_mappings(mut fields: Fields<'_>, mut email: Email) -> Option<Mappings> {
    let username = match fields.fields("username") {
        Some(username) => claim_or_expression(username, true, true),
        None => {
            fields.problem("username", "claim or expression is required");
            None
        }
    };
    let groups = fields.fields("groups").and_then(|groups| claim_or_expression(groups, true, false));
    let uid = fields.fields("uid").and_then(|uid| claim_or_expression(uid, false, false));
    let extra = extra(fields.each("extra"), &mut email);
    if let Some(Source::Expression(expression)) = &username
        && expression.looks_at("email")
        && !(email.verified || expression.looks_at("email_verified"))
    {
        fields.problem(
            "username.expression",
            "claims.email_verified must be used in claimMappings.username.expression or \
             claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
             claimMappings.username.expression",
        );
    }
    fields.end();
    Some((username?, groups, uid, extra))
}

fn claim_or_expression(mut fields: Fields<'_>, prefixed: bool, required: bool) -> Option<Source> {
    let (name, source) = (fields.text("claim"), fields.text("expression"));
    let prefix = if prefixed { fields.text_if_given("prefix") } else { None };
    let found = match (name.is_empty(), source.is_empty()) {
        (false, false) => {
            fields.problem_here("claim and expression can't both be set");
            None
        }
        (true, true) => {
            if required {
                fields.problem_here("claim or expression is required");
            }
            None
        }
        (true, false) => {
            if prefix.is_some() {
                fields.problem("prefix", "may not be specified when expression is set");
            }
            compile(&fields, "expression", &source, &CLAIMS).map(Source::Expression)
        }
        (false, true) => {
            if prefixed && prefix.is_none() {
                fields.problem(
                    "prefix",
                    "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
                );
            }
            Some(Source::Claim { name, prefix: prefix.unwrap_or_default() })
        }
    };
    fields.end();
    found
}

fn extra(written: Vec<Fields<'_>>, email: &mut Email) -> Vec<(String, Expression)> {
    let mut keys = BTreeSet::new();
    let mut extra = Vec::new();
    for mut fields in written {
        let (key, source) = (fields.text("key"), fields.text("valueExpression"));
        if let Err(why) = check_extra_key(&key) {
            fields.problem("key", format_args!("{key:?}: {why}"));
        }
        if !keys.insert(key.clone()) {
            fields.problem("key", format_args!("duplicate value {key:?}"));
        } else if source.is_empty() {
            fields.problem("valueExpression", "required");
        } else if let Some(expression) = compile(&fields, "valueExpression", &source, &CLAIMS) {
            email.verified |= expression.looks_at("email_verified");
            extra.push((key, expression));
        }
        fields.end();
    }
    extra
}

fn check_extra_key(key: &str) -> Result<(), &'static str> {
    let in_path = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&byte);
    let Some((domain, path)) = key.split_once('/') else {
        return Err("must be a domain-prefixed path (such as \"acme.io/foo\")");
    };
    if !is_dns_subdomain(domain) || path.is_empty() || !path.bytes().all(in_path) {
        return Err("must be a domain-prefixed path (such as \"acme.io/foo\")");
    }
    if key.to_lowercase() != key {
        return Err("must be lowercase");
    }
    let reserved = |name: &str| domain == name || domain.strip_suffix(name).is_some_and(|before| before.ends_with('.'));
    if reserved("kubernetes.io") || reserved("k8s.io") {
        return Err("k8s.io, kubernetes.io and their subdomains are reserved for Kubernetes use");
    }
    Ok(())
}

fn user_rules(written: Vec<Fields<'_>>) -> Vec<(Expression, String)> {
    let mut expressions = BTreeSet::new();
    let mut rules = Vec::new();
    for mut fields in written {
        let (source, message) = (fields.text("expression"), fields.text("message"));
        if source.is_empty() {
            fields.problem("expression", "required");
        } else if !expressions.insert(source.clone()) {
            fields.problem("expression", "duplicate value");
        } else if let Some(expression) = condition(&fields, &source, &USER) {
            rules.push((expression, message));
        }
        fields.end();
    }
    rules
}
