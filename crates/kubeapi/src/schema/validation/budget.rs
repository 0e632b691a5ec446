//! What the steps of a validation cost. A step takes about 10 ns: a state of a regular expression, and a byte that may lead
//! to it.

/// Steps for a value and a schema: types, formats and keywords.
pub(super) const VALUE_STEPS: usize = 16;

/// Bytes of a text that are counted, copied or compared in one step.
pub(super) const BYTES_PER_STEP: usize = 64;

/// Bounds the work of a validation.
pub trait StepBudget {
    /// Takes steps before they are made. False, also from then on, if so many are not left.
    fn spend(&self, steps: usize) -> bool;
}
