//! Functions whose results may be far longer than their arguments, or that may take far more steps.
//!
//! No operator's reservation covers what a function makes of a batch. So before such a function runs, it reserves the
//! bytes of its result in the queries' memory and releases them at once. A result that does not fit is refused (53200).
//! As in PostgreSQL, one value has at most 1 GiB (54000). `||` is an operator of DataFusion; the rule
//! [`Concatenations`] replaces it by a function.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, GenericStringBuilder, OffsetSizeTrait, StringViewBuilder};
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{ScalarValue, internal_err};
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::prelude::SessionContext;

use super::checked::{self, Check};
use super::{folded, regexes};
use crate::{SqlError, SqlState};

/// The size limit of one value, in bytes.
const VALUE_BYTES_MAX: u64 = (1 << 30) - 1;
/// The size of PostgreSQL's header before each value.
pub(super) const HEADER_BYTES: u64 = 4;

/// The length limit of `levenshtein`'s arguments in characters, as in PostgreSQL.
const LEVENSHTEIN_MAX: u64 = 255;

/// Results of a batch up to this size need no reservation: batches of columns are as large.
const BATCH_BYTES_FREE: u64 = 1 << 20;

/// The assumed size of an element of unknown size, in bytes.
const ELEMENT_BYTES: usize = 16;

/// If a replaced text cannot be longer than this, the matches of its pattern are not counted first.
const UNCOUNTED_BYTES_MAX: u64 = 64 << 10;

/// Replaces DataFusion's functions.
pub(super) fn register(context: &SessionContext) {
    let pool = &context.runtime_env().memory_pool;
    for (growth, names) in [
        (Growth::Repeat, &["repeat"][..]),
        (Growth::Pad, &["lpad", "rpad"]),
        (Growth::Replace, &["replace"]),
        (Growth::ReplacePattern, &["regexp_replace"]),
        (Growth::Concat, &["concat", "overlay"]),
        (Growth::ConcatWith, &["concat_ws"]),
        (Growth::Join, &["array_to_string"]),
        (Growth::Elements, &["array_repeat"]),
        (Growth::Resize, &["array_resize"]),
        (Growth::Series, &["range", "generate_series"]),
        (Growth::Split, &["string_to_array"]),
    ] {
        checked::register(context, names, &Bounds { pool: Arc::clone(pool), growth });
    }
    checked::register(context, &["levenshtein"], &Steps);
}

fn external(error: SqlError) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Reserves the bytes of a batch's results in the queries' memory, and releases them.
pub(super) fn ask_for_room(pool: &Arc<dyn MemoryPool>, name: &str, bytes: u64) -> Result<()> {
    folded::check(name, bytes)?;
    if bytes <= BATCH_BYTES_FREE {
        return Ok(());
    }
    let room = MemoryConsumer::new(name).register(pool);
    room.try_grow(usize::try_from(bytes).unwrap_or(usize::MAX))
}

pub(super) fn check_value(bytes: u64) -> Result<()> {
    if bytes > VALUE_BYTES_MAX {
        return Err(external(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "requested length too large")));
    }
    Ok(())
}

/// How the length of a result follows from the arguments.
#[derive(Clone, Copy, Debug)]
enum Growth {
    /// A text, repeated a number of times.
    Repeat,
    /// A text, padded to a number of characters.
    Pad,
    /// A text in which every occurrence of a part is replaced.
    Replace,
    /// A text in which the matches of a pattern are replaced.
    ReplacePattern,
    /// The concatenation of all texts.
    Concat,
    /// The concatenation of all texts but the first, which separates them.
    ConcatWith,
    /// The elements of an array, with a text between them.
    Join,
    /// A value, repeated a number of times.
    Elements,
    /// An array of a given number of elements.
    Resize,
    /// The values of a series.
    Series,
    /// The parts of a text between separators.
    Split,
}

/// Reserves memory for the results.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pool: Arc<dyn MemoryPool>,
    growth: Growth,
}

impl Check for Bounds {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        let mut all = 0_u64;
        let skips_nulls = matches!(self.growth, Growth::Concat | Growth::ConcatWith | Growth::Split);
        for row in 0..rows {
            if !skips_nulls && arguments.args.iter().any(|argument| is_null(argument, row)) {
                continue;
            }
            let bytes = self.growth.bytes(&arguments.args, row)?;
            let taken = match self.growth {
                // PostgreSQL reserves the largest size of each character.
                Growth::Pad => padded(&arguments.args, row).saturating_mul(4),
                _ => bytes,
            };
            check_value(taken.saturating_add(HEADER_BYTES))?;
            all = all.saturating_add(bytes);
        }
        ask_for_room(&self.pool, inner.name(), all)?;
        inner.invoke_with_args(arguments)
    }
}

