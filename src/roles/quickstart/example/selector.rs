//! Label and field selectors, read as `k8s.io/apimachinery/pkg/labels` and `pkg/fields` read them.

use serde_json::Value;

use super::failure;
use super::object;
use crate::kubeapi::Status;

/// What a list or a watch is narrowed to; all requirements must hold.
#[derive(Default)]
pub(super) struct Selector {
    labels: Vec<(String, Test)>,
    fields: Vec<FieldTest>,
}

#[derive(Debug, PartialEq)]
enum Test {
    Exists,
    Absent,
    In(Vec<String>),
    NotIn(Vec<String>),
    Greater(i64),
    Less(i64),
}

struct FieldTest {
    name: bool,
    equal: bool,
    value: String,
}

impl Selector {
    /// Reads both; refuses with 400 what cannot be understood, and fields other than
    /// `metadata.name` and `metadata.namespace`.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Selector, Status> {
        Ok(Selector { labels: parse_labels(labels)?, fields: parse_fields(fields)? })
    }

    /// Whether everything passes.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether `object` passes.
    pub(super) fn matches(&self, object: &Value) -> bool {
        let labels = object.pointer("/metadata/labels");
        self.labels.iter().all(|(key, test)| {
            let value = labels.and_then(|labels| labels.get(key)).and_then(Value::as_str);
            match (test, value) {
                (Test::Exists, value) => value.is_some(),
                (Test::Absent, value) => value.is_none(),
                (Test::In(values), Some(value)) => values.iter().any(|one| one == value),
                (Test::NotIn(values), Some(value)) => values.iter().all(|one| one != value),
                (Test::NotIn(_), None) => true,
                (Test::Greater(bound), Some(value)) => value.parse::<i64>().is_ok_and(|value| value > *bound),
                (Test::Less(bound), Some(value)) => value.parse::<i64>().is_ok_and(|value| value < *bound),
                (Test::In(_) | Test::Greater(_) | Test::Less(_), None) => false,
            }
        }) && self.fields.iter().all(|test| {
            let value = if test.name { object::name(object) } else { object::namespace(object) };
            (value == test.value) == test.equal
        })
    }
}

fn parse_labels(text: &str) -> Result<Vec<(String, Test)>, Status> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    split_outside_parentheses(text).into_iter().map(parse_requirement).collect()
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, letter) in text.char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn parse_requirement(text: &str) -> Result<(String, Test), Status> {
    let text = text.trim();
    let wrong = |why: String| failure::bad_request(format!("unable to parse requirement: {why}"));
    let (key, test) = if let Some(key) = text.strip_prefix('!') {
        (key.trim(), Test::Absent)
    } else if let Some(at) = text.find(|letter: char| "=!<>(".contains(letter) || letter.is_whitespace()) {
        let (key, rest) = (&text[..at], text[at..].trim_start());
        let test = if let Some(value) = rest.strip_prefix("==").or_else(|| rest.strip_prefix('=')) {
            Test::In(vec![label_value(value).map_err(wrong)?])
        } else if let Some(value) = rest.strip_prefix("!=") {
            Test::NotIn(vec![label_value(value).map_err(wrong)?])
        } else if let Some(bound) = rest.strip_prefix('>') {
            Test::Greater(bound_value(bound).map_err(wrong)?)
        } else if let Some(bound) = rest.strip_prefix('<') {
            Test::Less(bound_value(bound).map_err(wrong)?)
        } else if let Some(values) = rest.strip_prefix("notin") {
            Test::NotIn(values_in_parentheses(values).map_err(wrong)?)
        } else if let Some(values) = rest.strip_prefix("in") {
            Test::In(values_in_parentheses(values).map_err(wrong)?)
        } else {
            let expected = "in, notin, =, ==, !=, gt, lt";
            return Err(wrong(format!("found '{rest}', expected: {expected}")));
        };
        (key, test)
    } else {
        (text, Test::Exists)
    };
    match object::wrong_label_key(key) {
        None => Ok((key.to_owned(), test)),
        Some(why) => Err(wrong(format!("<nil>: Invalid value: {key:?}: {why}"))),
    }
}

fn label_value(text: &str) -> Result<String, String> {
    let value = text.trim();
    match object::wrong_label_value(value) {
        None => Ok(value.to_owned()),
        Some(why) => Err(format!("values[0][]: Invalid value: {value:?}: {why}")),
    }
}

fn bound_value(text: &str) -> Result<i64, String> {
    let text = text.trim();
    let why = "for 'Gt', 'Lt' operators, the value must be an integer";
    text.parse().map_err(|_| format!("values[0]: Invalid value: {text:?}: {why}"))
}

fn values_in_parentheses(text: &str) -> Result<Vec<String>, String> {
    let inner = text.trim().strip_prefix('(').and_then(|text| text.strip_suffix(')'));
    let inner = inner.ok_or_else(|| format!("found '{}', expected: '('", text.trim()))?;
    inner.split(',').map(label_value).collect()
}

fn parse_fields(text: &str) -> Result<Vec<FieldTest>, Status> {
    let terms = text.split(',').filter(|term| !term.is_empty());
    terms
        .map(|term| {
            let (field, equal, value) = if let Some((field, value)) = term.split_once("!=") {
                (field, false, value)
            } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
                (field, true, value)
            } else {
                return Err(failure::bad_request(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            let name = match field {
                "metadata.name" => true,
                "metadata.namespace" => false,
                _ => return Err(failure::bad_request(format!("field label not supported: {field}"))),
            };
            Ok(FieldTest { name, equal, value: value.to_owned() })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn matches(labels: &str, fields: &str) -> bool {
        let object = json!({"metadata": {
            "name": "hello", "namespace": "default", "labels": {"tone": "warm", "loud": "3", "a.b/c": ""}
        }});
        Selector::parse(labels, fields).unwrap().matches(&object)
    }

    #[test]
    fn label_selectors_mean_what_they_mean_upstream() {
        for passing in [
            "",
            "tone",
            "tone=warm",
            "tone==warm",
            "tone!=cold",
            "other!=x",
            "!other",
            "tone in (cold, warm)",
            "tone notin (cold,icy)",
            "other notin (x)",
            "tone=warm,!other,tone in (warm)",
            "loud>2",
            "loud < 4",
            "a.b/c",
            "a.b/c=",
            " tone = warm ",
        ] {
            assert!(matches(passing, ""), "{passing}");
        }
        for failing in [
            "!tone",
            "tone=cold",
            "tone!=warm",
            "other",
            "other in (x)",
            "tone notin (warm)",
            "loud>3",
            "tone>1",
            "tone=warm,other",
            "a.b/c=x",
        ] {
            assert!(!matches(failing, ""), "{failing}");
        }
    }

    #[test]
    fn field_selectors_know_name_and_namespace() {
        assert!(matches("", "metadata.name=hello"));
        assert!(matches("", "metadata.name==hello,metadata.namespace!=other"));
        assert!(!matches("", "metadata.name!=hello"));
        assert!(!matches("tone", "metadata.namespace=other"));
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for wrong in ["tone in warm", "tone ~ warm", "=x", "tone=a b", "loud>x", "!", "a,,b", "tone in (a", "a/b/c"] {
            assert_eq!(Selector::parse(wrong, "").err().map(|status| status.code), Some(400), "{wrong}");
        }
        let status = Selector::parse("", "spec.message=x").err().unwrap();
        assert_eq!(status.message, "field label not supported: spec.message");
        let status = Selector::parse("", "metadata.name").err().unwrap();
        assert_eq!(status.message, "invalid selector: 'metadata.name'; can't understand 'metadata.name'");
    }
}
