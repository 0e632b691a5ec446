//! Validation errors of fields, and their list as a 422 (`apimachinery/pkg/util/validation/field`).
//!
//! What a client fills is repeated in errors: paths, values, and their number. All three are bounded, so that the errors
//! of an object cost no more than a small multiple of the object.

mod list;

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde_json::Value;

pub use list::{FieldErrors, MAX_FIELD_ERRORS};

use super::json::{format_go_number, write_json};
use super::{GoQuoted, Status, StatusCause};

/// Maximum size of the path of an error in bytes. Keys of maps may be as long as the object.
pub const MAX_PATH_BYTES: usize = 4 << 10;
/// Maximum size of a value in an error, and of the text about it, in bytes.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Path of a field, such as `spec.ports[0].name`, as a list from the inside to the outside. Costs nothing until it is
/// displayed.
#[derive(Clone, Copy, Debug)]
pub struct FieldPath<'p> {
    parent: Option<&'p FieldPath<'p>>,
    element: FieldElement<'p>,
}

#[derive(Clone, Copy, Debug)]
enum FieldElement<'p> {
    Name(&'p str),
    Index(usize),
    Key(&'p str),
}

impl<'p> FieldPath<'p> {
    /// Path of a field of the root. Kubernetes' path of the root itself has an empty name, too.
    pub const fn root(name: &'p str) -> FieldPath<'p> {
        FieldPath { parent: None, element: FieldElement::Name(name) }
    }

    /// Path of an item of the root.
    pub const fn root_index(index: usize) -> FieldPath<'p> {
        FieldPath { parent: None, element: FieldElement::Index(index) }
    }

    /// Path of a field of this object: `.name`.
    pub const fn child<'c>(&'c self, name: &'c str) -> FieldPath<'c> {
        FieldPath { parent: Some(self), element: FieldElement::Name(name) }
    }

    /// Path of an item of this list: `[0]`.
    pub const fn index(&self, index: usize) -> FieldPath<'_> {
        FieldPath { parent: Some(self), element: FieldElement::Index(index) }
    }

    /// Path of a value of this map: `[key]`.
    pub const fn key<'c>(&'c self, key: &'c str) -> FieldPath<'c> {
        FieldPath { parent: Some(self), element: FieldElement::Key(key) }
    }
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut elements = vec![self.element];
        let mut at = self.parent;
        while let Some(path) = at {
            elements.push(path.element);
            at = path.parent;
        }
        let mut out = BoundedText::new(f, MAX_PATH_BYTES);
        for (position, element) in elements.iter().rev().enumerate() {
            match element {
                FieldElement::Name("") if position > 0 => out.write_str("[]")?,
                FieldElement::Name(name) if position > 0 => write!(out, ".{name}")?,
                FieldElement::Name(name) => out.write_str(name)?,
                FieldElement::Index(index) => write!(out, "[{index}]")?,
                FieldElement::Key(key) => write!(out, "[{key}]")?,
            }
        }
        Ok(())
    }
}

/// Writes at most a number of bytes, then `...`, and ignores the rest.
pub struct BoundedText<'w> {
    out: &'w mut dyn fmt::Write,
    left: usize,
    is_cut: bool,
}

impl<'w> BoundedText<'w> {
    /// Writes at most `limit` bytes to `out`.
    pub fn new(out: &'w mut dyn fmt::Write, limit: usize) -> BoundedText<'w> {
        BoundedText { out, left: limit, is_cut: false }
    }
}

impl fmt::Write for BoundedText<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Ok(());
        }
        let start = beginning(text, self.left);
        self.left -= start.len();
        self.out.write_str(start)?;
        self.is_cut = start.len() < text.len();
        if self.is_cut { self.out.write_str("...") } else { Ok(()) }
    }
}

/// The characters of a text within its first `limit` bytes.
fn beginning(text: &str, limit: usize) -> &str {
    if text.len() <= limit { text } else { &text[..text.floor_char_boundary(limit)] }
}

/// A text that errors repeat, cut off if it is long.
fn bounded(text: String) -> String {
    if text.len() <= MAX_TEXT_BYTES { text } else { format!("{}...", beginning(&text, MAX_TEXT_BYTES)) }
}

