//! The text and binary formats of decimals.
//!
//! ```text
//! binary:  count:i16 | weight:i16 | sign:u16 | scale:u16 | count digits to the base of 10 000, u16 each
//! value:   sign * sum of digit[i] * 10000^(weight - i), shown with `scale` places
//! ```

use farhold_store::row::{ColumnType, Datum};

use super::binary::malformed;
use crate::{SqlError, SqlState};

/// The largest scale: a decimal has 38 digits.
pub(super) const SCALE_MAX: u8 = ColumnType::PRECISION_MAX;
/// The limit on decimals in PostgreSQL's numeric.
const DECIMALS_MAX: i32 = 16_383;
const NEGATIVE: u16 = 0x4000;
const BASE: u128 = 10_000;
const BASE_DIGITS: usize = 4;

/// A decimal: `unscaled / 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    /// The digits, as an integer.
    pub unscaled: i128,
    /// The number of fractional digits.
    pub scale: u8,
}

impl From<Decimal> for Datum {
    fn from(Decimal { unscaled, scale }: Decimal) -> Self {
        Self::Decimal { unscaled, scale }
    }
}

/// Writes the text format.
pub(crate) fn put_decimal(decimal: Decimal, out: &mut Vec<u8>) {
    if decimal.unscaled < 0 {
        out.push(b'-');
    }
    let mut digits = [b'0'; 40];
    let mut rest = decimal.unscaled.unsigned_abs();
    let mut start = digits.len();
    let scale = usize::from(decimal.scale);
    while rest > 0 || digits.len() - start <= scale.min(digits.len() - 1) {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if start == 0 {
            break;
        }
    }
    let point = digits.len() - scale.min(digits.len() - 1);
    out.extend_from_slice(&digits[start..point]);
    if scale > 0 {
        out.push(b'.');
        out.extend_from_slice(&digits[point..]);
    }
}

/// The decimal in `text`, unless a decimal cannot hold all of its digits.
pub(crate) fn exact_decimal(text: &str) -> Option<Datum> {
    match parse_decimal(text, MinDigits::Kept)? {
        Ok((decimal, true)) => Some(decimal.into()),
        _ => None,
    }
}

/// The treatment of a number that rounds to zero.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum MinDigits {
    /// It becomes the least number other than zero, so that conditions on it stay correct.
    Kept,
    Rounded,
}

/// A number, and whether it is exact: digits beyond the last decimal are rounded away. `None` if the text is not a
/// number, `Some(Err)` if the number does not fit in 38 digits.
pub(super) fn parse_decimal(text: &str, min_digits: MinDigits) -> Option<Result<(Decimal, bool), SqlError>> {
    if ["nan", "inf", "infinity"].contains(&text.trim_start_matches(['+', '-']).to_ascii_lowercase().as_str()) {
        return Some(Err(SqlError::unsupported(format!("\"{text}\" of type numeric"))));
    }
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
        None => (text, 0),
    };
    let (negative, digits) = match mantissa.as_bytes().first()? {
        b'-' => (true, &mantissa[1..]),
        b'+' => (false, &mantissa[1..]),
        _ => (false, mantissa),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() || !whole.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) {
        return None;
    }
    let overflow =
        || SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, format!("value \"{text}\" overflows numeric format"));
    let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    if scale > DECIMALS_MAX {
        return Some(Err(overflow()));
    }
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let dropped = usize::try_from(scale.saturating_sub(SCALE_MAX.into())).unwrap_or(0);
    let (kept, rest) = digits.split_at(digits.len().saturating_sub(dropped));
    // If more digits are dropped than the number has, the first of them are zeros.
    let rounds_up = rest.len() == dropped && rest.first().is_some_and(|digit| *digit >= 5);
    let exact = rest.iter().all(|digit| *digit == 0);
    let shifted = |unscaled: i128, digit: u8| unscaled.checked_mul(10)?.checked_add(i128::from(digit));
    let mut unscaled = kept.iter().try_fold(0, |unscaled, digit| shifted(unscaled, *digit));
    if let Some(digits) = unscaled.filter(|digits| *digits != 0) {
        // A power of ten above the number of digits is always too large.
        let zeros = (-scale).clamp(0, i32::from(SCALE_MAX) + 1);
        unscaled = (0..zeros).try_fold(digits, |unscaled, _| shifted(unscaled, 0));
    }
    let is_lost = unscaled == Some(0) && !exact && min_digits == MinDigits::Kept;
    let Some(unscaled) = unscaled.and_then(|v| v.checked_add(i128::from(rounds_up || is_lost))) else {
        return Some(Err(overflow()));
    };
    let scale = u8::try_from(scale.clamp(0, SCALE_MAX.into())).ok()?;
    Some(Ok((Decimal { unscaled: if negative { -unscaled } else { unscaled }, scale }, exact)))
}

