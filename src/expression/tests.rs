//! Tests of compilation, evaluation and cost limits of expressions.

use serde_json::{Value as Json, json};

use super::*;

const CLAIMS: ExpressionVariable = ExpressionVariable { name: "claims", fields: None };
const USER: ExpressionVariable = ExpressionVariable {
    name: "user",
    fields: Some(&[
        ("username", ExpressionType::String),
        ("groups", ExpressionType::List),
        ("inner", INNER),
        ("list", ExpressionType::ListOf(&ExpressionType::String)),
    ]),
};
const INNER: ExpressionType = ExpressionType::Fields(&[("deep", ExpressionType::String)]);

fn claims() -> Json {
    json!({
        "sub": "jane", "groups": ["a", "b"], "exp": 1000, "nbf": 10, "email": "jane@example.com", "roles": "x,y",
        "email_verified": true, "nested": {"deep": {"er": "text"}}, "kubernetes.io": {"pod-name": "p"}, "none": null,
    })
}

fn evaluate(source: &str) -> Result<EvaluatedValue, String> {
    Expression::compile(source, &CLAIMS)?.evaluate(&ExpressionInput::from_json(&claims()))
}

#[test]
fn expression_examples_of_kubernetes_documentation() {
    let text = |text: &str| Ok(EvaluatedValue::String(text.to_owned()));
    let texts = |texts: &[&str]| Ok(EvaluatedValue::StringList(texts.iter().map(|text| (*text).to_owned()).collect()));
    for (source, expected) in [
        ("claims.sub", text("jane")),
        ("'prefix:' + claims.sub", text("prefix:jane")),
        ("claims.exp - claims.nbf <= 86400", Ok(EvaluatedValue::Bool(true))),
        ("claims.?email_verified.orValue(true) == true", Ok(EvaluatedValue::Bool(true))),
        ("claims.?missing.orValue('x')", text("x")),
        ("has(claims.nested.deep.er) ? claims.nested.deep.er : ''", text("text")),
        ("has(claims.missing)", Ok(EvaluatedValue::Bool(false))),
        ("claims.roles.split(',')", texts(&["x", "y"])),
        ("claims.groups.map(g, 'p:' + g)", texts(&["p:a", "p:b"])),
        ("claims.groups.filter(g, g != 'a')", texts(&["b"])),
        ("claims.groups.all(g, g != 'c')", Ok(EvaluatedValue::Bool(true))),
        ("claims.groups.exists_one(g, g == 'a')", Ok(EvaluatedValue::Bool(true))),
        ("sets.equivalent(claims.groups, ['b', 'a'])", Ok(EvaluatedValue::Bool(true))),
        ("sets.contains(claims.groups, ['c'])", Ok(EvaluatedValue::Bool(false))),
        ("sets.intersects(claims.groups, ['c', 'b'])", Ok(EvaluatedValue::Bool(true))),
        ("'a' in claims.groups", Ok(EvaluatedValue::Bool(true))),
        ("claims.sub.matches('^ja')", Ok(EvaluatedValue::Bool(true))),
        ("claims.kubernetes__dot__io.pod__dash__name", text("p")),
        ("claims.none", Ok(EvaluatedValue::Null)),
        ("claims.exp", Ok(EvaluatedValue::Other("float".to_owned()))),
        ("[claims.sub, claims.exp]", Ok(EvaluatedValue::Other("list".to_owned()))),
        ("size('héllo') == 5", Ok(EvaluatedValue::Bool(true))),
        ("type(claims.sub) == string", Ok(EvaluatedValue::Bool(true))),
        ("claims.email.lowerAscii().endsWith('@example.com')", Ok(EvaluatedValue::Bool(true))),
    ] {
        assert_eq!(evaluate(source), expected, "{source}");
    }
}

