//! Label selectors: `app=web,tier in (a,b),!old` (`k8s.io/apimachinery/pkg/labels`).

use serde_json::Value;

use crate::field_error::FieldError;
use crate::names::{check_label_value, check_qualified_name, is_label_key, is_label_value};
use crate::selector::field_selector::SelectorError;

/// A label selector. An object must satisfy all requirements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// Sorted by key.
    pub requirements: Vec<LabelRequirement>,
}

/// Requirement for one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRequirement {
    /// The label's key.
    pub key: String,
    /// Comparison of its value.
    pub operator: LabelOperator,
    /// Sorted, without duplicates; empty for [`LabelOperator::Exists`] and [`LabelOperator::DoesNotExist`].
    pub values: Vec<String>,
}

/// Comparison of a label. `=`, `==` and `!=` are [`In`](LabelOperator::In) and [`NotIn`](LabelOperator::NotIn) with one
/// value, as in access reviews.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabelOperator {
    /// The label exists, with one of the values.
    In,
    /// The label does not exist, or its value is none of the values.
    NotIn,
    /// The label exists.
    Exists,
    /// The label does not exist.
    DoesNotExist,
    /// The label's value is a number greater than the value.
    GreaterThan,
    /// The label's value is a number less than the value.
    LessThan,
}

impl LabelSelector {
    /// Parses a selector. The empty text selects everything.
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut reader = LabelSelectorParser { tokens: tokens(text)?, at: 0 };
        let mut requirements = Vec::new();
        match reader.peek() {
            SelectorToken::Word(_) | SelectorToken::Symbol("!") => loop {
                let requirement = reader.requirement();
                requirements
                    .push(requirement.map_err(|e| SelectorError(format!("unable to parse requirement: {}", e.0)))?);
                match reader.take() {
                    SelectorToken::End => break,
                    SelectorToken::Symbol(",") => match reader.peek() {
                        SelectorToken::Word(_) | SelectorToken::Symbol("!") => {}
                        other => return Err(unexpected_token(other, "identifier after ','")),
                    },
                    other => return Err(unexpected_token(&other, "',' or 'end of string'")),
                }
            },
            SelectorToken::End => {}
            other => return Err(unexpected_token(other, "!, identifier, or 'end of string'")),
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(LabelSelector { requirements })
    }

    /// Reads a `metav1.LabelSelector` (`LabelSelectorAsSelector`); none if it is invalid, or is null and selects nothing.
    pub fn of_object(selector: &Value) -> Option<LabelSelector> {
        let selector = selector.as_object()?;
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = vec![value.as_str()?.to_owned()];
            requirements.push(LabelRequirement { key: key.clone(), operator: LabelOperator::In, values });
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let mut values: Vec<String> = match &expression["values"] {
                Value::Array(values) => {
                    values.iter().map(|value| Some(value.as_str()?.to_owned())).collect::<Option<_>>()?
                }
                _ => Vec::new(),
            };
            values.sort();
            values.dedup();
            let operator = match expression["operator"].as_str()? {
                "In" => LabelOperator::In,
                "NotIn" => LabelOperator::NotIn,
                "Exists" => LabelOperator::Exists,
                "DoesNotExist" => LabelOperator::DoesNotExist,
                _ => return None,
            };
            let needs_values = matches!(operator, LabelOperator::In | LabelOperator::NotIn);
            if values.is_empty() == needs_values {
                return None;
            }
            requirements.push(LabelRequirement { key: expression["key"].as_str()?.to_owned(), operator, values });
        }
        let is_valid =
            |one: &LabelRequirement| is_label_key(&one.key) && one.values.iter().all(|value| is_label_value(value));
        if !requirements.iter().all(is_valid) {
            return None;
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Some(LabelSelector { requirements })
    }

    /// Whether an object matches. `label` returns the value of a label.
    pub fn matches<'v>(&self, label: impl Fn(&str) -> Option<&'v str>) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

