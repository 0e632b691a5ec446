//! Reads the fields of a configuration object by name and reports every problem with its path.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Map, Value};

use super::{Problem, Problems};

/// Reads one mapping of a document. Each field is read by its name; [`FieldReader::finish`] reports fields that were not
/// read. A problem is recorded and a default returned, so that all problems are found at once.
///
/// A null field counts as missing, as in Kubernetes.
pub struct FieldReader<'v> {
    location: &'v str,
    path: String,
    values: Option<&'v Map<String, Value>>,
    known_names: Vec<&'static str>,
    problems: &'v RefCell<Problems>,
}

/// Jaro-Winkler similarity from which an unknown field is taken for a misspelled one.
const SIMILARITY_THRESHOLD: f64 = 0.85;

impl<'v> FieldReader<'v> {
    /// Reads a whole document. `location` is its location; problems are added to `problems`.
    pub fn new(location: &'v str, value: &'v Value, problems: &'v RefCell<Problems>) -> FieldReader<'v> {
        FieldReader::at_path(location, String::new(), value, problems)
    }

    fn at_path(location: &'v str, path: String, value: &'v Value, problems: &'v RefCell<Problems>) -> FieldReader<'v> {
        let fields = FieldReader { location, path, values: value.as_object(), known_names: Vec::new(), problems };
        if fields.values.is_none() {
            fields.add_own_problem(format_args!("{} does not fit; a mapping is needed", type_name(value)));
        }
        fields
    }

    /// The path of field `name` from the root of the document.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the field is present and not null.
    pub fn contains(&self, name: &str) -> bool {
        self.values.is_some_and(|found| found.get(name).is_some_and(|value| !value.is_null()))
    }

    /// Whether the field is missing or an empty list. A value of another type is neither; reading it reports a problem.
    pub fn is_missing_or_empty(&self, name: &str) -> bool {
        !self.contains(name) || self.values.and_then(|found| found.get(name)?.as_array()).is_some_and(Vec::is_empty)
    }

    /// Reads a string; empty if missing.
    pub fn string(&mut self, name: &'static str) -> String {
        self.optional_string(name).unwrap_or_default()
    }

    /// Reads an optional string.
    pub fn optional_string(&mut self, name: &'static str) -> Option<String> {
        let value = self.take(name)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.add_problem(name, format_args!("{} does not fit; a text is needed", type_name(value)));
        }
        text
    }

    /// Reads an optional boolean.
    pub fn optional_bool(&mut self, name: &'static str) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            self.add_problem(name, format_args!("{} does not fit; true or false is needed", type_name(value)));
        }
        value.as_bool()
    }

    /// Reads an optional whole number.
    pub fn optional_integer(&mut self, name: &'static str) -> Option<i64> {
        let value = self.take(name)?;
        if value.as_i64().is_none() {
            self.add_problem(name, format_args!("{} does not fit; a whole number is needed", type_name(value)));
        }
        value.as_i64()
    }

