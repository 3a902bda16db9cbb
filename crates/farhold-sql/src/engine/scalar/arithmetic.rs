//! `+ - * / %` on values of one type, checked.

use arrow::datatypes::i256;

use crate::engine::types::round_decimal;
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The minimum of significant digits of a decimal quotient.
const SIGNIFICANT_DIGITS: i32 = 16;

fn division_by_zero() -> SqlError {
    SqlError::new(SqlState::DIVISION_BY_ZERO, "division by zero")
}

fn out_of_range(name: &str) -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("{name} out of range"))
}

macro_rules! integers {
    ($op:expr, $a:expr, $b:expr, $name:literal) => {{
        let (a, b) = ($a, $b);
        if matches!($op, Arithmetic::Divide | Arithmetic::Remainder) && b == 0 {
            return Err(division_by_zero());
        }
        let result = match $op {
            Arithmetic::Add => a.checked_add(b),
            Arithmetic::Subtract => a.checked_sub(b),
            Arithmetic::Multiply => a.checked_mul(b),
            Arithmetic::Divide => a.checked_div(b),
            Arithmetic::Remainder => Some(a.wrapping_rem(b)),
        };
        result.ok_or_else(|| out_of_range($name))?
    }};
}

macro_rules! floats {
    ($(#[$about:meta])* $name:ident, $float:ty) => {
        $(#[$about])*
        pub(crate) fn $name(self, a: $float, b: $float) -> Result<$float, SqlError> {
            if matches!(self, Self::Divide | Self::Remainder) && b == 0.0 && !a.is_nan() {
                return Err(division_by_zero());
            }
            let result = match self {
                Self::Add => a + b,
                Self::Subtract => a - b,
                Self::Multiply => a * b,
                Self::Divide => a / b,
                Self::Remainder => a % b,
            };
            let vanishes = result == 0.0 && a != 0.0 && b != 0.0 && b.is_finite();
            let end = match self {
                _ if result.is_infinite() && a.is_finite() && b.is_finite() => "overflow",
                Self::Multiply | Self::Divide if vanishes => "underflow",
                _ => return Ok(result),
            };
            Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value out of range: {end}")))
        }
    };
}

impl Arithmetic {
    /// The operator's sign in SQL.
    pub(crate) const fn sign(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Remainder => "%",
        }
    }

    floats! {
        /// The result for two numbers of single precision.
        real, f32
    }

    floats! {
        /// The result for two numbers of double precision.
        double, f64
    }

    /// The result for two values of one type, neither NULL.
    pub(crate) fn apply(self, a: &Datum, b: &Datum) -> Result<Datum, SqlError> {
        Ok(match (a, b) {
            (Datum::SmallInt(a), Datum::SmallInt(b)) => Datum::SmallInt(integers!(self, *a, *b, "smallint")),
            (Datum::Int(a), Datum::Int(b)) => Datum::Int(integers!(self, *a, *b, "integer")),
            (Datum::BigInt(a), Datum::BigInt(b)) => Datum::BigInt(integers!(self, *a, *b, "bigint")),
            (Datum::Real(a), Datum::Real(b)) => Datum::Real(self.real(*a, *b)?),
            (Datum::Double(a), Datum::Double(b)) => Datum::Double(self.double(*a, *b)?),
            (Datum::Decimal { unscaled: a, scale: s }, Datum::Decimal { unscaled: b, scale: t }) => {
                self.decimals((*a, *s), (*b, *t))?
            }
            (a, b) => return Err(SqlError::internal(format!("arithmetic on {} and {}", a.kind(), b.kind()))),
        })
    }

    fn decimals(self, (a, s): (i128, u8), (b, t): (i128, u8)) -> Result<Datum, SqlError> {
        let overflow = || out_of_range("numeric");
        let scale = s.max(t);
        let common = || -> Result<(i128, i128), SqlError> {
            Ok((round_decimal(a, s, scale).ok_or_else(overflow)?, round_decimal(b, t, scale).ok_or_else(overflow)?))
        };
        let (unscaled, scale) = match self {
            Self::Add => {
                let (a, b) = common()?;
                (a.checked_add(b).ok_or_else(overflow)?, scale)
            }
            Self::Subtract => {
                let (a, b) = common()?;
                (a.checked_sub(b).ok_or_else(overflow)?, scale)
            }
            Self::Multiply => {
                let exact = (s + t).min(ColumnType::PRECISION_MAX);
                let product = (scale..=exact).rev().find_map(|scale| Some((product((a, s), (b, t), scale)?, scale)));
                product.ok_or_else(overflow)?
            }
            Self::Remainder => {
                let (a, b) = common()?;
                (a.checked_rem(b).ok_or_else(division_by_zero)?, scale)
            }
            Self::Divide => {
                if b == 0 {
                    return Err(division_by_zero());
                }
                return divide(a, s, b, t).ok_or_else(overflow);
            }
        };
        // A product may have more digits than a decimal can hold; the least significant ones are dropped.
        let kept = scale.min(ColumnType::PRECISION_MAX);
        let unscaled = round_decimal(unscaled, scale, kept).ok_or_else(overflow)?;
        Ok(Datum::Decimal { unscaled, scale: kept })
    }
}

/// a / 10^s divided by b / 10^t (which is not 0), with as many digits as PostgreSQL returns, or as fit.
fn divide(a: i128, s: u8, b: i128, t: u8) -> Option<Datum> {
    let least = s.max(t);
    let wanted = quotient_scale((a, s), (b, t)).clamp(least, ColumnType::PRECISION_MAX.max(least));
    (least..=wanted).rev().find_map(|scale| {
        let unscaled = quotient((a, s), (b, t), scale)?;
        Some(Datum::Decimal { unscaled, scale })
    })
}

/// Whether a decimal can hold this number of digits.
pub(crate) fn has_digits(unscaled: i128) -> bool {
    unscaled.unsigned_abs() < 10_u128.pow(ColumnType::PRECISION_MAX.into())
}

/// `a / 10^s` divided by `b / 10^t`, which is not 0, over `10^scale`, rounded half away from zero. `scale` is at least `s`.
/// `None` if the result has more than 38 digits.
pub(crate) fn quotient((a, s): (i128, u8), (b, t): (i128, u8), scale: u8) -> Option<i128> {
    let power = u32::from(scale + t - s);
    let Some(numerator) = 10_i128.checked_pow(power).and_then(|power| a.checked_mul(power)) else {
        return wide_quotient((i256::from_i128(a), s), (b, t), scale);
    };
    // a / 10^s / (b / 10^t) = (a * 10^(scale + t - s)) / b / 10^scale
    let (quotient, rest) = (numerator / b, numerator % b);
    let away = rest.unsigned_abs() >= b.unsigned_abs() - rest.unsigned_abs();
    let sign = if (a < 0) == (b < 0) { 1 } else { -1 };
    Some(if away { quotient + sign } else { quotient }).filter(|quotient| has_digits(*quotient))
}

/// `a / 10^s` times `b / 10^t` over `10^scale`, rounded half away from zero. `None` if the result has more than 38
/// digits.
pub(crate) fn product((a, s): (i128, u8), (b, t): (i128, u8), scale: u8) -> Option<i128> {
    if let (Some(product), true) = (a.checked_mul(b), scale == s + t) {
        return Some(product).filter(|product| has_digits(*product));
    }
    let product = i256::from_i128(a).checked_mul(i256::from_i128(b))?;
    let power = i256::from_i128(10).checked_pow(u32::from((s + t).checked_sub(scale)?))?;
    rounded_quotient(product, power)
}

/// As [`quotient`], for a dividend of more than 38 digits.
pub(crate) fn wide_quotient((a, s): (i256, u8), (b, t): (i128, u8), scale: u8) -> Option<i128> {
    let power = i256::from_i128(10).checked_pow(u32::from(scale + t - s))?;
    rounded_quotient(a.checked_mul(power)?, i256::from_i128(b))
}

fn rounded_quotient(numerator: i256, divisor: i256) -> Option<i128> {
    let (quotient, rest) = (numerator.checked_div(divisor)?, numerator.checked_rem(divisor)?);
    let twice = rest.checked_abs()?.checked_add(rest.checked_abs()?)?;
    let sign = if numerator.is_negative() == divisor.is_negative() { i256::ONE } else { i256::MINUS_ONE };
    let rounded = if twice >= divisor.checked_abs()? { quotient.checked_add(sign)? } else { quotient };
    rounded.to_i128().filter(|quotient| has_digits(*quotient))
}

/// The scale that PostgreSQL chooses for a quotient (its `select_div_scale`): at least sixteen significant digits,
/// counted in groups of four.
fn quotient_scale(a: (i128, u8), b: (i128, u8)) -> u8 {
    let ((weight_a, first_a), (weight_b, first_b)) = (leading_group(a), leading_group(b));
    let weight = weight_a - weight_b - i32::from(first_a <= first_b);
    u8::try_from((SIGNIFICANT_DIGITS - 4 * weight).max(0)).unwrap_or(u8::MAX)
}

/// The exponent, to the base of 10,000, of a decimal's first group of digits, and the group.
fn leading_group((unscaled, scale): (i128, u8)) -> (i32, u32) {
    if unscaled == 0 {
        return (0, 0);
    }
    let digits = unscaled.unsigned_abs().to_string();
    let exponent = i32::try_from(digits.len()).unwrap_or(i32::MAX) - i32::from(scale) - 1;
    let weight = exponent.div_euclid(4);
    let in_group = usize::try_from(exponent.rem_euclid(4) + 1).unwrap_or(4);
    let group: String = digits.chars().chain("000".chars()).take(in_group).collect();
    (weight, group.parse().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{Zone, format_datum, parse_datum};

    /// The results are those of PostgreSQL 15.
    #[test]
    fn quotients_and_products_have_the_digits_of_postgresql() {
        let decimal =
            |text: &str| parse_datum(text, ColumnType::Decimal { precision: 38, scale: 0 }, Zone::UTC).unwrap();
        for (a, b, expected) in [
            ("1.0", "3", "0.33333333333333333333"),
            ("10.0", "3", "3.3333333333333333"),
            ("100000.0", "3", "33333.333333333333"),
            ("0.0001", "3", "0.000033333333333333333333"),
            ("1", "3.0", "0.33333333333333333333"),
            ("7", "2", "3.5000000000000000"),
            ("-7", "2", "-3.5000000000000000"),
            ("2", "3", "0.66666666666666666667"),
            ("0", "3", "0.00000000000000000000"),
            ("100000000000000000000", "3", "33333333333333333333"),
            ("99999999999999999999999999999999999999", "1", "99999999999999999999999999999999999999"),
        ] {
            let quotient = Arithmetic::Divide.apply(&decimal(a), &decimal(b)).unwrap();
            assert_eq!(format_datum(&quotient, Zone::UTC).unwrap(), expected, "{a} / {b}");
        }
        for (a, b, expected) in [
            ("1.5", "-2.25", "-3.375"),
            ("1234567890123456.1234567890123456", "2", "2469135780246912.2469135780246912"),
            ("2000000.0000000000000000", "1000000.0000000000000000", "2000000000000.0000000000000000000000000"),
        ] {
            let product = Arithmetic::Multiply.apply(&decimal(a), &decimal(b)).unwrap();
            assert_eq!(format_datum(&product, Zone::UTC).unwrap(), expected, "{a} * {b}");
        }
        let error = Arithmetic::Divide.apply(&decimal("99999999999999999999999999999999999999"), &decimal("0.1"));
        assert_eq!(error.unwrap_err().state.code(), "22003");
    }
}
