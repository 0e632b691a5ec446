//! Command lines of Go programs (`github.com/spf13/pflag`).

use std::ffi::OsString;

/// Reads `--name=value`, `--name value`, `--switch` and `-v value`, with `_` as `-` in names.
///
/// `is_switch` says of a name whether it needs no value; none is an unknown flag.
///
/// # Errors
/// What pflag says of an unknown flag, a missing value, and a word that is no flag.
pub(super) fn parse_flags(
    words: impl IntoIterator<Item = OsString>,
    is_switch: impl Fn(&str) -> Option<bool>,
) -> Result<Vec<(String, String)>, String> {
    let mut flags = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.into_string().map_err(|word| format!("not UTF-8: {}", word.display()))?;
        let Some(flag) = text.strip_prefix("--").or_else(|| text.strip_prefix('-').filter(|flag| flag.len() == 1))
        else {
            return Err(format!("unknown argument {text:?}: this program takes only flags"));
        };
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value.to_owned())));
        let name = name.replace('_', "-");
        let value = match (value, is_switch(&name)) {
            (_, None) => return Err(format!("unknown flag: --{name}")),
            (Some(value), _) => value,
            (None, Some(true)) => "true".to_owned(),
            (None, Some(false)) => {
                let value = words.next().and_then(|word| word.into_string().ok());
                value.ok_or_else(|| format!("flag needs an argument: --{name}"))?
            }
        };
        flags.push((name, value));
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_read_as_by_pflag() {
        let kind = |name: &str| match name {
            "switch" => Some(true),
            "value" | "v" | "two-words" => Some(false),
            _ => None,
        };
        let parse = |line: &[&str]| parse_flags(line.iter().map(OsString::from), kind);
        let flags = parse(&["--switch", "--value=a=b", "--two_words", "-c", "-v", "3", "--switch=false", "--value="]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let expected = [
            pair("switch", "true"),
            pair("value", "a=b"),
            pair("two-words", "-c"),
            pair("v", "3"),
            pair("switch", "false"),
            pair("value", ""),
        ];
        assert_eq!(flags.unwrap(), expected);
        assert_eq!(parse(&["--other"]), Err("unknown flag: --other".to_owned()));
        assert_eq!(parse(&["--value"]), Err("flag needs an argument: --value".to_owned()));
        assert_eq!(parse(&["word"]), Err("unknown argument \"word\": this program takes only flags".to_owned()));
    }
}
