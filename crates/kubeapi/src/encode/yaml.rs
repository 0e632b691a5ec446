//! YAML as Kubernetes converts it from JSON: keys sorted, empty ones omitted. Scalars are quoted unless they are
//! unambiguous. Lines are not folded.

use std::fmt::Write;

use super::Status;

pub(super) fn encode(status: &Status) -> Vec<u8> {
    let mut out = "apiVersion: v1\n".to_owned();
    if status.body_code() != 0 {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "code: {}", status.body_code());
    }
    if let Some(details) = &status.details {
        let mut inner = String::new();
        for cause in &details.causes {
            let mut start = "- ";
            for (key, value) in [("field", &cause.field), ("message", &cause.message), ("reason", &cause.reason)] {
                if !value.is_empty() {
                    field(&mut inner, &format!("  {start}{key}"), value);
                    start = "  ";
                }
            }
            if start == "- " {
                inner.push_str("  - {}\n");
            }
        }
        if !inner.is_empty() {
            inner.insert_str(0, "  causes:\n");
        }
        field(&mut inner, "  group", &details.group);
        field(&mut inner, "  kind", &details.kind);
        field(&mut inner, "  name", &details.name);
        if details.retry_after_seconds != 0 {
            // Writing to a string cannot fail.
            let _ = writeln!(inner, "  retryAfterSeconds: {}", details.retry_after_seconds);
        }
        field(&mut inner, "  uid", &details.uid);
        out.push_str(if inner.is_empty() { "details: {}\n" } else { "details:\n" });
        out.push_str(&inner);
    }
    out.push_str("kind: Status\n");
    field(&mut out, "message", &status.message);
    match &status.continue_token {
        None => out.push_str("metadata: {}\n"),
        Some(token) => {
            out.push_str("metadata:\n");
            field(&mut out, "  continue", token);
        }
    }
    field(&mut out, "reason", status.reason_text());
    field(&mut out, "status", status.outcome());
    out.into_bytes()
}

fn field(out: &mut String, key: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    out.push_str(key);
    out.push_str(": ");
    if is_plain(value) {
        out.push_str(value);
    } else if value.chars().all(|c| matches!(c, ' '..='~')) {
        out.push('\'');
        out.push_str(&value.replace('\'', "''"));
        out.push('\'');
    } else {
        out.push('"');
        for c in value.chars() {
            match c {
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                ' '..='~' => out.push(c),
                _ if c.is_alphanumeric() => out.push(c),
                // Writing to a string cannot fail.
                _ => drop(write!(out, "\\U{:08X}", u32::from(c))),
            }
        }
        out.push('"');
    }
    out.push('\n');
}

/// Whether every YAML parser reads the plain scalar as this text: it begins with a letter, has no special characters,
/// and is no word for a boolean or null.
fn is_plain(value: &str) -> bool {
    let words = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    value.starts_with(|c: char| c.is_ascii_alphabetic())
        && !value.ends_with(' ')
        && value.chars().all(|c| c.is_ascii_alphanumeric() || " -_./(),\"'".contains(c))
        && !words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;
    use crate::StatusCause;

    #[test]
    fn status_yaml_matches_upstream() {
        let expected = [
            "apiVersion: v1\ncode: 401\nkind: Status\nmessage: Unauthorized\nmetadata: {}\nreason: Unauthorized\nstatus: Failure\n",
            "",
            "apiVersion: v1\ncode: 403\ndetails: {}\nkind: Status\nmessage: 'forbidden: User \"u\" cannot get path \"/x\"'\nmetadata: {}\nreason: Forbidden\nstatus: Failure\n",
            "apiVersion: v1\ncode: 503\ndetails:\n  causes:\n  - message: no endpoints\n    reason: MissingEndpoints\n  - field: spec.x\n    message: m\n  group: g\n  kind: k\n  retryAfterSeconds: 300\n  uid: u-1\nkind: Status\nmessage: 'gone: away'\nmetadata: {}\nreason: ServiceUnavailable\nstatus: Failure\n",
            "apiVersion: v1\ncode: 400\nkind: Status\nmessage: \"it's\\nlines \"\nmetadata: {}\nreason: BadRequest\nstatus: Failure\n",
        ];
        for (status, expected) in examples().iter().zip(expected).filter(|(_, expected)| !expected.is_empty()) {
            assert_eq!(String::from_utf8(encode(status)).unwrap(), expected);
        }
    }

    #[test]
    fn status_yaml_empty_cause_is_empty_entry() {
        let mut status = Status::bad_request("x").with_cause("", "");
        status.details.as_mut().unwrap().causes.push(StatusCause { field: "f".into(), ..StatusCause::default() });
        let text = String::from_utf8(encode(&status)).unwrap();
        assert!(text.contains("details:\n  causes:\n  - {}\n  - field: f\nkind:"), "{text}");
    }
}