/// Kind of a [`FieldError`] (`field.ErrorType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FieldErrorKind {
    /// The value refers to something that does not exist.
    NotFound,
    /// A value is missing.
    Required,
    /// A value that must be unique occurs twice.
    Duplicate,
    /// A value is malformed.
    Invalid,
    /// A value is none of the supported ones.
    NotSupported,
    /// A value may not be set here.
    Forbidden,
    /// A value is too long.
    TooLong,
    /// A list has too many items.
    TooMany,
    /// A list has too few items.
    TooFew,
    /// Validation failed for another reason than the value.
    Internal,
    /// A value has the wrong type.
    TypeInvalid,
    /// A value is too short.
    TooShort,
}

impl FieldErrorKind {
    /// The reason of a cause, such as `FieldValueInvalid`.
    pub fn reason(self) -> &'static str {
        match self {
            FieldErrorKind::NotFound => "FieldValueNotFound",
            FieldErrorKind::Required => "FieldValueRequired",
            FieldErrorKind::Duplicate => "FieldValueDuplicate",
            FieldErrorKind::Invalid => "FieldValueInvalid",
            FieldErrorKind::NotSupported => "FieldValueNotSupported",
            FieldErrorKind::Forbidden => "FieldValueForbidden",
            FieldErrorKind::TooLong => "FieldValueTooLong",
            FieldErrorKind::TooMany => "FieldValueTooMany",
            FieldErrorKind::TooFew => "FieldValueTooFew",
            FieldErrorKind::Internal => "InternalError",
            FieldErrorKind::TypeInvalid => "FieldValueTypeInvalid",
            FieldErrorKind::TooShort => "FieldValueTooShort",
        }
    }

    fn title(self) -> &'static str {
        match self {
            FieldErrorKind::NotFound => "Not found",
            FieldErrorKind::Required => "Required value",
            FieldErrorKind::Duplicate => "Duplicate value",
            FieldErrorKind::Invalid | FieldErrorKind::TypeInvalid => "Invalid value",
            FieldErrorKind::NotSupported => "Unsupported value",
            FieldErrorKind::Forbidden => "Forbidden",
            FieldErrorKind::TooLong => "Too long",
            FieldErrorKind::TooMany => "Too many",
            FieldErrorKind::TooFew => "Too few",
            FieldErrorKind::Internal => "Internal error",
            FieldErrorKind::TooShort => "Too short",
        }
    }
}

/// A value as an error shows it: a string quoted as by Go, anything else as JSON. A long one is cut off. Cheap to clone,
/// for errors that repeat a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BadValue(Arc<str>);

impl BadValue {
    /// JSON's null, as for an absent value of Go's pointers.
    pub fn null() -> BadValue {
        BadValue("null".into())
    }

    /// A value that is written as JSON already.
    pub fn from_json(json: String) -> BadValue {
        BadValue(bounded(json).into())
    }
}

impl From<&str> for BadValue {
    fn from(text: &str) -> BadValue {
        let start = beginning(text, MAX_TEXT_BYTES);
        let cut = if start.len() < text.len() { "..." } else { "" };
        BadValue(format!("{}{cut}", GoQuoted(start)).into())
    }
}

impl From<&String> for BadValue {
    fn from(text: &String) -> BadValue {
        text.as_str().into()
    }
}

impl From<i64> for BadValue {
    fn from(number: i64) -> BadValue {
        BadValue(number.to_string().into())
    }
}

impl From<usize> for BadValue {
    fn from(number: usize) -> BadValue {
        BadValue(number.to_string().into())
    }
}

impl From<bool> for BadValue {
    fn from(value: bool) -> BadValue {
        BadValue(value.to_string().into())
    }
}

impl From<&[String]> for BadValue {
    fn from(texts: &[String]) -> BadValue {
        BadValue::from_json(write_json(&texts.iter().map(|text| Value::from(text.as_str())).collect()))
    }
}

impl From<&Value> for BadValue {
    fn from(value: &Value) -> BadValue {
        match value {
            Value::String(text) => text.into(),
            Value::Number(_) => BadValue::from_json(format_go_number(value)),
            _ => BadValue::from_json(write_json(value)),
        }
    }
}

