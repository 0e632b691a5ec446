//! CEL expressions in configuration files: compiled and type-checked once, evaluated with a cost limit.
//!
//! Parser and evaluator are those of the `cel` crate, which neither checks names and types before evaluation nor
//! interrupts an expensive evaluation. Both are done here. [`check`](self) refuses, when the file is read, the names
//! and result types that kube-apiserver's compiler refuses. An evaluation does not start if its cost, estimated from
//! the size of its input, exceeds the limit.

mod check;
mod cost;
mod functions;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, Value};

pub use check::{Kind, Variable};
pub use value::{Input, Outcome};

/// Maximum length of an expression in bytes.
const LONGEST: usize = 16 << 10;
/// Maximum nesting of brackets. The parser recurses for each level and has no limit of its own.
const DEEPEST_BRACKETS: usize = 32;
/// Maximum nesting of operations. The evaluator recurses for each level.
const DEEPEST: usize = 200;
/// Stack size of the parser thread; enough for every expression within the limits above.
const STACK: usize = 64 << 20;

/// A compiled expression on one variable.
#[derive(Debug)]
pub struct Expression {
    source: String,
    tree: IdedExpr,
    kind: Kind,
    cost: cost::Cost,
    variable: &'static str,
}

impl Expression {
    /// Parses and type-checks an expression that may reference `variable`.
    ///
    /// # Errors
    /// A message for the author of the expression.
    pub fn compile(source: &str, variable: &Variable) -> Result<Expression, String> {
        if source.len() > LONGEST {
            return Err(format!("is longer than {LONGEST} bytes"));
        }
        if nesting(source) > DEEPEST_BRACKETS {
            return Err(format!("compilation failed: more than {DEEPEST_BRACKETS} nested brackets"));
        }
        std::thread::scope(|scope| {
            let reading = std::thread::Builder::new()
                .name("expression".to_owned())
                .stack_size(STACK)
                .spawn_scoped(scope, || Expression::read(source, variable))
                .map_err(|error| format!("cannot start the parser thread: {error}"))?;
            reading.join().unwrap_or_else(|_| Err("compilation failed: the parser panicked".to_owned()))
        })
    }

    fn read(source: &str, variable: &Variable) -> Result<Expression, String> {
        let parsed = functions::environment().parser().parse(source);
        let mut tree = parsed.map_err(|errors| {
            let said: Vec<String> = errors.to_string().lines().take(1).map(str::to_owned).collect();
            format!("compilation failed: {}", said.concat())
        })?;
        if depth(&tree) > DEEPEST {
            return Err(format!("compilation failed: more than {DEEPEST} nested operations"));
        }
        unescape(&mut tree);
        let kind = check::check(&tree, variable).map_err(|why| format!("compilation failed: {why}"))?;
        let cost = cost::Cost::of(&tree);
        Ok(Expression { source: source.to_owned(), tree, kind, cost, variable: variable.name })
    }

    /// Type of the result, as far as it is known before evaluation.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Source text of the expression.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the expression references this field of its variable.
    pub fn looks_at(&self, field: &str) -> bool {
        looks_at(&self.tree, self.variable, field)
    }

    /// Evaluates the expression on `input`.
    ///
    /// # Errors
    /// A message for the log.
    pub fn evaluate(&self, input: &Input) -> Result<Outcome, String> {
        self.cost.check(input).map_err(|why| self.about(&why))?;
        // A panic of the evaluator must not end a thread that serves requests.
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(functions::environment());
            context.add_variable_from_value(self.variable, input.value.clone());
            Value::resolve(&self.tree, &context).map_err(|error| error.to_string()).and_then(Outcome::of)
        }));
        evaluated.unwrap_or_else(|_| Err("the evaluator panicked".to_owned())).map_err(|why| self.about(&why))
    }

    fn about(&self, why: &str) -> String {
        format!("expression '{}' resulted in error: {why}", self.source)
    }
}

/// Nesting depth of brackets, including those in string literals.
fn nesting(source: &str) -> usize {
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

fn depth(tree: &IdedExpr) -> usize {
    1 + check::children(tree).map(depth).max().unwrap_or(0)
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
    here || check::children(tree).any(|child| looks_at(child, variable, field))
}

/// Unescapes field names. Kubernetes escapes names that are not identifiers, for example `kubernetes__dot__io`
/// (`cel.Unescape` of `k8s.io/apiserver/pkg/cel`).
fn unescape(tree: &mut IdedExpr) {
    if let Expr::Select(select) = &mut tree.expr
        && let Some(name) = unescaped(&select.field)
    {
        select.field = name;
    }
    check::for_each_child_mut(tree, &mut unescape);
}

fn unescaped(name: &str) -> Option<String> {
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
