//! Mapping of the claims of a verified token to a user, like `plugin/pkg/authenticator/token/oidc` of k8s.io/apiserver.

use serde_json::{Value, json};

use super::configuration::{JwtIssuer, Rule, Source};
use super::token::Claims;
use crate::authenticate::peer::CREDENTIAL_ID;
use crate::expression::{Expression, Input, Outcome};
use crate::kubeapi::User;

/// Maps `claims` to a user by the rules of `issuer`, without `system:authenticated`.
///
/// # Errors
/// The rule that failed, for the log.
pub(super) fn user(issuer: &JwtIssuer, claims: &Claims) -> Result<User, String> {
    let input = if issuer.has_expressions() { Some(Input::of(&Value::Object(claims.clone()))) } else { None };
    let input = input.as_ref();
    let mut user = User { name: username(issuer, claims, input)?, ..User::default() };
    user.groups = groups(issuer, claims, input)?;
    user.uid = match &issuer.uid {
        None => String::new(),
        Some(Source::Claim { name, .. }) => text(claims, name).map_err(|why| format!("uid: {why}"))?,
        Some(Source::Expression(expression)) => match evaluate(expression, input)? {
            Outcome::Text(uid) => uid,
            _ => return Err("uid claim expression must return a string".to_owned()),
        },
    };
    if let Some(Value::String(id)) = claims.get("jti")
        && !id.is_empty()
    {
        user.extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
    }
    for (key, expression) in &issuer.extra {
        let values = texts(evaluate(expression, input)?).ok_or_else(|| {
            format!("extra expression '{}' must return a string or a list of strings", expression.source())
        })?;
        if !values.is_empty() {
            user.extra.insert(key.clone(), values);
        }
    }
    for rule in &issuer.claim_rules {
        match rule {
            Rule::Claim { name, value } => {
                let found = text(claims, name).map_err(|why| format!("required claim: {why}"))?;
                if found != *value {
                    return Err(format!("required claim {name} value does not match"));
                }
            }
            Rule::Expression { expression, message } => holds(expression, message, input)?,
        }
    }
    if !issuer.user_rules.is_empty() {
        let input = Input::of(&json!({
            "username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra,
        }));
        for (expression, message) in &issuer.user_rules {
            holds(expression, message, Some(&input))?;
        }
    }
    Ok(user)
}

fn username(issuer: &JwtIssuer, claims: &Claims, input: Option<&Input>) -> Result<String, String> {
    let (name, prefix) = match &issuer.username {
        Source::Expression(expression) => {
            return match evaluate(expression, input)? {
                Outcome::Text(name) if name.is_empty() => {
                    Err("empty username via CEL expression is not allowed".to_owned())
                }
                Outcome::Text(name) => Ok(name),
                _ => Err("username claim expression must return a string".to_owned()),
            };
        }
        Source::Claim { name, prefix } => (name, prefix),
    };
    let value = text(claims, name).map_err(|why| format!("username: {why}"))?;
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

fn groups(issuer: &JwtIssuer, claims: &Claims, input: Option<&Input>) -> Result<Vec<String>, String> {
    let (name, prefix) = match &issuer.groups {
        None => return Ok(Vec::new()),
        Some(Source::Expression(expression)) => {
            return texts(evaluate(expression, input)?)
                .ok_or_else(|| "group expression must return a string or a list of strings".to_owned());
        }
        Some(Source::Claim { name, prefix }) => (name, prefix),
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

fn text(claims: &Claims, name: &str) -> Result<String, String> {
    match claims.get(name) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(_) => Err(format!("the claim {name} is not a string")),
        None => Err(format!("the claim {name} is missing")),
    }
}

fn evaluate(expression: &Expression, input: Option<&Input>) -> Result<Outcome, String> {
    expression.evaluate(input.ok_or("no input for the expression")?)
}

/// Returns a string or a list of strings as a list without empty strings; none for any other value.
fn texts(outcome: Outcome) -> Option<Vec<String>> {
    let mut texts = match outcome {
        Outcome::Null => Vec::new(),
        Outcome::Text(text) => vec![text],
        Outcome::Texts(texts) => texts,
        Outcome::Bool(_) | Outcome::Other(_) => return None,
    };
    texts.retain(|text| !text.is_empty());
    Some(texts)
}

fn holds(expression: &Expression, message: &str, input: Option<&Input>) -> Result<(), String> {
    match evaluate(expression, input)? {
        Outcome::Bool(true) => Ok(()),
        Outcome::Bool(false) => Err(format!("validation expression '{}' failed: {message}", expression.source())),
        _ => Err("validation expression must return a boolean".to_owned()),
    }
}
