//! `AuthenticationConfiguration`, parsed and validated like `pkg/apis/apiserver/validation` of k8s.io/apiserver.

use std::collections::BTreeSet;
use std::path::Path;

use kubeapi::is_dns_subdomain;

use super::token::Algorithm;
use super::url::HttpsUrl;
use crate::egress::EgressRoutes;
use crate::expression::{Expression, ExpressionType, ExpressionVariable};
use crate::process::{FieldReader, Problem, Problems, is_json, parse_configuration, read_text_file};
use crate::tls::Bundle;

const KIND: &str = "AuthenticationConfiguration";
const MAX_ISSUERS: usize = 64;
const MAX_FILE_BYTES: u64 = 4 << 20;

const CLAIMS: ExpressionVariable = ExpressionVariable { name: "claims", fields: None };
const USER: ExpressionVariable = ExpressionVariable {
    name: "user",
    fields: Some(&[
        ("username", ExpressionType::String),
        ("uid", ExpressionType::String),
        ("groups", ExpressionType::ListOf(&ExpressionType::String)),
        ("extra", ExpressionType::Map),
    ]),
};

/// The parsed file.
#[derive(Debug)]
pub struct AuthenticationConfiguration {
    /// The trusted issuers, each with a unique URL.
    pub issuers: Vec<JwtIssuer>,
    /// Settings of anonymous requests; none if the file has none.
    pub anonymous: Option<AnonymousAuthConfig>,
}

/// Which anonymous requests are allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnonymousAuthConfig {
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
    pub(super) discovery_url: HttpsUrl,
    /// The CAs for its servers; none for the system's roots.
    pub(super) authorities: Option<Bundle>,
    /// The egress selection for fetching its documents; empty for none.
    pub(super) egress: String,
    /// Accepted audiences; one must be in the claim `aud`.
    pub(super) audiences: Vec<String>,
    /// Allowed signing algorithms; empty for all supported ones.
    pub(super) algorithms: Vec<Algorithm>,
    /// Whether users get the group `system:authenticated`.
    pub(super) adds_authenticated_group: bool,
    pub(super) username: ClaimSource,
    pub(super) groups: Option<ClaimSource>,
    pub(super) uid: Option<ClaimSource>,
    pub(super) extra: Vec<(String, Expression)>,
    pub(super) claim_rules: Vec<ClaimValidationRule>,
    pub(super) user_rules: Vec<(Expression, String)>,
}

/// Where a user attribute comes from.
#[derive(Debug)]
pub(super) enum ClaimSource {
    Claim { name: String, prefix: String },
    Expression(Expression),
}

/// A validation rule for claims.
#[derive(Debug)]
pub(super) enum ClaimValidationRule {
    Claim { name: String, value: String },
    Expression { expression: Expression, message: String },
}

impl AuthenticationConfiguration {
    /// Returns a problem for each issuer with an egress selection that is not configured. There is no fallback to a
    /// direct connection, as in `k8s.io/apiserver/plugin/pkg/authenticator/token/oidc`.
    pub(super) fn check_egress(&self, path: &Path, routes: &EgressRoutes) -> Problems {
        let missing = self
            .issuers
            .iter()
            .enumerate()
            .filter(|(_, issuer)| !issuer.egress.is_empty() && routes.get_configured(&issuer.egress).is_none());
        let problems = missing.map(|(number, issuer)| {
            let field = format!("jwt[{number}].issuer.egressSelectorType");
            Problem::at_field(
                path.display(),
                field,
                format_args!("egress lookup for {:?} is not configured", issuer.egress),
            )
        });
        Problems(problems.collect())
    }

    /// Reads the file, and reports all errors at once.
    pub fn load(path: &Path) -> Result<AuthenticationConfiguration, Problems> {
        let text = read_text_file(path, MAX_FILE_BYTES)?;
        AuthenticationConfiguration::parse(&path.display().to_string(), &text, is_json(path))
    }

    /// Parses the text of such a file; `location` is the file name in problems.
    pub fn parse(location: &str, text: &str, json: bool) -> Result<AuthenticationConfiguration, Problems> {
        parse_configuration(location, text, json, KIND, |fields| {
            let issuers = parse_issuers(fields);
            let anonymous = fields.object("anonymous").map(parse_anonymous);
            AuthenticationConfiguration { issuers, anonymous }
        })
    }
}

