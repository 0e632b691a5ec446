//! Amounts of resources such as `100m` and `1.5Gi` (`apimachinery/pkg/api/resource/quantity.go`).

use std::cmp::Ordering;
use std::fmt;

/// Most digits of a number that are exact. What is longer is rounded up.
const MAX_DIGITS: usize = 36;
/// Exponent of the smallest amount.
const NANO: i32 = -9;
/// Exponent to which amounts in lists of resources are rounded.
const MILLI: i32 = -3;
/// Exponents beyond which amounts are compared by their sign and exponent alone.
const MAX_EXPONENT: i32 = 1 << 20;

const DECIMAL_SUFFIXES: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Suffixes of powers of 1024.
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// An amount: `unscaled` times a power of ten.
#[derive(Clone, Debug)]
pub struct Quantity {
    unscaled: i128,
    exponent: i32,
    format: QuantityFormat,
    /// The text that was parsed, where that is written again.
    text: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QuantityFormat {
    DecimalSi,
    DecimalExponent,
    BinarySi,
}

/// A text that is no quantity. Displays as Go's error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantityError {
    /// Not a number with a suffix.
    Format,
    /// A suffix that does not exist.
    Suffix,
}

impl fmt::Display for QuantityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QuantityError::Format => {
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
            }
            QuantityError::Suffix => "unable to parse quantity's suffix",
        })
    }
}

impl std::error::Error for QuantityError {}

/// The parts of a text.
struct QuantityParts<'t> {
    is_negative: bool,
    /// Digits before the point, without leading zeros.
    whole: &'t str,
    /// Digits after the point.
    fraction: &'t str,
    suffix: &'t str,
}

impl<'t> QuantityParts<'t> {
    fn split(text: &'t str) -> Result<QuantityParts<'t>, QuantityError> {
        let is_negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let digits_end = |text: &str| text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let number = unsigned.trim_start_matches('0');
        let (whole, rest) = number.split_at(digits_end(number));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits_end(rest)),
            None => ("", rest),
        };
        let letters = suffix.trim_start_matches(|letter: char| "eEinumkKMGTP".contains(letter));
        let exponent = letters.strip_prefix(['-', '+']).unwrap_or(letters);
        if !exponent.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(QuantityError::Format);
        }
        Ok(QuantityParts { is_negative, whole, fraction, suffix })
    }
}

impl Quantity {
    /// Parses a quantity (`ParseQuantity`).
    ///
    /// # Errors
    /// Go's error for a text that is none.
    pub fn parse(text: &str) -> Result<Quantity, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Format);
        }
        let parts = QuantityParts::split(text)?;
        let (format, power) = read_suffix(parts.suffix)?;
        // Go reads an absent number as one digit.
        let digit_count = parts.whole.len().max(1) + parts.fraction.len();
        let digits = format!("{}{}", parts.whole, parts.fraction);
        let dropped = digits.len().saturating_sub(MAX_DIGITS);
        let (exact, rest) = digits.split_at(digits.len() - dropped);
        let mut unscaled: i128 = if exact.is_empty() { 0 } else { exact.parse().unwrap_or(i128::MAX) };
        unscaled += i128::from(rest.bytes().any(|byte| byte != b'0'));
        let length = |length: usize| i32::try_from(length).unwrap_or(MAX_EXPONENT);
        let mut exponent = length(dropped) - length(parts.fraction.len());
        let mut format = format;
        match format {
            QuantityFormat::BinarySi => unscaled = unscaled.saturating_mul(1 << power.min(60)),
            _ => exponent = exponent.saturating_add(power),
        }
        let is_cached = is_written_again(&parts, format, power, digit_count, &digits, exponent);
        (unscaled, exponent) = round_up(unscaled, exponent, NANO);
        if format == QuantityFormat::BinarySi {
            if compare(unscaled, exponent, i128::from(i64::MAX), 0).is_gt() {
                (unscaled, exponent) = (i64::MAX.into(), 0);
            }
            if unscaled > 0 && compare(unscaled, exponent, 1, 0).is_lt() {
                format = QuantityFormat::DecimalSi;
            }
        }
        let unscaled = if parts.is_negative { -unscaled } else { unscaled };
        Ok(Quantity { unscaled, exponent, format, text: is_cached.then(|| text.to_owned()) })
    }

    /// Less than, equal to or greater than nothing.
    pub fn sign(&self) -> Ordering {
        self.unscaled.cmp(&0)
    }

    /// Whether it is a number without a fraction.
    pub fn is_integer(&self) -> bool {
        let (unscaled, exponent) = without_zeros(self.unscaled, self.exponent);
        unscaled == 0 || exponent >= 0
    }

    /// The number, rounded away from zero to an integer; the largest one if it does not fit (`Value`).
    pub fn value(&self) -> i64 {
        self.scaled_value(0)
    }

    /// The number of thousandths, rounded away from zero (`MilliValue`).
    pub fn milli_value(&self) -> i64 {
        self.scaled_value(MILLI)
    }

    /// The number of billionths, the least that a quantity has; none if it is too large.
    pub fn nanos(&self) -> Option<i128> {
        let power = u32::try_from(self.exponent.checked_sub(NANO)?).ok()?;
        self.unscaled.checked_mul(10_i128.checked_pow(power)?)
    }

    fn scaled_value(&self, exponent: i32) -> i64 {
        let (unscaled, found) = round_up(self.unscaled.saturating_abs(), self.exponent, exponent);
        let number = i64::try_from(scaled(unscaled, found.saturating_sub(exponent))).unwrap_or(i64::MAX);
        if self.unscaled < 0 { -number } else { number }
    }

    /// The sum of two quantities, in the format of the first that is not zero (`Add`).
    #[must_use]
    pub fn plus(&self, other: &Quantity) -> Quantity {
        let exponent = self.exponent.min(other.exponent);
        let aligned = |one: &Quantity| scaled(one.unscaled, one.exponent.saturating_sub(exponent));
        let format = if self.unscaled == 0 { other.format } else { self.format };
        Quantity { unscaled: aligned(self).saturating_add(aligned(other)), exponent, format, text: None }
    }

    /// The quantity rounded up to thousandths, as in lists of resources (`SetDefaults_ResourceList`).
    pub fn round_up_to_milli(mut self) -> Quantity {
        if self.exponent < MILLI {
            let is_negative = self.unscaled < 0;
            let (unscaled, exponent) = round_up(self.unscaled.saturating_abs(), self.exponent, MILLI);
            (self.unscaled, self.exponent) = (if is_negative { -unscaled } else { unscaled }, exponent);
            self.text = None;
        }
        self
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Quantity) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Quantity) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Quantity) -> Ordering {
        compare(self.unscaled, self.exponent, other.unscaled, other.exponent)
    }
}