impl LabelRequirement {
    fn matches(&self, value: Option<&str>) -> bool {
        let named = |value: &str| self.values.binary_search_by(|own| own.as_str().cmp(value)).is_ok();
        let number = |text: &str| text.parse::<i64>().ok();
        let bound = self.values.first().and_then(|v| number(v));
        let compared = value.and_then(number).zip(bound);
        match self.operator {
            LabelOperator::In => value.is_some_and(named),
            LabelOperator::NotIn => !value.is_some_and(named),
            LabelOperator::Exists => value.is_some(),
            LabelOperator::DoesNotExist => value.is_none(),
            LabelOperator::GreaterThan => compared.is_some_and(|(value, bound)| value > bound),
            LabelOperator::LessThan => compared.is_some_and(|(value, bound)| value < bound),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SelectorToken<'t> {
    Word(&'t str),
    Symbol(&'static str),
    End,
}

/// Longest first, so that `==` is not read as two.
const SYMBOLS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

fn tokens(text: &str) -> Result<Vec<SelectorToken<'_>>, SelectorError> {
    let is_space = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
    let mut tokens = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if rest.starts_with('\0') {
            return Err(SelectorError("found a NUL character, expected: identifier".to_owned()));
        }
        if let Some(symbol) = SYMBOLS.iter().find(|symbol| rest.starts_with(**symbol)) {
            tokens.push(SelectorToken::Symbol(symbol));
            rest = &rest[symbol.len()..];
        } else {
            let end = rest.find(|c: char| is_space(c) || "=!(),><\0".contains(c)).unwrap_or(rest.len());
            tokens.push(SelectorToken::Word(&rest[..end]));
            rest = &rest[end..];
        }
        rest = rest.trim_start_matches(is_space);
    }
    tokens.push(SelectorToken::End);
    Ok(tokens)
}

struct LabelSelectorParser<'t> {
    /// Ends with [`SelectorToken::End`]. Never read past it.
    tokens: Vec<SelectorToken<'t>>,
    at: usize,
}

impl<'t> LabelSelectorParser<'t> {
    fn peek(&self) -> &SelectorToken<'t> {
        self.tokens.get(self.at).unwrap_or(&SelectorToken::End)
    }

    fn take(&mut self) -> SelectorToken<'t> {
        let token = self.peek().clone();
        self.at += 1;
        token
    }

    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        let negated = self.peek() == &SelectorToken::Symbol("!");
        if negated {
            self.at += 1;
        }
        let key = match self.take() {
            SelectorToken::Word(key) => key,
            other => return Err(unexpected_token(&other, "identifier")),
        };
        check_key(key)?;
        // What follows `!key` is the caller's to refuse, as in Kubernetes.
        if negated || matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            let operator = if negated { LabelOperator::DoesNotExist } else { LabelOperator::Exists };
            return Ok(LabelRequirement { key: key.to_owned(), operator, values: Vec::new() });
        }
        let (operator, mut values) = match self.take() {
            SelectorToken::Word("in") => (LabelOperator::In, self.values()?),
            SelectorToken::Word("notin") => (LabelOperator::NotIn, self.values()?),
            SelectorToken::Symbol("=" | "==") => (LabelOperator::In, vec![self.value()?]),
            SelectorToken::Symbol("!=") => (LabelOperator::NotIn, vec![self.value()?]),
            SelectorToken::Symbol(">") => (LabelOperator::GreaterThan, vec![self.value()?]),
            SelectorToken::Symbol("<") => (LabelOperator::LessThan, vec![self.value()?]),
            other => return Err(unexpected_token(&other, "in, notin, =, ==, !=, gt, lt")),
        };
        values.sort_unstable();
        values.dedup();
        let numeric = matches!(operator, LabelOperator::GreaterThan | LabelOperator::LessThan);
        check_values(key, &values, numeric)?;
        Ok(LabelRequirement { key: key.to_owned(), operator, values })
    }

    /// Parses the value after an operator, which may be missing.
    fn value(&mut self) -> Result<String, SelectorError> {
        if matches!(self.peek(), SelectorToken::End | SelectorToken::Symbol(",")) {
            return Ok(String::new());
        }
        match self.take() {
            SelectorToken::Word(value) => Ok(value.to_owned()),
            other => Err(unexpected_token(&other, "identifier")),
        }
    }

    /// Parses `(a,b)`. Values may be missing.
    fn values(&mut self) -> Result<Vec<String>, SelectorError> {
        match self.take() {
            SelectorToken::Symbol("(") => {}
            other => return Err(SelectorError(format!("found '{}' expected: '('", token_text(&other)))),
        }
        let mut values = Vec::new();
        loop {
            let value = match self.peek() {
                SelectorToken::Word(value) => (*value).to_owned(),
                SelectorToken::Symbol("," | ")") => String::new(),
                other if values.is_empty() => return Err(unexpected_token(other, "',', ')' or identifier")),
                other => return Err(unexpected_token(other, "',', or identifier")),
            };
            if matches!(self.peek(), SelectorToken::Word(_)) {
                self.at += 1;
            }
            values.push(value);
            match self.take() {
                SelectorToken::Symbol(",") => {}
                SelectorToken::Symbol(")") => return Ok(values),
                other => return Err(unexpected_token(&other, "',' or ')'")),
            }
        }
    }
}

fn token_text<'t>(token: &SelectorToken<'t>) -> &'t str {
    match token {
        SelectorToken::Word(text) => text,
        SelectorToken::Symbol(text) => text,
        SelectorToken::End => "",
    }
}

fn unexpected_token(token: &SelectorToken<'_>, expected: &str) -> SelectorError {
    SelectorError(format!("found '{}', expected: {expected}", token_text(token)))
}

/// Refuses an invalid key, with Kubernetes' field error, which has no path.
fn check_key(key: &str) -> Result<(), SelectorError> {
    if is_label_key(key) {
        return Ok(());
    }
    Err(SelectorError(FieldError::invalid("<nil>", key, check_qualified_name(key).join("; ")).to_string()))
}

