//! Paths of values, as kube-openapi and pruning write them.

use std::fmt::{self, Write as _};

use crate::field_error::{BoundedText, MAX_PATH_BYTES};

/// Path of a value, such as `spec.ports[0].name`, as a list from the inside to the outside. Unlike a path of Kubernetes,
/// it has a dot before each key of a map, also at the root and before an empty one.
#[derive(Clone, Copy)]
pub(in crate::schema) struct ValuePath<'p> {
    parent: Option<&'p ValuePath<'p>>,
    element: ValuePathElement<'p>,
}

#[derive(Clone, Copy)]
enum ValuePathElement<'p> {
    Property(&'p str),
    Key(&'p str),
    Index(usize),
}

impl<'p> ValuePath<'p> {
    /// Path of a property of the value at `parent`; of the whole value without one.
    pub(in crate::schema) fn property(parent: Option<&'p ValuePath<'p>>, name: &'p str) -> ValuePath<'p> {
        ValuePath { parent, element: ValuePathElement::Property(name) }
    }

    /// Path of a key that is no property, or of a property that is absent.
    pub(in crate::schema) fn key(parent: Option<&'p ValuePath<'p>>, name: &'p str) -> ValuePath<'p> {
        ValuePath { parent, element: ValuePathElement::Key(name) }
    }

    /// Path of an item.
    pub(in crate::schema) fn item(parent: Option<&'p ValuePath<'p>>, index: usize) -> ValuePath<'p> {
        ValuePath { parent, element: ValuePathElement::Index(index) }
    }
}

impl fmt::Display for ValuePath<'_> {
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
                ValuePathElement::Property(name) if position == 0 => out.write_str(name)?,
                ValuePathElement::Property(name) | ValuePathElement::Key(name) => write!(out, ".{name}")?,
                ValuePathElement::Index(index) => write!(out, "[{index}]")?,
            }
        }
        Ok(())
    }
}
