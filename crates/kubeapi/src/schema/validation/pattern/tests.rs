//! Meaning and errors of patterns, compared with those of Go.

use std::fmt::Write;

use serde_json::Value;

use super::Pattern;

/// Cases that Go itself has answered.
const CASES: &str = include_str!("../../testdata/patterns.jsonl");

const TOO_LARGE: &str = "error compiling regexp: expression needs too much memory";

fn error(pattern: &str) -> String {
    Pattern::new(pattern).error().unwrap_or_default()
}

fn matches(pattern: &str, text: &str) -> bool {
    let pattern = Pattern::new(pattern);
    assert_eq!(pattern.error(), None);
    pattern.matches(text)
}

#[test]
fn pattern_has_meaning_and_errors_of_go() {
    let mut differences = String::new();
    let mut compared = 0;
    for line in CASES.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let pattern = Pattern::new(case["pattern"].as_str().unwrap());
        let expected = case["answer"]["error"].as_str();
        if pattern.error().as_deref() != expected {
            let _ = writeln!(differences, "{:?}: {:?}, Go: {expected:?}", pattern.text(), pattern.error());
            continue;
        }
        let strings = case["strings"].as_array().into_iter().flatten();
        let matches = case["answer"]["matches"].as_array().into_iter().flatten();
        for (string, expected) in strings.zip(matches) {
            compared += 1;
            if *expected != pattern.matches(string.as_str().unwrap()) {
                let _ = writeln!(differences, "{:?} {string}: Go: {expected}", pattern.text());
            }
        }
    }
    assert!(differences.is_empty(), "{differences}");
    assert!(CASES.lines().count() > 1900 && compared > 18_000, "{compared}");
}

#[test]
fn pattern_error_has_text_of_go() {
    for (pattern, expected) in [
        ("a**", "invalid nested repetition operator: `**`"),
        ("a*?+?b", "invalid nested repetition operator: `*?+?`"),
        ("(a{500}){3}b", "invalid repeat count: `{3}`"),
        ("a{1,1001}", "invalid repeat count: `{1,1001}`"),
        ("a{99999999999999999999}", "invalid repeat count: `{99999999999999999999}`"),
        ("a|*b", "missing argument to repetition operator: `*`"),
        ("(?i){2}?", "missing argument to repetition operator: `{2}?`"),
        ("(?i", "invalid or unsupported Perl syntax: `(?i`"),
        ("b(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?i-)", "invalid or unsupported Perl syntax: `(?i-)`"),
        ("(?<n-m>a)", "invalid named capture: `(?<n-m>`"),
        ("(?P<n", "invalid named capture: `(?P<n`"),
        ("a(b", "missing closing ): `a(b`"),
        ("a)b", "unexpected ): `a)b`"),
        ("a[b-", "missing closing ]: `[b-`"),
        ("[a--b]", "invalid character class range: `a--`"),
        ("[[:foo:]]", "invalid character class range: `[:foo:]`"),
        (r"\p{Script=Greek}", r"invalid character class range: `\p{Script=Greek}`"),
        (r"a\pé", r"invalid character class range: `\pé`"),
        (r"\u0041", r"invalid escape sequence: `\u`"),
        (r"\x{110000}", r"invalid escape sequence: `\x{110000`"),
        (r"[a-\pL]", r"invalid escape sequence: `\p`"),
        (r"a\", "trailing backslash at end of expression: ``"),
    ] {
        assert_eq!(error(pattern), format!("error parsing regexp: {expected}"), "{pattern}");
    }
}

#[test]
fn pattern_matches_like_go() {
    for (pattern, text, expected) in [
        // A repetition applies to what stands before flags, also to another repetition.
        ("^ab(?i)+$", "abb", true),
        ("^a+(?i)?$", "", true),
        (r"^a+\Q\E{2}$", "a", false),
        // Cases of the version of Unicode that Go has.
        ("(?i)^k$", "\u{212A}", true),
        ("(?i)^\u{19B}$", "\u{A7DC}", false),
        ("(?i)^ß$", "ẞ", true),
        (r"^\p{L}$", "\u{A7DC}", false),
        (r"^\P{L}$", "\u{A7DC}", true),
        // Surrogates.
        (r"^[\x{D000}-\x{E000}]$", "\u{E000}", true),
        (r"\x{D800}|\p{Cs}", "\u{FFFD}", false),
        (r"^\PC*$|^[^\x{D800}]$", "\n", true),
        // Word boundaries are those of ASCII, and not within a character.
        (r"\bé", "é", false),
        (r"\B", "aéa", false),
        (r"\Béa", "éa", true),
        (r"\D[a-z]|\B.*", "aéa", true),
        (r"^{,2}{a}$", "{,2}{a}", true),
    ] {
        assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn pattern_nesting_is_limited_as_in_go() {
    let nested = |begin: &str, end: &str, depth: usize| format!("{}a{}", begin.repeat(depth), end.repeat(depth));
    for (begin, end, most) in [
        ("(", ")", 999),
        ("(?:", ")*", 999),
        ("(", ")?", 499),
        ("(?:b", ")*", 500),
        ("(b|", ")", 500),
        ("(?:bb|c", ")", 500),
        ("(?:x*y", "z)+", 499),
    ] {
        let (accepted, refused) = (nested(begin, end, most), nested(begin, end, most + 1));
        assert_eq!(error(&accepted), "", "{begin}{end}");
        assert_eq!(
            error(&refused),
            format!("error parsing regexp: expression nests too deeply: `{refused}`"),
            "{begin}{end}"
        );
    }
    // Groups that do not capture are no operators.
    assert_eq!(error(&nested("(?:", ")", 20_000)), "");
}

#[test]
fn pattern_too_large_is_refused() {
    for pattern in [
        r"\pL{1000}".to_owned(),
        r"(?i)[^a]".repeat(1 << 17),
        r"\pL".repeat(1000),
        format!("[{}]", r"\pL".repeat(1000)),
        "(".repeat(1 << 19),
        "a".repeat(1 << 19),
        "(?:ab){1000}".repeat(400),
    ] {
        let pattern = Pattern::new(&pattern);
        assert_eq!(pattern.error().as_deref(), Some(TOO_LARGE));
        assert!(!pattern.is_valid() && !pattern.matches("a"));
    }
    for pattern in [r"^.{0,1000}$", r"\pL{300}", r"[^/]{1000}"] {
        assert_eq!(error(pattern), "", "{pattern}");
    }
}
