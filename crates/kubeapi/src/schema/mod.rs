//! Structural schemas of built-in and custom kinds: pruning of unknown fields, defaults, validation
//! (`k8s.io/apiextensions-apiserver/pkg/apiserver/schema`). Functions on values.

mod default;
mod path;
pub mod props;
mod prune;
mod read;
pub mod structural;
mod validation;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::Value;

use crate::field_error::FieldPath;

pub use default::{DefaultsTooLarge, apply_defaults, drop_forbidden_nulls};
pub use prune::{prune_unknown_fields, unknown_field_message};
pub use read::SchemaReadError;
pub use validation::{
    Enumeration, Pattern, PatternBudget, StepBudget, ValueValidation, is_text_format, validate, validate_list_types,
};

/// Bytes of JSON whose schema takes as much memory as one of the weight of a pattern.
const JSON_PER_WEIGHT: usize = 16;

/// A structural schema: what a value consists of and must be like. Shared parts, such as `metadata`, exist once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schema {
    /// Type of the value. `None` only if [`Schema::is_int_or_string`] or [`Schema::preserves_unknown_fields`].
    pub value_type: Option<ValueType>,
    /// `format`, such as `date-time` or `int32`; or empty.
    pub format: String,
    /// Fields of an object.
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// The properties that have a default; see [`Schema::note_defaults`].
    pub defaulted: Vec<String>,
    /// Values of the keys that [`Schema::properties`] does not name.
    pub additional_properties: Option<AdditionalProperties>,
    /// Schema of the items of an array.
    pub items: Option<Arc<Schema>>,
    /// Names of fields that an object must have.
    pub required: Vec<String>,
    /// Value of an absent field; never null.
    pub default: Option<Value>,
    /// Whether null is a value.
    pub is_nullable: bool,
    /// The extension `x-kubernetes-preserve-unknown-fields`.
    pub preserves_unknown_fields: bool,
    /// `x-kubernetes-embedded-resource`: an object with `apiVersion`, `kind` and `metadata`.
    pub is_embedded_resource: bool,
    /// Whether the value, or one in it, is an embedded resource.
    pub contains_embedded_resource: bool,
    /// The extension `x-kubernetes-int-or-string`.
    pub is_int_or_string: bool,
    /// The extension `x-kubernetes-list-type`.
    pub list_type: Option<ListType>,
    /// The extension `x-kubernetes-list-map-keys`.
    pub list_map_keys: Vec<String>,
    /// The extension `x-kubernetes-map-type`.
    pub map_type: Option<MapType>,
    /// Field that identifies an item in a strategic merge patch (`x-kubernetes-patch-merge-key`).
    pub merge_key: Option<String>,
    /// The extension `x-kubernetes-patch-strategy`, without `retainKeys`.
    pub merge_strategy: MergeStrategy,
    /// What values must be like, besides their type.
    pub validation: Option<Arc<ValueValidation>>,
}

/// Type of a value (`type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// An object.
    Object,
    /// An array.
    Array,
    /// A string.
    String,
    /// A number without a fraction.
    Integer,
    /// A number.
    Number,
    /// True or false.
    Boolean,
}

/// Values of the keys of an object that [`Schema::properties`] does not name.
#[derive(Clone, Debug, PartialEq)]
pub enum AdditionalProperties {
    /// Any scalar, or an object without known fields.
    Any,
    /// A value of this schema.
    Schema(Arc<Schema>),
}

impl AdditionalProperties {
    /// The schema of a value, if there is one.
    pub fn schema(&self) -> Option<&Schema> {
        match self {
            AdditionalProperties::Any => None,
            AdditionalProperties::Schema(schema) => Some(schema),
        }
    }
}

/// A value of the extension `x-kubernetes-list-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    /// The list is replaced as a whole.
    Atomic,
    /// The list is a set: no item occurs twice.
    Set,
    /// Items are identified by [`Schema::list_map_keys`].
    Map,
}

/// A value of the extension `x-kubernetes-map-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    /// The fields of the map are independent of each other.
    Granular,
    /// The map is replaced as a whole.
    Atomic,
}

/// How a strategic merge patch changes a field (`patchStrategy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MergeStrategy {
    /// Objects are merged, lists are replaced.
    #[default]
    Unspecified,
    /// Objects and lists are merged.
    Merge,
    /// Objects and lists are replaced.
    Replace,
}

