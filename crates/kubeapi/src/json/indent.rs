//! Indents JSON as Go's `json.MarshalIndent` with two spaces a level.

/// Indents one JSON document that arrives in pieces. Whitespace between its tokens is dropped.
#[derive(Debug, Default)]
pub struct JsonIndenter {
    depth: usize,
    is_in_string: bool,
    is_escaped: bool,
    /// The last token opened an object or array, which may be empty.
    has_opened: bool,
}

impl JsonIndenter {
    /// Appends the next piece of the document, indented.
    pub fn indent(&mut self, piece: &[u8], out: &mut Vec<u8>) {
        for byte in piece.iter().copied() {
            if self.is_in_string {
                out.push(byte);
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.is_in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b' ' | b'\t' | b'\n' | b'\r' => continue,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if !std::mem::take(&mut self.has_opened) {
                        self.break_line(out);
                    }
                    out.push(byte);
                    continue;
                }
                _ if std::mem::take(&mut self.has_opened) => self.break_line(out),
                _ => {}
            }
            out.push(byte);
            match byte {
                b'"' => self.is_in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.has_opened = true;
                }
                b',' => self.break_line(out),
                b':' => out.push(b' '),
                _ => {}
            }
        }
    }

    fn break_line(&self, out: &mut Vec<u8>) {
        out.push(b'\n');
        out.resize(out.len() + 2 * self.depth, b' ');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indented(pieces: &[&str]) -> String {
        let (mut indenter, mut out) = (JsonIndenter::default(), Vec::new());
        pieces.iter().for_each(|piece| indenter.indent(piece.as_bytes(), &mut out));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn json_indented_as_go_in_one_piece_or_many() {
        let json = r#"{"a":[1,{"b":null}],"c":{},"d":[],"e":"x,:{}[]\"\\","f":{"g":[[]]}}"#;
        let expected = "{\n  \"a\": [\n    1,\n    {\n      \"b\": null\n    }\n  ],\n  \"c\": {},\n  \"d\": [],\n  \
                        \"e\": \"x,:{}[]\\\"\\\\\",\n  \"f\": {\n    \"g\": [\n      []\n    ]\n  }\n}";
        assert_eq!(indented(&[json]), expected);
        for at in 0..json.len() {
            assert_eq!(indented(&[&json[..at], &json[at..]]), expected, "cut at {at}");
        }
        assert_eq!(indented(&[expected, "\n"]), expected, "indented already");
        assert_eq!(indented(&["}", "]"]), "\n}\n]", "what is no JSON does not panic");
    }
}