/// A validation error of one field (`field.Error`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldError {
    /// Kind of the error.
    pub kind: FieldErrorKind,
    /// Path of the field.
    pub field: String,
    /// The value, for the kinds that show it.
    pub value: Option<BadValue>,
    /// What is wrong, or empty.
    pub detail: String,
}

impl FieldError {
    /// An error of any kind.
    pub fn new(
        kind: FieldErrorKind,
        field: impl fmt::Display,
        value: Option<BadValue>,
        detail: impl Into<String>,
    ) -> FieldError {
        FieldError { kind, field: field.to_string(), value, detail: bounded(detail.into()) }
    }

    /// Bytes of its texts.
    pub fn text_size(&self) -> usize {
        self.field.len() + self.value.as_ref().map_or(0, |value| value.0.len()) + self.detail.len()
    }

    /// The value is malformed.
    pub fn invalid(field: impl fmt::Display, value: impl Into<BadValue>, detail: impl Into<String>) -> FieldError {
        FieldError::new(FieldErrorKind::Invalid, field, Some(value.into()), detail)
    }

    /// The value has the wrong type.
    pub fn type_invalid(field: impl fmt::Display, value: impl Into<BadValue>, detail: impl Into<String>) -> FieldError {
        FieldError::new(FieldErrorKind::TypeInvalid, field, Some(value.into()), detail)
    }

    /// The value is missing.
    pub fn required(field: impl fmt::Display, detail: impl Into<String>) -> FieldError {
        FieldError::new(FieldErrorKind::Required, field, None, detail)
    }

    /// The value may not be set here.
    pub fn forbidden(field: impl fmt::Display, detail: impl Into<String>) -> FieldError {
        FieldError::new(FieldErrorKind::Forbidden, field, None, detail)
    }

    /// The value must be unique and occurs twice.
    pub fn duplicate(field: impl fmt::Display, value: impl Into<BadValue>) -> FieldError {
        FieldError::new(FieldErrorKind::Duplicate, field, Some(value.into()), "")
    }

    /// The value refers to something that does not exist.
    pub fn not_found(field: impl fmt::Display, value: impl Into<BadValue>) -> FieldError {
        FieldError::new(FieldErrorKind::NotFound, field, Some(value.into()), "")
    }

    /// The value is none of the supported ones.
    pub fn not_supported(field: impl fmt::Display, value: impl Into<BadValue>, supported: &[&str]) -> FieldError {
        let quoted: Vec<String> = supported.iter().map(|one| GoQuoted(one).to_string()).collect();
        let detail = if quoted.is_empty() { String::new() } else { format!("supported values: {}", quoted.join(", ")) };
        FieldError::new(FieldErrorKind::NotSupported, field, Some(value.into()), detail)
    }

    /// The value has more than `limit` bytes.
    pub fn too_long(field: impl fmt::Display, limit: usize) -> FieldError {
        let unit = if limit == 1 { "byte" } else { "bytes" };
        FieldError::new(FieldErrorKind::TooLong, field, None, format!("may not be more than {limit} {unit}"))
    }

    /// The list has more than `limit` items.
    pub fn too_many(field: impl fmt::Display, actual: usize, limit: usize) -> FieldError {
        let unit = if limit == 1 { "item" } else { "items" };
        let detail = format!("must have at most {limit} {unit}");
        FieldError::new(FieldErrorKind::TooMany, field, Some(actual.into()), detail)
    }

    /// Validation failed for another reason than the value.
    pub fn internal(field: impl fmt::Display, detail: impl Into<String>) -> FieldError {
        FieldError::new(FieldErrorKind::Internal, field, None, detail)
    }