/// Refuses invalid values, with Kubernetes' field errors.
fn check_values(key: &str, values: &[String], is_numeric: bool) -> Result<(), SelectorError> {
    let mut errors = Vec::new();
    for (index, value) in values.iter().enumerate().filter(|(_, value)| is_numeric && value.parse::<i64>().is_err()) {
        let why = "for 'Gt', 'Lt' operators, the value must be an integer";
        errors.push(FieldError::invalid(format_args!("values[{index}]"), value, why).to_string());
    }
    for (index, value) in values.iter().enumerate().filter(|(_, value)| !is_label_value(value)) {
        let path = format_args!("values[{index}][{key}]").to_string();
        errors.push(FieldError::invalid(path, value, check_label_value(value).join("; ")).to_string());
    }
    match &errors[..] {
        [] => Ok(()),
        [only] => Err(SelectorError(only.clone())),
        _ => Err(SelectorError(format!("[{}]", errors.join(", ")))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn label_selector_valid_texts() {
        for text in [
            "",
            "x=a,y=b,z=c",
            "x!=a,y=b",
            "x=",
            "x= ",
            "x=,z= ",
            "x= ,z= ",
            "!x",
            "x>1",
            "x>1,z<5",
            "x in (a,b)",
            "x in (a,,b)",
            "x in ()",
            "x in (in,notin)",
            "x notin (a, b) , y",
            "  x  ==  a  ",
            "in=notin",
            "example.com/name=a",
        ] {
            assert!(LabelSelector::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn label_selector_invalid_texts() {
        for text in [
            "x=a||y=b",
            "x==a==b",
            "!x=a",
            "x<a",
            ",",
            "x,",
            "x in",
            "x in a",
            "x in (",
            "x in (a",
            "x in (a b)",
            "x y",
            "=a",
            "x=a b",
            "a/b/c=d",
            "/b",
            "Example.com/x",
            "x=-a",
            "x=a,,y=b",
            "!!x",
            "x<1.5",
        ] {
            assert!(LabelSelector::parse(text).is_err(), "{text}");
        }
        assert!(LabelSelector::parse(&format!("x={}", "a".repeat(64))).is_err());
    }

    #[test]
    fn label_selector_errors_match_upstream() {
        let label = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        let value = format!("unable to parse requirement: values[0][x]: Invalid value: \"-a\": {label}");
        for (text, expected) in [
            (",", "found ',', expected: !, identifier, or 'end of string'"),
            ("x,", "found '', expected: identifier after ','"),
            ("x,)", "found ')', expected: identifier after ','"),
            ("x=a b", "found 'b', expected: ',' or 'end of string'"),
            ("!x=a", "found '=', expected: ',' or 'end of string'"),
            ("!!x", "unable to parse requirement: found '!', expected: identifier"),
            ("x y", "unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt"),
            ("x in a", "unable to parse requirement: found 'a' expected: '('"),
            ("x in (a b)", "unable to parse requirement: found 'b', expected: ',' or ')'"),
            ("x in (=", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
            ("x in (a,=", "unable to parse requirement: found '=', expected: ',', or identifier"),
            ("x=-a", &value),
            ("x<b", {
                "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer"
            }),
            ("/b", "unable to parse requirement: <nil>: Invalid value: \"/b\": prefix part must be non-empty"),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap_err().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn label_selector_matching() {
        let label = |key: &str| match key {
            "x" => Some("5"),
            "foo" => Some("bar"),
            _ => None,
        };
        for (text, expected) in [
            ("", true),
            ("foo=bar", true),
            ("foo=bar,x=5", true),
            ("foo!=bar", false),
            ("foo==baz", false),
            ("other!=bar", true),
            ("foo", true),
            ("!foo", false),
            ("!other", true),
            ("foo in (baz,bar)", true),
            ("foo notin (baz)", true),
            ("other in (bar)", false),
            ("other notin (bar)", true),
            ("x>4", true),
            ("x<5", false),
            ("foo>4", false),
        ] {
            assert_eq!(LabelSelector::parse(text).unwrap().matches(label), expected, "{text}");
        }
    }

    #[test]
    fn label_selector_values_sorted_and_deduplicated() {
        let selector = LabelSelector::parse("z in (b,,a,b),a!=c").unwrap();
        let read: Vec<_> = selector.requirements.iter().map(|r| (&*r.key, r.operator, r.values.join("|"))).collect();
        assert_eq!(read, [("a", LabelOperator::NotIn, "c".to_owned()), ("z", LabelOperator::In, "|a|b".to_owned())]);
    }

    proptest! {
        #[test]
        fn any_text_is_answered(text in "[xyin!=<>(), \t\0é]{0,30}") {
            let _ = LabelSelector::parse(&text);
        }
    }
}
