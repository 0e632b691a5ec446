//! Estimates the maximum cost of an evaluation before it starts, because the evaluator cannot be interrupted.

use cel::common::ast::{Expr, IdedExpr, LiteralValue, operators};

use super::type_check;
use super::value::{ExpressionInput, count};

/// Maximum number of steps. Each takes a few dozen nanoseconds, so an evaluation takes at most about 0.2s.
const MAX_STEPS: f64 = 2_000_000.0;
/// String bytes processed per step.
const BYTES_PER_STEP: f64 = 128.0;

/// How the cost of an expression grows with its input.
#[derive(Debug)]
pub(super) struct ExpressionCost {
    /// Number of nodes by loop nesting depth: outside loops, in one loop, in two nested loops, …
    nodes: Vec<f64>,
    /// Elements of list and map literals.
    literal_elements: f64,
    literal_bytes: f64,
    /// Number of concatenations.
    additions: f64,
    /// Whether a string may be split into a list; the list is at most as long as the string.
    can_split: bool,
    /// Whether a string may grow to the product of two lengths.
    can_multiply: bool,
}

impl ExpressionCost {
    pub(super) fn estimate(tree: &IdedExpr) -> ExpressionCost {
        let mut cost = ExpressionCost {
            nodes: Vec::new(),
            literal_elements: 0.0,
            literal_bytes: 0.0,
            additions: 0.0,
            can_split: false,
            can_multiply: false,
        };
        cost.count_nodes(tree, 0);
        cost
    }

    /// Fails if evaluating on `input` could cost too much.
    pub(super) fn check(&self, input: &ExpressionInput) -> Result<(), String> {
        let mut bytes = input.bytes + self.literal_bytes;
        if self.can_multiply {
            bytes *= bytes;
        }
        let elements = input.elements + self.literal_elements + if self.can_split { bytes } else { 0.0 };
        let grown = 1.0 + self.additions;
        let (bytes, elements) = (bytes * grown, elements * grown);
        let steps: f64 = self.nodes.iter().zip(0..).map(|(nodes, depth)| nodes * elements.powi(depth)).sum();
        if steps * (1.0 + bytes / BYTES_PER_STEP) > MAX_STEPS {
            return Err("estimated cost exceeds the limit for input of this size".to_owned());
        }
        Ok(())
    }

    fn count_nodes(&mut self, tree: &IdedExpr, depth: usize) {
        if self.nodes.len() <= depth {
            self.nodes.resize(depth + 1, 0.0);
        }
        if let Some(nodes) = self.nodes.get_mut(depth) {
            *nodes += 1.0;
        }
        match &tree.expr {
            Expr::Comprehension(one) => {
                self.count_nodes(&one.iter_range, depth);
                self.count_nodes(&one.accu_init, depth);
                self.count_nodes(&one.loop_cond, depth + 1);
                // A macro collects its results with a concatenation of one element per iteration; it does not count.
                let before = self.additions;
                self.count_nodes(&one.loop_step, depth + 1);
                if appends_to_accumulator(&one.loop_step, &one.accu_var) {
                    self.additions = (self.additions - 1.0).max(before);
                }
                self.count_nodes(&one.result, depth);
                return;
            }
            Expr::Call(call) => match call.func_name.as_str() {
                operators::ADD => self.additions += 1.0,
                "split" => self.can_split = true,
                "replace" | "join" => self.can_multiply = true,
                _ => {}
            },
            Expr::List(list) => self.literal_elements += count(list.elements.len()),
            Expr::Map(map) => self.literal_elements += count(map.entries.len()),
            Expr::Literal(LiteralValue::String(text)) => self.literal_bytes += count(text.inner().len()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => self.literal_bytes += count(bytes.inner().len()),
            _ => {}
        }
        type_check::children(tree).for_each(|child| self.count_nodes(child, depth));
    }
}

/// Whether a loop step is `gathered + […]`, possibly conditional.
fn appends_to_accumulator(step: &IdedExpr, gathered: &str) -> bool {
    let Expr::Call(call) = &step.expr else { return false };
    match (call.func_name.as_str(), &call.args[..]) {
        (operators::ADD, [left, _]) => matches!(&left.expr, Expr::Ident(name) if name == gathered),
        (operators::CONDITIONAL, [_, yes, _]) => appends_to_accumulator(yes, gathered),
        _ => false,
    }
}
