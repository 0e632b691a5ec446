//! Headers that are stripped by default and allowed by the operator.

use http::HeaderName;

/// Selection of the headers that are allowed although they are stripped by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHeaders {
    /// All of these headers.
    All,
    /// Headers with one of these names, in exactly this spelling.
    Only(Vec<HeaderName>),
}

impl Default for AllowedHeaders {
    fn default() -> AllowedHeaders {
        AllowedHeaders::Only(Vec::new())
    }
}

impl AllowedHeaders {
    /// Parses header names, each of which `is_removed` by default. The error names the invalid header.
    pub fn parse<'t>(
        names: impl IntoIterator<Item = &'t str>,
        is_removed: impl Fn(&str) -> bool,
    ) -> Result<AllowedHeaders, String> {
        let names = names.into_iter().map(|text| match HeaderName::from_bytes(text.as_bytes()) {
            Ok(name) if is_removed(name.as_str()) => Ok(name),
            Ok(_) => Err(format!("{text} is not stripped, so it need not be allowed")),
            Err(_) => Err(format!("{text:?} is not a valid header name")),
        });
        Ok(AllowedHeaders::Only(names.collect::<Result<_, _>>()?))
    }

    /// Whether the header with this lower-case name is allowed.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            AllowedHeaders::All => true,
            AllowedHeaders::Only(names) => names.iter().any(|one| one.as_str() == name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allowed_headers_accept_only_removed_names() {
        let parse = |text: &'static str| AllowedHeaders::parse(text.split(','), |name| name.starts_with("x-"));
        let some = parse("X-One,x-two").unwrap();
        assert!(some.allows("x-one") && some.allows("x-two") && !some.allows("x_one") && !some.allows("x-three"));
        assert!(AllowedHeaders::All.allows("x-three") && !AllowedHeaders::default().allows("x-one"));
        assert!(parse("X-One,Accept").unwrap_err().starts_with("Accept is not stripped"));
        assert!(parse("x one").unwrap_err().starts_with("\"x one\" is not a valid header name"));
    }
}
