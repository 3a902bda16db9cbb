//! `chr`, `encode`, `decode` and `strpos` as in PostgreSQL.
//!
//! DataFusion's `chr` makes the null character, which no text may contain; its base64 has neither padding nor lines,
//! and it lacks the format `escape`. If the needle differs from row to row, its `strpos` takes a number of steps that
//! is the product of both lengths.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use datafusion::common::ScalarValue;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::planner::{ExprPlanner, PlannerResult};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::prelude::SessionContext;

use super::bounded::{HEADER_BYTES, Pool, ask_for_room, check_value, some_text};
use super::checked::{self, Check};
use crate::value::{decode_escape, decode_hex, put_hex, written};
use crate::{SqlError, SqlState};

/// Replaces DataFusion's functions.
pub(super) fn register(context: &SessionContext) {
    checked::register(context, &["chr"], &Characters);
    checked::register(context, &["strpos"], &Position);
    for coding in [Coding::Encode, Coding::Decode] {
        let signature = Signature::user_defined(Volatility::Immutable);
        let pool = Pool(Arc::clone(&context.runtime_env().memory_pool));
        context.register_udf(ScalarUDF::from(Code { coding, pool, signature }));
    }
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

fn invalid(message: impl Into<String>) -> SqlError {
    SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

#[derive(Clone, Debug)]
struct Characters;

impl Check for Characters {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        for argument in &arguments.args {
            let codes = argument.to_array(rows)?;
            codes.as_primitive::<Int64Type>().iter().flatten().try_for_each(check_character).map_err(external)?;
        }
        inner.invoke_with_args(arguments)
    }
}

fn check_character(code: i64) -> Result<(), SqlError> {
    let limit = |message: String| Err(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message));
    match code {
        ..0 => Err(invalid("character number must be positive")),
        0 => limit("null character not permitted".to_owned()),
        0xD800..=0xDFFF => limit(format!("requested character not valid for encoding: {code}")),
        0x11_0000.. => limit(format!("requested character too large for encoding: {code}")),
        _ => Ok(()),
    }
}

/// The position of a text in another, in characters from 1. The standard library's search takes a number of steps that
/// is the sum of both lengths.
#[derive(Clone, Debug)]
struct Position;

impl Check for Position {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        let [text, part] = arguments.args.as_slice() else { return inner.invoke_with_args(arguments) };
        if matches!((text, part), (ColumnarValue::Array(_), ColumnarValue::Scalar(_))) {
            // A constant needle, for which DataFusion prepares one search.
            return inner.invoke_with_args(arguments);
        }
        let position = |text: &str, part: &str| text.find(part).map_or(0, |at| text[..at].chars().count() as i64 + 1);
        let both = |row: usize| some_text(text, row).zip(some_text(part, row));
        let positions: Int64Array = (0..rows).map(|row| both(row).map(|(text, part)| position(text, part))).collect();
        let positions = arrow::compute::cast(&positions, arguments.return_type())?;
        Ok(match (text, part) {
            (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&positions, 0)?)
            }
            _ => ColumnarValue::Array(positions),
        })
    }
}

/// Plans `POSITION(part IN text)` and `SUBSTRING(text FROM place)` with the registered functions: DataFusion's planner
/// uses its own.
#[derive(Debug)]
pub(super) struct Words {
    position: Arc<ScalarUDF>,
    substring: Arc<ScalarUDF>,
}

impl Words {
    /// The planner, if the functions exist.
    pub(super) fn new(context: &SessionContext) -> Option<Self> {
        let known = |name: &str| context.state().scalar_functions().get(name).cloned();
        Some(Self { position: known("strpos")?, substring: known("substring")? })
    }
}

