//! CEL expressions in configuration files: compiled and type-checked once, evaluated with a cost limit.
//!
//! Parser and evaluator are those of the `cel` crate, which neither checks names and types before evaluation nor
//! interrupts an expensive evaluation. Both are done here. [`infer_type`](self) refuses, when the file is read, the names
//! and result types that kube-apiserver's compiler refuses. An evaluation does not start if its cost, estimated from
//! the size of its input, exceeds the limit.

mod cost;
mod functions;
mod type_check;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, Value};

pub use type_check::{ExpressionType, ExpressionVariable};
pub use value::{EvaluatedValue, ExpressionInput};

/// Maximum length of an expression in bytes.
const MAX_LENGTH: usize = 16 << 10;
/// Maximum nesting of brackets. The parser recurses for each level and has no limit of its own.
const MAX_BRACKET_DEPTH: usize = 32;
/// Maximum nesting of operations. The evaluator recurses for each level.
const MAX_TREE_DEPTH: usize = 200;
/// Stack size of the parser thread; enough for every expression within the limits above.
const PARSER_STACK_SIZE: usize = 64 << 20;

/// A compiled expression on one variable.
#[derive(Debug)]
pub struct Expression {
    source: String,
    tree: IdedExpr,
    kind: ExpressionType,
    cost: cost::ExpressionCost,
    variable: &'static str,
}

impl Expression {
    /// Parses and type-checks an expression that may reference `variable`.
    ///
    /// # Errors
    /// A message for the author of the expression.
    pub fn compile(source: &str, variable: &ExpressionVariable) -> Result<Expression, String> {
        if source.len() > MAX_LENGTH {
            return Err(format!("is longer than {MAX_LENGTH} bytes"));
        }
        if bracket_depth(source) > MAX_BRACKET_DEPTH {
            return Err(format!("compilation failed: more than {MAX_BRACKET_DEPTH} nested brackets"));
        }
        std::thread::scope(|scope| {
            let reading = std::thread::Builder::new()
                .name("expression".to_owned())
                .stack_size(PARSER_STACK_SIZE)
                .spawn_scoped(scope, || Expression::parse_and_check(source, variable))
                .map_err(|error| format!("cannot start the parser thread: {error}"))?;
            reading.join().unwrap_or_else(|_| Err("compilation failed: the parser panicked".to_owned()))
        })
    }

    fn parse_and_check(source: &str, variable: &ExpressionVariable) -> Result<Expression, String> {
        let parsed = functions::environment().parser().parse(source);
        let mut tree = parsed.map_err(|errors| {
            let first_line: Vec<String> = errors.to_string().lines().take(1).map(str::to_owned).collect();
            format!("compilation failed: {}", first_line.concat())
        })?;
        if tree_depth(&tree) > MAX_TREE_DEPTH {
            return Err(format!("compilation failed: more than {MAX_TREE_DEPTH} nested operations"));
        }
        unescape(&mut tree);
        let kind = type_check::infer_type(&tree, variable).map_err(|why| format!("compilation failed: {why}"))?;
        let cost = cost::ExpressionCost::estimate(&tree);
        Ok(Expression { source: source.to_owned(), tree, kind, cost, variable: variable.name })
    }

    /// Type of the result, as far as it is known before evaluation.
    pub fn result_type(&self) -> ExpressionType {
        self.kind
    }

    /// Source text of the expression.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the expression references this field of its variable.
    pub fn references_field(&self, field: &str) -> bool {
        looks_at(&self.tree, self.variable, field)
    }

    /// Evaluates the expression on `input`.
    ///
    /// # Errors
    /// A message for the log.
    pub fn evaluate(&self, input: &ExpressionInput) -> Result<EvaluatedValue, String> {
        self.cost.check(input).map_err(|why| self.error_message(&why))?;
        // A panic of the evaluator must not end a thread that serves requests.
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(functions::environment());
            context.add_variable_from_value(self.variable, input.value.clone());
            Value::resolve(&self.tree, &context).map_err(|error| error.to_string()).and_then(EvaluatedValue::from_cel)
        }));
        evaluated.unwrap_or_else(|_| Err("the evaluator panicked".to_owned())).map_err(|why| self.error_message(&why))
    }

    fn error_message(&self, why: &str) -> String {
        format!("expression '{}' resulted in error: {why}", self.source)
    }
}

/// Nesting depth of brackets, including those in string literals.
fn bracket_depth(source: &str) -> usize {
    let (mut now, mut deepest) = (0_usize, 0);
    for letter in source.chars() {
        match letter {
            '(' | '[' | '{' => now += 1,
            ')' | ']' | '}' => now = now.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(now);
    }
    deepest
}

fn tree_depth(tree: &IdedExpr) -> usize {
    1 + type_check::children(tree).map(tree_depth).max().unwrap_or(0)
}

fn looks_at(tree: &IdedExpr, variable: &str, field: &str) -> bool {
    let is_variable = |tree: &IdedExpr| matches!(&tree.expr, Expr::Ident(name) if name == variable);
    let here = match &tree.expr {
        Expr::Select(select) => select.field == field && is_variable(&select.operand),
        Expr::Call(CallExpr { func_name, target: None, args }) if func_name == operators::OPT_SELECT => {
            let named = |tree: &IdedExpr| matches!(&tree.expr, Expr::Literal(LiteralValue::String(text)) if text.inner() == field);
            matches!(&args[..], [operand, name] if is_variable(operand) && named(name))
        }
        _ => false,
    };
    here || type_check::children(tree).any(|child| looks_at(child, variable, field))
}

/// Unescapes field names. Kubernetes escapes names that are not identifiers, for example `kubernetes__dot__io`
/// (`cel.Unescape` of `k8s.io/apiserver/pkg/cel`).
fn unescape(tree: &mut IdedExpr) {
    if let Expr::Select(select) = &mut tree.expr
        && let Some(name) = unescape_name(&select.field)
    {
        select.field = name;
    }
    type_check::for_each_child_mut(tree, &mut unescape);
}

fn unescape_name(name: &str) -> Option<String> {
    if !name.contains("__") {
        return None;
    }
    const ESCAPES: [(&str, &str); 5] =
        [("__underscores__", "__"), ("__dot__", "."), ("__dash__", "-"), ("__slash__", "/"), ("__true__", "true")];
    let mut plain = String::new();
    let mut rest = name;
    'next: while !rest.is_empty() {
        for (escape, meaning) in ESCAPES {
            if let Some(after) = rest.strip_prefix(escape) {
                plain.push_str(meaning);
                rest = after;
                continue 'next;
            }
        }
        let mut letters = rest.chars();
        plain.extend(letters.next());
        rest = letters.as_str();
    }
    (plain != name).then_some(plain)
}

#[cfg(test)]
mod tests;
