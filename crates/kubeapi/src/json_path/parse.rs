//! Parses a JSONPath as `k8s.io/client-go/util/jsonpath/parser.go`, quirks included.

use serde_json::Value;

use super::{JsonPath, JsonPathError, PathStep, SliceBounds, error};

/// Maximum length of a path in bytes.
const MAX_LENGTH: usize = 8 * 1024;
/// Maximum nesting of filters and unions.
const MAX_NESTING: usize = 16;

pub(super) fn parse(text: &str) -> Result<Vec<PathStep>, JsonPathError> {
    if text.len() > MAX_LENGTH {
        return error(format!("JSONPath is longer than {MAX_LENGTH} bytes"));
    }
    PathParser::parse(text, 0)
}

struct PathParser {
    /// The text and a closing brace.
    chars: Vec<char>,
    at: usize,
    nesting: usize,
    steps: Vec<PathStep>,
}

impl PathParser {
    fn parse(text: &str, nesting: usize) -> Result<Vec<PathStep>, JsonPathError> {
        if nesting > MAX_NESTING {
            return error(format!("JSONPath is nested more than {MAX_NESTING} levels deep"));
        }
        let chars = text.chars().chain(['}']).collect();
        let mut parser = PathParser { chars, at: 0, nesting, steps: Vec::new() };
        while parser.step()? {}
        Ok(parser.steps)
    }

    fn parse_inner(&self, text: &str) -> Result<JsonPath, JsonPathError> {
        PathParser::parse(text, self.nesting + 1).map(|steps| JsonPath { steps })
    }

    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn starts_with(&self, prefix: &str) -> bool {
        prefix.chars().enumerate().all(|(offset, c)| self.chars.get(self.at + offset) == Some(&c))
    }

    /// The text from a position to the current one.
    fn text_since(&self, start: usize) -> String {
        self.chars.get(start..self.at).unwrap_or_default().iter().collect()
    }

    /// Parses one step; false at the end.
    fn step(&mut self) -> Result<bool, JsonPathError> {
        if self.starts_with("[?(") {
            self.at += 3;
            return self.filter().map(|()| true);
        }
        if self.starts_with("..") {
            if self.steps.last() == Some(&PathStep::Recursive) {
                return error("invalid multiple recursive descent");
            }
            self.at += 2;
            self.steps.push(PathStep::Recursive);
            if self.peek().is_some_and(|c| c == '_' || c.is_alphanumeric()) {
                self.field();
            }
            return Ok(true);
        }
        match self.peek() {
            Some('}') => return Ok(false),
            None | Some('\r' | '\n') => return error("unclosed action"),
            Some(' ' | '@' | '$') => self.at += 1,
            Some('[') => self.array()?,
            Some(quote @ ('"' | '\'')) => self.quoted(quote)?,
            Some('.') => {
                self.at += 1;
                self.field();
            }
            Some(c) if c == '+' || c == '-' || c.is_numeric() => self.number()?,
            Some(c) if c == '_' || c.is_alphanumeric() => self.identifier(),
            Some(c) => return error(format!("unrecognized character in action: U+{:04X} '{c}'", u32::from(c))),
        }
        Ok(true)
    }

    fn field(&mut self) {
        let start = self.at;
        while let Some(c) = self.peek().filter(|c| !is_terminator(*c)) {
            self.at += if c == '\\' { 2 } else { 1 };
        }
        self.at = self.at.min(self.chars.len());
        let text = self.text_since(start);
        self.steps.push(match &*text {
            "*" => PathStep::Wildcard,
            _ => PathStep::Field(text.replace('\\', "")),
        });
    }

    fn identifier(&mut self) {
        let start = self.at;
        while self.peek().is_some_and(|c| !is_terminator(c)) {
            self.at += 1;
        }
        let text = self.text_since(start);
        self.steps.push(match &*text {
            "true" => PathStep::Literal(Value::Bool(true)),
            "false" => PathStep::Literal(Value::Bool(false)),
            _ => PathStep::Identifier(text),
        });
    }

    fn number(&mut self) -> Result<(), JsonPathError> {
        let start = self.at;
        self.at += 1;
        while self.peek().is_some_and(|c| c == '.' || c.is_numeric()) {
            self.at += 1;
        }
        let text = self.text_since(start);
        let value = match (text.parse::<i64>(), text.parse::<f64>()) {
            (Ok(integer), _) => Value::from(integer),
            (_, Ok(float)) => Value::from(float),
            _ => return error(format!("cannot parse number {text}")),
        };
        self.steps.push(PathStep::Literal(value));
        Ok(())
    }

    fn quoted(&mut self, quote: char) -> Result<(), JsonPathError> {
        let start = self.at;
        self.at += 1;
        loop {
            match self.next() {
                None | Some('\n') => return error("unterminated quoted string"),
                Some(c) if c == quote && self.chars.get(self.at.saturating_sub(2)) != Some(&'\\') => break,
                Some(_) => {}
            }
        }
        let inner: String = self.chars.get(start + 1..self.at - 1).unwrap_or_default().iter().collect();
        let Some(text) = unquote(&inner, quote) else {
            return error(format!("unquote string {} error invalid syntax", self.text_since(start)));
        };
        self.steps.push(PathStep::Literal(Value::String(text)));
        Ok(())
    }

