//! Defaults of a schema, validated by it (`pkg/apiserver/schema/defaulting`).

use std::collections::HashSet;
use std::sync::Arc;

use kubeapi::field_error::{FieldError, FieldErrors, FieldPath};
use kubeapi::schema::{AdditionalProperties, Schema, StepBudget, prune_unknown_fields, validate};
use serde_json::{Map, Value, json};

use crate::kinds::custom_resource::{MalformedFields, coerce_embedded, embedded_errors};

/// The errors of the defaults in a structural schema. Those of values of maps are never used. `path` is that of the
/// schema. The budget says whether they are complete.
pub(super) fn default_errors(
    written: &Value,
    (requires_pruned, steps): (bool, &dyn StepBudget),
    path: &FieldPath<'_>,
) -> FieldErrors {
    let Some(root) = read_root(written) else { return FieldErrors::new() };
    let mut errors = FieldErrors::new();
    let place = DefaultPlace { root: &root, steps, surroundings: Surroundings::default(), is_in_metadata: false };
    check_defaults(&root, &place, requires_pruned, path, &mut errors);
    errors
}

/// Reads a schema whose root is an object with metadata.
fn read_root(written: &Value) -> Option<Schema> {
    let mut schema = Schema::read(written).ok()?;
    accept_any_type(&mut schema);
    Some(Schema { is_embedded_resource: true, contains_embedded_resource: true, ..schema })
}

/// Removes `x-kubernetes-int-or-string`: Kubernetes does not know the extension where it validates defaults.
fn accept_any_type(schema: &mut Schema) {
    schema.is_int_or_string = false;
    let values = match &mut schema.additional_properties {
        Some(AdditionalProperties::Schema(values)) => Some(values),
        _ => None,
    };
    let inner = schema.properties.values_mut().chain(&mut schema.items).chain(values);
    inner.for_each(|inner| accept_any_type(Arc::make_mut(inner)));
}

/// Where a default stands.
#[derive(Clone)]
struct DefaultPlace<'s> {
    /// The schema of the innermost object with metadata.
    root: &'s Schema,
    steps: &'s dyn StepBudget,
    /// The way from there.
    surroundings: Surroundings<'s>,
    /// Inside of `apiVersion`, `kind` or `metadata` of that object.
    is_in_metadata: bool,
}

/// The way from an object to a value in it.
#[derive(Clone, Default)]
struct Surroundings<'s>(Vec<SurroundingStep<'s>>);

#[derive(Clone, Copy)]
enum SurroundingStep<'s> {
    Field(&'s str),
    Item,
}

impl<'s> Surroundings<'s> {
    fn with(&self, step: SurroundingStep<'s>) -> Surroundings<'s> {
        Surroundings(self.0.iter().copied().chain([step]).collect())
    }

    /// An object that has nothing but a value there.
    fn wrap(&self, value: Value) -> Value {
        self.0.iter().rev().fold(value, |inner, step| match step {
            SurroundingStep::Field(name) => Value::Object(Map::from_iter([((*name).to_owned(), inner)])),
            SurroundingStep::Item => Value::Array(vec![inner]),
        })
    }

    /// The value there.
    fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.0.iter().try_fold(object, |value, step| match step {
            SurroundingStep::Field(name) => value.get(name),
            SurroundingStep::Item => value.get(0),
        })
    }
}

fn check_defaults(
    schema: &Schema,
    place: &DefaultPlace<'_>,
    requires_pruned: bool,
    path: &FieldPath<'_>,
    errors: &mut FieldErrors,
) {
    let own_place =
        DefaultPlace { root: schema, steps: place.steps, surroundings: Surroundings::default(), is_in_metadata: false };
    let place = if schema.is_embedded_resource { &own_place } else { place };
    if let Some(default) = &schema.default {
        let path = path.child("default");
        errors.append(match place.is_in_metadata {
            true => metadata_default_errors(schema, default, place, &path),
            false => value_default_errors(schema, default, (requires_pruned, place.steps), &path),
        });
    }
    if let Some(items) = &schema.items {
        let place = DefaultPlace { surroundings: place.surroundings.with(SurroundingStep::Item), ..place.clone() };
        check_defaults(items, &place, requires_pruned, &path.child("items"), errors);
    }
    let properties = path.child("properties");
    for (name, inner) in &schema.properties {
        let is_meta = schema.is_embedded_resource && matches!(&**name, "metadata" | "apiVersion" | "kind");
        let place = DefaultPlace {
            root: place.root,
            steps: place.steps,
            surroundings: place.surroundings.with(SurroundingStep::Field(name)),
            is_in_metadata: place.is_in_metadata || is_meta,
        };
        check_defaults(inner, &place, requires_pruned, &properties.key(name), errors);
    }
}