impl Schema {
    /// A schema of a type without anything else.
    pub fn of_type(value_type: ValueType) -> Schema {
        Schema { value_type: Some(value_type), ..Schema::default() }
    }

    /// A schema of an object with fields.
    pub fn of_object<'n>(fields: impl IntoIterator<Item = (&'n str, Schema)>) -> Schema {
        let properties = fields.into_iter().map(|(name, schema)| (name.to_owned(), Arc::new(schema)));
        let mut schema = Schema { properties: properties.collect(), ..Schema::of_type(ValueType::Object) };
        schema.note_defaults();
        schema
    }

    /// Notes which properties have a default, after all were added.
    pub fn note_defaults(&mut self) {
        let defaulted = self.properties.iter().filter(|(_, property)| property.default.is_some());
        self.defaulted = defaulted.map(|(name, _)| name.clone()).collect();
    }

    /// Compiles the patterns that take long, so that the first value does not wait for them.
    pub fn compile_large_patterns(&self) {
        self.visit_patterns(&mut Pattern::compile_if_large);
    }

    /// What the schema takes in memory, in units of 16 to 64 bytes: its patterns, each counted once, and the rest by the size
    /// of its text.
    pub fn weight(&self, json_size: usize) -> usize {
        let (mut weight, mut counted) = (json_size / JSON_PER_WEIGHT + 1, HashSet::new());
        self.visit_patterns(&mut |pattern| {
            if counted.insert(pattern.text().to_owned()) {
                weight += pattern.weight();
            }
        });
        weight
    }

    fn visit_patterns(&self, visit: &mut impl FnMut(&Pattern)) {
        let of_values = self.additional_properties.as_ref().and_then(AdditionalProperties::schema);
        let inner = self.properties.values().chain(&self.items).map(|inner| &**inner).chain(of_values);
        inner.for_each(|inner| inner.visit_patterns(visit));
        if let Some(validation) = &self.validation {
            validation.pattern.iter().for_each(&mut *visit);
            let ValueValidation { all_of, any_of, one_of, not, .. } = &**validation;
            let alternatives = all_of.iter().chain(any_of).chain(one_of).chain(not.as_deref());
            alternatives.for_each(|alternative| alternative.visit_patterns(visit));
        }
    }

    /// A schema of an array.
    pub fn of_array(items: Schema) -> Schema {
        Schema { items: Some(Arc::new(items)), ..Schema::of_type(ValueType::Array) }
    }

    /// A schema of an object with any keys.
    pub fn of_map(values: Schema) -> Schema {
        let additional_properties = Some(AdditionalProperties::Schema(Arc::new(values)));
        Schema { additional_properties, ..Schema::of_type(ValueType::Object) }
    }

    /// A schema with a default. Null is none, as in Kubernetes.
    #[must_use]
    pub fn with_default(mut self, default: Value) -> Schema {
        self.default = Some(default).filter(|value| !value.is_null());
        self
    }

    /// A schema of a value that may be null.
    #[must_use]
    pub fn nullable(mut self) -> Schema {
        self.is_nullable = true;
        self
    }

    /// The schema of a field: that of the property, else that of the additional properties.
    pub fn field(&self, name: &str) -> Option<&Schema> {
        match self.properties.get(name) {
            Some(schema) => Some(schema),
            None => self.additional_properties.as_ref()?.schema(),
        }
    }

    /// Path of a property of a value; `path` is absent for the whole value.
    pub fn child_path<'c>(path: Option<&'c FieldPath<'_>>, name: &'c str) -> FieldPath<'c> {
        path.map_or(FieldPath::root(name), |path| path.child(name))
    }

    /// Path of an item of a list.
    pub fn item_path<'c>(path: Option<&'c FieldPath<'_>>, index: usize) -> FieldPath<'c> {
        path.map_or(FieldPath::root_index(index), |path| path.index(index))
    }

    /// Path of a value of a map.
    pub fn key_path<'c>(path: Option<&'c FieldPath<'_>>, key: &'c str) -> FieldPath<'c> {
        path.unwrap_or(&ROOT_PATH).key(key)
    }
}

/// Path of the whole value, for keys of a root that is a map.
static ROOT_PATH: FieldPath<'static> = FieldPath::root("");