    fn array(&mut self) -> Result<(), JsonPathError> {
        let start = self.at + 1;
        loop {
            match self.next() {
                None | Some('\n') => return error("unterminated array"),
                Some(']') => break,
                Some(_) => {}
            }
        }
        let text: String = self.chars.get(start..self.at - 1).unwrap_or_default().iter().collect();
        let text = if text == "*" { ":" } else { text.as_str() };
        if text.contains(',') {
            let parts = text.split(',').map(|part| self.parse_inner(&format!("[{}]", part.trim_matches(' '))));
            let parts = parts.collect::<Result<Vec<_>, _>>()?;
            self.steps.push(PathStep::Union(parts));
            return Ok(());
        }
        let key = text.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\''));
        if let Some(key) = key.filter(|key| !key.contains('\'')) {
            let inner = self.parse_inner(&format!(".{key}"))?;
            self.steps.extend(inner.steps);
            return Ok(());
        }
        self.steps.push(PathStep::Slice(parse_slice(text)?));
        Ok(())
    }

    fn filter(&mut self) -> Result<(), JsonPathError> {
        let start = self.at;
        let (mut pair, mut is_closed) = (None, false);
        loop {
            match self.next() {
                None | Some('\n') => return error("unterminated filter"),
                Some(c @ ('"' | '\'')) => match pair {
                    None => pair = Some(c),
                    Some(open) if open == c && self.chars.get(self.at.saturating_sub(2)) != Some(&'\\') => {
                        is_closed = true;
                    }
                    Some(_) => {}
                },
                Some(')') if pair.is_some() == is_closed => break,
                Some(_) => {}
            }
        }
        let text: String = self.chars.get(start..self.at - 1).unwrap_or_default().iter().collect();
        if self.next() != Some(']') {
            return error("unclosed array expect ]");
        }
        let is_operator = |c: char| "!<>=".contains(c);
        let split = text.find(is_operator).filter(|at| *at > 0).and_then(|at| {
            let (left, rest) = text.split_at(at);
            // All operator characters belong to the operator, but for one if nothing else follows.
            let width = rest.find(|c| !is_operator(c)).unwrap_or(rest.len().saturating_sub(1));
            let (operator, right) = rest.split_at(width);
            (width > 0 && !right.is_empty()).then_some((left, operator, right))
        });
        let step = match split {
            None => PathStep::Filter { left: self.parse_inner(&text)?, comparison: None },
            Some((left, operator, right)) => PathStep::Filter {
                left: self.parse_inner(left)?,
                comparison: Some((operator.to_owned(), self.parse_inner(right)?)),
            },
        };
        self.steps.push(step);
        Ok(())
    }
}

fn is_terminator(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r' | '\n' | '.' | ',' | '[' | ']' | '$' | '@' | '{' | '}')
}

fn parse_slice(text: &str) -> Result<SliceBounds, JsonPathError> {
    let parts: Vec<&str> = text.split(':').collect();
    let is_number = |part: &&str| part.strip_prefix('-').unwrap_or(part).bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() > 3 || !parts.iter().all(is_number) {
        return error(format!("invalid array index {text}"));
    }
    let number = |part: Option<&&str>| match part {
        None | Some(&"") => Ok(None),
        Some(part) => match part.parse::<i64>() {
            Ok(number) => Ok(Some(number)),
            Err(_) => error(format!("array index {part} is not a number")),
        },
    };
    let mut bounds = SliceBounds {
        start: number(parts.first())?,
        end: number(parts.get(1))?,
        is_end_derived: false,
        step: number(parts.get(2))?,
    };
    if parts.len() == 1 {
        bounds.end = Some(bounds.start.unwrap_or(0).saturating_add(1));
        bounds.is_end_derived = true;
    }
    Ok(bounds)
}

/// The text of a quoted string, with Go's simple escapes; `None` for others.
fn unquote(text: &str, quote: char) -> Option<String> {
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            plain.push(c);
            continue;
        }
        plain.push(match chars.next()? {
            'a' => '\x07',
            'b' => '\x08',
            'f' => '\x0c',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'v' => '\x0b',
            '\\' => '\\',
            c if c == quote => c,
            kind @ ('x' | 'u' | 'U') => {
                let width = match kind {
                    'x' => 2,
                    'u' => 4,
                    _ => 8,
                };
                let digits: String = chars.by_ref().take(width).collect();
                let code = Some(digits).filter(|digits| digits.chars().count() == width)?;
                char::from_u32(u32::from_str_radix(&code, 16).ok()?)?
            }
            _ => return None,
        });
    }
    Some(plain)
}
