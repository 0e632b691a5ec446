//! What an evaluation may cost at most, reckoned before it begins: the evaluator cannot be stopped.

use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

use super::{Input, check};

/// Steps, each of a few dozen nanoseconds: a fifth of a second at the very most.
const MOST: f64 = 2_000_000.0;
/// Bytes that a step goes through.
const BYTES_PER_STEP: f64 = 128.0;

/// How the cost of an expression grows with its input.
#[derive(Debug)]
pub(super) struct Cost {
    /// Number of nodes within no loop, one loop, two loops inside each other, …
    nodes: Vec<f64>,
    /// Lists and texts that stand in the expression itself.
    literal_elements: f64,
    literal_bytes: f64,
    /// How often something is put together from two parts.
    additions: f64,
    /// Whether a text may be taken apart into a list, of which none is longer than the text.
    splits: bool,
    /// Whether a text may grow to the product of two.
    multiplies: bool,
}

impl Cost {
    pub(super) fn of(tree: &IdedExpr) -> Cost {
        let mut cost = Cost {
            nodes: Vec::new(),
            literal_elements: 0.0,
            literal_bytes: 0.0,
            additions: 0.0,
            splits: false,
            multiplies: false,
        };
        cost.count(tree, 0);
        cost
    }

    /// An error when evaluating on `input` could cost too much.
    pub(super) fn check(&self, input: &Input) -> Result<(), String> {
        let mut bytes = input.bytes + self.literal_bytes;
        if self.multiplies {
            bytes *= bytes;
        }
        let elements = input.elements + self.literal_elements + if self.splits { bytes } else { 0.0 };
        let grown = 1.0 + self.additions;
        let (bytes, elements) = (bytes * grown, elements * grown);
        let steps: f64 = self.nodes.iter().zip(0..).map(|(nodes, depth)| nodes * elements.powi(depth)).sum();
        if steps * (1.0 + bytes / BYTES_PER_STEP) > MOST {
            return Err("it could cost too much on input of this size".to_owned());
        }
        Ok(())
    }

    fn count(&mut self, tree: &IdedExpr, depth: usize) {
        if self.nodes.len() <= depth {
            self.nodes.resize(depth + 1, 0.0);
        }
        if let Some(nodes) = self.nodes.get_mut(depth) {
            *nodes += 1.0;
        }
        match &tree.expr {
            Expr::Comprehension(one) => {
                self.count(&one.iter_range, depth);
                self.count(&one.accu_init, depth);
                self.count(&one.loop_cond, depth + 1);
                // What macros gather with is no addition of their user's: it gives one element for each.
                let before = self.additions;
                self.count(&one.loop_step, depth + 1);
                if gathers(&one.loop_step, &one.accu_var) {
                    self.additions = (self.additions - 1.0).max(before);
                }
                self.count(&one.result, depth);
                return;
            }
            Expr::Call(call) => match call.func_name.as_str() {
                operators::ADD => self.additions += 1.0,
                "split" => self.splits = true,
                "replace" | "join" => self.multiplies = true,
                _ => {}
            },
            Expr::List(list) => self.literal_elements += count(list.elements.len()),
            Expr::Map(map) => self.literal_elements += count(map.entries.len()),
            Expr::Literal(LiteralValue::String(text)) => self.literal_bytes += count(text.inner().len()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => self.literal_bytes += count(bytes.inner().len()),
            _ => {}
        }
        check::children(tree).for_each(|child| self.count(child, depth));
    }
}

/// Whether a step is `gathered + […]`, bare or behind a condition.
fn gathers(step: &IdedExpr, gathered: &str) -> bool {
    let Expr::Call(call) = &step.expr else { return false };
    match (call.func_name.as_str(), &call.args[..]) {
        (operators::ADD, [left, _]) => matches!(&left.expr, Expr::Ident(name) if name == gathered),
        (operators::CONDITIONAL, [_, yes, _]) => gathers(yes, gathered),
        _ => false,
    }
}

/// Exact for every size that memory can hold of these.
#[allow(clippy::cast_precision_loss)]
pub(super) fn count(number: usize) -> f64 {
    number as f64
}
