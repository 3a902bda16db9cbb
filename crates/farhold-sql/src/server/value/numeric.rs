//! The text and binary formats of decimals.
//!
//! ```text
//! binary:  count:i16 | weight:i16 | sign:u16 | scale:u16 | count digits to the base of 10 000, u16 each
//! value:   sign * sum of digit[i] * 10000^(weight - i), shown with `scale` places
//! ```

/// The largest scale of a decimal with 38 digits.
const MAX_SCALE: u8 = 38;
const NEGATIVE: u16 = 0x4000;
const BASE: u128 = 10_000;
const BASE_DIGITS: usize = 4;

/// A decimal: `unscaled / 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    /// The digits, as an integer.
    pub unscaled: i128,
    /// The number of fractional digits.
    pub scale: u8,
}

/// Why bytes or text are not a decimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumericError {
    /// The format is wrong.
    Malformed,
    /// It has more than 38 digits.
    OutOfRange,
}

/// Writes the text format.
pub fn put_text(decimal: Decimal, out: &mut Vec<u8>) {
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

/// `unscaled / 10^scale`, where the scale may be negative.
fn scaled(mut unscaled: u128, scale: i64, negative: bool) -> Result<Decimal, NumericError> {
    if unscaled == 0 {
        let scale = u8::try_from(scale.clamp(0, i64::from(MAX_SCALE))).expect("clamped");
        return Ok(Decimal { unscaled: 0, scale });
    }
    let mut scale = scale;
    if scale < 0 {
        let factor = u32::try_from(-scale).ok().and_then(|power| 10_u128.checked_pow(power));
        unscaled = factor.and_then(|factor| unscaled.checked_mul(factor)).ok_or(NumericError::OutOfRange)?;
        scale = 0;
    }
    while scale > i64::from(MAX_SCALE) {
        // Decimals beyond the largest scale are dropped if they are zeros.
        if !unscaled.is_multiple_of(10) {
            return Err(NumericError::OutOfRange);
        }
        unscaled /= 10;
        scale -= 1;
    }
    let unscaled = i128::try_from(unscaled).map_err(|_| NumericError::OutOfRange)?;
    Ok(Decimal { unscaled: if negative { -unscaled } else { unscaled }, scale: scale as u8 })
}

/// Writes the binary format.
pub fn put_binary(decimal: Decimal, out: &mut Vec<u8>) {
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
pub fn parse_binary(bytes: &[u8]) -> Result<Decimal, NumericError> {
    let (words, rest) = bytes.as_chunks::<2>();
    let mut words = words.iter().map(|&word| u16::from_be_bytes(word));
    let mut word = || words.next().ok_or(NumericError::Malformed);
    let (count, weight, sign, scale) = (word()?, word()?.cast_signed(), word()?, word()?);
    if !rest.is_empty() || bytes.len() != 8 + 2 * usize::from(count) {
        return Err(NumericError::Malformed);
    }
    let negative = match sign {
        0 => false,
        NEGATIVE => true,
        0xc000 | 0xd000 | 0xf000 => return Err(NumericError::OutOfRange),
        _ => return Err(NumericError::Malformed),
    };
    // The last group counts units of 10000^(weight - count + 1). The digits beyond `scale` are padding zeros. They are
    // left out while the digits are accumulated, because with them a decimal of 38 digits might not fit.
    let mut places = (i64::from(count) - 1 - i64::from(weight)) * BASE_DIGITS as i64;
    let surplus = u32::try_from(places - i64::from(scale)).unwrap_or(0).min(BASE_DIGITS as u32 - 1);
    let mut unscaled = 0_u128;
    for index in 0..count {
        let group = u128::from(word()?);
        if group >= BASE {
            return Err(NumericError::Malformed);
        }
        let fill = 10_u128.pow(surplus);
        let (factor, digits) = if index + 1 == count && group % fill == 0 {
            places -= i64::from(surplus);
            (BASE / fill, group / fill)
        } else {
            (BASE, group)
        };
        let shifted = unscaled.checked_mul(factor).and_then(|shifted| shifted.checked_add(digits));
        unscaled = shifted.ok_or(NumericError::OutOfRange)?;
    }
    let wanted = i64::from(scale.min(MAX_SCALE.into()));
    if unscaled == 0 {
        return scaled(0, wanted, false);
    }
    while places < wanted && places >= 0 {
        unscaled = unscaled.checked_mul(10).ok_or(NumericError::OutOfRange)?;
        places += 1;
    }
    let mut decimal = scaled(unscaled, places, negative)?;
    while i64::from(decimal.scale) < wanted {
        decimal.unscaled = decimal.unscaled.checked_mul(10).ok_or(NumericError::OutOfRange)?;
        decimal.scale += 1;
    }
    Ok(decimal)
}
