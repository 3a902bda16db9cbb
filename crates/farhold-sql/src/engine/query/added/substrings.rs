//! Substrings of bytes, and of a text by a pattern.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, StringViewArray};
use arrow::datatypes::{DataType, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

use super::super::functions::null_of;
use super::super::regexes::Compiled;
use super::{external, not_taken, on_arrays};
use crate::{SqlError, SqlState};

/// DataFusion's function over a text and numbers: `substr`, or `substring`, which also accepts a pattern.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Substring {
    pub inner: Arc<ScalarUDF>,
    pub takes_patterns: bool,
    pub signature: Signature,
}

impl ScalarUDFImpl for Substring {
    fn name(&self) -> &'static str {
        if self.takes_patterns { "substring" } else { "substr" }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, arguments: &[DataType]) -> Result<Vec<DataType>> {
        let is_text = |argument: &DataType| argument.is_string() || argument.is_null();
        // An untyped string literal is converted to a number, and a text refused, before the function is called.
        let is_place = |argument: &DataType| is_text(argument) || argument.is_integer();
        match arguments {
            [text, patterns @ ..]
                if self.takes_patterns
                    && is_text(text)
                    && (1..=2).contains(&patterns.len())
                    && patterns.iter().all(DataType::is_string) =>
            {
                Ok(vec![DataType::Utf8View; arguments.len()])
            }
            [of, places @ ..] if !places.is_empty() && places.len() <= 2 && places.iter().all(is_place) => {
                let of = match of {
                    bytes if bytes.is_binary() => DataType::Binary,
                    text if text.is_string() => text.clone(),
                    DataType::Null => DataType::Utf8View,
                    _ => return Err(not_taken(self.name())),
                };
                Ok(std::iter::once(of).chain(places.iter().map(|_| DataType::Int64)).collect())
            }
            _ => Err(not_taken(self.name())),
        }
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        if arguments.len() == 3 && arguments[1].is_string() {
            let error = SqlError::unsupported("substring with a pattern and an escape");
            return Err(DataFusionError::External(Box::new(error)));
        }
        Ok(arguments[0].clone())
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if let Some(null) = null_of(&arguments)? {
            return Ok(null);
        }
        if arguments.args[0].data_type().is_binary() {
            return on_arrays(&arguments, parts_of_bytes);
        }
        if arguments.args[1].data_type().is_string() {
            return on_arrays(&arguments, parts_by_pattern);
        }
        self.inner.invoke_with_args(arguments)
    }
}

/// The match of a pattern's first group, or of the whole pattern if it has none. A group that does not take part in the
/// match gives NULL.
fn parts_by_pattern(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let (texts, patterns) = (arguments[0].as_string_view(), arguments[1].as_string_view());
    let mut compiled = Compiled::default();
    let mut part = |row: usize| -> Result<Option<&str>> {
        if texts.is_null(row) || patterns.is_null(row) {
            return Ok(None);
        }
        let (text, pattern) = (texts.value(row), patterns.value(row));
        let regex = compiled.get((pattern, "")).map_err(|error| DataFusionError::External(Box::new(error)))?;
        let found = match regex.captures_len() {
            1 => regex.find(text),
            _ => regex.captures(text).and_then(|groups| groups.get(1)),
        };
        Ok(found.map(|found| found.as_str()))
    };
    Ok(Arc::new((0..texts.len()).map(&mut part).collect::<Result<StringViewArray>>()?))
}

/// The bytes from a position on, which counts from 1, optionally limited to a length.
fn parts_of_bytes(arguments: &[ArrayRef]) -> Result<ArrayRef> {
    let bytes = arguments[0].as_binary::<i32>();
    let number = |n: usize, row: usize| arguments[n].as_primitive::<Int64Type>().value(row);
    let part = |row: usize| -> Result<Option<&[u8]>> {
        if arguments.iter().any(|argument| argument.is_null(row)) {
            return Ok(None);
        }
        let (bytes, from) = (bytes.value(row), number(1, row));
        let end = match arguments.len() {
            2 => i64::MAX,
            _ if number(2, row) < 0 => {
                return Err(external(SqlState::SUBSTRING_ERROR, "negative substring length not allowed"));
            }
            _ => from.saturating_add(number(2, row)),
        };
        let place = |place: i64| usize::try_from(place.saturating_sub(1)).unwrap_or(0).min(bytes.len());
        Ok(Some(&bytes[place(from)..place(end).max(place(from))]))
    };
    Ok(Arc::new((0..bytes.len()).map(part).collect::<Result<BinaryArray>>()?))
}
