//! Headers that an operator lets pass although they are removed by default.

use http::HeaderName;

/// Which of the headers that are removed by default pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHeaders {
    /// All of them.
    All,
    /// Those with one of these names, in this spelling.
    Only(Vec<HeaderName>),
}

impl Default for AllowedHeaders {
    fn default() -> AllowedHeaders {
        AllowedHeaders::Only(Vec::new())
    }
}

impl AllowedHeaders {
    /// Reads names of headers, each of which `is_removed` unless allowed. The error says which name is wrong, and why.
    pub fn parse<'t>(
        names: impl IntoIterator<Item = &'t str>,
        is_removed: impl Fn(&str) -> bool,
    ) -> Result<AllowedHeaders, String> {
        let names = names.into_iter().map(|text| match HeaderName::from_bytes(text.as_bytes()) {
            Ok(name) if is_removed(name.as_str()) => Ok(name),
            Ok(_) => Err(format!("{text} is not among the headers that are removed, and needs no permission")),
            Err(_) => Err(format!("{text:?} is no header name")),
        });
        Ok(AllowedHeaders::Only(names.collect::<Result<_, _>>()?))
    }

    /// Whether the header of this lower-case name passes.
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
    fn allowed_header_names_must_be_removed_ones() {
        let parse = |text: &'static str| AllowedHeaders::parse(text.split(','), |name| name.starts_with("x-"));
        let some = parse("X-One,x-two").unwrap();
        assert!(some.allows("x-one") && some.allows("x-two") && !some.allows("x_one") && !some.allows("x-three"));
        assert!(AllowedHeaders::All.allows("x-three") && !AllowedHeaders::default().allows("x-one"));
        assert!(parse("X-One,Accept").unwrap_err().starts_with("Accept is not among the headers that are removed"));
        assert!(parse("x one").unwrap_err().starts_with("\"x one\" is no header name"));
    }
}