    /// Reads a list of strings; empty if missing.
    pub fn string_list(&mut self, name: &'static str) -> Vec<String> {
        let mut texts = Vec::new();
        for (number, value) in self.list(name).iter().enumerate() {
            match value.as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => {
                    let field = format!("{name}[{number}]");
                    self.add_problem(&field, format_args!("{} does not fit; a text is needed", type_name(value)));
                }
            }
        }
        texts
    }

    /// Reads a mapping of strings to strings; empty if missing.
    pub fn string_map(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let Some(value) = self.take(name) else { return texts };
        let Some(map) = value.as_object() else {
            self.add_problem(name, format_args!("{} does not fit; a mapping is needed", type_name(value)));
            return texts;
        };
        for (key, value) in map {
            match value.as_str() {
                Some(text) => {
                    texts.insert(key.clone(), text.to_owned());
                }
                None => {
                    let field = format!("{name}[{key}]");
                    self.add_problem(&field, format_args!("{} does not fit; a text is needed", type_name(value)));
                }
            }
        }
        texts
    }

    /// Reads an optional nested object.
    pub fn object(&mut self, name: &'static str) -> Option<FieldReader<'v>> {
        let value = self.take(name)?;
        Some(FieldReader::at_path(self.location, self.path(name), value, self.problems))
    }

    /// Reads a list of objects; empty if missing.
    pub fn object_list(&mut self, name: &'static str) -> Vec<FieldReader<'v>> {
        let path = self.path(name);
        let at =
            |(number, value)| FieldReader::at_path(self.location, format!("{path}[{number}]"), value, self.problems);
        self.list(name).iter().enumerate().map(at).collect()
    }

    /// Accepts a known field without reading it.
    pub fn ignore(&mut self, name: &'static str) {
        self.known_names.push(name);
    }

    /// Adds a problem of the field `name`, which may be a path below this mapping.
    pub fn add_problem(&self, name: &str, message: impl Display) {
        self.problems.borrow_mut().0.push(Problem::at_field(self.location, self.path(name), message));
    }

    /// Adds a problem of the mapping itself.
    pub fn add_own_problem(&self, message: impl Display) {
        self.problems.borrow_mut().0.push(Problem::at_field(self.location, &self.path, message));
    }

    /// Reports every field that was not read as unknown.
    pub fn finish(self) {
        for name in self.values.into_iter().flat_map(Map::keys) {
            if self.known_names.contains(&name.as_str()) {
                continue;
            }
            let like = |candidate: &&'static str| strsim::jaro_winkler(&name.to_lowercase(), &candidate.to_lowercase());
            let nearest = self.known_names.iter().max_by(|a, b| like(a).total_cmp(&like(b)));
            match nearest.filter(|candidate| like(candidate) >= SIMILARITY_THRESHOLD) {
                Some(nearest) => self.add_problem(name, format_args!("unknown field; did you mean {nearest}?")),
                None => self.add_problem(name, "unknown field"),
            }
        }
    }

    fn take(&mut self, name: &'static str) -> Option<&'v Value> {
        self.known_names.push(name);
        self.values?.get(name).filter(|value| !value.is_null())
    }

    fn list(&mut self, name: &'static str) -> &'v [Value] {
        let Some(value) = self.take(name) else { return &[] };
        let list = value.as_array();
        if list.is_none() {
            self.add_problem(name, format_args!("{} does not fit; a list is needed", type_name(value)));
        }
        list.map(Vec::as_slice).unwrap_or_default()
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a mapping",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_reader_reports_every_problem_with_its_path() {
        let value = json!({
            "name": 1, "on": "yes", "list": ["a", 2, "b"], "map": {"a": "b", "c": []},
            "inner": {"name": "x", "nmae": "y"}, "each": [{"name": "x"}, "y"], "none": null, "other": [],
        });
        let problems = RefCell::default();
        let mut fields = FieldReader::new("f.yaml", &value, &problems);
        assert_eq!(fields.string("name"), "");
        assert_eq!(fields.optional_bool("on"), None);
        assert_eq!(fields.string_list("list"), ["a", "b"]);
        assert_eq!(fields.string_map("map"), [("a".to_owned(), "b".to_owned())].into());
        let mut inner = fields.object("inner").unwrap();
        assert_eq!(inner.string("name"), "x");
        inner.finish();
        let each = fields.object_list("each");
        assert_eq!(each.len(), 2);
        for mut one in each {
            one.string("name");
            one.finish();
        }
        assert_eq!(fields.optional_string("none"), None);
        assert!(!fields.contains("none") && fields.contains("other"));
        fields.finish();
        assert_eq!(
            problems.into_inner().to_string().lines().collect::<Vec<_>>(),
            [
                "f.yaml: name: a number does not fit; a text is needed",
                "f.yaml: on: a text does not fit; true or false is needed",
                "f.yaml: list[1]: a number does not fit; a text is needed",
                "f.yaml: map[c]: a list does not fit; a text is needed",
                "f.yaml: inner.nmae: unknown field; did you mean name?",
                "f.yaml: each[1]: a text does not fit; a mapping is needed",
                "f.yaml: other: unknown field",
            ]
        );
    }
}