/// The second argument of functions that repeat or fill.
fn count(arguments: &[ColumnarValue], row: usize) -> u64 {
    arguments.get(1).map_or(0, |count| u64::try_from(number(count, row)).unwrap_or(0))
}

/// The characters of a padded text. With an empty fill a text is only cut.
fn padded(arguments: &[ColumnarValue], row: usize) -> u64 {
    let count = count(arguments, row);
    match arguments {
        [text, _, fill, ..] if size(fill, row).characters == 0 => count.min(size(text, row).characters),
        _ => count,
    }
}

/// Whether a row's argument is NULL.
fn is_null(value: &ColumnarValue, row: usize) -> bool {
    match value {
        ColumnarValue::Scalar(value) => value.is_null(),
        ColumnarValue::Array(array) => array.is_null(row),
    }
}

impl Growth {
    /// An upper bound on the bytes of a row's result.
    fn bytes(self, arguments: &[ColumnarValue], row: usize) -> Result<u64> {
        let at = |n: usize| arguments.get(n).map_or(Size { bytes: 0, characters: 0 }, |value| size(value, row));
        let sum = || arguments.iter().fold(0_u64, |sum, value| sum.saturating_add(bytes(value, row)));
        Ok(match self {
            Self::Repeat => at(0).bytes.saturating_mul(count(arguments, row)),
            Self::Pad => {
                let fill = if arguments.len() > 2 { at(2) } else { Size { bytes: 1, characters: 1 } };
                padded_bytes(at(0), fill, padded(arguments, row))
            }
            Self::Replace => {
                let [text, from, to] = [0_usize, 1, 2].map(|n| arguments.get(n).map_or("", |value| text(value, row)));
                if to.len() <= from.len() {
                    return Ok(text.len() as u64);
                }
                let times = text.matches(from).count() as u64;
                times.saturating_mul((to.len() - from.len()) as u64).saturating_add(text.len() as u64)
            }
            Self::ReplacePattern => replaced_bytes(arguments, row)?,
            Self::Concat => sum(),
            Self::ConcatWith => {
                let between = arguments.len().saturating_sub(2) as u64;
                sum().saturating_add(at(0).bytes.saturating_mul(between))
            }
            Self::Join => {
                let Some(array) = arguments.first().filter(|array| array.data_type().is_list()) else { return Ok(0) };
                let array = scalar(array, row)?;
                let each = at(1).bytes.saturating_add(at(2).bytes);
                leaves(array.to_array()?.as_ref()).saturating_mul(each).saturating_add(array.size() as u64)
            }
            Self::Elements => match arguments.first() {
                Some(element) => element_bytes(&scalar(element, row)?).saturating_mul(count(arguments, row)),
                None => 0,
            },
            Self::Resize => {
                let element = arguments.get(2).map_or(Ok(ScalarValue::Null), |value| scalar(value, row))?;
                element_bytes(&element).saturating_mul(count(arguments, row))
            }
            Self::Series => series_bytes(arguments, row)?,
            Self::Split => split_bytes(arguments, row),
        })
    }
}

/// An upper bound on a row's result of `regexp_replace`.
fn replaced_bytes(arguments: &[ColumnarValue], row: usize) -> Result<u64> {
    let [whole, pattern, replacement] = [0_usize, 1, 2].map(|n| arguments.get(n).map_or("", |value| text(value, row)));
    let is_place = arguments.get(3).is_some_and(|argument| !argument.data_type().is_string());
    let flags = arguments.get(if is_place { 5 } else { 3 }).map_or("", |value| text(value, row));
    let is_all = match arguments.get(4) {
        Some(times) if is_place => number(times, row) == 0,
        _ => !is_place && flags.contains('g'),
    };
    let length = whole.len() as u64;
    // Each reference to a group inserts a part of the match, and all matches together are no longer than the text.
    let groups = replacement.matches('\\').count() as u64;
    let bytes = |times: u64| {
        let put_in = times.saturating_mul(replacement.len() as u64);
        put_in.saturating_add(length.saturating_mul(groups.saturating_add(1)))
    };
    if !is_all {
        return Ok(bytes(1));
    }
    let most = bytes(length.saturating_add(1));
    if most <= UNCOUNTED_BYTES_MAX {
        return Ok(most);
    }
    Ok(bytes(regexes::count(whole, pattern, flags)?))
}