/// The text that Go writes.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = &self.text {
            return f.write_str(text);
        }
        let (mut unscaled, mut exponent) = without_zeros(self.unscaled, self.exponent);
        if unscaled == 0 {
            return f.write_str("0");
        }
        let is_small = compare(unscaled.saturating_abs(), exponent, 1024, 0).is_lt();
        if self.format == QuantityFormat::BinarySi && !is_small && exponent >= 0 {
            let mut number = scaled(unscaled, exponent);
            let mut power = 0;
            while number % 1024 == 0 && power + 1 < BINARY_SUFFIXES.len() {
                number /= 1024;
                power += 1;
            }
            return write!(f, "{number}{}", BINARY_SUFFIXES.get(power).unwrap_or(&""));
        }
        while exponent % 3 != 0 {
            unscaled = unscaled.saturating_mul(10);
            exponent -= 1;
        }
        match self.format {
            QuantityFormat::DecimalExponent if exponent == 0 => write!(f, "{unscaled}"),
            QuantityFormat::DecimalExponent => write!(f, "{unscaled}e{exponent}"),
            _ => {
                let suffix = DECIMAL_SUFFIXES.iter().find(|(_, power)| *power == exponent);
                write!(f, "{unscaled}{}", suffix.map_or("", |(suffix, _)| suffix))
            }
        }
    }
}

/// The format and the exponent of a suffix: a power of ten, or of two.
fn read_suffix(suffix: &str) -> Result<(QuantityFormat, i32), QuantityError> {
    if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok((QuantityFormat::DecimalSi, *power));
    }
    if let Some(power) = BINARY_SUFFIXES.iter().position(|name| *name == suffix) {
        return Ok((QuantityFormat::BinarySi, i32::try_from(power * 10).unwrap_or(0)));
    }
    let number = suffix.strip_prefix(['e', 'E']).ok_or(QuantityError::Suffix)?;
    let power: i64 = number.parse().map_err(|_| QuantityError::Suffix)?;
    let power = power.clamp((-MAX_EXPONENT).into(), MAX_EXPONENT.into());
    Ok((QuantityFormat::DecimalExponent, i32::try_from(power).unwrap_or(0)))
}

/// Whether Go takes a text for canonical, and writes it as it is.
fn is_written_again(
    parts: &QuantityParts<'_>,
    format: QuantityFormat,
    power: i32,
    digit_count: usize,
    digits: &str,
    exponent: i32,
) -> bool {
    let is_whole_zero = parts.whole.is_empty();
    match format {
        QuantityFormat::BinarySi => {
            let used = digit_count + usize::try_from(power * 3 / 10 + 1).unwrap_or(0);
            let number = digits.parse::<i64>().unwrap_or(0);
            parts.fraction.is_empty() && used <= 15 && number & 7 != 0
        }
        _ => digit_count <= 18 && exponent >= NANO && exponent % 3 == 0 && !is_whole_zero && !digits.ends_with("000"),
    }
}

/// Rounds a number that is not negative up to a power of ten.
fn round_up(unscaled: i128, exponent: i32, least: i32) -> (i128, i32) {
    if exponent >= least || unscaled == 0 {
        return (unscaled, exponent.max(least));
    }
    let power = 10_i128.checked_pow(least.saturating_sub(exponent).unsigned_abs());
    let rounded = power.map_or(1, |power| unscaled / power + i128::from(unscaled % power != 0));
    (rounded, least)
}

