//! Mapping of the claims of a verified token to a user, like `plugin/pkg/authenticator/token/oidc` of k8s.io/apiserver.

use kubeapi::{CREDENTIAL_ID, User, token_credential_id};
use serde_json::{Value, json};

use super::configuration::{ClaimSource, ClaimValidationRule, JwtIssuer};
use super::token::Claims;
use crate::expression::{EvaluatedValue, Expression, ExpressionInput};

/// Adds the ID of a token, the claim `jti`, to the extra values of its user.
pub(in crate::authenticate) fn add_credential_id(user: &mut User, claims: &Claims) {
    if let Some(Value::String(id)) = claims.get("jti")
        && !id.is_empty()
    {
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![token_credential_id(id)]);
    }
}

/// Maps `claims` to a user by the rules of `issuer`, without `system:authenticated`.
///
/// # Errors
/// The rule that failed, for the log.
pub(super) fn map_user(issuer: &JwtIssuer, claims: &Claims) -> Result<User, String> {
    let input =
        if issuer.has_expressions() { Some(ExpressionInput::from_json(&Value::Object(claims.clone()))) } else { None };
    let input = input.as_ref();
    let mut user = User { name: username(issuer, claims, input)?, ..User::default() };
    user.groups = groups(issuer, claims, input)?;
    user.uid = match &issuer.uid {
        None => String::new(),
        Some(ClaimSource::Claim { name, .. }) => claim_text(claims, name).map_err(|why| format!("uid: {why}"))?,
        Some(ClaimSource::Expression(expression)) => match evaluate(expression, input)? {
            EvaluatedValue::String(uid) => uid,
            _ => return Err("uid claim expression must return a string".to_owned()),
        },
    };
    add_credential_id(&mut user, claims);
    for (key, expression) in &issuer.extra {
        let values = text_list(evaluate(expression, input)?).ok_or_else(|| {
            format!("extra expression '{}' must return a string or a list of strings", expression.source())
        })?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in &issuer.claim_rules {
        match rule {
            ClaimValidationRule::Claim { name, value } => {
                let found = claim_text(claims, name).map_err(|why| format!("required claim: {why}"))?;
                if found != *value {
                    return Err(format!("required claim {name} value does not match"));
                }
            }
            ClaimValidationRule::Expression { expression, message } => check_rule(expression, message, input)?,
        }
    }
    if !issuer.user_rules.is_empty() {
        let input = ExpressionInput::from_json(&json!({
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        }));
        for (expression, message) in &issuer.user_rules {
            check_rule(expression, message, Some(&input))?;
        }
    }
    Ok(user)
}

fn username(issuer: &JwtIssuer, claims: &Claims, input: Option<&ExpressionInput>) -> Result<String, String> {
    let (name, prefix) = match &issuer.username {
        ClaimSource::Expression(expression) => {
            return match evaluate(expression, input)? {
                EvaluatedValue::String(name) if name.is_empty() => {
                    Err("empty username via CEL expression is not allowed".to_owned())
                }
                EvaluatedValue::String(name) => Ok(name),
                _ => Err("username claim expression must return a string".to_owned()),
            };
        }
        ClaimSource::Claim { name, prefix } => (name, prefix),
    };
    let value = claim_text(claims, name).map_err(|why| format!("username: {why}"))?;
    // An unverified address is rejected; one without the claim email_verified is accepted.
    if name == "email" {
        match claims.get("email_verified") {
            None | Some(Value::Bool(true)) => {}
            Some(Value::Bool(false) | Value::Null) => return Err("email not verified".to_owned()),
            Some(_) => return Err("the claim email_verified is neither true nor false".to_owned()),
        }
    }
    if value.is_empty() {
        return Err(format!("username: the claim {name} is empty"));
    }
    Ok(format!("{prefix}{value}"))
}

fn groups(issuer: &JwtIssuer, claims: &Claims, input: Option<&ExpressionInput>) -> Result<Vec<String>, String> {
    let (name, prefix) = match &issuer.groups {
        None => return Ok(Vec::new()),
        Some(ClaimSource::Expression(expression)) => {
            return text_list(evaluate(expression, input)?)
                .ok_or_else(|| "group expression must return a string or a list of strings".to_owned());
        }
        Some(ClaimSource::Claim { name, prefix }) => (name, prefix),
    };
    let found = match claims.get(name) {
        None => {
            // Distributed claims are not fetched. The user must not be taken for one without groups.
            if claims.get("_claim_names").is_some_and(|names| names.get(name).is_some()) {
                return Err(format!("the claim {name} is distributed, which is not supported"));
            }
            return Ok(Vec::new());
        }
        Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(group)) => vec![group.as_str()],
        Some(Value::Array(list)) => {
            let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            texts.ok_or_else(|| format!("groups: the claim {name} contains a value that is not a string"))?
        }
        Some(_) => return Err(format!("groups: the claim {name} is neither a string nor a list of strings")),
    };
    Ok(found.into_iter().map(|group| format!("{prefix}{group}")).collect())
}

fn claim_text(claims: &Claims, name: &str) -> Result<String, String> {
    match claims.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("the claim {name} is not a string")),
        None => Err(format!("the claim {name} is missing")),
    }
}

fn evaluate(expression: &Expression, input: Option<&ExpressionInput>) -> Result<EvaluatedValue, String> {
    expression.evaluate(input.ok_or("no input for the expression")?)
}

/// Returns a string or a list of strings as a list without empty strings; none for any other value.
fn text_list(outcome: EvaluatedValue) -> Option<Vec<String>> {
    let mut texts = match outcome {
        EvaluatedValue::Null => Vec::new(),
        EvaluatedValue::String(text) => vec![text],
        EvaluatedValue::StringList(texts) => texts,
        EvaluatedValue::Bool(_) | EvaluatedValue::Other(_) => return None,
    };
    texts.retain(|text| !text.is_empty());
    Some(texts)
}

fn check_rule(expression: &Expression, message: &str, input: Option<&ExpressionInput>) -> Result<(), String> {
    match evaluate(expression, input)? {
        EvaluatedValue::Bool(true) => Ok(()),
        EvaluatedValue::Bool(false) => {
            Err(format!("validation expression '{}' failed: {message}", expression.source()))
        }
        _ => Err("validation expression must return a boolean".to_owned()),
    }
}
