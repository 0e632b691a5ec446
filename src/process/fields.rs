//! Reads the fields of a configuration object by name and reports every problem with its path.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Display;

use serde_json::{Map, Value};

use super::{Problem, Problems};

/// Reads one mapping of a document. Each field is read by its name; [`Fields::end`] reports fields that were not
/// read. A problem is recorded and a default returned, so that all problems are found at once.
///
/// A null field counts as missing, as in Kubernetes.
pub struct Fields<'v> {
    place: &'v str,
    path: String,
    found: Option<&'v Map<String, Value>>,
    known: Vec<&'static str>,
    problems: &'v RefCell<Problems>,
}

/// Jaro-Winkler similarity from which an unknown field is taken for a misspelled one.
const ALIKE: f64 = 0.85;

impl<'v> Fields<'v> {
    /// Reads a whole document. `place` is its location; problems are added to `problems`.
    pub fn new(place: &'v str, value: &'v Value, problems: &'v RefCell<Problems>) -> Fields<'v> {
        Fields::at(place, String::new(), value, problems)
    }

    fn at(place: &'v str, path: String, value: &'v Value, problems: &'v RefCell<Problems>) -> Fields<'v> {
        let fields = Fields { place, path, found: value.as_object(), known: Vec::new(), problems };
        if fields.found.is_none() {
            fields.problem_here(format_args!("{} does not fit; a mapping is needed", kind_of(value)));
        }
        fields
    }

    /// The path of field `name` from the root of the document.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// Whether the field is present and not null.
    pub fn has(&self, name: &str) -> bool {
        self.found.is_some_and(|found| found.get(name).is_some_and(|value| !value.is_null()))
    }

    /// Whether the field is missing or an empty list. A value of another type is neither; reading it reports a problem.
    pub fn lacks(&self, name: &str) -> bool {
        !self.has(name) || self.found.and_then(|found| found.get(name)?.as_array()).is_some_and(Vec::is_empty)
    }

    /// Reads a string; empty if missing.
    pub fn text(&mut self, name: &'static str) -> String {
        self.text_if_given(name).unwrap_or_default()
    }

    /// Reads an optional string.
    pub fn text_if_given(&mut self, name: &'static str) -> Option<String> {
        let value = self.take(name)?;
        let text = value.as_str().map(str::to_owned);
        if text.is_none() {
            self.problem(name, format_args!("{} does not fit; a text is needed", kind_of(value)));
        }
        text
    }

    /// Reads an optional boolean.
    pub fn switch(&mut self, name: &'static str) -> Option<bool> {
        let value = self.take(name)?;
        if !value.is_boolean() {
            self.problem(name, format_args!("{} does not fit; true or false is needed", kind_of(value)));
        }
        value.as_bool()
    }

    /// Reads a list of strings; empty if missing.
    pub fn texts(&mut self, name: &'static str) -> Vec<String> {
        let mut texts = Vec::new();
        for (number, value) in self.list(name).iter().enumerate() {
            match value.as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => {
                    let field = format!("{name}[{number}]");
                    self.problem(&field, format_args!("{} does not fit; a text is needed", kind_of(value)));
                }
            }
        }
        texts
    }

    /// Reads a mapping of strings to strings; empty if missing.
    pub fn map(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let Some(value) = self.take(name) else { return texts };
        let Some(map) = value.as_object() else {
            self.problem(name, format_args!("{} does not fit; a mapping is needed", kind_of(value)));
            return texts;
        };
        for (key, value) in map {
            match value.as_str() {
                Some(text) => {
                    texts.insert(key.clone(), text.to_owned());
                }
                None => {
                    let field = format!("{name}[{key}]");
                    self.problem(&field, format_args!("{} does not fit; a text is needed", kind_of(value)));
                }
            }
        }
        texts
    }

    /// Reads an optional nested object.
    pub fn fields(&mut self, name: &'static str) -> Option<Fields<'v>> {
        let value = self.take(name)?;
        Some(Fields::at(self.place, self.path(name), value, self.problems))
    }

    /// Reads a list of objects; empty if missing.
    pub fn each(&mut self, name: &'static str) -> Vec<Fields<'v>> {
        let path = self.path(name);
        let at = |(number, value)| Fields::at(self.place, format!("{path}[{number}]"), value, self.problems);
        self.list(name).iter().enumerate().map(at).collect()
    }

    /// Accepts a known field without reading it.
    pub fn ignore(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// Adds a problem of the field `name`, which may be a path below this mapping.
    pub fn problem(&self, name: &str, message: impl Display) {
        self.problems.borrow_mut().0.push(Problem::field(self.place, self.path(name), message));
    }

    /// Adds a problem of the mapping itself.
    pub fn problem_here(&self, message: impl Display) {
        self.problems.borrow_mut().0.push(Problem::field(self.place, &self.path, message));
    }

    /// Reports every field that was not read as unknown.
    pub fn end(self) {
        for name in self.found.into_iter().flat_map(Map::keys) {
            if self.known.contains(&name.as_str()) {
                continue;
            }
            let like = |known: &&'static str| strsim::jaro_winkler(&name.to_lowercase(), &known.to_lowercase());
            let nearest = self.known.iter().max_by(|a, b| like(a).total_cmp(&like(b)));
            match nearest.filter(|known| like(known) >= ALIKE) {
                Some(known) => self.problem(name, format_args!("unknown field; did you mean {known}?")),
                None => self.problem(name, "unknown field"),
            }
        }
    }

    fn take(&mut self, name: &'static str) -> Option<&'v Value> {
        self.known.push(name);
        self.found?.get(name).filter(|value| !value.is_null())
    }

    fn list(&mut self, name: &'static str) -> &'v [Value] {
        let Some(value) = self.take(name) else { return &[] };
        let list = value.as_array();
        if list.is_none() {
            self.problem(name, format_args!("{} does not fit; a list is needed", kind_of(value)));
        }
        list.map(Vec::as_slice).unwrap_or_default()
    }
}

fn kind_of(value: &Value) -> &'static str {
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
    fn every_mistake_at_its_path() {
        let value = json!({
            "name": 1, "on": "yes", "list": ["a", 2, "b"], "map": {"a": "b", "c": []},
            "inner": {"name": "x", "nmae": "y"}, "each": [{"name": "x"}, "y"], "none": null, "other": [],
        });
        let problems = RefCell::default();
        let mut fields = Fields::new("f.yaml", &value, &problems);
        assert_eq!(fields.text("name"), "");
        assert_eq!(fields.switch("on"), None);
        assert_eq!(fields.texts("list"), ["a", "b"]);
        assert_eq!(fields.map("map"), [("a".to_owned(), "b".to_owned())].into());
        let mut inner = fields.fields("inner").unwrap();
        assert_eq!(inner.text("name"), "x");
        inner.end();
        let each = fields.each("each");
        assert_eq!(each.len(), 2);
        for mut one in each {
            one.text("name");
            one.end();
        }
        assert_eq!(fields.text_if_given("none"), None);
        assert!(!fields.has("none") && fields.has("other"));
        fields.end();
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