impl JwtIssuer {
    pub(super) fn has_expressions(&self) -> bool {
        let expression = |source: &ClaimSource| matches!(source, ClaimSource::Expression(_));
        expression(&self.username)
            || self.groups.as_ref().is_some_and(expression)
            || self.uid.as_ref().is_some_and(expression)
            || !self.extra.is_empty()
            || self.claim_rules.iter().any(|rule| matches!(rule, ClaimValidationRule::Expression { .. }))
    }
}

fn parse_anonymous(mut fields: FieldReader<'_>) -> AnonymousAuthConfig {
    let enabled = fields.optional_bool("enabled").unwrap_or_default();
    let mut paths = Vec::new();
    for mut condition in fields.object_list("conditions") {
        paths.push(condition.string("path"));
        condition.finish();
    }
    if !enabled && !paths.is_empty() {
        fields.add_problem("conditions", "enabled should be set to true when conditions are defined");
    }
    fields.finish();
    AnonymousAuthConfig { enabled, paths }
}

fn parse_issuers(fields: &mut FieldReader<'_>) -> Vec<JwtIssuer> {
    let issuers = fields.object_list("jwt");
    if issuers.len() > MAX_ISSUERS {
        fields.add_problem("jwt", format_args!("{} issuers are too many; the maximum is {MAX_ISSUERS}", issuers.len()));
        return Vec::new();
    }
    let (mut urls, mut discovery_urls) = (BTreeSet::new(), BTreeSet::new());
    issuers.into_iter().filter_map(|one| parse_issuer(one, &mut urls, &mut discovery_urls)).collect()
}

