//! Static type check of an expression: every name is declared, and the type of the result.

use cel::common::ast::{CallExpr, EntryExpr, Expr, IdedExpr, LiteralValue, operators};

/// The variable that an expression may reference.
#[derive(Clone, Copy, Debug)]
pub struct Variable {
    /// Name of the variable.
    pub name: &'static str,
    /// Its fields and their types; `None` if it may have any field.
    pub fields: Option<&'static [(&'static str, Kind)]>,
}

/// Type of a value, as far as it is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A boolean.
    Bool,
    /// A string.
    Text,
    /// A number of any kind.
    Number,
    /// A list.
    List,
    /// A list with elements of one type.
    ListOf(&'static Kind),
    /// A map.
    Map,
    /// A map with exactly these fields.
    Fields(&'static [(&'static str, Kind)]),
    /// `null`.
    Null,
    /// Known only after evaluation (CEL's `dyn`).
    Any,
}

/// Allowed functions, without namespace or target, and their result types. Functions of the evaluator that are not
/// listed are refused: their results can be much larger than their input.
const FUNCTIONS: &[(&str, Kind)] = &[
    (operators::LOGICAL_AND, Kind::Bool),
    (operators::LOGICAL_OR, Kind::Bool),
    (operators::LOGICAL_NOT, Kind::Bool),
    (operators::NOT_STRICTLY_FALSE, Kind::Bool),
    (operators::EQUALS, Kind::Bool),
    (operators::NOT_EQUALS, Kind::Bool),
    (operators::LESS, Kind::Bool),
    (operators::LESS_EQUALS, Kind::Bool),
    (operators::GREATER, Kind::Bool),
    (operators::GREATER_EQUALS, Kind::Bool),
    (operators::IN, Kind::Bool),
    (operators::NEGATE, Kind::Number),
    (operators::SUBSTRACT, Kind::Any),
    (operators::ADD, Kind::Any),
    (operators::MULTIPLY, Kind::Number),
    (operators::DIVIDE, Kind::Number),
    (operators::MODULO, Kind::Number),
    (operators::INDEX, Kind::Any),
    (operators::OPT_INDEX, Kind::Any),
    (operators::OPT_SELECT, Kind::Any),
    ("@sortByAssociatedKeys", Kind::List),
    ("bool", Kind::Bool),
    ("bytes", Kind::Any),
    ("double", Kind::Number),
    ("dyn", Kind::Any),
    ("int", Kind::Number),
    ("string", Kind::Text),
    ("type", Kind::Any),
    ("uint", Kind::Number),
    ("size", Kind::Number),
    ("contains", Kind::Bool),
    ("endsWith", Kind::Bool),
    ("matches", Kind::Bool),
    ("startsWith", Kind::Bool),
    ("charAt", Kind::Text),
    ("indexOf", Kind::Number),
    ("lastIndexOf", Kind::Number),
    ("join", Kind::Text),
    ("lowerAscii", Kind::Text),
    ("upperAscii", Kind::Text),
    ("replace", Kind::Text),
    ("reverse", Kind::Any),
    ("split", Kind::List),
    ("substring", Kind::Text),
    ("trim", Kind::Text),
    ("distinct", Kind::List),
    ("slice", Kind::List),
    ("sort", Kind::List),
    ("hasValue", Kind::Bool),
    ("or", Kind::Any),
    ("orValue", Kind::Any),
    ("value", Kind::Any),
    ("base64.decode", Kind::Any),
    ("base64.encode", Kind::Text),
    ("optional.none", Kind::Any),
    ("optional.of", Kind::Any),
    ("optional.ofNonZeroValue", Kind::Any),
    ("sets.contains", Kind::Bool),
    ("sets.equivalent", Kind::Bool),
    ("sets.intersects", Kind::Bool),
];

const NAMESPACES: [&str; 3] = ["base64", "optional", "sets"];

/// Type names, which are values too: `type(claims.sub) == string`.
const TYPES: [&str; 9] = ["bool", "bytes", "double", "int", "list", "map", "null_type", "string", "uint"];

/// Infers the type of `tree`.
///
/// # Errors
/// An undeclared name, an undefined field, or operands of the wrong type.
pub(super) fn check(tree: &IdedExpr, variable: &Variable) -> Result<Kind, String> {
    Checker { variable, scopes: Vec::new() }.kind(tree)
}

struct Checker<'e> {
    variable: &'e Variable,
    /// Variables declared by the enclosing macros.
    scopes: Vec<(&'e str, Kind)>,
}