/// An upper bound on a row's result of `range` and `generate_series`.
fn series_bytes(arguments: &[ColumnarValue], row: usize) -> Result<u64> {
    const DAY_NS: u128 = 86_400_000_000_000;
    let (from, to, step) = match arguments {
        [to] => (ScalarValue::Int64(Some(0)), scalar(to, row)?, None),
        [from, to] => (scalar(from, row)?, scalar(to, row)?, None),
        [from, to, step, ..] => (scalar(from, row)?, scalar(to, row)?, Some(scalar(step, row)?)),
        [] => return Ok(0),
    };
    // The distance in some unit, and a lower bound of the step in the same unit.
    let (distance, step) = match (nanoseconds(&from), nanoseconds(&to), step) {
        (Some(from), Some(to), Some(ScalarValue::IntervalMonthDayNano(Some(step)))) => {
            let parts = [i64::from(step.months), i64::from(step.days), step.nanoseconds];
            if parts.iter().any(|part| *part < 0) && parts.iter().any(|part| *part > 0) {
                // A series that changes direction may not end.
                let message = "all parts of the step of a series must have the same sign";
                return Err(external(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)));
            }
            let [months, days, rest] = parts.map(|part| u128::from(part.unsigned_abs()));
            // A day may have 23 hours, and a month 28 days.
            (from.abs_diff(to), months * 28 * DAY_NS + days * (DAY_NS / 24 * 23) + rest)
        }
        (_, _, step) => match (from, to, step.unwrap_or(ScalarValue::Int64(Some(1)))) {
            (ScalarValue::Int64(Some(from)), ScalarValue::Int64(Some(to)), ScalarValue::Int64(Some(step))) => {
                let is_empty = (step > 0 && from > to) || (step < 0 && from < to);
                (if is_empty { 0 } else { u128::from(from.abs_diff(to)) }, u128::from(step.unsigned_abs()))
            }
            _ => return Ok(0),
        },
    };
    if step == 0 {
        // The function reports this error itself.
        return Ok(0);
    }
    Ok(u64::try_from(distance / step + 1).unwrap_or(u64::MAX).saturating_mul(ELEMENT_BYTES as u64))
}

/// An upper bound on a row's result of `string_to_array`. Without a separator each character is a part.
fn split_bytes(arguments: &[ColumnarValue], row: usize) -> u64 {
    let Some(whole) = arguments.first() else { return 0 };
    let size = size(whole, row);
    let parts = match arguments.get(1).map(|separator| some_text(separator, row)) {
        Some(Some("")) => 1,
        Some(Some(separator)) => text(whole, row).matches(separator).count() as u64 + 1,
        _ => size.characters,
    };
    // The parts are appended one by one to an array that is copied as it grows.
    parts.saturating_mul(2 * ELEMENT_BYTES as u64).saturating_add(size.bytes)
}

/// A date or timestamp as nanoseconds since 1970.
fn nanoseconds(value: &ScalarValue) -> Option<i128> {
    let (count, unit_ns) = match value {
        ScalarValue::Date32(Some(days)) => (i64::from(*days), 86_400_000_000_000),
        ScalarValue::Date64(Some(milliseconds)) => (*milliseconds, 1_000_000),
        ScalarValue::TimestampSecond(Some(count), _) => (*count, 1_000_000_000),
        ScalarValue::TimestampMillisecond(Some(count), _) => (*count, 1_000_000),
        ScalarValue::TimestampMicrosecond(Some(count), _) => (*count, 1_000),
        ScalarValue::TimestampNanosecond(Some(count), _) => (*count, 1),
        _ => return None,
    };
    Some(i128::from(count) * unit_ns)
}

/// The size of a value in an array, in bytes.
fn element_bytes(value: &ScalarValue) -> u64 {
    let bytes = match value.data_type().primitive_width() {
        Some(bytes) => bytes,
        None => value.size().saturating_sub(size_of::<ScalarValue>()).max(ELEMENT_BYTES),
    };
    bytes as u64
}

/// The number of elements of an array, including those of nested arrays.
fn leaves(array: &dyn Array) -> u64 {
    let each = |array: ArrayRef| leaves(array.as_ref());
    match array.data_type() {
        DataType::List(_) => array.as_list::<i32>().iter().flatten().map(each).sum(),
        DataType::LargeList(_) => array.as_list::<i64>().iter().flatten().map(each).sum(),
        DataType::FixedSizeList(..) => array.as_fixed_size_list().iter().flatten().map(each).sum(),
        _ => array.len() as u64,
    }
}

