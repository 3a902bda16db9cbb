//! Floats as text: the shortest digits that parse to the same value, as in PostgreSQL.
//!
//! PostgreSQL (Ryu) and Rust write the fewest digits that parse to the same value. A number halfway between two floats
//! parses to the one whose mantissa is even. Rust writes such a number if it is shorter (2e23), PostgreSQL never does
//! (1.9999999999999998e+23): other parsers may round it to the other float.
//!
//! If a float is halfway between two equally short numbers, PostgreSQL writes the even one and Rust the upper one
//! (`131072.125::real` is 131072.12).

use super::integer::put_padded;

/// Writes a `real` with the fewest digits that parse to the same value.
pub(crate) fn put_float4(value: f32, out: &mut Vec<u8>) {
    put_float(f64::from(value), &scientific_f32(value), 6, out);
}

/// Writes a `double precision` with the fewest digits that parse to the same value.
pub(crate) fn put_float8(value: f64, out: &mut Vec<u8>) {
    put_float(value, &scientific_f64(value), 15, out);
}

/// Writes a float from its shortest digits in `scientific` notation, `1.25e-7`. PostgreSQL uses plain notation for
/// exponents from -4 to below `digits`.
fn put_float(value: f64, scientific: &str, digits: i32, out: &mut Vec<u8>) {
    if value.is_nan() {
        return out.extend_from_slice(b"NaN");
    }
    if value.is_infinite() {
        return out.extend_from_slice(if value > 0.0 { b"Infinity" } else { b"-Infinity" });
    }
    let (mantissa, exponent) = scientific.split_once('e').expect("scientific notation");
    let exponent: i32 = exponent.parse().expect("an exponent");
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa), |mantissa| ("-", mantissa));
    out.extend_from_slice(sign.as_bytes());
    let significant = mantissa.bytes().filter(|&byte| byte != b'.');
    if exponent < -4 || exponent >= digits {
        out.extend_from_slice(mantissa.as_bytes());
        out.push(b'e');
        out.push(if exponent < 0 { b'-' } else { b'+' });
        put_padded(i64::from(exponent.abs()), 2, out);
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.extend(std::iter::repeat_n(b'0', exponent.unsigned_abs() as usize - 1));
        out.extend(significant);
    } else {
        let whole = exponent as usize + 1;
        let count = significant.clone().count();
        out.extend(significant.clone().take(whole));
        out.extend(std::iter::repeat_n(b'0', whole.saturating_sub(count)));
        if count > whole {
            out.push(b'.');
            out.extend(significant.skip(whole));
        }
    }
}

/// Parses a float. Rust accepts the same forms as PostgreSQL (NaN, Infinity, exponents), in any case.
pub(super) fn parse_float<F: std::str::FromStr>(text: &str) -> Option<F> {
    text.parse().ok()
}

/// Whether a float is infinite or zero only because the number in `text` is too large or too small.
pub(super) fn is_beyond(value: f64, text: &str) -> bool {
    let mantissa = text.split(['e', 'E']).next().unwrap_or_default();
    (value.is_infinite() && !text.to_ascii_lowercase().contains("inf"))
        || (value == 0.0 && mantissa.bytes().any(|b| matches!(b, b'1'..=b'9')))
}

/// A REAL in scientific notation, `-1.25e-7`.
fn scientific_f32(value: f32) -> String {
    let shortest = format!("{value:e}");
    if value.abs() < HALVES_F32_MIN {
        let rounded = |digits| format!("{value:.digits$e}");
        return even(shortest, TIE_DIGITS_F32_MIN, rounded, |text| text.parse() == Ok(value));
    }
    nearer_than_half(
        shortest,
        f32::MANTISSA_DIGITS,
        |digits| format!("{value:.digits$e}"),
        |text| text.parse() == Ok(value),
    )
}

/// As [`scientific_f32`], for DOUBLE PRECISION.
fn scientific_f64(value: f64) -> String {
    let shortest = format!("{value:e}");
    if value.abs() < HALVES_F64_MIN {
        let rounded = |digits| format!("{value:.digits$e}");
        return even(shortest, TIE_DIGITS_F64_MIN, rounded, |text| text.parse() == Ok(value));
    }
    nearer_than_half(
        shortest,
        f64::MANTISSA_DIGITS,
        |digits| format!("{value:.digits$e}"),
        |text| text.parse() == Ok(value),
    )
}

/// 2^24 and 2^53. Below them, a number halfway between two floats has more digits than a float.
const HALVES_F32_MIN: f32 = 16_777_216.0;
const HALVES_F64_MIN: f64 = 9_007_199_254_740_992.0;

/// The least number of digits with which ties occur. Such a float uses nearly its whole mantissa (more than 2^23 or
/// 2^52, times 1.16). From `HALVES_*_MIN` on there are no ties either.
const TIE_DIGITS_F32_MIN: usize = 8;
const TIE_DIGITS_F64_MIN: usize = 16;

