//! Bytes as text: `\x` and hex, or the escape format, `a\\b\001`, which is only read.

use crate::{SqlError, SqlState};

/// Writes bytes as `\x` and hex.
pub(crate) fn put_bytea(value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"\\x");
    put_hex(value, out);
}

/// Writes bytes as hex.
pub(crate) fn put_hex(value: &[u8], out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.extend(value.iter().flat_map(|byte| [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]));
}

/// Parses either format.
///
/// # Errors
/// As [`decode_hex`] and [`decode_escape`].
pub(super) fn parse_bytea(text: &str) -> Result<Vec<u8>, SqlError> {
    match text.strip_prefix("\\x") {
        Some(hex) => decode_hex(hex),
        None => decode_escape(text.as_bytes()),
    }
}

/// Parses hex. Blanks may stand between bytes.
///
/// # Errors
/// 22023.
pub(crate) fn decode_hex(text: &str) -> Result<Vec<u8>, SqlError> {
    let invalid = |message: String| SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message);
    let digit = |character: char| {
        character.to_digit(16).ok_or_else(|| invalid(format!("invalid hexadecimal digit: \"{character}\"")))
    };
    let mut bytes = Vec::with_capacity(text.len() / 2);
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        if matches!(character, ' ' | '\t' | '\n' | '\r') {
            continue;
        }
        let high = digit(character)?;
        let low = characters.next();
        let low = low.ok_or_else(|| invalid("invalid hexadecimal data: odd number of digits".to_owned()))?;
        bytes.push((high << 4 | digit(low)?) as u8);
    }
    Ok(bytes)
}

/// Parses the escape format.
///
/// # Errors
/// 22P02.
pub(crate) fn decode_escape(mut text: &[u8]) -> Result<Vec<u8>, SqlError> {
    let mut bytes = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let (byte, rest) = match (first, rest) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', rest @ ..]) => {
                ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), rest)
            }
            (b'\\', [b'\\', rest @ ..]) => (b'\\', rest),
            (b'\\', _) => {
                return Err(SqlError::new(SqlState::INVALID_TEXT, "invalid input syntax for type bytea"));
            }
            (byte, rest) => (*byte, rest),
        };
        bytes.push(byte);
        text = rest;
    }
    Ok(bytes)
}
