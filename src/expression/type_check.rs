//! Static type check of an expression: every name is declared, and the type of the result.

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

/// The variable that an expression may reference.
#[derive(Clone, Copy, Debug)]
pub struct ExpressionVariable {
    /// Name of the variable.
    pub name: &'static str,
    /// Fields of the variable and their types; `None` if it may have any field.
    pub fields: Option<&'static [(&'static str, ExpressionType)]>,
}

/// Type of a value, as far as it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpressionType {
    /// A boolean.
    Bool,
    /// A string.
    String,
    /// A number of any kind.
    Number,
    /// A list.
    List,
    /// A list with elements of one type.
    ListOf(&'static ExpressionType),
    /// A map.
    Map,
    /// A map with exactly these fields.
    Fields(&'static [(&'static str, ExpressionType)]),
    /// `null`.
    Null,
    /// Known only after evaluation (CEL's `dyn`).
    Any,
}

/// Allowed functions, without namespace or target, and their result types. Functions of the evaluator that are not
/// listed are refused: their results can be much larger than their input.
const FUNCTIONS: &[(&str, ExpressionType)] = &[
    (operators::LOGICAL_AND, ExpressionType::Bool),
    (operators::LOGICAL_OR, ExpressionType::Bool),
    (operators::LOGICAL_NOT, ExpressionType::Bool),
    (operators::NOT_STRICTLY_FALSE, ExpressionType::Bool),
    (operators::EQUALS, ExpressionType::Bool),
    (operators::NOT_EQUALS, ExpressionType::Bool),
    (operators::LESS, ExpressionType::Bool),
    (operators::LESS_EQUALS, ExpressionType::Bool),
    (operators::GREATER, ExpressionType::Bool),
    (operators::GREATER_EQUALS, ExpressionType::Bool),
    (operators::IN, ExpressionType::Bool),
    (operators::NEGATE, ExpressionType::Number),
    (operators::SUBSTRACT, ExpressionType::Any),
    (operators::ADD, ExpressionType::Any),
    (operators::MULTIPLY, ExpressionType::Number),
    (operators::DIVIDE, ExpressionType::Number),
    (operators::MODULO, ExpressionType::Number),
    (operators::INDEX, ExpressionType::Any),
    (operators::OPT_INDEX, ExpressionType::Any),
    (operators::OPT_SELECT, ExpressionType::Any),
    ("@sortByAssociatedKeys", ExpressionType::List),
    ("bool", ExpressionType::Bool),
    ("bytes", ExpressionType::Any),
    ("double", ExpressionType::Number),
    ("dyn", ExpressionType::Any),
    ("int", ExpressionType::Number),
    ("string", ExpressionType::String),
    ("type", ExpressionType::Any),
    ("uint", ExpressionType::Number),
    ("size", ExpressionType::Number),
    ("contains", ExpressionType::Bool),
    ("endsWith", ExpressionType::Bool),
    ("matches", ExpressionType::Bool),
    ("startsWith", ExpressionType::Bool),
    ("charAt", ExpressionType::String),
    ("indexOf", ExpressionType::Number),
    ("lastIndexOf", ExpressionType::Number),
    ("join", ExpressionType::String),
    ("lowerAscii", ExpressionType::String),
    ("upperAscii", ExpressionType::String),
    ("replace", ExpressionType::String),
    ("reverse", ExpressionType::Any),
    ("split", ExpressionType::List),
    ("substring", ExpressionType::String),
    ("trim", ExpressionType::String),
    ("distinct", ExpressionType::List),
    ("slice", ExpressionType::List),
    ("sort", ExpressionType::List),
    ("hasValue", ExpressionType::Bool),
    ("or", ExpressionType::Any),
    ("orValue", ExpressionType::Any),
    ("value", ExpressionType::Any),
    ("base64.decode", ExpressionType::Any),
    ("base64.encode", ExpressionType::String),
    ("optional.none", ExpressionType::Any),
    ("optional.of", ExpressionType::Any),
    ("optional.ofNonZeroValue", ExpressionType::Any),
    ("sets.contains", ExpressionType::Bool),
    ("sets.equivalent", ExpressionType::Bool),
    ("sets.intersects", ExpressionType::Bool),
];