    /// The text without the field, as in the message of a cause.
    pub fn body(&self) -> String {
        let mut text = self.kind.title().to_owned();
        for part in [self.value.as_ref().map(|value| &*value.0), Some(self.detail.as_str())] {
            if let Some(part) = part.filter(|part| !part.is_empty()) {
                text.push_str(": ");
                text.push_str(part);
            }
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl From<&FieldError> for StatusCause {
    fn from(error: &FieldError) -> StatusCause {
        StatusCause { reason: error.kind.reason().into(), message: error.body(), field: error.field.clone() }
    }
}

/// 422 for an object with invalid fields (`errors.NewInvalid`). `kind` is the kind, or the resource where Kubernetes
/// says so.
pub fn invalid_fields_status(group: &str, kind: &str, name: &str, errors: impl Into<FieldErrors>) -> Status {
    let errors = errors.into();
    let causes = errors.iter().map(StatusCause::from).collect();
    Status::invalid_with_omitted(group, kind, name, causes, errors.omitted())
}

/// 422 for invalid options of a request, such as `ListOptions`.
pub fn invalid_options_status(kind: &str, errors: impl Into<FieldErrors>) -> Status {
    invalid_fields_status("meta.k8s.io", kind, "", errors)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn field_path_displays_as_upstream() {
        let spec = FieldPath::root("spec");
        assert_eq!(spec.child("ports").index(0).child("name").to_string(), "spec.ports[0].name");
        assert_eq!(
            FieldPath::root("metadata").child("annotations").key("a.b/c").to_string(),
            "metadata.annotations[a.b/c]"
        );
    }

    #[test]
    fn field_error_bodies_match_upstream() {
        for (error, expected) in [
            (FieldError::invalid("a", "x\"", "bad"), r#"a: Invalid value: "x\"": bad"#),
            (FieldError::invalid("a", &json!({"b": "<"}), "bad"), r#"a: Invalid value: {"b":"\u003c"}: bad"#),
            (FieldError::invalid("a", &json!(null), "bad"), "a: Invalid value: null: bad"),
            (FieldError::invalid("a", &json!(1e21), "bad"), "a: Invalid value: 1e+21: bad"),
            (FieldError::invalid("a", &json!(0.00001), "bad"), "a: Invalid value: 1e-05: bad"),
            (FieldError::invalid("a", 0i64, ""), "a: Invalid value: 0"),
            (FieldError::required("a", ""), "a: Required value"),
            (FieldError::forbidden("a", "no"), "a: Forbidden: no"),
            (FieldError::duplicate("a", "x"), "a: Duplicate value: \"x\""),
            (
                FieldError::not_supported("a", "x", &["b", ""]),
                r#"a: Unsupported value: "x": supported values: "b", """#,
            ),
            (FieldError::too_long("a", 128), "a: Too long: may not be more than 128 bytes"),
            (FieldError::too_many("a", 9, 8), "a: Too many: 9: must have at most 8 items"),
            (FieldError::type_invalid("a", true, "t"), "a: Invalid value: true: t"),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn invalid_status_repeats_causes_but_not_messages() {
        let uid = FieldError::invalid("metadata.uid", "x", "field is immutable");
        let status = invalid_fields_status("ex.io", "Foo", "a", vec![uid.clone(), uid]);
        assert_eq!(
            status.message,
            "Foo.ex.io \"a\" is invalid: metadata.uid: Invalid value: \"x\": field is immutable"
        );
        assert_eq!(status.details.as_ref().unwrap().causes.len(), 2);
        let none = invalid_fields_status("", "Foo", "a", vec![]);
        assert_eq!(none.message, "Foo \"a\" is invalid");
    }

    #[test]
    fn field_error_repeats_beginning_of_long_texts_only() {
        let long = "é".repeat(1 << 20);
        let metadata = FieldPath::root("metadata");
        let labels = metadata.child("labels");
        let error = FieldError::invalid(labels.key(&long).child("x"), &*long, format!("not {long}"));
        let value = error.value.as_ref().unwrap();
        assert!(error.field.starts_with("metadata.labels[éé") && error.field.ends_with("é..."));
        assert!(value.0.starts_with("\"é") && value.0.ends_with("é\"..."));
        for (text, limit) in
            [(&*error.field, MAX_PATH_BYTES), (&*value.0, MAX_TEXT_BYTES + 2), (&*error.detail, MAX_TEXT_BYTES)]
        {
            assert!((limit - 2..=limit + 3).contains(&text.len()), "{} of {limit}", text.len());
        }
        let json = FieldError::invalid("a", &json!([long]), "");
        assert!(json.to_string().starts_with("a: Invalid value: [\"é") && json.to_string().len() < MAX_TEXT_BYTES + 50);
    }
}
