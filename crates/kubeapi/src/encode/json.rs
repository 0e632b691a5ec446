//! JSON as by Go's `encoding/json`: fields in Kubernetes' order, empty ones omitted, `<`, `>` and `&` escaped.

use super::Status;
use crate::json::quote_json_into;

pub(super) fn encode(status: &Status, pretty: bool) -> Vec<u8> {
    let mut out = JsonWriter { text: String::with_capacity(256 + status.message.len()), pretty, depth: 0, first: true };
    out.open('{');
    out.field("kind", "Status");
    out.field("apiVersion", "v1");
    out.key("metadata");
    match &status.continue_token {
        None => out.text.push_str("{}"),
        Some(token) => {
            out.open('{');
            out.field("continue", token);
            out.close('}');
        }
    }
    out.field("status", status.outcome());
    out.field("message", &status.message);
    out.field("reason", status.reason_text());
    if let Some(details) = &status.details {
        out.key("details");
        out.open('{');
        out.field("name", &details.name);
        out.field("group", &details.group);
        out.field("kind", &details.kind);
        out.field("uid", &details.uid);
        if !details.causes.is_empty() {
            out.key("causes");
            out.open('[');
            for cause in &details.causes {
                out.separate();
                out.open('{');
                out.field("reason", &cause.reason);
                out.field("message", &cause.message);
                out.field("field", &cause.field);
                out.close('}');
            }
            out.close(']');
        }
        out.number("retryAfterSeconds", details.retry_after_seconds);
        out.close('}');
    }
    out.number("code", u32::from(status.body_code()));
    out.close('}');
    if !pretty {
        out.text.push('\n');
    }
    out.text.into_bytes()
}

struct JsonWriter {
    text: String,
    pretty: bool,
    depth: usize,
    first: bool,
}

impl JsonWriter {
    fn open(&mut self, bracket: char) {
        self.text.push(bracket);
        self.depth += 1;
        self.first = true;
    }

    fn close(&mut self, bracket: char) {
        self.depth -= 1;
        if !self.first {
            self.new_line();
        }
        self.text.push(bracket);
        self.first = false;
    }

    fn separate(&mut self) {
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
        self.new_line();
    }

    fn new_line(&mut self) {
        if self.pretty {
            self.text.push('\n');
            self.text.extend(std::iter::repeat_n("  ", self.depth));
        }
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.text.push('"');
        self.text.push_str(key);
        self.text.push_str(if self.pretty { "\": " } else { "\":" });
    }

    fn field(&mut self, key: &str, value: &str) {
        if !value.is_empty() {
            self.key(key);
            quote_json_into(&mut self.text, value);
        }
    }

    fn number(&mut self, key: &str, value: u32) {
        if value != 0 {
            self.key(key);
            self.text.push_str(&value.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::examples;
    use super::*;

    #[test]
    fn status_json_matches_upstream_bytes() {
        let expected = [
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"Unauthorized\",\"reason\":\"Unauthorized\",\"code\":401}\n",
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"flunders.wardle.example.com \\\"x\\\" is forbidden: User \\u0026lt;\\\"é\\u2028\\u0001\\b\\\" cannot \\u003c \\u0026 '\",\"reason\":\"Forbidden\",\"details\":{\"name\":\"x\",\"group\":\"wardle.example.com\",\"kind\":\"flunders\"},\"code\":403}\n",
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"forbidden: User \\\"u\\\" cannot get path \\\"/x\\\"\",\"reason\":\"Forbidden\",\"details\":{},\"code\":403}\n",
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"gone: away\",\"reason\":\"ServiceUnavailable\",\"details\":{\"group\":\"g\",\"kind\":\"k\",\"uid\":\"u-1\",\"causes\":[{\"reason\":\"MissingEndpoints\",\"message\":\"no endpoints\"},{\"message\":\"m\",\"field\":\"spec.x\"}],\"retryAfterSeconds\":300},\"code\":503}\n",
            "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"it's\\nlines \",\"reason\":\"BadRequest\",\"code\":400}\n",
        ];
        for (status, expected) in examples().iter().zip(expected) {
            assert_eq!(String::from_utf8(encode(status, false)).unwrap(), expected);
        }
    }

    #[test]
    fn status_pretty_json_matches_upstream_bytes() {
        let expected = [
            "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"Unauthorized\",\n  \"reason\": \"Unauthorized\",\n  \"code\": 401\n}",
            "",
            "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"forbidden: User \\\"u\\\" cannot get path \\\"/x\\\"\",\n  \"reason\": \"Forbidden\",\n  \"details\": {},\n  \"code\": 403\n}",
            "{\n  \"kind\": \"Status\",\n  \"apiVersion\": \"v1\",\n  \"metadata\": {},\n  \"status\": \"Failure\",\n  \"message\": \"gone: away\",\n  \"reason\": \"ServiceUnavailable\",\n  \"details\": {\n    \"group\": \"g\",\n    \"kind\": \"k\",\n    \"uid\": \"u-1\",\n    \"causes\": [\n      {\n        \"reason\": \"MissingEndpoints\",\n        \"message\": \"no endpoints\"\n      },\n      {\n        \"message\": \"m\",\n        \"field\": \"spec.x\"\n      }\n    ],\n    \"retryAfterSeconds\": 300\n  },\n  \"code\": 503\n}",
        ];
        for (status, expected) in examples().iter().zip(expected).filter(|(_, expected)| !expected.is_empty()) {
            assert_eq!(String::from_utf8(encode(status, true)).unwrap(), expected);
        }
    }
}