fn parse_issuer(
    mut fields: FieldReader<'_>,
    urls: &mut BTreeSet<String>,
    discovery_urls: &mut BTreeSet<String>,
) -> Option<JwtIssuer> {
    let issuer = match fields.object("issuer") {
        Some(issuer) => parse_issuer_fields(issuer, urls, discovery_urls),
        None => {
            fields.add_problem("issuer", "required");
            None
        }
    };
    let mut email = EmailVerification::default();
    let claim_rules = parse_claim_rules(fields.object_list("claimValidationRules"), &mut email);
    let mappings = match fields.object("claimMappings") {
        Some(mappings) => parse_claim_mappings(mappings, email),
        None => {
            fields.add_problem("claimMappings.username", "claim or expression is required");
            None
        }
    };
    let user_rules = parse_user_rules(fields.object_list("userValidationRules"));
    fields.finish();
    let ((url, discovery, authorities, audiences, egress), (username, groups, uid, extra)) = (issuer?, mappings?);
    Some(JwtIssuer {
        url,
        discovery_url: discovery,
        authorities,
        audiences,
        algorithms: Vec::new(),
        adds_authenticated_group: true,
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

fn parse_issuer_fields(
    mut fields: FieldReader<'_>,
    urls: &mut BTreeSet<String>,
    discovery_urls: &mut BTreeSet<String>,
) -> Option<IssuerFields> {
    let url = fields.string("url");
    let well_known = if url.is_empty() {
        fields.add_problem("url", "required");
        None
    } else {
        check_url(&fields, "url", &url)
    };
    if !url.is_empty() && !urls.insert(url.clone()) {
        fields.add_problem("url", format_args!("duplicate value {url:?}"));
    }
    let discovery_url = fields.string("discoveryURL");
    let discovery = if discovery_url.is_empty() {
        well_known.map(|url| url.join("/.well-known/openid-configuration"))
    } else {
        if url.trim_end_matches('/') == discovery_url.trim_end_matches('/') {
            fields.add_problem("discoveryURL", "discoveryURL must be different from URL");
        }
        if !discovery_urls.insert(discovery_url.clone()) {
            fields.add_problem("discoveryURL", format_args!("duplicate value {discovery_url:?}"));
        }
        check_url(&fields, "discoveryURL", &discovery_url)
    };
    let authority = fields.string("certificateAuthority");
    let mut authorities = None;
    if !authority.is_empty() {
        match Bundle::from_pem(authority.as_bytes(), fields.path("certificateAuthority")) {
            Ok(bundle) => authorities = Some(bundle),
            Err(problem) => fields.add_problem("certificateAuthority", problem.message),
        }
    }
    let audiences = parse_audiences(&mut fields);
    let egress = fields.string("egressSelectorType");
    if !matches!(&*egress, "" | "controlplane" | "cluster") {
        fields.add_problem("egressSelectorType", "egress selector must be either controlplane or cluster");
    }
    fields.finish();
    Some((url, discovery?, authorities, audiences, egress))
}

fn check_url(fields: &FieldReader<'_>, name: &str, url: &str) -> Option<HttpsUrl> {
    match HttpsUrl::parse(url) {
        Ok(url) => Some(url),
        Err(mistakes) => {
            // The URL may contain a password, which must not be logged.
            let url = if url.contains('@') { "<omitted>" } else { url };
            for mistake in mistakes {
                fields.add_problem(name, format_args!("{url:?}: {mistake}"));
            }
            None
        }
    }
}

fn parse_audiences(fields: &mut FieldReader<'_>) -> Vec<String> {
    let audiences = fields.string_list("audiences");
    let policy = fields.string("audienceMatchPolicy");
    if audiences.is_empty() {
        if fields.is_missing_or_empty("audiences") {
            fields.add_problem("audiences", "at least one audience is required");
        }
        return audiences;
    }
    for (number, audience) in audiences.iter().enumerate() {
        let field = format!("audiences[{number}]");
        if audience.is_empty() {
            fields.add_problem(&field, "must not be empty");
        }
        if audiences.iter().take(number).any(|earlier| earlier == audience) {
            fields.add_problem(&field, format_args!("duplicate value {audience:?}"));
        }
    }
    if audiences.len() > 1 && policy != "MatchAny" {
        fields.add_problem("audienceMatchPolicy", "audienceMatchPolicy must be MatchAny for multiple audiences");
    } else if !matches!(&*policy, "" | "MatchAny") {
        fields.add_problem("audienceMatchPolicy", "audienceMatchPolicy must be empty or MatchAny for single audience");
    }
    audiences
}

/// Whether an expression uses `claims.email_verified`.
#[derive(Default)]
struct EmailVerification {
    verified: bool,
}

fn compile(fields: &FieldReader<'_>, name: &str, source: &str, variable: &ExpressionVariable) -> Option<Expression> {
    match Expression::compile(source, variable) {
        Ok(expression) => Some(expression),
        Err(why) => {
            fields.add_problem(name, why);
            None
        }
    }
}

/// Compiles an expression that must evaluate to a boolean.
fn compile_condition(fields: &FieldReader<'_>, source: &str, variable: &ExpressionVariable) -> Option<Expression> {
    let expression = compile(fields, "expression", source, variable)?;
    if expression.result_type() != ExpressionType::Bool {
        fields.add_problem("expression", "must evaluate to bool");
        return None;
    }
    Some(expression)
}

fn parse_claim_rules(rule_fields: Vec<FieldReader<'_>>, email: &mut EmailVerification) -> Vec<ClaimValidationRule> {
    let (mut claims, mut expressions) = (BTreeSet::new(), BTreeSet::new());
    let mut rules = Vec::new();
    for mut fields in rule_fields {
        let (name, value) = (fields.string("claim"), fields.string("requiredValue"));
        let (source, message) = (fields.string("expression"), fields.string("message"));
        match (name.is_empty(), source.is_empty()) {
            (false, false) => fields.add_own_problem("claim and expression can't both be set"),
            (true, true) => fields.add_own_problem("claim or expression is required"),
            (false, true) => {
                if !message.is_empty() {
                    fields.add_problem("message", "may not be specified when claim is set");
                }
                if !claims.insert(name.clone()) {
                    fields.add_problem("claim", format_args!("duplicate value {name:?}"));
                }
                rules.push(ClaimValidationRule::Claim { name, value });
            }
            (true, false) => {
                if !value.is_empty() {
                    fields.add_problem("requiredValue", "may not be specified when expression is set");
                }
                if !expressions.insert(source.clone()) {
                    fields.add_problem("expression", "duplicate value");
                } else if let Some(expression) = compile_condition(&fields, &source, &CLAIMS) {
                    email.verified |= expression.references_field("email_verified");
                    rules.push(ClaimValidationRule::Expression { expression, message });
                }
            }
        }
        fields.finish();
    }
    rules
}

type ClaimMappings = (ClaimSource, Option<ClaimSource>, Option<ClaimSource>, Vec<(String, Expression)>);

fn parse_claim_mappings(mut fields: FieldReader<'_>, mut email: EmailVerification) -> Option<ClaimMappings> {
    let username = match fields.object("username") {
        Some(username) => parse_claim_or_expression(username, true, true),
        None => {
            fields.add_problem("username", "claim or expression is required");
            None
        }
    };
    let groups = fields.object("groups").and_then(|groups| parse_claim_or_expression(groups, true, false));
    let uid = fields.object("uid").and_then(|uid| parse_claim_or_expression(uid, false, false));
    let extra = parse_extra(fields.object_list("extra"), &mut email);
    if let Some(ClaimSource::Expression(expression)) = &username
        && expression.references_field("email")
        && !(email.verified || expression.references_field("email_verified"))
    {
        fields.add_problem(
            "username.expression",
            "claims.email_verified must be used in claimMappings.username.expression or \
             claimMappings.extra[*].valueExpression or claimValidationRules[*].expression when claims.email is used in \
             claimMappings.username.expression",
        );
    }
    fields.finish();
    Some((username?, groups, uid, extra))
}

fn parse_claim_or_expression(mut fields: FieldReader<'_>, prefixed: bool, required: bool) -> Option<ClaimSource> {
    let (name, source) = (fields.string("claim"), fields.string("expression"));
    let prefix = if prefixed { fields.optional_string("prefix") } else { None };
    let found = match (name.is_empty(), source.is_empty()) {
        (false, false) => {
            fields.add_own_problem("claim and expression can't both be set");
            None
        }
        (true, true) => {
            if required {
                fields.add_own_problem("claim or expression is required");
            }
            None
        }
        (true, false) => {
            if prefix.is_some() {
                fields.add_problem("prefix", "may not be specified when expression is set");
            }
            compile(&fields, "expression", &source, &CLAIMS).map(ClaimSource::Expression)
        }
        (false, true) => {
            if prefixed && prefix.is_none() {
                fields.add_problem(
                    "prefix",
                    "prefix is required when claim is set. It can be set to an empty string to disable prefixing",
                );
            }
            Some(ClaimSource::Claim { name, prefix: prefix.unwrap_or_default() })
        }
    };
    fields.finish();
    found
}

fn parse_extra(mapping_fields: Vec<FieldReader<'_>>, email: &mut EmailVerification) -> Vec<(String, Expression)> {
    let mut keys = BTreeSet::new();
    let mut extra = Vec::new();
    for mut fields in mapping_fields {
        let (key, source) = (fields.string("key"), fields.string("valueExpression"));
        if let Err(why) = check_extra_key(&key) {
            fields.add_problem("key", format_args!("{key:?}: {why}"));
        }
        if !keys.insert(key.clone()) {
            fields.add_problem("key", format_args!("duplicate value {key:?}"));
        } else if source.is_empty() {
            fields.add_problem("valueExpression", "required");
        } else if let Some(expression) = compile(&fields, "valueExpression", &source, &CLAIMS) {
            email.verified |= expression.references_field("email_verified");
            extra.push((key, expression));
        }
        fields.finish();
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

fn parse_user_rules(rule_fields: Vec<FieldReader<'_>>) -> Vec<(Expression, String)> {
    let mut expressions = BTreeSet::new();
    let mut rules = Vec::new();
    for mut fields in rule_fields {
        let (source, message) = (fields.string("expression"), fields.string("message"));
        if source.is_empty() {
            fields.add_problem("expression", "required");
        } else if !expressions.insert(source.clone()) {
            fields.add_problem("expression", "duplicate value");
        } else if let Some(expression) = compile_condition(&fields, &source, &USER) {
            rules.push((expression, message));
        }
        fields.finish();
    }
    rules
}
