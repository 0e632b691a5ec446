//! Parser of comma-separated values, like Go's `encoding/csv`: quoted fields may contain commas, doubled quotes and
//! line ends; empty lines are skipped; spaces are significant.

/// One record: its first line, counted from 1, and its fields.
pub type Record = (usize, Vec<String>);

/// Parses all records. An invalid record yields its line and the error.
pub fn records(text: &str) -> Vec<Result<Record, (usize, &'static str)>> {
    let mut records = Vec::new();
    let mut rest = text;
    let mut line = 1;
    // A carriage return at the very end is dropped, as if a line feed followed it.
    while !rest.is_empty() && rest != "\r" {
        if let Some(after) = rest.strip_prefix('\n').or_else(|| rest.strip_prefix("\r\n")) {
            rest = after;
            line += 1;
            continue;
        }
        let begin = line;
        let (record, after) = parse_record(rest);
        line += rest[..rest.len() - after.len()].bytes().filter(|byte| *byte == b'\n').count();
        rest = after;
        records.push(record.map(|fields| (begin, fields)).map_err(|why| (begin, why)));
    }
    records
}

/// Parses one record, and returns the text after it. After an error, parsing continues with the next line.
fn parse_record(text: &str) -> (Result<Vec<String>, &'static str>, &str) {
    let next_line = |text: &str| text.split_once('\n').map_or(text.len(), |(line, _)| line.len() + 1);
    let mut fields = Vec::new();
    let mut rest = text;
    loop {
        let field = match rest.strip_prefix('"') {
            Some(quoted) => match parse_quoted_field(quoted) {
                Ok((field, after)) => {
                    rest = after;
                    field
                }
                Err(why) => return (Err(why), &text[next_line(text)..]),
            },
            None => {
                let end = rest.find([',', '\n']).unwrap_or(rest.len());
                let (field, after) = rest.split_at(end);
                if field.contains('"') {
                    return (Err("quote inside an unquoted field"), &rest[next_line(rest)..]);
                }
                rest = after;
                let at_line_end = rest.is_empty() || rest.starts_with('\n');
                if at_line_end { field.strip_suffix('\r').unwrap_or(field) } else { field }.to_owned()
            }
        };
        fields.push(field);
        let line_end = rest.strip_prefix("\r\n").or_else(|| rest.strip_prefix('\n'));
        match (rest.strip_prefix(','), line_end) {
            (Some(after), _) => rest = after,
            (None, Some(after)) => return (Ok(fields), after),
            (None, None) if rest.is_empty() || rest == "\r" => return (Ok(fields), ""),
            (None, None) => {
                return (Err("text between a closing quote and the next comma"), &rest[next_line(rest)..]);
            }
        }
    }
}

/// Parses a quoted field after its opening quote. Returns the field and the text after its closing quote.
///
/// # Errors
/// There is no closing quote.
pub(crate) fn parse_quoted_field(text: &str) -> Result<(String, &str), &'static str> {
    let mut field = String::new();
    let mut rest = text;
    while let Some((part, after)) = rest.split_once('"') {
        field.push_str(part);
        match after.strip_prefix('"') {
            Some(after) => {
                field.push('"');
                rest = after;
            }
            None => return Ok((field.replace("\r\n", "\n"), after)),
        }
    }
    Err("unterminated quote")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<Record> {
        records(text).into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn csv_fields_quotes_and_line_ends() {
        for (text, expected) in [
            ("", vec![]),
            ("\n\r\n\n", vec![]),
            ("a,b,c\n", vec![(1, vec!["a", "b", "c"])]),
            ("a,b,c", vec![(1, vec!["a", "b", "c"])]),
            ("a,b\r\nc,d\r\n", vec![(1, vec!["a", "b"]), (2, vec!["c", "d"])]),
            ("\r", vec![]),
            ("a\n\r", vec![(1, vec!["a"])]),
            ("a,b\r", vec![(1, vec!["a", "b"])]),
            ("a,,\n\n,x", vec![(1, vec!["a", "", ""]), (3, vec!["", "x"])]),
            ("a,\"g1,g2\",\"say \"\"hi\"\"\"", vec![(1, vec!["a", "g1,g2", "say \"hi\""])]),
            ("\"a\r\nb\",c\nd", vec![(1, vec!["a\nb", "c"]), (3, vec!["d"])]),
            (" a , b ", vec![(1, vec![" a ", " b "])]),
            ("#a,b", vec![(1, vec!["#a", "b"])]),
        ] {
            let expected: Vec<Record> = expected
                .into_iter()
                .map(|(line, fields)| (line, fields.into_iter().map(str::to_owned).collect()))
                .collect();
            assert_eq!(read(text), expected, "{text:?}");
        }
    }

    #[test]
    fn csv_errors_carry_line_numbers() {
        let text = "a,b\nc\"d,e\n\"f\"g,h\ni,j\n\"k\nl";
        let told: Vec<_> = records(text).into_iter().map(|record| record.map_err(|(line, _)| line)).collect();
        let fields = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(
            told,
            [
                Ok((1, fields(&["a", "b"]))),
                Err(2),
                Err(3),
                Ok((4, fields(&["i", "j"]))),
                Err(5),
                Ok((6, fields(&["l"])))
            ]
        );
    }
}