fn value_default_errors(
    schema: &Schema,
    default: &Value,
    (requires_pruned, steps): (bool, &dyn StepBudget),
    path: &FieldPath<'_>,
) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut pruned = default.clone();
    prune_unknown_fields(&mut pruned, Some(schema), schema.is_embedded_resource);
    if requires_pruned && pruned != *default {
        errors.push(FieldError::invalid(path, default, "must not have unknown fields"));
    }
    let mut coerced = default.clone();
    if let Err(error) = coerce_embedded(schema, &mut coerced, MalformedFields::Refuse) {
        errors.push(below(path, error));
        return errors;
    }
    let embedded = embedded_errors(schema, &coerced);
    if embedded.is_empty() {
        errors.append(validation_errors(schema, &coerced, steps, path));
    } else {
        errors.append(embedded.map(|error| below(path, error)));
    }
    errors
}

/// The errors of a default in metadata: it is examined in an object that has nothing else.
fn metadata_default_errors(
    schema: &Schema,
    default: &Value,
    place: &DefaultPlace<'_>,
    path: &FieldPath<'_>,
) -> FieldErrors {
    let mut object = place.surroundings.wrap(default.clone());
    if let Value::Object(fields) = &mut object {
        fields.entry("kind").or_insert_with(|| json!("Validation"));
        fields.entry("apiVersion").or_insert_with(|| json!("validation/v1"));
    }
    let invalid =
        |why: String| FieldError::invalid(path, default, format!("must result in valid metadata: {why}")).into();
    if let Err(error) = coerce_embedded(place.root, &mut object, MalformedFields::Refuse) {
        return invalid(error.to_string());
    }
    let mut texts: Vec<String> = embedded_errors(place.root, &object).iter().map(ToString::to_string).collect();
    let mut seen = HashSet::new();
    texts.retain(|text| seen.insert(text.clone()));
    match texts.as_slice() {
        [] => validation_errors(schema, default, place.steps, path),
        [text] => invalid(text.clone()),
        texts => invalid(format!("[{}]", texts.join(", "))),
    }
}

/// The errors of a value by its schema, with paths below that of the default.
fn validation_errors(schema: &Schema, value: &Value, steps: &dyn StepBudget, path: &FieldPath<'_>) -> FieldErrors {
    validate(schema, value, None, steps).map(|error| {
        let field = match &*error.field {
            "<nil>" => path.to_string(),
            field => format!("{path}.{field}"),
        };
        FieldError { field, ..error }
    })
}

/// An error with its path below another.
fn below(path: &FieldPath<'_>, error: FieldError) -> FieldError {
    let dot = if error.field.starts_with('[') { "" } else { "." };
    FieldError { field: format!("{path}{dot}{}", error.field), ..error }
}

/// Whether a schema has a default with fields that it does not know, also in values of maps.
pub(super) fn has_unpruned_defaults(written: &Value) -> bool {
    let Some(root) = read_root(written) else { return false };
    has_unpruned(&root, &root, &Surroundings::default())
}

fn has_unpruned(schema: &Schema, root: &Schema, surroundings: &Surroundings<'_>) -> bool {
    if let Some(default) = &schema.default {
        let mut object = surroundings.wrap(default.clone());
        // Malformed metadata are removed, without an error.
        let _ = coerce_embedded(root, &mut object, MalformedFields::Remove);
        prune_unknown_fields(&mut object, Some(root), true);
        if surroundings.find(&object) != Some(default) {
            return true;
        }
    }
    let of_items = schema.items.as_ref().map(|items| (&**items, SurroundingStep::Item));
    let of_values = schema.additional_properties.as_ref().and_then(|values| values.schema());
    let fields = schema.properties.iter().map(|(name, inner)| (&**inner, SurroundingStep::Field(name)));
    let mut inner =
        of_items.into_iter().chain(of_values.map(|values| (values, SurroundingStep::Field("*")))).chain(fields);
    inner.any(|(inner, step)| has_unpruned(inner, root, &surroundings.with(step)))
}