/// Refuses arguments for which `levenshtein` would take too long: its steps are the product of both lengths.
#[derive(Clone, Debug)]
struct Steps;

impl Check for Steps {
    fn invoke(&self, inner: &ScalarUDF, arguments: ScalarFunctionArgs, rows: usize) -> Result<ColumnarValue> {
        for value in &arguments.args {
            if (0..rows).any(|row| size(value, row).characters > LEVENSHTEIN_MAX) {
                let message = format!("levenshtein argument exceeds maximum length of {LEVENSHTEIN_MAX} characters");
                return Err(external(SqlError::new(SqlState::INVALID_PARAMETER_VALUE, message)));
            }
        }
        inner.invoke_with_args(arguments)
    }
}

/// Replaces `||` by a function. It must run after DataFusion's own coercion, which gives both sides one type. A chain
/// becomes one call: the name of a call is computed again at each level above it, and 1,000 nested calls took 7 s to
/// plan.
#[derive(Debug)]
pub(super) struct Concatenations(Pool);

impl Concatenations {
    /// The rule, with the queries' memory.
    pub(super) fn new(pool: &Arc<dyn MemoryPool>) -> Self {
        Self(Pool(Arc::clone(pool)))
    }

    fn concatenated(&self, left: Expr, right: Expr) -> Expr {
        let mut parts = match left {
            Expr::ScalarFunction(call) if call.func.inner().downcast_ref::<Concatenation>().is_some() => call.args,
            left => vec![left],
        };
        parts.push(right);
        let signature = Signature::any(parts.len(), Volatility::Immutable);
        ScalarUDF::from(Concatenation { pool: self.0.clone(), signature }).call(parts)
    }
}

impl AnalyzerRule for Concatenations {
    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let replaced = |expression: Expr| match expression {
            // The function has the name of the expression that it replaces, so no schema changes.
            Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) => {
                Ok(Transformed::yes(self.concatenated(*left, *right)))
            }
            other => Ok(Transformed::no(other)),
        };
        plan.transform_up_with_subqueries(|plan| plan.map_expressions(|expression| expression.transform_up(replaced)))
            .data()
    }

    fn name(&self) -> &'static str {
        "concatenations"
    }
}

/// The queries' memory; there is only one.
#[derive(Clone, Debug)]
pub(super) struct Pool(pub(super) Arc<dyn MemoryPool>);

impl PartialEq for Pool {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Pool {}

impl std::hash::Hash for Pool {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Concatenation {
    pool: Pool,
    signature: Signature,
}

impl ScalarUDFImpl for Concatenation {
    fn name(&self) -> &'static str {
        "concatenation"
    }

    fn schema_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(arguments.iter().map(|part| part.schema_name().to_string()).collect::<Vec<_>>().join(" || "))
    }

    fn display_name(&self, arguments: &[Expr]) -> Result<String> {
        Ok(arguments.iter().map(ToString::to_string).collect::<Vec<_>>().join(" || "))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(arguments[0].clone())
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let nullable = arguments.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), arguments.arg_fields[0].data_type().clone(), nullable)))
    }

    fn is_strict(&self) -> bool {
        true
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let parts = arguments.args.as_slice();
        let [first, rest @ ..] = parts else {
            return internal_err!("|| has sides");
        };
        let alike = parts.iter().all(|part| matches!(part, ColumnarValue::Scalar(_)));
        let rows = if alike { 1 } else { arguments.number_rows };
        let mut all = 0_u64;
        for row in 0..rows {
            let bytes = bytes_of_all(parts, row);
            check_value(bytes.saturating_add(HEADER_BYTES))?;
            all = all.saturating_add(bytes);
        }
        ask_for_room(&self.pool.0, "||", all)?;
        let joined: ArrayRef = match first.data_type() {
            DataType::Utf8View => {
                let mut builder = StringViewBuilder::with_capacity(rows);
                joined(parts, rows, |text| match text {
                    Some(text) => builder.append_value(text),
                    None => builder.append_null(),
                });
                Arc::new(builder.finish())
            }
            DataType::Utf8 => joined_texts::<i32>(parts, rows, all)?,
            DataType::LargeUtf8 => joined_texts::<i64>(parts, rows, all)?,
            _ => rest.iter().try_fold(first.to_array(rows)?, |before, part| -> Result<ArrayRef> {
                Ok(concat_elements_dyn(before.as_ref(), part.to_array(rows)?.as_ref())?)
            })?,
        };
        Ok(if alike {
            ColumnarValue::Scalar(ScalarValue::try_from_array(&joined, 0)?)
        } else {
            ColumnarValue::Array(joined)
        })
    }
}

