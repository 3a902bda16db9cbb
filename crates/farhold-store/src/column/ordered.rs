//! Floats as integers that have the order of floats in SQL: NaN is equal to itself and above everything. The two zeros keep their signs and are neighbours,
//! although SQL treats them as equal: a range with one of them as a bound must include both. NaNs with different bits become one value.

/// The integer of a double.
#[must_use]
pub const fn ordered_double(value: f64) -> i64 {
    let bits = if value.is_nan() { f64::NAN.to_bits() & (u64::MAX >> 1) } else { value.to_bits() } as i64;
    // Below zero, a greater magnitude is less.
    bits ^ ((bits >> 63) & i64::MAX)
}

/// The double of an integer.
#[must_use]
pub const fn double_of(ordered: i64) -> f64 {
    f64::from_bits((ordered ^ ((ordered >> 63) & i64::MAX)) as u64)
}

/// The integer of a real.
#[must_use]
pub const fn ordered_real(value: f32) -> i64 {
    let bits = if value.is_nan() { f32::NAN.to_bits() & (u32::MAX >> 1) } else { value.to_bits() } as i32;
    (bits ^ ((bits >> 31) & i32::MAX)) as i64
}

/// The real of an integer.
#[must_use]
pub const fn real_of(ordered: i64) -> f32 {
    let ordered = ordered as i32;
    f32::from_bits((ordered ^ ((ordered >> 31) & i32::MAX)) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_sql() {
        let doubles =
            [f64::NEG_INFINITY, f64::MIN, -1.5, -1e-320, -0.0, 0.0, 1e-320, 2.0, f64::MAX, f64::INFINITY, f64::NAN];
        for pair in doubles.windows(2) {
            assert!(ordered_double(pair[0]) < ordered_double(pair[1]), "{pair:?}");
            assert!(ordered_real(pair[0] as f32) <= ordered_real(pair[1] as f32), "{pair:?}");
        }
        for value in doubles {
            assert_eq!(double_of(ordered_double(value)).to_bits(), value.to_bits());
            assert_eq!(real_of(ordered_real(value as f32)).to_bits(), (value as f32).to_bits());
        }
        assert_eq!(ordered_double(-f64::NAN), ordered_double(f64::NAN));
        assert_eq!(ordered_double(-0.0) + 1, ordered_double(0.0));
    }
}
