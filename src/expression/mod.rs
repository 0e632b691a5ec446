//! CEL expressions of configuration files: compiled and checked once, evaluated with a bound on what they cost.
//!
//! The parser and the evaluator are those of the `cel` crate. It neither checks names and types before it
//! evaluates nor stops an evaluation that takes too long, so both are done here: [`check`](self) refuses, when
//! the file is read, what kube-apiserver's compiler would refuse of names and results; and no evaluation begins
//! whose cost, reckoned from the sizes of its input, is above the bound.

mod check;
mod cost;
mod functions;
mod value;

use std::panic::{AssertUnwindSafe, catch_unwind};

use cel::common::ast::{CallExpr, Expr, IdedExpr, LiteralValue, operators};
use cel::{Context, Value};

pub use check::{Kind, Variable};
pub use value::{Input, Outcome};

/// A longer expression is a mistake.
const LONGEST: usize = 16 << 10;
/// Brackets within each other. The parser goes down a level for each, and does not stop in time by itself.
const DEEPEST_BRACKETS: usize = 32;
/// Operations within each other. The evaluator goes down a level for each.
const DEEPEST: usize = 200;
/// Enough to read what is short enough and nested no deeper than that, and to find out that it is too deep.
const STACK: usize = 64 << 20;

/// One expression about one variable.
#[derive(Debug)]
pub struct Expression {
    source: String,
    tree: IdedExpr,
    kind: Kind,
    cost: cost::Cost,
    variable: &'static str,
}

impl Expression {
    /// Reads and checks an expression that may speak of `variable`.
    ///
    /// # Errors
    /// What is wrong with it, in words for who wrote it.
    pub fn compile(source: &str, variable: &Variable) -> Result<Expression, String> {
        if source.len() > LONGEST {
            return Err(format!("is longer than {LONGEST} bytes"));
        }
        if nesting(source) > DEEPEST_BRACKETS {
            return Err(format!("compilation failed: more than {DEEPEST_BRACKETS} brackets within each other"));
        }
        std::thread::scope(|scope| {
            let reading = std::thread::Builder::new()
                .name("expression".to_owned())
                .stack_size(STACK)
                .spawn_scoped(scope, || Expression::read(source, variable))
                .map_err(|error| format!("cannot be read now: {error}"))?;
            reading.join().unwrap_or_else(|_| Err("compilation failed: it cannot be read".to_owned()))
        })
    }

    fn read(source: &str, variable: &Variable) -> Result<Expression, String> {
        let parsed = functions::environment().parser().parse(source);
        let mut tree = parsed.map_err(|errors| {
            let said: Vec<String> = errors.to_string().lines().take(1).map(str::to_owned).collect();
            format!("compilation failed: {}", said.concat())
        })?;
        if depth(&tree) > DEEPEST {
            return Err(format!("compilation failed: more than {DEEPEST} operations within each other"));
        }
        unescape(&mut tree);
        let kind = check::check(&tree, variable).map_err(|why| format!("compilation failed: {why}"))?;
        let cost = cost::Cost::of(&tree);
        Ok(Expression { source: source.to_owned(), tree, kind, cost, variable: variable.name })
    }

    /// What it says when it is evaluated, as far as can be told before.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// As it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it looks at this field of its variable.
    pub fn looks_at(&self, field: &str) -> bool {
        looks_at(&self.tree, self.variable, field)
    }

    /// What it says of `input`.
    ///
    /// # Errors
    /// Why it says nothing, in words for the log.
    pub fn evaluate(&self, input: &Input) -> Result<Outcome, String> {
        self.cost.check(input).map_err(|why| self.about(&why))?;
        // A parser's or evaluator's mistake must not take down the thread that serves everybody.
        let evaluated = catch_unwind(AssertUnwindSafe(|| {
            let mut context = Context::with_env(functions::environment());
            context.add_variable_from_value(self.variable, input.value.clone());
            Value::resolve(&self.tree, &context).map_err(|error| error.to_string()).and_then(Outcome::of)
        }));
        evaluated.unwrap_or_else(|_| Err("it could not be evaluated".to_owned())).map_err(|why| self.about(&why))
    }

    fn about(&self, why: &str) -> String {
        format!("expression '{}' resulted in error: {why}", self.source)
    }
}

/// How deep brackets go; those in texts count, too.
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

/// Kubernetes writes names of fields that are no identifiers with escapes (`kubernetes__dot__io`); here they
/// become what they mean (`cel.Unescape` of `k8s.io/apiserver/pkg/cel`).
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