/// The total bytes of a row's values; 0 if one is NULL.
fn bytes_of_all(parts: &[ColumnarValue], row: usize) -> u64 {
    let is_null = |part: &ColumnarValue| match part {
        ColumnarValue::Scalar(value) => value.is_null(),
        ColumnarValue::Array(array) => array.is_null(row),
    };
    if parts.iter().any(is_null) {
        return 0;
    }
    parts.iter().fold(0, |all, part| all.saturating_add(bytes(part, row)))
}

/// Passes each row's concatenated texts to `give`; `None` if one is NULL.
fn joined(parts: &[ColumnarValue], rows: usize, mut give: impl FnMut(Option<&str>)) {
    let mut whole = String::new();
    for row in 0..rows {
        whole.clear();
        let is_whole = parts.iter().all(|part| some_text(part, row).map(|text| whole.push_str(text)).is_some());
        give(is_whole.then_some(whole.as_str()));
    }
}

fn joined_texts<O: OffsetSizeTrait>(parts: &[ColumnarValue], rows: usize, bytes: u64) -> Result<ArrayRef> {
    if usize::try_from(bytes).ok().and_then(O::from_usize).is_none() {
        let message = "the texts of a batch exceed the size limit";
        return Err(external(SqlError::new(SqlState::PROGRAM_LIMIT_EXCEEDED, message)));
    }
    let mut builder = GenericStringBuilder::<O>::new();
    joined(parts, rows, |text| match text {
        Some(text) => builder.append_value(text),
        None => builder.append_null(),
    });
    Ok(Arc::new(builder.finish()))
}

/// The length of a text.
#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    characters: u64,
}

/// An upper bound on the bytes of a text that is padded to a number of characters.
fn padded_bytes(text: Size, fill: Size, count: u64) -> u64 {
    let times = count.saturating_sub(text.characters).div_ceil(fill.characters.max(1));
    text.bytes.saturating_add(times.saturating_mul(fill.bytes))
}

/// The length of a row's text; 0 for NULL.
fn size(value: &ColumnarValue, row: usize) -> Size {
    Size { bytes: bytes(value, row), characters: text(value, row).chars().count() as u64 }
}

/// The bytes of a row's text or bytes; 0 for NULL.
fn bytes(value: &ColumnarValue, row: usize) -> u64 {
    let bytes = match value {
        ColumnarValue::Scalar(
            ScalarValue::Binary(Some(bytes))
            | ScalarValue::LargeBinary(Some(bytes))
            | ScalarValue::BinaryView(Some(bytes)),
        ) => bytes.len(),
        ColumnarValue::Array(array) if array.is_valid(row) => match array.data_type() {
            DataType::Binary => array.as_binary::<i32>().value(row).len(),
            DataType::LargeBinary => array.as_binary::<i64>().value(row).len(),
            DataType::BinaryView => array.as_binary_view().value(row).len(),
            _ => 0,
        },
        _ => 0,
    };
    (bytes + text(value, row).len()) as u64
}

/// A row's text; `None` for NULL.
pub(super) fn some_text(value: &ColumnarValue, row: usize) -> Option<&str> {
    match value {
        ColumnarValue::Scalar(value) => value.try_as_str().flatten(),
        ColumnarValue::Array(array) if array.is_null(row) => None,
        ColumnarValue::Array(array) => match array.data_type() {
            DataType::Utf8 => Some(array.as_string::<i32>().value(row)),
            DataType::LargeUtf8 => Some(array.as_string::<i64>().value(row)),
            DataType::Utf8View => Some(array.as_string_view().value(row)),
            _ => None,
        },
    }
}

/// A row's text; empty for NULL.
fn text(value: &ColumnarValue, row: usize) -> &str {
    some_text(value, row).unwrap_or_default()
}

/// A row's number; 0 for NULL.
fn number(value: &ColumnarValue, row: usize) -> i64 {
    match value {
        ColumnarValue::Scalar(ScalarValue::Int64(number)) => number.unwrap_or(0),
        ColumnarValue::Array(array) if array.is_valid(row) && *array.data_type() == DataType::Int64 => {
            array.as_primitive::<Int64Type>().value(row)
        }
        _ => 0,
    }
}

/// A row's value.
fn scalar(value: &ColumnarValue, row: usize) -> Result<ScalarValue> {
    match value {
        ColumnarValue::Scalar(value) => Ok(value.clone()),
        ColumnarValue::Array(array) => ScalarValue::try_from_array(array, row),
    }
}
