//! Casts to arrays: of a text in PostgreSQL's array syntax, and of an array, element by element.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, StringViewArray, new_empty_array, new_null_array};
use arrow::compute::cast as arrow_cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, ScalarValue};
use datafusion::error::Result;
use datafusion::logical_expr::{
    Cast, ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};

use super::super::clocks;
use super::super::coerce::{ANY_NUMERIC, bare_string, is_untyped_literal};
use super::super::functions::{cast_value, type_of};
use super::super::quantified::{leaf, with_leaf};
use super::{external, picked, places};
use crate::engine::types::{INTERVAL, TYPE_KEY, castable, datum_at, from_arrow, from_field, to_arrow, to_scalar};
use crate::engine::{ColumnType, Datum};
use crate::value::{Zone, exact_decimal, format_datum, read_list, round_timestamp};
use crate::{SqlError, SqlState};

/// `CAST(inner AS array)` and `CAST(array AS …)`; `None` if Arrow's cast or the cast of non-array values applies.
pub(in crate::engine::query) fn cast_typed(inner: &Expr, from: &DataType, field: &Field) -> Result<Option<Expr>> {
    let refused = || {
        let message = format!("cannot cast type {} to {}", name(from), name(field.data_type()));
        external(SqlError::new(SqlState::CANNOT_COERCE, message))
    };
    let element = match (leaf_field(field.data_type()), leaf(from)) {
        (None, None) => return Ok(None),
        (None, Some(_)) if field.data_type().is_string() => return Ok(None),
        (Some(element), found) if found.is_some() || from.is_string() => element,
        _ => return Err(refused()),
    };
    let metadata = element.metadata().get(TYPE_KEY);
    let any_digits = metadata.is_some_and(|name| name == ANY_NUMERIC);
    let digits = metadata.and_then(|name| name.strip_prefix("timestamp(")?.strip_suffix(')')?.parse().ok());
    let to = if any_digits { from_arrow(element.data_type()) } else { from_field(element) };
    let Some(mut to) = to.filter(|to| to_arrow(*to) == *element.data_type() || to.is_text()) else {
        if from.is_string() {
            let message = format!("a cast of text to an array of {}", name(element.data_type()));
            return Err(external(SqlError::unsupported(message)));
        }
        return Ok(None);
    };
    let Some(found) = leaf(from) else {
        let Some(text) = bare_string(inner) else { return Ok(Some(ArrayCast::to(to, digits).of(inner.clone()))) };
        if any_digits {
            to = ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale: digits_of(&text)? };
        }
        let read = ArrayCast::to(to, digits).read(&(Arc::new(StringViewArray::from(vec![text.as_str()])) as ArrayRef));
        return Ok(Some(lit(ScalarValue::try_from_array(&read?, 0)?)));
    };
    // Converts other kinds of Arrow lists to `List`.
    let inner = if matches!(from, DataType::List(_)) {
        inner.clone()
    } else {
        Expr::Cast(Cast::new(Box::new(inner.clone()), with_leaf(from, found)))
    };
    let is_limited = matches!(to, ColumnType::Char(_) | ColumnType::Varchar(_)) || digits.is_some();
    match from_arrow(found) {
        _ if found.is_null() => {}
        Some(of) if !castable(of, to) => return Err(refused()),
        Some(ColumnType::Decimal { .. }) if any_digits => return Ok(Some(inner)),
        Some(of) if of == to && !is_limited => return Ok(Some(inner)),
        Some(ColumnType::SmallInt | ColumnType::Int | ColumnType::BigInt) if any_digits => {
            to = ColumnType::Decimal { precision: ColumnType::PRECISION_MAX, scale: 0 };
        }
        Some(_) => {}
        None if to.is_text() => {}
        None => return Err(refused()),
    }
    Ok(Some(ArrayCast::to(to, digits).of(inner)))
}

/// Parses an untyped string literal beside an array as an array of its type.
pub(in crate::engine::query) fn read_beside(a: &mut Expr, b: &mut Expr, schema: &DFSchema) -> Result<()> {
    let (side, other) = if is_untyped_literal(a) { (a, &*b) } else { (b, &*a) };
    if !is_untyped_literal(side) {
        return Ok(());
    }
    let array = type_of(other, schema).ok().filter(|of| leaf(of).is_some());
    if let Some(array) = array
        && let Some(read) = cast_typed(side, &DataType::Utf8View, &Field::new("", array, true))?
    {
        *side = read;
    }
    Ok(())
}

/// An array whose elements are the texts that clients receive. Texts and integers need no conversion.
pub(in crate::engine::query) fn printed(array: &mut Expr, schema: &DFSchema) {
    let Ok(data_type) = type_of(array, schema) else { return };
    let is_printed = |of: &DataType| of.is_string() || of.is_integer() || of.is_null();
    if matches!(data_type, DataType::List(_)) && leaf(&data_type).is_some_and(|of| !is_printed(of)) {
        let inner = std::mem::replace(array, lit(ScalarValue::Null));
        *array = ArrayCast { is_printed: true, ..ArrayCast::to(ColumnType::Text, None) }.of(inner);
    }
}

fn leaf_field(data_type: &DataType) -> Option<&Field> {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            Some(leaf_field(element.data_type()).unwrap_or(element))
        }
        _ => None,
    }
}

