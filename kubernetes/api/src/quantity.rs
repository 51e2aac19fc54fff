//! Kubernetes' quantities, exactly.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// A whole, non-negative quantity. Bytes and percents have no fractions: one that Kubernetes would
/// round is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Quantity(pub u64);

/// Text that is no quantity, or none that is accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// Not Kubernetes' syntax.
    #[error("`{0}` is no quantity; write 20Gi, 20000000000 or 25")]
    Syntax(String),
    /// A fraction of a byte or of a percent.
    #[error("`{0}` is not a whole number")]
    Fraction(String),
    /// Below zero.
    #[error("`{0}` is negative")]
    Negative(String),
    /// 2^64 or more.
    #[error("`{0}` is more than 2^64 - 1")]
    TooLarge(String),
}

/// Binary suffixes with their powers of 1024, the largest first.
const BINARY: [(&str, u32); 6] = [("Ei", 6), ("Pi", 5), ("Ti", 4), ("Gi", 3), ("Mi", 2), ("Ki", 1)];
/// Decimal suffixes with their powers of ten.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

impl FromStr for Quantity {
    type Err = QuantityError;

    /// Reads every form that Kubernetes does: `20Gi`, `1.5Gi`, `2G`, `25`, `25000m`, `2e10`.
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        Self::read(text, Fraction::Refused)
    }
}

/// The treatment of a quantity that is not whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fraction {
    Refused,
    RoundedUp,
}

impl Quantity {
    /// Reads as `from_str` does, and takes the next whole quantity where there is a fraction, as
    /// the scheduler does where a capacity has steps.
    ///
    /// # Errors
    /// When the text is no quantity, negative, or too large.
    pub fn rounded_up(text: &str) -> Result<Self, QuantityError> {
        Self::read(text, Fraction::RoundedUp)
    }

    fn read(text: &str, of_fractions: Fraction) -> Result<Self, QuantityError> {
        let syntax = || QuantityError::Syntax(text.to_owned());
        let (is_negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return Err(syntax());
        }
        let (binary, ten) = scale(suffix).ok_or_else(syntax)?;
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Ok(Self(0));
        }
        if is_negative {
            return Err(QuantityError::Negative(text.to_owned()));
        }
        let places = i32::try_from(fraction.len()).map_err(|_| syntax())?;
        value(digits, binary, ten.saturating_sub(places), of_fractions, text).map(Self)
    }
}

/// Returns the power of 1024 and the power of ten that a suffix stands for.
fn scale(suffix: &str) -> Option<(u32, i32)> {
    if let Some((_, power)) = BINARY.iter().find(|(known, _)| *known == suffix) {
        return Some((*power, 0));
    }
    if let Some((_, power)) = DECIMAL.iter().find(|(known, _)| *known == suffix) {
        return Some((0, *power));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    exponent.parse().ok().map(|power| (0, power))
}

/// Returns `digits` x 1024^`binary` x 10^`ten`. `digits` begins with no zero.
fn value(digits: &str, binary: u32, ten: i32, of_fractions: Fraction, text: &str) -> Result<u64, QuantityError> {
    let too_large = || QuantityError::TooLarge(text.to_owned());
    let fraction = || QuantityError::Fraction(text.to_owned());
    let mut count: u128 = digits.parse().map_err(|_| if ten < 0 { fraction() } else { too_large() })?;
    count = count.checked_mul(1 << (10 * binary)).ok_or_else(too_large)?;
    let power = 10_u128.checked_pow(ten.unsigned_abs());
    count = match (power, ten < 0) {
        (Some(power), false) => count.checked_mul(power).ok_or_else(too_large)?,
        (Some(power), true) if count.is_multiple_of(power) => count / power,
        (Some(power), true) if of_fractions == Fraction::RoundedUp => count.div_ceil(power),
        // Less than one: the digits are fewer than 10^39, the power more.
        (None, true) if of_fractions == Fraction::RoundedUp => 1,
        (_, true) => return Err(fraction()),
        (None, false) => return Err(too_large()),
    };
    u64::try_from(count).map_err(|_| too_large())
}

impl TryFrom<String> for Quantity {
    type Error = QuantityError;
    fn try_from(text: String) -> Result<Self, QuantityError> {
        text.parse()
    }
}

impl From<Quantity> for String {
    fn from(quantity: Quantity) -> Self {
        quantity.to_string()
    }
}

impl fmt::Display for Quantity {
    /// Writes the largest binary suffix that shows it exactly: `80Gi`, `1000`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = BINARY.iter().find(|(_, power)| self.0 != 0 && self.0.is_multiple_of(1 << (10 * power)));
        match exact {
            Some((suffix, power)) => write!(formatter, "{}{suffix}", self.0 >> (10 * power)),
            None => write!(formatter, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_exactly() {
        for (text, expected) in [
            ("20Gi", 20 << 30),
            ("1.5Gi", 3 << 29),
            ("0.5Ki", 512),
            (".5Ki", 512),
            ("25", 25),
            ("25.", 25),
            ("+25", 25),
            ("25.000", 25),
            ("25000m", 25),
            ("2G", 2_000_000_000),
            ("2e9", 2_000_000_000),
            ("2E9", 2_000_000_000),
            ("2E+9", 2_000_000_000),
            ("2000e-3", 2),
            ("1E", 1_000_000_000_000_000_000),
            ("0", 0),
            ("-0", 0),
            ("0e99999", 0),
            ("1000000000n", 1),
            ("0000000000000000000000000000000000000000000025", 25),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Quantity(expected)), "{text}");
        }
    }

    #[test]
    fn what_is_no_whole_number_is_refused() {
        for text in [
            "12500m",
            "0.1",
            "1.0000000001Gi",
            "1n",
            "1e-1",
            "1e-99999",
            "0.00000000000000000000000000000000000000000001",
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError::Fraction(text.to_owned())), "{text}");
        }
        for text in ["-1", "-1Gi"] {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError::Negative(text.to_owned())), "{text}");
        }
        for text in ["18446744073709551616", "16Ei", "1e20", "1e99999", "99999999999999999999999999999999999999999999"]
        {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError::TooLarge(text.to_owned())), "{text}");
        }
        for text in
            ["", "Gi", "1.2.3", "20GiB", "20 Gi", "1e", "1e+", "0x10", ".", "--1", "K", "1K", "１", "1e99999999999"]
        {
            assert_eq!(text.parse::<Quantity>(), Err(QuantityError::Syntax(text.to_owned())), "{text}");
        }
    }

    #[test]
    fn fractions_are_rounded_up_where_that_is_wanted() {
        for (text, expected) in
            [("12500m", 13), ("1n", 1), ("1e-99", 1), ("0", 0), ("25", 25), ("0.1Ki", 103), ("1.5Gi", 3 << 29)]
        {
            assert_eq!(Quantity::rounded_up(text), Ok(Quantity(expected)), "{text}");
        }
        assert_eq!(Quantity::rounded_up("-1m"), Err(QuantityError::Negative("-1m".to_owned())));
    }

    #[test]
    fn quantities_are_written_as_kubernetes_does_and_read_back() {
        for (count, text) in
            [(80 << 30, "80Gi"), (0, "0"), (1, "1"), (100, "100"), ((80 << 30) - 1, "85899345919"), (1 << 60, "1Ei")]
        {
            assert_eq!(Quantity(count).to_string(), text);
            assert_eq!(text.parse(), Ok(Quantity(count)));
        }
    }
}
