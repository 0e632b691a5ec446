//! Numbers with check digits (`pkg/internal/third_party/govalidator` of kube-openapi).

use std::sync::LazyLock;

use crate::schema::validation::Pattern;

static CREDIT_CARD: LazyLock<Pattern> = LazyLock::new(|| {
    Pattern::new(concat!(
        r"^(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14}|6(?:011|5[0-9][0-9])[0-9]{12}|3[47][0-9]{13}",
        r"|3(?:0[0-5]|[68][0-9])[0-9]{11}|(?:2131|1800|35\d{3})\d{11})$",
    ))
});

/// The number of a credit card with a valid check digit. What is no digit does not count.
pub(super) fn is_credit_card(text: &str) -> bool {
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let weigh = |(index, digit): (usize, u8)| match u32::from(digit - b'0') * (1 + u32::from(index % 2 == 1)) {
        two_digits @ 10.. => two_digits - 9,
        one => one,
    };
    CREDIT_CARD.matches(&digits) && digits.bytes().rev().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

/// An ISBN with ten digits, of which the last may be `X`. White space and dashes do not count.
pub(super) fn is_isbn10(text: &str) -> bool {
    let text = without_separators(text);
    let Some((last, digits)) = text.as_bytes().split_last().filter(|(_, digits)| digits.len() == 9) else {
        return false;
    };
    let check = match last {
        b'X' => 10,
        digit if digit.is_ascii_digit() => u32::from(digit - b'0'),
        _ => return false,
    };
    digits.iter().all(u8::is_ascii_digit)
        && (digits.iter().zip(1..).map(|(digit, weight)| weight * u32::from(digit - b'0')).sum::<u32>() + 10 * check)
            % 11
            == 0
}

/// An ISBN with thirteen digits. White space and dashes do not count.
pub(super) fn is_isbn13(text: &str) -> bool {
    let text = without_separators(text);
    let weigh = |(index, digit): (usize, u8)| u32::from(digit - b'0') * if index % 2 == 1 { 3 } else { 1 };
    text.len() == 13
        && text.bytes().all(|byte| byte.is_ascii_digit())
        && text.bytes().enumerate().map(weigh).sum::<u32>() % 10 == 0
}

fn without_separators(text: &str) -> String {
    text.chars().filter(|next| !matches!(next, '\t' | '\n' | '\x0c' | '\r' | ' ' | '-')).collect()
}
