//! `+ - * / %` on values of one type, checked.

use crate::engine::types::round_decimal;
use crate::engine::{ColumnType, Datum};
use crate::{SqlError, SqlState};

/// An arithmetic operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

/// The least digits behind the point of a quotient of decimals.
const QUOTIENT_SCALE: u8 = 16;

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
    ($op:expr, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        if matches!($op, Arithmetic::Divide | Arithmetic::Remainder) && b == 0.0 {
            return Err(division_by_zero());
        }
        let result = match $op {
            Arithmetic::Add => a + b,
            Arithmetic::Subtract => a - b,
            Arithmetic::Multiply => a * b,
            Arithmetic::Divide => a / b,
            Arithmetic::Remainder => a % b,
        };
        if result.is_infinite() && a.is_finite() && b.is_finite() {
            return Err(SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "value out of range: overflow"));
        }
        result
    }};
}

impl Arithmetic {
    /// The result for two values of one type, neither null.
    pub(crate) fn apply(self, a: &Datum, b: &Datum) -> Result<Datum, SqlError> {
        Ok(match (a, b) {
            (Datum::SmallInt(a), Datum::SmallInt(b)) => Datum::SmallInt(integers!(self, *a, *b, "smallint")),
            (Datum::Int(a), Datum::Int(b)) => Datum::Int(integers!(self, *a, *b, "integer")),
            (Datum::BigInt(a), Datum::BigInt(b)) => Datum::BigInt(integers!(self, *a, *b, "bigint")),
            (Datum::Real(a), Datum::Real(b)) => Datum::Real(floats!(self, *a, *b)),
            (Datum::Double(a), Datum::Double(b)) => Datum::Double(floats!(self, *a, *b)),
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
            Self::Multiply => (a.checked_mul(b).ok_or_else(overflow)?, s + t),
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
        // A product may have more digits than a decimal holds; the least ones go.
        let kept = scale.min(ColumnType::PRECISION_MAX);
        let unscaled = round_decimal(unscaled, scale, kept).ok_or_else(overflow)?;
        Ok(Datum::Decimal { unscaled, scale: kept })
    }
}

/// a / 10^s divided by b / 10^t, with as many digits as fit, up to [`QUOTIENT_SCALE`] or the operands' scale.
fn divide(a: i128, s: u8, b: i128, t: u8) -> Option<Datum> {
    let wanted = s.max(t).max(QUOTIENT_SCALE);
    for scale in (s.max(t)..=wanted).rev() {
        // a / 10^s / (b / 10^t) = (a * 10^(scale + t - s)) / b / 10^scale
        let shift = scale + t - s;
        let Some(numerator) = 10_i128.checked_pow(u32::from(shift)).and_then(|p| a.checked_mul(p)) else { continue };
        let (quotient, rest) = (numerator / b, numerator % b);
        let away = rest.unsigned_abs() >= b.unsigned_abs() - rest.unsigned_abs();
        let sign = if (a < 0) == (b < 0) { 1 } else { -1 };
        let unscaled = if rest != 0 && away { quotient + sign } else { quotient };
        return Some(Datum::Decimal { unscaled, scale });
    }
    None
}
