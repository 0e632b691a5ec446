//! Path patterns, like Go's `path.Match`.

/// A pattern. `*` matches anything without a slash, `?` one character except a slash, `[a-z]` and `[^a-z]` a character
/// (not) in the class, and a backslash quotes the next character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    chunks: Vec<Chunk>,
    pattern: String,
}

/// The part up to the next star.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Chunk {
    /// Whether a star precedes it.
    star: bool,
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Term {
    Character(char),
    NoSlash,
    /// A character class; a slash may match, as in Go.
    OneOf {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Glob {
    /// Parses a pattern; none if it is malformed anywhere.
    pub(super) fn parse(pattern: &str) -> Option<Glob> {
        let mut chunks = vec![Chunk::default()];
        let mut rest = pattern.chars();
        while let Some(character) = rest.next() {
            let term = match character {
                '*' => {
                    match chunks.last_mut() {
                        Some(last) if last.terms.is_empty() => last.star = true,
                        _ => chunks.push(Chunk { star: true, terms: Vec::new() }),
                    }
                    continue;
                }
                '?' => Term::NoSlash,
                '[' => parse_class(&mut rest)?,
                '\\' => Term::Character(rest.next()?),
                character => Term::Character(character),
            };
            chunks.last_mut()?.terms.push(term);
        }
        Some(Glob { chunks, pattern: pattern.to_owned() })
    }

    /// The original text.
    pub(super) fn as_str(&self) -> &str {
        &self.pattern
    }

    /// Whether this pattern matches every path that `other` matches; false if that is not obvious.
    pub(super) fn covers(&self, other: &Glob) -> bool {
        let literal = !other.pattern.contains(['*', '?', '[', '\\']);
        self == other || literal && self.matches(&other.pattern)
    }

    /// Whether the whole `path` matches. A star matches as little as possible, without backtracking, as in Go.
    pub(super) fn matches(&self, path: &str) -> bool {
        let mut path = path;
        for (number, chunk) in self.chunks.iter().enumerate() {
            let last = number + 1 == self.chunks.len();
            if chunk.star && chunk.terms.is_empty() {
                return !path.contains('/');
            }
            // The last chunk must match up to the end of the path.
            let fits = |from: &str| chunk.match_prefix(from).map(str::len).filter(|left| !last || *left == 0);
            let left = fits(path).or_else(|| {
                let within = if chunk.star { path.find('/').unwrap_or(path.len()) } else { 0 };
                path[..within].char_indices().find_map(|(at, skipped)| fits(&path[at + skipped.len_utf8()..]))
            });
            let Some(left) = left else { return false };
            path = &path[path.len() - left..];
        }
        path.is_empty()
    }
}

impl Chunk {
    /// Returns the rest of `path` after this chunk, if it begins with it.
    fn match_prefix<'p>(&self, path: &'p str) -> Option<&'p str> {
        let mut rest = path.chars();
        for term in &self.terms {
            let character = rest.next()?;
            let fits = match term {
                Term::Character(wanted) => character == *wanted,
                Term::NoSlash => character != '/',
                Term::OneOf { negated, ranges } => {
                    ranges.iter().any(|(low, high)| (*low..=*high).contains(&character)) != *negated
                }
            };
            if !fits {
                return None;
            }
        }
        Some(rest.as_str())
    }
}

/// Parses a character class, from after `[` to after `]`.
fn parse_class(rest: &mut std::str::Chars<'_>) -> Option<Term> {
    let negated = rest.as_str().starts_with('^');
    if negated {
        rest.next();
    }
    let mut ranges = Vec::new();
    loop {
        if rest.as_str().starts_with(']') && !ranges.is_empty() {
            rest.next();
            return Some(Term::OneOf { negated, ranges });
        }
        let low = parse_class_character(rest)?;
        let mut high = low;
        if rest.as_str().starts_with('-') {
            rest.next();
            high = parse_class_character(rest)?;
        }
        ranges.push((low, high));
    }
}

fn parse_class_character(rest: &mut std::str::Chars<'_>) -> Option<char> {
    match rest.next()? {
        '-' | ']' => None,
        '\\' => rest.next(),
        character => Some(character),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of Go's `path/match_test.go`, and the cases of kube-rbac-proxy's tests.
    #[test]
    fn path_glob_matches_like_go() {
        for (pattern, path, matches) in [
            ("abc", "abc", true),
            ("*", "abc", true),
            ("*c", "abc", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ab/c", false),
            ("a*/b", "abc/b", true),
            ("a*/b", "a/c/b", false),
            ("a*b*c*d*e*/f", "axbxcxdxe/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxexxx/f", true),
            ("a*b*c*d*e*/f", "axbxcxdxe/xxx/f", false),
            ("a*b*c*d*e*/f", "axbxcxdxexxx/fff", false),
            ("a*b?c*x", "abxbbxdbxebxczzx", true),
            ("a*b?c*x", "abxbbxdbxebxczzy", false),
            ("ab[c]", "abc", true),
            ("ab[b-d]", "abc", true),
            ("ab[e-g]", "abc", false),
            ("ab[^c]", "abc", false),
            ("ab[^b-d]", "abc", false),
            ("ab[^e-g]", "abc", true),
            ("a\\*b", "a*b", true),
            ("a\\*b", "ab", false),
            ("a?b", "a☺b", true),
            ("a[^a]b", "a☺b", true),
            ("a???b", "a☺b", false),
            ("a[^a][^a][^a]b", "a☺b", false),
            ("[a-ζ]*", "α", true),
            ("*[a-ζ]", "A", false),
            ("a?b", "a/b", false),
            ("a*b", "a/b", false),
            ("[\\]a]", "]", true),
            ("[\\-]", "-", true),
            ("[x\\-]", "x", true),
            ("[x\\-]", "-", true),
            ("[x\\-]", "z", false),
            ("[\\-x]", "x", true),
            ("[\\-x]", "-", true),
            ("[\\-x]", "a", false),
            ("*x", "xxx", true),
            ("a[^b]c", "a/c", true),
            ("*a[^b]*z", "aca/z", false),
            ("", "", true),
            ("**", "ab", true),
            ("/metrics", "/metrics", true),
            ("/metrics", "/metrics/", false),
            ("/api/v1/label/*/values", "/api/v1/label/job/values", true),
            ("/api/v1/label/*/values", "/api/v1/label//values", true),
            ("/api/v1/label/*/values", "/api/v1/label/a/b/values", false),
            ("/*", "/", true),
            ("/*/", "/", false),
        ] {
            assert_eq!(Glob::parse(pattern).unwrap().matches(path), matches, "{pattern} {path}");
        }
    }

    #[test]
    fn path_glob_malformed_is_rejected() {
        for pattern in
            ["[]a]", "[-]", "[x-]", "[-x]", "[a-b-c]", "[", "[^", "[^bc", "a[", "a\\", "[a-b-d]", "/x*[", "[a"]
        {
            assert_eq!(Glob::parse(pattern), None, "{pattern}");
        }
    }
}