impl ExprPlanner for Words {
    fn plan_position(&self, arguments: Vec<Expr>) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(PlannerResult::Planned(self.position.call(arguments)))
    }

    fn plan_substring(&self, arguments: Vec<Expr>) -> Result<PlannerResult<Vec<Expr>>> {
        Ok(PlannerResult::Planned(self.substring.call(arguments)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Coding {
    Encode,
    Decode,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Code {
    coding: Coding,
    pool: Pool,
    signature: Signature,
}

impl ScalarUDFImpl for Code {
    fn name(&self) -> &'static str {
        match self.coding {
            Coding::Encode => "encode",
            Coding::Decode => "decode",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |argument: &DataType| argument.is_string() || argument.is_null();
        match (self.coding, arguments) {
            (Coding::Encode, [of, format]) if (of.is_binary() || is_text(of)) && is_text(format) => {
                Ok(vec![DataType::Binary, DataType::Utf8View])
            }
            (Coding::Decode, [of, format]) if is_text(of) && is_text(format) => {
                Ok(vec![DataType::Utf8View, DataType::Utf8View])
            }
            _ => {
                let kind = if self.coding == Coding::Encode { "bytea" } else { "text" };
                let message = format!("function {} takes a {kind} and a text", self.name());
                Err(external(SqlError::new(SqlState::UNDEFINED_FUNCTION, message)))
            }
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(match self.coding {
            Coding::Encode => DataType::Utf8View,
            Coding::Decode => DataType::Binary,
        })
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let alike = arguments.args.iter().all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = if alike { 1 } else { arguments.number_rows };
        let [of, format] = arguments.args.as_slice() else {
            return Err(DataFusionError::Internal(format!("{} takes two arguments", self.name())));
        };
        let (of, formats) = (of.to_array(rows)?, format.to_array(rows)?);
        let formats = formats.as_string_view();
        let is_known = |row: usize| of.is_valid(row) && formats.is_valid(row);
        let format = |row: usize| is_known(row).then(|| Format::named(formats.value(row)));
        let coded: ArrayRef = match self.coding {
            Coding::Encode => {
                let of = of.as_binary::<i32>();
                let mut all = 0_u64;
                for row in 0..rows {
                    if let Some(format) = format(row).transpose().map_err(external)? {
                        let bytes = format.encoded_bytes(of.value(row));
                        check_value(bytes.saturating_add(HEADER_BYTES))?;
                        all = all.saturating_add(bytes);
                    }
                }
                ask_for_room(&self.pool.0, self.name(), all)?;
                let encoded = |row| -> Result<Option<String>, SqlError> {
                    Ok(format(row).transpose()?.map(|format| format.encode(of.value(row))))
                };
                Arc::new((0..rows).map(encoded).collect::<Result<StringViewArray, SqlError>>().map_err(external)?)
            }
            Coding::Decode => {
                let of = of.as_string_view();
                let decoded = |row| -> Result<Option<Vec<u8>>, SqlError> {
                    format(row).transpose()?.map(|format| format.decode(of.value(row))).transpose()
                };
                Arc::new((0..rows).map(decoded).collect::<Result<BinaryArray, SqlError>>().map_err(external)?)
            }
        };
        Ok(if alike {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&coded, 0)?)
        } else {
            ColumnarValue::Array(coded)
        })
    }
}

/// A text format of bytes.
#[derive(Clone, Copy, Debug)]
enum Format {
    Base64,
    Escape,
    Hex,
}

impl Format {
    fn named(name: &str) -> Result<Self, SqlError> {
        match name.to_ascii_lowercase().as_str() {
            "base64" => Ok(Self::Base64),
            "escape" => Ok(Self::Escape),
            "hex" => Ok(Self::Hex),
            _ => Err(invalid(format!("unrecognized encoding: \"{name}\""))),
        }
    }

    /// The length of the result of [`encode`](Self::encode).
    fn encoded_bytes(self, bytes: &[u8]) -> u64 {
        let count = bytes.len() as u64;
        match self {
            Self::Base64 => count.div_ceil(3) * 4 + count / BASE64_LINE_BYTES as u64,
            Self::Escape => bytes.iter().map(|byte| escaped_bytes(*byte)).sum(),
            Self::Hex => count * 2,
        }
    }

    fn encode(self, bytes: &[u8]) -> String {
        let room = usize::try_from(self.encoded_bytes(bytes)).unwrap_or(0);
        match self {
            Self::Base64 => {
                let mut text = String::with_capacity(room);
                // Lines of 76 characters; PostgreSQL also ends the last line, if it is full.
                for line in bytes.chunks(BASE64_LINE_BYTES) {
                    BASE64_STANDARD.encode_string(line, &mut text);
                    if line.len() == BASE64_LINE_BYTES {
                        text.push('\n');
                    }
                }
                text
            }
            Self::Escape => {
                let mut text = String::with_capacity(room);
                for &byte in bytes {
                    match byte {
                        b'\\' => text.push_str("\\\\"),
                        0 | 128.. => {
                            let _ = write!(text, "\\{byte:03o}");
                        }
                        byte => text.push(char::from(byte)),
                    }
                }
                text
            }
            Self::Hex => written(|out| put_hex(bytes, out)),
        }
    }

    fn decode(self, text: &str) -> Result<Vec<u8>, SqlError> {
        match self {
            Self::Base64 => decode_base64(text),
            Self::Escape => decode_escape(text.as_bytes()),
            Self::Hex => decode_hex(text),
        }
    }
}

fn escaped_bytes(byte: u8) -> u64 {
    match byte {
        b'\\' => 2,
        0 | 128.. => 4,
        _ => 1,
    }
}

/// Input bytes per line of base64.
const BASE64_LINE_BYTES: usize = 57;

fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r')
}

fn decode_base64(text: &str) -> Result<Vec<u8>, SqlError> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut group, mut count) = (0_u32, 0);
    // The number of bytes in the group with the first `=`, and in each later group.
    let mut bytes_of_group = 3;
    for character in text.chars().filter(|character| !is_blank(*character)) {
        let digit = if character == '=' {
            if bytes_of_group == 3 {
                bytes_of_group = match count {
                    2 => 1,
                    3 => 2,
                    _ => return Err(invalid("unexpected \"=\" while decoding base64 sequence")),
                };
            }
            0
        } else {
            let digit = DIGITS.iter().position(|digit| char::from(*digit) == character);
            let symbol = || invalid(format!("invalid symbol \"{character}\" found while decoding base64 sequence"));
            digit.ok_or_else(symbol)? as u32
        };
        group = group << 6 | digit;
        count += 1;
        if count == 4 {
            bytes.extend_from_slice(&group.to_be_bytes()[1..=bytes_of_group]);
            (group, count) = (0, 0);
        }
    }
    if count != 0 {
        let error = invalid("invalid base64 end sequence");
        return Err(error.with_hint("Input data is missing padding, is truncated, or is otherwise corrupted."));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts are those of PostgreSQL 15.
    #[test]
    fn bytes_as_texts_and_back() {
        let line = [0; BASE64_LINE_BYTES];
        let full = format!("{}\n", "A".repeat(76));
        for (format, bytes, text) in [
            (Format::Base64, &b"a"[..], "YQ=="),
            (Format::Base64, b"ab", "YWI="),
            (Format::Base64, b"abc", "YWJj"),
            (Format::Hex, b"", ""),
            (Format::Base64, &line, &full),
            (Format::Hex, b"\x00\xff", "00ff"),
            (Format::Escape, b"a\\\x00\x7f\x80", "a\\\\\\000\x7f\\200"),
        ] {
            assert_eq!(format.encode(bytes), text);
            assert_eq!(format.encoded_bytes(bytes), text.len() as u64);
            assert_eq!(format.decode(text).unwrap(), bytes);
        }
        assert_eq!(Format::Base64.decode("Y W\nI =").unwrap(), b"ab");
        assert_eq!(Format::Hex.decode("DE ad\n").unwrap(), [0xde, 0xad]);
    }

    #[test]
    fn texts_that_are_no_bytes_are_refused() {
        for (format, text, state) in [
            (Format::Base64, "YQ", "22023"),
            (Format::Base64, "Y===", "22023"),
            (Format::Base64, "Y*==", "22023"),
            (Format::Hex, "0g", "22023"),
            (Format::Hex, "0", "22023"),
            (Format::Hex, "0 1", "22023"),
            (Format::Escape, "\\9", "22P02"),
        ] {
            assert_eq!(format.decode(text).unwrap_err().state.code(), state, "{text}");
        }
        assert_eq!(Format::named("BASE64PAD").unwrap_err().state.code(), "22023");
        assert_eq!(check_character(0).unwrap_err().state.code(), "54000");
        assert_eq!(check_character(-1).unwrap_err().state.code(), "22023");
        assert_eq!(check_character(0xD800).unwrap_err().state.code(), "54000");
        assert!(check_character(0x10_FFFF).is_ok() && check_character(0x11_0000).is_err());
    }
}