/// `unscaled / 10^scale`, where the scale may be negative.
fn scaled(mut unscaled: u128, scale: i64, negative: bool) -> Result<Decimal, SqlError> {
    if unscaled == 0 {
        let scale = u8::try_from(scale.clamp(0, i64::from(SCALE_MAX))).expect("clamped");
        return Ok(Decimal { unscaled: 0, scale });
    }
    let mut scale = scale;
    if scale < 0 {
        let factor = u32::try_from(-scale).ok().and_then(|power| 10_u128.checked_pow(power));
        unscaled = factor.and_then(|factor| unscaled.checked_mul(factor)).ok_or_else(too_long)?;
        scale = 0;
    }
    while scale > i64::from(SCALE_MAX) {
        // Decimals beyond the largest scale are dropped if they are zeros.
        if !unscaled.is_multiple_of(10) {
            return Err(too_long());
        }
        unscaled /= 10;
        scale -= 1;
    }
    let unscaled = i128::try_from(unscaled).map_err(|_| too_long())?;
    Ok(Decimal { unscaled: if negative { -unscaled } else { unscaled }, scale: scale as u8 })
}

/// Writes the binary format.
pub(crate) fn put_binary(decimal: Decimal, out: &mut Vec<u8>) {
    let scale = usize::from(decimal.scale);
    // Group the digits by four, counted from the point: pad the fraction on the right.
    let fraction_groups = scale.div_ceil(BASE_DIGITS);
    let padding = fraction_groups * BASE_DIGITS - scale;
    let magnitude = decimal.unscaled.unsigned_abs();
    let power = 10_u128.pow(padding as u32);
    // 39 digits and up to 3 zeros: the lowest group is split off first, to avoid an overflow.
    let mut groups = [0_u16; 12];
    let mut count = 0;
    let low_base = BASE / power;
    let mut rest = magnitude / low_base;
    groups[count] = ((magnitude % low_base) * power) as u16;
    count += 1;
    while rest > 0 {
        groups[count] = (rest % BASE) as u16;
        rest /= BASE;
        count += 1;
    }
    // `groups` is little-endian; strip zeros at both ends.
    let low = groups[..count].iter().position(|&group| group != 0).unwrap_or(count);
    let high = groups[..count].iter().rposition(|&group| group != 0).map_or(low, |index| index + 1);
    let digits = &groups[low..high];
    let weight = if digits.is_empty() { 0 } else { high as i16 - 1 - fraction_groups as i16 };
    out.extend_from_slice(&(digits.len() as i16).to_be_bytes());
    out.extend_from_slice(&weight.to_be_bytes());
    let sign = if decimal.unscaled < 0 { NEGATIVE } else { 0 };
    out.extend_from_slice(&sign.to_be_bytes());
    out.extend_from_slice(&(scale as u16).to_be_bytes());
    for group in digits.iter().rev() {
        out.extend_from_slice(&group.to_be_bytes());
    }
}

/// Reads the binary format. NaN and the infinities are out of range, since no column can hold them.
///
/// # Errors
/// 22P03 for malformed bytes, 22003 for a number that does not fit in 38 digits.
pub(crate) fn parse_binary(bytes: &[u8]) -> Result<Decimal, SqlError> {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut words = words.iter().map(|&word| u16::from_be_bytes(word));
    let mut word = || words.next().ok_or_else(malformed);
    let (count, weight, sign, scale) = (word()?, word()?.cast_signed(), word()?, word()?);
    if !rest.is_empty() || bytes.len() != 8 + 2 * usize::from(count) {
        return Err(malformed());
    }
    let negative = match sign {
        0 => false,
        NEGATIVE => true,
        0xc000 | 0xd000 | 0xf000 => return Err(too_long()),
        _ => return Err(malformed()),
    };
    // The last group counts units of 10000^(weight - count + 1). The digits beyond `scale` are padding zeros. They are
    // left out while the digits are accumulated, because with them a decimal of 38 digits might not fit.
    let mut places = (i64::from(count) - 1 - i64::from(weight)) * BASE_DIGITS as i64;
    let surplus = u32::try_from(places - i64::from(scale)).unwrap_or(0).min(BASE_DIGITS as u32 - 1);
    let mut unscaled = 0_u128;
    for index in 0..count {
        let group = u128::from(word()?);
        if group >= BASE {
            return Err(malformed());
        }
        let fill = 10_u128.pow(surplus);
        let (factor, digits) = if index + 1 == count && group % fill == 0 {
            places -= i64::from(surplus);
            (BASE / fill, group / fill)
        } else {
            (BASE, group)
        };
        let shifted = unscaled.checked_mul(factor).and_then(|shifted| shifted.checked_add(digits));
        unscaled = shifted.ok_or_else(too_long)?;
    }
    let wanted = i64::from(scale.min(SCALE_MAX.into()));
    if unscaled == 0 {
        return scaled(0, wanted, false);
    }
    while places < wanted && places >= 0 {
        unscaled = unscaled.checked_mul(10).ok_or_else(too_long)?;
        places += 1;
    }
    let mut decimal = scaled(unscaled, places, negative)?;
    while i64::from(decimal.scale) < wanted {
        decimal.unscaled = decimal.unscaled.checked_mul(10).ok_or_else(too_long)?;
        decimal.scale += 1;
    }
    Ok(decimal)
}

fn too_long() -> SqlError {
    SqlError::new(SqlState::NUMERIC_OUT_OF_RANGE, "numeric value out of range: more than 38 digits")
}
