//! Email addresses (`ParseAddress` in Go's `net/mail`).

/// An address, which may have a name: `Bob <bob@example.com>`, or be the only one of a group: `team: bob@example.com;`.
pub(super) fn is_email(text: &str) -> bool {
    match text.trim_matches([' ', '\t']).strip_suffix(';').and_then(|group| group.split_once(':')) {
        Some((name, member)) => !name.is_empty() && is_name(name) && is_mailbox(member),
        None => is_mailbox(text),
    }
}

fn is_mailbox(text: &str) -> bool {
    let text = without_comment(text.trim_matches([' ', '\t']));
    let Some(inner) = text.strip_suffix('>') else { return is_address(text) };
    let Some((name, address)) = inner.split_once('<') else { return false };
    is_name(name.trim_end_matches([' ', '\t'])) && is_address(address.trim_matches([' ', '\t']))
}

/// A local part and a domain.
fn is_address(text: &str) -> bool {
    let (local, domain) = match text.strip_prefix('"') {
        Some(quoted) => {
            let Some(end) = end_of_quoted(quoted) else { return false };
            let Some(domain) = quoted[end + 1..].strip_prefix('@') else { return false };
            return end > 0 && is_domain(domain);
        }
        None => match text.split_once('@') {
            Some(parts) => parts,
            None => return false,
        },
    };
    is_dot_atom(local) && is_domain(domain)
}

fn is_domain(text: &str) -> bool {
    match text.strip_prefix('[').and_then(|text| text.strip_suffix(']')) {
        Some(literal) => literal.parse::<std::net::IpAddr>().is_ok(),
        None => is_dot_atom(text),
    }
}

fn is_dot_atom(text: &str) -> bool {
    text.split('.').all(|atom| !atom.is_empty() && atom.chars().all(is_atom_character))
}

fn is_atom_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(character) || !character.is_ascii()
}

/// Words, of which each may be quoted; or nothing.
fn is_name(text: &str) -> bool {
    let mut rest = text;
    while !rest.is_empty() {
        rest = match rest.strip_prefix('"') {
            Some(quoted) => match end_of_quoted(quoted) {
                Some(end) => &quoted[end + 1..],
                None => return false,
            },
            None => {
                let end = rest.find(|next| !is_atom_character(next) && next != '.').unwrap_or(rest.len());
                if end == 0 {
                    return false;
                }
                &rest[end..]
            }
        };
        rest = rest.trim_start_matches([' ', '\t']);
    }
    true
}

/// Where a quoted text ends: the place of the quote.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.char_indices().find_map(|(at, next)| {
        let ends = next == '"' && !is_escaped;
        is_escaped = next == '\\' && !is_escaped;
        ends.then_some(at)
    })
}

/// A text without the comment at its end.
fn without_comment(text: &str) -> &str {
    let comment = text.strip_suffix(')').and_then(|text| text.rsplit_once('('));
    comment.map_or(text, |(text, _)| text.trim_end_matches([' ', '\t']))
}
