//! The columns of a CSV file with a header line, and the types that hold their values without loss.
//!
//! A column has a type if formatting each parsed value gives back the text in the file; otherwise it is TEXT, as for
//! `007`, `+5` and `2026-01-01 10:00Z`. Three differences are allowed: `true` and `false` come back as `t` and `f`; a
//! timestamp's `T` as a blank, without trailing zeros; and numbers with exponents, or with varying counts of decimals,
//! in the notation of DOUBLE PRECISION.

use std::io::{self, ErrorKind, Read};

use super::CopyFormat;
use super::reader::{Fields, LineReader};
use crate::engine::scalar::has_digits;
use crate::engine::{ColumnType, Datum};
use crate::value::{Zone, format_datum, parse_datum};

/// Bytes per read.
const PIECE_BYTES: usize = 256 * 1024;

/// The names in the header line.
///
/// # Errors
/// Errors of the file; [`ErrorKind::InvalidData`] if it is not CSV.
pub(crate) fn csv_names(source: impl Read) -> io::Result<Vec<String>> {
    let header = Lines::of(source).next()?;
    let missing = || io::Error::new(ErrorKind::InvalidData, "the file is empty; its first line must name the columns");
    let mut names: Vec<String> = header.ok_or_else(missing)?.into_iter().map(Option::unwrap_or_default).collect();
    if let Some(first) = names.first_mut()
        && let Some(rest) = first.strip_prefix('\u{feff}')
    {
        *first = rest.to_owned();
    }
    Ok(names)
}

/// A type for each column that fits all lines of the file.
///
/// # Errors
/// As [`csv_names`].
pub(crate) fn csv_types(source: impl Read) -> io::Result<Vec<ColumnType>> {
    let mut lines = Lines::of(source);
    let mut guesses: Vec<Guess> = lines.next()?.into_iter().flatten().map(|_| Guess::new()).collect();
    while let Some(fields) = lines.next()? {
        // A line with more or fewer fields is left to COPY, which reports its position.
        for (guess, field) in guesses.iter_mut().zip(fields) {
            if let Some(text) = field {
                guess.see(&text);
            }
        }
    }
    Ok(guesses.iter().map(Guess::column_type).collect())
}

/// The lines of a file, as COPY reads them.
struct Lines<R> {
    source: R,
    reader: LineReader,
    ended: bool,
}

impl<R: Read> Lines<R> {
    fn of(source: R) -> Self {
        let format =
            CopyFormat { csv: true, header: false, delimiter: b',', null: String::new(), quote: b'"', escape: b'"' };
        Self { source, reader: LineReader::new(format), ended: false }
    }

    fn next(&mut self) -> io::Result<Option<Fields>> {
        loop {
            let line = self.reader.next(self.ended).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if line.is_some() || self.ended {
                return Ok(line);
            }
            let mut piece = vec![0; PIECE_BYTES];
            let length = self.source.read(&mut piece)?;
            self.ended = length == 0;
            self.reader.push(&piece[..length]);
        }
    }
}

/// The types that a column may still have.
struct Guess {
    /// The types that fit all texts so far, the preferred one first.
    possible: Vec<ColumnType>,
    /// The number of decimals, equal in all numbers so far.
    scale: Option<u8>,
    seen: bool,
}

impl Guess {
    fn new() -> Self {
        use ColumnType as T;
        let possible = vec![T::Boolean, T::BigInt, decimal(0), T::Double, T::Date, T::Timestamp];
        Self { possible, scale: None, seen: false }
    }

    fn see(&mut self, text: &str) {
        self.seen = true;
        let scale = &mut self.scale;
        self.possible.retain(|to| match to {
            ColumnType::Boolean => text.eq_ignore_ascii_case("true") || text.eq_ignore_ascii_case("false"),
            ColumnType::Decimal { .. } => {
                decimals(text).is_some_and(|decimals| *scale.get_or_insert(decimals) == decimals)
            }
            ColumnType::Double => is_double(text),
            ColumnType::Timestamp => is_timestamp(text),
            to => written(text, *to).is_some_and(|written| written == text),
        });
    }

    fn column_type(&self) -> ColumnType {
        match self.possible.first() {
            Some(ColumnType::Decimal { .. }) => decimal(self.scale.unwrap_or(0)),
            Some(known) if self.seen => *known,
            _ => ColumnType::Text,
        }
    }
}

fn decimal(scale: u8) -> ColumnType {
    ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale }
}