const NAMESPACES: [&str; 3] = ["base64", "optional", "sets"];

/// Type names, which are values too: `type(claims.sub) == string`.
const TYPES: [&str; 9] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];

/// Infers the type of `tree`.
///
/// # Errors
/// An undeclared name, an undefined field, or operands of the wrong type.
pub(super) fn infer_type(tree: &IdedExpr, variable: &ExpressionVariable) -> Result<ExpressionType, String> {
    TypeChecker { variable, scopes: Vec::new() }.type_of(tree)
}

struct TypeChecker<'e> {
    variable: &'e ExpressionVariable,
    /// Variables declared by the enclosing macros.
    scopes: Vec<(&'e str, ExpressionType)>,
}

impl<'e> TypeChecker<'e> {
    fn type_of(&mut self, tree: &'e IdedExpr) -> Result<ExpressionType, String> {
        match &tree.expr {
            Expr::Unspecified => Err("expression is empty".to_owned()),
            Expr::Literal(literal) => Ok(literal_type(literal)),
            Expr::Ident(name) => self.type_of_name(name),
            Expr::List(list) => {
                for element in &list.elements {
                    self.type_of(element)?;
                }
                Ok(ExpressionType::List)
            }
            Expr::Map(_) => {
                for child in children(tree) {
                    self.type_of(child)?;
                }
                Ok(ExpressionType::Map)
            }
            Expr::Struct(made) => Err(format!("undeclared reference to '{}'", made.type_name)),
            Expr::Select(select) => {
                let found = match self.type_of(&select.operand)? {
                    ExpressionType::Any | ExpressionType::Map => ExpressionType::Any,
                    ExpressionType::Fields(fields) => {
                        let field = fields.iter().find(|(field, _)| *field == select.field);
                        field.map(|(_, kind)| *kind).ok_or_else(|| format!("undefined field '{}'", select.field))?
                    }
                    _ => return Err(format!("'{}' selected from a value that has no fields", select.field)),
                };
                Ok(if select.test { ExpressionType::Bool } else { found })
            }
            Expr::Call(call) => self.type_of_call(call),
            Expr::Comprehension(one) => {
                let each = match self.type_of(&one.iter_range)? {
                    ExpressionType::ListOf(element) if one.iter_var2.is_none() => *element,
                    _ => ExpressionType::Any,
                };
                let start = self.type_of(&one.accu_init)?;
                let depth = self.scopes.len();
                self.scopes.push((&one.accu_var, start));
                self.scopes.push((&one.iter_var, each));
                self.scopes.extend(one.iter_var2.as_deref().map(|name| (name, ExpressionType::Any)));
                self.type_of(&one.loop_cond)?;
                self.type_of(&one.loop_step)?;
                self.scopes.truncate(depth + 1);
                let result = self.type_of(&one.result);
                self.scopes.truncate(depth);
                result
            }
        }
    }

    fn type_of_name(&self, name: &str) -> Result<ExpressionType, String> {
        if let Some((_, kind)) = self.scopes.iter().rev().find(|(variable, _)| *variable == name) {
            return Ok(*kind);
        }
        if name == self.variable.name {
            return Ok(self.variable.fields.map_or(ExpressionType::Map, ExpressionType::Fields));
        }
        if TYPES.contains(&name) { Ok(ExpressionType::Any) } else { Err(format!("undeclared reference to '{name}'")) }
    }

    fn type_of_call(&mut self, call: &'e CallExpr) -> Result<ExpressionType, String> {
        let mut name = call.func_name.clone();
        match &call.target {
            Some(target) => match &target.expr {
                Expr::Ident(namespace) if NAMESPACES.contains(&namespace.as_str()) => {
                    name = format!("{namespace}.{name}");
                }
                _ => {
                    self.type_of(target)?;
                }
            },
            None if call.func_name == operators::CONDITIONAL => {
                let mut kinds = Vec::new();
                for argument in &call.args {
                    kinds.push(self.type_of(argument)?);
                }
                return Ok(match kinds[..] {
                    [_, yes, no] if yes == no => yes,
                    _ => ExpressionType::Any,
                });
            }
            None => {}
        }
        let mut kinds = Vec::new();
        for argument in &call.args {
            kinds.push(self.type_of(argument)?);
        }
        if name == operators::INDEX
            && let [ExpressionType::ListOf(element), _] = kinds[..]
        {
            return Ok(*element);
        }
        if !accepts_operands(&name, &kinds) {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            return Err(format!("found no matching overload for '{name}' applied to '({})'", kinds.join(", ")));
        }
        let found = FUNCTIONS.iter().find(|(function, _)| *function == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| format!("undeclared reference to '{name}'"))
    }
}