#[test]
fn expression_compile_errors() {
    for (source, words) in [
        ("claims.", "compilation failed"),
        ("claims.sub ==", "compilation failed"),
        ("", "compilation failed"),
        ("foo.bar == 1", "undeclared reference to 'foo'"),
        ("user.username", "undeclared reference to 'user'"),
        ("nonsense(claims.sub)", "undeclared reference to 'nonsense'"),
        ("claims.groups.map(g, h)", "undeclared reference to 'h'"),
        ("quantity('1')", "undeclared reference to 'quantity'"),
        ("lists.range(100000000)", "undeclared reference to 'lists'"),
        ("Type{a: 1}", "undeclared reference to 'Type'"),
        ("'a'.b", "has no fields"),
        (&"(".repeat(5000), "nested brackets"),
        (&"[".repeat(32), "compilation failed"),
        (&format!("{}1", "1 + ".repeat(4000)), "nested operations"),
        (&format!("{}1", "true ? 1 : ".repeat(1_400)), "compilation failed"),
        (&format!("claims{}", ".a".repeat(8_000)), "nested operations"),
        (&"1 + ".repeat(8000), "longer than"),
    ] {
        let short: String = source.chars().take(40).collect();
        let why = Expression::compile(source, &CLAIMS).map(|_| ()).expect_err(&short);
        assert!(why.contains(words), "{short}: {why}");
    }
    // Like Kubernetes' parser, this one removes signs in pairs.
    for sign in ["!", "-"] {
        let _ = Expression::compile(&format!("{}1", sign.repeat(10_001)), &CLAIMS);
    }
    for source in ["user.name == ''", "has(user.name)", "user.inner.name == ''", "has(user.inner.name)"] {
        let why = Expression::compile(source, &USER).unwrap_err();
        assert!(why.contains("undefined field 'name'"), "{source}: {why}");
    }
    for source in [
        "user.username == 1",
        "'a' != 1",
        "user.inner.deep < 1",
        "user.username && true",
        "!user.username",
        "user.list.exists(one, one == 1)",
        "user.list[0] == 1",
        "claims.a == 'x' || 'y'",
    ] {
        let variable = if source.starts_with("claims") { &CLAIMS } else { &USER };
        let why = Expression::compile(source, variable).map(|_| ()).expect_err(source);
        assert!(why.contains("found no matching overload for"), "{source}: {why}");
    }
    for source in [
        "has(user.inner) && user.inner.deep == ''",
        "user.list.all(one, one == 'a' && user.list[0] != one) || user.list == []",
        "user.username == (user.groups[0]) ? true : !user.groups[1]",
        "user.username == null || 1.5 > 1.0",
    ] {
        assert!(Expression::compile(source, &USER).is_ok(), "{source}");
    }
}

#[test]
fn expression_result_type() {
    for (source, kind) in [
        ("claims.admin", ExpressionType::Any),
        ("claims.?a.orValue(true)", ExpressionType::Any),
        ("claims.?a.orValue(true) == true", ExpressionType::Bool),
        ("claims.g.exists(x, x == 1)", ExpressionType::Bool),
        ("claims.g.exists_one(x, x == 1)", ExpressionType::Bool),
        ("claims.g.map(x, x)", ExpressionType::List),
        ("has(claims.a) ? true : false", ExpressionType::Bool),
        ("has(claims.a) ? true : claims.b", ExpressionType::Any),
        ("'a'", ExpressionType::String),
        ("{'a': 1}", ExpressionType::Map),
        ("!claims.a", ExpressionType::Bool),
        ("1", ExpressionType::Number),
    ] {
        assert_eq!(Expression::compile(source, &CLAIMS).map(|it| it.result_type()), Ok(kind), "{source}");
    }
    assert_eq!(Expression::compile("user.groups", &USER).map(|it| it.result_type()), Ok(ExpressionType::List));
}

#[test]
fn expression_references_field() {
    for (source, looks) in [
        ("claims.email", true),
        ("claims.?email.orValue('')", true),
        ("has(claims.email)", true),
        ("[1].map(x, claims.email)", true),
        ("{'a': claims.email}", true),
        ("claims.nested.email", false),
        ("claims.email_verified", false),
        ("'email'", false),
    ] {
        assert_eq!(Expression::compile(source, &CLAIMS).map(|it| it.references_field("email")), Ok(looks), "{source}");
    }
}

#[test]
fn expression_too_costly_is_not_evaluated() {
    let many: Vec<String> = (0..2000).map(|number| format!("group-{number}")).collect();
    let input = ExpressionInput::from_json(&json!({"groups": many, "text": "a".repeat(60_000), "sub": "x"}));
    for (source, cheap) in [
        ("claims.sub", true),
        ("claims.groups.all(g, claims.groups.all(h, claims.groups.all(i, g != h + i)))", false),
        ("claims.text.replace('a', claims.text).replace('a', claims.text)", false),
    ] {
        let result = Expression::compile(source, &CLAIMS).unwrap().evaluate(&input);
        assert_eq!(result.is_ok(), cheap, "{source}");
    }
    let usual = ExpressionInput::from_json(&json!({"groups": many[..50]}));
    let twice = "claims.groups.all(g, claims.groups.exists(h, g == h))";
    assert_eq!(Expression::compile(twice, &CLAIMS).unwrap().evaluate(&usual), Ok(EvaluatedValue::Bool(true)));
}

#[test]
fn expression_arbitrary_text_does_not_panic() {
    const WORDS: &[&str] = &[
        "claims",
        ".",
        "sub",
        "groups",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "?",
        ":",
        "+",
        "-",
        "==",
        "&&",
        "||",
        "!",
        "1",
        "0",
        "'a'",
        "b'x'",
        ",",
        "map",
        "all",
        "x",
        "has",
        "size",
        " ",
        "1.5e308",
        "9223372036854775807",
        "/",
        "%",
        "null",
        "true",
        "in",
        "?.",
        "[?",
        "type",
        "orValue",
        "split",
        "substring",
        "\"",
        "\\",
        "é",
        "matches",
        "'('",
    ];
    bolero::check!().with_iterations(3000).with_max_len(20).for_each(|bytes: &[u8]| {
        let text: String = bytes.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect();
        if let Ok(expression) = Expression::compile(&text, &CLAIMS) {
            let _ = expression.evaluate(&ExpressionInput::from_json(&claims()));
        }
    });
}