/// The number without its factors of ten.
fn without_zeros(mut unscaled: i128, mut exponent: i32) -> (i128, i32) {
    while unscaled != 0 && unscaled % 10 == 0 {
        unscaled /= 10;
        exponent += 1;
    }
    (unscaled, exponent)
}

fn scaled(unscaled: i128, exponent: i32) -> i128 {
    let power = 10_i128.checked_pow(exponent.unsigned_abs()).unwrap_or(i128::MAX);
    unscaled.saturating_mul(power)
}

fn compare(first: i128, first_exponent: i32, second: i128, second_exponent: i32) -> Ordering {
    if first.signum() != second.signum() || first == 0 {
        return first.cmp(&second);
    }
    let difference = first_exponent.saturating_sub(second_exponent);
    let power = 10_i128.checked_pow(difference.unsigned_abs());
    let magnitude = |number: i128| if number < 0 { Ordering::Less } else { Ordering::Greater };
    // What does not fit is the larger one.
    if difference >= 0 {
        match power.and_then(|power| first.checked_mul(power)) {
            Some(first) => first.cmp(&second),
            None => magnitude(first),
        }
    } else {
        match power.and_then(|power| second.checked_mul(power)) {
            Some(second) => first.cmp(&second),
            None => magnitude(first).reverse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_has_the_format_of_the_first_that_is_not_zero() {
        for (first, second, expected) in [
            ("1Gi", "1Gi", "2Gi"),
            ("1", "500m", "1500m"),
            ("0", "1Ki", "1Ki"),
            ("1Ki", "1", "1025"),
            ("2", "-3", "-1"),
        ] {
            let [first, second] = [first, second].map(|text| Quantity::parse(text).unwrap());
            assert_eq!(first.plus(&second).to_string(), expected);
        }
    }

    #[test]
    fn quantities_written_as_go_writes_them() {
        for (text, expected) in [
            ("0", "0"),
            ("1", "1"),
            ("100m", "100m"),
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("1.5Gi", "1536Mi"),
            ("1024", "1024"),
            ("1024Ki", "1Mi"),
            ("1024Mi", "1Gi"),
            ("1Gi", "1Gi"),
            ("8Gi", "8Gi"),
            ("0.5Gi", "512Mi"),
            ("0.1Gi", "107374182400m"),
            ("512Ki", "512Ki"),
            ("0.5Ki", "512"),
            ("1000k", "1M"),
            ("1e3", "1e3"),
            ("1E3", "1E3"),
            ("12e5", "1200e3"),
            ("1000e3", "1e6"),
            ("1.500G", "1.500G"),
            ("0.0000000001", "1n"),
            ("+1", "+1"),
            ("-1.5", "-1500m"),
            ("10Ei", "9223372036854775807"),
            ("1.", "1."),
            ("m", "0"),
            ("1e30", "1e30"),
            ("007", "007"),
            ("1023Ki", "1023Ki"),
            ("1000E", "1"),
            ("1.0", "1"),
            ("2.50", "2500m"),
            (".5", "500m"),
            ("-0", "0"),
            ("00.5Mi", "512Ki"),
            ("3.0Mi", "3Mi"),
            ("12345678901234567890", "12345678901234567890"),
            ("1e-12", "1e-9"),
            ("9223372036854775808Ki", "9223372036854775807"),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn quantities_that_are_none_refused_with_upstream_errors() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("1x", QuantityError::Format),
            ("1 ", QuantityError::Format),
            ("ten", QuantityError::Format),
            ("1mm", QuantityError::Suffix),
            ("1ei", QuantityError::Suffix),
            ("1Kib", QuantityError::Format),
        ] {
            assert_eq!(Quantity::parse(text).unwrap_err(), error, "{text}");
        }
    }

    #[test]
    fn quantities_compared_across_formats() {
        let quantity = |text: &str| Quantity::parse(text).unwrap();
        for (less, greater) in
            [("1", "1.1"), ("1Gi", "2G"), ("-1", "0"), ("0", "1n"), ("1e3", "1e400"), ("-1e400", "-1"), ("1e-9", "1")]
        {
            assert!(quantity(less) < quantity(greater), "{less} {greater}");
        }
        assert_eq!(quantity("1"), quantity("1000m"));
        assert_eq!(quantity("1Ki"), quantity("1.024k"));
        assert!(quantity("1000m").is_integer() && !quantity("1m").is_integer() && quantity("1e3").is_integer());
        assert_eq!((quantity("1.5").value(), quantity("-1.5").value(), quantity("1Ki").value()), (2, -2, 1024));
        assert_eq!((quantity("1.5").milli_value(), quantity("1e30").value()), (1500, i64::MAX));
        assert_eq!(quantity("1u").round_up_to_milli().to_string(), "1m");
        assert_eq!(quantity("1.0001").round_up_to_milli().to_string(), "1001m");
        assert_eq!(quantity("-1u").round_up_to_milli().to_string(), "-1m");
        assert_eq!(quantity(&"9".repeat(60)).sign(), Ordering::Greater);
    }
}