impl ExpressionType {
    /// Name of the type, mostly as in CEL.
    fn as_str(self) -> &'static str {
        match self {
            ExpressionType::Bool => "bool",
            ExpressionType::String => "string",
            ExpressionType::Number => "number",
            ExpressionType::List | ExpressionType::ListOf(_) => "list",
            ExpressionType::Map | ExpressionType::Fields(_) => "map",
            ExpressionType::Null => "null_type",
            ExpressionType::Any => "dyn",
        }
    }
}

/// Whether an operator accepts operands of these types, as far as they are known.
fn accepts_operands(operator: &str, kinds: &[ExpressionType]) -> bool {
    match operator {
        operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
            kinds.iter().all(|kind| matches!(kind, ExpressionType::Bool | ExpressionType::Any))
        }
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            let mut kinds = kinds.iter().map(|kind| kind.as_str()).filter(|kind| !matches!(*kind, "dyn" | "null_type"));
            kinds.next().is_none_or(|first| kinds.all(|kind| kind == first))
        }
        _ => true,
    }
}

fn literal_type(literal: &LiteralValue) -> ExpressionType {
    match literal {
        LiteralValue::Boolean(_) => ExpressionType::Bool,
        LiteralValue::String(_) => ExpressionType::String,
        LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => ExpressionType::Number,
        LiteralValue::Null => ExpressionType::Null,
        LiteralValue::Bytes(_) => ExpressionType::Any,
    }
}

/// The direct children of a node.
pub(super) fn children(tree: &IdedExpr) -> Box<dyn Iterator<Item = &IdedExpr> + '_> {
    match &tree.expr {
        Expr::Call(call) => Box::new(call.target.as_deref().into_iter().chain(&call.args)),
        Expr::Comprehension(one) => {
            Box::new([&one.iter_range, &one.accu_init, &one.loop_cond, &one.loop_step, &one.result].into_iter())
        }
        Expr::List(list) => Box::new(list.elements.iter()),
        Expr::Map(map) => Box::new(map.entries.iter().flat_map(|entry| entry_children(&entry.expr))),
        Expr::Struct(made) => Box::new(made.entries.iter().flat_map(|entry| entry_children(&entry.expr))),
        Expr::Select(select) => Box::new(std::iter::once(&*select.operand)),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Box::new(std::iter::empty()),
    }
}

fn entry_children(entry: &EntryExpr) -> Vec<&IdedExpr> {
    match entry {
        EntryExpr::StructField(field) => vec![&field.value],
        EntryExpr::MapEntry(entry) => vec![&entry.key, &entry.value],
    }
}

/// Calls `change` with each direct child of a node.
pub(super) fn for_each_child_mut(tree: &mut IdedExpr, change: &mut dyn FnMut(&mut IdedExpr)) {
    match &mut tree.expr {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).for_each(change),
        Expr::Comprehension(one) => {
            let one = &mut **one;
            [&mut one.iter_range, &mut one.accu_init, &mut one.loop_cond, &mut one.loop_step, &mut one.result]
                .into_iter()
                .for_each(change);
        }
        Expr::List(list) => list.elements.iter_mut().for_each(change),
        Expr::Map(map) => {
            for entry in &mut map.entries {
                if let EntryExpr::MapEntry(entry) = &mut entry.expr {
                    change(&mut entry.key);
                    change(&mut entry.value);
                }
            }
        }
        Expr::Select(select) => change(&mut select.operand),
        Expr::Struct(_) | Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => {}
    }
}