fn name(data_type: &DataType) -> String {
    match leaf(data_type) {
        Some(element) => format!("{}[]", name(element)),
        None if *data_type == INTERVAL => "interval".to_owned(),
        None => from_arrow(data_type).map_or_else(|| data_type.to_string(), |of| of.to_string()),
    }
}

/// The largest number of fractional digits of an element in an array's text.
fn digits_of(text: &str) -> Result<u8> {
    let (elements, _) = read_list(text).map_err(external)?;
    let scale = |element: String| match exact_decimal(&element) {
        Some(Datum::Decimal { scale, .. }) => Some(scale),
        _ => None,
    };
    Ok(elements.into_iter().flatten().filter_map(scale).max().unwrap_or(0))
}

/// `CAST(array AS to[])`, of an array or of its text.
#[derive(Debug, PartialEq, Eq, Hash)]
struct ArrayCast {
    to: ColumnType,
    /// Fractional digits of a timestamp's seconds.
    digits: Option<u8>,
    /// Whether the elements become the texts that clients receive: a cast of a boolean gives another text.
    is_printed: bool,
    /// The zone of timestamps with time zone.
    zone: Zone,
    signature: Signature,
}

impl ArrayCast {
    fn to(to: ColumnType, digits: Option<u8>) -> Self {
        let signature = Signature::any(1, Volatility::Immutable);
        Self { to, digits, is_printed: false, zone: clocks::zone(), signature }
    }

    fn of(self, inner: Expr) -> Expr {
        ScalarUDF::from(self).call(vec![inner])
    }

    fn element(&self, datum: Datum) -> Result<ScalarValue> {
        let datum = if self.is_printed {
            format_datum(&datum, self.zone).map_or(Datum::Null, Datum::Text)
        } else {
            match (cast_value(datum, self.to, self.zone)?, self.digits) {
                (Datum::Timestamp(moment), Some(digits)) => Datum::Timestamp(round_timestamp(moment, digits)),
                (Datum::Timestamptz(moment), Some(digits)) => Datum::Timestamptz(round_timestamp(moment, digits)),
                (datum, _) => datum,
            }
        };
        to_scalar(&datum, self.to, self.zone).map_err(external)
    }

    fn elements(&self, data: impl Iterator<Item = Result<Datum>>) -> Result<ArrayRef> {
        let scalars = data.map(|datum| self.element(datum?)).collect::<Result<Vec<_>>>()?;
        if scalars.is_empty() {
            return Ok(new_empty_array(&to_arrow(self.to)));
        }
        ScalarValue::iter_to_array(scalars)
    }

    /// Parses texts as arrays.
    fn read(&self, texts: &ArrayRef) -> Result<ArrayRef> {
        let texts = arrow_cast(texts, &DataType::Utf8View)?;
        let (mut data, mut rows) = (Vec::new(), Vec::new());
        for text in texts.as_string_view() {
            let Some(text) = text else {
                rows.push(None);
                continue;
            };
            let (elements, dimensions) = read_list(text).map_err(external)?;
            if dimensions > 1 && !elements.is_empty() {
                let message = "a cast to an array from a text of several dimensions";
                return Err(external(SqlError::unsupported(message).with_hint("Write ARRAY[[1, 2], [3, 4]].")));
            }
            let first = data.len() as u64;
            data.extend(elements.into_iter().map(|element| element.map_or(Datum::Null, Datum::Text)));
            rows.push(Some((first..data.len() as u64).collect()));
        }
        let values = self.elements(data.into_iter().map(Ok))?;
        Ok(Arc::new(picked(&values, rows.into_iter())?))
    }

    fn cast(&self, array: &ArrayRef) -> Result<ArrayRef> {
        match array.data_type() {
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                // Only elements that belong to a row are cast.
                let seen = |row: usize| lists.is_valid(row).then(|| places(lists, row).collect());
                let (_, offsets, values, nulls) = picked(lists.values(), (0..lists.len()).map(seen))?.into_parts();
                let values = self.cast(&values)?;
                let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
                Ok(Arc::new(ListArray::try_new(field, offsets, values, nulls)?))
            }
            DataType::Null => Ok(new_null_array(&to_arrow(self.to), array.len())),
            _ => self.elements((0..array.len()).map(|row| datum_at(array, row, self.zone).map_err(external))),
        }
    }
}

impl ScalarUDFImpl for ArrayCast {
    fn name(&self) -> &'static str {
        if self.is_printed { "printed_array" } else { "cast_array" }
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(format!("CAST({} AS {}[])", arguments[0].schema_name(), self.to))
    }

    fn display_name(&self, arguments: &[Expr]) -> Result<String> {
        self.schema_name(arguments)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        let to = to_arrow(self.to);
        Ok(if leaf(&arguments[0]).is_some() { with_leaf(&arguments[0], &to) } else { DataType::new_list(to, true) })
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let convert = |of: &ArrayRef| match of.data_type() {
            DataType::List(_) => self.cast(of),
            DataType::Null => Ok(new_null_array(arguments.return_field.data_type(), of.len())),
            _ => self.read(of),
        };
        Ok(match &arguments.args[0] {
            ColumnarValue::Array(array) => ColumnarValue::Array(convert(array)?),
            ColumnarValue::Scalar(scalar) => {
                ColumnarValue::Scalar(ScalarValue::try_from_array(&convert(&scalar.to_array()?)?, 0)?)
            }
        })
    }
}