/// More digits than any float needs.
const DIGITS_MAX: usize = 17;

/// As many digits as the shortest; of two equally near numbers, the even one.
fn even(
    shortest: String,
    digits_min: usize,
    rounded: impl Fn(usize) -> String,
    reads_back: impl Fn(&str) -> bool,
) -> String {
    let fraction = fraction_digits(&shortest);
    if fraction + 1 < digits_min {
        return shortest;
    }
    let even = rounded(fraction);
    if even != shortest && reads_back(&even) { even } else { shortest }
}

/// The number of fractional digits.
fn fraction_digits(scientific: &str) -> usize {
    scientific.split_once('.').map_or(0, |(_, fraction)| fraction.bytes().take_while(|byte| *byte != b'e').count())
}

/// The shortest number that is not halfway between floats. Among numbers of equal length it is the nearest. But above a
/// power of two the floats are twice as far apart as below, so it may be the next larger number.
fn nearer_than_half(
    shortest: String,
    mantissa_digits: u32,
    rounded: impl Fn(usize) -> String,
    reads_back: impl Fn(&str) -> bool,
) -> String {
    if !is_halfway(&shortest, mantissa_digits) {
        return shortest;
    }
    let is_nearer = |text: &String| !is_halfway(text, mantissa_digits) && reads_back(text);
    let candidates = (fraction_digits(&shortest)..DIGITS_MAX)
        .map(rounded)
        .flat_map(|nearest| [next(&nearest), Some(nearest)].into_iter().rev());
    candidates.flatten().find(is_nearer).unwrap_or(shortest)
}

/// Whether a number that parses to a float is halfway to the next float, that is, has one binary digit more than floats
/// have.
fn is_halfway(scientific: &str, mantissa_digits: u32) -> bool {
    let Some((digits, power)) = as_integer(scientific) else { return false };
    let Some(odd) = 5_u128.checked_pow(power).and_then(|fives| digits.checked_mul(fives)) else { return false };
    odd != 0 && u128::BITS - odd.leading_zeros() - odd.trailing_zeros() == mantissa_digits + 1
}

/// `12.5e3` as 125 and the power of ten of its last digit; `None` if that is negative.
fn as_integer(scientific: &str) -> Option<(u128, u32)> {
    let (mantissa, exponent) = scientific.trim_start_matches('-').split_once('e')?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let power = exponent.parse::<i32>().ok()? - i32::try_from(fraction.len()).ok()?;
    Some((format!("{whole}{fraction}").parse().ok()?, u32::try_from(power).ok()?))
}

/// The next number with the same number of digits, away from zero; `None` if all are nines.
fn next(scientific: &str) -> Option<String> {
    let (mantissa, exponent) = scientific.split_once('e')?;
    let last = mantissa.rfind(|c: char| matches!(c, '0'..='8'))?;
    let mut digits = mantissa.as_bytes().to_vec();
    digits[last] += 1;
    digits[last + 1..].iter_mut().filter(|digit| **digit == b'9').for_each(|digit| *digit = b'0');
    Some(format!("{}e{exponent}", String::from_utf8(digits).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of PostgreSQL 15.
    #[test]
    fn digits_are_those_of_postgresql() {
        for (value, expected) in [
            (50_331_648.0_f32, "5.0331648e7"),
            (-50_331_648.0, "-5.0331648e7"),
            (16_777_216.0, "1.6777216e7"),
            (33_554_432.0, "3.3554432e7"),
            (8_388_608.0, "8.388608e6"),
            (9_007_199_254_740_992.0, "9.007199e15"),
            // Powers of two.
            (154_742_504_910_672_534_362_390_528.0, "1.5474251e26"),
            (1_237_940_039_285_380_274_899_124_224.0, "1.2379401e27"),
            (f32::MAX, "3.4028235e38"),
            (1e-45, "1e-45"),
            // Decimal ties.
            (131_072.0 + 0.125, "1.3107212e5"),
            (131_072.0 + 0.375, "1.3107238e5"),
            (-16_384.0 - 0.0625, "-1.6384062e4"),
            (257.0 / 256.0, "1.0039062e0"),
            (0.0, "0e0"),
        ] {
            assert_eq!(scientific_f32(value), expected);
        }
        for (value, expected) in [
            (2e23_f64, "1.9999999999999998e23"),
            (-1e23, "-9.999999999999999e22"),
            (9_007_199_254_740_992.0, "9.007199254740992e15"),
            (1e22, "1e22"),
            (5e-324, "5e-324"),
            (562_949_953_421_313.0 + 0.25, "5.629499534213132e14"),
            (562_949_953_421_313.0 + 0.75, "5.629499534213138e14"),
            (f64::MAX, "1.7976931348623157e308"),
        ] {
            assert_eq!(scientific_f64(value), expected);
        }
        assert_eq!(scientific_f64(f64::INFINITY), "inf");
    }
}