impl<'e> Checker<'e> {
    fn kind(&mut self, tree: &'e IdedExpr) -> Result<Kind, String> {
        match &tree.expr {
            Expr::Unspecified => Err("expression is empty".to_owned()),
            Expr::Literal(literal) => Ok(literal_kind(literal)),
            Expr::Ident(name) => self.name(name),
            Expr::List(list) => {
                for element in &list.elements {
                    self.kind(element)?;
                }
                Ok(Kind::List)
            }
            Expr::Map(_) => {
                for child in children(tree) {
                    self.kind(child)?;
                }
                Ok(Kind::Map)
            }
            Expr::Struct(made) => Err(format!("undeclared reference to '{}'", made.type_name)),
            Expr::Select(select) => {
                let found = match self.kind(&select.operand)? {
                    Kind::Any | Kind::Map => Kind::Any,
                    Kind::Fields(fields) => {
                        let field = fields.iter().find(|(field, _)| *field == select.field);
                        field.map(|(_, kind)| *kind).ok_or_else(|| format!("undefined field '{}'", select.field))?
                    }
                    _ => return Err(format!("'{}' selected from a value that has no fields", select.field)),
                };
                Ok(if select.test { Kind::Bool } else { found })
            }
            Expr::Call(call) => self.call(call),
            Expr::Comprehension(one) => {
                let each = match self.kind(&one.iter_range)? {
                    Kind::ListOf(element) if one.iter_var2.is_none() => *element,
                    _ => Kind::Any,
                };
                let start = self.kind(&one.accu_init)?;
                let depth = self.scopes.len();
                self.scopes.push((&one.accu_var, start));
                self.scopes.push((&one.iter_var, each));
                self.scopes.extend(one.iter_var2.as_deref().map(|name| (name, Kind::Any)));
                self.kind(&one.loop_cond)?;
                self.kind(&one.loop_step)?;
                self.scopes.truncate(depth + 1);
                let result = self.kind(&one.result);
                self.scopes.truncate(depth);
                result
            }
        }
    }

    fn name(&self, name: &str) -> Result<Kind, String> {
        if let Some((_, kind)) = self.scopes.iter().rev().find(|(known, _)| *known == name) {
            return Ok(*kind);
        }
        if name == self.variable.name {
            return Ok(self.variable.fields.map_or(Kind::Map, Kind::Fields));
        }
        if TYPES.contains(&name) { Ok(Kind::Any) } else { Err(format!("undeclared reference to '{name}'")) }
    }

    fn call(&mut self, call: &'e CallExpr) -> Result<Kind, String> {
        let mut name = call.func_name.clone();
        match &call.target {
            Some(target) => match &target.expr {
                Expr::Ident(namespace) if NAMESPACES.contains(&namespace.as_str()) => {
                    name = format!("{namespace}.{name}");
                }
                _ => {
                    self.kind(target)?;
                }
            },
            None if call.func_name == operators::CONDITIONAL => {
                let mut kinds = Vec::new();
                for argument in &call.args {
                    kinds.push(self.kind(argument)?);
                }
                return Ok(match kinds[..] {
                    [_, yes, no] if yes == no => yes,
                    _ => Kind::Any,
                });
            }
            None => {}
        }
        let mut kinds = Vec::new();
        for argument in &call.args {
            kinds.push(self.kind(argument)?);
        }
        if name == operators::INDEX
            && let [Kind::ListOf(element), _] = kinds[..]
        {
            return Ok(*element);
        }
        if !fits(&name, &kinds) {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            return Err(format!("found no matching overload for '{name}' applied to '({})'", kinds.join(", ")));
        }
        let found = FUNCTIONS.iter().find(|(function, _)| *function == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| format!("undeclared reference to '{name}'"))
    }
}

impl Kind {
    /// Name of the type, mostly as in CEL.
    fn as_str(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Text => "string",
            Kind::Number => "number",
            Kind::List | Kind::ListOf(_) => "list",
            Kind::Map | Kind::Fields(_) => "map",
            Kind::Null => "null_type",
            Kind::Any => "dyn",
        }
    }
}

/// Whether an operator accepts operands of these types, as far as they are known.
fn fits(operator: &str, kinds: &[Kind]) -> bool {
    match operator {
        operators::LOGICAL_AND | operators::LOGICAL_OR | operators::LOGICAL_NOT => {
            kinds.iter().all(|kind| matches!(kind, Kind::Bool | Kind::Any))
        }
        operators::EQUALS
        | operators::NOT_EQUALS
        | operators::LESS
        | operators::LESS_EQUALS
        | operators::GREATER
        | operators::GREATER_EQUALS => {
            let mut known = kinds.iter().map(|kind| kind.as_str()).filter(|kind| !matches!(*kind, "dyn" | "null_type"));
            known.next().is_none_or(|first| known.all(|kind| kind == first))
        }
        _ => true,
    }
}

fn literal_kind(literal: &LiteralValue) -> Kind {
    match literal {
        LiteralValue::Boolean(_) => Kind::Bool,
        LiteralValue::String(_) => Kind::Text,
        LiteralValue::Double(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) => Kind::Number,
        LiteralValue::Null => Kind::Null,
        LiteralValue::Bytes(_) => Kind::Any,
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
        Expr::Map(map) => Box::new(map.entries.iter().flat_map(|entry| in_entry(&entry.expr))),
        Expr::Struct(made) => Box::new(made.entries.iter().flat_map(|entry| in_entry(&entry.expr))),
        Expr::Select(select) => Box::new(std::iter::once(&*select.operand)),
        Expr::Unspecified | Expr::Ident(_) | Expr::Literal(_) => Box::new(std::iter::empty()),
    }
}

fn in_entry(entry: &EntryExpr) -> Vec<&IdedExpr> {
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