/// A text, parsed as a type and formatted again.
fn written(text: &str, to: ColumnType) -> Option<String> {
    parse_datum(text, to, Zone::UTC).ok().and_then(|datum| format_datum(&datum, Zone::UTC))
}

/// How many decimals a number has, if formatting it as a decimal gives the same text.
fn decimals(text: &str) -> Option<u8> {
    let datum = parse_datum(text, decimal(0), Zone::UTC).ok()?;
    let is_same = format_datum(&datum, Zone::UTC).is_some_and(|written| written == text);
    match datum {
        Datum::Decimal { unscaled, scale } if is_same && has_digits(unscaled) => Some(scale),
        _ => None,
    }
}

fn is_double(text: &str) -> bool {
    let written = written(text, ColumnType::Double);
    written.is_some_and(|written| written == text || number(text).is_some_and(|of| number(&written) == Some(of)))
}

fn is_timestamp(text: &str) -> bool {
    let mut plain = text.replacen('T', " ", 1);
    if plain.contains('.') {
        plain.truncate(plain.trim_end_matches('0').trim_end_matches('.').len());
    }
    written(text, ColumnType::Timestamp).is_some_and(|written| written == plain)
}

/// A number's sign, its digits without leading and trailing zeros, and the power of ten of the last digit. `None` for a
/// notation that the formatter never writes.
fn number(text: &str) -> Option<(bool, String, i64)> {
    let (is_negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let is_plain = (whole == "0" || !whole.starts_with('0')) && !whole.is_empty() && !mantissa.ends_with('.');
    let digits = format!("{whole}{fraction}");
    if !is_plain || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(i64::try_from(fraction.len()).ok()?)?;
    let kept = digits.trim_end_matches('0');
    let exponent = exponent.checked_add(i64::try_from(digits.len() - kept.len()).ok()?)?;
    let kept = kept.trim_start_matches('0').to_owned();
    let exponent = if kept.is_empty() { 0 } else { exponent };
    Some((is_negative, kept, exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn type_of(texts: &[&str]) -> ColumnType {
        let lines: Vec<String> = texts.iter().map(|text| format!("{text},x\n")).collect();
        let file = format!("a,b\n{}", lines.concat());
        csv_types(file.as_bytes()).unwrap()[0]
    }

    #[test]
    fn what_a_type_would_write_otherwise_is_text() {
        for texts in [
            &["007"][..],
            &["1", "007"],
            &["1.5", "01.5"],
            &["+5"],
            &[" 5"],
            &["1.5", "x"],
            &["0.1", "0.12345678901234567890"],
            &["12345678901234567890123456789012345678901234567890"],
            &["nan"],
            &["2026-01-01 10:00:00+02"],
            &["2026-01-01T10:00:00Z"],
            &["2026-01-01 10:00:00.1234567"],
            &["2026-01-01", "2026-01-01 10:00:00"],
            &["2026-1-1"],
            &["t", "f"],
            &["true", "1"],
            &["\"\"", "1"],
            &[""],
            &["\\xdeadbeef"],
        ] {
            assert_eq!(type_of(texts), ColumnType::Text, "{texts:?}");
        }
    }

    #[test]
    fn what_a_type_writes_as_it_stands_has_that_type() {
        for (texts, expected) in [
            (&["1", "-5", "", "0"][..], ColumnType::BigInt),
            (&["12345678901234567890", "1"], decimal(0)),
            (&["1.50", "-0.05", "100.00"], decimal(2)),
            (&["0.12345678901234567890"], decimal(20)),
            (&["1.5", "3", "1e5", "2.50", "-0.0", "-0", "1E-07"], ColumnType::Double),
            (&["NaN", "Infinity", "-Infinity", "0.5"], ColumnType::Double),
            (&["2026-01-01", "0044-03-15 BC", "infinity"], ColumnType::Date),
            (&["2026-01-01T10:00:00", "2026-01-01 10:00:00.120"], ColumnType::Timestamp),
            (&["true", "FALSE", ""], ColumnType::Boolean),
        ] {
            assert_eq!(type_of(texts), expected, "{texts:?}");
        }
    }

    #[test]
    fn names_are_those_of_the_header() {
        assert_eq!(csv_names(&b"\xef\xbb\xbfid,\"a \"\"b\"\"\"\r\n1,2\r\n"[..]).unwrap(), ["id", "a \"b\""]);
        assert_eq!(csv_names(&b""[..]).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
