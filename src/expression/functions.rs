//! Functions available to expressions: CEL's standard library, the crate's extensions, and `sets`, which the crate
//! does not provide (`github.com/google/cel-go/ext`).

use std::sync::{Arc, LazyLock};

use cel::common::types::{CelBool, LIST_TYPE};
use cel::common::value::CowVal;
use cel::{DeclarationError, Env, ExecutionError, Value, extensions};

/// The environment of every expression.
pub(super) fn environment() -> Arc<Env> {
    static ENVIRONMENT: LazyLock<Arc<Env>> = LazyLock::new(|| {
        let mut env = Env::stdlib();
        // Fails only if a name is declared twice, which a test would find. Expressions that call a missing function
        // are refused.
        if let Err(error) = declare_extensions(&mut env) {
            tracing::error!(%error, "declaring CEL functions failed; expressions that use them are refused");
        }
        Arc::new(env)
    });
    ENVIRONMENT.clone()
}

fn declare_extensions(env: &mut Env) -> Result<(), DeclarationError> {
    env.add_extension(extensions::strings)?;
    env.add_extension(extensions::lists)?;
    env.add_extension(extensions::encoders)?;
    let lists = || vec![LIST_TYPE, LIST_TYPE];
    env.add_overload("sets.contains", "list_sets_contains_list", lists(), |arguments| {
        compare_lists(&arguments, |one, other| other.iter().all(|value| one.contains(value)))
    })?;
    env.add_overload("sets.equivalent", "list_sets_equivalent_list", lists(), |arguments| {
        compare_lists(&arguments, |one, other| {
            other.iter().all(|value| one.contains(value)) && one.iter().all(|value| other.contains(value))
        })
    })?;
    env.add_overload("sets.intersects", "list_sets_intersects_list", lists(), |arguments| {
        compare_lists(&arguments, |one, other| one.iter().any(|value| other.contains(value)))
    })
}

fn compare_lists<'b, 'v>(
    arguments: &[CowVal<'b, 'v>],
    compare: impl FnOnce(&[Value], &[Value]) -> bool,
) -> Result<CowVal<'b, 'v>, ExecutionError> {
    let list = |number: usize| -> Result<Arc<Vec<Value>>, ExecutionError> {
        let argument = arguments.get(number).ok_or_else(ExecutionError::missing_argument_or_target)?;
        match Value::try_from(argument.as_ref()) {
            Ok(Value::List(list)) => Ok(list),
            _ => Err(ExecutionError::function_error("sets", "expected two lists")),
        }
    };
    let (one, other) = (list(0)?, list(1)?);
    Ok(CowVal::owned(CelBool::from(compare(&one, &other))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expression_functions_can_all_be_declared() {
        assert_eq!(declare_extensions(&mut Env::stdlib()), Ok(()));
    }
}
